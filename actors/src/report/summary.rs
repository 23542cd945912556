//! The summary of a run: the stable names that scripts read.

use greengnn_energy::quality::Quality;
use greengnn_model::counters::Traffic;
use serde::{Deserialize, Serialize};

/// `summary.json`. Sums are over all ranks or processes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Version of this layout.
    pub version: u32,
    pub policy: String,
    /// Steps per window as asked.
    pub window: u32,
    /// Slots of the largest arena of a rank.
    pub budget_rows: u64,
    /// Most rows that a rank held at once.
    pub held_rows_peak: u64,
    pub ranks: u32,
    pub machines: u32,
    pub device: String,
    pub cpu_fingerprint: String,
    pub seed: u64,
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
    pub setup_s: f64,
    pub total_s: f64,
    /// What bound the run, in one sentence.
    pub bound_by: String,
}

/// One epoch's training steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochSummary {
    pub epoch: u32,
    /// Mean cross-entropy of the labelled training seeds.
    pub loss: f64,
    pub valid_accuracy: Option<f64>,
    #[serde(flatten)]
    pub period: PeriodSummary,
    pub planned: Planned,
}

/// What the plans of an epoch say; equal to what is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    pub feature_requests: u64,
    pub feature_rows: u64,
}

/// The counters of a period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeriodSummary {
    pub wall_s: f64,
    /// Mean over ranks of the wait for an assembled batch.
    pub stall_s: f64,
    /// Mean over ranks of the wait for the other ranks' gradients.
    pub sync_s: f64,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Bytes written to sockets, counted once, at the sender.
    pub wire_bytes: u64,
    /// Remote rows that batches needed less rows that moved; negative for static fills.
    pub cache_hit_rows: i64,
    /// CPU seconds of all processes.
    pub cpu_s: f64,
    pub energy_j: Option<f64>,
    pub energy_quality: Quality,
}
