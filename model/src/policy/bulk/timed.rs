//! `bulk` where each owner has delivery times of its own: the [`Schedule`] of counts, row by row.

mod spare;

use std::collections::VecDeque;
use std::sync::Arc;

use self::spare::{Lead, idle_rows, leads};
use super::Bulk;
use crate::batch::RemoteRows;
use crate::book::{NodeId, PartId};
use crate::plan::{BatchPlan, CacheState, Keep, LaterRows, Place, Request, RowType, WindowPlan};
use crate::policy::delivery::{ReuseCounts, Schedule, Search};
use crate::policy::slots::{Slots, global_id, sort_requests};
use crate::policy::{PlanError, PlanInput, Planner, read_step};

/// Plans one epoch, in one pass backwards over it and the next and one forwards. Steps of the horizon, this epoch from
/// `from_step` on and the next, are numbered from 0.
///
/// Its memory is that of [`ReuseCounts`], 4 bytes per remote row of every batch of the epoch, freed as the plans go on, 9
/// per node of the graph, 4 per row that is held, and the rows of a window.
pub(super) struct TimedPlanner {
    input: PlanInput,
    slots: Slots,
    schedule: Schedule,
    /// The drop of the schedule that is next.
    next_drop: usize,
    /// Per gap how many of the idle rows stay.
    idle_stay: Vec<u64>,
    /// By ascending gap, the next at the front.
    leads: VecDeque<Lead>,
    /// The owners of the schedule.
    owners: Vec<PartId>,
    /// Per part its place among the owners of the schedule.
    owner_places: Vec<usize>,
    /// Per step of this epoch and row the step that uses the row next; emptied as steps are planned.
    next_uses: Vec<Vec<u32>>,
    /// Per group of the schedule the rows that may be dropped; then those that are idle, which the horizon does not need;
    /// then those that may not be dropped, which are forgotten.
    waiting: Vec<Vec<NodeId>>,
    /// The remote rows of steps, as far as they have been read, from the step to plan on.
    ahead: VecDeque<Arc<RemoteRows>>,
    /// The step to plan next.
    step: usize,
}

impl TimedPlanner {
    pub(super) fn new(mut input: PlanInput, bulk: &Bulk, search: &Search) -> Result<Self, PlanError> {
        let book = Arc::clone(&input.book);
        let state = std::mem::take(&mut input.state);
        let epochs: Vec<_> = std::iter::once(&*input.trace).chain(input.next.as_deref()).collect();
        let steps = (input.trace.steps() - input.from_step) as usize;
        let (counts, next_uses) = ReuseCounts::with_next_uses(
            &epochs,
            input.from_step,
            input.window,
            &state.held,
            &book,
            input.rank,
            steps,
        )?;
        let mut counts = counts.weighted(&bulk.owner_weights);
        // Where requests are free rows alone count, and none is fetched again to keep others for later.
        if input.next.is_some() && search.rows_per_delivery > 0 {
            counts = counts.of_a_run_that_goes_on();
        }
        let over_budget = |_| PlanError::OverBudget {
            step: input.from_step,
            budget_rows: input.budget_rows,
        };
        // Where every step is a delivery time there is nothing to choose.
        let times = match input.window {
            1 => counts.every_step(),
            _ => {
                counts
                    .search(input.budget_rows, search)
                    .map_err(over_budget)?
                    .chosen
                    .times
            }
        };
        let schedule = counts.schedule(input.budget_rows, &times).map_err(over_budget)?;
        let mut free = schedule.spare.clone();
        // The gap after the horizon.
        free.push(input.budget_rows.into());
        let mut idle_stay = idle_rows(&counts, &mut free);
        if input.next.is_none() {
            // Nothing comes after the horizon, or nobody knows what.
            idle_stay.iter_mut().skip(1).for_each(|stay| *stay = 0);
        }
        let leads = if bulk.lead {
            leads(&counts, &schedule, &mut free, steps).into()
        } else {
            VecDeque::new()
        };
        let owners: Vec<PartId> = counts.owners().collect();
        let mut owner_places = vec![0; usize::from(book.parts())];
        for (place, owner) in owners.iter().enumerate() {
            owner_places[usize::from(*owner)] = place;
        }
        let mut planner = Self {
            slots: Slots::new(&book, input.budget_rows, &state),
            waiting: vec![Vec::new(); schedule.groups() + 2],
            schedule,
            next_drop: 0,
            idle_stay,
            leads,
            owners,
            owner_places,
            next_uses: next_uses.by_step,
            ahead: VecDeque::new(),
            step: 0,
            input,
        };
        let groups: Vec<Vec<usize>> = (0..planner.owners.len())
            .map(|owner| planner.groups(owner, 0))
            .collect();
        for row in &state.held {
            let node = global_id(&book, row.owner, row.row);
            let groups = &groups[planner.owner_places[usize::from(row.owner)]];
            planner.waiting[groups[next_uses.first[node as usize] as usize]].push(node);
        }
        Ok(planner)
    }

