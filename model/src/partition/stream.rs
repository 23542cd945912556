//! Partitioning by streams: the graph is read a few times from front to back, and only the parts of its nodes are kept.
//!
//! A node goes to the part that has most of its neighbours, less a price for what that part carries already: the marginal
//! cost of Fennel (Tsourakakis et al., WSDM 2014) for three loads at a time instead of one. The stream is repeated
//! (restreaming, Nishimura and Ugander, KDD 2013), each time at a higher price, so that communities form before they
//! are evened out. Scans that free cut links follow (`local_search`).

use super::placement::{LinkCounts, Load, NodeWeights, Placement, sum_of};
use super::trials::Trials;
use super::{Links, PartitionError};
use crate::book::{NodeId, PartId};
use crate::rng::mix_words;

/// How often the graph is streamed.
const PASSES: u32 = 10;
/// The price of the last pass: what it costs to add a load to a part of mean size, in links per link's share of the load.
const LAST_PRICE: f64 = 3.0;
/// The price of train seeds, relative to that of nodes.
const SEED_PRICE: f64 = 0.3;
/// Links that may be read to try several settings.
const TRIAL_LINKS: u64 = 100_000_000;
/// (Price of the first pass, price of edges relative to that of nodes). Which is best differs from graph to graph.
const SETTINGS: [(f64, f64); 8] = [
    (0.5, 1.0),
    (1.0, 1.0),
    (0.1, 1.0),
    (0.5, 0.5),
    (0.2, 1.0),
    (0.1, 0.5),
    (0.2, 0.5),
    (1.0, 0.5),
];

/// Cuts a graph into `parts`, so that nodes, train seeds and in-edges are each within
/// [`BALANCE_LIMIT`](super::BALANCE_LIMIT) of their mean, or as close as whole nodes allow.
///
/// The graph stays where it is: memory is 4 bytes per node, one bit for the train split and the loads of the parts, and a
/// directed graph's [`Links`]. It is read from front to back, 10 times to place nodes and up to 12 times to free cut links; in
/// between, parts that are above a limit are balanced in up to 24 scans, which is rare. Graphs of few links are cut with up
/// to eight settings, and the best result taken: the best balanced, and among those the one with the fewest cut links.
///
/// One thread does it all, so the result depends on the arguments alone. `seed` says where the stream begins.
///
/// # Errors
/// [`PartitionError::NoParts`], and what [`PartitionError::Book`] says of too many.
pub fn stream_assignment(
    links: &Links<'_>,
    train: &[NodeId],
    parts: PartId,
    seed: u64,
) -> Result<Vec<PartId>, PartitionError> {
    if parts == 0 {
        return Err(PartitionError::NoParts);
    }
    let weights = NodeWeights::new(links.incoming(), train);
    let trials = (TRIAL_LINKS / links.count().max(1)).clamp(1, SETTINGS.len() as u64);
    let mut best = Trials::new(links, &weights, parts);
    for (number, (first_price, edge_price)) in (0..trials).zip(SETTINGS) {
        let start = (mix_words(&[seed, number]) % u64::from(links.nodes().max(1))) as NodeId;
        let mut stream = Stream::new(Placement::empty(links, &weights, parts), start);
        for pass in 0..PASSES {
            let progress = f64::from(pass) / f64::from(PASSES - 1);
            stream.pass(first_price * (LAST_PRICE / first_price).powf(progress), edge_price);
        }
        best.add(stream.placement);
    }
    Ok(best.finish(train))
}

struct Stream<'a> {
    placement: Placement<'a>,
    counts: LinkCounts,
    /// The node that comes first; the last node is followed by node 0.
    start: NodeId,
    /// Links per unit of each load: a part of mean size carries one link's worth of each load per link.
    rates: [f64; 3],
    /// What the mean part carries.
    means: [f64; 3],
}

impl<'a> Stream<'a> {
    fn new(placement: Placement<'a>, start: NodeId) -> Self {
        let total = placement.weights.total().map(|total| total.max(1) as f64);
        let links = placement.links.count() as f64;
        Self {
            counts: LinkCounts::new(placement.part_count()),
            start,
            rates: total.map(|total| links / total),
            means: total.map(|total| total / f64::from(placement.part_count())),
            placement,
        }
    }

    /// Places every node anew.
    fn pass(&mut self, price: f64, edge_price: f64) {
        let shares = [1.0, SEED_PRICE, edge_price];
        let costs = std::array::from_fn(|kind| price * shares[kind] * self.rates[kind] / self.means[kind]);
        let nodes = self.placement.links.nodes();
        for node in (self.start..nodes).chain(0..self.start) {
            self.counts.count(&self.placement, node);
            self.placement.take(node);
            let part = self.choose(node, costs);
            self.placement.put(node, part);
        }
    }

