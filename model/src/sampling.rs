//! Sampling: uniform neighbours without replacement, drawn by key, so that whoever owns a node draws the same picks.
//!
//! In the order in which data meets it:
//!
//! - [`schedule`] says which seeds each step of an epoch has, and under which key ([`EpochSpec`], [`Schedule`]);
//! - [`seed_order`] is the order of the train seeds: random, or such that neighbours come together ([`SeedOrder`]);
//! - [`pick`] draws the neighbours of one node from (hop key, global id) alone ([`pick_neighbors`]);
//! - [`query`] is what an owner answers for nodes that only it knows ([`answer_query`], [`InMemoryOwners`]);
//! - `node_set` and `expand` turn the picks of a hop into a [`Block`](crate::batch::Block): a set of nodes that knows
//!   the rank of each member gives local indices without a hash table and sorted rows without a sort;
//! - [`presample`](mod@presample) runs an epoch in groups of [`GROUP_BATCHES`] batches, one question per hop, owner and
//!   group.
//!
//! Blocks are those of DGL's `NeighborSampler`: each hop expands *all* nodes seen so far, seeds included, each time with
//! the key of that hop. Fanouts are written from the seeds outwards; DGL writes the same list reversed.

pub mod pick;
pub mod presample;
pub mod query;
pub mod schedule;
pub mod seed_order;

mod expand;
mod node_set;
#[cfg(test)]
pub(crate) mod tests;

pub use pick::pick_neighbors;
pub use presample::{GROUP_BATCHES, PresampleError, presample, presample_groups};
pub use query::{InMemoryOwners, QueryError, answer_queries, answer_query};
pub use schedule::{EpochSpec, Schedule, SeedRows, SpecError, StepCounts, steps};
pub use seed_order::{SeedOrder, UnknownSeedOrder};

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
