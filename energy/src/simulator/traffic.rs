//! What a plan moves.

use std::collections::{BTreeMap, BTreeSet};

use greengnn_model::book::PartId;
use greengnn_model::plan::{self, Place, Request, WindowPlan};

/// What is asked of one owner at one time, and comes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerTraffic {
    pub owner: PartId,
    pub requests: u64,
    /// Arrivals of rows: as many as requests, or more where a request is answered by a stream.
    pub deliveries: u64,
    pub rows: u64,
}

/// Rows that travel into the cache ahead of their use. The paper's rebuild of a window is one delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The owners, each once.
    pub owners: Vec<OwnerTraffic>,
    /// Steps that are trained between the request and the first use: what the delivery may hide behind. 0 for the
    /// first window of an epoch, which is always exposed.
    pub steps_ahead: u32,
}

/// What one window of one rank moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowTraffic {
    pub deliveries: Vec<Delivery>,
    /// Per step the owners, each once, that are asked for rows that the cache does not hold. The step waits for them.
    pub misses: Vec<Vec<OwnerTraffic>>,
}

impl WindowTraffic {
    /// Steps of the window.
    pub fn steps(&self) -> u64 {
        self.misses.len() as u64
    }
}

/// What is asked of each owner.
type ByOwner = BTreeMap<PartId, OwnerTraffic>;

/// A request without its rows.
#[derive(Clone, Copy, Debug)]
struct Asked {
    traffic: OwnerTraffic,
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
            is_miss: request.places.iter().any(|place| matches!(place, Place::Direct(_))),
            window,
            issue_gap: request.issue_gap(),
            needed_by_step: request.needed_by_step,
        });
    }

    /// What was counted, per window.
    pub fn finish(self) -> Vec<WindowTraffic> {
        let mut deliveries: Vec<BTreeMap<(u32, u32), ByOwner>> = vec![BTreeMap::new(); self.steps.len()];
        let mut misses: Vec<Vec<ByOwner>> = self.steps.iter().map(|steps| vec![ByOwner::new(); *steps]).collect();
        for asked in &self.asked {
            match self.window_of_step.get(&asked.needed_by_step) {
                Some(&(window, index)) if asked.is_miss => add(&mut misses[window][index], asked.traffic),
                needed_in => {
                    let window = needed_in.map_or(asked.window, |(window, _)| *window);
                    let together = (asked.issue_gap, asked.needed_by_step);
                    add(deliveries[window].entry(together).or_default(), asked.traffic);
                }
            }
        }
        let delivery = |((issue_gap, needed_by_step), owners): ((u32, u32), ByOwner)| Delivery {
            owners: owners.into_values().collect(),
            steps_ahead: needed_by_step.saturating_sub(issue_gap),
        };
        let listed = |owners: ByOwner| owners.into_values().collect();
        deliveries
            .into_iter()
            .zip(misses)
            .map(|(deliveries, misses)| WindowTraffic {
                deliveries: deliveries.into_iter().map(delivery).collect(),
                misses: misses.into_iter().map(listed).collect(),
            })
            .collect()
    }
}

fn add(owners: &mut ByOwner, traffic: OwnerTraffic) {
    let sum = owners.entry(traffic.owner).or_insert(OwnerTraffic {
        owner: traffic.owner,
        ..OwnerTraffic::default()
    });
    sum.requests += traffic.requests;
    sum.deliveries += traffic.deliveries;
    sum.rows += traffic.rows;
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
