//! Partitioning by clusters: label propagation makes the graph small, METIS cuts what is left, scans improve the result.
//!
//! METIS takes 28 to 51 bytes per directed edge and counts edges in 32 bits. The graph of the clusters has a fraction of the
//! edges; METIS cuts it under the same three limits, with clusters and edges weighted by what they stand for.

use super::clusters::Clusters;
use super::contract::contract;
use super::metis::metis_assignment;
use super::placement::{NodeWeights, Placement};
use super::trials::Trials;
use super::{Links, PartitionError};
use crate::book::{NodeId, PartId};
use crate::rng::mix_words;

/// The most nodes of a cluster, as a fraction of all. Which is best differs from graph to graph, so small graphs try all.
const CLUSTERS: [u32; 3] = [4000, 1000, 400];
/// A cluster may have as many nodes as this whatever the size of the graph.
const FEW_NODES: u64 = 16;
/// No cluster carries more than this share of what a part may carry, so that METIS can balance clusters.
const MOST_OF_A_PART: f64 = 0.005;
/// Links that may be read to try several sizes.
const TRIAL_LINKS: u64 = 5_000_000;

/// Cuts a graph into `parts`, so that nodes, train seeds and in-edges are each within
/// [`BALANCE_LIMIT`](super::BALANCE_LIMIT) of their mean, or as close as whole nodes allow.
///
/// The graph stays where it is. Memory is 46 bytes per node, the contracted graph, and METIS's working space for that. The
/// graph is read up to 8 times for clusters, once to contract it, and up to 36 times to balance (which is rare) and to free
/// cut links. Graphs of few links are cut with clusters of several sizes, and the best result taken: the best balanced,
/// and among those the one with the fewest cut links.
///
/// The result depends on the arguments alone (and on the C library, see [`metis_assignment`]). METIS ends the process when
/// it fails, so programs should call this in a child process.
///
/// # Errors
/// [`PartitionError::TooLargeForMetis`] when even the graph of the clusters is; [`PartitionError::Metis`] when METIS says
/// that it failed; [`PartitionError::NoParts`].
pub fn cluster_assignment(
    links: &Links<'_>,
    train: &[NodeId],
    parts: PartId,
    seed: u64,
) -> Result<Vec<PartId>, PartitionError> {
    if parts == 0 {
        return Err(PartitionError::NoParts);
    }
    let weights = NodeWeights::new(links.incoming(), train);
    let mut trials = Trials::new(links, &weights, parts);
    let most = weights
        .limits(parts)
        .map(|limit| ((limit as f64 * MOST_OF_A_PART) as u64).max(1));
    let sizes = (TRIAL_LINKS / links.count().max(1)).clamp(1, CLUSTERS.len() as u64);
    for (number, fraction) in (0..sizes).zip(CLUSTERS) {
        let few = u64::from(links.nodes() / fraction).max(FEW_NODES);
        let clusters = Clusters::find(links, &weights, [most[0].min(few), most[1], most[2]]);
        let (adjacency, loads) = contract(links, &weights, &clusters)?;
        let of_clusters = metis_assignment(&adjacency, &loads, parts, mix_words(&[seed, number]))?;
        drop((adjacency, loads));
        trials.add(Placement::of(links, &weights, parts, clusters.expand(&of_clusters)));
    }
    Ok(trials.finish(train))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::RandomGraph;
    use super::super::{BALANCE_LIMIT, CutStatistics, Relabelling};
    use super::*;
    use crate::synth::SynthSpec;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_node_gets_a_part_the_same_one_twice(graph in RandomGraph::any(80), parts in 1u16..9, seed: u64) {
            let links = graph.links();
            let assignment = cluster_assignment(&links, &graph.train, parts, seed).unwrap();
            prop_assert_eq!(assignment.len(), graph.nodes() as usize);
            prop_assert!(assignment.iter().all(|part| *part < parts));
            prop_assert_eq!(assignment, cluster_assignment(&links, &graph.train, parts, seed).unwrap());
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
            let assignment = cluster_assignment(&links, &graph.train, parts, seed).unwrap();
            let relabelling = Relabelling::new(&assignment, parts).unwrap();
            let found = CutStatistics::measure(graph.topology(), &graph.train, &relabelling);
            for balance in [found.node_balance(), found.seed_balance(), found.edge_balance()] {
                assert!(balance <= BALANCE_LIMIT, "{balance} in {parts} parts");
            }
            let by_chance = 1.0 - 1.0 / f64::from(parts);
            assert!(
                found.edge_cut() < 0.7 * by_chance,
                "{} in {parts} parts",
                found.edge_cut()
            );
        }
    }

    #[test]
    fn no_parts_are_refused() {
        let graph = RandomGraph::of(vec![Vec::new()], Vec::new());
        assert!(matches!(
            cluster_assignment(&graph.links(), &[], 0, 1),
            Err(PartitionError::NoParts)
        ));
    }
}
