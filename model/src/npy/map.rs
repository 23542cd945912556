//! An array file as a slice, by memory map.

use std::fs::File;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

use super::{Element, Header, NpyError};

/// The values of a `.npy` file, mapped into memory and read when they are touched.
///
/// The file must not be changed while it is mapped. Nothing in GreenGNN does so: folders are written under a temporary
/// name and renamed when they are complete.
#[derive(Debug)]
pub struct MappedArray<T> {
    map: Mmap,
    shape: Vec<usize>,
    data_start: usize,
    values: PhantomData<T>,
}

impl<T: Element> MappedArray<T> {
    /// Maps `path`, which must hold exactly the values its header announces, of type `T`.
    pub fn open(path: &Path) -> Result<Self, NpyError> {
        let mut file = File::open(path).map_err(NpyError::io("open", path))?;
        let header = Header::read(&mut file, path)?;
        if header.dtype != T::DTYPE {
            return Err(NpyError::Dtype {
                path: path.to_owned(),
                found: header.dtype.to_string(),
                expected: T::DTYPE.to_string(),
            });
        }
        let length = file.metadata().map_err(NpyError::io("read the size of", path))?.len();
        header.check_length(path, length)?;
        // SAFETY: the map is read-only and private to this value. Another process that truncated the file could still end
        // this one by a bus error, as with every memory map; stores are never changed in place.
        let map = unsafe { Mmap::map(&file) }.map_err(NpyError::io("map", path))?;
        if map.len() as u64 != length {
            return Err(NpyError::malformed(path, "its length changed while it was opened"));
        }
        let array = Self {
            map,
            shape: header.shape,
            data_start: header.data_start,
            values: PhantomData,
        };
        if bytemuck::try_cast_slice::<u8, T>(&array.map[array.data_start..]).is_err() {
            return Err(NpyError::malformed(
                path,
                format!("its values start at byte {}, which is not aligned", array.data_start),
            ));
        }
        Ok(array)
    }

    /// As [`open`](Self::open), and fails unless the shape is `expected`.
    pub fn open_shaped(path: &Path, expected: &[usize]) -> Result<Self, NpyError> {
        let array = Self::open(path)?;
        if array.shape != expected {
            return Err(NpyError::Shape {
                path: path.to_owned(),
                found: array.shape,
                expected: format!("{expected:?}"),
            });
        }
        Ok(array)
    }

    /// Length of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl<T: Element> Deref for MappedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // `open` has made sure that this cast holds.
        bytemuck::cast_slice(&self.map[self.data_start..])
    }
}
