//! The counters that every part of the engine shares: what was asked, what moved, what it took.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

use crate::rng::Purpose;

/// Which column of the report something is charged to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Initial fills, presampling of the first epochs, initialisation.
    #[default]
    Setup,
    /// Training steps of an epoch.
    Training,
    /// Validation and test steps.
    Evaluation,
}

impl From<Purpose> for Phase {
    fn from(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Train => Phase::Training,
            Purpose::Valid | Purpose::Test => Phase::Evaluation,
            Purpose::Presample => Phase::Setup,
        }
    }
}

/// The period that a request belongs to. It travels with the request, so that owners count under the same heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Period {
    pub epoch: u32,
    pub phase: Phase,
}

/// Traffic of one rank in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Questions for feature rows, one per (rank, owner, time).
    pub feature_requests: u64,
    /// Arrivals of feature rows; the same number as `feature_requests` unless a request is answered by a stream.
    pub deliveries: u64,
    /// Questions for sampled neighbours.
    pub sample_requests: u64,
    /// Feature rows that moved.
    pub feature_rows: u64,
    /// Rows times the bytes of a row.
    pub feature_bytes: u64,
    /// What push-pull sends to the ranks that hold the columns: sampled graphs, and gradients of the first layer's sums.
    pub push_bytes: u64,
    /// What push-pull gets from them: at set-up the rank's columns of their rows, then partial sums of the first layer.
    pub pull_bytes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.feature_requests += other.feature_requests;
        self.deliveries += other.deliveries;
        self.sample_requests += other.sample_requests;
        self.feature_rows += other.feature_rows;
        self.feature_bytes += other.feature_bytes;
        self.push_bytes += other.push_bytes;
        self.pull_bytes += other.pull_bytes;
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

/// From which memory the input rows of batches were read, each row counted in every batch that has it.
///
/// A row that the device keeps costs no upload. On a CPU device and host are one memory; the counts are those of the plan,
/// and `upload_bytes` is what a device of its own would be handed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelCounts {
    /// Remote rows that the device kept.
    pub device_hit_rows: u64,
    /// Remote rows in slots of the host: kept, or fetched ahead.
    pub host_hit_rows: u64,
    /// Remote rows that came straight for their batch.
    pub direct_rows: u64,
    /// The rank's own rows that the device kept.
    pub device_own_rows: u64,
    /// The rank's own rows that the host read.
    pub host_own_rows: u64,
    /// Bytes of feature values from the host to the device.
    pub upload_bytes: u64,
}

impl LevelCounts {
    /// Remote rows, wherever they were.
    pub fn remote_rows(&self) -> u64 {
        self.device_hit_rows + self.host_hit_rows + self.direct_rows
    }
}

impl AddAssign for LevelCounts {
    fn add_assign(&mut self, other: Self) {
        self.device_hit_rows += other.device_hit_rows;
        self.host_hit_rows += other.host_hit_rows;
        self.direct_rows += other.direct_rows;
        self.device_own_rows += other.device_own_rows;
        self.host_own_rows += other.host_own_rows;
        self.upload_bytes += other.upload_bytes;
    }
}
