//! Writes an array as a stream, with its checksum.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use super::{Element, FileRecord, Header, NpyError, count};

/// Values waiting to be written, in bytes.
const BUFFER: usize = 1 << 18;

/// Streams the values of an array whose shape is known at the start, in C order.
///
/// The file is not complete before [`finish`](Self::finish) has returned.
#[derive(Debug)]
pub struct ArrayWriter<T> {
    file: BufWriter<File>,
    path: PathBuf,
    recorded_path: String,
    announced: u64,
    given: u64,
    bytes: u64,
    crc32c: u32,
    values: PhantomData<fn(T)>,
}

impl<T: Element> ArrayWriter<T> {
    /// Creates the file, which must not exist, and writes its header.
    pub fn create(path: &Path, shape: &[usize]) -> Result<Self, NpyError> {
        let recorded_path = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::create_recorded(path, recorded_path, shape)
    }

    /// As [`create`](Self::create), for a file that its [`FileRecord`] calls `recorded_path`.
    pub fn create_recorded(path: &Path, recorded_path: String, shape: &[usize]) -> Result<Self, NpyError> {
        let announced = count(shape)
            .ok_or_else(|| NpyError::malformed(path, format!("the shape {shape:?} is beyond all memory")))?;
        let file = File::create_new(path).map_err(NpyError::io("create", path))?;
        let mut writer = Self {
            file: BufWriter::with_capacity(BUFFER, file),
            path: path.to_owned(),
            recorded_path,
            announced: announced as u64,
            given: 0,
            bytes: 0,
            crc32c: 0,
            values: PhantomData,
        };
        writer.put(&Header::new(T::DTYPE, shape).encode())?;
        Ok(writer)
    }

    /// Appends values.
    pub fn write(&mut self, values: &[T]) -> Result<(), NpyError> {
        self.given += values.len() as u64;
        if self.given > self.announced {
            return Err(self.miscounted());
        }
        self.put(bytemuck::cast_slice(values))
    }

    /// Ends the file; fails unless exactly the announced number of values came. Does not sync it to disk.
    pub fn finish(mut self) -> Result<FileRecord, NpyError> {
        if self.given != self.announced {
            return Err(self.miscounted());
        }
        self.file.flush().map_err(NpyError::io("write", &self.path))?;
        Ok(FileRecord {
            path: self.recorded_path,
            bytes: self.bytes,
            crc32c: self.crc32c,
        })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), NpyError> {
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(NpyError::io("write", &self.path))
    }

    fn miscounted(&self) -> NpyError {
        NpyError::Count {
            path: self.path.clone(),
            announced: self.announced,
            given: self.given,
        }
    }
}
