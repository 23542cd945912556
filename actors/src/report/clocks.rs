//! What became of GPU clocks in a run that was asked to lower them.

use std::collections::BTreeMap;

use greengnn_energy::clocks::{ClockNews, ClockPoint};
use serde::{Deserialize, Serialize};

use super::units;

/// GPU clocks in `summary.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockSummary {
    /// The GPUs whose clocks were lowered, by machine and UUID.
    pub lowered: Vec<LoweredGpu>,
    /// The machines that lowered none, and why.
    pub not_lowered: Vec<NotLowered>,
}

/// The lowered clocks of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoweredGpu {
    /// The machine that lowered them.
    pub machine: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// How often they were lowered, and for how many seconds altogether.
    pub times: u32,
    pub lowered_s: f64,
    /// The graphics clock that was asked for, in MHz.
    pub requested_mhz: u32,
    /// The graphics clock that the GPU ran at when it was looked at last while it was lowered, in MHz; none if it did not
    /// tell. A setting is only a request.
    pub observed_mhz: Option<u32>,
}

/// A machine that lowered no clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLowered {
    pub machine: String,
    pub reason: String,
}

/// One line of `metrics.jsonl`: the graphics clock of a GPU at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Seconds since the start of the run.
    pub at_s: f64,
    pub machine: String,
    pub gpu: String,
    /// In MHz; none when the clock is not lowered.
    pub requested_mhz: Option<u32>,
    /// In MHz; none if the GPU does not tell.
    pub observed_mhz: Option<u32>,
}

/// Adds up what machines tell of their clocks.
#[derive(Debug, Default)]
pub struct ClockLog {
    gpus: BTreeMap<(String, String), Lowerings>,
    not_lowered: BTreeMap<String, String>,
}

/// Of one GPU, so far.
#[derive(Debug, Default)]
struct Lowerings {
    times: u32,
    seconds: f64,
    /// When it was last seen lowered; none while it is not.
    seen_unix_s: Option<f64>,
    requested_mhz: u32,
    observed_mhz: Option<u32>,
}

impl ClockLog {
    /// Takes news of a machine. Gives what a person should be told of it.
    pub fn add(&mut self, machine: &str, news: &ClockNews) -> Option<String> {
        match news {
            ClockNews::Seen(points) => {
                for point in points {
                    let key = (machine.to_owned(), point.gpu.clone());
                    self.gpus.entry(key).or_default().add(point);
                }
                None
            }
            // That machine tells of them.
            ClockNews::LoweredBy { .. } => None,
            ClockNews::NotLowered { reason } => {
                // Machines of one computer have the same reason.
                let is_new = !self.not_lowered.values().any(|told| told == reason);
                self.not_lowered.insert(machine.to_owned(), reason.clone());
                is_new.then(|| format!("warning: GPU clocks are not lowered on {machine}: {reason}"))
            }
        }
    }

    pub fn summary(&self) -> ClockSummary {
        let lowered = self.gpus.iter().filter(|(_, lowerings)| lowerings.times > 0);
        let lowered = lowered.map(|((machine, gpu), lowerings)| LoweredGpu {
            machine: machine.clone(),
            gpu: gpu.clone(),
            times: lowerings.times,
            lowered_s: lowerings.seconds,
            requested_mhz: lowerings.requested_mhz,
            observed_mhz: lowerings.observed_mhz,
        });
        let not_lowered = self.not_lowered.iter().map(|(machine, reason)| NotLowered {
            machine: machine.clone(),
            reason: reason.clone(),
        });
        ClockSummary {
            lowered: lowered.collect(),
            not_lowered: not_lowered.collect(),
        }
    }
}

impl Lowerings {
    fn add(&mut self, point: &ClockPoint) {
        match self.seen_unix_s {
            Some(seen) => self.seconds += (point.unix_s - seen).max(0.0),
            None => self.times += u32::from(point.requested_mhz.is_some()),
        }
        self.seen_unix_s = point.requested_mhz.map(|_| point.unix_s);
        if let Some(requested) = point.requested_mhz {
            self.requested_mhz = requested;
            self.observed_mhz = point.observed_mhz;
        }
    }
}

impl ClockSummary {
    /// One line per GPU that was lowered and per machine that lowered none.
    pub fn lines(&self) -> Vec<String> {
        let lowered = self.lowered.iter().map(|gpu| {
            let observed = match gpu.observed_mhz {
                Some(observed) => format!("observed {observed} MHz"),
                None => "it does not tell its clock".to_owned(),
            };
            let times = match gpu.times {
                1 => String::new(),
                times => format!(" in {times} times"),
            };
            format!(
                "GPU clocks lowered for {}{times} on {}: {} was asked for {} MHz, {observed}",
                units::seconds(gpu.lowered_s),
                gpu.machine,
                gpu.gpu,
                gpu.requested_mhz,
            )
        });
        let not_lowered = self
            .not_lowered
            .iter()
            .map(|not| format!("GPU clocks not lowered on {}: {}", not.machine, not.reason));
        let lines: Vec<String> = lowered.chain(not_lowered).collect();
        match lines.is_empty() {
            true => vec!["GPU clocks not lowered: what they are lowered for was over before they could be".to_owned()],
            false => lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(unix_s: f64, requested_mhz: Option<u32>, observed_mhz: Option<u32>) -> ClockNews {
        ClockNews::Seen(vec![ClockPoint {
            unix_s,
            gpu: "GPU-a".to_owned(),
            requested_mhz,
            observed_mhz,
        }])
    }

    #[test]
    fn the_time_that_clocks_were_low_is_added_up_and_the_last_look_counts() {
        let mut log = ClockLog::default();
        assert_eq!(log.summary().lines().len(), 1);
        for news in [
            seen(10.0, Some(544), Some(1328)),
            seen(11.0, Some(544), Some(600)),
            seen(12.5, Some(544), Some(544)),
            seen(12.5, None, Some(1328)),
            seen(40.0, Some(544), None),
            seen(40.5, None, Some(1328)),
            ClockNews::LoweredBy { process: 7 },
        ] {
            assert_eq!(log.add("machine-0", &news), None);
        }
        let summary = log.summary();
        let expected = LoweredGpu {
            machine: "machine-0".to_owned(),
            gpu: "GPU-a".to_owned(),
            times: 2,
            lowered_s: 3.0,
            requested_mhz: 544,
            observed_mhz: None,
        };
        assert_eq!(summary.lowered, [expected]);
        assert_eq!(
            summary.lines(),
            [
                "GPU clocks lowered for 3.00 s in 2 times on machine-0: GPU-a was asked for 544 MHz, it does not tell its clock"
            ]
        );
    }

    #[test]
    fn a_reason_that_several_machines_have_is_told_once() {
        let mut log = ClockLog::default();
        let news = ClockNews::NotLowered {
            reason: "no right".to_owned(),
        };
        assert!(log.add("machine-0", &news).unwrap().contains("machine-0: no right"));
        assert_eq!(log.add("machine-1", &news), None);
        assert_eq!(
            log.summary().lines(),
            [
                "GPU clocks not lowered on machine-0: no right",
                "GPU clocks not lowered on machine-1: no right"
            ]
        );
    }
}
