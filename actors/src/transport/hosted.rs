//! What one machine hosts: its parts and the inboxes of its ranks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use greengnn_model::book::{PartId, Rank};
use serde::{Deserialize, Serialize};

use super::inbox::Inbox;
use super::ticket::TicketBook;
use crate::shard::{PartShard, WireLedger};

/// Which machine, and which of its lives: a restarted process has the name of the one before it and a new incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MachineId {
    /// At most [`MachineId::MAX_NAME_BYTES`] bytes.
    pub name: String,
    pub incarnation: u64,
}

impl MachineId {
    /// Longest name in bytes.
    pub const MAX_NAME_BYTES: usize = 255;

    pub fn new(name: impl Into<String>, incarnation: u64) -> Self {
        Self {
            name: name.into(),
            incarnation,
        }
    }
}

/// The parts and ranks of one machine, shared by its [`Router`](super::Router) and its
/// [`LaneListener`](super::LaneListener).
pub struct Hosted {
    machine: MachineId,
    membership_epoch: AtomicU64,
    shards: RwLock<BTreeMap<PartId, Arc<PartShard>>>,
    inboxes: RwLock<BTreeMap<Rank, Arc<Inbox>>>,
    tickets: TicketBook,
    wire: WireLedger,
}

impl Hosted {
    pub fn new(machine: MachineId) -> Self {
        Self {
            machine,
            membership_epoch: AtomicU64::new(0),
            shards: RwLock::default(),
            inboxes: RwLock::default(),
            tickets: TicketBook::default(),
            wire: WireLedger::default(),
        }
    }

    pub fn machine(&self) -> &MachineId {
        &self.machine
    }

    /// Serves `shard` from now on, in place of an earlier one of the same part.
    pub fn add_shard(&self, shard: Arc<PartShard>) {
        let mut shards = self.shards.write().unwrap_or_else(PoisonError::into_inner);
        shards.insert(shard.part(), shard);
    }

    /// Takes parcels for the rank of `inbox` from now on.
    pub fn add_inbox(&self, inbox: Arc<Inbox>) {
        let mut inboxes = self.inboxes.write().unwrap_or_else(PoisonError::into_inner);
        inboxes.insert(inbox.rank(), inbox);
    }

    pub fn shard(&self, part: PartId) -> Option<Arc<PartShard>> {
        let shards = self.shards.read().unwrap_or_else(PoisonError::into_inner);
        shards.get(&part).cloned()
    }

    /// All parts that are served here, in order.
    pub fn shards(&self) -> Vec<Arc<PartShard>> {
        let shards = self.shards.read().unwrap_or_else(PoisonError::into_inner);
        shards.values().cloned().collect()
    }

    pub fn inbox(&self, rank: Rank) -> Option<Arc<Inbox>> {
        let inboxes = self.inboxes.read().unwrap_or_else(PoisonError::into_inner);
        inboxes.get(&rank).cloned()
    }

    /// The tickets that open lanes to this machine. Whoever serves the control session issues them from here.
    pub fn tickets(&self) -> &TicketBook {
        &self.tickets
    }

    /// What this process wrote to its sockets.
    pub fn wire(&self) -> &WireLedger {
        &self.wire
    }

    /// The membership that this machine believes in. Lanes of another one are refused.
    pub fn membership_epoch(&self) -> u64 {
        self.membership_epoch.load(Ordering::Acquire)
    }

    /// Moves to another membership: requests on lanes that were opened under the one before are refused from now on.
    pub fn set_membership_epoch(&self, epoch: u64) {
        self.membership_epoch.store(epoch, Ordering::Release);
    }
}
