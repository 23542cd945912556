//! How processes end: with a signal, with their parent, and in bounded time.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// How long a process may take to end after it was told to.
pub const END_WITHIN: Duration = Duration::from_secs(5);

/// Makes this process get SIGTERM when its parent dies. Call it from the main thread, first thing.
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
    // SAFETY: reads a number.
    let now = unsafe { libc::getppid() };
    if now as u32 == parent {
        Ok(())
    } else {
        Err(format!("the parent process {parent} has ended"))
    }
}

/// Resolves at the first Ctrl-C or SIGTERM. A process that has not ended [`END_WITHIN`] after it is ended by force.
pub async fn told_to_end() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    std::thread::spawn(|| {
        std::thread::sleep(END_WITHIN);
        eprintln!(
            "error: this process did not end within {} s of being told to",
            END_WITHIN.as_secs()
        );
        std::process::exit(1);
    });
}
