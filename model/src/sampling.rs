//! Sampling: uniform neighbours without replacement, drawn by key, so that whoever owns a node draws the same picks.

use crate::book::{NodeId, PartId};

/// The in-edges of a contiguous range of nodes: what one part (or a whole graph) knows of the structure.
#[derive(Clone, Copy, Debug)]
pub struct Topology<'a> {
    /// Global id of row 0.
    pub first: NodeId,
    /// `rows + 1` offsets into `neighbors`.
    pub offsets: &'a [u64],
    /// Global ids of the in-neighbours, row by row.
    pub neighbors: &'a [NodeId],
}

impl<'a> Topology<'a> {
    pub fn rows(&self) -> u32 {
        self.offsets.len().saturating_sub(1) as u32
    }

    /// The in-neighbours of a local row.
    pub fn row(&self, row: u32) -> &'a [NodeId] {
        let row = row as usize;
        &self.neighbors[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }
}

/// A question for the sampled neighbours of some nodes of one owner, for one hop of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighborQuery {
    /// The hop key of the batch ([`BatchKey::hop`](crate::rng::BatchKey::hop)).
    pub key: u64,
    pub fanout: u32,
    /// Rows local to the owner, in the order in which the answer lists them.
    pub rows: Vec<u32>,
}

/// The answer to a [`NeighborQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeighborReply {
    /// Picks per row of the query; at most the fanout.
    pub counts: Vec<u32>,
    /// The picks of all rows, one after the other, as global ids in the order of the owner's rows.
    pub neighbors: Vec<NodeId>,
}

/// Answers for nodes that other parts own. One call carries a whole group of batches; each entry is one request.
pub trait NeighborSource {
    type Error: std::error::Error + Send + Sync + 'static;

    /// Answers in the order of `requests`, and inside a request in the order of its queries.
    fn sample(&mut self, requests: Vec<(PartId, Vec<NeighborQuery>)>) -> Result<Vec<Vec<NeighborReply>>, Self::Error>;
}
