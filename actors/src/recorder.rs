//! Turns the reports of all machines into epochs, and epochs into the summary of the run.

use std::collections::BTreeMap;

use greengnn_energy::snapshot::{EnergyTotal, combine};
use greengnn_model::book::Rank;
use greengnn_model::counters::{LevelCounts, Period, Phase, Traffic};
use greengnn_model::plan::Delivery;

use crate::protocol::{EpochReport, FinishedReport, Metered, RankReport};
use crate::report::records::RankRecord;
use crate::report::summary::{EpochSummary, MeteredSummary, PeriodSummary, Planned, PresamplingSummary};
use crate::shard::Served;

/// What a run's counters must satisfy, and did not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error(
        "epoch {epoch}, rank {rank}, {phase:?}: the plan has {planned} {what}, the rank counted {counted}, the \
         owners served {served}"
    )]
    CountsDiffer {
        epoch: u32,
        rank: Rank,
        phase: Phase,
        what: &'static str,
        planned: u64,
        counted: u64,
        served: u64,
    },
    #[error("rank {rank} held {held} rows with a budget of {budget}")]
    OverBudget { rank: Rank, held: u64, budget: u64 },
    #[error("rank {rank} keeps {held} rows on its device, where {budget} may be")]
    OverDeviceBudget { rank: Rank, held: u64, budget: u64 },
    #[error(
        "epoch {epoch}, rank {rank}, {phase:?}: the batches needed {needed} remote rows, but {found} were read from the \
         levels of memory"
    )]
    LevelsDiffer {
        epoch: u32,
        rank: Rank,
        phase: Phase,
        needed: u64,
        found: u64,
    },
    #[error("rank {rank} reported epoch {epoch} with other results than rank {first}: the ranks have diverged")]
    RanksDiffer { epoch: u32, first: Rank, rank: Rank },
    #[error("machine {machine} ended with weights {found}, machine {first} with {wanted}: the ranks have diverged")]
    WeightsDiffer {
        machine: String,
        found: String,
        first: String,
        wanted: String,
    },
}

/// Everything of one epoch, once all machines have reported it.
#[derive(Clone, Debug)]
pub struct CompletedEpoch {
    pub summary: EpochSummary,
    pub evaluation: PeriodSummary,
    /// What the meters say of the whole epoch, evaluation included.
    pub energy: EnergyTotal,
    /// The reports that it was made of, by machine.
    pub reports: Vec<EpochReport>,
    /// One record per rank and phase.
    pub ranks: Vec<RankRecord>,
}

/// What a report completed.
#[derive(Debug)]
pub enum Progressed {
    /// Other machines have yet to report.
    Waiting,
    /// The set-up of all machines.
    SetUp,
    /// An epoch of all machines.
    Epoch(Box<CompletedEpoch>),
}

/// Collects reports until every machine has sent its own for an epoch.
#[derive(Debug)]
pub struct Recorder {
    machines: usize,
    pending: BTreeMap<Option<u32>, Vec<EpochReport>>,
    setup: PeriodSummary,
    idle: Option<MeteredSummary>,
    probing: Option<MeteredSummary>,
    presampling: PresamplingSummary,
    epochs: Vec<EpochSummary>,
    evaluation: PeriodSummary,
    test: Option<(u64, u64)>,
    budget_rows: u64,
    held_rows_peak: u64,
    device_budget_rows: u64,
    device_rows: u64,
}

impl Recorder {
    pub fn new(machines: usize) -> Self {
        Self {
            machines,
            pending: BTreeMap::new(),
            setup: PeriodSummary::default(),
            idle: None,
            probing: None,
            presampling: PresamplingSummary::default(),
            epochs: Vec::new(),
            evaluation: PeriodSummary::default(),
            test: None,
            budget_rows: 0,
            held_rows_peak: 0,
            device_budget_rows: 0,
            device_rows: 0,
        }
    }

