//! Scores of rows for [static policies](super::scored): one number per node of the graph, by global id. Those of the
//! rank's own rows are never looked at.

use super::{PlanError, RemoteTrace, global_ids, read_step};
use crate::book::{NodeId, PartitionBook, Rank};
use crate::sampling::Topology;

/// A list of neighbours that names a node which the graph does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a neighbour of node {node} is node {neighbor}, but the graph has {nodes} nodes; check its files")]
pub struct UnknownNeighbor {
    pub node: NodeId,
    pub neighbor: NodeId,
    pub nodes: u32,
}

/// How many neighbour lists name each node: its out-degree, PaGraph's score. An edge that is there twice counts twice,
/// because its two positions are picked apart.
///
/// A row of a [`Topology`] lists in-neighbours, and sampling goes from a node to those that its row lists; so what makes
/// a node often needed is its out-degree, which differs from the length of its own row where a graph is directed. The
/// counts of parts add up to those of the graph, so every owner can count over its own rows.
///
/// # Errors
/// [`UnknownNeighbor`].
pub fn out_degrees<'a>(parts: impl IntoIterator<Item = Topology<'a>>, nodes: u32) -> Result<Vec<u32>, UnknownNeighbor> {
    let mut degrees = vec![0u32; nodes as usize];
    for part in parts {
        for row in 0..part.rows() {
            for neighbor in part.row(row) {
                let degree = degrees.get_mut(*neighbor as usize).ok_or(UnknownNeighbor {
                    node: part.first + row,
                    neighbor: *neighbor,
                    nodes,
                })?;
                *degree = degree.saturating_add(1);
            }
        }
    }
    Ok(degrees)
}

/// Degrees as scores.
pub fn degree_scores(degrees: &[u32]) -> Vec<f64> {
    degrees.iter().map(|degree| f64::from(*degree)).collect()
}

/// In how many batches of `traces` a rank needs each row: GNNLab's score, where the traces are of `K` epochs that are
/// drawn for [`Purpose::Presample`](crate::rng::Purpose::Presample) and only counted.
///
/// # Errors
/// A trace that cannot be read, or whose rows are not remote rows of `rank`.
pub fn presample_counts<'a>(
    traces: impl IntoIterator<Item = &'a dyn RemoteTrace>,
    book: &PartitionBook,
    rank: Rank,
) -> Result<Vec<f64>, PlanError> {
    if rank >= book.parts() {
        return Err(PlanError::UnknownRank {
            rank,
            parts: book.parts(),
        });
    }
    let mut counts = vec![0f64; book.nodes() as usize];
    let mut nodes = Vec::new();
    for trace in traces {
        for step in 0..trace.steps() {
            global_ids(&*read_step(trace, book, rank, step)?, book, &mut nodes);
            nodes.iter().for_each(|node| counts[*node as usize] += 1.0);
        }
    }
    Ok(counts)
}

/// Counts the nodes of a batch, the rank's own included: over the batches of presampled epochs these are
/// [`presample_counts`] and how often the rank needs its own rows.
pub fn count_batch(nodes: &[NodeId], counts: &mut [f64]) {
    for node in nodes {
        if let Some(count) = counts.get_mut(*node as usize) {
            *count += 1.0;
        }
    }
}

/// How many batches of an epoch need each row, by an estimate that counts correct: `weight` times the probabilities of
/// `estimate` times `batches`, the batches of an epoch, and `1 - weight` times the mean of `counts` over `epochs`.
///
/// The estimate takes for independent what is not; counts of few batches are coarse. Each makes up for the other.
pub fn corrected(estimate: &[f64], batches: u32, counts: &[f64], epochs: u32, weight: f64) -> Vec<f64> {
    let (of_estimate, of_counts) = (weight * f64::from(batches), (1.0 - weight) / f64::from(epochs.max(1)));
    let both = estimate.iter().zip(counts);
    both.map(|(estimate, count)| of_estimate * estimate + of_counts * count)
        .collect()
}
