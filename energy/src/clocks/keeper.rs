//! Keeps clocks low while it is told to, on a thread of its own: whoever has work to do never waits for the driver,
//! except to have the clocks back.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{ClockControl, ClockError, ClockLease, LeaseOptions};
use crate::clock::unix_now_s;

/// How often the clocks are looked at while they are low.
const OBSERVED_EVERY: Duration = Duration::from_secs(1);

/// The longest that [`ClockKeeper::restore`] keeps its caller waiting.
const RESTORED_WITHIN: Duration = Duration::from_secs(15);

/// Opens the driver and says whose clocks are lowered, by UUID. Called when they are first lowered, and again after a guard
/// has ended.
pub type OpenClocks = Box<dyn FnMut() -> Result<(Box<dyn ClockControl>, Vec<String>), ClockError> + Send>;

/// What becomes of the clocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ClockNews {
    /// The clocks of all GPUs at one time.
    Seen(Vec<ClockPoint>),
    /// Another process of the same run has lowered them.
    LoweredBy { process: u32 },
    /// They are not lowered, and will not be; said once.
    NotLowered { reason: String },
}

/// The graphics clock of a GPU at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockPoint {
    /// Seconds since 1970.
    pub unix_s: f64,
    /// The GPU's UUID.
    pub gpu: String,
    /// The clock that is asked for, in MHz; none when the clocks are what they were before.
    pub requested_mhz: Option<u32>,
    /// The clock that it runs at, in MHz; none if the GPU does not tell.
    pub observed_mhz: Option<u32>,
}

/// Lowers clocks and restores them. Dropping it restores them.
#[derive(Debug)]
pub struct ClockKeeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What is wanted, and what is.
#[derive(Debug, Default)]
struct State {
    /// From when on the clocks are to be low; none while they are to be what they were.
    low_from: Option<Instant>,
    /// Whether they are low, or about to be.
    is_low: bool,
    is_over: bool,
}

impl ClockKeeper {
    /// A keeper whose clocks are still what they were. With `keep_lease` the lease and its guard stay when the clocks are
    /// restored, so that they can be lowered again at once; else each lowering has a lease of its own. `tell` is called on
    /// the keeper's thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        open: OpenClocks,
        options: LeaseOptions,
        keep_lease: bool,
        tell: impl FnMut(ClockNews) + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let keeping = Keeping {
            shared: Arc::clone(&shared),
            open,
            options,
            keep_lease,
            tell: Box::new(tell),
            lease: None,
        };
        let thread = std::thread::Builder::new()
            .name("clock-keeper".to_owned())
            .spawn(move || keeping.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Lowers the clocks after a time, unless they are restored before. Returns at once.
    pub fn lower_after(&self, wait: Duration) {
        let mut state = self.shared.lock();
        if state.low_from.is_none() {
            state.low_from = Some(Instant::now() + wait);
            self.shared.changed.notify_all();
        }
    }

    /// Restores the clocks, and returns when they are what they were: at once if they were not lowered, and after 15 s in
    /// any case.
    pub fn restore(&self) {
        let mut state = self.shared.lock();
        state.low_from = None;
        if !state.is_low {
            return;
        }
        self.shared.changed.notify_all();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, RESTORED_WITHIN, |state| state.is_low);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_low {
            tracing::warn!("GPU clocks are not restored after {} s", RESTORED_WITHIN.as_secs());
        }
    }
}

