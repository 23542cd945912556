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

/// Which memory a row is kept in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The machine's memory, from where a row travels to the device with every batch that reads it.
    #[default]
    Host,
    /// The memory of the device that trains. On a CPU it is the same memory, but the plan and the counters are the same as
    /// on a GPU.
    Device,
}

/// The rows that the device keeps for the whole run. A row is in one level only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRows {
    /// The slots `0 .. slots` are the device's, the others the host's. No plan fills or frees a slot of the device.
    pub slots: u32,
    /// The rank's own rows that the device keeps too, ascending, each once. They have no slot: they are not remote.
    pub own: Vec<u32>,
}

impl DeviceRows {
    /// The level of a slot.
    pub fn level(&self, slot: u32) -> Level {
        if slot < self.slots { Level::Device } else { Level::Host }
    }

    /// Rows on the device, remote and own.
    pub fn len(&self) -> usize {
        self.slots as usize + self.own.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How what a plan asks of an owner is asked and answered. The rows that arrive at every gap are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// Request by request: each names its rows when it leaves, and its answer is one delivery.
    #[default]
    Windowed,
    /// One request per owner and epoch: the schedule of all its deliveries, which travels ahead of them. The owner answers
    /// with one ordered stream, and a delivery leaves once its places are free: at the issue gap of its [`Request`]. The
    /// one request counts for the training phase of the epoch, whatever its deliveries are needed by.
    Stream,
}

/// A word that is no [`Delivery`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no delivery {name:?}; choose windowed or stream")]
pub struct UnknownDelivery {
    pub name: String,
}

impl Delivery {
    pub fn name(self) -> &'static str {
        match self {
            Delivery::Windowed => "windowed",
            Delivery::Stream => "stream",
        }
    }
}

impl std::str::FromStr for Delivery {
    type Err = UnknownDelivery;

    fn from_str(name: &str) -> Result<Self, UnknownDelivery> {
        [Delivery::Windowed, Delivery::Stream]
            .into_iter()
            .find(|delivery| delivery.name() == name)
            .ok_or_else(|| UnknownDelivery { name: name.to_owned() })
    }
}

/// Where a remote row is when its batch is assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Place {
    /// In this slot of the arena.
    Slot(u32),
    /// In this row of the batch's own assembly buffer.
    Direct(u32),
}

/// Rows that a rank wants of an owner at one time: one question, or one delivery of a stream ([`Delivery`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub owner: PartId,
    /// Rows local to the owner, each once: those that are needed first come first, and those that are needed by the same
    /// step ascend.
    pub rows: Vec<u32>,
    /// Per row where it lands. A direct place is in the buffer of step `needed_by_step`.
    pub places: Vec<Place>,
    pub dtype: RowType,
    /// The request may leave once this step has been assembled and its releases and keeps are done; `None`: once the
    /// epoch before has assembled its last step. Where a plan starts later in the epoch the step before its first counts as
    /// assembled. A request with a direct place leaves after step `needed_by_step - 1`.
    pub issue_after_step: Option<u32>,
    /// The rows must have come when this step is assembled, but for those of `later`: the first step that reads one of
    /// them, or an earlier one. The request counts for the phase of this step.
    pub needed_by_step: u32,
    /// The rows that only later steps need, so that training goes on while they come. Empty: no row is later.
    pub later: Vec<LaterRows>,
}

/// Rows of a request that a later step is the first to need: those from `first_row` on, up to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterRows {
    /// Place in [`Request::rows`].
    pub first_row: u32,
    pub needed_by_step: u32,
}

impl Request {
    /// The first gap at which the request's slots are charged: gap `g` lies just before the assembly of step `g`.
    pub fn issue_gap(&self) -> u32 {
        self.issue_after_step.map_or(0, |step| step + 1)
    }

    /// How many of the rows, from the first on, must have come when `step` is assembled.
    pub fn rows_needed_by(&self, step: u32) -> usize {
        if step < self.needed_by_step {
            return 0;
        }
        let not_yet = self.later.iter().find(|later| later.needed_by_step > step);
        not_yet.map_or(self.rows.len(), |later| later.first_row as usize)
    }

    /// The last step that is the first to need one of the rows.
    pub fn last_needed_by_step(&self) -> u32 {
        self.later
            .last()
            .map_or(self.needed_by_step, |later| later.needed_by_step)
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
