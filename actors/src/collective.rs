//! Sums, gathers and broadcasts over all ranks, with the same bits wherever the ranks run.
//!
//! Floating-point sums depend on their order. Every element is therefore summed in the order of ranks, `((0 + 1) + 2) +
//! 3`, never per machine first, so that a run on one machine and a run on four give the same weights.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use greengnn_model::book::Rank;
use greengnn_model::counters::Period;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transport::{Inbox, InboxError, Parcel, ParcelKind, ParcelTag, Transport, TransportError};

/// One rank's part in the collective operations of a run. All ranks call the same operations in the same order.
#[derive(Clone)]
pub struct Collective {
    rank: Rank,
    machines: Vec<String>,
    transport: Arc<dyn Transport>,
    inbox: Arc<Inbox>,
    deadline: Duration,
}

/// When an operation takes place, which names its parcels and says what the bytes are charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub epoch: u32,
    pub step: u32,
    pub period: Period,
}

/// Why the ranks could not agree.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    #[error("rank {rank} on {machine} sent no {kind:?} for epoch {epoch}, step {step} within {} s", deadline.as_secs_f32())]
    Silent {
        rank: Rank,
        machine: String,
        kind: ParcelKind,
        epoch: u32,
        step: u32,
        deadline: Duration,
    },
    #[error("rank {rank} cannot take part among {ranks} ranks")]
    NoSuchRank { rank: Rank, ranks: usize },
    #[error("rank {rank} on {machine} could not be sent to: {source}")]
    Unreachable {
        rank: Rank,
        machine: String,
        #[source]
        source: TransportError,
    },
    #[error(
        "rank {rank} on {machine} sent {found} bytes of {kind:?} where {expected} belong; its model is another one"
    )]
    WrongSize {
        rank: Rank,
        machine: String,
        kind: ParcelKind,
        expected: usize,
        found: usize,
    },
    #[error("the {kind:?} of rank {rank} on {machine} cannot be written or read: {reason}")]
    Unreadable {
        rank: Rank,
        machine: String,
        kind: ParcelKind,
        reason: String,
    },
}

