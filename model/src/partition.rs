//! Cuts a graph into parts.
//!
//! Two steps, apart so that anybody's partitioner can be used:
//!
//! 1. an *assignment*, which gives every node a part: [`metis_assignment`] (on an [`Adjacency`], with [`NodeLoads`] to
//!    balance), [`hash_assignment`], or [`assignment_from_file`] with what another program computed;
//! 2. [`partition_graph`], which relabels the nodes so that every part owns one contiguous range of ids
//!    ([`Relabelling`]), and writes the parts folder.
//!
//! [`CutStatistics`] says what an assignment is worth.

use std::path::PathBuf;

use crate::book::{BookError, NodeId, PartId};
use crate::npy::NpyError;

mod adjacency;
mod balanced;
mod file;
mod hash;
#[cfg(feature = "metis")]
mod metis;
mod relabel;
mod statistics;
mod write;

pub use adjacency::{Adjacency, check_metis_size};
pub use balanced::balanced_assignment;
pub use file::assignment_from_file;
pub use hash::hash_assignment;
#[cfg(feature = "metis")]
pub use metis::metis_assignment;
pub use relabel::Relabelling;
pub use statistics::{CutStatistics, PartLoad};
pub use write::partition_graph;

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
         use `--method hash`, or partition elsewhere and use `--method file:PATH`"
    )]
    TooLargeForMetis { nodes: u64, edges: u64 },
    #[error("METIS failed: {0}")]
    Metis(String),
    #[error("cannot read the assignment {path}")]
    ReadAssignment { path: PathBuf, source: std::io::Error },
    #[error("{path}, row {row} (from 0): \"{value}\" is not one of the {parts} parts, which are counted from 0")]
    PartInFile {
        path: PathBuf,
        row: u64,
        value: String,
        parts: PartId,
    },
    #[error("{path} has {rows} rows or more, but the graph has {nodes} nodes; one row per node is needed", rows = rows)]
    AssignmentLength { path: PathBuf, rows: u64, nodes: u32 },
    #[error("{path} has shape {found:?}, expected one part per node: [{nodes}]")]
    AssignmentShape {
        path: PathBuf,
        found: Vec<usize>,
        nodes: u32,
    },
    #[error(transparent)]
    Book(#[from] BookError),
    #[error(transparent)]
    Npy(#[from] NpyError),
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
    /// The loads of a graph of at most 2^31 - 1 edges (see [`check_metis_size`]), given its in-edge offsets.
    pub fn new(offsets: &[u64], train: &[NodeId]) -> Self {
        let edges: Vec<i32> = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as i32).collect();
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
