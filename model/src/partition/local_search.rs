//! Improves a partition node by node, in scans over the graph: first into balance, then to fewer cut links.
//!
//! Nodes are looked at one after the other in the order of their ids, each with the parts that its neighbours have by
//! then (label propagation, Raghavan et al. 2007, under hard limits), so a scan reads the graph from front to back. Balance
//! under three limits leaves many moves without room; such a node waits for another that wants to go the opposite way,
//! and the two are swapped.

use std::collections::{BTreeMap, VecDeque};

use super::placement::{LinkCounts, Placement, subtract, sum_of};
use crate::book::{NodeId, PartId};

/// Nodes that wait for a swap, per ordered pair of parts. The one that has waited longest makes room.
const WAITING: usize = 16;
/// The most scans that free cut links.
const CUT_SCANS: u32 = 12;
/// Scans end when one of them frees less than this share of the links.
const LEAST_GAIN: f64 = 1e-4;
/// The most scans that bring parts within their limits.
const BALANCE_SCANS: u32 = 24;
/// What the second balancing scan may pay, in newly cut links per in-edge (or what weighs as much) above the limits. The
/// first pays nothing; each further one may pay twice as much.
const FIRST_PRICE: f64 = 0.02;

/// Brings parts within their limits, cheapest moves first, as far as moves of single nodes can.
///
/// No scan raises [`Placement::excess`].
pub(super) fn balance(placement: &mut Placement<'_>) {
    let mut counts = LinkCounts::new(placement.part_count());
    let mut price = 0.0;
    for _ in 0..BALANCE_SCANS {
        if placement.excess() == 0.0 {
            return;
        }
        for node in 0..placement.links.nodes() {
            if let Some((cost, to)) = cheapest_relief(placement, &mut counts, node)
                && cost <= price
            {
                placement.put(node, to);
            }
        }
        price = if price == 0.0 { FIRST_PRICE } else { 2.0 * price };
    }
}

/// The move of `node` that lowers the excess for the fewest newly cut links: their number per excess, and the part.
fn cheapest_relief(placement: &Placement<'_>, counts: &mut LinkCounts, node: NodeId) -> Option<(f64, PartId)> {
    /// Less is what rounding leaves of nothing.
    const LEAST_RELIEF: f64 = 1e-12;

    let from = placement.part(node);
    let sum = placement.sum(from);
    if placement.allows(sum) {
        return None;
    }
    let weight = placement.weights.of(node);
    let mut rest = sum;
    subtract(&mut rest, weight);
    let relief = placement.excess_of(sum) - placement.excess_of(rest);
    if relief < LEAST_RELIEF {
        return None;
    }
    counts.count(placement, node);
    let edge_limit = placement.limits()[2].max(1) as f64;
    let mut best: Option<(f64, PartId)> = None;
    for to in (0..placement.part_count()).filter(|to| *to != from) {
        let other = placement.sum(to);
        let relief = relief - (placement.excess_of(sum_of(other, weight)) - placement.excess_of(other));
        if relief < LEAST_RELIEF {
            continue;
        }
        let newly_cut = counts.links_to(from) as f64 - counts.links_to(to) as f64;
        let cost = newly_cut / (relief * edge_limit);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, to));
        }
    }
    best
}

/// Moves and swaps nodes until a scan brings next to nothing, 12 scans at the most.
///
/// The number of cut links never rises, and no part that is within its limits leaves them.
pub(super) fn reduce_cut(placement: &mut Placement<'_>) {
    let enough = (placement.links.count() as f64 * LEAST_GAIN) as u64;
    for _ in 0..CUT_SCANS {
        let mut scan = Scan {
            counts: LinkCounts::new(placement.part_count()),
            waiting: BTreeMap::new(),
            freed: 0,
            placement,
        };
        for node in 0..scan.placement.links.nodes() {
            scan.improve(node);
        }
        if scan.freed <= enough {
            return;
        }
    }
}

struct Scan<'a, 'b> {
    placement: &'a mut Placement<'b>,
    counts: LinkCounts,
    /// By (where they are, where they want to go).
    waiting: BTreeMap<(PartId, PartId), VecDeque<NodeId>>,
    /// Links that are no longer cut, counted once.
    freed: u64,
}

