//! What an epoch that has run says of the coefficients, and when that is reason enough for another window.
//!
//! Probes time fetches on a cluster that does nothing else. While it trains, owners and links have other work, and fetches
//! take longer. How much longer shows in what ranks waited for their rows: there is one factor for the times of all fetches
//! with which the [simulator](crate::simulator) predicts the wait that was measured. What it asks for and when is known
//! exactly, since the plan was executed.
//!
//! The factor is one number, so that it cannot be fitted to noise of many. A wait that is no fetch's fault (a batch that is
//! assembled slowly) is taken for one.
//!
//! Which owner is slower than it was probed, beside the others, shows in how long its answers took: these shares are
//! learnt for every rank and owner apart. They say nothing of the wait, which requests to several owners share.

use std::collections::BTreeMap;

use greengnn_model::book::PartId;
use serde::{Deserialize, Serialize};

use crate::simulator::{Coefficients, RankTraffic, SimulationError, WindowTraffic, waits_in_step};

/// The smallest and the largest factor.
pub const FACTORS: (f64, f64) = (1.0 / 16.0, 64.0);

/// How many times faster or slower than the middle owner one may become.
const SHARES: (f64, f64) = (1.0 / 16.0, 16.0);

/// The share of the predicted joules that another window must save to be worth a change: the regret that a choice may have.
pub const MARGIN: f64 = 0.02;

/// How much the newest epoch counts, beside all before it.
const NEWEST: f64 = 0.5;

/// Halvings of the range of factors, ten octaves: more digits than a measurement has.
const HALVINGS: u32 = 40;

/// Seconds that are as good as none, beside those of the epoch.
const ROUNDING: f64 = 1e-9;

/// What one rank asked one owner for in an epoch, and how long the answers took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerFetches {
    pub owner: PartId,
    pub requests: u64,
    pub rows: u64,
    /// From request to answer, all requests together.
    pub seconds: f64,
}

/// What one rank did in an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankEpoch {
    /// What its plan moved.
    pub windows: Vec<WindowTraffic>,
    /// Seconds of a training step, mean: without waits for rows and for other ranks.
    pub step_s: f64,
    /// Seconds in which training waited for rows, all steps but the first of the epoch together: what that one waits for is
    /// asked for in the epoch before.
    pub stall_s: f64,
    /// By owner; empty where answers are not timed apart, as those of streams.
    pub fetches: Vec<OwnerFetches>,
}

/// What an epoch has shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObservedEpoch {
    /// Seconds that ranks were predicted to wait for their own rows in training, by the factor before this epoch, summed.
    pub predicted_stall_s: f64,
    /// And those that they waited.
    pub measured_stall_s: f64,
    /// The factor of this epoch alone; none where the wait does not depend on it.
    pub factor: Option<f64>,
    /// The factor from now on.
    pub smoothed: f64,
}

/// Why an epoch says nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdaptError {
    #[error("the epoch has figures of {found} ranks, and there are coefficients of {expected}; give all ranks")]
    Ranks { found: usize, expected: usize },
    #[error("the {what} of rank {rank} is {value}; it must be a number that is not negative")]
    NotMeasured {
        rank: usize,
        what: &'static str,
        value: f64,
    },
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

/// Coefficients that follow what epochs show.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptation {
    /// As they were probed, but for the steps, which are those of the last epoch. By rank.
    probed: Vec<Coefficients>,
    /// None before the first epoch that showed one.
    factor: Option<f64>,
    /// By rank and owner, how many times longer than its probe an owner takes beside the rank's other owners.
    shares: Vec<BTreeMap<PartId, f64>>,
}

impl Adaptation {
    /// Starts with coefficients that were probed, by rank.
    pub fn new(probed: Vec<Coefficients>) -> Self {
        Self {
            shares: vec![BTreeMap::new(); probed.len()],
            probed,
            factor: None,
        }
    }

    /// How many times longer fetches take than they did in the probe.
    pub fn fetch_factor(&self) -> f64 {
        self.factor.unwrap_or(1.0)
    }