    /// Where rows of the owner at place `owner` wait that can be held from gap `from` on, by the step that uses them next.
    fn groups(&self, owner: usize, from: usize) -> Vec<usize> {
        let (idle, needed) = (self.schedule.groups(), self.schedule.groups() + 1);
        let steps = self.schedule.spare.len();
        let used = (from..steps).map(|step| self.schedule.group(owner, from, step).unwrap_or(needed));
        std::iter::repeat_n(needed, from).chain(used).chain([idle]).collect()
    }

    /// Whether some owner delivers something at `step`.
    fn delivers(&self, step: usize) -> bool {
        let owners = self.owners.len();
        let fetched = &self.schedule.fetched[step * owners..(step + 1) * owners];
        fetched.iter().any(|rows| *rows > 0)
    }

    /// The remote rows of a step of the horizon that has not been planned yet.
    fn read(&mut self, step: usize) -> Result<Arc<RemoteRows>, PlanError> {
        let input = &self.input;
        for step in self.step + self.ahead.len()..=step {
            let (trace, step) = match (step.checked_sub(self.next_uses.len()), &input.next) {
                (Some(step), Some(next)) => (next, step as u32),
                _ => (&input.trace, input.from_step + step as u32),
            };
            self.ahead
                .push_back(read_step(&**trace, &input.book, input.rank, step)?);
        }
        Ok(Arc::clone(&self.ahead[step - self.step]))
    }

    /// The request, at the gap before the planner's step, for what is not held of the rows that are due at `time`. They
    /// count as held from now on. Rows of the planner's step come directly, and are put into `direct`.
    fn request(&mut self, owner: usize, time: usize, direct: &mut Vec<NodeId>) -> Result<Option<Request>, PlanError> {
        let part = self.owners[owner];
        let (from_step, start) = (self.input.from_step, self.input.book.range(part).start);
        let gap = from_step + self.step as u32;
        let mut request = Request {
            owner: part,
            rows: Vec::new(),
            places: Vec::new(),
            dtype: RowType::default(),
            issue_after_step: gap.checked_sub(1),
            needed_by_step: from_step + time as u32,
            later: Vec::new(),
        };
        // Rows for the next epoch have come when this one ends.
        let last = self.next_uses.len().saturating_sub(1);
        for step in time..self.schedule.spare.len() {
            if self.schedule.due[owner][step] != time {
                break;
            }
            let remote = self.read(step)?;
            let Ok(place) = remote.owners.binary_search_by_key(&part, |owned| owned.owner) else {
                continue;
            };
            let first_row = request.rows.len();
            self.slots.missing(start, &remote.owners[place].rows, &mut request.rows);
            for row in &request.rows[first_row..] {
                let node = start + row;
                request.places.push(if step == self.step {
                    self.slots.come_directly(node);
                    direct.push(node);
                    Place::Direct(direct.len() as u32 - 1)
                } else {
                    Place::Slot(self.slots.take(node, gap)?)
                });
            }
            let needed_by_step = from_step + step.min(last) as u32;
            match first_row {
                _ if first_row == request.rows.len() => {}
                0 => request.needed_by_step = needed_by_step,
                // Fewer rows than nodes.
                first_row if needed_by_step > request.last_needed_by_step() => request.later.push(LaterRows {
                    first_row: first_row as u32,
                    needed_by_step,
                }),
                _ => {}
            }
        }
        sort_last(&mut request);
        Ok((!request.rows.is_empty()).then_some(request))
    }

