//! The guard: waits for the process that lowered clocks to end, and restores them if it has not done so itself.
//!
//! It reads a pipe of which the process holds the other end. The kernel closes that end whatever kills the process.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::record::{LeaseRecord, Repaired};
use super::{ClockControl, ClockError};

/// Written now and then: the process is alive.
pub const HEARTBEAT: u8 = b'.';
/// Written last: the clocks have been restored.
pub const FAREWELL: u8 = b'q';
/// The guard's first line: from now on it restores.
pub const READY: &str = "ready";

/// Guards the lease in the file at `lease` until the pipe `input` says that it is over, or ends, or falls silent. Tells
/// `output` when it is ready. `None` after a farewell, else what was restored.
///
/// # Errors
/// The lease cannot be read, or nobody can be told that the guard is ready: nothing is lowered then.
pub fn run(
    lease: &Path,
    mut input: impl Read + AsRawFd,
    mut output: impl Write,
    control: &mut dyn ClockControl,
) -> Result<Option<Repaired>, ClockError> {
    let record = LeaseRecord::read(lease)?;
    let told = writeln!(output, "{READY}").and_then(|()| output.flush());
    told.map_err(|source| ClockError::Folder {
        path: lease.to_owned(),
        source,
    })?;
    drop(output);
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let until = Instant::now().checked_add(seconds(record.most_s));
    let mut byte = [0];
    loop {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if !can_be_read(&input, left.min(seconds(record.time_to_live_s))) {
            break;
        }
        match input.read(&mut byte) {
            Ok(1..) if byte[0] == FAREWELL => return Ok(None),
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
        if left.is_zero() {
            break;
        }
    }
    Ok(Some(record.restore(lease, control)))
}

/// Waits until there is something to read, or the other end is closed. `false` when `within` is over.
fn can_be_read(input: &impl AsRawFd, within: Duration) -> bool {
    let until = Instant::now().checked_add(within);
    loop {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        let mut poll = libc::pollfd {
            fd: input.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `poll` is one valid entry that outlives the call.
        match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
            0 => return false,
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            // What is wrong with the pipe, the read tells.
            _ => return true,
        }
    }
}
