//! `bulk`: rows are asked for at few times, many at once, and what the budget has left keeps the rows that are needed
//! again soonest, across epochs.
//!
//! # Delivery times
//!
//! Each owner has delivery times of its own, and a use is served by the last one before it or by a row that is held
//! ([`delivery`](super::delivery)). Which times are best is a question of what a request costs beside a row: the
//! [search](Bulk::search) prices the choices that none beats in both requests and rows, of which one end is a delivery
//! at every batch, the fewest rows that any policy can move at the budget, and takes the cheapest. It costs about as much
//! as reading the trace once. Owners that cost more than others have [weights](Bulk::owner_weights).
//!
//! # Windows
//!
//! Without a search, and where the horizon has so many steps that one would say little, all owners have the same windows. A
//! window is as long as the rows of its batches but the first, which is assembled at once and held by nobody, fit into
//! a share of the budget: `|N_{s+1} ∪ .. ∪ N_e| <= share`. A batch that does not fit is a window alone. Greedy windows
//! are the fewest for that bound.
//!
//! # Retention
//!
//! The request of window `[s, e]` leaves at gap `s`. Rows of `N_s` come directly; rows for later batches go into slots
//! and are charged from gap `s` on, and so is every row until its last use in the window: this load is mandatory, and it
//! is at most `|N_{s+1} ∪ .. ∪ N_e|`. What is free beside it may hold rows for a later window. Such a row spares one
//! fetch if it is held from its last use up to gap `s` (needed by the first batch of its next window, which could also
//! fetch it directly), or to gap `s - 1` (needed by a later batch, and so charged at gap `s` in any case). At the first
//! gap that overflows, the rows whose interval ends last are dropped. Exchanging a row that is kept for one
//! that ends earlier never costs a fetch, so this moves the fewest rows for the given times and horizon (the sweep of
//! the optimal interval packing; with a delivery at every batch it is Belady's MIN with bypass). The horizon is the rest
//! of the epoch and the next one; rows that it does not need again stay while there is room, and count as half a fetch in
//! a search if there is none.
//!
//! # Lead
//!
//! Where slots are free, a request leaves earlier than gap `s`, at the earliest gap since the delivery before from which
//! all of its rows have room, so that it has several steps of training to hide behind. This changes neither the rows that
//! move nor the number of requests.
//!
//! # Order
//!
//! The rows of a searched request are in the order of their first use, and a step waits for those alone that it needs
//! ([`Request::later`]): the first batch trains while the rest of its window is still on the way, also at the start of a
//! run, where short windows would do the same for more requests. A delivery may serve steps of the next epoch; its rows
//! have come when this one ends.

mod horizon;
mod lead;
mod sweep;
mod timed;

use std::sync::Arc;

use self::horizon::Horizon;
use self::lead::{Lead, Room, lead};
use self::sweep::{DirectRow, HeldWindow, Sweep};
use self::timed::TimedPlanner;
use super::delivery::Search;
use super::slots::{Slots, Times, push_requests, sort_requests};
use super::{PlanError, PlanInput, Planner, Policy, global_ids};
use crate::book::{NodeId, PartitionBook};
use crate::plan::{BatchPlan, CacheState, Keep, Place, Request, WindowPlan};

/// Owners times the square of the horizon's steps up to which delivery times are searched for: 8 MiB of counts. Beyond it
/// all owners have the same windows.
const LARGEST_SEARCH: u64 = 1 << 22;

/// Our policy: bulk requests, retention by next use, a cache that lives across epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// The share of the budget, in percent and at most 100, that the rows of one window may fill where there is no
    /// search. The rest is sure to be there for rows of later windows: a larger share asks less often and moves more rows.
    /// The default, three quarters, saves most of the requests for a few percent more rows.
    pub window_share_percent: u32,
    /// Whether requests leave early where there is room.
    pub lead: bool,
    /// Gives each owner the delivery times that a search finds, in place of windows. The default searches for the least
    /// cost where a request costs as much as [`Search::CROSSOVER_ROWS`] rows.
    pub search: Option<Search>,
    /// By part, how often its requests and rows count in a search. Empty, the default: all count once.
    pub owner_weights: Vec<u32>,
}

impl Default for Bulk {
    fn default() -> Self {
        Self {
            window_share_percent: 75,
            lead: true,
            search: Some(Search::default()),
            owner_weights: Vec::new(),
        }
    }
}

impl Bulk {
    /// The same windows for all owners, without a search.
    pub fn windows_only() -> Self {
        Self {
            search: None,
            ..Self::default()
        }
    }

    /// The plan that moves the fewest rows at the budget, whatever the requests: every batch that needs rows is a window.
    pub fn fewest_rows() -> Self {
        Self {
            window_share_percent: 0,
            ..Self::windows_only()
        }
    }
}

impl Policy for Bulk {
    fn name(&self) -> &'static str {
        "bulk"
    }

    fn uses_window(&self) -> bool {
        true
    }

    fn needs_next_epoch(&self) -> bool {
        true
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        input.check()?;
        let owners = u64::from(input.book.parts()).saturating_sub(1);
        let next_steps = input.next.as_ref().map_or(0, |next| next.steps());
        let steps = u64::from(input.trace.steps() - input.from_step) + u64::from(next_steps);
        if let Some(search) = &self.search
            && owners.saturating_mul(steps.saturating_mul(steps)) <= LARGEST_SEARCH
        {
            return Ok(Box::new(TimedPlanner::new(input, self, search)?));
        }
        let share = u64::from(input.budget_rows) * u64::from(self.window_share_percent.min(100)) / 100;
        // At most the budget, so the cast keeps the value.
        Ok(Box::new(BulkPlanner::new(input, share as u32, self.lead)?))
    }
}

