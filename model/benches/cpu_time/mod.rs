//! CPU time as criterion's measure: what other processes do to a busy machine spoils it less than wall time.

use criterion::measurement::{Measurement, ValueFormatter, WallTime};

/// CPU time of all threads of this process, in nanoseconds.
pub struct CpuTime;

impl CpuTime {
    fn now() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one timespec to a place that holds one.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        assert_eq!(failed, 0, "the CPU clock of the process cannot be read");
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }
}

impl Measurement for CpuTime {
    type Intermediate = f64;
    type Value = f64;

    fn start(&self) -> f64 {
        Self::now()
    }

    fn end(&self, start: f64) -> f64 {
        Self::now() - start
    }

    fn add(&self, one: &f64, other: &f64) -> f64 {
        one + other
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
