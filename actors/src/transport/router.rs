//! The transport of a machine: what it hosts is served in place, everything else over the lanes of its peers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use greengnn_model::book::{PartId, Rank};
use greengnn_model::sampling::{NeighborQuery, NeighborReply};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{block_in_place, spawn_blocking, yield_now};

use super::{BoxFuture, Caller, Hosted, LaneClient, Parcel, RowSink, Transport, TransportError};
use crate::shard::PartShard;

/// Bytes that are copied on a runtime thread before other tasks get their turn.
const STRIDE_BYTES: usize = 1 << 20;

/// Finds the machine that owns a part or hosts a rank.
///
/// What this machine hosts itself is counted like everything else, and puts nothing on the wire.
pub struct Router {
    hosted: Arc<Hosted>,
    deadline: Duration,
    owners: RwLock<BTreeMap<PartId, Arc<LaneClient>>>,
    ranks: RwLock<BTreeMap<Rank, Arc<LaneClient>>>,
}

impl Router {
    /// `deadline` bounds the wait for room in the inbox of a rank of this machine.
    pub fn new(hosted: Arc<Hosted>, deadline: Duration) -> Self {
        Self {
            hosted,
            deadline,
            owners: RwLock::default(),
            ranks: RwLock::default(),
        }
    }

    /// Reaches `parts` and `ranks` over `peer` from now on, in place of an earlier peer.
    pub fn attach(
        &self,
        peer: &Arc<LaneClient>,
        parts: impl IntoIterator<Item = PartId>,
        ranks: impl IntoIterator<Item = Rank>,
    ) {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.extend(parts.into_iter().map(|part| (part, Arc::clone(peer))));
        let mut hosts = self.ranks.write().unwrap_or_else(PoisonError::into_inner);
        hosts.extend(ranks.into_iter().map(|rank| (rank, Arc::clone(peer))));
    }

    /// Forgets every part and rank that is reached over the peer of this name, and so closes its lanes.
    pub fn detach(&self, peer: &str) {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.retain(|_, client| client.peer() != peer);
        let mut ranks = self.ranks.write().unwrap_or_else(PoisonError::into_inner);
        ranks.retain(|_, client| client.peer() != peer);
    }

    /// The machine that this router belongs to.
    pub fn hosted(&self) -> &Arc<Hosted> {
        &self.hosted
    }

    fn owner(&self, part: PartId) -> Result<Arc<LaneClient>, TransportError> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.get(&part).cloned().ok_or(TransportError::UnknownOwner { part })
    }

    fn host(&self, rank: Rank) -> Result<Arc<LaneClient>, TransportError> {
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        ranks.get(&rank).cloned().ok_or(TransportError::UnknownRank { rank })
    }

    fn refused(&self, what: String, reason: String) -> TransportError {
        TransportError::Refused {
            peer: self.hosted.machine().name.clone(),
            what,
            reason,
        }
    }
}

impl Transport for Router {
    fn fetch_rows<'a>(
        &'a self,
        caller: Caller,
        owner: PartId,
        rows: Vec<u32>,
        mut sink: Box<dyn RowSink + 'a>,
    ) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(async move {
            match self.hosted.shard(owner) {
                Some(shard) => {
                    let admitted = shard.admit_rows(caller, &rows);
                    admitted.map_err(|reason| {
                        self.refused(format!("{} feature rows of part {owner}", rows.len()), reason)
                    })?;
                    copy_rows(&shard, &rows, &mut *sink).await;
                    Ok(())
                }
                None => self.owner(owner)?.fetch_rows(caller, owner, &rows, &mut *sink).await,
            }
        })
    }

    fn sample(
        &self,
        caller: Caller,
        owner: PartId,
        queries: Vec<NeighborQuery>,
    ) -> BoxFuture<'_, Result<Vec<NeighborReply>, TransportError>> {
        Box::pin(async move {
            let Some(shard) = self.hosted.shard(owner) else {
                return self.owner(owner)?.sample(caller, owner, &queries).await;
            };
            let what = || format!("neighbour samples of part {owner}");
            let drawn = spawn_blocking(move || shard.sample(caller, &queries, usize::MAX)).await;
            let drawn = drawn.map_err(|error| self.refused(what(), error.to_string()))?;
            drawn.map_err(|reason| self.refused(what(), reason))
        })
    }

    fn post(&self, parcel: Parcel) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let Some(inbox) = self.hosted.inbox(parcel.to) else {
                return self.host(parcel.to)?.post(&parcel).await;
            };
            let what = format!("a parcel for rank {} ({:?})", parcel.to, parcel.tag);
            let put = inbox.put(parcel, self.deadline).await;
            put.map_err(|error| self.refused(what, error.to_string()))
        })
    }
}

/// Copies rows of this machine straight from where they are stored. Rows may have to come from disk, so that a large
/// copy leaves the runtime's threads alone, or at least lets other tasks in where there is only one.
async fn copy_rows(shard: &PartShard, rows: &[u32], sink: &mut dyn RowSink) {
    let per_stride = (STRIDE_BYTES / shard.row_bytes().max(1)).max(1);
    if rows.len() <= per_stride {
        copy_stride(shard, 0, rows, sink);
    } else if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        block_in_place(|| copy_stride(shard, 0, rows, sink));
    } else {
        for (index, stride) in rows.chunks(per_stride).enumerate() {
            copy_stride(shard, index * per_stride, stride, sink);
            yield_now().await;
        }
    }
}

fn copy_stride(shard: &PartShard, first: usize, rows: &[u32], sink: &mut dyn RowSink) {
    for (place, row) in rows.iter().enumerate() {
        sink.accept(first + place, shard.encoded_row(*row));
    }
}
