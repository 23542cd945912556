//! Every edge of a graph from both of its ends, without loading the graph.

use std::path::Path;

use super::{PartitionError, check_neighbors};
use crate::book::NodeId;
use crate::npy::{ArrayWriter, MappedArray, NpyError};
use crate::sampling::Topology;

/// Out-edges that are sorted in memory at a time: 256 MiB.
const BLOCK_EDGES: u64 = 64 << 20;

/// The neighbours of every node of a whole graph over edges of both directions.
///
/// Of a symmetric graph the in-edges are all there is to know, and nothing is copied. Of a directed graph the out-edges
/// are written to a file that has no name, which takes 4 bytes of disk per edge; 8 bytes per node stay in memory.
#[derive(Debug)]
pub struct Links<'a> {
    incoming: Topology<'a>,
    outgoing: Option<OutEdges>,
}

impl<'a> Links<'a> {
    /// The links of a graph that stores each edge in both directions.
    ///
    /// # Errors
    /// [`PartitionError::Neighbor`] when the graph names a node that it does not have.
    pub fn symmetric(graph: Topology<'a>) -> Result<Self, PartitionError> {
        check_neighbors(graph)?;
        Ok(Self {
            incoming: graph,
            outgoing: None,
        })
    }

    /// The links of any graph. The out-edges are written below the folder `scratch`, and vanish with this value.
    ///
    /// # Errors
    /// As [`symmetric`](Self::symmetric), and what the file system refuses.
    pub fn directed(graph: Topology<'a>, scratch: &Path) -> Result<Self, PartitionError> {
        check_neighbors(graph)?;
        Ok(Self {
            incoming: graph,
            outgoing: Some(OutEdges::write(graph, scratch, BLOCK_EDGES)?),
        })
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.incoming.rows()
    }

    /// The in-edges that the graph stores.
    pub fn incoming(&self) -> Topology<'a> {
        self.incoming
    }

    /// The other ends of the edges of `node`: sources of its in-edges, and of a directed graph targets of its out-edges.
    /// Self-loops are among them.
    #[inline]
    pub fn of(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let outgoing = self.outgoing.as_ref().map_or(&[][..], |edges| edges.row(node));
        self.incoming.row(node).iter().chain(outgoing).copied()
    }

    /// How many links there are: the stored edges, which a directed graph counts from both ends.
    pub fn count(&self) -> u64 {
        let edges = self.incoming.neighbors.len() as u64;
        if self.outgoing.is_some() { 2 * edges } else { edges }
    }
}

/// The targets of every node's out-edges, in a mapped file.
#[derive(Debug)]
struct OutEdges {
    offsets: Vec<u64>,
    targets: MappedArray<NodeId>,
}

impl OutEdges {
    /// Sorts the edges by source, `block_edges` at a time or the edges of one node where those are more, with one pass
    /// over the graph per block.
    fn write(graph: Topology<'_>, scratch: &Path, block_edges: u64) -> Result<Self, PartitionError> {
        let nodes = graph.rows() as usize;
        let mut offsets = vec![0u64; nodes + 1];
        for source in graph.neighbors {
            offsets[*source as usize + 1] += 1;
        }
        for node in 0..nodes {
            offsets[node + 1] += offsets[node];
        }
        let folder = tempfile::tempdir_in(scratch).map_err(|source| NpyError::Io {
            doing: "make a temporary folder in",
            path: scratch.to_owned(),
            source,
        })?;
        let path = folder.path().join("targets.npy");
        let mut file = ArrayWriter::<NodeId>::create(&path, &[graph.neighbors.len()])?;
        let mut first = 0;
        while first < nodes {
            let end = block_end(&offsets, first, block_edges);
            file.write(&targets_of(graph, &offsets, first, end))?;
            first = end;
        }
        file.finish()?;
        // The map outlives the file's name, which goes away with the folder.
        let targets = MappedArray::open(&path)?;
        Ok(Self { offsets, targets })
    }

    #[inline]
    fn row(&self, node: NodeId) -> &[NodeId] {
        let node = node as usize;
        &self.targets[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }
}

/// The end of the longest range of nodes from `first` on that has at most `block_edges` edges, one node at least.
fn block_end(offsets: &[u64], first: usize, block_edges: u64) -> usize {
    let fitting = offsets[first + 1..].partition_point(|end| end - offsets[first] <= block_edges);
    first + fitting.max(1)
}

/// The targets of the edges that start in the nodes from `first` to `end`, by source and then ascending.
fn targets_of(graph: Topology<'_>, offsets: &[u64], first: usize, end: usize) -> Vec<NodeId> {
    let start = offsets[first];
    let mut next: Vec<u64> = offsets[first..end].iter().map(|offset| offset - start).collect();
    let mut targets = vec![0; (offsets[end] - start) as usize];
    for target in 0..graph.rows() {
        for source in graph.row(target) {
            let source = *source as usize;
            if (first..end).contains(&source) {
                let place = &mut next[source - first];
                targets[*place as usize] = target;
                *place += 1;
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_directed_graph_is_seen_from_both_ends(
            nodes in 1u32..9,
            edges in prop::collection::vec((0u32..9, 0u32..9), 0..40),
            block_edges in 0u64..20,
        ) {
            let mut rows = vec![Vec::new(); nodes as usize];
            let mut expected = vec![Vec::new(); nodes as usize];
            for (target, source) in edges {
                let (target, source) = (target % nodes, source % nodes);
                rows[target as usize].push(source);
                expected[target as usize].push(source);
                expected[source as usize].push(target);
            }
            let mut offsets = vec![0u64];
            offsets.extend(rows.iter().scan(0, |sum, row| { *sum += row.len() as u64; Some(*sum) }));
            let graph = Topology { first: 0, offsets: &offsets, neighbors: &rows.concat() };
            let scratch = tempfile::tempdir().unwrap();
            let links = Links {
                incoming: graph,
                outgoing: Some(OutEdges::write(graph, scratch.path(), block_edges).unwrap()),
            };
            prop_assert_eq!(links.count(), expected.iter().map(|ends| ends.len() as u64).sum::<u64>());
            for (node, mut ends) in (0..nodes).zip(expected) {
                let mut found: Vec<NodeId> = links.of(node).collect();
                found.sort_unstable();
                ends.sort_unstable();
                prop_assert_eq!(found, ends);
            }
            prop_assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the file has no name");
        }
    }
}
