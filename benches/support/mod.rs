//! What the benchmarks of the transport share.

use std::sync::Arc;
use std::time::Instant;

use greengnn::transport::{BoxFuture, Hosted, MachineId, Ticket, TicketSource};

/// Tickets straight from the peer.
pub struct FromHosted(pub Arc<Hosted>, pub MachineId);

impl TicketSource for FromHosted {
    fn next_ticket(&self) -> BoxFuture<'_, Result<Ticket, String>> {
        Box::pin(async { self.0.tickets().issue(&self.1).map_err(|error| error.to_string()) })
    }
}

/// Wall and CPU seconds of one of `calls` calls.
pub fn cost(calls: usize, mut call: impl FnMut()) -> (f64, f64) {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..calls {
        call();
    }
    let calls = calls as f64;
    (started.elapsed().as_secs_f64() / calls, (cpu_seconds() - cpu) / calls)
}

/// CPU seconds of this process so far, user and system.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, which is all that the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
