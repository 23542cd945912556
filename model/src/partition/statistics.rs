//! What a partition is worth: how much crosses it, and how evenly it loads the parts.

use super::Relabelling;
use crate::book::{NodeId, PartId};
use crate::sampling::Topology;

/// The load of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartLoad {
    pub nodes: u64,
    /// Nodes of the train split.
    pub seeds: u64,
    /// Directed edges that end in the part.
    pub edges: u64,
    /// Those of them that start in another part.
    pub cut_edges: u64,
    /// Distinct nodes of other parts from which an edge comes.
    pub halo: u64,
}

/// The loads of all parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutStatistics {
    pub parts: Vec<PartLoad>,
}

impl CutStatistics {
    /// Counts in one pass over the in-edges of a whole graph.
    ///
    /// `graph` and `train` have original ids. Takes 2 bytes per node.
    pub fn measure(graph: Topology<'_>, train: &[NodeId], relabelling: &Relabelling) -> Self {
        let book = &relabelling.book;
        // The part whose halo a node was last counted in; part numbers are below the maximum.
        let mut counted_for = vec![PartId::MAX; relabelling.global.len()];
        let mut parts: Vec<PartLoad> = Vec::with_capacity(usize::from(book.parts()));
        for part in 0..book.parts() {
            let mut load = PartLoad::default();
            let own = book.range(part);
            for node in relabelling.members(part) {
                let row = graph.row(*node);
                load.nodes += 1;
                load.edges += row.len() as u64;
                for source in row {
                    let source = *source as usize;
                    if own.contains(&relabelling.global[source]) {
                        continue;
                    }
                    load.cut_edges += 1;
                    if counted_for[source] != part {
                        counted_for[source] = part;
                        load.halo += 1;
                    }
                }
            }
            parts.push(load);
        }
        for node in train {
            let owner = book.owner(relabelling.global[*node as usize]);
            parts[usize::from(owner)].seeds += 1;
        }
        Self { parts }
    }

    /// Directed edges whose ends lie in two parts.
    pub fn cut_edges(&self) -> u64 {
        self.sum(|load| load.cut_edges)
    }

    /// Share of the directed edges whose ends lie in two parts; 0 without edges.
    pub fn edge_cut(&self) -> f64 {
        ratio(self.cut_edges(), self.sum(|load| load.edges))
    }

    /// Nodes of other parts per node of the graph, summed over parts.
    pub fn halo_per_node(&self) -> f64 {
        ratio(self.sum(|load| load.halo), self.sum(|load| load.nodes))
    }

    /// Nodes of the fullest part over those of the mean part.
    pub fn node_balance(&self) -> f64 {
        self.balance(|load| load.nodes)
    }

    /// Train seeds of the fullest part over those of the mean part.
    pub fn seed_balance(&self) -> f64 {
        self.balance(|load| load.seeds)
    }

    /// In-edges of the fullest part over those of the mean part.
    pub fn edge_balance(&self) -> f64 {
        self.balance(|load| load.edges)
    }

    fn sum(&self, load: impl Fn(&PartLoad) -> u64) -> u64 {
        self.parts.iter().map(load).sum()
    }

    /// Largest over mean; 1 when there is nothing to balance.
    fn balance(&self, load: impl Fn(&PartLoad) -> u64) -> f64 {
        let total = self.sum(&load);
        if total == 0 {
            return 1.0;
        }
        let largest = self.parts.iter().map(load).max().unwrap_or(0);
        largest as f64 * self.parts.len() as f64 / total as f64
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_equal_naive_ones(
            assignment in prop::collection::vec(0u16..4, 1..12),
            edges in prop::collection::vec((0usize..12, 0usize..12), 0..50),
        ) {
            let nodes = assignment.len();
            let mut rows = vec![Vec::new(); nodes];
            for (target, source) in &edges {
                rows[target % nodes].push((source % nodes) as u32);
            }
            let mut offsets = vec![0u64];
            offsets.extend(rows.iter().scan(0, |sum, row| { *sum += row.len() as u64; Some(*sum) }));
            let train: Vec<u32> = (0..nodes as u32).step_by(2).collect();
            let relabelling = Relabelling::new(&assignment, 4).unwrap();
            let topology = Topology { first: 0, offsets: &offsets, neighbors: &rows.concat() };
            let found = CutStatistics::measure(topology, &train, &relabelling);

            let mut cut = 0;
            for part in 0..4u16 {
                let inside = |node: usize| assignment[node] == part;
                let ends: Vec<(usize, usize)> = edges
                    .iter()
                    .map(|(target, source)| (target % nodes, source % nodes))
                    .filter(|(target, _)| inside(*target))
                    .collect();
                let outside: Vec<usize> =
                    ends.iter().map(|(_, source)| *source).filter(|source| !inside(*source)).collect();
                let expected = PartLoad {
                    nodes: (0..nodes).filter(|node| inside(*node)).count() as u64,
                    seeds: train.iter().filter(|node| inside(**node as usize)).count() as u64,
                    edges: ends.len() as u64,
                    cut_edges: outside.len() as u64,
                    halo: outside.iter().collect::<BTreeSet<_>>().len() as u64,
                };
                cut += outside.len();
                prop_assert_eq!(found.parts[usize::from(part)], expected);
            }
            let share = if edges.is_empty() { 0.0 } else { cut as f64 / edges.len() as f64 };
            prop_assert!((found.edge_cut() - share).abs() < 1e-12);
        }
    }

    #[test]
    fn balance_is_the_largest_over_the_mean_and_1_for_nothing() {
        let parts = [3, 1, 0, 0].map(|nodes| PartLoad {
            nodes,
            ..PartLoad::default()
        });
        let statistics = CutStatistics { parts: parts.to_vec() };
        assert_eq!(statistics.node_balance(), 3.0);
        assert_eq!(statistics.seed_balance(), 1.0);
        assert_eq!(statistics.edge_cut(), 0.0);
    }
}
