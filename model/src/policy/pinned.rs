//! Policies whose cache never changes: `on-demand` holds nothing, `full` holds everything. A row that is not held comes
//! directly for the batch that needs it, one request per batch and owner.

use super::slots::{Times, push_requests};
use super::step_by_step::{StepByStep, StepPlanner};
use super::{Fill, PlanError, PlanInput, Planner, Policy, read_step};
use crate::book::{NodeId, PartitionBook, Rank};
use crate::plan::{BatchPlan, CacheState, HeldRow, Place, Request, RowType};

/// DistDGL's way: nothing is held, and every batch asks every owner of a row that it needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnDemand;

/// Replication: every remote row is fetched at set-up and stays. The honest upper bound of what memory buys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Full;

impl Policy for OnDemand {
    fn name(&self) -> &'static str {
        "on-demand"
    }

    fn budget_rows(&self, _book: &PartitionBook, _rank: Rank, _asked: u32) -> u32 {
        0
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        input.check_cold(self.name())?;
        plan_pinned(input)
    }
}

impl Policy for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn budget_rows(&self, book: &PartitionBook, rank: Rank, _asked: u32) -> u32 {
        book.remote_nodes(rank)
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    /// Every remote row by ascending global id, as far as the budget reaches.
    fn fill(&self, book: &PartitionBook, rank: Rank, budget_rows: u32) -> Fill {
        let rows: Vec<NodeId> = book.remote_ids(rank).take(budget_rows as usize).collect();
        fill_levels(book, &[], &rows)
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        plan_pinned(input)
    }
}

/// The fill that puts rows into the first slots: those of `device`, then those of `host`, each by ascending id.
pub(super) fn fill_levels(book: &PartitionBook, device: &[NodeId], host: &[NodeId]) -> Fill {
    let mut slots: Vec<(NodeId, u32)> = device.iter().chain(host).copied().zip(0..).collect();
    slots.sort_unstable();
    let placed: Vec<(NodeId, Place)> = slots.iter().map(|(node, slot)| (*node, Place::Slot(*slot))).collect();
    let times = Times {
        issue_gap: 0,
        needed_by_step: 0,
    };
    let mut fill = Fill::default();
    push_requests(book, &placed, times, &mut fill.requests);
    fill.state.held = slots
        .into_iter()
        .map(|(node, slot)| {
            let home = book.row_home(node);
            HeldRow {
                owner: home.owner,
                row: home.row,
                slot,
            }
        })
        .collect();
    fill
}

/// Plans around a cache that never changes. Its memory is the state and one window's plan.
struct PinnedPlanner {
    input: PlanInput,
}

/// Plans around what `input` holds.
pub(super) fn plan_pinned(input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
    input.check()?;
    Ok(Box::new(StepByStep::new(PinnedPlanner { input })))
}

impl StepPlanner for PinnedPlanner {
    fn input(&self) -> &PlanInput {
        &self.input
    }

    fn plan_step(&mut self, step: u32, requests: &mut Vec<Request>) -> Result<BatchPlan, PlanError> {
        let remote = read_step(&*self.input.trace, &self.input.book, self.input.rank, step)?;
        // Both lists ascend by owner and row, so one walk along the held rows finds all of them.
        let mut held = self.input.state.held.iter().peekable();
        let mut places = Vec::with_capacity(remote.len());
        let mut direct_rows = 0;
        for owned in &remote.owners {
            let mut misses = Vec::new();
            let mut miss_places = Vec::new();
            for row in &owned.rows {
                let sought = (owned.owner, *row);
                while held.next_if(|held| (held.owner, held.row) < sought).is_some() {}
                let place = match held.next_if(|held| (held.owner, held.row) == sought) {
                    Some(held) => Place::Slot(held.slot),
                    None => {
                        misses.push(*row);
                        miss_places.push(Place::Direct(direct_rows));
                        direct_rows += 1;
                        Place::Direct(direct_rows - 1)
                    }
                };
                places.push(place);
            }
            if !misses.is_empty() {
                requests.push(Request {
                    owner: owned.owner,
                    rows: misses,
                    places: miss_places,
                    dtype: RowType::default(),
                    issue_after_step: step.checked_sub(1),
                    needed_by_step: step,
                    later: Vec::new(),
                });
            }
        }
        Ok(BatchPlan {
            step,
            places,
            direct_rows,
            releases: Vec::new(),
            keeps: Vec::new(),
        })
    }

    fn into_state(self) -> CacheState {
        self.input.state
    }
}
