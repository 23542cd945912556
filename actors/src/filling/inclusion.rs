//! Inclusion probabilities, estimated by all ranks together: [`vip`](greengnn_model::policy::vip()) without a machine that
//! has the whole graph.
//!
//! A batch of rank `r` reaches a node over in-edges, and those of a node are at its owner. So for every rank in turn and hop
//! by hop, each part says with which probability its rows pick each node, gives these numbers to the owners of the nodes,
//! and the owners put them together in the order of the parts, which fixes the bits: they are those of `vip` over the parts.
//! At the end the owners give the rank what it asked for.
//!
//! ```text
//! for rank r, for hop h:  part p  --- picked_p(u), u of part q --->  part q:  seen(u) = either(start(u), picked_0(u), picked_1(u), ..)
//! for rank r:             part q  --- seen(u), u of part q ------->  rank r
//! ```
//!
//! Numbers travel in rounds of `ROUND_ROWS` nodes of each part, only those that are not zero, at 10 bytes each; every
//! round is an exchange of all ranks, so nobody runs ahead and an inbox holds two rounds at most. A rank needs 16 bytes per
//! node of the graph, and `hops + 3` numbers of 8 bytes per node of its own part. Over all ranks the work is ranks times
//! hops times edges, and at most ranks times hops times nodes times (parts - 1) numbers travel; a graph that is cut well
//! sends far fewer, since nodes that a part's rows do not list are zero.

use std::sync::Arc;

use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::policy::scores::UnknownNeighbor;
use greengnn_model::policy::vip::{PartEstimate, either, seed_probability};
use greengnn_model::rng::Purpose;
use greengnn_model::sampling::Topology;
use greengnn_model::store::PartStore;

use crate::causes::in_one_line;
use crate::collective::{Collective, CollectiveError, Moment};
use crate::transport::ParcelKind;

/// Nodes of a part in one round: what 16 bits count.
const ROUND_ROWS: usize = 1 << 16;

/// Bytes of a number with its node: 2 and 8.
const ENTRY_BYTES: usize = 10;

/// Why ranks could not estimate together.
#[derive(Debug, thiserror::Error)]
pub enum InclusionError {
    #[error(transparent)]
    Neighbor(#[from] UnknownNeighbor),
    #[error("{}", in_one_line(.0))]
    Exchange(#[from] CollectiveError),
    #[error("rank {rank} sent probabilities that are none of this graph; run the same version on all machines")]
    BadNumbers { rank: Rank },
    #[error("a task of the estimate ended before it was done: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// What decides which nodes a batch has.
#[derive(Clone, Debug)]
pub struct Sampling {
    pub batch_size: u32,
    /// In hop order from the seeds.
    pub fanouts: Vec<u32>,
}

/// What a rank brings to the estimate: the in-edges of its part's nodes, and its training seeds.
pub trait PartGraph: Send + Sync + 'static {
    fn topology(&self) -> Topology<'_>;

    /// Rows of the part whose nodes are the rank's training seeds.
    fn seeds(&self) -> &[u32];
}

impl PartGraph for PartStore {
    fn topology(&self) -> Topology<'_> {
        PartStore::topology(self)
    }

    fn seeds(&self) -> &[u32] {
        self.split(Purpose::Train)
    }
}

/// Per node of the graph the probability that a batch of this rank has it. All ranks call it at the same time, with the
/// same `book` and `sampling`.
///
/// # Errors
/// A rank that does not answer, or a graph that is damaged.
pub async fn probabilities<G: PartGraph>(
    collective: &Collective,
    book: Arc<PartitionBook>,
    part: Arc<G>,
    sampling: Sampling,
) -> Result<Vec<f64>, InclusionError> {
    let mut exchange = Exchange {
        collective,
        book: &book,
        step: 0,
    };
    let (own, nodes) = (collective.rank(), book.nodes());
    let mut scores = Vec::new();
    for rank in 0..collective.ranks() {
        let seeds = if rank == own { part.seeds() } else { &[] };
        let probability = seed_probability(seeds.len(), sampling.batch_size);
        let mut estimate = PartEstimate::new(book.part_nodes(own), seeds, probability);
        for hop in 1..=sampling.fanouts.len() {
            let (graph, fanouts) = (Arc::clone(&part), sampling.fanouts[..hop].to_vec());
            let picking = tokio::task::spawn_blocking(move || {
                let mut picked = vec![0f64; nodes as usize];
                estimate.picked(&graph.topology(), &fanouts, &mut picked)?;
                Ok::<_, UnknownNeighbor>((estimate, picked))
            });
            let picked;
            (estimate, picked) = picking.await??;
            let mut seen = estimate.start().to_vec();
            let values = |to| {
                let range = book.range(to);
                &picked[range.start as usize..range.end as usize]
            };
            exchange
                .run(values, |_, row, picked| {
                    // The exchange keeps to the rows of this part.
                    seen[row] = either(seen[row], picked);
                })
                .await?;
            estimate.advance(seen);
        }
        let seen = estimate.into_seen();
        let mut found = vec![0f64; if rank == own { nodes as usize } else { 0 }];
        let values = |to| if to == rank { &seen[..] } else { &[] };
        exchange
            .run_from_owners(rank == own, values, |from, row, seen| {
                found[book.range(from).start as usize + row] = seen;
            })
            .await?;
        if rank == own {
            scores = found;
        }
    }
    Ok(scores)
}

/// Exchanges of sparse numbers, each under a step of its own.
struct Exchange<'a> {
    collective: &'a Collective,
    book: &'a PartitionBook,
    step: u32,
}

