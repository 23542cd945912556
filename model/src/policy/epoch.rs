//! `epoch`: RapidGNN's policy (arXiv 2509.05207). The rows that the epoch needs most often are fetched when it starts and
//! stay to its end; every other row is a miss and comes directly, one request per batch and owner.
//!
//! The hot rows are the `budget` rows with the highest number of batches among all steps of the epoch that are planned,
//! validation and test included, because they run through the same cache; ties by ascending id. They travel with the
//! misses of the first step, one request per owner, and count for the phase of that step. Every row that is fetched is
//! needed at least once, so a budget never costs rows. Every epoch starts cold.

use super::frequencies::Frequencies;
use super::slots::{Slots, Times, push_requests};
use super::step_by_step::{StepByStep, StepPlanner};
use super::{PlanError, PlanInput, Planner, Policy, global_ids, read_step};
use crate::book::NodeId;
use crate::plan::{BatchPlan, CacheState, Request};

/// RapidGNN's policy: one hot set per epoch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epoch;

impl Policy for Epoch {
    fn name(&self) -> &'static str {
        "epoch"
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        input.check()?;
        input.check_cold(self.name())?;
        Ok(Box::new(StepByStep::new(EpochPlanner::new(input)?)))
    }
}

/// Plans one epoch in two passes over its trace: frequencies, plans. Its memory is 8 bytes per node of the graph, 8 per
/// slot, and one window's plan.
struct EpochPlanner {
    slots: Slots,
    /// By ascending id.
    hot: Vec<NodeId>,
    input: PlanInput,
}

impl EpochPlanner {
    fn new(input: PlanInput) -> Result<Self, PlanError> {
        let mut frequencies = Frequencies::new(input.book.nodes());
        for step in input.from_step..input.trace.steps() {
            let remote = read_step(&*input.trace, &input.book, input.rank, step)?;
            frequencies.count(&[remote], &input.book);
        }
        let mut hot = frequencies.take_hottest(input.budget_rows);
        hot.sort_unstable();
        Ok(Self {
            slots: Slots::new(&input.book, input.budget_rows, &input.state),
            hot,
            input,
        })
    }
}

impl StepPlanner for EpochPlanner {
    fn input(&self) -> &PlanInput {
        &self.input
    }

    fn plan_step(&mut self, step: u32, requests: &mut Vec<Request>) -> Result<BatchPlan, PlanError> {
        let book = &self.input.book;
        let mut cold = match step == self.input.from_step {
            true => self.slots.take_all(&self.hot, step)?,
            false => Vec::new(),
        };
        let remote = read_step(&*self.input.trace, book, self.input.rank, step)?;
        let (mut nodes, mut misses) = (Vec::with_capacity(remote.len()), Vec::new());
        global_ids(&remote, book, &mut nodes);
        let places = self.slots.places(&nodes, &mut misses);
        let direct_rows = misses.len() as u32;
        if !cold.is_empty() {
            misses.append(&mut cold);
            misses.sort_by_key(|(node, _)| *node);
        }
        let times = Times {
            issue_gap: step,
            needed_by_step: step,
        };
        push_requests(book, &misses, times, requests);
        let releases = match step + 1 == self.input.trace.steps() {
            true => self.hot.iter().filter_map(|node| self.slots.release(*node)).collect(),
            false => Vec::new(),
        };
        Ok(BatchPlan {
            step,
            places,
            direct_rows,
            releases,
            keeps: Vec::new(),
        })
    }

    fn into_state(self) -> CacheState {
        self.slots.state(&self.input.book)
    }
}