    /// Takes a report; says what it completed when it was the last one missing.
    pub fn add(&mut self, report: EpochReport) -> Result<Progressed, RecordError> {
        let key = report.epoch;
        let waiting = self.pending.entry(key).or_default();
        waiting.push(report);
        if waiting.len() < self.machines {
            return Ok(Progressed::Waiting);
        }
        let mut reports = self.pending.remove(&key).unwrap_or_default();
        reports.sort_by(|a, b| a.machine.cmp(&b.machine));
        let Some(epoch) = key else {
            check_fills(&reports)?;
            self.setup = period_summary(&reports, Phase::Setup);
            self.idle = metered_summary(reports.iter().filter_map(|report| report.idle.as_ref()));
            self.probing = metered_summary(reports.iter().filter_map(|report| report.probing.as_ref()));
            let presampling = reports.iter().filter_map(|report| report.presampling.as_ref());
            self.presampling.first_epoch = metered_summary(presampling);
            return Ok(Progressed::SetUp);
        };
        let completed = self.complete(epoch, reports)?;
        Ok(Progressed::Epoch(Box::new(completed)))
    }

    fn complete(&mut self, epoch: u32, reports: Vec<EpochReport>) -> Result<CompletedEpoch, RecordError> {
        let rank_records = rank_records(epoch, &reports)?;
        let mut ranks: Vec<&RankReport> = reports.iter().flat_map(|report| &report.ranks).collect();
        ranks.sort_by_key(|report| report.rank);
        if let Some((first, others)) = ranks.split_first() {
            for other in others {
                let same = first.loss_sum.to_bits() == other.loss_sum.to_bits()
                    && first.labelled == other.labelled
                    && first.valid == other.valid
                    && first.test == other.test;
                if !same {
                    return Err(RecordError::RanksDiffer {
                        epoch,
                        first: first.rank,
                        rank: other.rank,
                    });
                }
            }
        }
        for report in &ranks {
            self.presampling.cpu_s += report.presample_cpu_s;
            self.budget_rows = self.budget_rows.max(report.budget_rows);
            self.held_rows_peak = self.held_rows_peak.max(report.held_rows_peak);
            if report.held_rows_peak > report.budget_rows {
                let (held, budget) = (report.held_rows_peak, report.budget_rows);
                return Err(RecordError::OverBudget {
                    rank: report.rank,
                    held,
                    budget,
                });
            }
            self.device_budget_rows = self.device_budget_rows.max(report.device_budget_rows);
            self.device_rows = self.device_rows.max(report.device_rows);
            if report.device_rows > report.device_budget_rows {
                let (held, budget) = (report.device_rows, report.device_budget_rows);
                return Err(RecordError::OverDeviceBudget {
                    rank: report.rank,
                    held,
                    budget,
                });
            }
        }
        let first = ranks.first();
        let mut planned = Planned::default();
        for report in &ranks {
            planned += report.planned.get(&Phase::Training).copied().unwrap_or_default();
        }
        let share = |counts: Option<(u64, u64)>| counts.and_then(|(correct, labelled)| ratio(correct, labelled));
        let loss_sum = first.map_or(0.0, |report| report.loss_sum);
        let labelled = first.map_or(0, |report| report.labelled);
        let summary = EpochSummary {
            epoch,
            loss: if labelled == 0 { 0.0 } else { loss_sum / labelled as f64 },
            valid_accuracy: share(first.and_then(|report| report.valid)),
            window: first.map_or(0, |report| report.asking.window),
            delivery: first.map_or(Delivery::default(), |report| report.asking.delivery),
            period: period_summary(&reports, Phase::Training),
            planned,
        };
        if let Some(test) = first.and_then(|report| report.test) {
            self.test = Some(test);
        }
        let evaluation = period_summary(&reports, Phase::Evaluation);
        self.evaluation = PeriodSummary::sum([&self.evaluation, &evaluation]);
        self.epochs.push(summary.clone());
        let energy = combine_all(&reports);
        Ok(CompletedEpoch {
            summary,
            evaluation,
            energy,
            reports,
            ranks: rank_records,
        })
    }

    /// Set-up, epochs and evaluation so far.
    pub fn totals(&self) -> (PeriodSummary, Vec<EpochSummary>, PeriodSummary) {
        (self.setup.clone(), self.epochs.clone(), self.evaluation.clone())
    }

    /// The machines when they do nothing; none if it was not asked for.
    pub fn idle(&self) -> Option<MeteredSummary> {
        self.idle.clone()
    }

    /// The probe of a run that chose its windows; none of others.
    pub fn probing(&self) -> Option<MeteredSummary> {
        self.probing.clone()
    }

    pub fn presampling(&self) -> PresamplingSummary {
        self.presampling.clone()
    }

