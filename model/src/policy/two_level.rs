//! `two-level`: which rows the device keeps and which the host, split exactly.
//!
//! Legion (Sun et al., ATC 2023) and XGNN put the rows that are needed most on the GPU and the next into host memory; PACER
//! (Mahmud, Shen and Iyer, DOI 10.1145/3697805) fills both levels from access frequencies so that the least is moved. Its
//! algorithm is not public; this one is ours, and exact for its costs.
//!
//! Let `S_r` and `S_l` be the prefix sums of the access frequencies of remote and of the rank's own rows, each sorted to
//! fall; `G` the rows of the device, `H` those of the host. With `k` remote rows on the device, `H` on the host and
//! `G - k` own rows on the device, what a batch saves is
//!
//! ```text
//! c_upload S_r(k) + c_network S_r(k + H) + c_upload S_l(G - k)
//! ```
//!
//! where `c_upload` is the cost of a row that travels from the host to the device and `c_network` that of one from its
//! owner to the host. Every prefix sum of a falling sequence is concave, so the sum is, and the best `k` is found by
//! bisection on its difference.
//!
//! # The charge
//!
//! The budget is the memory of both levels together: `H` is the budget less `G`. So at most `k + H` remote rows are held,
//! never more than the budget, and an own row on the device costs the slot that a remote row could have had.

use super::pinned::{fill_levels, plan_pinned};
use super::scored::{by_falling_score, checked_scores};
use super::{Fill, FillError, FillInput, PlanError, PlanInput, Planner, Policy, ScoreKind};
use crate::book::NodeId;
use crate::plan::DeviceRows;

/// Holds the rows of highest access frequency for the whole run, on the device or on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoLevel {
    /// Which frequencies: [`ScoreKind::Vip`], or corrected by counts.
    pub kind: ScoreKind,
    /// How many times as much a row from its owner costs as a row from the host to the device.
    pub network_cost: f64,
}

impl TwoLevel {
    /// PCIe 4.0 x16 moves 32 GB/s, Ethernet at 25 Gb/s 3 GB/s: about ten to one.
    pub const NETWORK_COST: f64 = 10.0;
}

impl Default for TwoLevel {
    fn default() -> Self {
        Self {
            kind: ScoreKind::Vip,
            network_cost: Self::NETWORK_COST,
        }
    }
}

impl Policy for TwoLevel {
    fn name(&self) -> &'static str {
        "two-level"
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    fn has_levels(&self) -> bool {
        true
    }

    /// Half of the budget unless something else is asked for.
    fn device_rows(&self, budget_rows: u32, asked: Option<u32>) -> u32 {
        asked.unwrap_or(budget_rows / 2).min(budget_rows)
    }

    fn score_kind(&self) -> Option<ScoreKind> {
        Some(self.kind)
    }

    fn fill_scored(&self, input: FillInput<'_>) -> Result<Fill, FillError> {
        let FillInput { book, rank, .. } = input;
        let scores = checked_scores(self.name(), &input)?;
        let own = book.range(rank);
        let mut remote: Vec<NodeId> = book.remote_ids(rank).collect();
        let mut local: Vec<NodeId> = own.clone().collect();
        remote.sort_unstable_by(by_falling_score(scores));
        local.sort_unstable_by(by_falling_score(scores));
        let frequencies = |nodes: &[NodeId]| nodes.iter().map(|node| scores[*node as usize]).collect::<Vec<f64>>();
        let device_rows = input.device_rows.min(input.budget_rows);
        let host_rows = input.budget_rows - device_rows;
        let on_device = remote_on_device(
            &frequencies(&remote),
            &frequencies(&local),
            Sizes { device_rows, host_rows },
            self.network_cost,
        );
        local.truncate((device_rows - on_device) as usize);
        // A row that nobody needs is no better on the device.
        local.retain(|node| scores[*node as usize] > 0.0);
        local.sort_unstable();
        remote.truncate((on_device + host_rows) as usize);
        let (device, host) = remote.split_at_mut(on_device as usize);
        device.sort_unstable();
        host.sort_unstable();
        let device_own = local.iter().map(|node| node - own.start).collect();
        let mut fill = fill_levels(book, device, host);
        fill.device = DeviceRows {
            slots: on_device,
            own: device_own,
        };
        Ok(fill)
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        plan_pinned(input)
    }
}

/// Rows that each level has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub device_rows: u32,
    pub host_rows: u32,
}

/// How many remote rows belong on the device, so that most is saved: the largest such number. `remote` and `local` are
/// access frequencies, not below zero, each list falling. A row from its owner costs `network_cost` rows from the host to the
/// device. The rest of the device is for own rows.
///
/// It takes a logarithm of `device_rows` steps.
pub fn remote_on_device(remote: &[f64], local: &[f64], sizes: Sizes, network_cost: f64) -> u32 {
    let Sizes { device_rows, host_rows } = sizes;
    let frequency = |rows: &[f64], place: u64| {
        let place = usize::try_from(place).ok();
        place.and_then(|place| rows.get(place)).copied().unwrap_or(0.0)
    };
    // What one more remote row on the device gains: it needs no upload, and its place on the host goes to the next one,
    // which then need not come over the network.
    let gained =
        |k: u32| frequency(remote, k.into()) + network_cost * frequency(remote, u64::from(k) + u64::from(host_rows));
    // What it displaces: the least frequent own row that is on the device.
    let lost = |k: u32| frequency(local, u64::from(device_rows - k - 1));
    // Gains fall and losses rise with `k`, in floating point too.
    let (mut low, mut high) = (0, device_rows.min(u32::try_from(remote.len()).unwrap_or(u32::MAX)));
    while low < high {
        let middle = low + (high - low) / 2;
        if gained(middle) >= lost(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests;
