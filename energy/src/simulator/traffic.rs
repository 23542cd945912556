//! What a plan moves.

use std::collections::{BTreeMap, BTreeSet};

use greengnn_model::book::PartId;
use greengnn_model::plan::{self, Place, Request, WindowPlan};
use greengnn_model::rng::Purpose;
use serde::{Deserialize, Serialize};

/// What is asked of one owner at one time, and comes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerTraffic {
    pub owner: PartId,
    pub requests: u64,
    /// Arrivals of rows: as many as requests, or more where a request is answered by a stream.
    pub deliveries: u64,
    pub rows: u64,
}

/// Rows of a fetch that a later step is the first to need, and that its first step does not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterTraffic {
    pub owner: PartId,
    /// Steps that are trained from the first that needs rows of the fetch to the one that needs these.
    pub steps: u32,
    pub rows: u64,
}

/// Rows that are asked for together. The paper's rebuild of a window is one delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The owners, each once.
    pub owners: Vec<OwnerTraffic>,
    /// Those of the rows that come last; of each owner by ascending steps.
    pub later: Vec<LaterTraffic>,
    /// Steps of the epoch that are trained before the rows are asked for, or at least assembled.
    pub issue_gap: u32,
    /// Steps that are trained between the request and the first use: what the delivery may hide behind. 0 for the
    /// first window of an epoch, which is always exposed.
    pub steps_ahead: u32,
}

/// What one window of one rank moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowTraffic {
    /// What travels into the cache ahead of its use.
    pub deliveries: Vec<Delivery>,
    /// Per step what it asks for that the cache does not hold, without an owner where that is nothing.
    pub misses: Vec<Delivery>,
    /// Whether its steps evaluate: ranks take these apart, and those of training together.
    pub evaluates: bool,
}

impl WindowTraffic {
    /// Steps of the window.
    pub fn steps(&self) -> u64 {
        self.misses.len() as u64
    }
}

/// A fetch that is being added up.
#[derive(Clone, Debug, Default)]
struct Sum {
    owners: BTreeMap<PartId, OwnerTraffic>,
    later: Vec<LaterTraffic>,
}

/// A request without its rows.
#[derive(Clone, Debug)]
struct Asked {
    traffic: OwnerTraffic,
    later: Vec<LaterTraffic>,
    is_miss: bool,
    /// The window that sends it.
    window: usize,
    issue_gap: u32,
    needed_by_step: u32,
}

/// Counts what the plans of one rank and epoch move, window by window, so that no plan is kept.
#[derive(Clone, Debug, Default)]
pub struct TrafficCounter {
    delivery: plan::Delivery,
    /// The owners that have been sent the schedule of a stream.
    streams: BTreeSet<PartId>,
    asked: Vec<Asked>,
    /// Per step its window, and its place in there.
    window_of_step: BTreeMap<u32, (usize, usize)>,
    /// Per window its steps.
    steps: Vec<usize>,
    /// Per window whether they evaluate.
    evaluates: Vec<bool>,
}

impl TrafficCounter {
    /// For plans that are asked and answered as `delivery` says.
    pub fn new(delivery: plan::Delivery) -> Self {
        Self {
            delivery,
            ..Self::default()
        }
    }

    /// Counts the next window.
    pub fn add(&mut self, plan: &WindowPlan) {
        let window = self.steps.len();
        self.steps.push(plan.batches.len());
        self.evaluates
            .push(matches!(plan.purpose, Purpose::Valid | Purpose::Test));
        for (index, batch) in plan.batches.iter().enumerate() {
            self.window_of_step.insert(batch.step, (window, index));
        }
        for request in &plan.requests {
            self.ask(window, request);
        }
    }

