//! `bulk` where each owner has delivery times of its own: the [`Schedule`] of counts, row by row.

use std::collections::HashMap;
use std::sync::Arc;

use crate::book::NodeId;
use crate::plan::{BatchPlan, CacheState, Keep, Place, WindowPlan};
use crate::policy::delivery::{ReuseCounts, Schedule, Search};
use crate::policy::slots::{Slots, Times, global_id, push_requests};
use crate::policy::{PlanError, PlanInput, Planner, global_ids, read_step};

/// A use that the horizon does not show.
const NEVER: u32 = u32::MAX;

/// Plans one epoch. Steps of the horizon, this epoch from `from_step` on and the next, are numbered from 0.
///
/// Its memory is that of [`ReuseCounts`], 4 bytes per remote row of every batch of the epoch, 5 per node of the graph, and
/// 4 per row that waits for a later delivery time.
pub(super) struct TimedPlanner {
    input: PlanInput,
    slots: Slots,
    schedule: Schedule,
    /// The drop of the schedule that is next.
    next_drop: usize,
    /// Per part its place among the owners of the schedule.
    owner_places: Vec<usize>,
    /// Per step of this epoch and row the step that uses the row next; emptied as steps are planned.
    next_uses: Vec<Vec<u32>>,
    /// Per node whether it is held or on its way.
    held: Vec<bool>,
    /// Per group of the schedule the rows that may be dropped.
    waiting: HashMap<usize, Vec<NodeId>>,
    /// Rows that the horizon does not need and that are held up to the first step.
    idle: Vec<NodeId>,
    /// The step to plan next.
    step: usize,
}

impl TimedPlanner {
    pub(super) fn new(mut input: PlanInput, search: &Search) -> Result<Self, PlanError> {
        let book = Arc::clone(&input.book);
        let state = std::mem::take(&mut input.state);
        let epochs = std::iter::once(&*input.trace).chain(input.next.as_deref());
        let counts = ReuseCounts::new(epochs, input.from_step, input.window, &state.held, &book, input.rank)?;
        let over_budget = |_| PlanError::OverBudget {
            step: input.from_step,
            budget_rows: input.budget_rows,
        };
        let found = counts.search(input.budget_rows, search).map_err(over_budget)?;
        let schedule = counts
            .schedule(input.budget_rows, &found.chosen.times)
            .map_err(over_budget)?;
        let mut owner_places = vec![0; usize::from(book.parts())];
        for (place, owner) in counts.owners().enumerate() {
            owner_places[usize::from(owner)] = place;
        }
        let (next_uses, first_uses) = next_uses(&input)?;
        let mut planner = Self {
            slots: Slots::new(&book, input.budget_rows, &state),
            schedule,
            next_drop: 0,
            owner_places,
            next_uses,
            held: vec![false; book.nodes() as usize],
            waiting: HashMap::new(),
            idle: Vec::new(),
            step: 0,
            input,
        };
        for row in &state.held {
            let node = global_id(&book, row.owner, row.row);
            planner.held[node as usize] = true;
            match first_uses[node as usize] {
                NEVER => planner.idle.push(node),
                used => planner.wait(node, 0, used),
            }
        }
        Ok(planner)
    }

    /// A row that can be held from gap `from` on waits for its next use.
    fn wait(&mut self, node: NodeId, from: usize, used: u32) {
        let owner = self.owner_places[usize::from(self.input.book.owner(node))];
        if let Some(group) = self.schedule.group(owner, from, used as usize) {
            self.waiting.entry(group).or_default().push(node);
        }
    }

    /// Whether some owner may deliver at `step`.
    fn delivers(&self, step: usize) -> bool {
        self.schedule.due.iter().any(|due| due[step] == step)
    }

    /// What is delivered at the planner's step: rows of its batch, and rows for later batches, both ascending. They count as
    /// held from now on.
    fn deliver(&mut self, nodes: &mut Vec<NodeId>) -> Result<(Vec<NodeId>, Vec<NodeId>), PlanError> {
        let (now, mut later) = (self.step, Vec::new());
        let due_now = |due: &Vec<usize>, step: usize| due[step] == now;
        self.read(now, nodes)?;
        let held = &mut self.held;
        let missing = nodes.iter().copied();
        let direct: Vec<NodeId> = missing
            .filter(|node| !std::mem::replace(&mut held[*node as usize], true))
            .collect();
        for step in now + 1..self.next_uses.len() {
            if !self.schedule.due.iter().any(|due| due_now(due, step)) {
                break;
            }
            self.read(step, nodes)?;
            for node in nodes.iter() {
                let owner = self.owner_places[usize::from(self.input.book.owner(*node))];
                if due_now(&self.schedule.due[owner], step) && !std::mem::replace(&mut self.held[*node as usize], true)
                {
                    later.push(*node);
                }
            }
        }
        later.sort_unstable();
        Ok((direct, later))
    }

