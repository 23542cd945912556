//! Machines for tests: several in one process, each with its own listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use greengnn_model::book::{PartId, Rank};
use greengnn_model::row_type::RowType;

use super::*;
use crate::shard::{MemoryShard, PartShard};

pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Settings under which a test that hangs fails soon, and one on a busy machine does not.
pub(crate) fn settings() -> LaneSettings {
    LaneSettings {
        deadline: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(20),
        hello_timeout: Duration::from_secs(20),
        ..LaneSettings::default()
    }
}

/// A part of `rows` rows, `width` wide, in which every value and every list of neighbours is another.
pub(crate) fn shard(part: PartId, rows: u32, width: usize) -> Arc<PartShard> {
    encoded_shard(part, rows, width, RowType::F32)
}

/// The same, served as `row_type`.
pub(crate) fn encoded_shard(part: PartId, rows: u32, width: usize, row_type: RowType) -> Arc<PartShard> {
    let values = (0..rows as usize * width)
        .map(|place| place as f32 + f32::from(part) / 16.0)
        .collect();
    let lists: Vec<Vec<u32>> = (0..rows)
        .map(|row| (0..row % 7).map(|number| row * 31 + number).collect())
        .collect();
    let data = MemoryShard::new(part, width, values).and_then(|data| data.with_neighbors(0, &lists));
    let shard = PartShard::encoded(data.unwrap(), row_type, &std::env::temp_dir());
    Arc::new(shard.unwrap())
}

/// A machine that listens on a free port.
pub(crate) struct Machine {
    pub hosted: Arc<Hosted>,
    pub listener: LaneListener,
    pub settings: LaneSettings,
}

/// Tickets straight from the peer.
struct FromBook {
    peer: Arc<Hosted>,
    holder: MachineId,
}

impl TicketSource for FromBook {
    fn next_ticket(&self) -> BoxFuture<'_, Result<Ticket, String>> {
        Box::pin(async {
            self.peer
                .tickets()
                .issue(&self.holder)
                .map_err(|error| error.to_string())
        })
    }
}

impl Machine {
    pub async fn start(name: &str, ip: IpAddr, settings: LaneSettings) -> Self {
        let hosted = Arc::new(Hosted::new(MachineId::new(name, 1)));
        let listener = LaneListener::bind(SocketAddr::new(ip, 0), Arc::clone(&hosted), settings.clone());
        Self {
            listener: listener.await.unwrap(),
            hosted,
            settings,
        }
    }

    /// Lanes from this machine to `peer`.
    pub async fn connect(&self, peer: &Machine) -> Result<Arc<LaneClient>, TransportError> {
        let tickets = FromBook {
            peer: Arc::clone(&peer.hosted),
            holder: self.hosted.machine().clone(),
        };
        let address = peer.listener.local_addr();
        let name = &peer.hosted.machine().name;
        let client = LaneClient::connect(name, address, tickets, Arc::clone(&self.hosted), self.settings.clone());
        client.await.map(Arc::new)
    }

    pub fn router(&self) -> Router {
        Router::new(Arc::clone(&self.hosted), self.settings.deadline)
    }
}

/// Routers and inboxes of `placement.len()` ranks, rank `r` on machine `placement[r]`; all machines know each other.
pub(crate) async fn ranks(
    placement: &[usize],
    settings: &LaneSettings,
) -> (Vec<Machine>, Vec<(Arc<Router>, Arc<Inbox>)>) {
    let count = placement.iter().max().map_or(0, |last| last + 1);
    let mut machines = Vec::new();
    for number in 0..count {
        machines.push(Machine::start(&format!("machine-{number}"), V4, settings.clone()).await);
    }
    let inboxes: Vec<_> = (0..placement.len())
        .map(|rank| Inbox::new(rank as Rank, InboxLimits::default()))
        .collect();
    for (inbox, machine) in inboxes.iter().zip(placement) {
        machines[*machine].hosted.add_inbox(Arc::clone(inbox));
    }
    let mut routers = Vec::new();
    for (number, machine) in machines.iter().enumerate() {
        let router = Arc::new(machine.router());
        for (other, peer) in machines.iter().enumerate().filter(|(other, _)| *other != number) {
            let client = machine.connect(peer).await.unwrap();
            let ranks = (0..placement.len()).filter(|rank| placement[*rank] == other);
            router.attach(&client, [], ranks.map(|rank| rank as Rank));
        }
        routers.push(router);
    }
    let ranks = placement
        .iter()
        .zip(inboxes)
        .map(|(machine, inbox)| (Arc::clone(&routers[*machine]), inbox));
    let ranks = ranks.collect();
    (machines, ranks)
}
