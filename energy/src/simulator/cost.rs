//! The price of a plan: the paper's Eq. 1 to 4, without the learned residual.

use std::iter::Sum;
use std::ops::AddAssign;

use greengnn_model::book::PartId;
use serde::{Deserialize, Serialize};

use crate::simulator::traffic::{Delivery, WindowTraffic};

/// Which stalls are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As in the paper: the rank waits for every delivery in full.
    Paper,
    /// As in the runtime: of a delivery and of a miss only the time is charged that the steps trained meanwhile do not
    /// hide, and rows that later steps are the first to need may come later.
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

/// The measured coefficients of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Coefficients {
    /// By owner.
    pub owners: Vec<FetchCost>,
    /// Of every owner; where it was not measured, a delivery of a stream costs its rows alone.
    pub delivery: Option<DeliveryCost>,
    /// Bytes of a row on the wire.
    pub row_bytes: f64,
    /// What one rank can receive from all owners together; infinite where it has shown no bound.
    pub bytes_per_s: f64,
    /// Power of a rank that waits, in watts.
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
    /// Joules of training, the same for every plan of the same batches.
    pub compute_j: f64,
    /// Seconds that deliveries hold training up.
    pub rebuild_stall_s: f64,
    /// Seconds that misses hold training up.
    pub miss_stall_s: f64,
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
    /// Until the last row has come.
    seconds: f64,
    /// Of these, what training does not hide.
    exposed_s: f64,
    requests: u64,
    deliveries: u64,
    rows: u64,
}

impl Event {
    fn stall_s(&self, mode: Mode) -> f64 {
        match mode {
            Mode::Paper => self.seconds,
            Mode::Plan => self.exposed_s,
        }
    }
}

/// Owners answer at the same time, so that an event lasts as long as its slowest owner, and no shorter than its bytes
/// need. Requests to one owner follow each other. Rows come in the order in which they are needed, so that each step
/// waits for those up to its own, and the longest of these waits is what the event holds training up.
fn price(fetch: &Delivery, coefficients: &Coefficients) -> Result<Event, SimulationError> {
    let delivery = coefficients.delivery.unwrap_or_default();
    let step_s = coefficients.step_s;
    let row_wire_s = coefficients.row_bytes / coefficients.bytes_per_s;
    // The batch before is assembled while `ahead` others are yet to be trained; none are at the start of an epoch.
    let steps_ahead = fetch.steps_ahead + coefficients.ahead.min(fetch.issue_gap);
    let hidden_s = f64::from(steps_ahead) * step_s;
    let mut event = Event::default();
    for traffic in &fetch.owners {
        let cost = coefficients
            .owners
            .get(usize::from(traffic.owner))
            .ok_or(SimulationError::UnknownOwner {
                owner: traffic.owner,
                measured: coefficients.owners.len(),
            })?;
        let (requests, rows) = (traffic.requests as f64, traffic.rows as f64);
        let unasked = traffic.deliveries.saturating_sub(traffic.requests) as f64;
        event.joules += cost.request_j * requests + delivery.delivery_j * unasked + cost.row_j * rows;
        let initiation_s = cost.request_s * requests + delivery.delivery_s * unasked;
        event.seconds = event.seconds.max(initiation_s + cost.row_s * rows);
        // From the last row back to those that are needed first.
        let mut come = traffic.rows;
        let later = fetch.later.iter().filter(|later| later.owner == traffic.owner);
        for later in later.rev() {
            let hidden_s = hidden_s + f64::from(later.steps) * step_s;
            event.exposed_s = event.exposed_s.max(initiation_s + cost.row_s * come as f64 - hidden_s);
            come = come.saturating_sub(later.rows);
        }
        event.exposed_s = event.exposed_s.max(initiation_s + cost.row_s * come as f64 - hidden_s);
        event.requests += traffic.requests;
        event.deliveries += traffic.deliveries;
        event.rows += traffic.rows;
    }
    event.seconds = event.seconds.max(event.rows as f64 * row_wire_s);
    // The link carries the rows of all owners in the order in which they are needed.
    let mut by_steps: Vec<(u32, u64)> = fetch.later.iter().map(|later| (later.steps, later.rows)).collect();
    by_steps.sort_unstable();
    let mut come = event.rows;
    for (steps, rows) in by_steps.into_iter().rev() {
        let hidden_s = hidden_s + f64::from(steps) * step_s;
        event.exposed_s = event.exposed_s.max(come as f64 * row_wire_s - hidden_s);
        come = come.saturating_sub(rows);
    }
    event.exposed_s = event.exposed_s.max(come as f64 * row_wire_s - hidden_s);
    Ok(event)
}

/// Prices what one rank's plan moves (the paper's Eq. 1 to 3; in [`Mode::Paper`] to the letter).
///
/// In [`Mode::Plan`] an event stalls for what training does not hide. That events which overlap share the link, and that
/// the slowest rank holds up the others, is not modelled.
///
/// # Errors
/// A coefficient is negative or not a number, or the plan asks an owner that has none.
pub fn simulate(
    windows: &[WindowTraffic],
    coefficients: &Coefficients,
    mode: Mode,
) -> Result<SimulatedCost, SimulationError> {
    coefficients.check()?;
    let mut cost = SimulatedCost::default();
    for window in windows {
        for delivery in &window.deliveries {
            let event = price(delivery, coefficients)?;
            cost.rebuild_j += event.joules;
            cost.rebuild_stall_s += event.stall_s(mode);
            cost.rebuild_requests += event.requests;
            cost.rebuild_deliveries += event.deliveries;
            cost.rebuild_rows += event.rows;
        }
        for miss in &window.misses {
            let event = price(miss, coefficients)?;
            cost.miss_j += event.joules;
            cost.miss_stall_s += event.stall_s(mode);
            cost.miss_requests += event.requests;
            cost.miss_deliveries += event.deliveries;
            cost.miss_rows += event.rows;
        }
        let steps = window.steps() as f64;
        cost.compute_j += steps * coefficients.step_j;
        cost.compute_s += steps * coefficients.step_s;
    }
    cost.stall_j = coefficients.idle_w * cost.stall_s();
    Ok(cost)
}
