//! Planners that plan one step after the other and cut what they have into windows.

use super::{PlanError, PlanInput, Planner};
use crate::plan::{BatchPlan, CacheState, Request, WindowPlan};

/// Plans one step at a time: all of its requests leave just before it and serve it.
pub(super) trait StepPlanner: Send {
    fn input(&self) -> &PlanInput;

    /// The plan of `step`, the one after the last. Appends the step's requests, by ascending owner.
    fn plan_step(&mut self, step: u32, requests: &mut Vec<Request>) -> Result<BatchPlan, PlanError>;

    fn into_state(self) -> CacheState;
}

/// The windows of a [`StepPlanner`]: as many steps as the input allows.
pub(super) struct StepByStep<P> {
    steps: P,
    next_step: u32,
}

impl<P: StepPlanner> StepByStep<P> {
    pub(super) fn new(steps: P) -> Self {
        Self {
            next_step: steps.input().from_step,
            steps,
        }
    }
}

impl<P: StepPlanner> Planner for StepByStep<P> {
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError> {
        let input = self.steps.input();
        let first = self.next_step;
        if first >= input.trace.steps() {
            return Ok(None);
        }
        let (purpose, end) = (input.trace.purpose(first), input.window_end(first));
        let mut requests = Vec::new();
        let batches = (first..end)
            .map(|step| self.steps.plan_step(step, &mut requests))
            .collect::<Result<_, _>>()?;
        self.next_step = end;
        Ok(Some(WindowPlan {
            purpose,
            requests,
            batches,
        }))
    }

    fn into_state(self: Box<Self>) -> CacheState {
        self.steps.into_state()
    }
}