    /// The coefficients for the next epoch, by rank. Joules of fetches are as they were probed.
    pub fn coefficients(&self) -> Vec<Coefficients> {
        let factor = self.fetch_factor();
        with_shares(&self.probed, &self.shares)
            .iter()
            .map(|rank| rank.with_slower_fetches(factor))
            .collect()
    }

    /// Learns from an epoch of all ranks, in their order. Steps take what they took in this epoch. The factor of the first
    /// epoch takes the place of the probe's, which is 1; a later one counts half, beside those before it (a geometric
    /// mean: twice as long and half as long are equally far away).
    ///
    /// # Errors
    /// Figures of other ranks, or one that is negative or not a number; then nothing is learnt.
    pub fn observe(&mut self, epoch: &[RankEpoch]) -> Result<ObservedEpoch, AdaptError> {
        check(epoch, self.probed.len())?;
        let mut probed = self.probed.clone();
        for (coefficients, rank) in probed.iter_mut().zip(epoch) {
            coefficients.step_s = rank.step_s;
            coefficients.check()?;
        }
        let mut shares = self.shares.clone();
        for ((shares, rank), probed) in shares.iter_mut().zip(epoch).zip(&probed) {
            learn_shares(shares, &rank.fetches, probed);
        }
        // The factor explains what the shares leave, so that no slowness counts twice.
        let shared = with_shares(&probed, &shares);
        let executed = Executed { probed: &shared, epoch };
        let measured_stall_s = epoch.iter().map(|rank| rank.stall_s).sum();
        let predicted_stall_s = executed.stall_s(self.fetch_factor())?;
        let factor = executed.factor(measured_stall_s)?;
        if let Some(newest) = factor {
            self.factor = Some(match self.factor {
                Some(before) => before.powf(1.0 - NEWEST) * newest.powf(NEWEST),
                None => newest,
            });
        }
        self.shares = shares;
        self.probed = probed;
        Ok(ObservedEpoch {
            predicted_stall_s,
            measured_stall_s,
            factor,
            smoothed: self.fetch_factor(),
        })
    }
}

/// The coefficients of all ranks, with owners that are slower or faster beside the others than they were probed.
fn with_shares(probed: &[Coefficients], shares: &[BTreeMap<PartId, f64>]) -> Vec<Coefficients> {
    let shared = |(rank, shares): (&Coefficients, &BTreeMap<PartId, f64>)| {
        let mut shared = rank.clone();
        for (owner, share) in shares {
            if let Some(cost) = shared.owners.get_mut(usize::from(*owner)) {
                cost.request_s *= share;
                cost.row_s *= share;
            }
        }
        shared
    };
    probed.iter().zip(shares).map(shared).collect()
}

/// Learns how owners compare from how long their answers took, beside what they were probed to take. The middle owner is
/// as it was probed.
fn learn_shares(shares: &mut BTreeMap<PartId, f64>, fetches: &[OwnerFetches], probed: &Coefficients) {
    let mut ratios: Vec<(PartId, f64)> = Vec::new();
    for fetched in fetches {
        let Some(cost) = probed.owners.get(usize::from(fetched.owner)) else {
            continue;
        };
        let expected_s = cost.request_s * fetched.requests as f64 + cost.row_s * fetched.rows as f64;
        let ratio = fetched.seconds / expected_s;
        if ratio.is_finite() && ratio > 0.0 {
            ratios.push((fetched.owner, ratio));
        }
    }
    let mut sorted: Vec<f64> = ratios.iter().map(|(_, ratio)| *ratio).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(middle) = sorted.get(sorted.len().saturating_sub(1) / 2).copied() else {
        return;
    };
    for (owner, ratio) in ratios {
        let newest = (ratio / middle).clamp(SHARES.0, SHARES.1);
        let share = shares.entry(owner).or_insert(newest);
        *share = share.powf(1.0 - NEWEST) * newest.powf(NEWEST);
    }
}

