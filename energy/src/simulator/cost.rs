//! The price of a plan: the paper's Eq. 1 to 4, without the learned residual, with the paper's stalls or with those of ranks
//! that train in step.

use std::iter::Sum;
use std::ops::AddAssign;

use greengnn_model::book::PartId;
use serde::{Deserialize, Serialize};

use crate::simulator::in_step::waits_in_step;
use crate::simulator::traffic::{Delivery, OwnerTraffic, WindowTraffic};

/// Which stalls are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As in the paper: the rank waits for every delivery in full.
    Paper,
    /// As in the runtime: all ranks wait for the last one whose batch is not there, and what comes while they train is
    /// free.
    #[default]
    Plan,
}

/// What fetching from one owner costs, measured. Energy is that of client and server, above idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchCost {
    /// Joules to initiate a request (the paper's e0).
    pub request_j: f64,
    /// Joules per row (e1).
    pub row_j: f64,
    /// Seconds to initiate a request (l0).
    pub request_s: f64,
    /// Seconds per row (l1).
    pub row_s: f64,
}

/// What an arrival costs that no request of its own asked for: a delivery of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeliveryCost {
    pub delivery_j: f64,
    pub delivery_s: f64,
}

/// What fetching and training cost a rank, measured. Ranks on like machines have the same coefficients.
#[derive(Clone, Debug, PartialEq)]
pub struct Coefficients {
    /// By owner, as the rank sees it.
    pub owners: Vec<FetchCost>,
    /// Of every owner; where it was not measured, a delivery of a stream costs its rows alone.
    pub delivery: Option<DeliveryCost>,
    /// Bytes of a row on the wire.
    pub row_bytes: f64,
    /// What the rank can receive from all owners together; infinite where it has shown no bound.
    pub bytes_per_s: f64,
    /// Power of the rank while it waits, in watts.
    pub idle_w: f64,
    /// Batches that are assembled while one is trained (`--ahead`): as many steps hide what a batch asks for.
    pub ahead: u32,
    /// Seconds to train a step whose rows are there.
    pub step_s: f64,
    /// Joules of such a step.
    pub step_j: f64,
}

impl Coefficients {
    /// # Errors
    /// Names the first coefficient that is negative or not a number.
    pub fn check(&self) -> Result<(), SimulationError> {
        let checked = |name: &'static str, value: f64, good: bool| {
            if good {
                Ok(())
            } else {
                Err(SimulationError::BadCoefficient { name, value })
            }
        };
        let finite = |name, value: f64| checked(name, value, value.is_finite() && value >= 0.0);
        for owner in &self.owners {
            finite("request_j", owner.request_j)?;
            finite("row_j", owner.row_j)?;
            finite("request_s", owner.request_s)?;
            finite("row_s", owner.row_s)?;
        }
        let delivery = self.delivery.unwrap_or_default();
        finite("delivery_j", delivery.delivery_j)?;
        finite("delivery_s", delivery.delivery_s)?;
        finite("row_bytes", self.row_bytes)?;
        checked("bytes_per_s", self.bytes_per_s, self.bytes_per_s > 0.0)?;
        finite("idle_w", self.idle_w)?;
        finite("step_s", self.step_s)?;
        finite("step_j", self.step_j)
    }

    /// The same where all fetches take `factor` times as long.
    pub fn with_slower_fetches(&self, factor: f64) -> Self {
        let slower = |cost: &FetchCost| FetchCost {
            request_s: cost.request_s * factor,
            row_s: cost.row_s * factor,
            ..*cost
        };
        Self {
            owners: self.owners.iter().map(slower).collect(),
            delivery: self.delivery.map(|delivery| DeliveryCost {
                delivery_s: delivery.delivery_s * factor,
                ..delivery
            }),
            bytes_per_s: self.bytes_per_s / factor,
            ..self.clone()
        }
    }

    pub(super) fn of_owner(&self, owner: PartId) -> Result<&FetchCost, SimulationError> {
        self.owners
            .get(usize::from(owner))
            .ok_or(SimulationError::UnknownOwner {
                owner,
                measured: self.owners.len(),
            })
    }

    /// Seconds until an owner sends the first row of what it is asked for, and between its answers.
    pub(super) fn initiation_s(&self, traffic: &OwnerTraffic) -> Result<f64, SimulationError> {
        let request_s = self.of_owner(traffic.owner)?.request_s;
        let unasked = traffic.deliveries.saturating_sub(traffic.requests) as f64;
        Ok(request_s * traffic.requests as f64 + self.delivery.unwrap_or_default().delivery_s * unasked)
    }
}

