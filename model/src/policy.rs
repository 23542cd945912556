//! Policies: how remote rows are cached. A policy is a pure function from a trace to plans.

use std::sync::Arc;

use crate::batch::RemoteRows;
use crate::book::{PartitionBook, Rank};
use crate::plan::{CacheState, WindowPlan};
use crate::rng::Purpose;

/// What a planner reads of a trace: the remote rows of every step of one epoch of one rank.
pub trait RemoteTrace: Send + Sync {
    /// Number of steps: training, then validation, then test.
    fn steps(&self) -> u32;
    fn purpose(&self, step: u32) -> Purpose;
    fn remote_rows(&self, step: u32) -> Result<Arc<RemoteRows>, TraceReadError>;
}

/// A trace that cannot be read any more.
#[derive(Debug, thiserror::Error)]
#[error("the remote rows of step {step} cannot be read: {reason}")]
pub struct TraceReadError {
    pub step: u32,
    pub reason: String,
}

/// Everything a plan is a function of.
#[derive(Clone)]
pub struct PlanInput {
    pub rank: Rank,
    pub book: Arc<PartitionBook>,
    /// Slots of the arena.
    pub budget_rows: u32,
    /// Steps per window; exact for `window`, a maximum for `bulk`. At least 1.
    pub window: u32,
    /// This epoch.
    pub trace: Arc<dyn RemoteTrace>,
    /// The next epoch, where it has been presampled: the rest of the horizon. Later uses count as never.
    pub next: Option<Arc<dyn RemoteTrace>>,
    /// The first step to plan.
    pub from_step: u32,
    /// What the arena holds.
    pub state: CacheState,
}
