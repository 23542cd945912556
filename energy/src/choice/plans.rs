//! What candidates move and cost: their plans, of all ranks and epochs.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::plan::{Request, WindowPlan};
use greengnn_model::policy::{Budget, FillInput, PlanInput, Policy};
use serde::{Deserialize, Serialize};

use super::{Candidates, ChoiceError, Method, RankTraces};
use crate::simulator::{
    Coefficients, Delivery, Mode, OwnerTraffic, RankTraffic, SimulatedCost, TrafficCounter, WindowTraffic,
    simulate_in_step,
};

/// How much there is to plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The most steps that one window can have: the longest run of steps of one purpose.
    pub longest_window: u32,
    /// Remote rows of all batches.
    pub needed_rows: u64,
}

impl Extent {
    /// One pass over the traces of a rank.
    fn measure(RankTraces { rank, epochs, .. }: &RankTraces) -> Result<Self, ChoiceError> {
        let mut extent = Self::default();
        for (epoch, trace) in epochs.iter().enumerate() {
            let mut length = 0;
            for step in 0..trace.steps() {
                let goes_on = step > 0 && trace.purpose(step) == trace.purpose(step - 1);
                length = if goes_on { length + 1 } else { 1 };
                extent.longest_window = extent.longest_window.max(length);
                let remote = trace.remote_rows(step).map_err(|source| ChoiceError::Trace {
                    rank: *rank,
                    epoch,
                    source,
                })?;
                extent.needed_rows += remote.len() as u64;
            }
        }
        Ok(extent)
    }

    /// That of all ranks together.
    pub fn of_all<'a>(ranks: impl IntoIterator<Item = &'a RankMoves>) -> Self {
        let mut extent = Self::default();
        for moves in ranks {
            extent.longest_window = extent.longest_window.max(moves.extent.longest_window);
            extent.needed_rows += moves.extent.needed_rows;
        }
        extent
    }
}

/// What one rank moves under one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Slots of the rank.
    pub budget_rows: u32,
    /// What it fetches once, before the first step.
    pub fill: WindowTraffic,
    /// By epoch and window.
    pub epochs: Vec<Vec<WindowTraffic>>,
    /// Equal where the same rows are asked for at the same times.
    pub schedule: u64,
}

/// What one rank moves under every candidate. Ranks that plan for themselves exchange these, and come to one choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankMoves {
    pub rank: Rank,
    pub extent: Extent,
    /// Every plan once.
    pub plans: Vec<Moved>,
    /// Which plan a candidate has: by method, budget and window, in their orders.
    pub by_candidate: Vec<u32>,
}

impl RankMoves {
    /// The plan of the candidate at this place.
    pub fn of(&self, candidate: usize) -> Option<&Moved> {
        let plan = self.by_candidate.get(candidate)?;
        self.plans.get(*plan as usize)
    }
}

/// Plans every candidate for one rank. A schedule that another window has too is planned once, where the policy says so:
/// one that uses no window, and one whose epochs know nothing of each other, so that windows of all that an epoch has
/// are the longest.
///
/// # Errors
/// [`ChoiceError`]. A policy that ranks rows by scores has no fill here, since there are none.
pub fn rank_moves(
    book: &Arc<PartitionBook>,
    row_bytes: usize,
    traces: &RankTraces,
    candidates: &Candidates,
) -> Result<RankMoves, ChoiceError> {
    let extent = Extent::measure(traces)?;
    let mut plans = Vec::new();
    let mut by_candidate = Vec::new();
    for method in &candidates.methods {
        let policy = traces.tuned.policy(method)?;
        let is_cold = !policy.needs_next_epoch() && !policy.keeps_across_epochs();
        let planned_window = |window: u32| match () {
            () if !policy.uses_window() => candidates.windows.first().copied().unwrap_or(1),
            () if is_cold && window > 0 => window.min(extent.longest_window.max(1)),
            () => window,
        };
        for budget in &candidates.budgets {
            let planning = Planning {
                book,
                row_bytes,
                traces,
                method,
                policy: &*policy,
                budget: *budget,
            };
            let mut known: BTreeMap<u32, u32> = BTreeMap::new();
            for window in &candidates.windows {
                let planned = planned_window(*window);
                let plan = match known.get(&planned) {
                    Some(plan) => *plan,
                    None => {
                        plans.push(planning.moved(planned)?);
                        plans.len() as u32 - 1
                    }
                };
                known.insert(planned, plan);
                by_candidate.push(plan);
            }
        }
    }
    Ok(RankMoves {
        rank: traces.rank,
        extent,
        plans,
        by_candidate,
    })
}

struct Planning<'a> {
    book: &'a Arc<PartitionBook>,
    row_bytes: usize,
    traces: &'a RankTraces,
    method: &'a Method,
    policy: &'a dyn Policy,
    budget: Budget,
}

