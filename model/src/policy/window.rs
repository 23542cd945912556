//! `window`: GreenGNN's own policy (arXiv 2606.02916, Algorithm 1). The most frequent rows of the next window are fetched
//! in bulk while this one trains; a row that is not among those of its window is a miss.
//!
//! The paper leaves open how large the hot sets are and what they may use. Here both hot sets that are in memory during
//! window `k` are charged, a row in both once: `n_hot` is the largest number for which every `H_k ∪ H_{k+1}` is within
//! the budget. The rest is as published: `H_k` are the `n_hot` rows with the highest number of batches in window `k`
//! (ties by id), they stay while window `k` trains whether they are needed again or not, `H_{k+1} \ H_k` is asked for
//! when window `k` starts, and the misses of a batch are `N_b \ H_k`, also where a row is on its way for `H_{k+1}`.
//! Every epoch starts cold.

use std::sync::Arc;

use super::frequencies::Frequencies;
use super::slots::{Slots, Times, push_requests, sort_requests};
use super::{PlanError, PlanInput, Planner, Policy, global_ids, read_step};
use crate::batch::RemoteRows;
use crate::book::NodeId;
use crate::plan::{BatchPlan, CacheState, Request, WindowPlan};

/// GreenGNN's policy: a hot set per window, fetched one window ahead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window;

impl Policy for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn uses_window(&self) -> bool {
        true
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        input.check()?;
        input.check_cold(self.name())?;
        Ok(Box::new(WindowPlanner::new(input)?))
    }
}

/// Plans one epoch in two passes over the trace: the first finds `n_hot`, the second the hot sets and the plans. Its
/// memory is 8 bytes per node of the graph, 4 per slot, and the rows of two windows.
struct WindowPlanner {
    hot_rows: u32,
    frequencies: Frequencies,
    slots: Slots,
    first_step: u32,
    /// The window to plan next.
    upcoming: Option<HotWindow>,
    input: PlanInput,
}

/// A window of the trace and its hot set.
struct HotWindow {
    first: u32,
    end: u32,
    remote: Vec<Arc<RemoteRows>>,
    /// By ascending global id.
    hot: Vec<NodeId>,
}

impl WindowPlanner {
    fn new(input: PlanInput) -> Result<Self, PlanError> {
        let mut frequencies = Frequencies::new(input.book.nodes());
        let hot_rows = largest_hot_sets(&input, &mut frequencies)?;
        let mut planner = Self {
            hot_rows,
            frequencies,
            slots: Slots::new(&input.book, input.budget_rows, &input.state),
            first_step: input.from_step,
            upcoming: None,
            input,
        };
        planner.upcoming = planner.hot_window(planner.first_step)?;
        Ok(planner)
    }

    /// The window that starts at step `first`, if the epoch goes on so long.
    fn hot_window(&mut self, first: u32) -> Result<Option<HotWindow>, PlanError> {
        if first >= self.input.trace.steps() {
            return Ok(None);
        }
        let end = self.input.window_end(first);
        let remote = read_window(&self.input, first, end)?;
        self.frequencies.count(&remote, &self.input.book);
        let mut hot = self.frequencies.take_hottest(self.hot_rows);
        hot.sort_unstable();
        Ok(Some(HotWindow {
            first,
            end,
            remote,
            hot,
        }))
    }

    fn plan_window(&mut self, window: &HotWindow, next_hot: &[NodeId]) -> Result<WindowPlan, PlanError> {
        let book = Arc::clone(&self.input.book);
        let mut requests: Vec<Request> = Vec::new();
        // Only the first hot set is not there when its window starts; it travels with the misses of the first step.
        let mut cold = match window.first == self.first_step {
            true => self.slots.take_all(&window.hot, window.first)?,
            false => Vec::new(),
        };
        let mut batches = Vec::with_capacity(window.remote.len());
        let (mut nodes, mut misses) = (Vec::new(), Vec::new());
        for (step, remote) in (window.first..).zip(&window.remote) {
            global_ids(remote, &book, &mut nodes);
            let places = self.slots.places(&nodes, &mut misses);
            batches.push(BatchPlan {
                step,
                places,
                direct_rows: misses.len() as u32,
                releases: Vec::new(),
                keeps: Vec::new(),
            });
            if !cold.is_empty() {
                misses.append(&mut cold);
                misses.sort_by_key(|(node, _)| *node);
            }
            let times = Times {
                issue_gap: step,
                needed_by_step: step,
            };
            push_requests(&book, &misses, times, &mut requests);
        }
        // From here on rows of the next hot set have slots too; no batch of this window may use them.
        let ahead = self.slots.take_all(next_hot, window.first)?;
        let times = Times {
            issue_gap: window.first,
            needed_by_step: window.end,
        };
        push_requests(&book, &ahead, times, &mut requests);
        sort_requests(&mut requests);
        if let Some(last) = batches.last_mut() {
            let stays = |node: &NodeId| next_hot.binary_search(node).is_ok();
            let leaving = window.hot.iter().filter(|node| !stays(node));
            last.releases = leaving.filter_map(|node| self.slots.release(*node)).collect();
        }
        Ok(WindowPlan {
            purpose: self.input.trace.purpose(window.first),
            requests,
            batches,
        })
    }
}

impl Planner for WindowPlanner {
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError> {
        let Some(window) = self.upcoming.take() else {
            return Ok(None);
        };
        let next = self.hot_window(window.end)?;
        let next_hot = next.as_ref().map_or(&[][..], |next| &next.hot);
        let plan = self.plan_window(&window, next_hot)?;
        self.upcoming = next;
        Ok(Some(plan))
    }

    fn into_state(self: Box<Self>) -> CacheState {
        self.slots.state(&self.input.book)
    }
}

fn read_window(input: &PlanInput, first: u32, end: u32) -> Result<Vec<Arc<RemoteRows>>, PlanError> {
    (first..end)
        .map(|step| read_step(&*input.trace, &input.book, input.rank, step))
        .collect()
}

/// `n_hot`: the largest number of hot rows for which the hot sets of any two windows that follow each other are together
/// within the budget.
fn largest_hot_sets(input: &PlanInput, frequencies: &mut Frequencies) -> Result<u32, PlanError> {
    let mut hot_rows = input.budget_rows;
    let mut before: Vec<NodeId> = Vec::new();
    let mut first = input.from_step;
    while first < input.trace.steps() && hot_rows > 0 {
        let end = input.window_end(first);
        frequencies.count(&read_window(input, first, end)?, &input.book);
        let hottest = frequencies.take_hottest(hot_rows);
        hot_rows = frequencies.largest_pair(&before, &hottest, input.budget_rows, hot_rows);
        before = hottest;
        first = end;
    }
    Ok(hot_rows)
}