fn check(epoch: &[RankEpoch], expected: usize) -> Result<(), AdaptError> {
    if epoch.len() != expected {
        return Err(AdaptError::Ranks {
            found: epoch.len(),
            expected,
        });
    }
    for (rank, of_rank) in epoch.iter().enumerate() {
        let measured = [
            ("time of a step", Some(of_rank.step_s)),
            ("wait for batches", Some(of_rank.stall_s)),
        ];
        for (what, value) in measured {
            if let Some(value) = value
                && !(value.is_finite() && value >= 0.0)
            {
                return Err(AdaptError::NotMeasured { rank, what, value });
            }
        }
    }
    Ok(())
}

/// An epoch that has run, with what its steps took.
struct Executed<'a> {
    probed: &'a [Coefficients],
    epoch: &'a [RankEpoch],
}

impl Executed<'_> {
    /// Seconds that ranks wait for their own rows in training if fetches take `factor` times as long, summed.
    fn stall_s(&self, factor: f64) -> Result<f64, SimulationError> {
        let slower: Vec<Coefficients> = self
            .probed
            .iter()
            .map(|rank| rank.with_slower_fetches(factor))
            .collect();
        let ranks = self.epoch.iter().zip(&slower);
        let ranks: Vec<RankTraffic> = ranks
            .map(|(rank, coefficients)| RankTraffic {
                windows: &rank.windows,
                coefficients,
            })
            .collect();
        Ok(waits_in_step(&ranks)?.iter().map(|waits| waits.own_training_s).sum())
    }

    /// Of the factors that predict the wait that was measured the one nearest to 1. So without a wait it is the largest of at
    /// most 1 that predicts none. None where the factor makes no difference.
    ///
    /// The predicted wait changes steadily with the factor, so that a value between the waits of two factors has a factor
    /// between them.
    fn factor(&self, measured_s: f64) -> Result<Option<f64>, SimulationError> {
        let (least, most) = FACTORS;
        let (shortest_s, longest_s) = (self.stall_s(least)?, self.stall_s(most)?);
        let steps_s = self.epoch.iter().map(|rank| {
            let steps: u64 = rank.windows.iter().map(WindowTraffic::steps).sum();
            steps as f64 * rank.step_s
        });
        let rounding_s = ROUNDING * (measured_s + steps_s.sum::<f64>());
        if longest_s - shortest_s <= rounding_s {
            return Ok(None);
        }
        let as_probed_s = self.stall_s(1.0)?;
        if (as_probed_s - measured_s).abs() <= rounding_s {
            return Ok(Some(1.0));
        }
        // One end of the range misses what was measured on the same side as the probe's factor does, the other does not.
        let is_short = as_probed_s < measured_s;
        let misses = |stall_s: f64| match is_short {
            true => stall_s < measured_s - rounding_s,
            false => stall_s > measured_s + rounding_s,
        };
        let (end, at_end_s) = if is_short {
            (most, longest_s)
        } else {
            (least, shortest_s)
        };
        if misses(at_end_s) {
            return Ok(Some(end));
        }
        let (mut near, mut far) = (0.0, end.log2());
        for _ in 0..HALVINGS {
            let middle = (near + far) / 2.0;
            if misses(self.stall_s(middle.exp2())?) {
                near = middle;
            } else {
                far = middle;
            }
        }
        Ok(Some(far.exp2()))
    }
}

/// The candidate for the next epoch, given what an epoch of each is predicted to cost
/// ([`Prediction::epoch_j`](super::Prediction::epoch_j)): the one that runs, unless another saves more than the share `margin` of
/// its joules.
///
/// So it never goes to and fro between two candidates that are within the margin of each other. A candidate whose cost is
/// not finite is left out; of equals the first is taken. Without a cost of the one that runs there is nothing to save
/// from, and the cheapest is taken.
pub fn next_candidate<C: Clone + PartialEq>(current: &C, predicted: &[(C, f64)], margin: f64) -> C {
    let known = || predicted.iter().filter(|(_, joules)| joules.is_finite());
    let Some((cheapest, least_j)) = known().min_by(|(_, one), (_, other)| one.total_cmp(other)) else {
        return current.clone();
    };
    match known().find(|(candidate, _)| candidate == current) {
        Some((_, current_j)) if current_j - least_j <= margin * current_j.abs() => current.clone(),
        _ => cheapest.clone(),
    }
}

#[cfg(test)]
mod tests;
