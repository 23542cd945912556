//! What bound a run: compute, bytes, or waiting for a machine.
//!
//! A step of a rank is a wait for its batch (stall), compute, and a wait for the other ranks' gradients (sync). All
//! ranks meet in every step, so the rank that waits least for gradients is the one that the others waited for: what it
//! waits is the exchange itself, and what the others wait beyond that is the time that this rank cost them.

use std::collections::BTreeMap;
use std::fmt;

use super::records::StepRecord;
use super::units;

/// Steps of which some ranks have reported and others have not. Ranks meet in every step, so few are ever open; a rank
/// that never reports must not make this grow.
const OPEN_STEPS: usize = 64;

/// A machine stands out if it caused at least this share of all waiting.
const STANDS_OUT: f64 = 0.5;

/// Adds up the times of steps as ranks report them, in any order.
#[derive(Debug)]
pub struct BoundMeter {
    /// The machine that hosts each rank.
    machines: Vec<String>,
    open: BTreeMap<(u32, u32), Vec<StepRecord>>,
    times: Times,
    /// What the ranks of each machine made the others wait, and the steps of the last rank in that.
    caused: BTreeMap<String, Caused>,
}

/// Seconds, summed over ranks and steps. The first four are all of the step time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    compute_s: f64,
    stall_s: f64,
    exchange_s: f64,
    waiting_s: f64,
    sample_s: f64,
    fetch_s: f64,
    assemble_s: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Caused {
    waiting_s: f64,
    compute_s: f64,
    stall_s: f64,
}

/// What bound a run, with the shares of the step time, 0 to 1, that say so. [`Display`](fmt::Display) is one line.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// No step was reported by all ranks.
    Unknown,
    By {
        what: Cause,
        shares: Shares,
    },
}

/// The greatest part of the step time.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Forward, backward and the optimizer.
    Compute,
    /// Waiting for batches whose remote rows were not there.
    Bytes,
    /// Waiting for batches that were not sampled yet.
    Sampling,
    /// Waiting for batches that were being put together.
    Assembly,
    /// Exchanging gradients, also between ranks that are ready at the same time.
    Exchange,
    /// Waiting for the gradients of one machine, which was itself late because of its compute or its batches.
    Machine { name: String, late_by_compute: bool },
    /// Waiting for gradients, now of one machine and now of another.
    Uneven,
}

/// How the step time divides; the four add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    pub compute: f64,
    pub stall: f64,
    pub exchange: f64,
    pub waiting: f64,
}

/// What bound a run of which all step records are at hand. `machines` names the machine of every rank.
pub fn what_bound_the_run<'a>(machines: Vec<String>, steps: impl IntoIterator<Item = &'a StepRecord>) -> Bound {
    let mut meter = BoundMeter::new(machines);
    for step in steps {
        meter.add(step);
    }
    meter.bound()
}

impl BoundMeter {
    /// `machines` names the machine of every rank, in rank order.
    pub fn new(machines: Vec<String>) -> Self {
        Self {
            machines,
            open: BTreeMap::new(),
            times: Times::default(),
            caused: BTreeMap::new(),
        }
    }

    /// Takes the record of one rank. A step counts once all its ranks have reported.
    pub fn add(&mut self, record: &StepRecord) {
        let key = (record.epoch, record.step);
        let records = self.open.entry(key).or_default();
        records.push(*record);
        if records.len() >= self.machines.len() {
            let records = self.open.remove(&key).unwrap_or_default();
            self.close(&records);
        } else if self.open.len() > OPEN_STEPS {
            self.open.pop_first();
        }
    }

    fn close(&mut self, records: &[StepRecord]) {
        let last = records
            .iter()
            .min_by(|a, b| a.sync_s.total_cmp(&b.sync_s).then(a.rank.cmp(&b.rank)));
        let Some(last) = last else { return };
        let mut waiting_s = 0.0;
        for record in records {
            self.times.compute_s += record.compute_s();
            self.times.stall_s += record.stall_s;
            self.times.exchange_s += last.sync_s;
            self.times.sample_s += record.sample_s;
            self.times.fetch_s += record.fetch_s;
            self.times.assemble_s += record.assemble_s;
            waiting_s += record.sync_s - last.sync_s;
        }
        self.times.waiting_s += waiting_s;
        let rank = last.rank as usize;
        let machine = self
            .machines
            .get(rank)
            .cloned()
            .unwrap_or_else(|| format!("rank {rank}"));
        let caused = self.caused.entry(machine).or_default();
        caused.waiting_s += waiting_s;
        caused.compute_s += last.compute_s();
        caused.stall_s += last.stall_s;
    }

