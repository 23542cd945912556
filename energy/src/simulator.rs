//! What a schedule would cost: the paper's simulator, and how well its order of the candidates is.
//!
//! In the order in which a choice of the window is made:
//!
//! - [`traffic`] says what a plan moves, window by window and owner by owner.
//! - [`cost`] prices it with measured coefficients, as the paper does or as ranks that train in step would stall (`in_step`).
//! - [`ranking`] orders the candidates, in which schedules that are the same program are ties.
//! - [`repeated`] says which candidates that were run can be told apart, and what a pick cost beside the best one.
//! - [`evaluation`] holds the order against measurements, beside the best order that is the same everywhere.
//!
//! All of it is arithmetic on what it is given: no clock, no file, no hardware.

pub mod cost;
pub mod evaluation;
mod in_step;
pub mod ranking;
pub mod repeated;
pub mod traffic;

pub use cost::{
    Coefficients, DeliveryCost, FetchCost, Mode, RankTraffic, SimulatedCost, SimulationError, simulate,
    simulate_in_step,
};
pub use evaluation::{Configuration, Evaluation, Measured, Outcome, Score, evaluate};
pub(crate) use in_step::waits_in_step;
pub use ranking::{RankError, TieGroup, kendall_tau_b, rank_windows};
pub use repeated::{PickedWindow, RepeatedRuns};
pub use traffic::{Delivery, LaterTraffic, OwnerTraffic, TrafficCounter, WindowTraffic, traffic_of_plan};

#[cfg(test)]
mod tests;
