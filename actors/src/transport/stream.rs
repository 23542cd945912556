//! Streams: one request of a rank to an owner that carries the schedule of an epoch, answered by deliveries in its order.
//!
//! A [`RowStream`] is fed with deliveries long before they are due ([`schedule`](RowStream::schedule)), and lets the owner
//! go on to the next of them once there is room for its rows ([`grant`](RowStream::grant)). What is on the way when a
//! batch waits for its rows is then 24 bytes of credit, not a list of ids, and the owner has the first rows ready.
//!
//! ```text
//! asker                                                   owner
//!   StreamOpen (caller, part)                  ->           one request is counted
//!   Schedule   (deliveries: step, phase, rows) ->           bounded by max_schedule_bytes
//!   Schedule   (..; the last part says so)     ->
//!   Credit     (rows)                          ->
//!                                              <-         Rows, Rows, .. of the first delivery, which is counted
//!   Credit     (rows)                          ->
//!                                              <-         Rows of the second
//! ```
//!
//! - **Order.** Deliveries come in the order of the schedule, each in frames of its own of at most
//!   [`LaneSettings::chunk_bytes`](super::LaneSettings::chunk_bytes).
//! - **Credit** is counted in rows. A frame leaves once the credit covers all of its rows, so that neither a socket nor
//!   the kernel ever holds a row that has no place yet. Before that the owner has read at most the one frame.
//! - **The schedule ahead** is bounded: the asker keeps parts back while more than
//!   [`LaneSettings::max_schedule_bytes`](super::LaneSettings::max_schedule_bytes) have not been answered, and the owner
//!   ends a stream that does not. A part that is alone may be larger, up to the limit of a request.
//! - **A lane of its own.** A stream has a connection while it is open, so that none waits behind another, and leaves it to
//!   the next one. Either end reads while it writes, so that no two writes wait for each other.
//! - **Waits.** For rows that it has granted the asker waits as long as for any answer. An owner waits for credit
//!   for as long as a run may take to come to the step that needs the rows, from the first step of the epoch on, without
//!   being given up: `STEP_PATIENCE` deadlines for each. Then the asker is told and left. For more of the schedule
//!   an owner waits as it waits for the next request on any lane: until the connection is closed, or is found dead by TCP's
//!   own probes.

mod asking;
mod local;
mod serving;
mod wire;

use greengnn_model::book::PartId;
use greengnn_model::counters::Phase;
use tokio::sync::oneshot;

pub(super) use asking::StreamLanes;
pub(super) use local::LocalStream;

use super::{BoxFuture, RowSink, TransportError};

/// Rows of one owner that come together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledRows {
    /// The step that needs them, by which errors name the delivery.
    pub step: u32,
    /// The phase of that step, under which the owner counts the delivery.
    pub phase: Phase,
    /// Rows local to the owner, ascending, each once, at least one.
    pub rows: Vec<u32>,
}

/// Resolves when all rows of a delivery are in their sink, which is gone by then.
pub type Arrival = BoxFuture<'static, Result<(), TransportError>>;

/// An open stream of one owner. Dropping it before all of its deliveries have come ends it.
pub trait RowStream: Send {
    /// Appends deliveries to the schedule. After the `last` ones none follow.
    ///
    /// # Errors
    /// A peer that cannot be reached any more, or deliveries that are not as [`ScheduledRows`] says.
    fn schedule(&mut self, deliveries: Vec<ScheduledRows>, last: bool) -> BoxFuture<'_, Result<(), TransportError>>;

    /// Lets the owner send the next delivery of the schedule, whose rows go into `sink` as they come.
    ///
    /// # Errors
    /// A peer that cannot be reached any more, or no delivery that is left in the schedule.
    fn grant(&mut self, sink: Box<dyn RowSink>) -> BoxFuture<'_, Result<Arrival, TransportError>>;
}

/// Deliveries that are granted and have not come, at most. A further grant waits for the first of them.
const GRANTED_AT_ONCE: usize = 64;

/// Deadlines that the asker of a stream may take for a step, at most. A run in which no step is finished for a dozen is given
/// up by its supervisor.
const STEP_PATIENCE: u32 = 20;

/// Steps that the asker may be behind: it asks ahead by one or two batches, and opens a stream before its first step.
const STEPS_BEHIND: u32 = 2;

/// How errors name a delivery.
fn delivery_name(part: PartId, step: u32) -> String {
    format!("the delivery of part {part} for step {step}")
}

/// Waits for what the receiver of a stream says; `ended` says why it says nothing.
fn arrival(
    arriving: oneshot::Receiver<Result<(), TransportError>>,
    ended: impl FnOnce() -> TransportError + Send + 'static,
) -> Arrival {
    Box::pin(async move { arriving.await.unwrap_or_else(|_| Err(ended())) })
}

/// What is wrong with deliveries that are to be scheduled.
fn unfit(deliveries: &[ScheduledRows], after_last: bool) -> Option<String> {
    if after_last && !deliveries.is_empty() {
        return Some("the schedule has ended".to_owned());
    }
    let unfit = deliveries
        .iter()
        .find(|delivery| delivery.rows.is_empty() || !delivery.rows.is_sorted_by(|a, b| a < b))?;
    Some(format!(
        "the rows for step {} do not ascend, or there are none",
        unfit.step
    ))
}

#[cfg(test)]
mod tests;
