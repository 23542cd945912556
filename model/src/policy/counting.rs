//! What a policy moves on given traces, counted from its plans alone: much faster than
//! [executing](super::conformance) them, and believing what they say.

use std::sync::Arc;

use super::conformance::{Case, ConformanceError, EpochTally, RunTally};
use super::{FillInput, PlanInput, Policy, RemoteTrace};
use crate::counters::Phase;
use crate::executor::Tally;
use crate::plan::{Place, Request, WindowPlan};

/// What a run of `policy` on `case` moves and holds. `scores` has one per node of the graph, where the policy ranks rows.
///
/// # Errors
/// The first plan or fill that fails.
pub fn count(policy: &dyn Policy, case: &Case, scores: Option<&[f64]>) -> Result<RunTally, ConformanceError> {
    let budget_rows = policy.budget_rows(&case.book, case.rank, case.asked_rows);
    let fill = policy.fill_scored(FillInput {
        book: &case.book,
        rank: case.rank,
        budget_rows,
        scores,
    })?;
    let mut state = fill.state;
    let mut charged = state.held.len() as u32;
    let mut setup = Tally {
        held_rows_peak: charged,
        ..Tally::default()
    };
    fill.requests.iter().for_each(|request| add(&mut setup, request));
    let mut epochs = Vec::with_capacity(case.epochs.len());
    for (epoch, trace) in case.epochs.iter().enumerate() {
        let failed = |error| ConformanceError::Plan { epoch, error };
        let mut planner = policy
            .plan(PlanInput {
                rank: case.rank,
                book: Arc::clone(&case.book),
                budget_rows,
                window: case.window,
                trace: Arc::clone(trace),
                next: case.epochs.get(epoch + 1).filter(|_| case.with_next).cloned(),
                from_step: if epoch == 0 { case.from_step } else { 0 },
                state: std::mem::take(&mut state),
            })
            .map_err(failed)?;
        let mut tally = EpochTally::default();
        while let Some(plan) = planner.next_window().map_err(failed)? {
            count_window(&plan, &**trace, &mut charged, &mut tally);
        }
        state = planner.into_state();
        epochs.push(tally);
    }
    Ok(RunTally {
        budget_rows,
        setup,
        epochs,
    })
}

fn count_window(plan: &WindowPlan, trace: &dyn RemoteTrace, charged: &mut u32, epoch: &mut EpochTally) {
    let mut requests = plan.requests.iter().peekable();
    for batch in &plan.batches {
        while let Some(request) = requests.next_if(|request| request.issue_gap() <= batch.step) {
            let phase = Phase::from(trace.purpose(request.needed_by_step));
            add(epoch.phase(phase), request);
            let slots = request.places.iter().filter(|place| matches!(place, Place::Slot(_)));
            *charged += slots.count() as u32;
        }
        let tally = epoch.phase(plan.purpose.into());
        tally.needed_rows += batch.places.len() as u64;
        tally.held_rows_peak = tally.held_rows_peak.max(*charged);
        *charged += batch.keeps.len() as u32;
        *charged -= batch.releases.len() as u32;
    }
}

fn add(tally: &mut Tally, request: &Request) {
    tally.feature_requests += 1;
    tally.feature_rows += request.rows.len() as u64;
}
