//! The summary of a run: the stable names that scripts read. `docs/summary.md` describes every one.

use greengnn_energy::device::{DeviceEnergy, DomainJoules, add_domains};
use greengnn_energy::quality::Quality;
use greengnn_energy::source::SourceReport;
use greengnn_model::counters::{LevelCounts, Traffic};
use greengnn_model::plan::Delivery;
use greengnn_model::row_type::RowType;
use serde::{Deserialize, Serialize};

use super::clocks::ClockSummary;
use crate::config::Communication;

/// Version of the layout of `summary.json`. It grows when a name changes its meaning, not when one is added.
pub const SUMMARY_VERSION: u32 = 1;

/// `summary.json`. Sums are over all ranks or processes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Version of this layout: [`SUMMARY_VERSION`].
    pub version: u32,
    /// What ranks moved to train on nodes of other parts.
    #[serde(default)]
    pub communication: Communication,
    /// `none` in push-pull.
    pub policy: String,
    /// How its plans were asked and answered.
    #[serde(default)]
    pub delivery: Delivery,
    /// Steps per window as asked; 0 in push-pull.
    pub window: u32,
    /// Whether the run chose its windows: `window` and `delivery` are then those of the first epoch.
    #[serde(default)]
    pub is_window_chosen: bool,
    /// How remote rows travelled and were kept. f32 in summaries of before there was a choice.
    #[serde(default)]
    pub row_type: RowType,
    /// Slots of the largest arena of a rank.
    pub budget_rows: u64,
    /// Most rows that a rank held at once.
    pub held_rows_peak: u64,
    /// The part of the budget that the device of a rank has, and most rows that one keeps, remote and own.
    #[serde(default)]
    pub device_budget_rows: u64,
    #[serde(default)]
    pub device_rows: u64,
    pub ranks: u32,
    pub machines: u32,
    pub device: String,
    pub cpu_fingerprint: String,
    pub seed: u64,
    /// The machines with everything loaded and nothing running, before the run began. Not a part of it; none if it was not
    /// measured.
    #[serde(default)]
    pub idle: Option<MeteredSummary>,
    /// The probe of a run that chose its windows, a part of the set-up: nearly nothing where its profile was known.
    #[serde(default)]
    pub probing: Option<MeteredSummary>,
    #[serde(default)]
    pub presampling: PresamplingSummary,
    pub epochs: Vec<EpochSummary>,
    /// Initial fills and presampling before the first step.
    pub setup: PeriodSummary,
    /// All validation and test steps of the run.
    pub evaluation: PeriodSummary,
    /// Share of the labelled test nodes that are classified right; none without labelled test nodes.
    pub test_accuracy: Option<f64>,
    /// SHA-256 of the little-endian f32 parameters in name order.
    pub weights_sha256: String,
    /// Sum over processes of the peak resident set; memory maps inflate it.
    pub peak_rss_bytes: u64,
    /// Sum over processes of the peak of anonymous memory.
    pub peak_anon_bytes: u64,
    /// Seconds before the first step, without those in which idle power was measured.
    pub setup_s: f64,
    pub total_s: f64,
    /// What bound the run, in one sentence.
    pub bound_by: String,
    /// The fewest rows that could have moved; none unless it was asked for.
    #[serde(default)]
    pub row_bound: Option<RowBound>,
    /// What became of the clocks of GPUs; none unless they were to be lowered.
    #[serde(default)]
    pub gpu_clocks: Option<ClockSummary>,
    /// How the energy figures were obtained: what the machines' meters read, and why no more.
    #[serde(default)]
    pub meters: Vec<MeterSources>,
}

/// What meters read. Machines of one host that read the same are one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeterSources {
    /// The computer's boot id.
    pub host: String,
    /// The first of the machines.
    pub machine: String,
    pub sources: Vec<SourceReport>,
}

/// What the meters read over a time in which no steps are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeteredSummary {
    /// The longest of the machines.
    pub wall_s: f64,
    /// CPU seconds of all machine processes.
    pub cpu_s: f64,
    /// None if the energy of any part is not known.
    pub energy_j: Option<f64>,
    pub energy_quality: Quality,
    pub energy_by_device: DeviceEnergy,
    pub energy_by_domain: Vec<DomainJoules>,
}