impl Drop for ClockKeeper {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A keeper that panicked has dropped its lease, which restores.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is next for the keeper's thread.
enum Next {
    Lower,
    Observe,
    Restore,
    End,
}

/// The keeper's thread.
struct Keeping {
    shared: Arc<Shared>,
    open: OpenClocks,
    options: LeaseOptions,
    keep_lease: bool,
    tell: Box<dyn FnMut(ClockNews) + Send>,
    lease: Option<ClockLease>,
}

impl Keeping {
    fn run(mut self) {
        // Whatever becomes of this thread, nobody waits for it.
        let _over = IsOver(Arc::clone(&self.shared));
        loop {
            match self.next() {
                Next::Lower => {
                    if let Err(error) = self.lower() {
                        // A lease that is only partly low ends with it.
                        self.lease = None;
                        self.refused(error);
                        return;
                    }
                }
                Next::Observe => self.look(),
                Next::Restore => self.restore(),
                Next::End => return self.end(),
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Next {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            let wait = match (state.is_over, state.low_from, state.is_low) {
                (true, ..) => return Next::End,
                (_, None, true) => return Next::Restore,
                (_, None, false) => None,
                (_, Some(_), true) => Some(OBSERVED_EVERY),
                (_, Some(from), false) => {
                    let left = from.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        state.is_low = true;
                        return Next::Lower;
                    }
                    Some(left)
                }
            };
            let Some(wait) = wait else {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = shared.changed.wait_timeout(state, wait);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            let is_wanted = !state.is_over && state.low_from.is_some();
            if timeout.timed_out() && state.is_low && is_wanted {
                return Next::Observe;
            }
        }
    }

    fn lower(&mut self) -> Result<(), ClockError> {
        if self.lease.as_mut().is_some_and(|lease| !lease.has_guard()) {
            self.lease = None;
        }
        if self.lease.is_none() {
            self.lease = self.arm()?;
        }
        // A driver and a guard take their time to start.
        let is_wanted = self.shared.lock().low_from.is_some();
        if is_wanted && let Some(lease) = &mut self.lease {
            lease.lower()?;
            self.observe();
        }
        Ok(())
    }

    /// A lease on those GPUs that no companion holds down; none if there is no such GPU.
    fn arm(&mut self) -> Result<Option<ClockLease>, ClockError> {
        let (mut control, mut uuids) = (self.open)()?;
        while !uuids.is_empty() {
            match ClockLease::arm(control, &uuids, &self.options) {
                Ok(lease) => return Ok(Some(lease)),
                Err(ClockError::Held { uuid, process }) if self.options.companions.contains(&process) => {
                    uuids.retain(|held| *held != uuid);
                    (self.tell)(ClockNews::LoweredBy { process });
                }
                Err(error) => return Err(error),
            }
            (control, _) = (self.open)()?;
        }
        Ok(None)
    }

    /// Looks at clocks that are low, unless the guard has restored them.
    fn look(&mut self) {
        if self.lease.as_mut().is_some_and(|lease| !lease.has_guard()) {
            tracing::warn!(
                "the guard of GPU clocks has ended, as it does after {} s; they are restored",
                self.options.most.as_secs()
            );
            self.raise();
            self.lease = None;
            return;
        }
        self.observe();
    }

    /// Tells what the GPUs are asked for and run at.
    fn observe(&mut self) {
        let Some(lease) = &mut self.lease else { return };
        let requested = lease.requested_mhz().to_vec();
        let observed = lease.observed_mhz();
        let unix_s = unix_now_s();
        let of = |clocks: &[(String, u32)], gpu: &str| {
            let clock = clocks.iter().find(|(uuid, _)| uuid == gpu);
            clock.map(|(_, megahertz)| *megahertz)
        };
        let points = lease.gpus().map(|gpu| ClockPoint {
            unix_s,
            gpu: gpu.to_owned(),
            requested_mhz: of(&requested, gpu),
            observed_mhz: of(&observed, gpu),
        });
        let points = points.collect();
        (self.tell)(ClockNews::Seen(points));
    }

    fn restore(&mut self) {
        if self.is_lowered() {
            self.observe();
            self.raise();
        }
        self.shared.lock().is_low = false;
        self.shared.changed.notify_all();
        // The caller does not wait for the guard's end.
        if !self.keep_lease {
            self.lease = None;
        }
    }

    fn raise(&mut self) {
        let failed = self.lease.as_mut().and_then(|lease| lease.raise().err());
        match failed {
            Some(error) => tracing::error!("GPU clocks could not be restored: {error}"),
            None => self.observe(),
        }
    }

    fn is_lowered(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| !lease.requested_mhz().is_empty())
    }

    fn end(mut self) {
        if self.is_lowered() {
            self.restore();
        }
    }

    fn refused(&mut self, error: ClockError) {
        (self.tell)(ClockNews::NotLowered {
            reason: error.to_string(),
        });
    }
}

/// Lets those go who wait for clocks, when the keeper's thread ends.
struct IsOver(Arc<Shared>);

impl Drop for IsOver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_low = false;
        state.is_over = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
