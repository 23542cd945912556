//! Push-pull: ranks move sampled graphs and partial sums of the first layer instead of feature rows.
//!
//! As in P3 (Gandhi and Iyer, OSDI 2021), features are split by dimension: every rank holds some [`columns`] of the rows of
//! *all* nodes ([`columns_of`]), which it gets from their owners at set-up.
//! Then, in every step, training or evaluation, all ranks do together what each did alone:
//!
//! 1. *Push the graph* ([`loader`], while the step before trains): each rank sends the outermost block of its batch to all
//!    others; each aggregates its columns for the batches of all.
//! 2. *Pull the partial sums* ([`first_layer`]): each rank multiplies its columns with its columns of the first layer's
//!    weights and sends the products to the batch's rank, which adds them up in the order of ranks, adds the bias, and goes
//!    on alone with the activation and the layers after it.
//! 3. *Push the gradient* of the sums: each rank gets that of every batch and computes the gradients of its columns of the
//!    weights, added up over batches in the order of ranks.
//!
//! The gradients of the first layer then take the same all-reduce as those of the other layers, in which every column is
//! zero at all ranks but one. So every rank has all weights after every step, and a checkpoint or the final weights need
//! nothing more. It costs what the first layer's gradients cost a run that pulls rows; the sums are larger by far.
//!
//! What a rank adds and in which order depends on the columns and the batches alone, so the bits are the same on any number
//! of machines and threads. They are not the bits of a run that pulls rows, whose products add over all columns at once.
//!
//! A step needs all ranks, also those whose own batch is empty. Every wait ends at the collective's deadline with an error
//! that names the rank, its machine, and what it did not send.

use std::sync::Arc;

use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::layers::sliced::{FirstLayerSlice, columns_of};
use greengnn_model::layers::{LayerError, ModelConfig};

use crate::causes::in_one_line;
use crate::collective::CollectiveError;
use crate::shard::PartShard;
use crate::transport::InboxLimits;

pub mod columns;
pub mod first_layer;
pub mod loader;

/// Why a rank could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum PushPullError {
    #[error("{}", in_one_line(.0))]
    Together(#[from] CollectiveError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error("step {step} of rank {rank}: {source}")]
    Block {
        rank: Rank,
        step: u32,
        source: greengnn_model::trace::OutermostError,
    },
    #[error("step {step} of rank {rank} cannot be aggregated: {source}")]
    Aggregate {
        rank: Rank,
        step: u32,
        source: greengnn_model::assemble::AssembleError,
    },
    #[error("rank {rank} cannot read step {step} of its trace: {source}")]
    Trace {
        rank: Rank,
        step: u32,
        source: greengnn_model::trace::TraceError,
    },
    #[error(
        "step {step}: {bytes} bytes of the first layer's sums are on their way to rank {rank} at once, at most {limit} \
         may be; lower the batch size, the fanouts or the hidden width, or pull rows"
    )]
    TooLarge {
        rank: Rank,
        step: u32,
        bytes: u64,
        limit: u64,
    },
    #[error("a task of rank {rank} ended before it was done: {reason}")]
    Task { rank: Rank, reason: String },
    #[error("training was cancelled")]
    Cancelled,
    #[error("rank {rank} has a batch without the slices of all ranks")]
    NoSlices { rank: Rank },
}

/// What a rank of a run in push-pull is given.
pub struct PushPullSeat {
    /// Its columns of the first layer's weights.
    pub slice: FirstLayerSlice,
    /// The ranks that hold columns.
    pub holders: Vec<Rank>,
    /// The owner of its part, whose rows the others need columns of, and who counts what they pushed and pulled.
    pub shard: Arc<PartShard>,
}

impl PushPullSeat {
    /// # Errors
    /// A model that cannot be.
    pub fn new(model: &ModelConfig, book: &PartitionBook, shard: Arc<PartShard>) -> Result<Self, LayerError> {
        let columns = columns_of(shard.part(), book.parts(), model.features);
        Ok(Self {
            slice: FirstLayerSlice::new(model, columns)?,
            holders: holders(book, model.features),
            shard,
        })
    }
}

/// Most bytes of partial sums, and most of gradients, that may be on their way to one rank at once. Both come while the
/// blocks of the next steps come too, and all have to fit into the inbox.
const MOST_SUM_BYTES: u64 = InboxLimits::DEFAULT_BYTES as u64 * 7 / 16;

/// The ranks that hold columns, in order: all, unless there are fewer columns than ranks.
pub fn holders(book: &PartitionBook, features: usize) -> Vec<Rank> {
    let ranks = book.parts();
    (0..ranks)
        .filter(|rank| !columns_of(*rank, ranks, features).is_empty())
        .collect()
}

/// The holders other than `rank`, those after it first, so that not all send to the same rank at once.
fn others(holders: &[Rank], rank: Rank) -> impl Iterator<Item = Rank> + '_ {
    let after = holders.iter().filter(move |holder| **holder > rank);
    let before = holders.iter().filter(move |holder| **holder < rank);
    after.chain(before).copied()
}

fn check_sum_bytes(rank: Rank, step: u32, bytes: u64) -> Result<(), PushPullError> {
    if bytes <= MOST_SUM_BYTES {
        return Ok(());
    }
    Err(PushPullError::TooLarge {
        rank,
        step,
        bytes,
        limit: MOST_SUM_BYTES,
    })
}

#[cfg(test)]
mod tests;
