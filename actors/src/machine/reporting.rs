//! What a machine reports: readings at the border of every period, epochs, steps, and the trained parameters.

use std::collections::BTreeMap;
use std::time::Instant;

use greengnn_energy::clock::unix_s_of;
use greengnn_model::book::Rank;
use greengnn_model::counters::{LevelCounts, Period, Phase};
use greengnn_model::layers::NamedParameter;
use greengnn_model::layers::weights::weights_sha256;

use super::{MachineError, MachineState};
use crate::protocol::{
    EpochReport, FinishedReport, Metered, PeriodReading, RankReport, Served, SupervisorMessage, WeightsChunk,
};
use crate::rank::Filled;
use crate::report::summary::Planned;
use crate::rmp::Rmp;
use crate::trainer::EpochOutcome;

/// Bytes of parameters per control message.
const WEIGHTS_CHUNK: usize = 1 << 20;
/// Step records per control message.
pub(super) const STEPS_AT_ONCE: usize = 1024;
/// Points of the energy timeline per control message.
const POINTS_AT_ONCE: usize = 2048;

impl MachineState {
    /// When all ranks have passed a border, the period before it is read off the meter.
    pub(super) fn on_phase_done(&mut self, epoch: Option<u32>, phase: Phase) -> Result<(), MachineError> {
        let passed = self.passed.entry((epoch, phase)).or_default();
        *passed += 1;
        if *passed < self.ranks.len() {
            return Ok(());
        }
        self.passed.remove(&(epoch, phase));
        let now = self.snapshot();
        let metered = Metered {
            started_unix_s: unix_s_of(self.period_began_s),
            ..Metered::between(&self.last_snapshot, &now)
        };
        self.period_began_s = now.at_s;
        self.last_snapshot = now;
        let period = Period {
            epoch: epoch.unwrap_or(0),
            phase,
        };
        self.readings.entry(epoch).or_default().push(PeriodReading {
            phase,
            wire_bytes: self.hosted.wire().written().get(&period).copied().unwrap_or(0),
            metered,
        });
        if epoch.is_none() { self.report_setup() } else { Ok(()) }
    }

    fn report_setup(&mut self) -> Result<(), MachineError> {
        let report = |rank: &Rank| {
            let filled = self.fills.get(rank).copied().unwrap_or_default();
            let levels = LevelCounts {
                upload_bytes: filled.upload_bytes,
                ..LevelCounts::default()
            };
            RankReport {
                rank: *rank,
                traffic: BTreeMap::from([(Phase::Setup, filled.traffic)]),
                planned: BTreeMap::from([(Phase::Setup, filled.planned)]),
                levels: BTreeMap::from([(Phase::Setup, levels)]),
                device_rows: filled.device_rows,
                device_budget_rows: filled.device_budget_rows,
                ..RankReport::default()
            }
        };
        let ranks = self.ranks.keys().map(report).collect();
        self.report(None, ranks)
    }

    pub(super) fn on_epoch_done(&mut self, rank: Rank, outcome: EpochOutcome) -> Result<(), MachineError> {
        let epoch = outcome.epoch;
        let budget_rows = self
            .wiring
            .as_ref()
            .and_then(|wiring| wiring.budgets.get(&rank).copied())
            .unwrap_or(0);
        let filled = self.fills.get(&rank).copied().unwrap_or_default();
        let reports = self.reports.entry(epoch).or_default();
        reports.push(rank_report(rank, outcome, u64::from(budget_rows), filled));
        if reports.len() < self.ranks.len() {
            return Ok(());
        }
        let ranks = self.reports.remove(&epoch).unwrap_or_default();
        self.send_steps()?;
        self.report(Some(epoch), ranks)
    }

    fn report(&mut self, epoch: Option<u32>, ranks: Vec<RankReport>) -> Result<(), MachineError> {
        let of_epoch = |period: &Period| match epoch {
            None => period.phase == Phase::Setup,
            Some(epoch) => period.epoch == epoch && period.phase != Phase::Setup,
        };
        let served = self
            .hosted
            .shards()
            .iter()
            .flat_map(|shard| shard.served().snapshot())
            .filter(|((_, period), _)| of_epoch(period))
            .map(|((rank, period), counts)| Served { rank, period, counts })
            .collect();
        let report = EpochReport {
            machine: self.id.name.clone(),
            epoch,
            periods: self.readings.remove(&epoch).unwrap_or_default(),
            idle: self.setup.idle.take(),
            probing: self.setup.probing.take(),
            presampling: self.setup.presampling.take(),
            ranks,
            served,
        };
        self.send_timeline()?;
        self.tell(SupervisorMessage::EpochDone(Rmp(report)))
    }

