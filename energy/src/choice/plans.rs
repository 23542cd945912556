//! What candidates move and cost: their plans, of all ranks and epochs.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use greengnn_model::plan::{Request, WindowPlan};
use greengnn_model::policy::{Budget, FillInput, PlanInput, Policy, policy_for};

use super::{ChoiceError, Method, RankTraces, Workload};
use crate::simulator::{
    Coefficients, Delivery, Mode, OwnerTraffic, RankTraffic, SimulatedCost, TrafficCounter, WindowTraffic,
    simulate_in_step,
};

/// How much there is to plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// The most steps that one window can have: the longest run of steps of one purpose, of any rank.
    pub longest_window: u32,
    /// Remote rows of all batches.
    pub needed_rows: u64,
}

impl Extent {
    /// One pass over all traces.
    pub fn measure(workload: &Workload) -> Result<Self, ChoiceError> {
        let mut extent = Self::default();
        for RankTraces { rank, epochs } in &workload.ranks {
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
        }
        Ok(extent)
    }
}

/// What a schedule costs, all ranks together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priced {
    pub window: u32,
    pub budget_rows: u32,
    pub setup: SimulatedCost,
    pub paper: SimulatedCost,
    pub plan: SimulatedCost,
    /// Equal where the same rows are asked for at the same times.
    pub schedule: u64,
}

/// Prices a method with one budget, for every window. A schedule that another window has too is planned once, where the
/// policy says so: one that uses no window, and one whose epochs know nothing of each other, so that windows of all that
/// an epoch has are the longest.
pub(super) fn price_windows(
    workload: &Workload,
    method: &Method,
    budget: Budget,
    windows: &[u32],
    extent: &Extent,
    coefficients: &[&Coefficients],
) -> Result<Vec<Priced>, ChoiceError> {
    let policy = policy_for(&method.policy, method.delivery)?;
    let is_cold = !policy.needs_next_epoch() && !policy.keeps_across_epochs();
    let planned_window = |window: u32| match () {
        () if !policy.uses_window() => windows.first().copied().unwrap_or(1),
        () if is_cold && window > 0 => window.min(extent.longest_window.max(1)),
        () => window,
    };
    let planner = Planning {
        workload,
        method,
        policy: &*policy,
        budget,
        coefficients,
    };
    let mut known: BTreeMap<u32, Priced> = BTreeMap::new();
    windows
        .iter()
        .map(|window| {
            let planned = planned_window(*window);
            let priced = match known.get(&planned) {
                Some(priced) => *priced,
                None => planner.price(planned)?,
            };
            known.insert(planned, priced);
            Ok(Priced {
                window: *window,
                ..priced
            })
        })
        .collect()
}

struct Planning<'a> {
    workload: &'a Workload,
    method: &'a Method,
    policy: &'a dyn Policy,
    budget: Budget,
    /// Of the ranks of the workload, in their order.
    coefficients: &'a [&'a Coefficients],
}

impl Planning<'_> {
    fn price(&self, window: u32) -> Result<Priced, ChoiceError> {
        let mut priced = Priced {
            window,
            budget_rows: 0,
            setup: SimulatedCost::default(),
            paper: SimulatedCost::default(),
            plan: SimulatedCost::default(),
            schedule: 0,
        };
        let mut schedule = DefaultHasher::new();
        // By epoch, with the fill in front, and rank.
        let mut moved: Vec<Vec<Vec<WindowTraffic>>> = Vec::new();
        for traces in &self.workload.ranks {
            let of_rank = self.traffic_of_rank(traces, window, &mut priced.budget_rows, &mut schedule)?;
            moved.resize_with(of_rank.len(), Vec::new);
            for (epoch, traffic) in moved.iter_mut().zip(of_rank) {
                epoch.push(traffic);
            }
        }
        priced.schedule = schedule.finish();
        for (epoch, moved) in moved.iter().enumerate() {
            let ranks: Vec<RankTraffic> = moved
                .iter()
                .zip(self.coefficients)
                .map(|(windows, coefficients)| RankTraffic { windows, coefficients })
                .collect();
            let total = |mode| Ok::<SimulatedCost, ChoiceError>(simulate_in_step(&ranks, mode)?.into_iter().sum());
            match epoch {
                0 => priced.setup = total(Mode::Plan)?,
                _ => {
                    priced.paper += total(Mode::Paper)?;
                    priced.plan += total(Mode::Plan)?;
                }
            }
        }
        Ok(priced)
    }

    /// What a rank fills and then moves, epoch by epoch.
    fn traffic_of_rank(
        &self,
        traces: &RankTraces,
        window: u32,
        most_rows: &mut u32,
        schedule: &mut DefaultHasher,
    ) -> Result<Vec<Vec<WindowTraffic>>, ChoiceError> {
        let (book, rank) = (&self.workload.book, traces.rank);
        let asked = self.budget.rows(self.workload.row_bytes, book.remote_nodes(rank));
        let budget_rows = self.policy.budget_rows(book, rank, asked);
        *most_rows = budget_rows.max(*most_rows);
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
        rank.hash(schedule);
        fill.requests.iter().for_each(|request| hash_request(request, schedule));
        let mut moved = vec![vec![traffic_of_fill(&fill.requests)]];
        let mut state = fill.state;
        for (epoch, trace) in traces.epochs.iter().enumerate() {
            let failed = |source| ChoiceError::Plan {
                rank,
                policy: self.method.policy.clone(),
                window,
                epoch,
                source,
            };
            let next = traces.epochs.get(epoch + 1);
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
            epoch.hash(schedule);
            while let Some(plan) = planner.next_window().map_err(failed)? {
                hash_plan(&plan, schedule);
                counter.add(&plan);
            }
            state = planner.into_state();
            moved.push(counter.finish());
        }
        Ok(moved)
    }
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