    /// The verdict on the steps that all ranks have reported so far.
    pub fn bound(&self) -> Bound {
        let times = &self.times;
        let total = times.compute_s + times.stall_s + times.exchange_s + times.waiting_s;
        if total <= 0.0 || !total.is_finite() {
            return Bound::Unknown;
        }
        let shares = Shares {
            compute: times.compute_s / total,
            stall: times.stall_s / total,
            exchange: times.exchange_s / total,
            waiting: times.waiting_s / total,
        };
        let greatest = [shares.compute, shares.stall, shares.exchange, shares.waiting]
            .into_iter()
            .fold(0.0, f64::max);
        let what = if shares.compute == greatest {
            Cause::Compute
        } else if shares.stall == greatest {
            self.why_batches_were_late()
        } else if shares.waiting == greatest {
            self.who_was_waited_for()
        } else {
            Cause::Exchange
        };
        Bound::By { what, shares }
    }

    fn why_batches_were_late(&self) -> Cause {
        let Times {
            sample_s,
            fetch_s,
            assemble_s,
            ..
        } = self.times;
        if fetch_s >= sample_s && fetch_s >= assemble_s {
            Cause::Bytes
        } else if sample_s >= assemble_s {
            Cause::Sampling
        } else {
            Cause::Assembly
        }
    }