    fn ask(&mut self, window: usize, request: &Request) {
        let requests = match self.delivery {
            plan::Delivery::Windowed => 1,
            plan::Delivery::Stream => u64::from(self.streams.insert(request.owner)),
        };
        self.asked.push(Asked {
            traffic: OwnerTraffic {
                owner: request.owner,
                requests,
                deliveries: 1,
                rows: request.rows.len() as u64,
            },
            later: later_traffic(request),
            is_miss: request.places.iter().any(|place| matches!(place, Place::Direct(_))),
            window,
            issue_gap: request.issue_gap(),
            needed_by_step: request.needed_by_step,
        });
    }

    /// What was counted, per window.
    pub fn finish(self) -> Vec<WindowTraffic> {
        let mut deliveries: Vec<BTreeMap<(u32, u32), Sum>> = vec![BTreeMap::new(); self.steps.len()];
        let mut misses: Vec<Vec<Sum>> = self.steps.iter().map(|steps| vec![Sum::default(); *steps]).collect();
        for asked in &self.asked {
            match self.window_of_step.get(&asked.needed_by_step) {
                Some(&(window, index)) if asked.is_miss => misses[window][index].add(asked),
                needed_in => {
                    let window = needed_in.map_or(asked.window, |(window, _)| *window);
                    let together = (asked.issue_gap, asked.needed_by_step);
                    deliveries[window].entry(together).or_default().add(asked);
                }
            }
        }
        let mut first_steps = vec![0; self.steps.len()];
        for (step, (window, index)) in &self.window_of_step {
            if *index == 0 {
                first_steps[*window] = *step;
            }
        }
        let delivery = |((issue_gap, needed_by_step), sum): ((u32, u32), Sum)| sum.finish(issue_gap, needed_by_step);
        let windows = deliveries.into_iter().zip(misses).zip(first_steps).zip(self.evaluates);
        windows
            .map(|(((deliveries, misses), first_step), evaluates)| WindowTraffic {
                deliveries: deliveries.into_iter().map(delivery).collect(),
                misses: (first_step..)
                    .zip(misses)
                    .map(|(step, sum)| sum.finish(step, step))
                    .collect(),
                evaluates,
            })
            .collect()
    }
}

impl Sum {
    fn add(&mut self, asked: &Asked) {
        let owner = asked.traffic.owner;
        let sum = self.owners.entry(owner).or_insert(OwnerTraffic {
            owner,
            ..OwnerTraffic::default()
        });
        sum.requests += asked.traffic.requests;
        sum.deliveries += asked.traffic.deliveries;
        sum.rows += asked.traffic.rows;
        self.later.extend(&asked.later);
    }

    fn finish(self, issue_gap: u32, needed_by_step: u32) -> Delivery {
        Delivery {
            owners: self.owners.into_values().collect(),
            later: self.later,
            issue_gap,
            steps_ahead: needed_by_step.saturating_sub(issue_gap),
        }
    }
}

/// The rows of a request that its first step does not wait for.
fn later_traffic(request: &Request) -> Vec<LaterTraffic> {
    let ends = request.later.iter().skip(1).map(|later| later.first_row as usize);
    let ends = ends.chain(std::iter::once(request.rows.len()));
    let traffic = request.later.iter().zip(ends).map(|(later, end)| LaterTraffic {
        owner: request.owner,
        steps: later.needed_by_step.saturating_sub(request.needed_by_step),
        rows: end.saturating_sub(later.first_row as usize) as u64,
    });
    traffic.collect()
}

/// What a plan moves, per window: the windows of one rank and epoch, in their order, asked and answered as `delivery` says.
///
/// Every request of the plan is in it exactly once, in the window in which its rows are needed. A request that fills the
/// buffer of its batch is a miss; the others are deliveries, and those that leave together and are needed together are
/// one. A request for a step of no window stays in the window that sends it. Of a stream the first delivery of each owner
/// carries the one request.
pub fn traffic_of_plan(plan: &[WindowPlan], delivery: plan::Delivery) -> Vec<WindowTraffic> {
    let mut counter = TrafficCounter::new(delivery);
    plan.iter().for_each(|window| counter.add(window));
    counter.finish()
}