impl Scan<'_, '_> {
    /// Moves `node` to the part where it has most neighbours; if that is full swaps it, or else moves it to the best part
    /// with room, or else lets it wait.
    fn improve(&mut self, node: NodeId) {
        let from = self.placement.part(node);
        self.counts.count(self.placement, node);
        let stay = self.counts.links_to(from);
        let Some((most, wished)) = self.best_part(from, |_| true) else {
            return;
        };
        if most < stay {
            return;
        }
        let weight = self.placement.weights.of(node);
        let placement = &*self.placement;
        let has_room = |to| placement.allows(sum_of(placement.sum(to), weight));
        if most > stay && has_room(wished) {
            self.freed += most - stay;
            self.placement.put(node, wished);
            return;
        }
        let open = self.best_part(from, has_room).filter(|(links, _)| *links > stay);
        if self.swap(node, wished, most - stay) {
            return;
        }
        if let Some((links, to)) = open {
            self.freed += links - stay;
            self.placement.put(node, to);
            return;
        }
        let queue = self.waiting.entry((from, wished)).or_default();
        if queue.len() == WAITING {
            queue.pop_front();
        }
        queue.push_back(node);
    }

    /// The part other than `from` with most of the counted links among those that `admits`; the first of equals.
    fn best_part(&self, from: PartId, admits: impl Fn(PartId) -> bool) -> Option<(u64, PartId)> {
        let parts = self.counts.linked().iter().copied();
        parts
            .filter(|part| *part != from && admits(*part))
            .map(|part| (self.counts.links_to(part), part))
            .max_by_key(|(links, part)| (*links, std::cmp::Reverse(*part)))
    }

    /// Exchanges `node`, which would free `gain` links in `to`, for one that waits there, if that frees any link and both
    /// parts stay within their limits.
    fn swap(&mut self, node: NodeId, to: PartId, gain: u64) -> bool {
        let from = self.placement.part(node);
        let Some(mut queue) = self.waiting.remove(&(to, from)) else {
            return false;
        };
        // Some have moved since they began to wait.
        queue.retain(|other| self.placement.part(*other) == to);
        self.placement.put(node, to);
        let mut partner = None;
        for (place, other) in queue.iter().enumerate() {
            let back = self.gain(*other, from);
            self.placement.put(*other, from);
            let fits = [from, to]
                .iter()
                .all(|part| self.placement.allows(self.placement.sum(*part)));
            let freed = gain as i64 + back;
            if fits && freed > 0 {
                self.freed += freed as u64;
                partner = Some(place);
                break;
            }
            self.placement.put(*other, to);
        }
        match partner {
            Some(place) => {
                queue.remove(place);
            }
            None => self.placement.put(node, from),
        }
        self.waiting.insert((to, from), queue);
        partner.is_some()
    }

    /// Links that `node` would free in `to`.
    fn gain(&mut self, node: NodeId, to: PartId) -> i64 {
        self.counts.count(self.placement, node);
        self.counts.links_to(to) as i64 - self.counts.links_to(self.placement.part(node)) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Links;
    use super::super::placement::NodeWeights;
    use super::super::tests::RandomGraph;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn balancing_never_worsens_balance_and_scans_never_cut_more(
            graph in RandomGraph::any(60),
            assignment in prop::collection::vec(0u16..4, 60),
        ) {
            let links = graph.links();
            let weights = NodeWeights::new(links.incoming(), &graph.train);
            let assignment = assignment[..graph.nodes() as usize].to_vec();
            let mut placement = Placement::of(&links, &weights, 4, assignment);
            let excess = placement.excess();
            balance(&mut placement);
            prop_assert!(placement.excess() <= excess);

            let (before, excess) = (placement.clone(), placement.excess());
            reduce_cut(&mut placement);
            prop_assert!(placement.cut_links() <= before.cut_links());
            prop_assert!(placement.excess() <= excess);
            for part in 0..4 {
                prop_assert!(placement.allows(placement.sum(part)) || !before.allows(before.sum(part)));
            }
            // The sums that moves kept up to date are those of the nodes.
            let fresh = Placement::of(&links, &weights, 4, placement.clone().into_assignment());
            for part in 0..4 {
                prop_assert_eq!(placement.sum(part), fresh.sum(part));
            }
        }
    }

    /// Two cliques of ten in which one node of each sits in the wrong part: both parts are full, so only a swap helps.
    #[test]
    fn nodes_that_have_no_room_are_swapped() {
        let rows = (0..20u32).map(|node| {
            let first = node / 10 * 10;
            (first..first + 10).filter(|other| *other != node).collect()
        });
        let graph = RandomGraph::of(rows.collect(), Vec::new());
        let links: Links<'_> = graph.links();
        let weights = NodeWeights::new(links.incoming(), &[]);
        let mut assignment: Vec<PartId> = (0..20).map(|node| node / 10).collect();
        assignment.swap(3, 14);
        let mut placement = Placement::of(&links, &weights, 2, assignment);
        assert_eq!(placement.cut_links(), 2 * 2 * 9);
        reduce_cut(&mut placement);
        assert_eq!(placement.cut_links(), 0);
        assert_eq!(placement.excess(), 0.0);
    }
}
