//! The heartbeat of a machine.

use std::time::Duration;

use ractor::ActorRef;

use super::{ClusterEvent, DEAD_AFTER};
use crate::protocol::MachineMessage;
use crate::silence::Silence;

const PING_EVERY: Duration = Duration::from_millis(500);
const PING_DEADLINE: Duration = Duration::from_secs(1);

/// Pings a machine until it is silent for too long.
pub(super) async fn watch(machine: String, gate: ActorRef<MachineMessage>, cluster: ActorRef<ClusterEvent>) {
    let mut silence = Silence::default();
    let mut number = 0;
    loop {
        number += 1;
        let deadline = PING_DEADLINE.as_millis() as u64;
        match ractor::call_t!(gate, MachineMessage::Ping, deadline, number) {
            Ok(answer) if answer == number => silence.broken(),
            _ => silence.goes_on(),
        }
        if silence.lasted() > DEAD_AFTER {
            let reason = format!("it has not answered for {:.1} s", silence.lasted().as_secs_f64());
            let _ = cluster.cast(ClusterEvent::Lost { machine, reason });
            return;
        }
        tokio::time::sleep(PING_EVERY).await;
    }
}