    fn who_was_waited_for(&self) -> Cause {
        let worst = self
            .caused
            .iter()
            .max_by(|a, b| a.1.waiting_s.total_cmp(&b.1.waiting_s));
        match worst {
            Some((name, caused)) if caused.waiting_s >= STANDS_OUT * self.times.waiting_s => Cause::Machine {
                name: name.clone(),
                late_by_compute: caused.compute_s >= caused.stall_s,
            },
            _ => Cause::Uneven,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bound::By { what, shares } = self else {
            return f.write_str("what bound the run is not known: no step was reported by all ranks");
        };
        match what {
            Cause::Compute => f.write_str("bound by compute"),
            Cause::Bytes => f.write_str("bound by bytes: batches waited for feature rows"),
            Cause::Sampling => f.write_str("bound by sampling: batches were not sampled in time"),
            Cause::Assembly => f.write_str("bound by assembly: batches were not put together in time"),
            Cause::Exchange => f.write_str("bound by the exchange of gradients"),
            Cause::Machine { name, late_by_compute } => {
                let why = if *late_by_compute {
                    "its compute"
                } else {
                    "its own wait for batches"
                };
                write!(f, "bound by waiting for {name}, which was late by {why}")
            }
            Cause::Uneven => f.write_str("bound by uneven ranks: no machine was always the last"),
        }?;
        let percent = |share| units::percent(Some(share));
        write!(
            f,
            " (step time: compute {}, stall {}, waiting for other ranks {}, gradient exchange {})",
            percent(shares.compute),
            percent(shares.stall),
            percent(shares.waiting),
            percent(shares.exchange),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u32, rank: u32, compute_s: f64, stall_s: f64, sync_s: f64) -> StepRecord {
        StepRecord {
            step,
            rank,
            forward_s: compute_s / 2.0,
            backward_s: compute_s / 2.0,
            stall_s,
            sync_s,
            ..StepRecord::default()
        }
    }

    fn machines(ranks: usize) -> Vec<String> {
        (0..ranks).map(|rank| format!("machine {rank}")).collect()
    }

    fn cause(bound: &Bound) -> &Cause {
        match bound {
            Bound::By { what, .. } => what,
            Bound::Unknown => panic!("the bound is not known"),
        }
    }

    #[test]
    fn compute() {
        let steps = [step(0, 0, 6.0, 1.0, 1.0), step(0, 1, 6.0, 0.0, 2.0)];
        let bound = what_bound_the_run(machines(2), &steps);
        assert_eq!(
            bound.to_string(),
            "bound by compute (step time: compute 75.0 %, stall 6.2 %, waiting for other ranks 6.2 %, gradient exchange 12.5 %)"
        );
    }

    #[test]
    fn batches_that_were_late_are_told_apart_by_what_took_longest() {
        let late = |sample_s, fetch_s, assemble_s| StepRecord {
            sample_s,
            fetch_s,
            assemble_s,
            ..step(0, 0, 1.0, 3.0, 0.0)
        };
        let of = |record| what_bound_the_run(machines(1), &[record]);
        assert_eq!(cause(&of(late(1.0, 2.0, 1.0))), &Cause::Bytes);
        assert_eq!(cause(&of(late(2.0, 1.0, 1.0))), &Cause::Sampling);
        assert_eq!(cause(&of(late(1.0, 1.0, 2.0))), &Cause::Assembly);
        assert!(of(late(0.0, 1.0, 0.0)).to_string().starts_with("bound by bytes"));
    }

    #[test]
    fn the_machine_that_the_others_wait_for_is_named_with_its_reason() {
        let steps = [
            step(0, 0, 1.0, 0.0, 4.0),
            step(0, 1, 1.0, 0.0, 4.0),
            step(0, 2, 5.0, 0.0, 0.0),
        ];
        let bound = what_bound_the_run(machines(3), &steps);
        let text = bound.to_string();
        assert!(
            text.starts_with("bound by waiting for machine 2, which was late by its compute"),
            "{text}"
        );

        let steps = [
            step(0, 0, 1.0, 4.0, 0.0),
            step(0, 1, 1.0, 0.0, 4.5),
            step(0, 2, 1.0, 0.0, 4.5),
        ];
        let text = what_bound_the_run(machines(3), &steps).to_string();
        assert!(
            text.starts_with("bound by waiting for machine 0, which was late by its own wait"),
            "{text}"
        );
    }

    #[test]
    fn two_ranks_of_one_machine_are_one_machine() {
        let steps = [
            step(0, 0, 3.0, 0.0, 0.0),
            step(0, 1, 1.0, 0.0, 2.0),
            step(0, 2, 0.1, 0.0, 2.9),
            step(0, 3, 0.1, 0.0, 2.9),
            step(1, 0, 1.0, 0.0, 2.0),
            step(1, 1, 3.0, 0.0, 0.0),
            step(1, 2, 0.1, 0.0, 2.9),
            step(1, 3, 0.1, 0.0, 2.9),
        ];
        let hosts = ["a", "a", "b", "c"].map(String::from).to_vec();
        let expected = Cause::Machine {
            name: "a".into(),
            late_by_compute: true,
        };
        assert_eq!(cause(&what_bound_the_run(hosts, &steps)), &expected);
    }

    #[test]
    fn ranks_that_are_late_in_turn_are_uneven() {
        let steps: Vec<_> = (0..3)
            .flat_map(|turn| {
                (0..3)
                    .map(move |rank| if rank == turn { (3.0, 0.0) } else { (0.1, 2.9) })
                    .enumerate()
                    .map(move |(rank, (compute_s, sync_s))| step(turn, rank as u32, compute_s, 0.0, sync_s))
            })
            .collect();
        assert_eq!(cause(&what_bound_the_run(machines(3), &steps)), &Cause::Uneven);
    }

    #[test]
    fn ranks_that_all_wait_for_the_network_are_bound_by_the_exchange() {
        let steps = [step(0, 0, 1.0, 0.0, 3.0), step(0, 1, 1.0, 0.0, 3.0)];
        assert_eq!(cause(&what_bound_the_run(machines(2), &steps)), &Cause::Exchange);
    }

    #[test]
    fn the_order_of_the_reports_does_not_matter() {
        let steps = [
            step(0, 0, 1.0, 0.0, 4.0),
            step(0, 1, 5.0, 0.0, 0.0),
            step(1, 0, 1.0, 2.0, 0.0),
            step(1, 1, 1.0, 0.0, 2.0),
        ];
        let mixed = [steps[2], steps[0], steps[3], steps[1]];
        let Bound::By { shares, what } = what_bound_the_run(machines(2), &steps) else {
            panic!("the bound is not known");
        };
        let total = shares.compute + shares.stall + shares.exchange + shares.waiting;
        assert!((total - 1.0).abs() < 1e-12, "{shares:?}");
        assert_eq!(what_bound_the_run(machines(2), &mixed), Bound::By { shares, what });
    }

    #[test]
    fn without_a_whole_step_nothing_is_claimed() {
        assert_eq!(
            what_bound_the_run(machines(2), &[step(0, 0, 1.0, 1.0, 1.0)]),
            Bound::Unknown
        );
        assert_eq!(
            what_bound_the_run(machines(1), &[StepRecord::default()]),
            Bound::Unknown
        );
        assert!(Bound::Unknown.to_string().contains("not known"));
    }

    #[test]
    fn a_rank_that_never_reports_costs_bounded_memory() {
        let mut meter = BoundMeter::new(machines(2));
        for number in 0..1_000 {
            meter.add(&step(number, 0, 1.0, 0.0, 0.0));
        }
        assert_eq!(meter.open.len(), OPEN_STEPS);
        assert_eq!(meter.bound(), Bound::Unknown);
    }
}