    /// What is not held after the planner's step, whose batch has `remote`.
    fn drop_rows(&mut self, remote: &RemoteRows) -> Vec<NodeId> {
        let gap = self.step + 1;
        let uses = std::mem::take(&mut self.next_uses[self.step]);
        let mut uses = uses.iter();
        for owned in &remote.owners {
            let groups = self.groups(self.owner_places[usize::from(owned.owner)], gap);
            let start = self.input.book.range(owned.owner).start;
            for (row, used) in owned.rows.iter().zip(uses.by_ref()) {
                self.waiting[groups[*used as usize]].push(start + row);
            }
        }
        let [.., idle, needed] = &mut self.waiting[..] else {
            return Vec::new();
        };
        needed.clear();
        let stay = self.idle_stay.get(gap).map_or(0, |stay| *stay as usize);
        let mut drops: Vec<NodeId> = idle.drain(stay.min(idle.len())..).collect();
        while let Some(dropped) = self
            .schedule
            .drops
            .get(self.next_drop)
            .filter(|dropped| dropped.gap <= gap)
        {
            self.next_drop += 1;
            let rows = &mut self.waiting[dropped.group];
            // At most the rows of the group, which are in memory.
            let stay = rows.len().saturating_sub(dropped.rows as usize);
            drops.extend(rows.drain(stay..));
        }
        drops
    }

    fn plan_step(&mut self, plan: &mut WindowPlan) -> Result<(), PlanError> {
        let step = self.input.from_step + self.step as u32;
        // Nothing that waits for this step can be dropped any more.
        let groups = 2 * self.step * self.owners.len()..2 * (self.step + 1) * self.owners.len();
        self.waiting[groups].fill(Vec::new());
        let remote = self.read(self.step)?;
        let mut direct = Vec::new();
        for owner in 0..self.owners.len() {
            if self.schedule.due[owner][self.step] == self.step {
                plan.requests.extend(self.request(owner, self.step, &mut direct)?);
            }
        }
        while let Some(lead) = self.leads.pop_front_if(|lead| lead.gap == self.step) {
            plan.requests.extend(self.request(lead.owner, lead.time, &mut direct)?);
        }
        let mut places = Vec::with_capacity(remote.len());
        let mut directs = 0;
        for owned in &remote.owners {
            let start = self.input.book.range(owned.owner).start;
            self.slots.append_places(start, &owned.rows, &mut directs, &mut places);
        }
        let drops = self.drop_rows(&remote);
        let releases = drops.iter().filter_map(|node| self.slots.release(*node)).collect();
        let mut keeps = Vec::new();
        for (place, node) in (0..).zip(&direct) {
            if self.slots.comes_directly(*node) {
                keeps.push(Keep {
                    direct: place,
                    slot: self.slots.take(*node, step + 1)?,
                });
            }
        }
        plan.batches.push(BatchPlan {
            step,
            places,
            direct_rows: directs,
            releases,
            keeps,
        });
        self.ahead.pop_front();
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
        sort_requests(&mut plan.requests);
        Ok(Some(plan))
    }

    fn into_state(self: Box<Self>) -> CacheState {
        self.slots.state(&self.input.book)
    }
}

/// Puts the rows that are needed last into ascending order, where those of several steps of the next epoch are together.
fn sort_last(request: &mut Request) {
    let first = request.later.last().map_or(0, |later| later.first_row as usize);
    if request.rows[first..].is_sorted() {
        return;
    }
    let (rows, places) = (&mut request.rows[first..], &mut request.places[first..]);
    let mut placed: Vec<(u32, Place)> = rows.iter().copied().zip(places.iter().copied()).collect();
    placed.sort_unstable_by_key(|(row, _)| *row);
    for ((row, place), (sorted_row, sorted_place)) in rows.iter_mut().zip(places).zip(placed) {
        (*row, *place) = (sorted_row, sorted_place);
    }
}
