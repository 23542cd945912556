//! The header of a `.npy` file (NumPy enhancement proposal 1, and `numpy.lib.format`).
//!
//! Six bytes of magic, two of version, the length of the text (16 bits in version 1, 32 bits after), then a Python
//! dictionary such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, padded with spaces and one line
//! feed. Version 3 differs from 2 only in that the text is UTF-8.

use std::fmt;
use std::io::Read;
use std::path::Path;

use super::{NpyError, count};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The data of the files we write start at a multiple of this, a cache line.
const ALIGNMENT: usize = 64;
/// A longer header is not one of an array of numbers.
const LONGEST_TEXT: usize = 1 << 16;

/// The type of the values of an array. All are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
}

impl Dtype {
    const ALL: [Dtype; 12] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
    ];

    /// What NumPy calls it in a header.
    pub fn descr(self) -> &'static str {
        match self {
            Dtype::Bool => "|b1",
            Dtype::U8 => "|u1",
            Dtype::U16 => "<u2",
            Dtype::U32 => "<u4",
            Dtype::U64 => "<u8",
            Dtype::I8 => "|i1",
            Dtype::I16 => "<i2",
            Dtype::I32 => "<i4",
            Dtype::I64 => "<i8",
            Dtype::F16 => "<f2",
            Dtype::F32 => "<f4",
            Dtype::F64 => "<f8",
        }
    }

    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 1,
            Dtype::U16 | Dtype::I16 | Dtype::F16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::U64 | Dtype::I64 | Dtype::F64 => 8,
        }
    }

    fn parse(path: &Path, descr: &str) -> Result<Self, NpyError> {
        let found = || descr.to_owned();
        if let Some(dtype) = Self::ALL.into_iter().find(|dtype| dtype.descr() == descr) {
            return Ok(dtype);
        }
        let kind = descr.trim_start_matches(['<', '>', '|', '=']);
        if kind.starts_with('O') {
            return Err(NpyError::ObjectDtype {
                path: path.to_owned(),
                found: found(),
            });
        }
        let is_number = matches!(
            kind.as_bytes(),
            [b'i' | b'u', b'2' | b'4' | b'8'] | [b'f', b'2' | b'4' | b'8']
        );
        if descr.starts_with('>') && is_number {
            return Err(NpyError::BigEndian {
                path: path.to_owned(),
                found: found(),
            });
        }
        Err(NpyError::Dtype {
            path: path.to_owned(),
            found: found(),
            expected: "an integer or a float".to_owned(),
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.descr())
    }
}

/// What a `.npy` file says about its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where the values start in the file.
    pub data_start: usize,
}

impl Header {
    /// The header that [`encode`](Self::encode) writes for such an array.
    pub fn new(dtype: Dtype, shape: &[usize]) -> Self {
        Self {
            dtype,
            shape: shape.to_vec(),
            data_start: encode(dtype, shape).len(),
        }
    }

    /// The bytes before the values, a multiple of 64 of them.
    pub fn encode(&self) -> Vec<u8> {
        encode(self.dtype, &self.shape)
    }

    /// Reads the header that `source` starts with. `path` is what errors name.
    pub fn read(source: &mut impl Read, path: &Path) -> Result<Self, NpyError> {
        let mut fixed = [0u8; 8];
        fill(source, &mut fixed, path)?;
        if fixed[..6] != *MAGIC {
            return Err(NpyError::malformed(path, "it does not start with the magic of NumPy"));
        }
        let (text_length, fixed_length) = match fixed[6] {
            1 => {
                let mut length = [0u8; 2];
                fill(source, &mut length, path)?;
                (usize::from(u16::from_le_bytes(length)), 10)
            }
            2 | 3 => {
                let mut length = [0u8; 4];
                fill(source, &mut length, path)?;
                (u32::from_le_bytes(length) as usize, 12)
            }
            other => {
                return Err(NpyError::malformed(
                    path,
                    format!("its format version is {other}, known are 1, 2 and 3"),
                ));
            }
        };
        if text_length > LONGEST_TEXT {
            return Err(NpyError::malformed(
                path,
                format!("its header is {text_length} bytes long, more than {LONGEST_TEXT}"),
            ));
        }
        let mut text = vec![0u8; text_length];
        fill(source, &mut text, path)?;
        let text = String::from_utf8(text).map_err(|_| NpyError::malformed(path, "its header is not UTF-8 text"))?;
        let (dtype, shape) = parse(path, &text)?;
        Ok(Self {
            dtype,
            shape,
            data_start: fixed_length + text_length,
        })
    }

    /// Number of values.
    pub fn count(&self) -> Option<usize> {
        count(&self.shape)
    }

    /// Length of a whole file with this header, in bytes.
    pub fn file_length(&self) -> Option<u64> {
        let bytes = self
            .count()?
            .checked_mul(self.dtype.size())?
            .checked_add(self.data_start)?;
        u64::try_from(bytes).ok()
    }

