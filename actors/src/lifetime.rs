//! How processes end: with a signal, with their parent, in bounded time, and with nothing half made left behind.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greengnn_model::store::FolderWriter;
use signal_hook::consts::{SIGINT, SIGTERM};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::output::note;

/// How long a process may take to end after it was told to.
pub const END_WITHIN: Duration = Duration::from_secs(5);

/// Exit status of a process that ends because of another one, which says why.
pub const ENDED_BY_ANOTHER: i32 = 3;

/// Exit status after Ctrl-C, as shells give it.
const INTERRUPTED_STATUS: i32 = 128 + SIGINT;

/// Makes this process get SIGTERM when its parent dies, and leaves Ctrl-C, which a terminal sends to all processes of a
/// run, to the parent. Call it from the main thread, first thing.
///
/// # Errors
/// The parent is not `parent` any more: it died before this call, and nobody waits for this process.
pub fn end_with_parent(parent: u32) -> Result<(), String> {
    // SAFETY: sets an attribute of this process; no memory is involved.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
    if result != 0 {
        return Err(format!(
            "cannot tie this process to its parent: {}",
            std::io::Error::last_os_error()
        ));
    }
    // SAFETY: ignoring a signal runs no code of this process.
    unsafe { libc::signal(SIGINT, libc::SIG_IGN) };
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(format!("the parent process {parent} has ended"))
    }
}

/// Hears when this process is told to end.
#[derive(Clone, Debug)]
pub struct Told(watch::Receiver<bool>);

impl Told {
    /// Resolves when the process has been told to end; at once if it was told before.
    pub async fn heard(mut self) {
        if self.0.wait_for(|told| *told).await.is_err() {
            // The task that listens went with its runtime: nothing will be heard any more.
            std::future::pending().await
        }
    }
}

/// Listens for SIGTERM, and for Ctrl-C if no launcher has that task. From this call on these signals do not end the
/// process by themselves; one that has not ended [`END_WITHIN`] after the first is ended by force. Needs a runtime.
pub fn told_to_end(launcher: Option<u32>) -> std::io::Result<Told> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = match launcher {
        Some(_) => None,
        None => Some(signal(SignalKind::interrupt())?),
    };
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        match &mut interrupt {
            None => terminate.recv().await,
            Some(interrupt) => tokio::select! {
                told = interrupt.recv() => told,
                told = terminate.recv() => told,
            },
        };
        std::thread::spawn(|| {
            std::thread::sleep(END_WITHIN);
            note(format_args!(
                "error: this process did not end within {} s of being told to",
                END_WITHIN.as_secs()
            ));
            std::process::exit(1);
        });
        // Without anybody who listens, the thread above ends the process.
        let _ = sender.send(true);
    });
    Ok(Told(receiver))
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// What a signal removes before it ends the process. While there is nothing, a signal only sets [`INTERRUPTED`].
static UNFINISHED: Mutex<Vec<Leftover>> = Mutex::new(Vec::new());

/// Catches Ctrl-C and SIGTERM from now on, for commands that work on the main thread. Further calls change nothing.
pub fn catch_interruption() -> std::io::Result<()> {
    static CAUGHT: Mutex<bool> = Mutex::new(false);
    let mut caught = locked(&CAUGHT);
    if !*caught {
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || signals.forever().for_each(|_| on_interruption()))?;
        *caught = true;
    }
    Ok(())
}

/// Whether a signal has come since [`catch_interruption`].
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

fn on_interruption() {
    INTERRUPTED.store(true, Ordering::Release);
    // The lock is kept to the end, so that a command that fails because its files go does not get to say so.
    let unfinished = locked(&UNFINISHED);
    if unfinished.is_empty() {
        return;
    }
    note("error: interrupted");
    // Other threads may write until the process ends; what they make after one pass goes in the next.
    for _ in 0..3 {
        unfinished.iter().for_each(Leftover::remove);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::process::exit(INTERRUPTED_STATUS);
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Leftover {
    /// A folder.
    Folder(PathBuf),
    /// What [`FolderWriter`] writes beside this target until it is complete.
    BesideTarget(PathBuf),
}

impl Leftover {
    fn remove(&self) {
        match self {
            Self::Folder(folder) => {
                let _ = std::fs::remove_dir_all(folder);
            }
            Self::BesideTarget(target) => {
                let Some(prefix) = FolderWriter::temporary_prefix(target) else {
                    return;
                };
                let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
                let entries = std::fs::read_dir(parent.unwrap_or(Path::new(".")))
                    .into_iter()
                    .flatten();
                for entry in entries.flatten() {
                    if entry.file_name().to_string_lossy().starts_with(&prefix) {
                        let _ = std::fs::remove_dir_all(entry.path());
                    }
                }
            }
        }
    }
}

/// While this lives, a signal ends the process and removes what is unfinished.
#[derive(Debug)]
pub struct Unfinished(Leftover);

impl Unfinished {
    /// For a command that writes the folder `target` with a [`FolderWriter`].
    pub fn target(target: &Path) -> std::io::Result<Self> {
        catch_interruption()?;
        Ok(Self::register(Leftover::BesideTarget(target.to_owned())))
    }

    fn register(leftover: Leftover) -> Self {
        locked(&UNFINISHED).push(leftover.clone());
        Self(leftover)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut unfinished = locked(&UNFINISHED);
        if let Some(index) = unfinished.iter().position(|leftover| *leftover == self.0) {
            unfinished.swap_remove(index);
        }
    }
}

/// A temporary folder that goes when this is dropped, and also when a caught signal ends the process before.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    _unfinished: Unfinished,
}

impl Scratch {
    /// In the folder of the system for temporary files, which may be small, or memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self::of(tempfile::Builder::new().prefix("greengnn-").tempdir()?))
    }

    /// On the disk of `target`, a file or folder to come, for what is as large as a graph.
    pub fn beside(target: &Path) -> std::io::Result<Self> {
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::create_dir_all(parent)?;
        let folder = tempfile::Builder::new()
            .prefix(".greengnn-")
            .suffix(".tmp")
            .tempdir_in(parent)?;
        Ok(Self::of(folder))
    }

    fn of(folder: TempDir) -> Self {
        Self {
            _unfinished: Unfinished::register(Leftover::Folder(folder.path().to_owned())),
            folder,
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_process_left_beside_the_target_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("graph");
        let prefix = FolderWriter::temporary_prefix(&target).unwrap();
        let (own, other) = (
            folder.path().join(format!("{prefix}a.tmp")),
            folder.path().join(".graph-1x-a.tmp"),
        );
        for path in [&own, &other, &target] {
            std::fs::create_dir_all(path.join("part-0")).unwrap();
        }
        Leftover::BesideTarget(target.clone()).remove();
        assert!(!own.exists() && other.exists() && target.exists());
    }

    #[test]
    fn what_is_finished_is_forgotten() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        let leftover = Leftover::Folder(path.clone());
        assert!(path.is_dir() && locked(&UNFINISHED).contains(&leftover));
        drop(scratch);
        assert!(!path.exists() && !locked(&UNFINISHED).contains(&leftover));
    }
}