    /// Share of the labelled test nodes that are classified right.
    pub fn test_accuracy(&self) -> Option<f64> {
        self.test.and_then(|(correct, labelled)| ratio(correct, labelled))
    }

    pub fn budget_rows(&self) -> u64 {
        self.budget_rows
    }

    pub fn held_rows_peak(&self) -> u64 {
        self.held_rows_peak
    }

    /// Most rows that the device of a rank may keep.
    pub fn device_budget_rows(&self) -> u64 {
        self.device_budget_rows
    }

    /// Most rows that the device of a rank keeps.
    pub fn device_rows(&self) -> u64 {
        self.device_rows
    }
}

/// The weights that all machines ended with.
pub fn agreed_weights(reports: &[FinishedReport]) -> Result<String, RecordError> {
    let Some((first, others)) = reports.split_first() else {
        return Ok(String::new());
    };
    for other in others {
        if other.weights_sha256 != first.weights_sha256 {
            return Err(RecordError::WeightsDiffer {
                machine: other.machine.clone(),
                found: other.weights_sha256.clone(),
                first: first.machine.clone(),
                wanted: first.weights_sha256.clone(),
            });
        }
    }
    Ok(first.weights_sha256.clone())
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// What the plans say, what the ranks counted and what the owners served must be the same numbers.
fn rank_records(epoch: u32, reports: &[EpochReport]) -> Result<Vec<RankRecord>, RecordError> {
    let served = served_by_rank(reports);
    let mut records = Vec::new();
    for report in reports.iter().flat_map(|report| &report.ranks) {
        for phase in [Phase::Training, Phase::Evaluation] {
            let served = served
                .get(&(report.rank, Period { epoch, phase }))
                .copied()
                .unwrap_or_default();
            let mut counted = report.traffic.get(&phase).copied().unwrap_or_default();
            counted.sample_requests = served.sample_requests;
            let record = RankRecord {
                epoch,
                rank: u32::from(report.rank),
                phase,
                planned: report.planned.get(&phase).copied().unwrap_or_default(),
                counted,
                served,
                needed_rows: report.needed_rows.get(&phase).copied().unwrap_or(0),
                levels: report.levels.get(&phase).copied().unwrap_or_default(),
                held_rows_peak: report.held_rows_peak,
                budget_rows: report.budget_rows,
                device_rows: report.device_rows,
                device_budget_rows: report.device_budget_rows,
                presample_cpu_s: report.presample_cpu_s,
                plan_cpu_s: report.plan_cpu_s,
                trace_bytes: report.trace_bytes,
            };
            check_counts(&record, report.rank)?;
            let (needed, found) = (record.needed_rows, record.levels.remote_rows());
            if needed != found {
                return Err(RecordError::LevelsDiffer {
                    epoch,
                    rank: report.rank,
                    phase,
                    needed,
                    found,
                });
            }
            records.push(record);
        }
    }
    records.sort_by_key(|record| (record.rank, record.phase));
    Ok(records)
}

/// What static policies fetched at the start must be what the owners served then.
fn check_fills(reports: &[EpochReport]) -> Result<(), RecordError> {
    let served = served_by_rank(reports);
    for report in reports.iter().flat_map(|report| &report.ranks) {
        let phase = Phase::Setup;
        let record = RankRecord {
            epoch: 0,
            rank: u32::from(report.rank),
            phase,
            planned: report.planned.get(&phase).copied().unwrap_or_default(),
            counted: report.traffic.get(&phase).copied().unwrap_or_default(),
            served: served
                .get(&(report.rank, Period { epoch: 0, phase }))
                .copied()
                .unwrap_or_default(),
            ..RankRecord::default()
        };
        check_counts(&record, report.rank)?;
    }
    Ok(())
}

fn served_by_rank(reports: &[EpochReport]) -> BTreeMap<(Rank, Period), Served> {
    let mut served: BTreeMap<(Rank, Period), Served> = BTreeMap::new();
    for entry in reports.iter().flat_map(|report| &report.served) {
        let sum = served.entry((entry.rank, entry.period)).or_default();
        sum.feature_requests += entry.counts.feature_requests;
        sum.deliveries += entry.counts.deliveries;
        sum.feature_rows += entry.counts.feature_rows;
        sum.sample_requests += entry.counts.sample_requests;
        sum.push_bytes += entry.counts.push_bytes;
        sum.pull_bytes += entry.counts.pull_bytes;
    }
    served
}

fn check_counts(record: &RankRecord, rank: Rank) -> Result<(), RecordError> {
    let RankRecord {
        epoch,
        phase,
        planned,
        counted,
        served,
        ..
    } = *record;
    let pairs = [
        (
            "feature requests",
            planned.feature_requests,
            counted.feature_requests,
            served.feature_requests,
        ),
        ("deliveries", planned.deliveries, counted.deliveries, served.deliveries),
        (
            "feature rows",
            planned.feature_rows,
            counted.feature_rows,
            served.feature_rows,
        ),
        (
            "pushed bytes",
            planned.push_bytes,
            counted.push_bytes,
            served.push_bytes,
        ),
        (
            "pulled bytes",
            planned.pull_bytes,
            counted.pull_bytes,
            served.pull_bytes,
        ),
    ];
    for (what, planned, counted, served) in pairs {
        if planned != counted || planned != served {
            return Err(RecordError::CountsDiffer {
                epoch,
                rank,
                phase,
                what,
                planned,
                counted,
                served,
            });
        }
    }
    Ok(())
}

fn period_summary(reports: &[EpochReport], phase: Phase) -> PeriodSummary {
    let readings: Vec<_> = reports
        .iter()
        .flat_map(|report| &report.periods)
        .filter(|reading| reading.phase == phase)
        .collect();
    let energy = combine(readings.iter().map(|reading| &reading.metered.energy));
    let ranks: Vec<&RankReport> = reports.iter().flat_map(|report| &report.ranks).collect();
    let mean = |seconds: fn(&RankReport) -> &BTreeMap<Phase, f64>| {
        let sum: f64 = ranks
            .iter()
            .map(|report| seconds(report).get(&phase).copied().unwrap_or(0.0))
            .sum();
        sum / ranks.len().max(1) as f64
    };
    let mut traffic = Traffic::default();
    let mut levels = LevelCounts::default();
    let mut needed_rows = 0;
    for served in reports
        .iter()
        .flat_map(|report| &report.served)
        .filter(|served| served.period.phase == phase)
    {
        traffic.sample_requests += served.counts.sample_requests;
    }
    for report in &ranks {
        traffic += report.traffic.get(&phase).copied().unwrap_or_default();
        levels += report.levels.get(&phase).copied().unwrap_or_default();
        needed_rows += report.needed_rows.get(&phase).copied().unwrap_or(0);
    }
    PeriodSummary {
        wall_s: energy.duration_s,
        stall_s: mean(|report| &report.stall_s),
        sync_s: mean(|report| &report.sync_s),
        traffic,
        levels,
        wire_bytes: readings.iter().map(|reading| reading.wire_bytes).sum(),
        cache_hit_rows: needed_rows as i64 - traffic.feature_rows as i64,
        cpu_s: energy.cpu_s,
        energy_j: energy.joules,
        energy_quality: energy.quality,
        energy_by_device: energy.by_device(),
        energy_by_domain: energy.by_domain(),
    }
}

/// The windows of all machines together; none without any. Of a host's machines the one with the longest window is taken.
fn metered_summary<'a>(windows: impl Iterator<Item = &'a Metered>) -> Option<MeteredSummary> {
    let mut readings: Vec<_> = windows.map(|window| &window.energy).collect();
    readings.sort_by(|a, b| b.duration_s.total_cmp(&a.duration_s));
    let energy = combine(readings.iter().copied());
    (!readings.is_empty()).then(|| MeteredSummary {
        wall_s: energy.duration_s,
        cpu_s: energy.cpu_s,
        energy_j: energy.joules,
        energy_quality: energy.quality,
        energy_by_device: energy.by_device(),
        energy_by_domain: energy.by_domain(),
    })
}

/// The energy of all periods of an epoch together.
fn combine_all(reports: &[EpochReport]) -> EnergyTotal {
    let mut whole = EnergyTotal::default();
    for phase in [Phase::Training, Phase::Evaluation] {
        let readings = reports
            .iter()
            .flat_map(|report| &report.periods)
            .filter(|reading| reading.phase == phase);
        whole
            .counted
            .extend(combine(readings.map(|reading| &reading.metered.energy)).counted);
    }
    whole
}

#[cfg(test)]
mod tests;
