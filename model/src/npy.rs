//! Arrays on disk, in NumPy's `.npy` format: a short text header, then the values as they lie in memory.
//!
//! The format is kept because every other tool reads it: `numpy.load(path, mmap_mode="r")` opens what [`ArrayWriter`]
//! writes, and [`MappedArray`] opens what NumPy writes. The parts, in the order in which data meets them:
//!
//! - [`Header`]: what an array is, read and written (format versions 1, 2 and 3);
//! - [`ArrayWriter`]: streams values of a known shape to a file, and sums them up by CRC-32C on the way;
//! - [`MappedArray`]: a file as a slice, by memory map;
//! - [`ArrayReader`]: a stream of values of any integer or float type as one wished-for type, for import.
//!
//! Only little-endian, C-ordered arrays of plain numbers are read. Everything else is refused by an [`NpyError`] that
//! names the file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod convert;
mod header;
mod map;
mod read;
mod write;

pub use convert::{FromNumber, Number};
pub use header::{Dtype, Header};
pub use map::MappedArray;
pub use read::ArrayReader;
pub use write::ArrayWriter;

#[cfg(target_endian = "big")]
compile_error!("arrays are little-endian on disk and mapped as they are, so a big-endian machine cannot read them");

/// A file of a folder as its manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Relative to the folder, with `/` between names.
    pub path: String,
    /// Length of the whole file, header included.
    pub bytes: u64,
    /// CRC-32C (Castagnoli) of the whole file.
    pub crc32c: u32,
}

/// What is wrong with an array file.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} is not a readable .npy file: {problem}")]
    Malformed { path: PathBuf, problem: String },
    #[error("{path} holds values of dtype {found}, expected {expected}")]
    Dtype {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{path} holds Python objects (dtype {found}), which only Python can read; save plain numbers instead")]
    ObjectDtype { path: PathBuf, found: String },
    #[error("{path} is big-endian (dtype {found}); save it with `array.astype(array.dtype.newbyteorder('<'))`")]
    BigEndian { path: PathBuf, found: String },
    #[error("{path} is stored column by column (fortran_order); save it with `numpy.ascontiguousarray(array)`")]
    FortranOrder { path: PathBuf },
    #[error("{path} has shape {found:?}, expected {expected}")]
    Shape {
        path: PathBuf,
        found: Vec<usize>,
        expected: String,
    },
    #[error(
        "{path} is {found} bytes long, but its header announces {expected}: it was cut short or something was added"
    )]
    Length { path: PathBuf, found: u64, expected: u64 },
    #[error("{path} was announced with {announced} values, but {given} were written")]
    Count { path: PathBuf, announced: u64, given: u64 },
    #[error("{path}, {place}: {value} {problem}")]
    Value {
        path: PathBuf,
        place: Place,
        value: String,
        problem: String,
    },
}

/// Where in an array a value is, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index along the first axis.
    pub row: u64,
    /// Index inside the row; `None` in an array of one axis.
    pub column: Option<u64>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.column {
            None => write!(f, "row {}", self.row),
            Some(column) => write!(f, "row {}, column {column}", self.row),
        }
    }
}

impl NpyError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}

/// A plain number that an array can hold: what the file calls it, and how it lies in memory.
pub trait Element: bytemuck::Pod + std::fmt::Display + std::fmt::Debug {
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty => $dtype:expr),* $(,)?) => {
        $(impl Element for $type {
            const DTYPE: Dtype = $dtype;
        })*
    };
}

elements! {
    u8 => Dtype::U8,
    u16 => Dtype::U16,
    u32 => Dtype::U32,
    u64 => Dtype::U64,
    i8 => Dtype::I8,
    i16 => Dtype::I16,
    i32 => Dtype::I32,
    i64 => Dtype::I64,
    f32 => Dtype::F32,
    f64 => Dtype::F64,
}

/// Number of values of a shape; `None` where it does not fit a `usize`.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, axis| product.checked_mul(*axis))
}

#[cfg(test)]
mod tests;