impl Collective {
    /// `machines` names the machine of every rank, for errors; its length is the number of ranks. `deadline` bounds every
    /// wait for a rank.
    ///
    /// # Errors
    /// [`CollectiveError::NoSuchRank`] if `machines` has no place for `rank`.
    pub fn new(
        rank: Rank,
        machines: Vec<String>,
        transport: Arc<dyn Transport>,
        inbox: Arc<Inbox>,
        deadline: Duration,
    ) -> Result<Self, CollectiveError> {
        let ranks = machines.len();
        if usize::from(rank) >= ranks || ranks > usize::from(Rank::MAX) {
            return Err(CollectiveError::NoSuchRank { rank, ranks });
        }
        Ok(Self {
            rank,
            machines,
            transport,
            inbox,
            deadline,
        })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn ranks(&self) -> Rank {
        self.machines.len() as Rank
    }

    /// Replaces `values` by the sum over all ranks, element by element in the order of ranks.
    ///
    /// Each rank sums one slice of the vector and sends the sums to all (reduce-scatter and all-gather), so that a rank
    /// sends and receives `2 (R - 1) / R` vectors. The inbox must hold the parcels of two steps.
    ///
    /// # Errors
    /// A rank that did not answer in time, cannot be reached, or has a vector of another length.
    pub async fn all_reduce_sum(&self, moment: Moment, values: &mut [f32]) -> Result<(), CollectiveError> {
        let own = self.slice(self.rank, values.len());
        let slices = |to: Rank| bytes_of(&values[self.slice(to, values.len())]);
        let ((), summed) = tokio::try_join!(
            self.send_all(ParcelKind::GradientSlice, moment, slices),
            self.sum_slices(moment, &values[own.clone()]),
        )?;
        let sums = |_: Rank| bytes_of(&summed);
        tokio::try_join!(
            self.send_all(ParcelKind::GradientSum, moment, sums),
            self.receive_sums(moment, values),
        )?;
        values[own].copy_from_slice(&summed);
        Ok(())
    }

    /// What every rank contributes, by rank. Contributions may differ in length.
    ///
    /// # Errors
    /// A rank that did not answer in time or cannot be reached.
    pub async fn all_gather(
        &self,
        kind: ParcelKind,
        moment: Moment,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let send = self.send_all(kind, moment, |_| bytes.clone());
        let ((), mut all) = tokio::try_join!(send, self.receive_all(kind, moment))?;
        all[usize::from(self.rank)] = bytes;
        Ok(all)
    }

    /// The values that all ranks contribute, by rank, as MessagePack.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), or [`CollectiveError::Unreadable`].
    pub async fn all_gather_values<T: Serialize + DeserializeOwned>(
        &self,
        kind: ParcelKind,
        moment: Moment,
        own: &T,
    ) -> Result<Vec<T>, CollectiveError> {
        let unreadable = |rank: Rank, reason: String| CollectiveError::Unreadable {
            rank,
            machine: self.machines[usize::from(rank)].clone(),
            kind,
            reason,
        };
        let own = rmp_serde::to_vec(own).map_err(|error| unreadable(self.rank, error.to_string()))?;
        let all = self.all_gather(kind, moment, own).await?;
        (0..)
            .zip(all)
            .map(|(rank, bytes)| rmp_serde::from_slice(&bytes).map_err(|error| unreadable(rank, error.to_string())))
            .collect()
    }

    /// Gives every rank its own bytes: `payloads` has what this rank gives to each, by rank, and the result what each gave
    /// to this one. No rank gets ahead of another by more than one such exchange, so an inbox holds those of two.
    ///
    /// # Errors
    /// A rank that did not answer in time or cannot be reached.
    pub async fn all_to_all(
        &self,
        kind: ParcelKind,
        moment: Moment,
        mut payloads: Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        payloads.resize(self.machines.len(), Vec::new());
        let send = self.send_all(kind, moment, |to| payloads[usize::from(to)].clone());
        let ((), mut all) = tokio::try_join!(send, self.receive_all(kind, moment))?;
        all[usize::from(self.rank)] = payloads.swap_remove(usize::from(self.rank));
        Ok(all)
    }

    /// One parcel of every other rank, by rank.
    async fn receive_all(&self, kind: ParcelKind, moment: Moment) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let mut all = Vec::with_capacity(self.machines.len());
        for from in 0..self.ranks() {
            all.push(if from == self.rank {
                Vec::new()
            } else {
                self.receive(kind, moment, from).await?
            });
        }
        Ok(all)
    }

    /// Rank 0's `bytes`, at every rank. What the others bring is ignored.
    ///
    /// # Errors
    /// Rank 0 did not answer in time; at rank 0, a rank that cannot be reached.
    pub async fn broadcast(
        &self,
        kind: ParcelKind,
        moment: Moment,
        bytes: Vec<u8>,
    ) -> Result<Vec<u8>, CollectiveError> {
        if self.rank == 0 {
            self.send_all(kind, moment, |_| bytes.clone()).await?;
            Ok(bytes)
        } else {
            self.receive(kind, moment, 0).await
        }
    }

    /// The elements that `rank` sums, of `length`; the slices differ by at most one element and may be empty.
    fn slice(&self, rank: Rank, length: usize) -> Range<usize> {
        let bound = |rank: usize| (length as u128 * rank as u128 / self.machines.len() as u128) as usize;
        bound(usize::from(rank))..bound(usize::from(rank) + 1)
    }

    async fn sum_slices(&self, moment: Moment, own: &[f32]) -> Result<Vec<f32>, CollectiveError> {
        let mut sum = Vec::new();
        for from in 0..self.ranks() {
            if from == self.rank {
                add(&mut sum, own.iter().copied());
            } else {
                let bytes = self.receive(ParcelKind::GradientSlice, moment, from).await?;
                self.check(from, ParcelKind::GradientSlice, own.len(), &bytes)?;
                add(&mut sum, values_of(&bytes));
            }
        }
        Ok(sum)
    }

