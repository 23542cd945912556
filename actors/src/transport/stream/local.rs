//! A stream of an owner on the same machine: the same schedule, order and counts, without a socket.

use std::collections::VecDeque;
use std::sync::Arc;

use greengnn_model::counters::Period;
use tokio::sync::{mpsc, oneshot};

use super::super::link::Task;
use super::super::router::copy_rows;
use super::super::{BoxFuture, Caller, RowSink, TransportError};
use super::{Arrival, GRANTED_AT_ONCE, RowStream, ScheduledRows, arrival, delivery_name, unfit};
use crate::shard::PartShard;

/// Deliveries that are copied straight from where they are stored, one after the other.
pub(in super::super) struct LocalStream {
    machine: String,
    shard: Arc<PartShard>,
    epoch: u32,
    schedule: VecDeque<ScheduledRows>,
    ended: bool,
    granted: mpsc::Sender<Granted>,
    _copying: Task,
}

struct Granted {
    delivery: ScheduledRows,
    sink: Box<dyn RowSink>,
    arrived: oneshot::Sender<Result<(), TransportError>>,
}

impl LocalStream {
    /// Opens a stream of `shard` on `machine`, and counts the request.
    pub fn open(machine: &str, shard: Arc<PartShard>, caller: Caller) -> Self {
        shard.admit_stream(caller);
        let (granted, turns) = mpsc::channel(GRANTED_AT_ONCE);
        let copying = copy(machine.to_owned(), Arc::clone(&shard), caller, turns);
        Self {
            machine: machine.to_owned(),
            shard,
            epoch: caller.period.epoch,
            schedule: VecDeque::new(),
            ended: false,
            granted,
            _copying: Task::spawn(copying),
        }
    }

    fn refused(&self, reason: String) -> TransportError {
        TransportError::Refused {
            peer: self.machine.clone(),
            what: format!("a stream of part {} in epoch {}", self.shard.part(), self.epoch),
            reason,
        }
    }
}

async fn copy(machine: String, shard: Arc<PartShard>, caller: Caller, mut turns: mpsc::Receiver<Granted>) {
    while let Some(Granted {
        delivery,
        mut sink,
        arrived,
    }) = turns.recv().await
    {
        let caller = Caller {
            rank: caller.rank,
            period: Period {
                epoch: caller.period.epoch,
                phase: delivery.phase,
            },
        };
        let outcome = match shard.admit_delivery(caller, &delivery.rows) {
            Ok(()) => {
                copy_rows(&shard, &delivery.rows, &mut *sink).await;
                Ok(())
            }
            Err(reason) => Err(TransportError::Refused {
                peer: machine.clone(),
                what: delivery_name(shard.part(), delivery.step),
                reason,
            }),
        };
        drop(sink);
        let failed = outcome.is_err();
        // Nobody waits any more when the stream was dropped.
        let _ = arrived.send(outcome);
        if failed {
            return;
        }
    }
}

impl RowStream for LocalStream {
    fn schedule(&mut self, deliveries: Vec<ScheduledRows>, last: bool) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            if let Some(reason) = unfit(&deliveries, self.ended) {
                return Err(self.refused(reason));
            }
            self.schedule.extend(deliveries);
            self.ended |= last;
            Ok(())
        })
    }

    fn grant(&mut self, sink: Box<dyn RowSink>) -> BoxFuture<'_, Result<Arrival, TransportError>> {
        Box::pin(async move {
            let Some(delivery) = self.schedule.pop_front() else {
                return Err(self.refused("no delivery is left in the schedule".to_owned()));
            };
            let (arrived, arriving) = oneshot::channel();
            let (peer, what) = (self.machine.clone(), delivery_name(self.shard.part(), delivery.step));
            let ended = move || TransportError::Broken {
                peer,
                what,
                reason: "the stream had ended before".to_owned(),
            };
            // Deliveries are copied at the speed of memory or of a disk, so a turn comes.
            let sent = self.granted.send(Granted {
                delivery,
                sink,
                arrived,
            });
            // A stream that has ended drops what it is given, and the arrival says so.
            let _ = sent.await;
            Ok(arrival(arriving, ended))
        })
    }
}