/// Why a plan cannot be priced.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulationError {
    #[error("the coefficient {name} is {value}; measure it again: it must be a number that is not negative")]
    BadCoefficient { name: &'static str, value: f64 },
    #[error(
        "the plan asks owner {owner} and there are coefficients of {measured} owners; probe all owners of the plan"
    )]
    UnknownOwner { owner: PartId, measured: usize },
}

/// What a plan costs. Costs of ranks and epochs add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimulatedCost {
    /// Joules of deliveries (the paper's E_rebuild).
    pub rebuild_j: f64,
    /// Joules of misses (E_miss).
    pub miss_j: f64,
    /// Joules drawn while waiting (E_stall).
    pub stall_j: f64,
    /// Joules of training, and of waiting for ranks that train more slowly: the same for every plan of the same batches.
    pub compute_j: f64,
    /// Seconds that deliveries hold training up.
    pub rebuild_stall_s: f64,
    /// Seconds that misses hold training up.
    pub miss_stall_s: f64,
    /// Seconds in which the rank's own rows were missing. The other stalls are waits for the rows of other ranks.
    pub own_stall_s: f64,
    /// Seconds of the steps, each as long as the slowest rank takes.
    pub compute_s: f64,
    pub rebuild_requests: u64,
    pub rebuild_deliveries: u64,
    pub rebuild_rows: u64,
    pub miss_requests: u64,
    pub miss_deliveries: u64,
    pub miss_rows: u64,
}

impl SimulatedCost {
    /// Joules that depend on the schedule (E_phy, the sum of Eq. 1 to 3).
    pub fn physical_j(&self) -> f64 {
        self.rebuild_j + self.miss_j + self.stall_j
    }

    /// Joules with those of training.
    pub fn total_j(&self) -> f64 {
        self.physical_j() + self.compute_j
    }

    pub fn stall_s(&self) -> f64 {
        self.rebuild_stall_s + self.miss_stall_s
    }

    pub fn requests(&self) -> u64 {
        self.rebuild_requests + self.miss_requests
    }

    pub fn deliveries(&self) -> u64 {
        self.rebuild_deliveries + self.miss_deliveries
    }

    pub fn rows(&self) -> u64 {
        self.rebuild_rows + self.miss_rows
    }
}

impl AddAssign for SimulatedCost {
    fn add_assign(&mut self, other: Self) {
        self.rebuild_j += other.rebuild_j;
        self.miss_j += other.miss_j;
        self.stall_j += other.stall_j;
        self.compute_j += other.compute_j;
        self.rebuild_stall_s += other.rebuild_stall_s;
        self.miss_stall_s += other.miss_stall_s;
        self.own_stall_s += other.own_stall_s;
        self.compute_s += other.compute_s;
        self.rebuild_requests += other.rebuild_requests;
        self.rebuild_deliveries += other.rebuild_deliveries;
        self.rebuild_rows += other.rebuild_rows;
        self.miss_requests += other.miss_requests;
        self.miss_deliveries += other.miss_deliveries;
        self.miss_rows += other.miss_rows;
    }
}

impl Sum for SimulatedCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        let mut total = Self::default();
        costs.for_each(|cost| total += cost);
        total
    }
}

/// What one event fetches: rows that are asked for together.
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    joules: f64,
    /// Until the last row has come, if nothing else was asked for.
    seconds: f64,
    requests: u64,
    deliveries: u64,
    rows: u64,
}

