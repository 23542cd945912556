//! How machines become members of a run: they join, get their ranks, and say that they are ready.

use std::time::Duration;

use ractor::ActorRef;

use super::{CHECK_EVERY, ClusterEvent, ClusterState, Member, RunError, Stage, after, heartbeat};
use crate::control;
use crate::gate::{JoinAnswer, machine_gate};
use crate::placement;
use crate::protocol::{Assignment, JoinRequest, MachineMessage, PROTOCOL_VERSION};
use crate::rmp::Rmp;

impl ClusterState {
    pub(super) async fn on_join(
        &mut self,
        myself: &ActorRef<ClusterEvent>,
        request: JoinRequest,
        answer: JoinAnswer,
    ) -> Result<(), RunError> {
        if let Some(reason) = self.why_refused(&request) {
            self.output.note(&format!("refused machine {}: {reason}", request.name));
            answer.refuse(reason);
            return Ok(());
        }
        let name = request.name.clone();
        let who = format!("machine {name}");
        let group = control::machine_group(&name, request.incarnation);
        ractor::pg::monitor(group.clone(), myself.get_cell());
        let cell = match control::wait_for_member(&group, &who, Duration::from_secs(5)).await {
            Ok(cell) => cell,
            Err(error) => {
                answer.refuse(error.to_string());
                return Ok(());
            }
        };
        let gate = machine_gate(cell);
        let heartbeat = tokio::spawn(heartbeat::watch(name.clone(), gate.clone(), myself.clone()));
        answer.accept();
        self.output.note(&format!(
            "machine {name} joined with parts {}",
            placement::list(&request.parts)
        ));
        self.members.insert(
            name,
            Member {
                request,
                gate,
                heartbeat,
                ready: false,
            },
        );
        if self.members.len() == self.wanted_machines {
            self.assign(myself)?;
        }
        Ok(())
    }

    fn why_refused(&self, request: &JoinRequest) -> Option<String> {
        if self.stage != Stage::Joining {
            return Some("the run has its machines already".to_owned());
        }
        if request.protocol != PROTOCOL_VERSION {
            return Some(format!(
                "it speaks version {} of the control protocol, this supervisor version {PROTOCOL_VERSION}",
                request.protocol
            ));
        }
        let own_version = env!("CARGO_PKG_VERSION");
        if request.version != own_version {
            return Some(format!(
                "it runs greengnn {}, this supervisor {own_version}: install one version on all machines",
                request.version
            ));
        }
        if request.manifest_sha256 != self.manifest_sha256 {
            return Some(
                "its manifest.json is another one than the supervisor's: copy the manifest and the parts of one \
                 `greengnn partition` to all machines"
                    .to_owned(),
            );
        }
        self.members
            .contains_key(&request.name)
            .then(|| "a machine of this name has joined already".to_owned())
    }

    fn assign(&mut self, myself: &ActorRef<ClusterEvent>) -> Result<(), RunError> {
        let requests: Vec<&JoinRequest> = self.members.values().map(|member| &member.request).collect();
        self.placement = placement::place(self.manifest.book.parts(), &requests)?;
        placement::check_addresses(&requests)?;
        placement::warn_of_mixed_cpus(&requests, |line| self.output.note(line));
        self.stage = Stage::Connecting;
        let assignment = Assignment {
            config: Box::new(self.options.config.clone()),
            work: self.options.work.clone(),
            machines: self.placement.clone(),
            membership_epoch: 1,
        };
        for member in self.members.values() {
            self.tell(member, MachineMessage::Assign(Rmp(assignment.clone())))?;
        }
        after(
            self.options.config.deadline() * 2,
            myself.clone(),
            ClusterEvent::Overdue(Stage::Connecting),
        );
        Ok(())
    }

    pub(super) fn on_ready(&mut self, myself: &ActorRef<ClusterEvent>, machine: &str) -> Result<(), RunError> {
        if let Some(member) = self.members.get_mut(machine) {
            member.ready = true;
        }
        if self.stage == Stage::Connecting && self.members.values().all(|member| member.ready) {
            self.stage = Stage::Running;
            after(CHECK_EVERY, myself.clone(), ClusterEvent::CheckProgress);
            let idle_for = self.options.config.idle_for();
            self.output.begin(&self.placement, &self.options.work, idle_for);
            for member in self.members.values() {
                self.tell(member, MachineMessage::Begin)?;
            }
        }
        Ok(())
    }
}
