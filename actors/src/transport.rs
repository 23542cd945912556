//! How a rank reaches the owners and the other ranks, wherever they run.
//!
//! # The rules of a transport
//!
//! Every implementation obeys these, and `transport::conformance` checks them for all:
//!
//! 1. **Rows arrive as asked.** The sink gets every row of a request exactly once, in the order of the request, and
//!    nothing after the future has resolved.
//! 2. **Counted where served.** The owner's ledger gains one request, one delivery and as many rows as were asked, under the caller's
//!    rank and period, whether the request crossed a socket or not. A refused request counts nothing.
//! 3. **An empty request is answered** at once, and counts as a request.
//! 4. **Bad rows are refused.** A row that the owner does not have fails that request with
//!    [`TransportError::Refused`]; the connection and later requests are unharmed.
//! 5. **Every wait is bounded.** A peer that does not answer within the deadline fails the request with
//!    [`TransportError::NoAnswer`], which names the peer.
//! 6. **Parcels keep their order** between two ranks, and are delivered once.
//! 7. **Memory is bounded.** In-flight bytes per peer stay below a stated limit, however many requests wait.
//! 8. **A stream is one request.** The owner's ledger gains one request when it opens, under the caller's period, and one
//!    delivery with its rows, under its own phase, when the owner comes to it. What is not granted is not counted.
//! 9. **Deliveries come in the order of the schedule**, each in full and as scheduled, and rules 4 and 5 hold for them. One
//!    that is refused ends its stream, and no other.
//! 10. **Nothing comes that is not granted.**
//!
//! # The transport of a run
//!
//! A machine has one [`Hosted`] (its parts, the inboxes of its ranks, its tickets), one [`Router`], which is the
//! [`Transport`] that everybody asks, and one [`LaneListener`], at which the others ask it. What the machine hosts itself
//! is served in place. Everything else goes over the [`LaneClient`] of the peer that has it:
//!
//! ```text
//! Router -> PartShard, Inbox                                          hosted here
//!        -> LaneClient ==lanes (TCP)==> LaneListener -> PartShard, Inbox   hosted there
//! ```
//!
//! A lane is a TCP connection that was opened with a single-use [`Ticket`] (`hello.rs`) and then carries frames
//! (`frame.rs`). A peer is reached over a few lanes for rows, each with one request in service, one for neighbour samples,
//! one for parcels, so that no gradient waits behind megabytes of rows, and one per open stream ([`RowStream`]). A reply of rows comes in frames of at most
//! [`LaneSettings::chunk_bytes`], each handed to the sink and forgotten: in flight are one frame per lane at the asker, one
//! frame and one request per lane at the owner, and in inboxes what [`InboxLimits`] allow.

mod client;
pub mod conformance;
mod frame;
mod hello;
mod hosted;
mod inbox;
mod link;
mod listener;
mod outbound;
mod router;
mod service;
mod settings;
mod stream;
mod ticket;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use greengnn_model::book::{PartId, Rank};
use greengnn_model::counters::Period;
use greengnn_model::sampling::{NeighborQuery, NeighborReply};
use serde::{Deserialize, Serialize};

pub use client::LaneClient;
pub use hosted::{Hosted, MachineId};
pub use inbox::{Inbox, InboxError, InboxLimits, Reservation};
pub use listener::LaneListener;
pub use router::Router;
pub use settings::{LaneSettings, MAX_ROW_BYTES};
pub use stream::{Arrival, RowStream, ScheduledRows};
pub use ticket::{Ticket, TicketBook, TicketError, TicketSource, TicketStack};

/// A boxed future, so that transports can be used as trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who asks, and in which period: owners count under this heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    pub rank: Rank,
    pub period: Period,
}

/// Takes rows as they come, encoded as the run's row type says.
pub trait RowSink: Send {
    /// `rows` holds whole encoded rows one after the other, the first of which is row number `first` of the request.
    fn accept(&mut self, first: usize, rows: &[u8]);
}

/// What an all-reduce, an all-gather or a broadcast sends from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    pub from: Rank,
    pub to: Rank,
    pub tag: ParcelTag,
    pub payload: Vec<u8>,
    /// The period that the wire bytes are charged to.
    pub period: Period,
}

/// What a parcel belongs to. Unique per pair of ranks within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ParcelTag {
    pub epoch: u32,
    pub step: u32,
    pub kind: ParcelKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ParcelKind {
    /// The slice of a gradient that the receiver sums.
    GradientSlice,
    /// A summed slice.
    GradientSum,
    /// Labelled seeds per step of an epoch.
    LabelCounts,
    /// Initial parameters.
    Parameters,
    /// How often the neighbour lists of a rank's part name each node.
    Degrees,
    /// With which probability the rows of a rank's part pick nodes of another.
    Inclusion,
    /// Accuracy and loss of an evaluation.
    Evaluation,
    /// The barriers and the readings of a probe.
    Probe,
    /// What a rank's candidates would move, and what its last epochs took.
    Choice,
    /// Push-pull: some columns of feature rows, at set-up.
    Columns,
    /// Push-pull: the outermost block of a batch.
    OutermostBlock,
    /// Push-pull: what some columns add to the first layer's sums.
    PartialSums,
    /// Push-pull: the gradient of the first layer's sums.
    SumsGradient,
}

/// Why a peer could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("{peer} did not answer {what} within {} s", deadline.as_secs_f32())]
    NoAnswer {
        peer: String,
        what: String,
        deadline: Duration,
    },
    #[error("{peer} refused {what}: {reason}")]
    Refused { peer: String, what: String, reason: String },
    #[error("the connection to {peer} broke during {what}: {reason}")]
    Broken { peer: String, what: String, reason: String },
    #[error("no machine of this run owns part {part}")]
    UnknownOwner { part: PartId },
    #[error("no machine of this run hosts rank {rank}")]
    UnknownRank { rank: Rank },
}

/// Reaches owners and ranks. See the module for the rules.
pub trait Transport: Send + Sync + 'static {
    /// Moves the feature rows `rows` (local to `owner`) into `sink`.
    fn fetch_rows<'a>(
        &'a self,
        caller: Caller,
        owner: PartId,
        rows: Vec<u32>,
        sink: Box<dyn RowSink + 'a>,
    ) -> BoxFuture<'a, Result<(), TransportError>>;

    /// Opens a stream of deliveries of `owner`: one request, which counts under the caller's period. Its deliveries count
    /// under the same epoch and the phase of each. A refusal may come as late as the first arrival.
    fn open_stream(&self, caller: Caller, owner: PartId) -> BoxFuture<'_, Result<Box<dyn RowStream>, TransportError>>;

    /// Samples neighbours of nodes that `owner` owns; one request, whatever the number of queries.
    fn sample(
        &self,
        caller: Caller,
        owner: PartId,
        queries: Vec<NeighborQuery>,
    ) -> BoxFuture<'_, Result<Vec<NeighborReply>, TransportError>>;

    /// Puts a parcel into the inbox of its receiver. Resolves once it has been handed to the network.
    fn post(&self, parcel: Parcel) -> BoxFuture<'_, Result<(), TransportError>>;
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
