//! Checks a policy against the rules of [`Policy`], on any trace, with the executor in memory.

use std::sync::Arc;

use super::{Fill, FillError, FillInput, PlanError, PlanInput, Policy, RemoteTrace};
use crate::book::{PartitionBook, Rank};
use crate::counters::Phase;
use crate::executor::{Arrivals, ExecuteError, Executor, Tally, Violation};
use crate::plan::{CacheState, Delivery, WindowPlan};

#[cfg(test)]
mod tests;

/// What a policy is run on: the epochs of one rank, one after the other.
#[derive(Clone)]
pub struct Case {
    pub book: Arc<PartitionBook>,
    pub rank: Rank,
    pub epochs: Vec<Arc<dyn RemoteTrace>>,
    /// Rows that the user grants.
    pub asked_rows: u32,
    pub window: u32,
    /// The first step of the first epoch, as after a resume.
    pub from_step: u32,
    /// Whether a planner sees the epoch after its own.
    pub with_next: bool,
}

/// What one epoch moved and held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochTally {
    pub training: Tally,
    pub evaluation: Tally,
}

impl EpochTally {
    /// Requests of the epoch, evaluation included.
    pub fn feature_requests(&self) -> u64 {
        self.training.feature_requests + self.evaluation.feature_requests
    }

    /// Arrivals of rows in the epoch, evaluation included.
    pub fn deliveries(&self) -> u64 {
        self.training.deliveries + self.evaluation.deliveries
    }

    /// Rows that the epoch moved, evaluation included.
    pub fn feature_rows(&self) -> u64 {
        self.training.feature_rows + self.evaluation.feature_rows
    }
}

/// What a run of a policy moved and held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTally {
    /// Slots of the arena.
    pub budget_rows: u32,
    /// The fill.
    pub setup: Tally,
    pub epochs: Vec<EpochTally>,
}

impl RunTally {
    /// Requests of the run, the fill and evaluation included.
    pub fn feature_requests(&self) -> u64 {
        self.setup.feature_requests + self.epochs.iter().map(EpochTally::feature_requests).sum::<u64>()
    }

    /// Arrivals of rows in the run, the fill and evaluation included.
    pub fn deliveries(&self) -> u64 {
        self.setup.deliveries + self.epochs.iter().map(EpochTally::deliveries).sum::<u64>()
    }

    /// Rows that the run moved, the fill and evaluation included.
    pub fn feature_rows(&self) -> u64 {
        self.setup.feature_rows + self.epochs.iter().map(EpochTally::feature_rows).sum::<u64>()
    }
}

/// Why a policy does not conform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConformanceError {
    #[error("there is no fill")]
    Fill(#[from] FillError),
    #[error("epoch {epoch} has no plan")]
    Plan {
        epoch: usize,
        #[source]
        error: PlanError,
    },
    #[error("epoch {epoch} breaks a rule with answers {arrivals:?}")]
    Execute {
        epoch: usize,
        arrivals: Arrivals,
        #[source]
        error: ExecuteError,
    },
    #[error("epoch {epoch} breaks a rule: {violation}")]
    Rule { epoch: usize, violation: Violation },
}

/// Runs `policy` on `case` and checks every rule.
///
/// # Errors
/// The first rule that is broken, or the first plan that fails.
pub fn check(policy: &dyn Policy, case: &Case) -> Result<RunTally, ConformanceError> {
    check_scored(policy, case, None)
}

/// The same for a policy that ranks rows by scores, one per node of the graph.
///
/// # Errors
/// The first rule that is broken, or the first plan or fill that fails.
pub fn check_scored(policy: &dyn Policy, case: &Case, scores: Option<&[f64]>) -> Result<RunTally, ConformanceError> {
    check_delivered(policy, case, scores, Delivery::Windowed)
}

