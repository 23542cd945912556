//! Balance without regard to edges, for graphs that are too small to be cut well.

use super::NodeLoads;
use crate::book::PartId;

/// Gives every node, seeds first and heavy nodes before light ones, to the part with the least load.
///
/// The loads of a part are compared in the order seeds (for a seed), nodes, edges, part number. With fewer nodes than
/// parts every node gets a part of its own, and the last parts stay empty.
pub fn balanced_assignment(loads: &NodeLoads, parts: PartId) -> Vec<PartId> {
    let mut order: Vec<usize> = (0..loads.nodes.len()).collect();
    order.sort_by_key(|node| (-loads.seeds[*node], -loads.edges[*node], *node));
    let mut sums = vec![(0i64, 0i64, 0i64); usize::from(parts)];
    let mut assignment = vec![0; loads.nodes.len()];
    for node in order {
        let is_seed = loads.seeds[node] > 0;
        let lightest = (0..parts).min_by_key(|part| {
            let (seeds, nodes, edges) = sums[usize::from(*part)];
            (if is_seed { seeds } else { 0 }, nodes, edges)
        });
        let part = lightest.unwrap_or(0);
        assignment[node] = part;
        let (seeds, nodes, edges) = &mut sums[usize::from(part)];
        *seeds += i64::from(loads.seeds[node]);
        *nodes += i64::from(loads.nodes[node]);
        *edges += i64::from(loads.edges[node]);
    }
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_nodes_than_parts_are_spread_one_by_one() {
        let loads = NodeLoads {
            nodes: vec![1; 3],
            seeds: vec![0, 1, 0],
            edges: vec![0; 3],
        };
        assert_eq!(balanced_assignment(&loads, 5), [1, 0, 2]);
    }

    #[test]
    fn seeds_and_nodes_are_both_even() {
        let loads = NodeLoads {
            nodes: vec![1; 40],
            seeds: (0..40).map(|node| i32::from(node % 5 == 0)).collect(),
            edges: (0..40).collect(),
        };
        let assignment = balanced_assignment(&loads, 4);
        for part in 0..4 {
            let members: Vec<usize> = (0..40).filter(|node| assignment[*node] == part).collect();
            assert_eq!(members.len(), 10);
            assert_eq!(members.iter().map(|node| loads.seeds[*node]).sum::<i32>(), 2);
        }
    }
}
