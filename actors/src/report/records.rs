//! The lines that a run writes while it lasts: one per step and rank, one per epoch, one per period of a meter, one per
//! power reading.

use greengnn_energy::device::DomainJoules;
use greengnn_energy::quality::Quality;
use greengnn_energy::snapshot::DomainEnergy;
use greengnn_model::counters::{LevelCounts, Phase, Traffic};
use serde::{Deserialize, Serialize};

use super::clocks::ClockRecord;
use super::summary::{EpochSummary, Planned, null_is_nan};
use crate::protocol::{EpochReport, Metered};
use crate::shard::Served;

/// One line of `metrics.jsonl`; `kind` is `step`, `epoch`, `rank`, `meter` or `clock`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum MetricsRecord {
    Step(StepRecord),
    Epoch(EpochSummary),
    Rank(RankRecord),
    Meter(MeterRecord),
    Clock(ClockRecord),
}

/// What one machine's meter read over one period, with the period's place in time. Machines of one host read the same
/// domains, each for itself: the run's totals take a domain from the first of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeterRecord {
    pub machine: String,
    /// The epoch; none before the first step.
    pub epoch: Option<u32>,
    pub period: MeterPeriod,
    /// Seconds since 1970.
    pub started_unix_s: f64,
    pub ended_unix_s: f64,
    /// Its length: for `setup` less than from start to end, where idle power was measured in between.
    pub wall_s: f64,
    /// CPU seconds of the machine's process.
    pub cpu_s: f64,
    pub domains: Vec<MeterDomain>,
}

/// What a period is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeterPeriod {
    /// Everything is loaded and nothing runs; not a part of the run.
    Idle,
    Setup,
    /// Of the cluster, before a run that chooses its windows: a part of `setup`.
    Probing,
    /// Of the first epoch: a part of `setup`.
    Presampling,
    Training,
    Evaluation,
}

/// One domain of a period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeterDomain {
    #[serde(flatten)]
    pub domain: DomainJoules,
    /// Seconds that were not seen.
    pub gap_s: f64,
}

impl MeterRecord {
    /// The records of a report, in the order of time.
    pub fn of(report: &EpochReport) -> Vec<Self> {
        let record = |period, metered: &Metered| Self {
            machine: report.machine.clone(),
            epoch: report.epoch,
            period,
            started_unix_s: metered.started_unix_s,
            ended_unix_s: metered.ended_unix_s,
            wall_s: metered.energy.duration_s,
            cpu_s: metered.energy.cpu_s,
            domains: metered.energy.domains.iter().map(MeterDomain::from).collect(),
        };
        let idle = report.idle.iter().map(|metered| record(MeterPeriod::Idle, metered));
        let probing = report
            .probing
            .iter()
            .map(|metered| record(MeterPeriod::Probing, metered));
        let presampling = report.presampling.iter();
        let presampling = presampling.map(|metered| record(MeterPeriod::Presampling, metered));
        let periods = report
            .periods
            .iter()
            .map(|reading| record(reading.phase.into(), &reading.metered));
        idle.chain(probing).chain(presampling).chain(periods).collect()
    }
}

impl From<Phase> for MeterPeriod {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Setup => Self::Setup,
            Phase::Training => Self::Training,
            Phase::Evaluation => Self::Evaluation,
        }
    }
}

impl From<&DomainEnergy> for MeterDomain {
    fn from(energy: &DomainEnergy) -> Self {
        Self {
            domain: energy.into(),
            gap_s: energy.gap_s,
        }
    }
}

/// What one rank's plans say of one phase of an epoch, what the rank counted, and what the owners served to it. The three
/// agree, or the run fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    pub epoch: u32,
    pub rank: u32,
    pub phase: Phase,
    pub planned: Planned,
    pub counted: Traffic,
    pub served: Served,
    /// Remote rows that the batches needed.
    pub needed_rows: u64,
    /// From which memory the batches' rows were read.
    pub levels: LevelCounts,
    /// Most rows held at once in the run so far, and the slots of the arena.
    pub held_rows_peak: u64,
    pub budget_rows: u64,
    /// Rows that the device keeps, and how many it may keep.
    pub device_rows: u64,
    pub device_budget_rows: u64,
    /// CPU seconds of the thread that presampled the epoch and of the one that planned it, and bytes of its trace.
    pub presample_cpu_s: f64,
    pub plan_cpu_s: f64,
    pub trace_bytes: u64,
}

