//! Refines a partition so that an epoch of training needs fewer remote rows.
//!
//! PACER (DOI 10.1145/3697805) refines the parts of a general partitioner by how often each of them will read each row. Its
//! algorithm is not public; this is ours. A general partitioner cuts few edges, but what training pays for is the rows that
//! batches need from other parts, and a row counts by how often it is drawn:
//!
//! 1. [`Demand`] estimates `F_p(v)`, in how many batches of an epoch part `p` needs row `v`, from the graph and the seeds
//!    of each part alone, by [vertex inclusion probabilities](crate::policy::vip()). Counts of presampled epochs can take
//!    part in it.
//! 2. *Node moves* (`node_moves`) give nodes, with their edges, seeds and rows, to other parts, within the balance of nodes, train
//!    seeds and edges. They change who trains what, and so `F`; a sweep stays only if the estimate falls.
//! 3. *Row moves* ([`place_rows`]) give feature rows to other owners than their nodes'. They change neither who trains
//!    what nor `F`, and the best placement under the balance of rows is found exactly.
//!
//! The measure of all of it is the expected number of remote rows of an epoch, the sum of `F_p(v)` over all rows and the
//! parts that do not own them, which is what the policy `on-demand` moves. [`presampled_rows`] counts what the sampler
//! really draws.

use std::convert::Infallible;

use serde::{Deserialize, Serialize};

use super::{BALANCE_LIMIT, PartitionError, check_neighbors};
use crate::book::{NodeId, PartId};
use crate::policy::vip::VipError;
use crate::rng::Purpose;
use crate::sampling::{PresampleError, QueryError, Topology};
use crate::store::{GraphStore, RefinementRecord};

mod demand;
mod node_moves;
mod presampled;
mod row_moves;
#[cfg(test)]
mod tests;

pub use demand::{BatchShape, Demand};
pub use node_moves::Sweep;
pub use presampled::{presampled_demand, presampled_rows};
pub use row_moves::place_rows;

/// What may be given to other parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moves {
    /// Feature rows alone, which changes no weights.
    Rows,
    /// Nodes with their seeds, edges and rows.
    Seeds,
    /// Nodes first, then rows.
    Both,
}

/// How a partition is refined.
#[derive(Clone, Debug, PartialEq)]
pub struct RefineSpec {
    pub moves: Moves,
    /// The batches that the parts will train.
    pub shape: BatchShape,
    /// The seed of the run whose first epoch is counted, before and after.
    pub seed: u64,
    /// Epochs whose counts correct the estimate before rows are moved; 0 for the estimate alone.
    pub presampled_epochs: u32,
}

/// Why a partition was not refined.
#[derive(Debug, thiserror::Error)]
pub enum RefineError {
    #[error("a partition is refined for the batches that will train, which need at least one fanout")]
    NoFanouts,
    #[error(transparent)]
    Estimate(#[from] VipError),
    #[error(transparent)]
    Partition(#[from] PartitionError),
    #[error("an epoch cannot be presampled: {0}")]
    Presample(#[from] Box<PresampleError<QueryError, Infallible>>),
}

/// A refined partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Refined {
    /// The part of every node.
    pub assignment: Vec<PartId>,
    /// The owner of every feature row, where rows were moved.
    pub row_owners: Option<Vec<PartId>>,
    /// What it was good for.
    pub record: RefinementRecord,
}

/// Refines the assignment of a graph. The same input gives the same output at any number of threads.
///
/// Time is that of a few passes over the edges per part, hop and sweep; memory is 8 bytes per node, part and hop beside 4
/// bytes per edge for the presampled epochs.
///
/// # Errors
/// An assignment that does not fit the graph, a batch size of 0, no fanouts, or a graph that names strange neighbours.
pub fn refine(
    graph: &GraphStore,
    assignment: &[PartId],
    parts: PartId,
    spec: &RefineSpec,
) -> Result<Refined, RefineError> {
    let train = graph.split(Purpose::Train);
    super::write::check_assignment(graph, assignment, parts)?;
    check_neighbors(graph.topology())?;
    if spec.shape.fanouts.is_empty() {
        return Err(RefineError::NoFanouts);
    }
    let problem = Problem {
        graph: graph.topology(),
        train,
        parts,
        shape: &spec.shape,
    };
    let start = problem.demand(assignment)?;
    let expected_rows_before = start.remote_rows(assignment);

    let (assignment_after, demand, sweeps) = match spec.moves {
        Moves::Rows => (assignment.to_vec(), start, Vec::new()),
        Moves::Seeds | Moves::Both => node_moves::move_nodes(&problem, assignment, start)?,
    };
    let row_owners = match spec.moves {
        Moves::Seeds => None,
        Moves::Rows | Moves::Both => {
            // Counts may decide, but what is reported is the estimate alone.
            let corrected = match spec.presampled_epochs {
                0 => None,
                epochs => {
                    let counted = presampled_demand(&problem, &assignment_after, spec.seed, 0..epochs)?;
                    Some(demand.mean_with(&counted))
                }
            };
            let deciding = corrected.as_ref().unwrap_or(&demand);
            Some(place_rows(deciding, &assignment_after, BALANCE_LIMIT))
        }
    };

    let owners_after = row_owners.as_deref().unwrap_or(&assignment_after);
    let moved = |one: &[PartId], other: &[PartId]| one.iter().zip(other).filter(|(one, other)| one != other).count();
    let counted_before = presampled_rows(&problem, assignment, &[assignment, owners_after], spec.seed)?;
    let presampled_rows_after = if assignment_after == assignment {
        counted_before[1]
    } else {
        presampled_rows(&problem, &assignment_after, &[owners_after], spec.seed)?[0]
    };
    let record = RefinementRecord {
        moves: spec.moves,
        batch_size: spec.shape.batch_size,
        fanouts: spec.shape.fanouts.clone(),
        presampled_epochs: spec.presampled_epochs,
        sweeps: sweeps.len() as u32,
        moved_nodes: moved(&assignment_after, assignment) as u32,
        moved_seeds: train
            .iter()
            .filter(|node| assignment[**node as usize] != assignment_after[**node as usize])
            .count() as u32,
        moved_rows: moved(owners_after, &assignment_after) as u32,
        balance_rows: balance(owners_after, parts),
        expected_rows_before,
        expected_rows_after: demand.remote_rows(owners_after),
        presampled_rows_before: counted_before[0],
        presampled_rows_after,
    };
    Ok(Refined {
        assignment: assignment_after,
        row_owners,
        record,
    })
}

/// A graph, its seeds, and how they will be sampled.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    pub graph: Topology<'a>,
    pub train: &'a [NodeId],
    pub parts: PartId,
    pub shape: &'a BatchShape,
}

/// Members of the fullest part over those of the mean part.
fn balance(owners: &[PartId], parts: PartId) -> f64 {
    let mut counts = vec![0u32; usize::from(parts)];
    owners.iter().for_each(|owner| counts[usize::from(*owner)] += 1);
    let largest = counts.iter().max().copied().unwrap_or(0);
    f64::from(largest) * f64::from(parts) / owners.len().max(1) as f64
}

/// The most that a part may hold of a load of which it has `own` and all have `total`: up to `limit` times the mean, or what
/// it has already.
fn capacity(own: u64, total: u64, parts: usize, limit: f64) -> u64 {
    own.max((limit * total as f64 / parts as f64) as u64)
}
