//! The streams of a rank in one epoch: one per owner that its plans name, opened when the first of them does.

use std::collections::BTreeMap;
use std::sync::Arc;

use greengnn_model::book::{PartId, Rank};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::plan::Request;

use crate::transport::{Arrival, Caller, RowSink, RowStream, ScheduledRows, Transport, TransportError};

/// Asks the owners for a whole epoch, window by window as it is planned.
pub(crate) struct Streams {
    rank: Rank,
    epoch: u32,
    transport: Arc<dyn Transport>,
    open: BTreeMap<PartId, Box<dyn RowStream>>,
}

impl Streams {
    pub fn new(transport: Arc<dyn Transport>, rank: Rank, epoch: u32) -> Self {
        Self {
            rank,
            epoch,
            transport,
            open: BTreeMap::new(),
        }
    }

    /// Puts the requests of a window, which are sorted by the gap at which they leave, on the schedules of their owners,
    /// and takes their rows. After the `last` window of the epoch no schedule goes on. Returns how many streams were
    /// opened: each is a request.
    pub async fn schedule(
        &mut self,
        requests: &mut [Request],
        phase_of: impl Fn(u32) -> Phase,
        last: bool,
    ) -> Result<u64, TransportError> {
        let mut by_owner: BTreeMap<PartId, Vec<ScheduledRows>> = BTreeMap::new();
        for request in requests {
            let delivery = ScheduledRows {
                step: request.needed_by_step,
                phase: phase_of(request.needed_by_step),
                rows: std::mem::take(&mut request.rows),
            };
            by_owner.entry(request.owner).or_default().push(delivery);
        }
        let mut opened = 0;
        for owner in by_owner
            .keys()
            .filter(|owner| !self.open.contains_key(owner))
            .copied()
            .collect::<Vec<_>>()
        {
            // The request counts for the training of the epoch, whatever its deliveries are for.
            let caller = Caller {
                rank: self.rank,
                period: Period {
                    epoch: self.epoch,
                    phase: Phase::Training,
                },
            };
            self.open
                .insert(owner, self.transport.open_stream(caller, owner).await?);
            opened += 1;
        }
        for (owner, stream) in &mut self.open {
            let deliveries = by_owner.remove(owner).unwrap_or_default();
            if last || !deliveries.is_empty() {
                stream.schedule(deliveries, last).await?;
            }
        }
        Ok(opened)
    }

    /// Lets `owner` send the next delivery of its schedule into `sink`.
    pub async fn grant(&mut self, owner: PartId, sink: Box<dyn RowSink>) -> Result<Arrival, TransportError> {
        match self.open.get_mut(&owner) {
            Some(stream) => stream.grant(sink).await,
            None => Err(TransportError::UnknownOwner { part: owner }),
        }
    }
}
