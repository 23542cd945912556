//! Gates: the only actors of a process that peers can reach besides owners.
//!
//! A gate turns remote messages into local events and answers pings. It never waits for anything, so that a slow handler
//! behind it is not taken for a dead machine. Local and remote messages stay in separate types this way.

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, pg};

use crate::control;
use crate::machine::MachineEvent;
use crate::protocol::{JoinReply, MachineMessage, SupervisorMessage};
use crate::rmp::Rmp;
use crate::supervisor::ClusterEvent;
use crate::transport::MachineId;

/// Stands for a machine. In the group of its name.
pub struct MachineGate {
    pub id: MachineId,
}

impl Actor for MachineGate {
    type Msg = MachineMessage;
    type State = ActorRef<MachineEvent>;
    type Arguments = ActorRef<MachineEvent>;

    async fn pre_start(
        &self,
        myself: ActorRef<MachineMessage>,
        supervisor: ActorRef<MachineEvent>,
    ) -> Result<Self::State, ActorProcessingErr> {
        pg::join(
            control::machine_group(&self.id.name, self.id.incarnation),
            vec![myself.get_cell()],
        );
        Ok(supervisor)
    }

    async fn handle(
        &self,
        _myself: ActorRef<MachineMessage>,
        message: MachineMessage,
        machine: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            MachineMessage::Assign(Rmp(assignment)) => machine.cast(MachineEvent::Assigned(Box::new(assignment)))?,
            MachineMessage::Begin => machine.cast(MachineEvent::Begin)?,
            MachineMessage::Ping(number, reply) => {
                let _ = reply.send(number);
                machine.cast(MachineEvent::Pinged)?;
            }
            MachineMessage::Stop(reason) => machine.cast(MachineEvent::Stopped(reason))?,
        }
        Ok(())
    }
}

/// Stands for the cluster supervisor. In the supervisor group.
pub struct SupervisorGate;

impl Actor for SupervisorGate {
    type Msg = SupervisorMessage;
    type State = ActorRef<ClusterEvent>;
    type Arguments = ActorRef<ClusterEvent>;

    async fn pre_start(
        &self,
        myself: ActorRef<SupervisorMessage>,
        cluster: ActorRef<ClusterEvent>,
    ) -> Result<Self::State, ActorProcessingErr> {
        pg::join(control::supervisor_group(), vec![myself.get_cell()]);
        Ok(cluster)
    }

    async fn handle(
        &self,
        _myself: ActorRef<SupervisorMessage>,
        message: SupervisorMessage,
        cluster: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        cluster.cast(match message {
            SupervisorMessage::Join(Rmp(request), reply) => ClusterEvent::Join(request, JoinAnswer(reply)),
            SupervisorMessage::Ready(machine) => ClusterEvent::Ready(machine),
            SupervisorMessage::Steps(Rmp(steps)) => ClusterEvent::Steps(steps),
            SupervisorMessage::Timeline(machine, Rmp(points)) => ClusterEvent::Timeline(machine, points),
            SupervisorMessage::Clocks(machine, Rmp(news)) => ClusterEvent::Clocks(machine, news),
            SupervisorMessage::EpochDone(Rmp(report)) => ClusterEvent::EpochDone(Box::new(report)),
            SupervisorMessage::Weights(Rmp(chunk)) => ClusterEvent::Weights(chunk),
            SupervisorMessage::Finished(Rmp(report)) => ClusterEvent::Finished(Box::new(report)),
            SupervisorMessage::Probed(Rmp(profile)) => ClusterEvent::Probed(profile),
            SupervisorMessage::Chosen(Rmp(chosen)) => ClusterEvent::Chosen(chosen),
            SupervisorMessage::Failed(Rmp(failure)) => ClusterEvent::Failed(failure),
        })?;
        Ok(())
    }
}

/// The answer that a joining machine waits for.
pub struct JoinAnswer(RpcReplyPort<Rmp<JoinReply>>);

impl JoinAnswer {
    pub fn accept(self) {
        let _ = self.0.send(Rmp(JoinReply::Accepted));
    }

    pub fn refuse(self, reason: String) {
        let _ = self.0.send(Rmp(JoinReply::Refused(reason)));
    }
}

/// A reference to a remote machine's gate. The type of a remote actor cannot be checked, so this is the one place that
/// claims it: only [`MachineGate`]s join the group of a machine.
pub fn machine_gate(cell: ActorCell) -> ActorRef<MachineMessage> {
    cell.into()
}

/// A reference to the supervisor's gate; see [`machine_gate`].
pub fn supervisor_gate(cell: ActorCell) -> ActorRef<SupervisorMessage> {
    cell.into()
}
