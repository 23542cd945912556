//! Traces: what every batch of an epoch of one rank is, presampled ahead of training and kept on disk.
//!
//! A trace file is a header, one checksummed record per step, and an index. Records are appended while sampling goes on;
//! the file gets its name only once it is whole, so a reader never meets half a trace. The layout, byte for byte, is in
//! `docs/trace-format.md`. The trace of one configuration is the same file, bit for bit, at any number of threads and
//! wherever the neighbours are drawn: nothing in it depends on when, where or by whom it was written.
//!
//! - [`header`]: what the file is of ([`TraceHeader`]), and what is refused;
//! - [`pack`]: lists of numbers in as few bits as they need, for schedules too;
//! - `record`: one [`MiniBatch`] as bytes, the remote rows first, because planners read nothing else;
//! - [`writer`] and [`reader`]: the file ([`TraceWriter`], [`TraceReader`]);

pub mod header;
pub mod pack;
pub mod reader;
pub mod writer;

mod record;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use header::TraceHeader;
pub use reader::TraceReader;
pub use writer::TraceWriter;

#[cfg(doc)]
use crate::batch::MiniBatch;

/// Why a trace cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("the disk is full: trace {path} cannot be written; free some space or point the run to a larger disk")]
    DiskFull {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("trace {path} cannot be written: {source}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("trace {path} cannot be read: {source}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("trace {path}: {problem}")]
    Refused { path: PathBuf, problem: Problem },
}

/// What is wrong with a trace file, or with a batch that should go into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("this is not a trace file of GreenGNN")]
    Magic,
    #[error("the file has format version {found}, this program reads version {wanted}; presample again")]
    Version { found: u32, wanted: u32 },
    #[error("the file needs features that this program does not know (bits {unknown:#x})")]
    Features { unknown: u64 },
    #[error("the file is cut off after {found} bytes: it has no end mark")]
    Truncated { found: u64 },
    #[error("the checksum of {what} is wrong: the file is damaged")]
    Checksum { what: String },
    #[error("{what} is malformed: {why}")]
    Malformed { what: String, why: &'static str },
    #[error("the header cannot be written: {why}")]
    BadHeader { why: &'static str },
    #[error("step {step} does not exist, the trace has {steps} steps")]
    NoSuchStep { step: u32, steps: u32 },
    #[error("step {found} was appended where step {wanted} is next")]
    OutOfOrder { found: u32, wanted: u32 },
    #[error("the trace was finished after {found} of {wanted} steps")]
    Unfinished { found: u32, wanted: u32 },
    #[error("the batch of step {step} is not one that the sampler makes: {why}")]
    BadBatch { step: u32, why: &'static str },
    #[error("it was made for another configuration: its {field} is {found}, this run has {wanted}")]
    OtherConfiguration {
        field: &'static str,
        found: String,
        wanted: String,
    },
}