impl MeteredSummary {
    /// Mean power in watts; none if the energy is not known.
    pub fn watts(&self) -> Option<f64> {
        self.energy_j
            .filter(|_| self.wall_s > 0.0)
            .map(|joules| joules / self.wall_s)
    }
}

/// What presampling took. The first epoch is sampled before training, as a part of the set-up. The others are sampled
/// beside training, where a meter cannot tell the two apart: of them the CPU seconds are known, and no joules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PresamplingSummary {
    /// CPU seconds of the threads that sampled, all ranks and epochs. What sampling spreads over other threads is not in it.
    pub cpu_s: f64,
    /// From the start of the ranks until all of a machine have the first epoch's trace. Initial fills run in the same time.
    /// Of the machines of one host, which share its energy, the one stands for all that took longest.
    pub first_epoch: Option<MeteredSummary>,
}

/// Bounds on the rows of a whole run, set-up and evaluation included, summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowBound {
    /// Rows of all batches: what moves without a cache.
    pub needed_rows: u64,
    /// Rows that must come once, whatever the budget.
    pub compulsory_rows: u64,
    /// The fewest that any policy which moves rows can move at the budget: Belady's MIN over the run, for a cache that is
    /// empty at its start.
    pub fewest_rows: u64,
}

/// One epoch's training steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochSummary {
    pub epoch: u32,
    /// Mean cross-entropy of the labelled training seeds. A loss that is not finite is `null` in JSON, and NaN here.
    #[serde(with = "null_is_nan")]
    pub loss: f64,
    pub valid_accuracy: Option<f64>,
    /// Most steps of a window, and how rows were asked for.
    #[serde(default)]
    pub window: u32,
    #[serde(default)]
    pub delivery: Delivery,
    #[serde(flatten)]
    pub period: PeriodSummary,
    pub planned: Planned,
}

/// What the plans of an epoch say; equal to what is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PlannedFields")]
pub struct Planned {
    pub feature_requests: u64,
    pub feature_rows: u64,
    pub deliveries: u64,
    pub push_bytes: u64,
    pub pull_bytes: u64,
}

/// [`Planned`] as it may be written: before there were streams every request was one delivery, and had no field for it.
#[derive(Deserialize)]
struct PlannedFields {
    feature_requests: u64,
    feature_rows: u64,
    #[serde(default)]
    deliveries: Option<u64>,
    #[serde(default)]
    push_bytes: u64,
    #[serde(default)]
    pull_bytes: u64,
}

impl From<PlannedFields> for Planned {
    fn from(fields: PlannedFields) -> Self {
        Self {
            feature_requests: fields.feature_requests,
            feature_rows: fields.feature_rows,
            deliveries: fields.deliveries.unwrap_or(fields.feature_requests),
            push_bytes: fields.push_bytes,
            pull_bytes: fields.pull_bytes,
        }
    }
}

/// The counters of a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeriodSummary {
    pub wall_s: f64,
    /// Mean over ranks of the wait for an assembled batch.
    pub stall_s: f64,
    /// Mean over ranks of the wait for the other ranks' gradients, and in push-pull for their partial sums.
    pub sync_s: f64,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// From which memory the batches' rows were read.
    #[serde(flatten)]
    pub levels: LevelCounts,
    /// Bytes written to sockets, counted once, at the sender.
    pub wire_bytes: u64,
    /// Remote rows that batches needed less rows that moved; negative for static fills.
    pub cache_hit_rows: i64,
    /// CPU seconds of all processes.
    pub cpu_s: f64,
    /// None if the energy of any part of the period is not known.
    pub energy_j: Option<f64>,
    pub energy_quality: Quality,
    /// The parts of that energy.
    #[serde(default)]
    pub energy_by_device: DeviceEnergy,
    /// Every domain that was metered, by host and name.
    #[serde(default)]
    pub energy_by_domain: Vec<DomainJoules>,
}

/// A summary that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    #[error("the text is not a summary of a run: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the summary has layout version {found}, this program reads up to {SUMMARY_VERSION}; use a newer program")]
    Version { found: u32 },
}

