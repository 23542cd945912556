//! The graph of the clusters, as METIS wants it.

use super::adjacency::{Adjacency, check_metis_size};
use super::clusters::Clusters;
use super::placement::{Load, NodeWeights, add};
use super::{Links, NodeLoads, PartitionError};

/// The largest sum that METIS, built with 32-bit numbers, can hold.
const LARGEST_SUM: u64 = i32::MAX as u64;

/// Makes one node of every cluster: it weighs what its members weigh together, and the edge between two clusters weighs as
/// much as there are links between their members. Links inside a cluster vanish.
///
/// Weights are exact unless their sum is more than METIS can count; then all of one kind are halved until it is not.
///
/// # Errors
/// [`PartitionError::TooLargeForMetis`] when the contracted graph does not fit 32 bits.
pub(super) fn contract(
    links: &Links<'_>,
    weights: &NodeWeights<'_>,
    clusters: &Clusters,
) -> Result<(Adjacency, NodeLoads), PartitionError> {
    let count = clusters.count as usize;
    check_metis_size(u64::from(clusters.count), 0)?;
    let (starts, members) = clusters.members();
    let members_of = |cluster: usize| &members[starts[cluster] as usize..starts[cluster + 1] as usize];

    let mut sums: Vec<Load> = vec![[0; 3]; count];
    for (node, cluster) in (0..).zip(&clusters.of) {
        add(&mut sums[*cluster as usize], weights.of(node));
    }
    let total = weights.total();
    let column = |kind: usize| {
        let halvings = halvings(total[kind]);
        sums.iter().map(|sum| (sum[kind] >> halvings) as i32).collect()
    };

    let halvings = halvings(links.count());
    let mut offsets = Vec::with_capacity(count + 1);
    offsets.push(0);
    let mut neighbors = Vec::new();
    let mut edge_weights = Vec::new();
    let mut counts = vec![0u64; count];
    let mut linked: Vec<u32> = Vec::new();
    for cluster in 0..count {
        for node in members_of(cluster) {
            for neighbor in links.of(*node) {
                let other = clusters.of[neighbor as usize];
                if other as usize == cluster {
                    continue;
                }
                let links = &mut counts[other as usize];
                if *links == 0 {
                    linked.push(other);
                }
                *links += 1;
            }
        }
        linked.sort_unstable();
        check_metis_size(u64::from(clusters.count), (neighbors.len() + linked.len()) as u64)?;
        for other in linked.drain(..) {
            let links = std::mem::take(&mut counts[other as usize]);
            neighbors.push(other as i32);
            // METIS refuses edges that weigh nothing.
            edge_weights.push((links >> halvings).max(1) as i32);
        }
        offsets.push(neighbors.len() as i32);
    }
    let adjacency = Adjacency {
        offsets,
        neighbors,
        weights: Some(edge_weights),
    };
    let loads = NodeLoads {
        nodes: column(0),
        seeds: column(1),
        edges: column(2),
    };
    Ok((adjacency, loads))
}

/// How often a sum must be halved to lie well within 32 bits.
fn halvings(sum: u64) -> u32 {
    let mut halvings = 0;
    while sum >> halvings > LARGEST_SUM / 2 {
        halvings += 1;
    }
    halvings
}

#[cfg(test)]
mod tests {
    use super::super::placement::Placement;
    use super::super::tests::RandomGraph;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn loads_and_cuts_of_the_small_graph_are_those_of_the_large(
            graph in RandomGraph::any(40),
            names in prop::collection::vec(0u32..10, 40),
            parts_of_names in prop::collection::vec(0u16..3, 10),
        ) {
            let links = graph.links();
            let weights = NodeWeights::new(links.incoming(), &graph.train);
            let nodes = graph.nodes() as usize;
            // Names of clusters must be below the number of nodes.
            let names: Vec<u32> = names[..nodes].iter().map(|name| name % nodes as u32).collect();
            let clusters = Clusters::numbered(names);
            let (small, loads) = contract(&links, &weights, &clusters).unwrap();
            prop_assert_eq!(small.nodes(), clusters.count as usize);
            for (kind, column) in [&loads.nodes, &loads.seeds, &loads.edges].into_iter().enumerate() {
                prop_assert_eq!(column.iter().map(|weight| *weight as u64).sum::<u64>(), weights.total()[kind]);
            }
            // Any parts of the clusters cut as much in the small graph as in the large one.
            let of_clusters: Vec<u16> = (0..small.nodes()).map(|cluster| parts_of_names[cluster]).collect();
            let edge_weights = small.weights.as_ref().unwrap();
            let mut cut = 0;
            for cluster in 0..small.nodes() {
                let entries = small.offsets[cluster] as usize..small.offsets[cluster + 1] as usize;
                prop_assert!(small.neighbors[entries.clone()].is_sorted_by(|one, other| one < other));
                for entry in entries {
                    let other = small.neighbors[entry] as usize;
                    prop_assert_ne!(other, cluster);
                    if of_clusters[other] != of_clusters[cluster] {
                        cut += edge_weights[entry] as u64;
                    }
                }
            }
            let placement = Placement::of(&links, &weights, 3, clusters.expand(&of_clusters));
            prop_assert_eq!(cut, placement.cut_links());
        }
    }

    #[test]
    fn sums_beyond_32_bits_are_halved_until_they_fit() {
        assert_eq!(halvings(LARGEST_SUM / 2), 0);
        assert_eq!(halvings(LARGEST_SUM), 1);
        for sum in [1 << 31, 3_200_000_000, u64::MAX] {
            assert!(sum >> halvings(sum) <= LARGEST_SUM / 2);
            assert!(sum >> (halvings(sum) - 1) > LARGEST_SUM / 2);
        }
    }
}