    async fn receive_sums(&self, moment: Moment, values: &mut [f32]) -> Result<(), CollectiveError> {
        for from in (0..self.ranks()).filter(|rank| *rank != self.rank) {
            let slice = self.slice(from, values.len());
            let bytes = self.receive(ParcelKind::GradientSum, moment, from).await?;
            self.check(from, ParcelKind::GradientSum, slice.len(), &bytes)?;
            values[slice]
                .iter_mut()
                .zip(values_of(&bytes))
                .for_each(|(place, value)| *place = value);
        }
        Ok(())
    }

    /// Sends to every other rank, starting behind this one so that not all send to the same rank at once.
    async fn send_all(
        &self,
        kind: ParcelKind,
        moment: Moment,
        payload: impl Fn(Rank) -> Vec<u8>,
    ) -> Result<(), CollectiveError> {
        for to in (self.rank + 1..self.ranks()).chain(0..self.rank) {
            self.send(kind, moment, to, payload(to)).await?;
        }
        Ok(())
    }

    /// Sends to one rank. Resolves once the payload has been handed to the network.
    ///
    /// # Errors
    /// A rank that cannot be reached.
    pub async fn send(
        &self,
        kind: ParcelKind,
        moment: Moment,
        to: Rank,
        payload: Vec<u8>,
    ) -> Result<(), CollectiveError> {
        let parcel = Parcel {
            from: self.rank,
            to,
            tag: tag(kind, moment),
            payload,
            period: moment.period,
        };
        let posted = self.transport.post(parcel).await;
        posted.map_err(|source| CollectiveError::Unreachable {
            rank: to,
            machine: self.machine(to),
            source,
        })
    }

    /// What `from` sent to this rank, waiting for at most the deadline.
    ///
    /// # Errors
    /// A rank that did not answer in time.
    pub async fn receive(&self, kind: ParcelKind, moment: Moment, from: Rank) -> Result<Vec<u8>, CollectiveError> {
        let taken = self.inbox.take(tag(kind, moment), from, self.deadline).await;
        match taken {
            Ok(parcel) => Ok(parcel.payload),
            Err(InboxError::NothingCame { .. } | InboxError::Full { .. } | InboxError::TooLarge { .. }) => {
                Err(CollectiveError::Silent {
                    rank: from,
                    machine: self.machine(from),
                    kind,
                    epoch: moment.epoch,
                    step: moment.step,
                    deadline: self.deadline,
                })
            }
        }
    }

    /// Refuses bytes that are not `values` f32.
    ///
    /// # Errors
    /// [`CollectiveError::WrongSize`].
    pub fn check(&self, from: Rank, kind: ParcelKind, values: usize, bytes: &[u8]) -> Result<(), CollectiveError> {
        if bytes.len() == values * 4 {
            return Ok(());
        }
        Err(CollectiveError::WrongSize {
            rank: from,
            machine: self.machine(from),
            kind,
            expected: values * 4,
            found: bytes.len(),
        })
    }

    fn machine(&self, rank: Rank) -> String {
        self.machines.get(usize::from(rank)).cloned().unwrap_or_default()
    }
}

/// Adds values to a sum that starts empty. The first are taken as they are: 0 + x would turn -0 into 0.
pub(crate) fn add(sum: &mut Vec<f32>, values: impl Iterator<Item = f32>) {
    if sum.is_empty() {
        sum.extend(values);
    } else {
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
}

fn tag(kind: ParcelKind, moment: Moment) -> ParcelTag {
    ParcelTag {
        epoch: moment.epoch,
        step: moment.step,
        kind,
    }
}

/// Values in little-endian order, as they travel.
pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The inverse of [`bytes_of`]; a remainder is left out.
pub(crate) fn values_of(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|value| f32::from_le_bytes(*value))
}

#[cfg(test)]
pub(crate) mod tests;
