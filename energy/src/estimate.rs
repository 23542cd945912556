//! The energy of the processors from their use, for computers without a readable counter.
//!
//! `P = threads * (idle + (full - idle) * f(u))`, where `u` is the share of time that the hardware threads are busy and
//! `f` the load curve of servers as Boavizta publishes it (0.12, 0.32, 0.75 and 1.02 of the thermal design power at 0,
//! 10, 50 and 100 % load), scaled to run from 0 to 1. Expect 40 % of error either way. The figure is always called
//! estimated.
//!
//! Under a CPU quota the control group's share of the host is estimated from its own use; else the whole host. The
//! domain's name says which, so that several processes that estimate one thing count it once. Memory and GPUs are not
//! estimated.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::clock::Clock;
use crate::counter::Accumulated;
use crate::domain::DomainKind;
use crate::quality::Quality;
use crate::snapshot::DomainState;
use crate::source::{Source, SourceReport};

pub mod cgroup;
pub mod power;

use cgroup::CpuQuota;
pub use power::CpuPower;

/// Domain name of the estimate of a whole host. That of a control group is this, a slash and the group's inode.
pub const HOST_DOMAIN: &str = "cpu-estimate";

/// CPU time is counted in ticks of 10 ms, so that shorter intervals say little about the load.
const SHORTEST_INTERVAL_S: f64 = 0.25;

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "CPU use cannot be read from {path} ({why}), so that not even an estimate of the energy is possible; mount /proc"
)]
pub struct EstimateUnavailable {
    pub path: PathBuf,
    pub why: String,
}

/// Where the CPU time comes from.
#[derive(Debug)]
enum CpuTime {
    /// `/proc/stat`, in ticks.
    Host {
        stat: File,
        ticks_per_s: f64,
    },
    Cgroup(cgroup::CpuUsage),
}

impl CpuTime {
    /// Busy seconds of all threads so far.
    fn busy_s(&self) -> Option<f64> {
        match self {
            Self::Host { stat, ticks_per_s } => {
                let mut buffer = [0; 512];
                let text = cgroup::read_start(stat, &mut buffer)?;
                Some(busy_ticks(text)? as f64 / ticks_per_s)
            }
            Self::Cgroup(usage) => usage.seconds(),
        }
    }
}

/// Busy ticks in the first line of `/proc/stat`. Waiting for a disk is idle; time that a hypervisor gave to others is
/// not ours.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = fields
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // user (with guest), nice, system, [idle, iowait,] irq, softirq
    [0, 1, 2, 5, 6]
        .iter()
        .try_fold(0u64, |sum, &field| sum.checked_add(*ticks.get(field)?))
}

/// Hardware threads that `/proc/stat` lists.
fn hardware_threads(stat: &str) -> usize {
    let numbered = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(numbered).count()
}

/// Watts that a hardware thread of this computer draws more when it is busy than when it is idle, as far as its model is
/// known. For joules that are computed from CPU time.
pub fn busy_thread_watts() -> f64 {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let (power, _) = CpuPower::of_model(&cpuinfo);
    power.full_w - power.idle_w
}

/// Estimates the energy of the host's processors, or of the control group's share of them.
#[derive(Debug)]
pub struct CpuEstimate {
    domain: String,
    time: CpuTime,
    /// Threads that can be busy: all of the host's, or the quota.
    threads: f64,
    power: CpuPower,
    joules: f64,
    /// Energy since the last full interval.
    unfinished_joules: f64,
    interval_start: Option<(f64, f64)>,
    last_good_s: f64,
    failing: bool,
    live: bool,
    power_from: String,
}

impl CpuEstimate {
    /// The estimate for this computer. `power` overrides what is known of the CPU model.
    pub fn open(power: Option<CpuPower>) -> Result<Self, EstimateUnavailable> {
        Self::open_at(Path::new("/proc"), Path::new("/sys/fs/cgroup"), power)
    }