    /// Fails unless a file of `found` bytes is exactly what the header announces.
    pub fn check_length(&self, path: &Path, found: u64) -> Result<(), NpyError> {
        let expected = self
            .file_length()
            .ok_or_else(|| NpyError::malformed(path, format!("its shape {:?} is beyond all memory", self.shape)))?;
        if found == expected {
            return Ok(());
        }
        Err(NpyError::Length {
            path: path.to_owned(),
            found,
            expected,
        })
    }
}

fn fill(source: &mut impl Read, buffer: &mut [u8], path: &Path) -> Result<(), NpyError> {
    source.read_exact(buffer).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => NpyError::malformed(path, "it ends inside its header"),
        _ => NpyError::io("read", path)(error),
    })
}

fn encode(dtype: Dtype, shape: &[usize]) -> Vec<u8> {
    let mut axes = String::new();
    for axis in shape {
        axes.push_str(&format!("{axis}, "));
    }
    // Python writes (3,) and (3, 4): the comma stays only behind a single axis.
    let axes = match shape.len() {
        1 => axes.trim_end(),
        _ => axes.trim_end_matches(", "),
    };
    let descr = dtype.descr();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
    let fixed_length = MAGIC.len() + 4;
    let used = fixed_length + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', used.next_multiple_of(ALIGNMENT) - used));
    text.push('\n');
    // The text of an array of numbers stays far below the 64 KiB of version 1 (a shape has a handful of axes).
    let mut bytes = Vec::with_capacity(fixed_length + text.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Reads the dictionary of a header: the three keys in any order, each once.
fn parse(path: &Path, text: &str) -> Result<(Dtype, Vec<usize>), NpyError> {
    let bad = |problem: String| NpyError::malformed(path, problem);
    let mut rest = Literal { rest: text.trim() };
    let mut dtype = None;
    let mut fortran = None;
    let mut shape = None;
    rest.expect('{').map_err(bad)?;
    while !rest.accept('}') {
        let key = rest.string().map_err(bad)?;
        rest.expect(':').map_err(bad)?;
        let repeated = match key {
            "descr" => {
                if rest.rest.starts_with(['[', '(']) {
                    return Err(NpyError::Dtype {
                        path: path.to_owned(),
                        found: "of several fields".to_owned(),
                        expected: "an integer or a float".to_owned(),
                    });
                }
                let descr = rest.string().map_err(bad)?;
                dtype.replace(Dtype::parse(path, descr)?).is_some()
            }
            "fortran_order" => fortran.replace(rest.boolean().map_err(bad)?).is_some(),
            "shape" => shape.replace(rest.tuple().map_err(bad)?).is_some(),
            other => return Err(bad(format!("its header has the unknown key '{other}'"))),
        };
        if repeated {
            return Err(bad(format!("its header has the key '{key}' twice")));
        }
        if !rest.accept(',') {
            rest.expect('}').map_err(bad)?;
            break;
        }
    }
    if !rest.rest.trim().is_empty() {
        return Err(bad("its header goes on behind the dictionary".to_owned()));
    }
    let missing = |key: &str| NpyError::malformed(path, format!("its header has no '{key}'"));
    let dtype = dtype.ok_or_else(|| missing("descr"))?;
    let shape: Vec<usize> = shape.ok_or_else(|| missing("shape"))?;
    let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
    // With at most one axis longer than 1 both orders are the same bytes, and NumPy may call them either.
    if fortran && shape.iter().filter(|axis| **axis != 1).count() > 1 {
        return Err(NpyError::FortranOrder { path: path.to_owned() });
    }
    Ok((dtype, shape))
}

/// The few Python literals that a header is made of.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    fn accept(&mut self, symbol: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, symbol: char) -> Result<(), String> {
        if self.accept(symbol) {
            return Ok(());
        }
        let near: String = self.rest.chars().take(20).collect();
        Err(format!("its header lacks '{symbol}' before '{near}'"))
    }

    fn string(&mut self) -> Result<&'a str, String> {
        for quote in ['\'', '"'] {
            if self.accept(quote) {
                let (text, rest) = self
                    .rest
                    .split_once(quote)
                    .ok_or_else(|| "its header has a string without an end".to_owned())?;
                self.rest = rest;
                return Ok(text);
            }
        }
        Err("its header lacks a quoted string".to_owned())
    }

    fn boolean(&mut self) -> Result<bool, String> {
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("fortran_order is neither True nor False".to_owned())
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        self.expect('(')?;
        let mut axes = Vec::new();
        while !self.accept(')') {
            let digits = self.rest.len()
                - self
                    .rest
                    .trim_start_matches(|symbol: char| symbol.is_ascii_digit())
                    .len();
            let (number, rest) = self.rest.split_at(digits);
            let axis = number
                .parse()
                .map_err(|_| format!("its shape has an axis that is not a size, near '{}'", self.rest))?;
            axes.push(axis);
            // Python 2 wrote long integers as 3L.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(axes)
    }
}