impl Planning<'_> {
    /// What the rank fills and then moves, epoch by epoch.
    fn moved(&self, window: u32) -> Result<Moved, ChoiceError> {
        let (book, rank) = (self.book, self.traces.rank);
        let asked = self.budget.rows(self.row_bytes, book.remote_nodes(rank));
        let budget_rows = self.policy.budget_rows(book, rank, asked);
        let mut schedule = DefaultHasher::new();
        let mut moved = Moved {
            budget_rows,
            fill: WindowTraffic::default(),
            epochs: Vec::with_capacity(self.traces.epochs.len()),
            schedule: 0,
        };
        let mut state = match &self.traces.held {
            Some(held) => held.clone(),
            None => {
                let fill = self.policy.fill_scored(FillInput {
                    book,
                    rank,
                    budget_rows,
                    device_rows: self.policy.device_rows(budget_rows, None),
                    scores: None,
                });
                let fill = fill.map_err(|source| ChoiceError::Fill {
                    rank,
                    policy: self.method.policy.clone(),
                    source,
                })?;
                fill.requests
                    .iter()
                    .for_each(|request| hash_request(request, &mut schedule));
                moved.fill = traffic_of_fill(&fill.requests);
                fill.state
            }
        };
        for (epoch, trace) in self.traces.epochs.iter().enumerate() {
            let failed = |source| ChoiceError::Plan {
                rank,
                policy: self.method.policy.clone(),
                window,
                epoch,
                source,
            };
            let next = self.traces.epochs.get(epoch + 1);
            let input = PlanInput {
                rank,
                book: Arc::clone(book),
                budget_rows,
                window,
                trace: Arc::clone(trace),
                next: next.filter(|_| self.policy.needs_next_epoch()).cloned(),
                from_step: 0,
                state: std::mem::take(&mut state),
            };
            let mut planner = self.policy.plan(input).map_err(failed)?;
            let mut counter = TrafficCounter::new(self.method.delivery);
            epoch.hash(&mut schedule);
            while let Some(plan) = planner.next_window().map_err(failed)? {
                hash_plan(&plan, &mut schedule);
                counter.add(&plan);
            }
            state = planner.into_state();
            moved.epochs.push(counter.finish());
        }
        moved.schedule = schedule.finish();
        Ok(moved)
    }
}

/// What a schedule costs, all ranks together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priced {
    pub window: u32,
    /// Slots of the rank that has the most.
    pub budget_rows: u32,
    pub setup: SimulatedCost,
    pub paper: SimulatedCost,
    pub plan: SimulatedCost,
    /// Equal where the same rows are asked for at the same times.
    pub schedule: u64,
}

/// Prices what all ranks move under one candidate, in step.
pub(super) fn price(window: u32, ranks: &[&Moved], coefficients: &[&Coefficients]) -> Result<Priced, ChoiceError> {
    let mut schedule = DefaultHasher::new();
    let mut priced = Priced {
        window,
        budget_rows: ranks.iter().map(|moved| moved.budget_rows).max().unwrap_or(0),
        setup: SimulatedCost::default(),
        paper: SimulatedCost::default(),
        plan: SimulatedCost::default(),
        schedule: 0,
    };
    ranks.iter().for_each(|moved| moved.schedule.hash(&mut schedule));
    priced.schedule = schedule.finish();
    let fills = ranks.iter().map(|moved| std::slice::from_ref(&moved.fill));
    priced.setup = in_step(fills, coefficients, Mode::Plan)?;
    let epochs = ranks.iter().map(|moved| moved.epochs.len()).max().unwrap_or(0);
    for epoch in 0..epochs {
        let of_epoch = || {
            ranks
                .iter()
                .map(|moved| moved.epochs.get(epoch).map_or(&[][..], Vec::as_slice))
        };
        priced.paper += in_step(of_epoch(), coefficients, Mode::Paper)?;
        priced.plan += in_step(of_epoch(), coefficients, Mode::Plan)?;
    }
    Ok(priced)
}

/// The price of what all ranks move together.
fn in_step<'a>(
    moved: impl Iterator<Item = &'a [WindowTraffic]>,
    coefficients: &[&'a Coefficients],
    mode: Mode,
) -> Result<SimulatedCost, ChoiceError> {
    let of_rank = |(windows, coefficients): (_, &&'a Coefficients)| RankTraffic { windows, coefficients };
    let ranks: Vec<RankTraffic> = moved.zip(coefficients).map(of_rank).collect();
    Ok(simulate_in_step(&ranks, mode)?.into_iter().sum())
}

/// A fill is one delivery, which nothing hides.
fn traffic_of_fill(requests: &[Request]) -> WindowTraffic {
    let traffic = |request: &Request| OwnerTraffic {
        owner: request.owner,
        requests: 1,
        deliveries: 1,
        rows: request.rows.len() as u64,
    };
    WindowTraffic {
        deliveries: vec![Delivery {
            owners: requests.iter().map(traffic).collect(),
            ..Delivery::default()
        }],
        ..WindowTraffic::default()
    }
}

/// What is asked and when, and not into which windows it is cut.
fn hash_plan(plan: &WindowPlan, schedule: &mut DefaultHasher) {
    plan.requests.iter().for_each(|request| hash_request(request, schedule));
}

fn hash_request(request: &Request, schedule: &mut DefaultHasher) {
    (request.owner, request.issue_gap(), request.needed_by_step).hash(schedule);
    request.rows.hash(schedule);
    for later in &request.later {
        (later.first_row, later.needed_by_step).hash(schedule);
    }
}
