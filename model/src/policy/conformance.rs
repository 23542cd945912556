//! Checks a policy against the rules of [`Policy`], on any trace, with the executor in memory.

use std::sync::Arc;

use super::{Fill, FillError, FillInput, PlanError, PlanInput, Policy, RemoteTrace};
use crate::book::{PartitionBook, Rank};
use crate::counters::Phase;
use crate::executor::{Arrivals, ExecuteError, Executor, Tally, Violation};
use crate::plan::{CacheState, Delivery, DeviceRows, Level, Place, WindowPlan};

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
    check_run(policy, case, scores, Delivery::Windowed, None)
}

/// The same with a device that keeps rows: as many as `asked_device_rows`, or as the policy puts there by itself.
///
/// # Errors
/// The first rule that is broken, or the first plan or fill that fails.
pub fn check_levels(
    policy: &dyn Policy,
    case: &Case,
    scores: Option<&[f64]>,
    asked_device_rows: Option<u32>,
) -> Result<RunTally, ConformanceError> {
    check_run(policy, case, scores, Delivery::Windowed, asked_device_rows)
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
    check_run(policy, case, scores, delivery, None)
}

fn check_run(
    policy: &dyn Policy,
    case: &Case,
    scores: Option<&[f64]>,
    delivery: Delivery,
    asked_device_rows: Option<u32>,
) -> Result<RunTally, ConformanceError> {
    let budget_rows = policy.budget_rows(&case.book, case.rank, case.asked_rows);
    ensure(budget_rows <= case.book.remote_nodes(case.rank), 0, 6, || {
        format!("{budget_rows} slots are more than there are remote rows")
    })?;
    let device_rows = policy.device_rows(budget_rows, asked_device_rows);
    ensure(device_rows <= budget_rows, 0, 14, || {
        format!("{device_rows} rows on the device are more than the budget of {budget_rows}")
    })?;
    let fill_input = FillInput {
        book: &case.book,
        rank: case.rank,
        budget_rows,
        device_rows,
        scores,
    };
    let fill = policy.fill_scored(fill_input)?;
    ensure(fill == policy.fill_scored(fill_input)?, 0, 12, || {
        "two fills differ".to_owned()
    })?;
    check_device(&fill, case, device_rows)?;
    let device = fill.device.clone();
    let mut executors = [Arrivals::AtOnce, Arrivals::WhenNeeded].map(|arrivals| {
        let executor = Executor::new(Arc::clone(&case.book), case.rank, budget_rows, arrivals);
        (arrivals, executor.with_delivery(delivery))
    });
    for (_, executor) in &mut executors {
        run_fill(executor, &fill)?;
    }
    let setup = executors[0].1.tally(Phase::Setup);
    check_charge(&device, budget_rows, &setup, 0)?;

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
        check_untouched(&device, &plans, epoch)?;
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
        for tally in &tallies {
            check_charge(&device, budget_rows, &tally.training, epoch)?;
            check_charge(&device, budget_rows, &tally.evaluation, epoch)?;
        }
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

/// The device has no more rows than it may keep, its slots are filled, and the rank's own rows on it are such.
fn check_device(fill: &Fill, case: &Case, device_rows: u32) -> Result<(), ConformanceError> {
    let device = &fill.device;
    let broken = |kept, what: &str| ensure(kept, 0, 14, || what.to_owned());
    ensure(device.len() <= device_rows as usize, 0, 14, || {
        format!("the device keeps {} rows and may keep {device_rows}", device.len())
    })?;
    let filled = fill.state.held.iter().filter(|held| held.slot < device.slots);
    broken(
        filled.count() == device.slots as usize,
        "a slot of the device is not filled",
    )?;
    broken(
        device.own.is_sorted_by(|one, other| one < other),
        "own rows on the device do not ascend",
    )?;
    let known = device
        .own
        .last()
        .is_none_or(|last| *last < case.book.part_nodes(case.rank));
    broken(known, "the device is to keep an own row that the rank does not have")
}

/// The rank's own rows on the device and the charged slots are within the budget together.
fn check_charge(device: &DeviceRows, budget_rows: u32, tally: &Tally, epoch: usize) -> Result<(), ConformanceError> {
    let charged = tally.held_rows_peak as usize + device.own.len();
    ensure(charged <= budget_rows as usize, epoch, 15, || {
        format!(
            "{} slots and {} own rows on the device are more than the budget of {budget_rows}",
            tally.held_rows_peak,
            device.own.len()
        )
    })
}

/// No plan fills, frees or overwrites a slot of the device.
fn check_untouched(device: &DeviceRows, plans: &[WindowPlan], epoch: usize) -> Result<(), ConformanceError> {
    let asked = plans
        .iter()
        .flat_map(|plan| &plan.requests)
        .flat_map(|request| &request.places);
    let asked = asked.filter_map(|place| match *place {
        Place::Slot(slot) => Some(slot),
        Place::Direct(_) => None,
    });
    let batches = || plans.iter().flat_map(|plan| &plan.batches);
    let released = batches().flat_map(|batch| &batch.releases).copied();
    let kept = batches().flat_map(|batch| &batch.keeps).map(|keep| keep.slot);
    let touched = asked
        .chain(released)
        .chain(kept)
        .find(|slot| device.level(*slot) == Level::Device);
    ensure(touched.is_none(), epoch, 14, || {
        format!("slot {touched:?} of the device is changed")
    })
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