/// Plans one epoch of windows in three passes over its trace and one over the next: windows, next uses (backwards), plans. Its
/// memory is 4 bytes per remote row of every batch of the epoch, freed as the plans go on, 12 bytes per node of the graph,
/// 8 per slot, and the rows of two windows.
struct BulkPlanner {
    book: Arc<PartitionBook>,
    sweep: Sweep,
    slots: Slots,
    lead: bool,
    /// The window to plan next.
    upcoming: Option<HeldWindow>,
    /// Slots that are free at the gap before the upcoming window.
    spare: u32,
}

impl BulkPlanner {
    fn new(input: PlanInput, share: u32, lead: bool) -> Result<Self, PlanError> {
        let slots = Slots::new(&input.book, input.budget_rows, &input.state);
        let book = Arc::clone(&input.book);
        let free = input.budget_rows - input.state.held.len() as u32;
        let horizon = Horizon::new(&input, share)?;
        let mut sweep = Sweep::new(input, horizon);
        let upcoming = sweep.next_window()?;
        let fetched = upcoming.as_ref().map_or(0, |window| window.early.len() as u32);
        Ok(Self {
            book,
            sweep,
            slots,
            lead,
            upcoming,
            spare: free.saturating_sub(fetched),
        })
    }

    /// Gives slots to `rows` at a gap, and lists them with their places.
    fn take_slots(&mut self, rows: &[NodeId], gap: u32) -> Result<Vec<(NodeId, Place)>, PlanError> {
        rows.iter()
            .map(|node| Ok((*node, Place::Slot(self.slots.take(*node, gap)?))))
            .collect()
    }

    fn plan_window(&mut self, window: &HeldWindow, leads: &[Lead]) -> Result<WindowPlan, PlanError> {
        let mut requests: Vec<Request> = Vec::new();
        let mut batches = Vec::with_capacity(window.remote.len());
        let mut nodes = Vec::new();
        let first = window.first;
        // What has not left early leaves now, the rows of the first step directly.
        let mut rows = self.take_slots(&window.early, first)?;
        let direct = (0..).zip(&window.direct);
        rows.extend(direct.map(|(place, row)| (row.node, Place::Direct(place))));
        // Two ascending runs, which a stable sort merges.
        rows.sort_by_key(|(node, _)| *node);
        let times = Times {
            issue_gap: first,
            needed_by_step: first,
        };
        push_requests(&self.book, &rows, times, &mut requests);

        for ((step, remote), drops) in (first..).zip(&window.remote).zip(&window.drops) {
            for lead in leads.iter().filter(|lead| lead.gap == step) {
                let rows = self.take_slots(&lead.rows, step)?;
                let times = Times {
                    issue_gap: step,
                    needed_by_step: window.end,
                };
                push_requests(&self.book, &rows, times, &mut requests);
            }
            global_ids(remote, &self.book, &mut nodes);
            let direct: &[DirectRow] = if step == first { &window.direct } else { &[] };
            batches.push(self.plan_step(step, &nodes, direct, drops)?);
        }
        sort_requests(&mut requests);
        Ok(WindowPlan {
            purpose: self.sweep.purpose(first),
            requests,
            batches,
        })
    }

    /// Plans a step. `direct` are those of its rows that have no slot, `drops` what is not held after it.
    fn plan_step(
        &mut self,
        step: u32,
        nodes: &[NodeId],
        direct: &[DirectRow],
        drops: &[NodeId],
    ) -> Result<BatchPlan, PlanError> {
        let mut directs = 0;
        let place = |node: &NodeId| match self.slots.get(*node) {
            Some(slot) => Place::Slot(slot),
            None => {
                directs += 1;
                Place::Direct(directs - 1)
            }
        };
        let places = nodes.iter().map(place).collect();
        let releases = drops.iter().filter_map(|node| self.slots.release(*node)).collect();
        let mut keeps = Vec::new();
        for (place, row) in (0..).zip(direct).filter(|(_, row)| row.kept) {
            keeps.push(Keep {
                direct: place,
                slot: self.slots.take(row.node, step + 1)?,
            });
        }
        Ok(BatchPlan {
            step,
            places,
            direct_rows: direct.len() as u32,
            releases,
            keeps,
        })
    }
}

impl Planner for BulkPlanner {
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError> {
        let Some(window) = self.upcoming.take() else {
            return Ok(None);
        };
        self.upcoming = self.sweep.next_window()?;
        let mut room = Room::new(&window, self.spare);
        let leads = match &mut self.upcoming {
            Some(next) if self.lead => lead(next, &mut room, &self.book),
            _ => Vec::new(),
        };
        self.spare = room.at_end();
        self.plan_window(&window, &leads).map(Some)
    }

    fn into_state(self: Box<Self>) -> CacheState {
        self.slots.state(&self.book)
    }
}
