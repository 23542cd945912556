//! Cuts a graph into parts.
//!
//! Two steps, apart so that anybody's partitioner can be used:
//!
//! 1. an *assignment*, which gives every node a part: [`metis_assignment`] (on an [`Adjacency`], with [`NodeLoads`] to
//!    balance), [`cluster_assignment`] and [`stream_assignment`] for graphs that are too large for it (on [`Links`], which
//!    leave the graph on disk), [`hash_assignment`], or [`assignment_from_file`] with what another program computed;
//! 2. [`partition_graph`], which relabels the nodes so that every part owns one contiguous range of ids
//!    ([`Relabelling`]), and writes the parts folder.
//!
//! Between the two, [`refine`] may improve an assignment for the batches that will train.
//! [`CutStatistics`] says what an assignment is worth.

use std::path::PathBuf;

use rayon::prelude::*;

use crate::book::{BookError, NodeId, PartId};
use crate::npy::NpyError;
use crate::sampling::Topology;
use crate::store::StoreError;

mod adjacency;
mod balanced;
#[cfg(feature = "metis")]
mod cluster;
#[cfg(feature = "metis")]
mod clusters;
#[cfg(feature = "metis")]
mod contract;
mod file;
mod hash;
mod links;
mod local_search;
#[cfg(feature = "metis")]
mod metis;
mod placement;
pub mod refine;
mod relabel;
mod statistics;
mod stream;
mod trials;
mod write;

pub use adjacency::{Adjacency, check_metis_size};
pub use balanced::balanced_assignment;
#[cfg(feature = "metis")]
pub use cluster::cluster_assignment;
pub use file::assignment_from_file;
pub use hash::hash_assignment;
pub use links::Links;
#[cfg(feature = "metis")]
pub use metis::metis_assignment;
pub use relabel::Relabelling;
pub use statistics::{CutStatistics, PartLoad};
pub use stream::stream_assignment;
pub use write::{partition_graph, partition_graph_and_rows};

/// How far the fullest part may lie above the mean part: in nodes, in train seeds and in edges.
pub const BALANCE_LIMIT: f64 = 1.05;

/// Why a graph was not cut.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    #[error("a graph is cut into at least one part, 0 were asked for")]
    NoParts,
    #[error("the assignment is for {given} nodes, but the graph has {nodes}")]
    AssignmentOfOtherGraph { nodes: u32, given: usize },
    #[error("node {node} was assigned to part {part}, but there are {parts} parts")]
    PartOutOfRange { node: NodeId, part: PartId, parts: PartId },
    #[error(
        "METIS counts in 32 bits and cannot hold {nodes} nodes and {edges} directed edges (each must stay below 2^31 - 1); \
         use `--method cluster`, or `--method stream` if even the clusters are too many, or partition elsewhere and use \
         `--method file:PATH`"
    )]
    TooLargeForMetis { nodes: u64, edges: u64 },
    #[error("METIS failed: {0}")]
    Metis(String),
    #[error("cannot read the assignment {path}")]
    ReadAssignment { path: PathBuf, source: std::io::Error },
    #[error("{path}, row {row} (from 0): \"{value}\" is not one of the {parts} parts, which are counted from 0")]
    PartInFile {
        path: PathBuf,
        row: usize,
        value: String,
        parts: PartId,
    },
    #[error("{path} ends after {rows} rows, but the graph has {nodes} nodes; one row per node is needed")]
    AssignmentTooShort { path: PathBuf, rows: usize, nodes: u32 },
    #[error("{path} has more rows than the graph has nodes ({nodes}); one row per node is needed")]
    AssignmentTooLong { path: PathBuf, nodes: u32 },
    #[error("{path} has shape {found:?}, expected one part per node: [{nodes}]")]
    AssignmentShape {
        path: PathBuf,
        found: Vec<usize>,
        nodes: u32,
    },
    #[error(transparent)]
    Book(#[from] BookError),
    #[error(
        "the in-neighbours of the graph name node {neighbor} (value {edge} of indices.npy), but it has {nodes} nodes"
    )]
    Neighbor { edge: usize, neighbor: NodeId, nodes: u32 },
    #[error(transparent)]
    Npy(#[from] NpyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opening a graph folder does not look at every neighbour; whoever uses them as indices calls this before.
fn check_neighbors(graph: Topology<'_>) -> Result<(), PartitionError> {
    let nodes = graph.rows();
    match graph.neighbors.par_iter().position_first(|neighbor| *neighbor >= nodes) {
        None => Ok(()),
        Some(edge) => Err(PartitionError::Neighbor {
            edge,
            neighbor: graph.neighbors[edge],
            nodes,
        }),
    }
}

/// What a node weighs in each of the loads that a partition balances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLoads {
    /// 1 for every node.
    pub nodes: Vec<i32>,
    /// 1 for nodes of the train split, else 0.
    pub seeds: Vec<i32>,
    /// In-degree: the edges that are stored with the node.
    pub edges: Vec<i32>,
}

impl NodeLoads {
    /// The loads of a graph that METIS can hold (see [`check_metis_size`]).
    pub fn new(graph: Topology<'_>, train: &[NodeId]) -> Self {
        let edges: Vec<i32> = graph
            .offsets
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as i32)
            .collect();
        let mut seeds = vec![0; edges.len()];
        for node in train {
            seeds[*node as usize] = 1;
        }
        Self {
            nodes: vec![1; edges.len()],
            seeds,
            edges,
        }
    }
}

#[cfg(test)]
mod tests;