    /// What the meter has seen since it was last asked, in messages of bounded size.
    fn send_timeline(&self) -> Result<(), MachineError> {
        let points = blocking(|| self.options.meter.drain_timeline());
        for some in points.chunks(POINTS_AT_ONCE) {
            self.tell(SupervisorMessage::Timeline(self.id.name.clone(), Rmp(some.to_vec())))?;
        }
        Ok(())
    }

    pub(super) fn send_steps(&mut self) -> Result<(), MachineError> {
        self.steps_sent = Instant::now();
        let steps = std::mem::take(&mut self.steps);
        for some in steps.chunks(STEPS_AT_ONCE) {
            self.tell(SupervisorMessage::Steps(Rmp(some.to_vec())))?;
        }
        Ok(())
    }

    pub(super) fn on_trained(&mut self, rank: Rank, parameters: &[NamedParameter]) -> Result<(), MachineError> {
        self.weights.insert(rank, weights_sha256(parameters));
        if rank == 0 {
            self.send_weights(parameters)?;
        }
        if self.weights.len() < self.ranks.len() {
            return Ok(());
        }
        let mut distinct: Vec<&String> = self.weights.values().collect();
        distinct.sort_unstable();
        distinct.dedup();
        let [weights_sha256] = distinct[..] else {
            return Err(MachineError::Failed(
                "the ranks of this machine ended with different weights".to_owned(),
            ));
        };
        let process = self.snapshot().process;
        let report = FinishedReport {
            machine: self.id.name.clone(),
            device: self.device.clone(),
            weights_sha256: weights_sha256.clone(),
            peak_rss_bytes: process.peak_rss_bytes,
            peak_anon_bytes: process.peak_anon_bytes,
            meters: blocking(|| self.options.meter.reports()),
        };
        self.send_timeline()?;
        self.tell(SupervisorMessage::Finished(Rmp(report)))
    }

    /// The parameters as a safetensors file, piece by piece.
    fn send_weights(&self, parameters: &[NamedParameter]) -> Result<(), MachineError> {
        let bytes = greengnn_model::layers::weights::to_safetensors(parameters, &[])
            .map_err(|error| MachineError::Failed(error.to_string()))?;
        for (index, piece) in bytes.chunks(WEIGHTS_CHUNK).enumerate() {
            let offset = (index * WEIGHTS_CHUNK) as u64;
            let chunk = WeightsChunk {
                offset,
                total: bytes.len() as u64,
                bytes: piece.to_vec(),
            };
            self.tell(SupervisorMessage::Weights(Rmp(chunk)))?;
        }
        Ok(())
    }
}

/// Waits for the meter's thread without holding up other tasks, where the runtime has threads to spare.
pub(super) fn blocking<T>(question: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::current().runtime_flavor() {
        tokio::runtime::RuntimeFlavor::MultiThread => tokio::task::block_in_place(question),
        _ => question(),
    }
}

fn rank_report(rank: Rank, outcome: EpochOutcome, budget_rows: u64, filled: Filled) -> RankReport {
    RankReport {
        rank,
        loss_sum: outcome.loss_sum,
        labelled: outcome.labelled,
        valid: outcome.valid,
        test: outcome.test,
        stall_s: outcome.stall_s,
        sync_s: outcome.sync_s,
        traffic: outcome.tally.traffic,
        planned: outcome.tally.planned.into_iter().collect::<BTreeMap<Phase, Planned>>(),
        needed_rows: outcome.tally.needed_rows,
        levels: outcome.tally.levels,
        held_rows_peak: outcome.tally.held_rows_peak,
        budget_rows,
        device_rows: filled.device_rows,
        device_budget_rows: filled.device_budget_rows,
        presample_cpu_s: outcome.presample_cpu_s,
        plan_cpu_s: outcome.tally.plan_cpu_s,
        trace_bytes: outcome.trace_bytes,
        asking: outcome.tally.asking,
    }
}
