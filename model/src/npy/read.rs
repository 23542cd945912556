//! Streams the values of an array, whatever their type, as the type that is wished for.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::{Dtype, FromNumber, Header, NpyError, Number, Place};

/// Bytes that are read at a time.
const BUFFER: usize = 1 << 18;

/// Reads an array in order, converting each value exactly or refusing it with its row.
///
/// Memory is one buffer, whatever the size of the array.
#[derive(Debug)]
pub struct ArrayReader<R> {
    source: R,
    path: PathBuf,
    header: Header,
    /// Values that were handed out.
    taken: usize,
    total: usize,
    raw: Vec<u8>,
}

impl ArrayReader<BufReader<File>> {
    /// Opens a file, whose length must be exactly what its header announces.
    pub fn open(path: &Path) -> Result<Self, NpyError> {
        let file = File::open(path).map_err(NpyError::io("open", path))?;
        let length = file.metadata().map_err(NpyError::io("read the size of", path))?.len();
        let reader = Self::new(BufReader::with_capacity(BUFFER, file), path.to_owned())?;
        reader.header.check_length(path, length)?;
        Ok(reader)
    }

    /// Passes over the next `values` values, or over all that are left.
    pub fn skip(&mut self, values: usize) -> Result<(), NpyError> {
        let values = values.min(self.remaining());
        // The file was found to be as long as its header says, so the number of bytes fits.
        let bytes = (values * self.header.dtype.size()) as i64;
        self.source
            .seek_relative(bytes)
            .map_err(NpyError::io("read", &self.path))?;
        self.taken += values;
        Ok(())
    }
}

impl<R: Read> ArrayReader<R> {
    /// Reads the header of `source`; `path` is what errors name.
    pub fn new(mut source: R, path: PathBuf) -> Result<Self, NpyError> {
        let header = Header::read(&mut source, &path)?;
        let total = header
            .count()
            .ok_or_else(|| NpyError::malformed(&path, format!("its shape {:?} is beyond all memory", header.shape)))?;
        Ok(Self {
            source,
            path,
            header,
            taken: 0,
            total,
            raw: Vec::new(),
        })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Length of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Values that were not read yet.
    pub fn remaining(&self) -> usize {
        self.total - self.taken
    }

    /// Where the value at `position` in C order is.
    pub fn place(&self, position: usize) -> Place {
        let width = self.header.shape.iter().skip(1).product::<usize>().max(1);
        Place {
            row: (position / width) as u64,
            column: (self.header.shape.len() > 1).then_some((position % width) as u64),
        }
    }

    /// Replaces `values` by the next values, at most `most` of them; none are left when it comes back empty.
    pub fn read<T: FromNumber>(&mut self, values: &mut Vec<T>, most: usize) -> Result<(), NpyError> {
        values.clear();
        let size = self.header.dtype.size();
        let mut wanted = most.min(self.remaining());
        values.reserve(wanted);
        while wanted > 0 {
            let step = wanted.min(BUFFER / size);
            self.raw.resize(step * size, 0);
            self.source
                .read_exact(&mut self.raw)
                .map_err(|error| match error.kind() {
                    std::io::ErrorKind::UnexpectedEof => NpyError::malformed(
                        &self.path,
                        format!("it ends before value {} of {}", self.taken + step, self.total),
                    ),
                    _ => NpyError::io("read", &self.path)(error),
                })?;
            self.convert(values)?;
            self.taken += step;
            wanted -= step;
        }
        Ok(())
    }

    /// Fails unless the source ends behind the last value. Also lets a source that checks itself at its end do so.
    pub fn finish(mut self) -> Result<(), NpyError> {
        let mut byte = [0u8];
        match self.source.read(&mut byte).map_err(NpyError::io("read", &self.path))? {
            0 => Ok(()),
            _ => Err(NpyError::malformed(&self.path, "it goes on behind its last value")),
        }
    }

    /// Reads all values that are left.
    pub fn read_all<T: FromNumber>(&mut self) -> Result<Vec<T>, NpyError> {
        let mut values = Vec::new();
        // Grows as values come, so that a header that lies about a stream cannot claim memory.
        let mut chunk = Vec::new();
        loop {
            self.read(&mut chunk, BUFFER)?;
            if chunk.is_empty() {
                return Ok(values);
            }
            values.extend_from_slice(&chunk);
        }
    }

    fn convert<T: FromNumber>(&self, values: &mut Vec<T>) -> Result<(), NpyError> {
        // One loop per type: with the type known, the compiler reduces a value to a load and a check.
        macro_rules! by_type {
            ($($dtype:ident),*) => {
                match self.header.dtype {
                    $(Dtype::$dtype => self.convert_from(Dtype::$dtype, values),)*
                }
            };
        }
        by_type!(Bool, U8, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64)
    }

    #[inline(always)]
    fn convert_from<T: FromNumber>(&self, dtype: Dtype, values: &mut Vec<T>) -> Result<(), NpyError> {
        for (index, bytes) in self.raw.chunks_exact(dtype.size()).enumerate() {
            let number = Number::from_bytes(dtype, bytes);
            match T::from_number(number) {
                Some(value) => values.push(value),
                None => return Err(self.unfit(index, number, T::WANTED)),
            }
        }
        Ok(())
    }

    #[cold]
    fn unfit(&self, index: usize, number: Number, wanted: &str) -> NpyError {
        NpyError::Value {
            path: self.path.clone(),
            place: self.place(self.taken + index),
            value: number.to_string(),
            problem: wanted.to_owned(),
        }
    }
}
