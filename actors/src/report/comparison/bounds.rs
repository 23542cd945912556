//! What no policy that moves rows could have beaten, beside what every run moved.
//!
//! The rows that a run needs depend on its batch size and seed and on no policy, so one pass over the traces of a batch size
//! and seed gives the bounds of all its cells: the traces are sampled once more after the runs, in this process, which costs
//! about what presampling costs one of the runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use greengnn_model::policy::{Budget, Policy, UnknownPolicy, policy_by_name};

use super::{Cell, CellRun};
use crate::config::TrainConfig;
use crate::offline::{OfflineError, OfflineParts};

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
    for ((batch_size, seed), mut runs) in trainings {
        starting(batch_size, seed);
        let caches: Vec<(Arc<dyn Policy>, Budget)> = runs
            .iter()
            .map(|run| {
                Ok((
                    policy_by_name(&run.cell.policy)?,
                    run.cell.budget.unwrap_or(Budget::Rows(0)),
                ))
            })
            .collect::<Result<_, UnknownPolicy>>()?;
        let bounds = parts.bounds(&config_of(&runs[0].cell), &caches)?;
        for (run, bound) in runs.iter_mut().zip(bounds) {
            run.summary.row_bound = Some(bound);
        }
    }
    Ok(())
}