/// Owners answer at the same time, so that an event lasts as long as its slowest owner, and no shorter than its bytes
/// need. Requests to one owner follow each other.
fn price(fetch: &Delivery, coefficients: &Coefficients) -> Result<Event, SimulationError> {
    let delivery = coefficients.delivery.unwrap_or_default();
    let mut event = Event::default();
    for traffic in &fetch.owners {
        let cost = coefficients.of_owner(traffic.owner)?;
        let (requests, rows) = (traffic.requests as f64, traffic.rows as f64);
        let unasked = traffic.deliveries.saturating_sub(traffic.requests) as f64;
        event.joules += cost.request_j * requests + delivery.delivery_j * unasked + cost.row_j * rows;
        event.seconds = event
            .seconds
            .max(coefficients.initiation_s(traffic)? + cost.row_s * rows);
        event.requests += traffic.requests;
        event.deliveries += traffic.deliveries;
        event.rows += traffic.rows;
    }
    let row_wire_s = coefficients.row_bytes / coefficients.bytes_per_s;
    event.seconds = event.seconds.max(event.rows as f64 * row_wire_s);
    Ok(event)
}

/// What one rank's plan of an epoch moves, and what that costs this rank.
#[derive(Clone, Copy, Debug)]
pub struct RankTraffic<'a> {
    pub windows: &'a [WindowTraffic],
    pub coefficients: &'a Coefficients,
}

/// Prices the plan of a rank that is alone: [`simulate_in_step`] with one rank.
///
/// # Errors
/// A coefficient is negative or not a number, or the plan asks an owner that has none.
pub fn simulate(
    windows: &[WindowTraffic],
    coefficients: &Coefficients,
    mode: Mode,
) -> Result<SimulatedCost, SimulationError> {
    let alone = [RankTraffic { windows, coefficients }];
    Ok(simulate_in_step(&alone, mode)?.into_iter().sum())
}

/// Prices what the plans of all ranks move in one epoch, rank by rank (the paper's Eq. 1 to 3; in [`Mode::Paper`] to the
/// letter, so that every rank is priced alone).
///
/// In [`Mode::Plan`] the ranks train in step, and all of them wait for the rows of one. A wait counts as what the last rank
/// waits for, a rebuild or a miss.
///
/// # Errors
/// A coefficient is negative or not a number, or a plan asks an owner that has none.
pub fn simulate_in_step(ranks: &[RankTraffic<'_>], mode: Mode) -> Result<Vec<SimulatedCost>, SimulationError> {
    let mut costs = Vec::with_capacity(ranks.len());
    for rank in ranks {
        rank.coefficients.check()?;
        costs.push(price_alone(rank)?);
    }
    if mode == Mode::Plan {
        let waits = waits_in_step(ranks)?;
        for ((cost, waits), rank) in costs.iter_mut().zip(waits).zip(ranks) {
            cost.rebuild_stall_s = waits.waits.rebuild_s;
            cost.miss_stall_s = waits.waits.miss_s;
            cost.own_stall_s = waits.own_s;
            cost.compute_s += waits.slower_s;
            cost.compute_j += waits.slower_s * rank.coefficients.idle_w;
        }
    }
    for (cost, rank) in costs.iter_mut().zip(ranks) {
        cost.stall_j = rank.coefficients.idle_w * cost.stall_s();
    }
    Ok(costs)
}

/// What a rank fetches and trains, and as long as it waits for every fetch in full.
fn price_alone(rank: &RankTraffic<'_>) -> Result<SimulatedCost, SimulationError> {
    let mut cost = SimulatedCost::default();
    for window in rank.windows {
        for delivery in &window.deliveries {
            let event = price(delivery, rank.coefficients)?;
            cost.rebuild_j += event.joules;
            cost.rebuild_stall_s += event.seconds;
            cost.rebuild_requests += event.requests;
            cost.rebuild_deliveries += event.deliveries;
            cost.rebuild_rows += event.rows;
        }
        for miss in &window.misses {
            let event = price(miss, rank.coefficients)?;
            cost.miss_j += event.joules;
            cost.miss_stall_s += event.seconds;
            cost.miss_requests += event.requests;
            cost.miss_deliveries += event.deliveries;
            cost.miss_rows += event.rows;
        }
        let steps = window.steps() as f64;
        cost.compute_j += steps * rank.coefficients.step_j;
        cost.compute_s += steps * rank.coefficients.step_s;
    }
    cost.own_stall_s = cost.stall_s();
    Ok(cost)
}
