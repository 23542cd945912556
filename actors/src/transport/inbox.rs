//! The parcels that have come for one rank and wait to be taken.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greengnn_model::book::Rank;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Parcel, ParcelTag};
use crate::shard::lock;

/// How much an [`Inbox`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Payload bytes, rounded up to whole KiB per parcel.
    pub bytes: usize,
    pub parcels: usize,
}

impl InboxLimits {
    /// Payload bytes of an inbox by default.
    pub const DEFAULT_BYTES: usize = 512 << 20;
}

impl Default for InboxLimits {
    /// 512 MiB and 65,536 parcels: several steps of all ranks' gradients for every model this engine is made for.
    fn default() -> Self {
        Self {
            bytes: Self::DEFAULT_BYTES,
            parcels: 1 << 16,
        }
    }
}

/// Why a parcel could not be put in or taken out.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    #[error("no {tag:?} came from rank {from} to rank {to} within {} s", deadline.as_secs_f32())]
    NothingCame {
        from: Rank,
        to: Rank,
        tag: ParcelTag,
        deadline: Duration,
    },
    #[error("the inbox of rank {rank} stayed full ({} bytes, {} parcels) for {} s; raise its limits",
        limits.bytes, limits.parcels, deadline.as_secs_f32())]
    Full {
        rank: Rank,
        limits: InboxLimits,
        deadline: Duration,
    },
    #[error("a parcel of {bytes} bytes is larger than the inbox of rank {rank} ({limit} bytes)")]
    TooLarge { rank: Rank, bytes: usize, limit: usize },
}

/// The unit in which bytes are reserved, so that the largest limit fits the semaphore's count.
const UNIT: usize = 1024;

/// Parcels for one rank, by sender and tag. Whoever puts one in waits while it is full.
///
/// Parcels of one sender and tag come out in the order in which they went in, each once.
pub struct Inbox {
    rank: Rank,
    limits: InboxLimits,
    bytes: Arc<Semaphore>,
    places: Arc<Semaphore>,
    waiting: Mutex<HashMap<(Rank, ParcelTag), VecDeque<Held>>>,
    arrived: Notify,
}

/// A parcel, and the room it takes up.
struct Held {
    parcel: Parcel,
    _room: Room,
}

struct Room {
    _bytes: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

/// Room for one parcel, given back if it is dropped unused.
pub struct Reservation {
    inbox: Arc<Inbox>,
    room: Room,
}

impl Inbox {
    pub fn new(rank: Rank, limits: InboxLimits) -> Arc<Self> {
        Arc::new(Self {
            rank,
            limits,
            bytes: Arc::new(Semaphore::new(units(limits.bytes).min(u32::MAX as usize))),
            places: Arc::new(Semaphore::new(limits.parcels.clamp(1, u32::MAX as usize))),
            waiting: Mutex::default(),
            arrived: Notify::new(),
        })
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Waits for room for `bytes` of payload, at most for `deadline`. Nothing needs to be allocated before.
    ///
    /// # Errors
    /// [`InboxError::TooLarge`] and [`InboxError::Full`].
    pub async fn reserve(self: &Arc<Self>, bytes: usize, deadline: Duration) -> Result<Reservation, InboxError> {
        if bytes > self.limits.bytes {
            return Err(InboxError::TooLarge {
                rank: self.rank,
                bytes,
                limit: self.limits.bytes,
            });
        }
        let until = Instant::now() + deadline;
        let place = timeout_at(until, Arc::clone(&self.places).acquire_owned()).await;
        let bytes = timeout_at(until, Arc::clone(&self.bytes).acquire_many_owned(units(bytes) as u32)).await;
        match (place, bytes) {
            (Ok(Ok(place)), Ok(Ok(bytes))) => Ok(Reservation {
                inbox: Arc::clone(self),
                room: Room {
                    _bytes: bytes,
                    _place: place,
                },
            }),
            _ => Err(InboxError::Full {
                rank: self.rank,
                limits: self.limits,
                deadline,
            }),
        }
    }

    /// Puts a parcel in, waiting for room for at most `deadline`.
    ///
    /// # Errors
    /// [`InboxError::TooLarge`] and [`InboxError::Full`].
    pub async fn put(self: &Arc<Self>, parcel: Parcel, deadline: Duration) -> Result<(), InboxError> {
        self.reserve(parcel.payload.len(), deadline).await?.deliver(parcel);
        Ok(())
    }

    /// Takes the oldest parcel of `from` with this tag, waiting for at most `deadline`.
    ///
    /// # Errors
    /// [`InboxError::NothingCame`].
    pub async fn take(&self, tag: ParcelTag, from: Rank, deadline: Duration) -> Result<Parcel, InboxError> {
        let wait = async {
            loop {
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                // Registered before the look, so that what comes in between is not missed.
                arrived.as_mut().enable();
                if let Some(parcel) = self.try_take(tag, from) {
                    return parcel;
                }
                arrived.await;
            }
        };
        timeout(deadline, wait).await.map_err(|_| InboxError::NothingCame {
            from,
            to: self.rank,
            tag,
            deadline,
        })
    }

    fn try_take(&self, tag: ParcelTag, from: Rank) -> Option<Parcel> {
        let mut waiting = lock(&self.waiting);
        let queue = waiting.get_mut(&(from, tag))?;
        let held = queue.pop_front();
        if queue.is_empty() {
            waiting.remove(&(from, tag));
        }
        held.map(|held| held.parcel)
    }

    /// Drops everything that waits: what is left over when a run is resumed.
    pub fn clear(&self) {
        lock(&self.waiting).clear();
    }
}

impl Reservation {
    /// Puts the parcel in. Its payload is what the reservation was made for.
    pub fn deliver(self, parcel: Parcel) {
        let key = (parcel.from, parcel.tag);
        let held = Held {
            parcel,
            _room: self.room,
        };
        lock(&self.inbox.waiting).entry(key).or_default().push_back(held);
        self.inbox.arrived.notify_waiters();
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).max(1)
}
