//! The plan: what the runtime executes, the simulator prices and the counters are checked against.
//!
//! A policy turns the trace of a rank's epoch into [`WindowPlan`]s, one window at a time. Cache memory is an arena of
//! exactly `budget` slots. Between the assembly of step `g - 1` and that of step `g` lies gap `g`; a row in a slot is
//! charged at every gap over which it is held, also when it has come early. Free of charge is only what is written
//! straight into the assembly buffer of the next batch ([`Place::Direct`]).

use serde::{Deserialize, Serialize};

use crate::book::PartId;
use crate::rng::Purpose;
pub use crate::row_type::RowType;

/// Which memory a row is kept in. One level for now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    #[default]
    Host,
}

/// Where a remote row is when its batch is assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Place {
    /// In this slot of the arena.
    Slot(u32),
    /// In this row of the batch's own assembly buffer.
    Direct(u32),
}

/// One question of a rank to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub owner: PartId,
    /// Rows local to the owner, ascending, each once.
    pub rows: Vec<u32>,
    /// Per row where it lands. A direct place is in the buffer of step `needed_by_step`.
    pub places: Vec<Place>,
    pub level: Level,
    pub dtype: RowType,
    /// The request may leave once this step has been assembled and its releases and keeps are done; `None`: once the
    /// epoch before has assembled its last step. Where a plan starts later in the epoch the step before its first counts as
    /// assembled. A request with a direct place leaves after step `needed_by_step - 1`.
    pub issue_after_step: Option<u32>,
    /// The request must have been answered when this step is assembled: the first step that reads one of its rows, or an
    /// earlier one. The request counts for the phase of this step.
    pub needed_by_step: u32,
}

impl Request {
    /// The first gap at which the request's slots are charged: gap `g` lies just before the assembly of step `g`.
    pub fn issue_gap(&self) -> u32 {
        self.issue_after_step.map_or(0, |step| step + 1)
    }
}

/// A row that came directly for its batch and is kept for a later one: copied into a slot after the assembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Row of the batch's assembly buffer.
    pub direct: u32,
    pub slot: u32,
}

/// How one step finds its remote rows, and what changes in the arena once it has been assembled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    pub step: u32,
    /// Per remote row of the batch, in the order of [`RemoteRows::iter`](crate::batch::RemoteRows::iter).
    pub places: Vec<Place>,
    /// Rows of the batch's assembly buffer.
    pub direct_rows: u32,
    /// Slots that are free after the assembly.
    pub releases: Vec<u32>,
    /// Done after the releases, so a keep may use a slot that was just released.
    pub keeps: Vec<Keep>,
}

/// A window: consecutive steps of one rank, inside one epoch and one purpose, and every request that may leave while
/// the window's steps are assembled. A request may serve a later window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowPlan {
    pub purpose: Purpose,
    /// Requests by ascending issue gap. Each issue gap lies in `first_step ..= last step` of this window.
    pub requests: Vec<Request>,
    /// One entry per step, without a hole.
    pub batches: Vec<BatchPlan>,
}

impl WindowPlan {
    pub fn first_step(&self) -> u32 {
        self.batches.first().map_or(0, |batch| batch.step)
    }
}

/// A row that a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeldRow {
    pub owner: PartId,
    pub row: u32,
    pub slot: u32,
}

/// What the arena holds when a plan starts or ends, and what its policy remembers: empty at the start of a run, after a
/// resume and after a rejoin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheState {
    /// Sorted by owner and row.
    pub held: Vec<HeldRow>,
    /// What the policy knows of the past: one word per node of the graph, whose meaning is the policy's own, or nothing.
    /// Only policies that look back have it; whoever carries a state from one epoch to the next leaves it as it is.
    pub history: Vec<u64>,
}

impl CacheState {
    /// A state without a past.
    pub fn of_rows(held: Vec<HeldRow>) -> Self {
        Self {
            held,
            history: Vec::new(),
        }
    }
}
