//! Which part every node is in, what each part carries, and what it may carry.

use super::{BALANCE_LIMIT, Links};
use crate::book::{NodeId, PartId};
use crate::sampling::Topology;

/// The loads that a partition balances: nodes, train seeds and in-edges, in this order.
pub(super) type Load = [u64; 3];

/// The part of a node that has none yet. Part numbers are below it.
pub(super) const NOWHERE: PartId = PartId::MAX;

/// What every node weighs, in one bit per node beside the graph itself.
#[derive(Clone, Debug)]
pub(super) struct NodeWeights<'a> {
    graph: Topology<'a>,
    /// One bit per node, set for those of the train split.
    seeds: Vec<u64>,
    total: Load,
    largest: Load,
}

impl<'a> NodeWeights<'a> {
    pub fn new(graph: Topology<'a>, train: &[NodeId]) -> Self {
        let mut seeds = vec![0u64; graph.rows().div_ceil(64) as usize];
        for node in train {
            seeds[*node as usize / 64] |= 1 << (node % 64);
        }
        let most_edges = graph.offsets.windows(2).map(|pair| pair[1] - pair[0]).max();
        Self {
            graph,
            seeds,
            total: [
                u64::from(graph.rows()),
                train.len() as u64,
                graph.neighbors.len() as u64,
            ],
            largest: [1, 1, most_edges.unwrap_or(0)],
        }
    }

    #[inline]
    pub fn of(&self, node: NodeId) -> Load {
        let place = node as usize;
        let seed = (self.seeds[place / 64] >> (place % 64)) & 1;
        [1, seed, self.graph.offsets[place + 1] - self.graph.offsets[place]]
    }

    /// The sum over all nodes.
    pub fn total(&self) -> Load {
        self.total
    }

    /// What a part may carry: [`BALANCE_LIMIT`] times the mean, or as much more as whole nodes need at the least.
    pub fn limits(&self, parts: PartId) -> Load {
        let parts = u64::from(parts.max(1));
        std::array::from_fn(|kind| {
            let total = self.total[kind];
            let allowed = (total as f64 / parts as f64 * BALANCE_LIMIT) as u64;
            allowed.max(total.div_ceil(parts)).max(self.largest[kind].min(total))
        })
    }
}

/// A partition in the making. Takes 2 bytes per node.
#[derive(Clone, Debug)]
pub(super) struct Placement<'a> {
    pub links: &'a Links<'a>,
    pub weights: &'a NodeWeights<'a>,
    parts: Vec<PartId>,
    sums: Vec<Load>,
    limits: Load,
}

impl<'a> Placement<'a> {
    /// Every node is [`NOWHERE`].
    pub fn empty(links: &'a Links<'a>, weights: &'a NodeWeights<'a>, parts: PartId) -> Self {
        Self {
            links,
            weights,
            parts: vec![NOWHERE; links.nodes() as usize],
            sums: vec![[0; 3]; usize::from(parts)],
            limits: weights.limits(parts),
        }
    }

    /// Every node is where `assignment` says, in one of the parts below `parts`.
    pub fn of(links: &'a Links<'a>, weights: &'a NodeWeights<'a>, parts: PartId, assignment: Vec<PartId>) -> Self {
        let mut placement = Self {
            parts: assignment,
            ..Self::empty(links, weights, parts)
        };
        for node in 0..links.nodes() {
            let part = usize::from(placement.part(node));
            add(&mut placement.sums[part], weights.of(node));
        }
        placement
    }

    pub fn into_assignment(self) -> Vec<PartId> {
        self.parts
    }

    /// The part of a node, or [`NOWHERE`].
    #[inline]
    pub fn part(&self, node: NodeId) -> PartId {
        self.parts[node as usize]
    }

    pub fn part_count(&self) -> PartId {
        self.sums.len() as PartId
    }

    /// What a part carries.
    #[inline]
    pub fn sum(&self, part: PartId) -> Load {
        self.sums[usize::from(part)]
    }

    /// Takes `node` out of its part.
    #[inline]
    pub fn take(&mut self, node: NodeId) {
        let old = std::mem::replace(&mut self.parts[node as usize], NOWHERE);
        if old != NOWHERE {
            subtract(&mut self.sums[usize::from(old)], self.weights.of(node));
        }
    }

    /// Moves `node` from where it is to `part`.
    #[inline]
    pub fn put(&mut self, node: NodeId, part: PartId) {
        self.take(node);
        self.parts[node as usize] = part;
        add(&mut self.sums[usize::from(part)], self.weights.of(node));
    }

    /// What a part may carry.
    #[inline]
    pub fn limits(&self) -> Load {
        self.limits
    }

    /// Whether a part that carries `sum` is within the limits.
    #[inline]
    pub fn allows(&self, sum: Load) -> bool {
        (0..3).all(|kind| sum[kind] <= self.limits[kind])
    }

    /// How far a part that carries `sum` lies above its limits, as shares of them, added up.
    pub fn excess_of(&self, sum: Load) -> f64 {
        (0..3)
            .map(|kind| sum[kind].saturating_sub(self.limits[kind]) as f64 / self.limits[kind].max(1) as f64)
            .sum()
    }

    /// How far all parts together lie above their limits.
    pub fn excess(&self) -> f64 {
        self.sums.iter().map(|sum| self.excess_of(*sum)).sum()
    }

    /// Links between nodes of two parts, each counted from every end from which it is known.
    pub fn cut_links(&self) -> u64 {
        let cut_of = |node| {
            let part = self.part(node);
            self.links.of(node).filter(|other| self.part(*other) != part).count() as u64
        };
        (0..self.links.nodes()).map(cut_of).sum()
    }
}

#[inline]
pub(super) fn sum_of(mut one: Load, other: Load) -> Load {
    add(&mut one, other);
    one
}

#[inline]
pub(super) fn add(sum: &mut Load, weight: Load) {
    for (sum, weight) in sum.iter_mut().zip(weight) {
        *sum += weight;
    }
}

#[inline]
pub(super) fn subtract(sum: &mut Load, weight: Load) {
    for (sum, weight) in sum.iter_mut().zip(weight) {
        *sum -= weight;
    }
}

/// How many links one node has into each part.
#[derive(Clone, Debug)]
pub(super) struct LinkCounts {
    counts: Vec<u64>,
    /// The parts whose count is not 0.
    linked: Vec<PartId>,
}

impl LinkCounts {
    pub fn new(parts: PartId) -> Self {
        Self {
            counts: vec![0; usize::from(parts)],
            linked: Vec::with_capacity(usize::from(parts)),
        }
    }

    /// Counts the links of `node`. Self-loops and neighbours that are nowhere are left out.
    #[inline]
    pub fn count(&mut self, placement: &Placement<'_>, node: NodeId) {
        for part in self.linked.drain(..) {
            self.counts[usize::from(part)] = 0;
        }
        for neighbor in placement.links.of(node) {
            let part = placement.part(neighbor);
            if part == NOWHERE || neighbor == node {
                continue;
            }
            let count = &mut self.counts[usize::from(part)];
            if *count == 0 {
                self.linked.push(part);
            }
            *count += 1;
        }
    }

    #[inline]
    pub fn links_to(&self, part: PartId) -> u64 {
        self.counts[usize::from(part)]
    }

    /// The parts with at least one link, in no particular order.
    #[inline]
    pub fn linked(&self) -> &[PartId] {
        &self.linked
    }
}
