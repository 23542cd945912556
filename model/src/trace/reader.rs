//! Reading a trace, one step at a time and in any order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::batch::{MiniBatch, RemoteRows};
use crate::policy::{RemoteTrace, TraceReadError};
use crate::rng::Purpose;
use crate::trace::header::{END_MAGIC, MAGIC, PREFIX_BYTES, read_prefix};
use crate::trace::record::{FRAME_BYTES, Frame};
use crate::trace::{Problem, TraceError, TraceHeader};

/// Bytes behind the offsets of the index: its place, the number of steps, its checksum and the end mark.
const FOOTER_BYTES: usize = 24;

/// A finished trace file. Reads by position, so that threads share one reader; every read is checked.
#[derive(Debug)]
pub struct TraceReader {
    path: PathBuf,
    file: File,
    header: TraceHeader,
    /// Where each record starts, and behind the last one where the index does.
    offsets: Vec<u64>,
}

impl TraceReader {
    /// Opens a trace and checks its header and index. Records are checked as they are read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| read_failed(path, error))?;
        let length = file.metadata().map_err(|error| read_failed(path, error))?.len();
        let refused = |problem| TraceError::Refused {
            path: path.to_path_buf(),
            problem,
        };
        let truncated = || refused(Problem::Truncated { found: length });
        let read = |offset: u64, count: usize| {
            if offset.checked_add(count as u64).is_none_or(|end| end > length) {
                return Err(truncated());
            }
            read_at(&file, offset, count).map_err(|error| read_failed(path, error))
        };

        let prefix = read(0, (length as usize).min(PREFIX_BYTES))?;
        let (prefix, field_bytes) = match <&[u8; PREFIX_BYTES]>::try_from(&prefix[..]) {
            Ok(prefix) => (prefix, read_prefix(prefix).map_err(refused)?),
            Err(_) if MAGIC.starts_with(&prefix) || prefix.starts_with(&MAGIC) => return Err(truncated()),
            Err(_) => return Err(refused(Problem::Magic)),
        };
        let header_bytes = PREFIX_BYTES + field_bytes;
        let bytes = read(0, header_bytes + 4)?;
        let (bytes, checksum) = bytes.split_at(header_bytes);
        if crc32c::crc32c(bytes).to_le_bytes() != checksum {
            return Err(refused(Problem::Checksum {
                what: "the header".into(),
            }));
        }
        let header = TraceHeader::decode(prefix, &bytes[PREFIX_BYTES..]).map_err(refused)?;

        let records = header_bytes as u64 + 4;
        let index_bytes = header.steps() as u64 * 8 + FOOTER_BYTES as u64;
        let index_at = length
            .checked_sub(index_bytes)
            .filter(|at| *at >= records)
            .ok_or_else(truncated)?;
        let index = read(index_at, index_bytes as usize)?;
        let offsets = read_index(&index, index_at, records, header.steps()).map_err(|problem| match problem {
            Problem::Truncated { .. } => truncated(),
            other => refused(other),
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            header,
            offsets,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Refuses a trace of another configuration, naming what differs.
    pub fn expect(&self, wanted: &TraceHeader) -> Result<(), TraceError> {
        self.header.expect(wanted).map_err(|problem| self.refused(problem))
    }

    /// The batch of one step, exactly as it was appended.
    pub fn batch(&self, step: u32) -> Result<MiniBatch, TraceError> {
        let (frame, at) = self.frame(step)?;
        let remote_bytes = frame.remote_bytes as usize;
        let bytes = self.read(at, remote_bytes + frame.structure_bytes as usize)?;
        let (remote, structure) = bytes.split_at(remote_bytes);
        frame
            .remote(remote, self.header.row_book())
            .and_then(|remote| frame.batch(structure, remote, &self.header))
            .map_err(|problem| self.refused(problem))
    }

    /// The remote rows of one step; nothing else of the record is read.
    pub fn remote_rows(&self, step: u32) -> Result<RemoteRows, TraceError> {
        let (frame, at) = self.frame(step)?;
        let bytes = self.read(at, frame.remote_bytes as usize)?;
        frame
            .remote(&bytes, self.header.row_book())
            .map_err(|problem| self.refused(problem))
    }

    /// The frame of a record, and where its first section starts.
    fn frame(&self, step: u32) -> Result<(Frame, u64), TraceError> {
        let index = step as usize;
        let (Some(start), Some(end)) = (self.offsets.get(index), self.offsets.get(index + 1)) else {
            return Err(self.refused(Problem::NoSuchStep {
                step,
                steps: self.header.steps(),
            }));
        };
        let mut bytes = [0; FRAME_BYTES];
        self.file
            .read_exact_at(&mut bytes, *start)
            .map_err(|error| read_failed(&self.path, error))?;
        let frame = Frame::decode(&bytes, step).map_err(|problem| self.refused(problem))?;
        let sections = u64::from(frame.remote_bytes) + u64::from(frame.structure_bytes);
        if start + FRAME_BYTES as u64 + sections != *end {
            return Err(self.refused(Problem::Malformed {
                what: format!("the record of step {step}"),
                why: "it is not as long as its frame says",
            }));
        }
        Ok((frame, start + FRAME_BYTES as u64))
    }

    fn read(&self, offset: u64, count: usize) -> Result<Vec<u8>, TraceError> {
        read_at(&self.file, offset, count).map_err(|error| read_failed(&self.path, error))
    }

    fn refused(&self, problem: Problem) -> TraceError {
        TraceError::Refused {
            path: self.path.clone(),
            problem,
        }
    }
}

impl RemoteTrace for TraceReader {
    fn steps(&self) -> u32 {
        self.header.steps()
    }

    fn purpose(&self, step: u32) -> Purpose {
        self.header.spec.purpose_of(step)
    }

    fn remote_rows(&self, step: u32) -> Result<Arc<RemoteRows>, TraceReadError> {
        match TraceReader::remote_rows(self, step) {
            Ok(rows) => Ok(Arc::new(rows)),
            Err(error) => Err(TraceReadError {
                step,
                reason: with_sources(&error),
            }),
        }
    }
}

/// Where each record starts and where the index does, from the last bytes of a file.
fn read_index(bytes: &[u8], index_at: u64, records_at: u64, steps: u32) -> Result<Vec<u64>, Problem> {
    let what = || "the index".to_owned();
    let (body, end) = bytes.split_at(bytes.len() - END_MAGIC.len());
    if end != END_MAGIC {
        return Err(Problem::Truncated { found: 0 });
    }
    let (body, checksum) = body.split_at(body.len() - 4);
    if crc32c::crc32c(body).to_le_bytes() != checksum {
        return Err(Problem::Checksum { what: what() });
    }
    let (numbers, count) = body.split_at(body.len() - 4);
    let offsets: Vec<u64> = numbers
        .chunks_exact(8)
        .map(|bytes| {
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        })
        .collect();
    let apart = offsets
        .windows(2)
        .all(|pair| pair[0].saturating_add(FRAME_BYTES as u64) <= pair[1]);
    if count != steps.to_le_bytes()
        || offsets.first() != Some(&records_at)
        || offsets.last() != Some(&index_at)
        || !apart
    {
        return Err(Problem::Malformed {
            what: what(),
            why: "it does not fit to the rest of the file",
        });
    }
    Ok(offsets)
}

fn read_at(file: &File, offset: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn read_failed(path: &Path, source: io::Error) -> TraceError {
    TraceError::Read {
        path: path.to_path_buf(),
        source,
    }
}

/// An error and what caused it, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
