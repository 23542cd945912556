//! What no policy that moves rows could have beaten, beside what every run moved.
//!
//! The rows that a run needs depend on its batch size and seed and on no policy, so one pass over the traces of a batch size
//! and seed gives the bounds of all its cells: the traces are sampled once more after the runs, in this process, which costs
//! about what presampling costs one of the runs.

use std::collections::BTreeMap;

use greengnn_model::plan::RowType;
use greengnn_model::policy::{UnknownPolicy, policy_by_name};
use serde::{Deserialize, Serialize};

use super::{Cell, CellRun};
use crate::config::TrainConfig;
use crate::offline::{OfflineError, OfflineParts};

/// Rows of a whole run, set-up and evaluation included, summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowBound {
    /// Rows of all batches: what moves without a cache.
    pub needed_rows: u64,
    /// Rows that must come once, whatever the budget.
    pub compulsory_rows: u64,
    /// The fewest that any policy which moves rows can move at the budget: Belady's MIN over the run, for a cache that is
    /// empty at its start.
    pub fewest_rows: u64,
}

/// Why there are no bounds.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
}

/// Gives every run its bound. `config_of` is the configuration of a cell; `starting` hears of every batch size and seed
/// before its traces are sampled.
///
/// # Errors
/// The traces cannot be sampled.
pub fn add_bounds(
    runs: &mut [CellRun],
    parts: &OfflineParts,
    config_of: impl Fn(&Cell) -> TrainConfig,
    mut starting: impl FnMut(u32, u64),
) -> Result<(), BoundError> {
    let mut trainings: BTreeMap<(u32, u64), Vec<&mut CellRun>> = BTreeMap::new();
    for run in runs {
        let training = (run.cell.batch_size, run.cell.seed);
        trainings.entry(training).or_default().push(run);
    }
    let book = parts.row_book();
    let row_bytes = RowType::F32.row_bytes(parts.manifest().features);
    for ((batch_size, seed), mut runs) in trainings {
        starting(batch_size, seed);
        let config = config_of(&runs[0].cell);
        for rank in parts.ranks() {
            let uses = parts.run(&config, rank, None)?.uses(book).map_err(OfflineError::from)?;
            for run in &mut runs {
                let policy = policy_by_name(&run.cell.policy)?;
                let asked = run
                    .cell
                    .budget
                    .map_or(0, |budget| budget.rows(row_bytes, book.remote_nodes(rank)));
                let bound = run.bound.get_or_insert_default();
                bound.needed_rows += uses.needed_rows();
                bound.compulsory_rows += uses.compulsory_rows();
                bound.fewest_rows += uses.fewest_rows(policy.budget_rows(book, rank, asked));
            }
        }
    }
    Ok(())
}
