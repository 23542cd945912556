//! The graph as METIS wants it: symmetric, without self-loops, every neighbour once, 32-bit numbers.

use super::{PartitionError, check_neighbors};
use crate::sampling::Topology;

/// The largest number that METIS, built with 32-bit indices, can count to.
const METIS_LIMIT: u64 = i32::MAX as u64;

/// Refuses a graph whose nodes or directed edges METIS cannot count in 32 bits.
///
/// `edges` counts both directions of an undirected edge.
pub fn check_metis_size(nodes: u64, edges: u64) -> Result<(), PartitionError> {
    if nodes >= METIS_LIMIT || edges >= METIS_LIMIT {
        return Err(PartitionError::TooLargeForMetis { nodes, edges });
    }
    Ok(())
}

/// An undirected graph in compressed rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjacency {
    /// `nodes + 1` offsets into `neighbors`.
    pub offsets: Vec<i32>,
    /// Both directions of every edge; rows ascend.
    pub neighbors: Vec<i32>,
    /// How many directed edges of the graph an entry stands for. `None` when that number is the same for all.
    pub weights: Option<Vec<i32>>,
}

impl Adjacency {
    /// Symmetrises the in-edges of a whole graph.
    ///
    /// Self-loops are left out, and repeated edges become the weight of one. Takes 4 bytes per directed edge beside the
    /// result, which takes as many per entry, or twice that where weights differ. Weights that METIS could not add up in
    /// 32 bits are left out.
    ///
    /// # Errors
    /// [`PartitionError::TooLargeForMetis`] when the result does not fit 32 bits.
    pub fn symmetric(graph: Topology<'_>) -> Result<Self, PartitionError> {
        let nodes = graph.rows();
        check_metis_size(u64::from(nodes), graph.neighbors.len() as u64)?;
        check_neighbors(graph)?;
        let transposed = Transposed::new(graph);
        let mut sorted_row = Vec::new();
        let mut entries = 0u64;
        let mut total_weight = 0u64;
        let mut first_weight = None;
        let mut uniform = true;
        for node in 0..nodes {
            transposed.merge(graph, node, &mut sorted_row, |_, weight| {
                entries += 1;
                total_weight += u64::from(weight.unsigned_abs());
                uniform &= *first_weight.get_or_insert(weight) == weight;
            });
        }
        check_metis_size(u64::from(nodes), entries)?;

        let weighted = !uniform && total_weight < METIS_LIMIT;
        let mut result = Self {
            offsets: Vec::with_capacity(nodes as usize + 1),
            neighbors: Vec::with_capacity(entries as usize),
            weights: weighted.then(|| Vec::with_capacity(entries as usize)),
        };
        result.offsets.push(0);
        for node in 0..nodes {
            let Self { neighbors, weights, .. } = &mut result;
            transposed.merge(graph, node, &mut sorted_row, |neighbor, weight| {
                neighbors.push(neighbor as i32);
                if let Some(weights) = weights {
                    weights.push(weight);
                }
            });
            result.offsets.push(result.neighbors.len() as i32);
        }
        Ok(result)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// The out-edges of every node; rows ascend.
struct Transposed {
    offsets: Vec<u32>,
    targets: Vec<u32>,
}

impl Transposed {
    fn new(graph: Topology<'_>) -> Self {
        let nodes = graph.rows() as usize;
        let mut starts = vec![0u32; nodes + 1];
        for source in graph.neighbors {
            starts[*source as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut targets = vec![0; graph.neighbors.len()];
        for target in 0..graph.rows() {
            for source in graph.row(target) {
                let place = &mut next[*source as usize];
                targets[*place as usize] = target;
                *place += 1;
            }
        }
        Self {
            offsets: starts,
            targets,
        }
    }

    /// Calls `entry` with every neighbour of `node` in either direction, ascending, and how many edges join the two.
    fn merge(&self, graph: Topology<'_>, node: u32, sorted_row: &mut Vec<u32>, mut entry: impl FnMut(u32, i32)) {
        let mut incoming = graph.row(node);
        if !incoming.is_sorted() {
            sorted_row.clear();
            sorted_row.extend_from_slice(incoming);
            sorted_row.sort_unstable();
            incoming = sorted_row;
        }
        let outgoing = self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        let mut outgoing = &self.targets[outgoing];
        loop {
            let neighbor = match (incoming.first(), outgoing.first()) {
                (Some(one), Some(other)) => *one.min(other),
                (Some(one), None) | (None, Some(one)) => *one,
                (None, None) => return,
            };
            let weight = take_equal(&mut incoming, neighbor) + take_equal(&mut outgoing, neighbor);
            if neighbor != node {
                entry(neighbor, weight);
            }
        }
    }
}

/// Removes the leading items equal to `value`, and says how many there were.
fn take_equal(row: &mut &[u32], value: u32) -> i32 {
    let mut count = 0;
    while let [first, rest @ ..] = row
        && *first == value
    {
        *row = rest;
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_limits_of_32_bits_are_refused() {
        assert!(check_metis_size(1 << 30, (1 << 31) - 2).is_ok());
        for (nodes, edges) in [(10, 1 << 31), (1 << 31, 10)] {
            let refused = check_metis_size(nodes, edges);
            assert!(
                matches!(refused, Err(PartitionError::TooLargeForMetis { nodes: n, edges: e }) if (n, e) == (nodes, edges))
            );
        }
    }

    #[test]
    fn a_symmetric_graph_needs_no_weights() {
        // 0 - 1 - 2
        let adjacency = Adjacency::symmetric(Topology {
            first: 0,
            offsets: &[0, 1, 3, 4],
            neighbors: &[1, 0, 2, 1],
        })
        .unwrap();
        assert_eq!(adjacency.offsets, [0, 1, 3, 4]);
        assert_eq!(adjacency.neighbors, [1, 0, 2, 1]);
        assert_eq!(adjacency.weights, None);
    }

    proptest! {
        #[test]
        fn entries_are_what_a_count_of_all_pairs_says(
            nodes in 1u32..9,
            edges in prop::collection::vec((0u32..9, 0u32..9), 0..40),
        ) {
            let mut rows = vec![Vec::new(); nodes as usize];
            let mut pairs = BTreeMap::new();
            for (target, source) in edges {
                let (target, source) = (target % nodes, source % nodes);
                rows[target as usize].push(source);
                if target != source {
                    *pairs.entry((target, source)).or_insert(0) += 1;
                    *pairs.entry((source, target)).or_insert(0) += 1;
                }
            }
            let mut offsets = vec![0u64];
            offsets.extend(rows.iter().scan(0, |sum, row| { *sum += row.len() as u64; Some(*sum) }));
            let topology = Topology { first: 0, offsets: &offsets, neighbors: &rows.concat() };
            let adjacency = Adjacency::symmetric(topology).unwrap();
            let mut found = BTreeMap::new();
            for node in 0..adjacency.nodes() {
                let range = adjacency.offsets[node] as usize..adjacency.offsets[node + 1] as usize;
                prop_assert!(adjacency.neighbors[range.clone()].is_sorted());
                for entry in range {
                    let weight = adjacency.weights.as_ref().map(|weights| weights[entry]);
                    found.insert((node as u32, adjacency.neighbors[entry] as u32), weight);
                }
            }
            prop_assert_eq!(found.len(), adjacency.neighbors.len());
            prop_assert!(found.keys().eq(pairs.keys()));
            if found.values().all(Option::is_some) {
                prop_assert!(found.values().copied().eq(pairs.values().map(|weight| Some(*weight))));
            } else {
                let mut weights: Vec<i32> = pairs.into_values().collect();
                weights.dedup();
                prop_assert!(weights.len() <= 1);
            }
        }
    }
}
