//! The files that say whose clocks are lowered, and what they were.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{ClockControl, ClockError, ClockSettings};
use crate::clock::unix_now_s;
use crate::files::{read_json, write_json};

/// Where leases are kept unless [`FOLDER_VARIABLE`] says otherwise: gone after a restart, as lowered clocks are.
const SYSTEM_FOLDER: &str = "/run/greengnn/clocks";

/// Environment variable that names the folder of leases.
pub const FOLDER_VARIABLE: &str = "GREENGNN_CLOCK_LEASES";

/// The longest wait for a folder that another process has locked, and how often it is tried.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// One process's lowered clocks. Written before the first clock is lowered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub pid: u32,
    /// When the process was started, in ticks since the computer was: a process that has its id later is another one.
    pub pid_started: u64,
    pub set_at_unix_s: f64,
    /// After this many seconds without a heartbeat, or [`most_s`](Self::most_s) altogether, the guard restores.
    pub time_to_live_s: f64,
    pub most_s: f64,
    pub gpus: Vec<LeasedGpu>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedGpu {
    pub uuid: String,
    pub before: ClockSettings,
}

/// What a repair did.
#[derive(Debug)]
pub struct Repaired {
    pub pid: u32,
    /// GPUs whose clocks were restored, and what failed.
    pub restored: Vec<String>,
    pub failed: Vec<ClockError>,
}

/// The folder of all leases of a computer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseFolder(PathBuf);

impl LeaseFolder {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The folder that the environment names; else `/run/greengnn/clocks`; else, for who may not write there, one of this
    /// user's own.
    pub fn default_of_system() -> Self {
        if let Some(path) = std::env::var_os(FOLDER_VARIABLE) {
            return Self(path.into());
        }
        let system = Path::new(SYSTEM_FOLDER);
        if std::fs::create_dir_all(system).is_ok() && is_writable(system) {
            return Self(system.to_owned());
        }
        // SAFETY: the call has no arguments and cannot fail.
        let user = unsafe { libc::getuid() };
        Self(std::env::temp_dir().join(format!("greengnn-clocks-{user}")))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the lease of process `pid` is kept.
    pub fn file_of(&self, pid: u32) -> PathBuf {
        self.0.join(format!("{pid}.json"))
    }

    pub(super) fn make(&self) -> Result<(), ClockError> {
        std::fs::create_dir_all(&self.0).map_err(|source| self.failed(source))
    }

    /// Keeps other processes from taking and repairing leases until the answer is dropped.
    pub(super) fn lock(&self) -> Result<File, ClockError> {
        let folder = File::open(&self.0).map_err(|source| self.failed(source))?;
        let until = Instant::now() + LOCKED_WITHIN;
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(folder),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
                Err(TryLockError::WouldBlock) => {
                    return Err(self.failed(std::io::Error::other("another process has it locked for too long")));
                }
                Err(TryLockError::Error(source)) => return Err(self.failed(source)),
            }
        }
    }

    fn failed(&self, source: std::io::Error) -> ClockError {
        ClockError::Folder {
            path: self.0.clone(),
            source,
        }
    }

    /// All leases, by process. Files that are no leases are left alone.
    ///
    /// # Errors
    /// The folder is there and cannot be read.
    pub fn leases(&self) -> Result<Vec<(PathBuf, LeaseRecord)>, ClockError> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.failed(error)),
        };
        let mut leases = Vec::new();
        for entry in entries {
            let path = entry.map_err(|source| self.failed(source))?.path();
            if path.extension().is_some_and(|extension| extension == "json")
                && let Ok(record) = LeaseRecord::read(&path)
            {
                leases.push((path, record));
            }
        }
        leases.sort_by_key(|(_, record)| record.pid);
        Ok(leases)
    }

    /// Restores what processes that are no more have left behind.
    ///
    /// # Errors
    /// The folder is there and cannot be read. GPUs that cannot be restored are in the answer, and their leases stay.
    pub fn repair(&self, control: &mut dyn ClockControl) -> Result<Vec<Repaired>, ClockError> {
        if !self.0.exists() {
            return Ok(Vec::new());
        }
        // Another process's repair, which has read the same leases, must not restore what is lowered after this one.
        let _alone = self.lock()?;
        let leases = self.leases()?;
        let abandoned = leases.into_iter().filter(|(_, record)| !record.is_alive());
        Ok(abandoned.map(|(path, record)| record.restore(&path, control)).collect())
    }
}

fn is_writable(folder: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(folder.as_os_str().as_bytes())
        // SAFETY: the name has its end and outlives the call.
        .is_ok_and(|name| unsafe { libc::access(name.as_ptr(), libc::W_OK) } == 0)
}

impl LeaseRecord {
    /// A lease of this process, from now on.
    pub(super) fn of_this_process(time_to_live_s: f64, most_s: f64, gpus: Vec<LeasedGpu>) -> Self {
        let pid = std::process::id();
        Self {
            pid,
            pid_started: started_ticks(pid).unwrap_or(0),
            set_at_unix_s: unix_now_s(),
            time_to_live_s,
            most_s,
            gpus,
        }
    }

    /// # Errors
    /// The file cannot be read or is no lease.
    pub fn read(path: &Path) -> Result<Self, ClockError> {
        Ok(read_json(path, "a lease of GPU clocks")?)
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), ClockError> {
        Ok(write_json(path, self)?)
    }

    /// Whether the process that took the lease still runs.
    pub fn is_alive(&self) -> bool {
        started_ticks(self.pid) == Some(self.pid_started)
    }

    /// Restores all GPUs of the lease, and deletes its file at `path` if all could be.
    pub fn restore(&self, path: &Path, control: &mut dyn ClockControl) -> Repaired {
        let (restored, failed) = restore_gpus(&self.gpus, control);
        if failed.is_empty() {
            self.forget(path);
        }
        Repaired {
            pid: self.pid,
            restored,
            failed,
        }
    }

    /// Deletes the lease's file at `path`.
    pub(super) fn forget(&self, path: &Path) {
        // Without the file nothing is left to repair; with it, a repair that has nothing to do.
        let _ = std::fs::remove_file(path);
    }
}

/// Restores GPUs, and gives those that were restored and what failed.
pub(super) fn restore_gpus<'a>(
    gpus: impl IntoIterator<Item = &'a LeasedGpu>,
    control: &mut dyn ClockControl,
) -> (Vec<String>, Vec<ClockError>) {
    let (mut restored, mut failed) = (Vec::new(), Vec::new());
    for gpu in gpus {
        match control.restore(&gpu.uuid, gpu.before) {
            Ok(()) => restored.push(gpu.uuid.clone()),
            Err(source) => failed.push(ClockError::Gpu {
                uuid: gpu.uuid.clone(),
                source,
            }),
        }
    }
    (restored, failed)
}

/// When a process was started, in clock ticks since the computer was (field 22 of `/proc/PID/stat`).
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let ticks = fields.nth(18)?.parse().ok()?;
    // A zombie holds nothing any more.
    (state != "Z").then_some(ticks)
}
