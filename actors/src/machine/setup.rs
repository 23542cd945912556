//! What a machine reads off its meter before the first step, apart from the set-up as a whole: the power of a machine that
//! does nothing, which belongs to no period, and the probe and the presampling of the first epoch, which are parts of the
//! set-up.
//!
//! Later epochs are presampled beside training, where no meter can tell the two apart.

use greengnn_energy::clock::unix_s_of;
use greengnn_energy::snapshot::EnergySnapshot;
use ractor::ActorRef;

use super::reporting::blocking;
use super::{MachineError, MachineEvent, MachineState};
use crate::protocol::Metered;

/// The readings, and the start of the one that is being made.
#[derive(Default)]
pub(super) struct SetupReadings {
    since: Option<EnergySnapshot>,
    /// Ranks that have the trace of their first epoch.
    presampled: usize,
    /// Ranks that know what fetches cost, where they have to find out.
    probed: usize,
    pub idle: Option<Metered>,
    pub probing: Option<Metered>,
    pub presampling: Option<Metered>,
}

impl Metered {
    /// The window between two snapshots of one meter.
    pub(super) fn between(from: &EnergySnapshot, to: &EnergySnapshot) -> Self {
        Self {
            started_unix_s: unix_s_of(from.at_s),
            ended_unix_s: unix_s_of(to.at_s),
            energy: to.since(from),
        }
    }
}

impl MachineState {
    /// All machines are ready. Everything is loaded and connected and nothing runs yet, so that this is the time for the
    /// idle power, if it was asked for.
    pub(super) async fn on_begin(&mut self, myself: &ActorRef<MachineEvent>) -> Result<(), MachineError> {
        let idle_for = self.wiring.as_ref().map(|wiring| wiring.config.idle_for());
        let Some(idle_for) = idle_for.filter(|idle_for| !idle_for.is_zero()) else {
            return self.begin_presampling(myself).await;
        };
        self.setup.since = Some(self.snapshot());
        let machine = myself.clone();
        tokio::spawn(async move {
            tokio::time::sleep(idle_for).await;
            let _ = machine.cast(MachineEvent::Idled);
        });
        Ok(())
    }

    /// The idle time is over; the set-up goes on as if it had not been.
    pub(super) async fn on_idled(&mut self, myself: &ActorRef<MachineEvent>) -> Result<(), MachineError> {
        let now = self.snapshot();
        if let Some(from) = self.setup.since.take() {
            self.setup.idle = Some(Metered::between(&from, &now));
            self.last_snapshot = self.last_snapshot.skipping(&from, &now);
        }
        self.begin_presampling(myself).await
    }

    async fn begin_presampling(&mut self, myself: &ActorRef<MachineEvent>) -> Result<(), MachineError> {
        self.setup.since = Some(self.snapshot());
        self.begin(myself).await
    }

    /// When all ranks know what fetches cost, the probe is read off the meter, and presampling starts.
    pub(super) fn on_probed(&mut self) {
        self.setup.probed += 1;
        if self.setup.probed == self.ranks.len()
            && let Some(from) = self.setup.since.take()
        {
            let now = self.snapshot();
            self.setup.probing = Some(Metered::between(&from, &now));
            self.setup.since = Some(now);
        }
    }

    /// When all ranks have the trace of their first epoch, its presampling is read off the meter.
    pub(super) fn on_presampled(&mut self) {
        self.setup.presampled += 1;
        if self.setup.presampled == self.ranks.len()
            && let Some(from) = self.setup.since.take()
        {
            self.setup.presampling = Some(Metered::between(&from, &self.snapshot()));
        }
    }

    /// What the meter has seen by now.
    pub(super) fn snapshot(&self) -> EnergySnapshot {
        blocking(|| self.options.meter.snapshot())
    }
}
