//! The parameters of policies that a user may choose, and the policies by their names.

use std::sync::Arc;

use super::bulk::Bulk;
use super::epoch::Epoch;
use super::pinned::{Full, OnDemand};
use super::replacement::Replacement;
use super::scored::StaticByScore;
use super::two_level::TwoLevel;
use super::window::Window;
use super::{Policy, ScoreKind, UnknownPolicy};

/// What a policy may be told beside its budget and window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyParameters {
    /// Epochs that `presample` counts, and that correct an estimate: GNNLab's `K`. At least 1.
    pub presample_epochs: u32,
    /// What the analytic estimate counts for in the scores of `vip` and `two-level`, 0 to 1; the rest is for presampled
    /// counts.
    pub vip_weight: f64,
    /// How many times as much a row over the network costs as one from the host to the device, for `two-level`.
    pub network_cost: f64,
}

impl Default for PolicyParameters {
    fn default() -> Self {
        Self {
            presample_epochs: 2,
            vip_weight: 1.0,
            network_cost: TwoLevel::NETWORK_COST,
        }
    }
}

impl PolicyParameters {
    /// The policy of that name.
    ///
    /// # Errors
    /// [`UnknownPolicy`] lists the names.
    pub fn policy(&self, name: &str) -> Result<Arc<dyn Policy>, UnknownPolicy> {
        let scored = |kind| -> Arc<dyn Policy> { Arc::new(StaticByScore { kind }) };
        Ok(match name {
            "on-demand" => Arc::new(OnDemand),
            "degree" => scored(ScoreKind::Degree),
            "presample" => scored(ScoreKind::Presample {
                epochs: self.presample_epochs,
            }),
            "vip" => scored(self.access()),
            "two-level" => Arc::new(TwoLevel {
                kind: self.access(),
                network_cost: self.network_cost,
            }),
            "lru" => Arc::new(Replacement::Lru),
            "lfu" => Arc::new(Replacement::Lfu),
            "fifo" => Arc::new(Replacement::Fifo),
            "epoch" => Arc::new(Epoch),
            "window" => Arc::new(Window),
            "bulk" => Arc::new(Bulk::default()),
            "full" => Arc::new(Full),
            _ => return Err(UnknownPolicy { name: name.to_owned() }),
        })
    }

    /// How often rows are needed, by the estimate alone or corrected.
    fn access(&self) -> ScoreKind {
        if self.vip_weight < 1.0 {
            ScoreKind::CorrectedVip {
                weight: self.vip_weight,
                epochs: self.presample_epochs,
            }
        } else {
            ScoreKind::Vip
        }
    }
}