/// The same with what the plans ask for asked and answered as `delivery` says: streams change what counts as a request.
///
/// # Errors
/// The first rule that is broken, or the first plan or fill that fails.
pub fn check_delivered(
    policy: &dyn Policy,
    case: &Case,
    scores: Option<&[f64]>,
    delivery: Delivery,
) -> Result<RunTally, ConformanceError> {
    let budget_rows = policy.budget_rows(&case.book, case.rank, case.asked_rows);
    ensure(budget_rows <= case.book.remote_nodes(case.rank), 0, 6, || {
        format!("{budget_rows} slots are more than there are remote rows")
    })?;
    let fill_input = FillInput {
        book: &case.book,
        rank: case.rank,
        budget_rows,
        scores,
    };
    let fill = policy.fill_scored(fill_input)?;
    ensure(fill == policy.fill_scored(fill_input)?, 0, 12, || {
        "two fills differ".to_owned()
    })?;
    let mut executors = [Arrivals::AtOnce, Arrivals::WhenNeeded].map(|arrivals| {
        let executor = Executor::new(Arc::clone(&case.book), case.rank, budget_rows, arrivals);
        (arrivals, executor.with_delivery(delivery))
    });
    for (_, executor) in &mut executors {
        run_fill(executor, &fill)?;
    }
    let setup = executors[0].1.tally(Phase::Setup);

    let mut state = fill.state;
    let mut epochs = Vec::with_capacity(case.epochs.len());
    for (epoch, trace) in case.epochs.iter().enumerate() {
        let input = PlanInput {
            rank: case.rank,
            book: Arc::clone(&case.book),
            budget_rows,
            window: case.window,
            trace: Arc::clone(trace),
            next: case.epochs.get(epoch + 1).filter(|_| case.with_next).cloned(),
            from_step: if epoch == 0 { case.from_step } else { 0 },
            state,
        };
        let (plans, state_out) = plan_epoch(policy, &input, epoch)?;
        check_purity(policy, &input, epoch, &(&plans, &state_out))?;
        let longest = plans.iter().map(|plan| plan.batches.len()).max().unwrap_or(0);
        ensure(longest <= case.window as usize, epoch, 1, || {
            format!("a window has {longest} steps, more than {}", case.window)
        })?;
        ensure(
            policy.keeps_across_epochs() || state_out.held.is_empty(),
            epoch,
            11,
            || format!("{} rows are held at the end of an epoch", state_out.held.len()),
        )?;
        for (arrivals, executor) in &mut executors {
            run_epoch(executor, &input, &plans, &state_out).map_err(|error| ConformanceError::Execute {
                epoch,
                arrivals: *arrivals,
                error,
            })?;
        }
        let tallies = executors.each_ref().map(|(_, executor)| EpochTally {
            training: executor.tally(Phase::Training),
            evaluation: executor.tally(Phase::Evaluation),
        });
        epochs.push(tallies[0]);
        state = state_out;
    }
    Ok(RunTally {
        budget_rows,
        setup,
        epochs,
    })
}

fn run_fill(executor: &mut Executor, fill: &Fill) -> Result<(), ConformanceError> {
    executor
        .fill(fill)
        .map_err(|violation| ConformanceError::Rule { epoch: 0, violation })
}

fn plan_epoch(
    policy: &dyn Policy,
    input: &PlanInput,
    epoch: usize,
) -> Result<(Vec<WindowPlan>, CacheState), ConformanceError> {
    let failed = |error| ConformanceError::Plan { epoch, error };
    let mut planner = policy.plan(input.clone()).map_err(failed)?;
    let mut plans = Vec::new();
    while let Some(plan) = planner.next_window().map_err(failed)? {
        plans.push(plan);
    }
    ensure(planner.next_window().map_err(failed)?.is_none(), epoch, 1, || {
        "a planner that has ended goes on".to_owned()
    })?;
    Ok((plans, planner.into_state()))
}

fn check_purity(
    policy: &dyn Policy,
    input: &PlanInput,
    epoch: usize,
    expected: &(&Vec<WindowPlan>, &CacheState),
) -> Result<(), ConformanceError> {
    let mut again = input.clone();
    if !policy.needs_next_epoch() {
        again.next = None;
    }
    let (plans, state) = plan_epoch(policy, &again, epoch)?;
    ensure((&plans, &state) == *expected, epoch, 12, || {
        "the same input gives another plan".to_owned()
    })
}

fn run_epoch(
    executor: &mut Executor,
    input: &PlanInput,
    plans: &[WindowPlan],
    state: &CacheState,
) -> Result<(), ExecuteError> {
    executor.start_epoch(input.from_step);
    for plan in plans {
        executor.run_window(plan, &*input.trace)?;
    }
    Ok(executor.end_epoch(input.trace.steps(), state)?)
}

fn ensure(kept: bool, epoch: usize, rule: u8, what: impl FnOnce() -> String) -> Result<(), ConformanceError> {
    if kept {
        return Ok(());
    }
    Err(ConformanceError::Rule {
        epoch,
        violation: Violation {
            rule,
            step: 0,
            what: what(),
        },
    })
}
