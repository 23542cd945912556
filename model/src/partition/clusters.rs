//! Small groups of nodes that belong together, found by label propagation.

use super::Links;
use super::placement::{Load, NodeWeights, add, subtract, sum_of};
use crate::book::NodeId;

/// A number of a cluster.
pub(super) type ClusterId = u32;

/// How often every node reconsiders its cluster.
const ROUNDS: u32 = 8;

/// Every node in one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clusters {
    /// The cluster of every node. Numbers count from 0 in the order of the clusters' first nodes.
    pub of: Vec<ClusterId>,
    pub count: u32,
}

impl Clusters {
    /// Size-bounded label propagation (Meyerhenke, Sanders and Schulz, SEA 2014): every node starts alone and moves, 8 times
    /// and in the order of ids, to the cluster to which it has most links among those that then weigh at most `most`.
    ///
    /// Takes 40 bytes per node. A node that alone weighs more than `most` is a cluster that nobody joins.
    pub fn find(links: &Links<'_>, weights: &NodeWeights<'_>, most: Load) -> Self {
        let nodes = links.nodes();
        let mut of: Vec<ClusterId> = (0..nodes).collect();
        let mut sums: Vec<Load> = (0..nodes).map(|node| weights.of(node)).collect();
        // The links of the node that is looked at, by cluster, and the clusters that have any.
        let mut counts = vec![0u64; nodes as usize];
        let mut linked: Vec<ClusterId> = Vec::new();
        for _ in 0..ROUNDS {
            let mut moves = 0u32;
            for node in 0..nodes {
                for neighbor in links.of(node).filter(|neighbor| *neighbor != node) {
                    let cluster = of[neighbor as usize];
                    let count = &mut counts[cluster as usize];
                    if *count == 0 {
                        linked.push(cluster);
                    }
                    *count += 1;
                }
                let own = of[node as usize];
                let weight = weights.of(node);
                let has_room = |cluster: ClusterId| {
                    let sum = sum_of(sums[cluster as usize], weight);
                    (0..3).all(|kind| sum[kind] <= most[kind])
                };
                let mut best = (counts[own as usize], own);
                for cluster in linked.iter().copied() {
                    let count = counts[cluster as usize];
                    if count > best.0 && has_room(cluster) {
                        best = (count, cluster);
                    }
                }
                for cluster in linked.drain(..) {
                    counts[cluster as usize] = 0;
                }
                if best.1 != own {
                    subtract(&mut sums[own as usize], weight);
                    add(&mut sums[best.1 as usize], weight);
                    of[node as usize] = best.1;
                    moves += 1;
                }
            }
            if moves == 0 {
                break;
            }
        }
        Self::numbered(of)
    }

    /// Numbers clusters, which are named by any numbers below that of the nodes, in the order of their first nodes.
    pub fn numbered(mut of: Vec<ClusterId>) -> Self {
        let mut numbers = vec![ClusterId::MAX; of.len()];
        let mut count = 0;
        for cluster in &mut of {
            let number = &mut numbers[*cluster as usize];
            if *number == ClusterId::MAX {
                *number = count;
                count += 1;
            }
            *cluster = *number;
        }
        Self { of, count }
    }

    /// Gives every node what its cluster has.
    pub fn expand<T: Copy>(&self, of_clusters: &[T]) -> Vec<T> {
        self.of.iter().map(|cluster| of_clusters[*cluster as usize]).collect()
    }

    /// The nodes of every cluster, ascending: offsets by cluster, and the nodes.
    pub fn members(&self) -> (Vec<u32>, Vec<NodeId>) {
        let mut starts = vec![0u32; self.count as usize + 1];
        for cluster in &self.of {
            starts[*cluster as usize + 1] += 1;
        }
        for cluster in 0..self.count as usize {
            starts[cluster + 1] += starts[cluster];
        }
        let mut next = starts.clone();
        let mut nodes = vec![0; self.of.len()];
        for (node, cluster) in (0..).zip(&self.of) {
            let place = &mut next[*cluster as usize];
            nodes[*place as usize] = node;
            *place += 1;
        }
        (starts, nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::RandomGraph;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_node_has_a_cluster_and_none_is_too_heavy(
            graph in RandomGraph::any(60),
            most in prop::array::uniform3(1u64..30),
        ) {
            let links = graph.links();
            let weights = NodeWeights::new(links.incoming(), &graph.train);
            let clusters = Clusters::find(&links, &weights, most);
            prop_assert_eq!(&clusters, &Clusters::find(&links, &weights, most));
            prop_assert_eq!(&Clusters::numbered(clusters.of.clone()), &clusters);
            let (starts, members) = clusters.members();
            prop_assert_eq!(starts.len(), clusters.count as usize + 1);
            prop_assert_eq!(members.len(), graph.nodes() as usize);
            for cluster in 0..clusters.count {
                let own = &members[starts[cluster as usize] as usize..starts[cluster as usize + 1] as usize];
                prop_assert!(!own.is_empty() && own.is_sorted());
                prop_assert!(own.iter().all(|node| clusters.of[*node as usize] == cluster));
                let sum = own.iter().fold([0; 3], |sum, node| sum_of(sum, weights.of(*node)));
                prop_assert!(own.len() == 1 || (0..3).all(|kind| sum[kind] <= most[kind]), "{sum:?} of {most:?}");
            }
        }
    }

    #[test]
    fn two_cliques_that_an_edge_joins_are_two_clusters() {
        // Nodes 0 to 3 and 4 to 7; 3 and 4 are the bridge.
        let clique = |node: u32| (node / 4 * 4..node / 4 * 4 + 4).filter(move |other| *other != node);
        let bridge = |node: u32| {
            [3, 4]
                .into_iter()
                .filter(move |other| [3, 4].contains(&node) && *other != node && *other / 4 != node / 4)
        };
        let rows: Vec<Vec<u32>> = (0..8).map(|node| clique(node).chain(bridge(node)).collect()).collect();
        let graph = RandomGraph::of(rows, Vec::new());
        let links = graph.links();
        let weights = NodeWeights::new(links.incoming(), &[]);
        let clusters = Clusters::find(&links, &weights, [4, 4, 100]);
        assert_eq!(clusters.of, [0, 0, 0, 0, 1, 1, 1, 1]);
    }
}
