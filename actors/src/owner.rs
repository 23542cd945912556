//! The owner of a part: the authority over who may read it.
//!
//! Rows and samples do not pass through this actor. It hands out the address of its machine's lanes and a single-use
//! ticket for one of them over the authenticated control session; the part itself is served beside it, so that bulk never
//! queues behind a mailbox.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greengnn_model::book::PartId;
use greengnn_model::sampling::Topology;
use greengnn_model::store::PartStore;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, pg};

use crate::control;
use crate::protocol::{LaneReply, LaneRequest, OwnerMessage};
use crate::rmp::Rmp;
use crate::shard::ShardData;
use crate::transport::{BoxFuture, Hosted, MachineId, Ticket, TicketSource};

/// A part that is served from its memory-mapped store.
pub struct StoredShard(pub Arc<PartStore>);

impl ShardData for StoredShard {
    fn part(&self) -> PartId {
        self.0.part()
    }

    fn rows(&self) -> u32 {
        self.0.feature_rows()
    }

    fn width(&self) -> usize {
        self.0.manifest().features
    }

    fn row(&self, row: u32) -> &[f32] {
        self.0.feature_row(row)
    }

    fn topology(&self) -> Topology<'_> {
        self.0.topology()
    }
}

/// Grants lanes to one part. In the group of the part.
pub struct Owner {
    pub part: PartId,
    pub membership_epoch: u64,
    /// Where the machine accepts lanes.
    pub address: SocketAddr,
    pub hosted: Arc<Hosted>,
}

impl Actor for Owner {
    type Msg = OwnerMessage;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<OwnerMessage>, (): ()) -> Result<(), ActorProcessingErr> {
        pg::join(control::owner_group(self.part), vec![myself.get_cell()]);
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<OwnerMessage>,
        message: OwnerMessage,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            OwnerMessage::LaneAddress(reply) => {
                let _ = reply.send(self.address.to_string());
            }
            OwnerMessage::OpenLane(Rmp(request), reply) => self.grant(&request, reply),
        }
        Ok(())
    }
}

impl Owner {
    fn grant(&self, request: &LaneRequest, reply: RpcReplyPort<Rmp<LaneReply>>) {
        let answer = if request.membership_epoch != self.membership_epoch {
            LaneReply::Refused(format!(
                "this cluster is at membership {}, the request is of membership {}",
                self.membership_epoch, request.membership_epoch
            ))
        } else {
            match self.hosted.tickets().issue(&request.from) {
                Ok(ticket) => LaneReply::Granted(serde_bytes::ByteBuf::from(ticket.as_bytes().to_vec())),
                Err(error) => LaneReply::Refused(error.to_string()),
            }
        };
        let _ = reply.send(Rmp(answer));
    }
}

/// Asks a remote owner for tickets, one per lane.
pub struct OwnerTickets {
    pub owner: ActorRef<OwnerMessage>,
    pub from: MachineId,
    pub membership_epoch: u64,
    pub deadline: Duration,
}

impl OwnerTickets {
    /// Where the owner's machine accepts lanes.
    ///
    /// # Errors
    /// Says in a sentence why it cannot be known.
    pub async fn address(&self) -> Result<SocketAddr, String> {
        let within = self.deadline.as_millis() as u64;
        let reply = ractor::call_t!(self.owner, OwnerMessage::LaneAddress, within)
            .map_err(|error| format!("the owner did not answer: {error}"))?;
        reply.parse().map_err(|_| format!("{reply} is not an address"))
    }

    async fn ticket(&self) -> Result<Ticket, String> {
        let request = LaneRequest {
            from: self.from.clone(),
            membership_epoch: self.membership_epoch,
        };
        let within = self.deadline.as_millis() as u64;
        let reply = ractor::call_t!(self.owner, OwnerMessage::OpenLane, within, Rmp(request))
            .map_err(|error| format!("the owner did not answer: {error}"))?;
        match reply.0 {
            LaneReply::Granted(ticket) => {
                let bytes = ticket
                    .into_vec()
                    .try_into()
                    .map_err(|_| "the ticket has a wrong length".to_owned())?;
                Ok(Ticket::from_bytes(bytes))
            }
            LaneReply::Refused(reason) => Err(reason),
        }
    }
}

impl TicketSource for OwnerTickets {
    fn next_ticket(&self) -> BoxFuture<'_, Result<Ticket, String>> {
        Box::pin(self.ticket())
    }
}

/// A reference to the owner of a part. Only [`Owner`]s join the group of a part.
pub fn owner_ref(cell: ractor::ActorCell) -> ActorRef<OwnerMessage> {
    cell.into()
}
