//! Plans for streams: where a delivery costs no request, every step is a delivery time.
//!
//! A delivery at every step moves the fewest rows that the budget allows: Belady's MIN, at every budget, none included
//! ([`bound`](super::bound)). Asked request by request that is one request per batch and owner, the price that
//! [`bulk`](super::bulk) trades rows for; as streams ([`Delivery::Stream`]) it is one per owner and epoch.

use std::sync::Arc;

use super::bulk::Bulk;
use super::{PlanError, PlanInput, Planner, Policy, RemoteTrace, UnknownPolicy, longest_window, policy_by_name};
use crate::plan::{CacheState, Delivery, WindowPlan};

/// The policy of that name, with the default parameters for this way of delivery. Plans of every policy can be streamed;
/// `bulk` makes another plan for it, [`EveryStep`].
///
/// # Errors
/// [`UnknownPolicy`] lists the names.
pub fn policy_for(name: &str, delivery: Delivery) -> Result<Arc<dyn Policy>, UnknownPolicy> {
    Ok(for_delivery(policy_by_name(name)?, delivery))
}

/// The policy itself, or another of its name whose plans suit the delivery better.
pub fn for_delivery(policy: Arc<dyn Policy>, delivery: Delivery) -> Arc<dyn Policy> {
    match delivery {
        Delivery::Stream if policy.name() == Bulk::default().name() => Arc::new(EveryStep),
        _ => policy,
    }
}

/// How the plans of the policy of that name are asked and answered where nobody says how, by a rank with that many slots
/// for that many remote rows.
///
/// Those of `bulk` as streams: they then move the fewest rows, with one request per owner and epoch, at no cost that could
/// be measured (`BENCHMARKS.md`). Unless all rows fit: windows then move no more rows, and may ask less than once an epoch.
/// Other policies are asked request by request, like the systems that they stand for.
pub fn usual_delivery(policy: &str, budget_rows: u32, remote_rows: u32) -> Delivery {
    if policy == Bulk::default().name() && budget_rows < remote_rows {
        Delivery::Stream
    } else {
        Delivery::Windowed
    }
}

/// `bulk` with a delivery at every step: rows come for the batch that needs them, and are kept by next use.
///
/// A window of its plans is not a time to wait for but a part of the schedule: it lists the deliveries of several steps,
/// so that a schedule travels in a few parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EveryStep;

impl Policy for EveryStep {
    fn name(&self) -> &'static str {
        Bulk::default().name()
    }

    fn needs_next_epoch(&self) -> bool {
        true
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        input.check()?;
        let (trace, window, next_step) = (Arc::clone(&input.trace), input.window, input.from_step);
        let bulk = Bulk {
            lead: false,
            ..Bulk::default()
        };
        let steps = bulk.plan(PlanInput { window: 1, ..input })?;
        Ok(Box::new(Joined {
            steps,
            trace,
            window,
            next_step,
        }))
    }
}

/// Joins plans of single steps to windows.
struct Joined {
    steps: Box<dyn Planner>,
    trace: Arc<dyn RemoteTrace>,
    window: u32,
    next_step: u32,
}

impl Planner for Joined {
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError> {
        let Some(mut window) = self.steps.next_window()? else {
            return Ok(None);
        };
        let end = longest_window(&*self.trace, self.next_step, self.window);
        self.next_step += window.batches.len() as u32;
        while self.next_step < end {
            let Some(step) = self.steps.next_window()? else { break };
            self.next_step += step.batches.len() as u32;
            window.requests.extend(step.requests);
            window.batches.extend(step.batches);
        }
        Ok(Some(window))
    }

    fn into_state(self: Box<Self>) -> CacheState {
        self.steps.into_state()
    }
}

#[cfg(test)]
mod tests;
