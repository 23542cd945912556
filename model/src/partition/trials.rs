//! Several ways to cut one graph, of which the best is taken.

use super::balanced::balanced_assignment;
use super::local_search::{balance, reduce_cut};
use super::placement::{NodeWeights, Placement};
use super::{Links, NodeLoads};
use crate::book::{NodeId, PartId};

/// Keeps the best of the placements that it is given: the best balanced, and among those the one with the fewest cut links.
pub(super) struct Trials<'a> {
    links: &'a Links<'a>,
    weights: &'a NodeWeights<'a>,
    parts: PartId,
    best: Option<Trial<'a>>,
}

struct Trial<'a> {
    excess: f64,
    cut: u64,
    placement: Placement<'a>,
}

impl<'a> Trials<'a> {
    pub fn new(links: &'a Links<'a>, weights: &'a NodeWeights<'a>, parts: PartId) -> Self {
        Self {
            links,
            weights,
            parts,
            best: None,
        }
    }

    /// Balances and improves a placement, and keeps it if it is better than those before.
    pub fn add(&mut self, mut placement: Placement<'a>) {
        balance(&mut placement);
        reduce_cut(&mut placement);
        let trial = Trial {
            excess: placement.excess(),
            cut: placement.cut_links(),
            placement,
        };
        let better = |best: &Trial<'_>| (trial.excess, trial.cut) < (best.excess, best.cut);
        if self.best.as_ref().is_none_or(better) {
            self.best = Some(trial);
        }
    }

    /// The best assignment. Where none is in balance, one that was made for balance alone is tried too.
    pub fn finish(mut self, train: &[NodeId]) -> Vec<PartId> {
        if self.best.as_ref().is_none_or(|best| best.excess > 0.0) {
            let loads = NodeLoads::new(self.links.incoming(), train);
            let even = balanced_assignment(&loads, self.parts);
            self.add(Placement::of(self.links, self.weights, self.parts, even));
        }
        self.best
            .map(|best| best.placement.into_assignment())
            .unwrap_or_default()
    }
}
