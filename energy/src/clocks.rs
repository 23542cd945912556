//! Lower GPU clocks for a while, and the promise that they come back.
//!
//! While rows are sampled ahead of training, a GPU has nothing to do and still draws what its clocks ask for (the paper's
//! Section IV-A). A [`ClockLease`] lowers them, and whatever becomes of the process, they are restored:
//!
//! | what happens | who restores |
//! |---|---|
//! | the lease is [given back](ClockLease::give_back) or dropped, also by a panic | the process |
//! | the process aborts or is killed | the [`guard`], a child that sees the pipe between them close |
//! | the process hangs | the guard, when no heartbeat has come for the lease's time to live |
//! | the guard dies too, or the computer starts again | [`LeaseFolder::repair`], at the next start, from the lease's file |
//! | somebody wonders | `greengnn clocks reset` |
//!
//! What is restored is what was set before, not a default. NVML does not tell which range a GPU is locked to, so that a
//! lock of somebody else is undone; this is said when the lease is taken.

use crate::nvml::GpuError;

pub mod guard;
mod keeper;
mod lease;
mod nvml;
mod record;
mod targets;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use keeper::{ClockKeeper, ClockNews, ClockPoint, OpenClocks};
pub use lease::{ClockLease, GuardProgram, LeaseOptions};
pub use record::{LeaseFolder, LeaseRecord, LeasedGpu, Repaired};
pub use targets::{ClockTargets, CudaGpu, TargetError};

use crate::files::FileError;

/// Sets the clocks of GPUs.
pub trait ClockControl: Send {
    /// The GPUs of the computer, by UUID.
    ///
    /// # Errors
    /// Why none can be seen.
    fn uuids(&mut self) -> Result<Vec<String>, GpuError>;

    /// What is set now, in the way in which this GPU can be set.
    ///
    /// # Errors
    /// `NotSupported` for a GPU whose clocks cannot be set; the others may pass.
    fn settings(&mut self, uuid: &str) -> Result<ClockSettings, GpuError>;

    /// Processes other than this one that compute on the GPU.
    ///
    /// # Errors
    /// As [`settings`](Self::settings).
    fn other_processes(&mut self, uuid: &str) -> Result<Vec<u32>, GpuError>;

    /// Asks for the lowest graphics clock that the GPU has, by the means that `before` names, and tells it in MHz.
    ///
    /// # Errors
    /// `NoPermission`, `NotSupported`, or that the GPU does not answer.
    fn lower(&mut self, uuid: &str, before: ClockSettings) -> Result<u32, GpuError>;

    /// Sets what was set before.
    ///
    /// # Errors
    /// As [`lower`](Self::lower).
    fn restore(&mut self, uuid: &str, before: ClockSettings) -> Result<(), GpuError>;

    /// Undoes every setting, by all means that the GPU has.
    ///
    /// # Errors
    /// As [`lower`](Self::lower), unless one of the means worked.
    fn reset(&mut self, uuid: &str) -> Result<(), GpuError>;

    /// The graphics clock that the GPU really runs at, in MHz: a setting is only a request.
    ///
    /// # Errors
    /// As [`settings`](Self::settings).
    fn observed_mhz(&mut self, uuid: &str) -> Result<u32, GpuError>;
}

/// The clocks that are set for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ClockSettings {
    /// The GPU locks its clocks to a range (Volta and later). Which one it is locked to, if to any, nobody can ask.
    Locked,
    /// The GPU has application clocks (before Volta).
    Application { memory_mhz: u32, graphics_mhz: u32 },
}

/// Why clocks were not lowered, or not restored.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    #[error("the clocks of GPU {uuid} cannot be set: {source}{}", remedy(source))]
    Gpu { uuid: String, source: GpuError },
    #[error("no GPU can be seen: {0}")]
    NoGpu(GpuError),
    #[error(
        "the clocks of GPU {uuid} are left alone: process {process} computes on it too; end it, or allow the GPU to be shared"
    )]
    Shared { uuid: String, process: u32 },
    #[error("the clocks of GPU {uuid} are left alone: process {process} holds them down already")]
    Held { uuid: String, process: u32 },
    #[error("clocks are not lowered any more: the guard that would restore them has ended")]
    GuardGone,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the guard that would restore the clocks could not be started ({program}): {source}")]
    Guard { program: PathBuf, source: std::io::Error },
    #[error("the guard that would restore the clocks did not get ready within {} s: {said}", within.as_secs())]
    GuardNotReady { within: Duration, said: String },
    #[error("the folder {path} for leases cannot be made, read or locked: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    File(#[from] FileError),
}

fn remedy(error: &GpuError) -> &'static str {
    match error {
        GpuError::NoPermission => "; run as root, or give the container --cap-add=SYS_ADMIN",
        GpuError::NotSupported => "; this GPU has neither locked nor application clocks",
        _ => "",
    }
}
