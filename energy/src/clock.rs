//! The clock of the meters. It runs on while a computer sleeps, so that energy and time are those of the same window.

use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that never steps back.
pub trait Clock: Send + Sync {
    /// Seconds since a fixed instant before the process started.
    fn now_s(&self) -> f64;
}

/// `CLOCK_BOOTTIME`: seconds since the kernel started, sleep included.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now_s(&self) -> f64 {
        read_clock(libc::CLOCK_BOOTTIME)
            .or_else(|| read_clock(libc::CLOCK_MONOTONIC))
            .unwrap_or(0.0)
    }
}

fn read_clock(id: libc::clockid_t) -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that outlives the call.
    let status = unsafe { libc::clock_gettime(id, &mut time) };
    (status == 0).then_some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

/// Seconds since 1970 on the wall clock, by which timelines of several computers are lined up.
pub fn unix_now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The time on the wall clock, in seconds since 1970, at which [`BootClock`] showed `boot_s`.
pub fn unix_s_of(boot_s: f64) -> f64 {
    unix_now_s() - (BootClock.now_s() - boot_s)
}

/// A clock that moves when a test moves it.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock(std::sync::atomic::AtomicU64);

#[cfg(test)]
impl ManualClock {
    pub(crate) fn set(&self, seconds: f64) {
        self.0.store(seconds.to_bits(), std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn now_s(&self) -> f64 {
        f64::from_bits(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_runs_forward_and_is_no_younger_than_the_monotonic_one() {
        let first = BootClock.now_s();
        let second = BootClock.now_s();
        assert!(first > 0.0 && second >= first);
        let monotonic = read_clock(libc::CLOCK_MONOTONIC).unwrap();
        assert!(BootClock.now_s() >= monotonic);
    }

    #[test]
    fn a_time_of_the_boot_clock_has_its_place_on_the_wall_clock() {
        let (before, now) = (unix_now_s(), BootClock.now_s());
        let (placed, earlier) = (unix_s_of(now), unix_s_of(now - 100.0));
        // Loose: another process may hold this one up in between.
        assert!((placed - before).abs() < 5.0 && (placed - earlier - 100.0).abs() < 5.0);
    }

    #[test]
    fn a_clock_that_the_kernel_lacks_is_none() {
        assert_eq!(read_clock(12_345), None);
    }
}
