//! What a plan moves.

use std::collections::BTreeMap;

use greengnn_model::book::PartId;
use greengnn_model::plan::{Place, Request, WindowPlan};

/// What is asked of one owner at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerTraffic {
    pub owner: PartId,
    pub requests: u64,
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

/// Requests and rows by owner.
type ByOwner = BTreeMap<PartId, (u64, u64)>;

fn add(owners: &mut ByOwner, request: &Request) {
    let (requests, rows) = owners.entry(request.owner).or_default();
    *requests += 1;
    *rows += request.rows.len() as u64;
}

fn listed(owners: ByOwner) -> Vec<OwnerTraffic> {
    let traffic = |(owner, (requests, rows))| OwnerTraffic { owner, requests, rows };
    owners.into_iter().map(traffic).collect()
}

/// What a plan moves, per window: the windows of one rank and epoch, in their order.
///
/// Every request of the plan is in it exactly once, in the window in which its rows are needed. A request that fills the
/// buffer of its batch is a miss; the others are deliveries, and those that leave together and are needed together are
/// one. A request for a step of no window stays in the window that sends it.
pub fn traffic_of_plan(plan: &[WindowPlan]) -> Vec<WindowTraffic> {
    let mut window_of_step = BTreeMap::new();
    for (window, planned) in plan.iter().enumerate() {
        for (index, batch) in planned.batches.iter().enumerate() {
            window_of_step.insert(batch.step, (window, index));
        }
    }
    let mut deliveries: Vec<BTreeMap<(u32, u32), ByOwner>> = vec![BTreeMap::new(); plan.len()];
    let mut misses: Vec<Vec<ByOwner>> = plan
        .iter()
        .map(|window| vec![ByOwner::new(); window.batches.len()])
        .collect();
    for (sent_in, window) in plan.iter().enumerate() {
        for request in &window.requests {
            let needed_in = window_of_step.get(&request.needed_by_step);
            let is_miss = request.places.iter().any(|place| matches!(place, Place::Direct(_)));
            match needed_in {
                Some(&(window, index)) if is_miss => add(&mut misses[window][index], request),
                _ => {
                    let window = needed_in.map_or(sent_in, |(window, _)| *window);
                    let together = (request.issue_gap(), request.needed_by_step);
                    add(deliveries[window].entry(together).or_default(), request);
                }
            }
        }
    }
    let delivery = |((issue_gap, needed_by_step), owners): ((u32, u32), ByOwner)| Delivery {
        owners: listed(owners),
        steps_ahead: needed_by_step.saturating_sub(issue_gap),
    };
    deliveries
        .into_iter()
        .zip(misses)
        .map(|(deliveries, misses)| WindowTraffic {
            deliveries: deliveries.into_iter().map(delivery).collect(),
            misses: misses.into_iter().map(listed).collect(),
        })
        .collect()
}