    fn read(&self, step: usize, nodes: &mut Vec<NodeId>) -> Result<(), PlanError> {
        let input = &self.input;
        let remote = read_step(&*input.trace, &input.book, input.rank, input.from_step + step as u32)?;
        global_ids(&remote, &input.book, nodes);
        Ok(())
    }

    /// What is not held after the planner's step, whose batch has `nodes`.
    fn drop_rows(&mut self, nodes: &[NodeId]) -> Vec<NodeId> {
        let gap = self.step + 1;
        let mut drops = std::mem::take(&mut self.idle);
        let uses = std::mem::take(&mut self.next_uses[self.step]);
        for (node, used) in nodes.iter().zip(uses) {
            match used {
                NEVER => drops.push(*node),
                used => self.wait(*node, gap, used),
            }
        }
        while let Some(dropped) = self
            .schedule
            .drops
            .get(self.next_drop)
            .filter(|dropped| dropped.gap <= gap)
        {
            self.next_drop += 1;
            if let Some(rows) = self.waiting.get_mut(&dropped.group) {
                // At most the rows of the group, which are in memory.
                let stay = rows.len().saturating_sub(dropped.rows as usize);
                drops.extend(rows.drain(stay..));
            }
        }
        drops.iter().for_each(|node| self.held[*node as usize] = false);
        drops
    }

    fn plan_step(&mut self, plan: &mut WindowPlan) -> Result<(), PlanError> {
        let step = self.input.from_step + self.step as u32;
        let mut nodes = Vec::new();
        let (direct, later) = self.deliver(&mut nodes)?;
        self.read(self.step, &mut nodes)?;
        let mut rows: Vec<(NodeId, Place)> = (0..)
            .zip(&direct)
            .map(|(place, node)| (*node, Place::Direct(place)))
            .collect();
        for node in later {
            rows.push((node, Place::Slot(self.slots.take(node, step)?)));
        }
        // Two ascending runs, which a stable sort merges.
        rows.sort_by_key(|(node, _)| *node);
        let times = Times {
            issue_gap: step,
            needed_by_step: step,
        };
        push_requests(&self.input.book, &rows, times, &mut plan.requests);
        let places = self.slots.places(&nodes, &mut Vec::new());
        let drops = self.drop_rows(&nodes);
        let releases = drops.iter().filter_map(|node| self.slots.release(*node)).collect();
        let mut keeps = Vec::new();
        for (place, node) in (0..).zip(&direct).filter(|(_, node)| self.held[**node as usize]) {
            keeps.push(Keep {
                direct: place,
                slot: self.slots.take(*node, step + 1)?,
            });
        }
        plan.batches.push(BatchPlan {
            step,
            places,
            direct_rows: direct.len() as u32,
            releases,
            keeps,
        });
        self.step += 1;
        Ok(())
    }
}

impl Planner for TimedPlanner {
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError> {
        if self.step == self.next_uses.len() {
            return Ok(None);
        }
        let first = self.input.from_step + self.step as u32;
        let mut plan = WindowPlan {
            purpose: self.input.trace.purpose(first),
            requests: Vec::new(),
            batches: Vec::new(),
        };
        let end = (self.input.window_end(first) - self.input.from_step) as usize;
        self.plan_step(&mut plan)?;
        while self.step < end && !self.delivers(self.step) {
            self.plan_step(&mut plan)?;
        }
        Ok(Some(plan))
    }

    fn into_state(self: Box<Self>) -> CacheState {
        self.slots.state(&self.input.book)
    }
}

/// Per step of this epoch and row the step of the horizon that uses the row next, and per node the first that uses it.
fn next_uses(input: &PlanInput) -> Result<(Vec<Vec<u32>>, Vec<u32>), PlanError> {
    let mut used_next = vec![NEVER; input.book.nodes() as usize];
    let mut nodes = Vec::new();
    let steps = input.trace.steps() - input.from_step;
    if let Some(next) = &input.next {
        for step in (0..next.steps()).rev() {
            let remote = read_step(&**next, &input.book, input.rank, step)?;
            global_ids(&remote, &input.book, &mut nodes);
            nodes.iter().for_each(|node| used_next[*node as usize] = steps + step);
        }
    }
    let mut next_uses = vec![Vec::new(); steps as usize];
    for step in (0..steps).rev() {
        let remote = read_step(&*input.trace, &input.book, input.rank, input.from_step + step)?;
        global_ids(&remote, &input.book, &mut nodes);
        let replace = |node: &NodeId| std::mem::replace(&mut used_next[*node as usize], step);
        next_uses[step as usize] = nodes.iter().map(replace).collect();
    }
    Ok((next_uses, used_next))
}