/// Where the time of one training step of one rank went. All times are wall seconds.
///
/// `sample_s`, `fetch_s` and `assemble_s` were spent on the step's batch ahead of the step, in the background: they
/// hide behind earlier steps, and what did not hide is `stall_s`. The step itself took
/// [`StepRecord::elapsed_s`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepRecord {
    pub epoch: u32,
    /// Step within the epoch.
    pub step: u32,
    pub rank: u32,
    /// Labelled seeds of this rank.
    pub seeds: u32,
    /// Presampling: the batch's share of it.
    pub sample_s: f64,
    /// From the first request for a row of the batch to the arrival of the last.
    pub fetch_s: f64,
    /// Copying local, cached and fetched rows into the batch.
    pub assemble_s: f64,
    pub forward_s: f64,
    pub backward_s: f64,
    /// The optimizer's update of the parameters.
    pub optimizer_s: f64,
    /// Wait for the other ranks' gradients.
    pub sync_s: f64,
    /// Wait for the assembled batch.
    pub stall_s: f64,
    /// Mean cross-entropy over the labelled seeds of all ranks, the same in every rank's record; 0 without one. Not
    /// finite: `null` in JSON.
    #[serde(with = "null_is_nan")]
    pub loss: f64,
}

impl StepRecord {
    /// Forward, backward and the optimizer.
    pub fn compute_s(&self) -> f64 {
        self.forward_s + self.backward_s + self.optimizer_s
    }

    /// What the rank's step took: waiting for the batch, computing, waiting for the gradients.
    pub fn elapsed_s(&self) -> f64 {
        self.stall_s + self.compute_s() + self.sync_s
    }
}

/// One line of `energy.jsonl`: the mean power of one domain since its point before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnergyPoint {
    /// Seconds since the start of the run.
    pub at_s: f64,
    /// The computer's boot id.
    pub host: String,
    /// The domain's own name on that host, such as `package-0`, `package-0/dram` or `gpu/GPU-<uuid>`. A domain that several
    /// processes share appears once.
    pub domain: String,
    /// What the domain is, as [`DomainKind::name`](greengnn_energy::DomainKind::name) says: `package`, `dram`, `gpu`,
    /// `estimate`; `core`, `uncore` and `psys` are shown and in no total.
    pub kind: String,
    /// None if it could not be read.
    pub watts: Option<f64>,
    pub quality: Quality,
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::sample;
    use super::*;

    #[test]
    fn a_step_is_one_flat_object_with_its_kind() {
        let step = StepRecord {
            epoch: 2,
            step: 7,
            rank: 3,
            forward_s: 0.25,
            backward_s: 0.5,
            optimizer_s: 0.125,
            sync_s: 1.0,
            stall_s: 2.0,
            loss: 1.5,
            ..StepRecord::default()
        };
        let json = serde_json::to_value(MetricsRecord::Step(step)).unwrap();
        assert_eq!(json["kind"], "step");
        assert_eq!(
            (&json["epoch"], &json["step"], &json["rank"]),
            (&2.into(), &7.into(), &3.into())
        );
        for name in [
            "sample_s",
            "fetch_s",
            "assemble_s",
            "forward_s",
            "backward_s",
            "optimizer_s",
            "sync_s",
            "stall_s",
        ] {
            assert!(json[name].is_f64(), "{name} in {json}");
        }
        assert_eq!(
            serde_json::from_value::<MetricsRecord>(json).unwrap(),
            MetricsRecord::Step(step)
        );
        assert_eq!(step.compute_s(), 0.875);
        assert_eq!(step.elapsed_s(), 3.875);
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null_and_comes_back_as_nan() {
        let step = StepRecord {
            loss: f64::INFINITY,
            ..StepRecord::default()
        };
        let line = serde_json::to_string(&MetricsRecord::Step(step)).unwrap();
        assert!(line.contains("\"loss\":null"), "{line}");
        let MetricsRecord::Step(read) = serde_json::from_str(&line).unwrap() else {
            panic!("a step came back as an epoch: {line}");
        };
        assert!(read.loss.is_nan());
    }

    #[test]
    fn records_travel_between_machines_as_they_are() {
        let step = StepRecord {
            step: 7,
            seeds: 1_000,
            loss: 1.5,
            ..StepRecord::default()
        };
        let bytes = rmp_serde::to_vec(&step).unwrap();
        assert_eq!(rmp_serde::from_slice::<StepRecord>(&bytes).unwrap(), step);
        for epoch in sample().epochs {
            let bytes = rmp_serde::to_vec(&epoch).unwrap();
            assert_eq!(rmp_serde::from_slice::<EpochSummary>(&bytes).unwrap(), epoch);
        }
    }
}