impl RunSummary {
    /// The text of `summary.json`.
    pub fn to_json(&self) -> Result<String, SummaryError> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// Reads what [`RunSummary::to_json`] wrote. Names that this version does not know are ignored.
    pub fn from_json(text: &str) -> Result<Self, SummaryError> {
        /// Read first, so that a newer layout is not called malformed.
        #[derive(Deserialize)]
        struct Layout {
            version: u32,
        }
        let Layout { version } = serde_json::from_str(text)?;
        if version > SUMMARY_VERSION {
            return Err(SummaryError::Version { found: version });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The training steps of all epochs.
    pub fn training(&self) -> PeriodSummary {
        PeriodSummary::sum(self.epochs.iter().map(|epoch| &epoch.period))
    }

    /// Set-up, training and evaluation together.
    pub fn whole_run(&self) -> PeriodSummary {
        let training = self.epochs.iter().map(|epoch| &epoch.period);
        PeriodSummary::sum(training.chain([&self.setup, &self.evaluation]))
    }

    /// Joules that a period took beyond what the machines take idle for as long; none without an idle baseline of the same
    /// quality.
    pub fn above_idle_j(&self, period: &PeriodSummary) -> Option<f64> {
        let idle = self.idle.as_ref()?;
        let same = idle.energy_quality == period.energy_quality;
        Some(period.energy_j.filter(|_| same)? - idle.watts()? * period.wall_s)
    }

    /// The epochs in which the requests, deliveries or rows that were counted differ from those that were planned.
    pub fn epochs_off_plan(&self) -> Vec<u32> {
        let off_plan = self
            .epochs
            .iter()
            .filter(|epoch| epoch.planned != Planned::from(&epoch.period.traffic));
        off_plan.map(|epoch| epoch.epoch).collect()
    }
}

impl EpochSummary {
    /// What a person calls the epoch: terminal and pages count from 1, files from 0.
    pub fn number(&self) -> u32 {
        self.epoch + 1
    }
}

impl From<&Traffic> for Planned {
    fn from(traffic: &Traffic) -> Self {
        Self {
            feature_requests: traffic.feature_requests,
            feature_rows: traffic.feature_rows,
            deliveries: traffic.deliveries,
            push_bytes: traffic.push_bytes,
            pull_bytes: traffic.pull_bytes,
        }
    }
}

impl std::ops::AddAssign for Planned {
    fn add_assign(&mut self, other: Self) {
        self.feature_requests += other.feature_requests;
        self.feature_rows += other.feature_rows;
        self.deliveries += other.deliveries;
        self.push_bytes += other.push_bytes;
        self.pull_bytes += other.pull_bytes;
    }
}

impl PeriodSummary {
    /// Adds periods that do not overlap. The energy has the quality of its worst part, and is unavailable as soon as a
    /// part is; a period in which nothing happened has no say in that.
    pub fn sum<'a>(periods: impl IntoIterator<Item = &'a PeriodSummary>) -> PeriodSummary {
        let mut periods = periods.into_iter().filter(|period| !period.is_empty());
        let Some(first) = periods.next() else {
            return PeriodSummary::default();
        };
        periods.fold(first.clone(), |mut sum, period| {
            sum.wall_s += period.wall_s;
            sum.stall_s += period.stall_s;
            sum.sync_s += period.sync_s;
            sum.traffic += period.traffic;
            sum.levels += period.levels;
            sum.wire_bytes += period.wire_bytes;
            sum.cache_hit_rows += period.cache_hit_rows;
            sum.cpu_s += period.cpu_s;
            sum.energy_quality = sum.energy_quality.max(period.energy_quality);
            sum.energy_by_device = sum.energy_by_device.plus(period.energy_by_device);
            sum.energy_by_domain = add_domains(&sum.energy_by_domain, &period.energy_by_domain);
            sum.energy_j = sum.energy_j.zip(period.energy_j).map(|(sum, part)| sum + part);
            sum
        })
    }

    /// Nothing took place: no time passed, nothing moved, no energy was read.
    fn is_empty(&self) -> bool {
        self.wall_s == 0.0 && self.traffic == Traffic::default() && self.wire_bytes == 0 && self.energy_j.is_none()
    }

    /// Share of the wall time that ranks waited for an assembled batch, 0 to 1; none if no time passed.
    pub fn stall_share(&self) -> Option<f64> {
        share(self.stall_s, self.wall_s)
    }

    /// Share of the wall time that ranks waited for the other ranks' gradients, 0 to 1; none if no time passed.
    pub fn sync_share(&self) -> Option<f64> {
        share(self.sync_s, self.wall_s)
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// JSON has no NaN and no infinity: both are written as `null`, and `null` is read as NaN.
pub(crate) mod null_is_nan {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

#[cfg(test)]
pub(crate) mod tests;
