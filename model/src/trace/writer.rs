//! Writing a trace: header, records in step order, index.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::batch::MiniBatch;
use crate::trace::header::END_MAGIC;
use crate::trace::{Problem, TraceError, TraceHeader, record};

/// Writes one trace file. It grows under the name `PATH.partial` and takes its own only in [`finish`](Self::finish); a
/// writer that is dropped before, or that fails, leaves no file.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    partial: PathBuf,
    header: TraceHeader,
    file: BufWriter<File>,
    /// Where each record starts, and where the next one will.
    offsets: Vec<u64>,
    end: u64,
    /// Set once the partial file has its own name, so that dropping removes nothing.
    finished: bool,
}

impl TraceWriter {
    /// Starts the trace that will be at `path`, in a folder that exists. What an earlier writer left under the partial name
    /// is overwritten.
    pub fn create(path: impl AsRef<Path>, header: TraceHeader) -> Result<Self, TraceError> {
        let path = path.as_ref().to_path_buf();
        let bytes = header.encode().map_err(|problem| refused(&path, problem))?;
        let mut name = path.clone().into_os_string();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let file = File::create(&partial).map_err(|source| failed(&path, source))?;
        let mut writer = Self {
            path,
            partial,
            header,
            file: BufWriter::with_capacity(1 << 20, file),
            offsets: Vec::new(),
            end: 0,
            finished: false,
        };
        writer.write(&bytes)?;
        Ok(writer)
    }

    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The step that has to be appended next.
    pub fn next_step(&self) -> u32 {
        self.offsets.len() as u32
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Appends the batch of the next step.
    pub fn append(&mut self, batch: &MiniBatch) -> Result<(), TraceError> {
        self.append_all(std::slice::from_ref(batch))
    }

    /// Appends the batches of the next steps, encoded in parallel and written in order.
    pub fn append_all(&mut self, batches: &[MiniBatch]) -> Result<(), TraceError> {
        let records: Vec<Vec<u8>> = (self.offsets.len() as u64..)
            .zip(batches)
            .collect::<Vec<_>>()
            .into_par_iter()
            .map(|(step, batch)| self.encode(step, batch))
            .collect::<Result<_, _>>()
            .map_err(|problem| refused(&self.path, problem))?;
        for record in records {
            self.offsets.push(self.end);
            self.write(&record)?;
        }
        Ok(())
    }

    fn encode(&self, step: u64, batch: &MiniBatch) -> Result<Vec<u8>, Problem> {
        let steps = self.header.steps();
        if step >= u64::from(steps) {
            return Err(Problem::NoSuchStep {
                step: batch.step,
                steps,
            });
        }
        if u64::from(batch.step) != step {
            return Err(Problem::OutOfOrder {
                found: batch.step,
                wanted: step as u32,
            });
        }
        record::encode(batch, &self.header)
    }

    /// Writes the index, waits until everything is on the disk, and gives the file its name.
    pub fn finish(mut self) -> Result<(), TraceError> {
        let steps = self.header.steps();
        if self.next_step() != steps {
            let problem = Problem::Unfinished {
                found: self.next_step(),
                wanted: steps,
            };
            return Err(refused(&self.path, problem));
        }
        let mut index: Vec<u8> = self.offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        index.extend(self.end.to_le_bytes());
        index.extend(steps.to_le_bytes());
        index.extend(crc32c::crc32c(&index).to_le_bytes());
        index.extend(END_MAGIC);
        self.write(&index)?;
        let done = self
            .file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .and_then(|()| fs::rename(&self.partial, &self.path))
            .and_then(|()| sync_folder(&self.path));
        done.map_err(|source| failed(&self.path, source))?;
        self.finished = true;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.file
            .write_all(bytes)
            .map_err(|source| failed(&self.path, source))?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = fs::remove_file(&self.partial)
        {
            tracing::warn!(file = %self.partial.display(), %error, "an unfinished trace could not be removed");
        }
    }
}

/// Makes a rename last: the entry of the folder is what has to reach the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn refused(path: &Path, problem: Problem) -> TraceError {
    TraceError::Refused {
        path: path.to_path_buf(),
        problem,
    }
}

fn failed(path: &Path, source: io::Error) -> TraceError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TraceError::DiskFull { path, source },
        _ => TraceError::Write { path, source },
    }
}