    /// The part with room that is worth most to `node`; where none has room, the one that is exceeded least.
    ///
    /// `costs` are in links, per unit of a node's load and unit of the same load of the part.
    fn choose(&self, node: NodeId, costs: [f64; 3]) -> PartId {
        let weight = self.placement.weights.of(node);
        let costs: [f64; 3] = std::array::from_fn(|kind| costs[kind] * weight[kind] as f64);
        let mut best = (f64::NEG_INFINITY, None);
        for part in 0..self.placement.part_count() {
            let sum = self.placement.sum(part);
            let price: f64 = (0..3).map(|kind| costs[kind] * sum[kind] as f64).sum();
            let worth = self.counts.links_to(part) as f64 - price;
            if worth > best.0 && self.placement.allows(sum_of(sum, weight)) {
                best = (worth, Some(part));
            }
        }
        best.1.unwrap_or_else(|| self.least_exceeded(weight))
    }

    fn least_exceeded(&self, weight: Load) -> PartId {
        let excess = |part: &PartId| self.placement.excess_of(sum_of(self.placement.sum(*part), weight));
        let parts = 0..self.placement.part_count();
        parts
            .min_by(|one, other| excess(one).total_cmp(&excess(other)))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::RandomGraph;
    use super::super::{BALANCE_LIMIT, CutStatistics, Relabelling};
    use super::*;
    use crate::synth::SynthSpec;

    fn statistics(links: &Links<'_>, train: &[NodeId], assignment: &[PartId], parts: PartId) -> CutStatistics {
        let relabelling = Relabelling::new(assignment, parts).unwrap();
        CutStatistics::measure(links.incoming(), train, &relabelling)
    }

    proptest! {
        #[test]
        fn every_node_gets_a_part_the_same_one_twice(graph in RandomGraph::any(80), parts in 1u16..9, seed: u64) {
            let links = graph.links();
            let assignment = stream_assignment(&links, &graph.train, parts, seed).unwrap();
            prop_assert_eq!(assignment.len(), graph.nodes() as usize);
            prop_assert!(assignment.iter().all(|part| *part < parts));
            prop_assert_eq!(&assignment, &stream_assignment(&links, &graph.train, parts, seed).unwrap());
            // No placement is worse balanced than one that was made for balance alone.
            let weights = NodeWeights::new(links.incoming(), &graph.train);
            let even = super::super::balanced::balanced_assignment(
                &super::super::NodeLoads::new(graph.topology(), &graph.train),
                parts,
            );
            let excess = |assignment| Placement::of(&links, &weights, parts, assignment).excess();
            prop_assert!(excess(assignment) <= excess(even));
        }
    }

    #[test]
    fn communities_are_found_in_balance() {
        for (seed, parts) in [(1, 2), (2, 4), (3, 8)] {
            let spec = SynthSpec {
                seed,
                ..SynthSpec::tiny(4_000)
            };
            let graph = spec.graph().unwrap();
            let links = Links::symmetric(graph.topology()).unwrap();
            let assignment = stream_assignment(&links, &graph.train, parts, seed).unwrap();
            let found = statistics(&links, &graph.train, &assignment, parts);
            for balance in [found.node_balance(), found.seed_balance(), found.edge_balance()] {
                assert!(balance <= BALANCE_LIMIT, "{balance} in {parts} parts");
            }
            let by_chance = 1.0 - 1.0 / f64::from(parts);
            assert!(
                found.edge_cut() < 0.75 * by_chance,
                "{} in {parts} parts",
                found.edge_cut()
            );
        }
    }

    /// A directed ring of two halves is cut where they meet, which only someone who knows both ends of an edge can see.
    #[test]
    fn directed_edges_count_from_both_ends() {
        let rows = (0..200u32).map(|node| vec![(node + 199) % 200]).collect();
        let graph = RandomGraph::of(rows, Vec::new());
        let scratch = tempfile::tempdir().unwrap();
        let links = Links::directed(graph.topology(), scratch.path()).unwrap();
        let assignment = stream_assignment(&links, &[], 2, 1).unwrap();
        let found = statistics(&links, &[], &assignment, 2);
        assert!(found.cut_edges() <= 10, "{} edges cut", found.cut_edges());
        assert!(found.node_balance() <= BALANCE_LIMIT);
    }

    #[test]
    fn a_node_that_is_heavier_than_a_part_is_placed_and_the_rest_balanced_around_it() {
        // Node 0 has all in-edges.
        let mut rows = vec![Vec::new(); 100];
        rows[0] = (1..100).collect();
        let graph = RandomGraph::of(rows, Vec::new());
        let scratch = tempfile::tempdir().unwrap();
        let links = Links::directed(graph.topology(), scratch.path()).unwrap();
        let assignment = stream_assignment(&links, &[], 4, 1).unwrap();
        let found = statistics(&links, &[], &assignment, 4);
        assert!(found.node_balance() <= BALANCE_LIMIT, "{}", found.node_balance());
        assert_eq!(found.edge_balance(), 4.0);
    }

    #[test]
    fn no_parts_are_refused_and_no_nodes_are_not() {
        let graph = RandomGraph::of(Vec::new(), Vec::new());
        assert!(matches!(
            stream_assignment(&graph.links(), &[], 0, 1),
            Err(PartitionError::NoParts)
        ));
        assert!(stream_assignment(&graph.links(), &[], 3, 1).unwrap().is_empty());
    }
}