impl Exchange<'_> {
    /// Gives every rank numbers of the rows of its part, and takes those of this rank's rows, in the order of the givers.
    async fn run<'v>(
        &mut self,
        values: impl Fn(Rank) -> &'v [f64],
        take: impl FnMut(Rank, usize, f64),
    ) -> Result<(), InclusionError> {
        let own = self.book.part_nodes(self.collective.rank()) as usize;
        self.rounds(values, |_| own, take).await
    }

    /// Gives the rank that is `asking` numbers of this rank's rows; that rank takes those of every part.
    async fn run_from_owners<'v>(
        &mut self,
        asking: bool,
        values: impl Fn(Rank) -> &'v [f64],
        take: impl FnMut(Rank, usize, f64),
    ) -> Result<(), InclusionError> {
        let book = self.book;
        let rows = |from| if asking { book.part_nodes(from) as usize } else { 0 };
        self.rounds(values, rows, take).await
    }

    async fn rounds<'v>(
        &mut self,
        values: impl Fn(Rank) -> &'v [f64],
        rows: impl Fn(Rank) -> usize,
        mut take: impl FnMut(Rank, usize, f64),
    ) -> Result<(), InclusionError> {
        let ranks = self.collective.ranks();
        // All ranks go through the rounds of the largest part.
        let most = (0..self.book.parts()).map(|part| self.book.part_nodes(part)).max();
        for first in (0..most.unwrap_or(0) as usize).step_by(ROUND_ROWS) {
            let payloads = (0..ranks).map(|to| encode(values(to), first)).collect();
            let moment = Moment {
                epoch: 0,
                step: self.step,
                period: Period {
                    epoch: 0,
                    phase: Phase::Setup,
                },
            };
            self.step += 1;
            let received = self
                .collective
                .all_to_all(ParcelKind::Inclusion, moment, payloads)
                .await?;
            for (rank, bytes) in (0..ranks).zip(received) {
                let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
                let mut sound = rest.is_empty();
                for entry in entries {
                    let [low, high, value @ ..] = *entry;
                    let row = first + usize::from(u16::from_le_bytes([low, high]));
                    let value = f64::from_le_bytes(value);
                    sound &= row < rows(rank) && (0.0..=1.0).contains(&value);
                    if sound {
                        take(rank, row, value);
                    }
                }
                if !sound {
                    return Err(InclusionError::BadNumbers { rank });
                }
            }
        }
        Ok(())
    }
}

/// The numbers of one round that are not zero, each behind its place in the round.
fn encode(values: &[f64], first: usize) -> Vec<u8> {
    let end = values.len().min(first + ROUND_ROWS);
    let round = values.get(first..end).unwrap_or(&[]);
    let mut bytes = Vec::new();
    for (place, value) in (0..=u16::MAX).zip(round) {
        if *value != 0.0 {
            bytes.extend(place.to_le_bytes());
            bytes.extend(value.to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