    /// The same for any `/proc` and any mount point of the control groups.
    pub fn open_at(proc_root: &Path, cgroups: &Path, power: Option<CpuPower>) -> Result<Self, EstimateUnavailable> {
        let path = proc_root.join("stat");
        let unavailable = |why: String| EstimateUnavailable {
            path: path.clone(),
            why,
        };
        let text = std::fs::read_to_string(&path).map_err(|error| unavailable(error.to_string()))?;
        let host_threads = hardware_threads(&text);
        if host_threads == 0 || busy_ticks(&text).is_none() {
            return Err(unavailable("no CPU lines in it".to_owned()));
        }
        let (power, power_from) = match power {
            Some(power) => (power, "configured".to_owned()),
            None => {
                let cpuinfo = std::fs::read_to_string(proc_root.join("cpuinfo")).unwrap_or_default();
                CpuPower::of_model(&cpuinfo)
            }
        };
        let quota = CpuQuota::find(proc_root, cgroups).filter(|quota| quota.threads < host_threads as f64);
        let (domain, time, threads) = match quota {
            Some(quota) => (
                format!("{HOST_DOMAIN}/{}", quota.inode),
                CpuTime::Cgroup(quota.usage),
                quota.threads,
            ),
            None => {
                let stat = File::open(&path).map_err(|error| unavailable(error.to_string()))?;
                let time = CpuTime::Host {
                    stat,
                    ticks_per_s: ticks_per_second(),
                };
                (HOST_DOMAIN.to_owned(), time, host_threads as f64)
            }
        };
        Ok(Self {
            domain,
            time,
            threads,
            power,
            joules: 0.0,
            unfinished_joules: 0.0,
            interval_start: None,
            last_good_s: 0.0,
            failing: false,
            live: false,
            power_from,
        })
    }

    /// Domain name: `cpu-estimate` for the host, `cpu-estimate/INODE` for a control group.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Adds the busy seconds that were read at `now_s`.
    ///
    /// The load curve is concave, so that the energy of an unfinished interval grows with time and with use: a running
    /// sum never falls when an interval is looked at early.
    fn advance(&mut self, busy_s: f64, now_s: f64) {
        let (start_busy_s, start_s) = *self.interval_start.get_or_insert((busy_s, now_s));
        let elapsed_s = now_s - start_s;
        if elapsed_s > 0.0 {
            let load = (busy_s - start_busy_s) / (self.threads * elapsed_s);
            self.unfinished_joules = self.threads * self.power.watts_per_thread(load) * elapsed_s;
            self.live = true;
        }
        if elapsed_s >= SHORTEST_INTERVAL_S {
            self.joules += self.unfinished_joules;
            self.unfinished_joules = 0.0;
            self.interval_start = Some((busy_s, now_s));
        }
    }
}

fn ticks_per_second() -> f64 {
    // SAFETY: sysconf has no preconditions.
    match unsafe { libc::sysconf(libc::_SC_CLK_TCK) } {
        ticks if ticks > 0 => ticks as f64,
        _ => 100.0,
    }
}

impl Source for CpuEstimate {
    fn sample(&mut self, clock: &dyn Clock, fresh: bool) {
        let now_s = clock.now_s();
        let waits = self
            .interval_start
            .is_some_and(|(_, start_s)| now_s - start_s < SHORTEST_INTERVAL_S);
        if waits && !fresh {
            return;
        }
        let busy_s = self.time.busy_s();
        self.failing = busy_s.is_none();
        if let Some(busy_s) = busy_s {
            let now_s = clock.now_s();
            self.last_good_s = now_s;
            self.advance(busy_s, now_s);
        }
    }

    fn states(&self, now_s: f64, into: &mut Vec<DomainState>) {
        let so_far = Accumulated {
            joules: self.joules + self.unfinished_joules,
            gap_s: if self.failing { now_s - self.last_good_s } else { 0.0 },
            gaps: u32::from(self.failing),
            live: self.live,
        };
        into.push(DomainState::new(
            &self.domain,
            DomainKind::Estimate,
            Quality::Estimated,
            so_far,
        ));
    }

    fn report(&self) -> SourceReport {
        let whose = match self.time {
            CpuTime::Host { .. } => "of the host",
            CpuTime::Cgroup(_) => "under the CPU quota of the control group",
        };
        let detail = format!(
            "estimated from the use of {} hardware threads {whose}, {} W idle and {} W busy per thread ({}), +-40 %",
            self.threads, self.power.idle_w, self.power.full_w, self.power_from
        );
        SourceReport::new("estimate", Quality::Estimated, detail)
    }
}

#[cfg(test)]
mod tests;
