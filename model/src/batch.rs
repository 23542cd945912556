//! A mini-batch as the sampler leaves it: seed nodes, one block per hop, and the rows that other parts own.

use crate::book::{NodeId, PartId};
use crate::rng::Purpose;

/// One bipartite layer of a mini-batch, in compressed rows of destinations.
///
/// Destination `d` is also source `d`; the other sources are new nodes by ascending global id. The picks of destination
/// `d` are `sources[offsets[d] .. offsets[d + 1]]`, in the order of the graph's rows. A destination without picks is an
/// isolated node, and its mean is the zero vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// `destinations + 1` offsets into `sources`.
    pub offsets: Vec<u32>,
    /// Per pick the local index of its source, below `source_count`.
    pub sources: Vec<u32>,
    /// Number of sources; the destinations are the first of them.
    pub source_count: u32,
}

impl Block {
    pub fn destination_count(&self) -> u32 {
        self.offsets.len().saturating_sub(1) as u32
    }

    pub fn edge_count(&self) -> usize {
        self.sources.len()
    }
}

/// The rows of one owner that a batch needs: local to the owner, ascending, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRows {
    pub owner: PartId,
    pub rows: Vec<u32>,
}

/// All rows that a batch needs from other parts, by ascending owner; owners without a row are left out.
///
/// Read from the first owner's first row to the last owner's last row this is the order of ascending global ids, and the
/// order in which [`BatchPlan::places`](crate::plan::BatchPlan::places) lists where each row is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteRows {
    pub owners: Vec<OwnerRows>,
}

impl RemoteRows {
    /// Number of remote rows of the batch.
    pub fn len(&self) -> usize {
        self.owners.iter().map(|owned| owned.rows.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Every remote row as (owner, row), in the order of ascending global ids.
    pub fn iter(&self) -> impl Iterator<Item = (PartId, u32)> + '_ {
        self.owners
            .iter()
            .flat_map(|owned| owned.rows.iter().map(|row| (owned.owner, *row)))
    }
}

/// One sampled mini-batch of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MiniBatch {
    /// Position in the epoch's trace: training steps first, then validation, then test.
    pub step: u32,
    pub purpose: Purpose,
    /// All nodes of the batch: the seeds first, then what each hop added. The input nodes of the model.
    pub nodes: Vec<NodeId>,
    /// One block per hop; `blocks[0]` has the seeds as destinations.
    pub blocks: Vec<Block>,
    /// The rows of `nodes` that other parts own.
    pub remote: RemoteRows,
}

impl MiniBatch {
    /// The seed nodes, which are the destinations of the first block.
    pub fn seeds(&self) -> &[NodeId] {
        let count = self.blocks.first().map_or(0, Block::destination_count);
        &self.nodes[..count as usize]
    }
}
