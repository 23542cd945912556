//! The cluster supervisor: waits for machines, gives them ranks, watches them, and collects the run's result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use greengnn_energy::clocks::ClockNews;
use greengnn_energy::profile::Profile;
use greengnn_energy::timeline::TimelinePoint;
use greengnn_model::store::{PartsManifest, StoreError};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use ractor_cluster::RactorMessage;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::causes::in_one_line;
use crate::config::{Communication, TrainConfig};
use crate::control::{self, ControlError, ControlNode};
use crate::gate::{JoinAnswer, SupervisorGate};
use crate::placement::{self, PlacementError};
use crate::protocol::{EpochReport, Failure, FinishedReport, JoinRequest, MachineInfo, MachineMessage, WeightsChunk};
use crate::recorder::{Progressed, RecordError, Recorder, agreed_weights};
use crate::report::records::StepRecord;
use crate::report::summary::{MeterSources, RunSummary, SUMMARY_VERSION};
use crate::run_output::{RunOutput, RunOutputError};
use crate::wiring::PATIENCE;
use crate::work::{Chosen, Outcome, Work};

mod heartbeat;
mod joining;

/// A machine that has not answered for this long is dead. Starved machines are slow, not dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);
/// How often the supervisor looks whether the run still moves.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// How long a reported failure waits for a better explanation.
const SETTLE: Duration = Duration::from_millis(500);
/// Largest file of parameters that is collected from rank 0's machine.
const WEIGHTS_LIMIT: u64 = 4 << 30;

/// Why a run did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Output(#[from] RunOutputError),
    #[error("machine {machine} failed: {reason}")]
    MachineFailed { machine: String, reason: String },
    #[error("machine {machine} is gone: {reason}")]
    MachineLost { machine: String, reason: String },
    #[error("after {} s {joined} of {wanted} machines had joined; missing parts: {missing}", within.as_secs())]
    JoinTimeout {
        joined: usize,
        wanted: usize,
        missing: String,
        within: Duration,
    },
    #[error("machines {waiting} were not ready {} s after they got their ranks", within.as_secs())]
    ReadyTimeout { waiting: String, within: Duration },
    #[error("no machine has finished a step for {} s, though all answer", within.as_secs())]
    NoProgress { within: Duration },
    #[error("the trained parameters did not arrive whole: {0}")]
    Weights(String),
    #[error("the run was interrupted")]
    Interrupted,
    #[error("the supervisor stopped before the run ended")]
    Stopped,
}

/// What a supervisor needs to know.
pub struct SupervisorOptions {
    pub config: TrainConfig,
    pub work: Work,
    /// The folder with the manifest; the parts themselves are not read.
    pub parts: PathBuf,
    /// Address and port to listen on; port 0 picks a free one.
    pub listen: String,
    pub cookie: String,
    /// The longest wait until all machines have joined.
    pub join_within: Duration,
    /// Where the run is written; none: nowhere.
    pub run_folder: Option<PathBuf>,
    /// What the run is called in its report.
    pub title: String,
    /// Say nothing on standard error.
    pub quiet: bool,
}

/// Supervises one run from the first join to its outcome. `listening` is told the address; `cancel` ends the run.
pub async fn run(
    options: SupervisorOptions,
    listening: impl FnOnce(std::net::SocketAddr),
    cancel: impl Future<Output = ()> + Send + 'static,
) -> Result<Outcome, RunError> {
    let manifest = PartsManifest::open(&options.parts)?;
    let manifest_sha256 = manifest_sha256(&options.parts)?;
    let node_name = format!("supervisor-{:016x}", incarnation()?);
    let node = ControlNode::start(&node_name, &options.listen, &options.cookie).await?;
    let output = RunOutput::new(&options, &manifest)?;
    listening(node.address());
    let (result_sender, result) = oneshot::channel();
    let start = ClusterStart {
        options,
        manifest,
        output,
        manifest_sha256,
        result: result_sender,
    };
    let (cluster, handle) = Actor::spawn(Some(node_name), ClusterSupervisor, start)
        .await
        .map_err(|error| ControlError::Start(error.to_string()))?;
    let canceller = cluster.clone();
    let cancelling = tokio::spawn(async move {
        cancel.await;
        let _ = canceller.cast(ClusterEvent::Cancelled);
    });
    let outcome = result.await.unwrap_or(Err(RunError::Stopped));
    cancelling.abort();
    // The supervisor has told the machines to stop; a moment lets the word leave before the sessions close.
    let _ = tokio::time::timeout(Duration::from_secs(3), handle).await;
    node.stop().await;
    outcome
}

/// SHA-256 of a parts folder's manifest. It names the checksum of every file, so that equal manifests mean equal parts.
pub fn manifest_sha256(parts: &Path) -> Result<String, ControlError> {
    let path = parts.join(greengnn_model::store::MANIFEST);
    let bytes = std::fs::read(&path)
        .map_err(|error| ControlError::Start(format!("{} cannot be read: {error}", path.display())))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number that no earlier life of this process had.
pub fn incarnation() -> Result<u64, ControlError> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| ControlError::Start(format!("no random bytes: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// What happens to the supervisor.
#[derive(RactorMessage)]
pub enum ClusterEvent {
    Join(JoinRequest, JoinAnswer),
    Ready(String),
    Steps(Vec<StepRecord>),
    Timeline(String, Vec<TimelinePoint>),
    Clocks(String, ClockNews),
    EpochDone(Box<EpochReport>),
    Weights(WeightsChunk),
    Finished(Box<FinishedReport>),
    Probed(Box<Profile>),
    Chosen(Box<Chosen>),
    Failed(Failure),
    /// Reported failures have had their time to be explained by a loss.
    Settled,
    /// A machine's session closed or its heartbeat stopped.
    Lost {
        machine: String,
        reason: String,
    },
    /// A stage took too long. Ignored when the stage is over.
    Overdue(Stage),
    /// Look whether the run still moves.
    CheckProgress,
    Cancelled,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Joining,
    Connecting,
    Running,
    Over,
}

struct ClusterStart {
    options: SupervisorOptions,
    manifest: PartsManifest,
    output: RunOutput,
    manifest_sha256: String,
    result: oneshot::Sender<Result<Outcome, RunError>>,
}

struct Member {
    request: JoinRequest,
    gate: ActorRef<MachineMessage>,
    heartbeat: JoinHandle<()>,
    ready: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

struct ClusterState {
    options: SupervisorOptions,
    manifest: PartsManifest,
    result: Option<oneshot::Sender<Result<Outcome, RunError>>>,
    stage: Stage,
    members: BTreeMap<String, Member>,
    placement: Vec<MachineInfo>,
    recorder: Recorder,
    output: RunOutput,
    manifest_sha256: String,
    set_up: Option<Instant>,
    last_progress: Instant,
    finished: Vec<FinishedReport>,
    failures: Vec<Failure>,
    weights: Vec<u8>,
    weights_total: Option<u64>,
    started: Instant,
    wanted_machines: usize,
}

struct ClusterSupervisor;

impl Actor for ClusterSupervisor {
    type Msg = ClusterEvent;
    type State = ClusterState;
    type Arguments = ClusterStart;

    async fn pre_start(
        &self,
        myself: ActorRef<ClusterEvent>,
        start: ClusterStart,
    ) -> Result<ClusterState, ActorProcessingErr> {
        let ClusterStart {
            options,
            manifest,
            output,
            manifest_sha256,
            result,
        } = start;
        let parts = usize::from(manifest.book.parts());
        let wanted_machines = options.config.machines.map_or(parts, |machines| machines as usize);
        let (gate, _) = Actor::spawn_linked(
            Some(format!("{}/gate", control::supervisor_group())),
            SupervisorGate,
            myself.clone(),
            myself.get_cell(),
        )
        .await?;
        tracing::debug!("the supervisor's gate is {:?}", gate.get_id());
        after(options.join_within, myself, ClusterEvent::Overdue(Stage::Joining));
        Ok(ClusterState {
            recorder: Recorder::new(wanted_machines),
            output,
            manifest_sha256,
            set_up: None,
            last_progress: Instant::now(),
            manifest,
            options,
            result: Some(result),
            stage: Stage::Joining,
            members: BTreeMap::new(),
            placement: Vec::new(),
            finished: Vec::new(),
            failures: Vec::new(),
            weights: Vec::new(),
            weights_total: None,
            started: Instant::now(),
            wanted_machines,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<ClusterEvent>,
        event: ClusterEvent,
        state: &mut ClusterState,
    ) -> Result<(), ActorProcessingErr> {
        if state.stage == Stage::Over {
            return Ok(());
        }
        if let Err(error) = state.on_event(&myself, event).await {
            state.end(&myself, Err(error));
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<ClusterEvent>,
        event: SupervisionEvent,
        state: &mut ClusterState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ProcessGroupChanged(ractor::pg::GroupChangeMessage::Leave(_, _, cells)) => {
                // Groups are joined before a machine is accepted; only the gate of a member counts.
                let gone = |member: &Member| cells.iter().any(|cell| cell.get_id() == member.gate.get_id());
                let lost = state
                    .members
                    .iter()
                    .find(|(_, member)| gone(member))
                    .map(|(name, _)| name.clone());
                if let Some(machine) = lost {
                    let reason = "its connection closed".to_owned();
                    myself.cast(ClusterEvent::Lost { machine, reason })?;
                }
            }
            SupervisionEvent::ActorFailed(who, error) => {
                state.end(
                    &myself,
                    Err(RunError::Control(ControlError::Start(format!(
                        "{:?} failed: {error}",
                        who.get_id()
                    )))),
                );
            }
            _ => {}
        }
        Ok(())
    }
}

impl ClusterState {
    async fn on_event(&mut self, myself: &ActorRef<ClusterEvent>, event: ClusterEvent) -> Result<(), RunError> {
        // Clocks are looked at every second, whether the run moves or not.
        if !matches!(event, ClusterEvent::CheckProgress | ClusterEvent::Clocks(..)) {
            self.last_progress = Instant::now();
        }
        match event {
            ClusterEvent::Join(request, answer) => self.on_join(myself, request, answer).await,
            ClusterEvent::Ready(machine) => self.on_ready(myself, &machine),
            ClusterEvent::Steps(steps) => Ok(self.output.steps(&steps)?),
            ClusterEvent::Timeline(machine, points) => Ok(self.output.timeline(&machine, &points)?),
            ClusterEvent::Clocks(machine, news) => Ok(self.output.clocks(&machine, &news)?),
            ClusterEvent::EpochDone(report) => self.on_epoch(*report),
            ClusterEvent::Weights(chunk) => self.on_weights(chunk),
            ClusterEvent::Finished(report) => self.on_finished(myself, *report),
            ClusterEvent::Probed(profile) => self.on_probed(myself, *profile),
            ClusterEvent::Chosen(chosen) => self.on_chosen(myself, *chosen),
            ClusterEvent::Failed(failure) => {
                // A machine that lost a peer often says so before the supervisor has seen the peer's session close. The
                // loss is the better reason, so it gets a moment to show.
                if self.failures.is_empty() {
                    after(SETTLE, myself.clone(), ClusterEvent::Settled);
                }
                self.failures.push(failure);
                Ok(())
            }
            ClusterEvent::Settled => match self.failures.first().cloned() {
                Some(Failure { machine, reason }) => Err(RunError::MachineFailed { machine, reason }),
                None => Ok(()),
            },
            ClusterEvent::Lost { machine, reason } => self.on_lost(machine, reason),
            ClusterEvent::Overdue(stage) => self.on_overdue(stage),
            ClusterEvent::CheckProgress => self.check_progress(myself),
            ClusterEvent::Cancelled => Err(RunError::Interrupted),
        }
    }

    fn on_epoch(&mut self, report: EpochReport) -> Result<(), RunError> {
        self.output.meter(&report)?;
        match self.recorder.add(report)? {
            Progressed::Waiting => {}
            Progressed::SetUp => {
                self.set_up = Some(Instant::now());
                let (setup, ..) = self.recorder.totals();
                self.output.set_up(&setup);
            }
            Progressed::Epoch(completed) => {
                let more = completed.summary.epoch + 1 < self.options.config.epochs;
                self.output.epoch(&completed, more)?;
            }
        }
        Ok(())
    }

    fn on_weights(&mut self, chunk: WeightsChunk) -> Result<(), RunError> {
        if chunk.total > WEIGHTS_LIMIT {
            return Err(RunError::Weights(format!(
                "{} bytes are more than {WEIGHTS_LIMIT}",
                chunk.total
            )));
        }
        if chunk.offset != self.weights.len() as u64 {
            return Err(RunError::Weights(format!(
                "a piece starts at byte {}, byte {} was due",
                chunk.offset,
                self.weights.len()
            )));
        }
        self.weights_total = Some(chunk.total);
        self.weights.extend_from_slice(&chunk.bytes);
        Ok(())
    }

    fn on_finished(&mut self, myself: &ActorRef<ClusterEvent>, report: FinishedReport) -> Result<(), RunError> {
        self.finished.push(report);
        if self.finished.len() < self.wanted_machines {
            return Ok(());
        }
        self.finished.sort_by(|a, b| a.machine.cmp(&b.machine));
        let whole = self.weights_total == Some(self.weights.len() as u64);
        if !whole {
            let (got, total) = (self.weights.len(), self.weights_total.unwrap_or(0));
            return Err(RunError::Weights(format!("{got} of {total} bytes came")));
        }
        let summary = self.summary()?;
        self.output.finish(&summary, &self.weights)?;
        self.end(myself, Ok(Outcome::Trained(Box::new(summary))));
        Ok(())
    }

    fn on_probed(&mut self, myself: &ActorRef<ClusterEvent>, profile: Profile) -> Result<(), RunError> {
        self.output.profile(&profile)?;
        if matches!(self.options.work, Work::Probe(_)) {
            self.end(myself, Ok(Outcome::Probed(Box::new(profile))));
        }
        Ok(())
    }

    fn on_chosen(&mut self, myself: &ActorRef<ClusterEvent>, chosen: Chosen) -> Result<(), RunError> {
        self.output.choice(&chosen.choice)?;
        self.output.profile(&chosen.profile)?;
        if matches!(self.options.work, Work::Tune(_)) {
            self.end(myself, Ok(Outcome::Chosen(Box::new(chosen))));
        }
        Ok(())
    }

    fn summary(&self) -> Result<RunSummary, RunError> {
        let (setup, epochs, evaluation) = self.recorder.totals();
        let config = &self.options.config;
        let first = self.finished.first();
        let idle = self.recorder.idle();
        let idle_s = idle.as_ref().map_or(0.0, |idle| idle.wall_s);
        let before_steps_s = self.set_up.map_or(0.0, |set_up| (set_up - self.started).as_secs_f64());
        Ok(RunSummary {
            version: SUMMARY_VERSION,
            communication: config.communication,
            policy: config.policy.clone(),
            delivery: epochs.first().map(|epoch| epoch.delivery).unwrap_or_default(),
            window: match config.communication {
                Communication::Pull => epochs.first().map_or(0, |epoch| epoch.window),
                Communication::PushPull => 0,
            },
            is_window_chosen: config.window.is_auto(),
            row_type: config.row_type,
            budget_rows: self.recorder.budget_rows(),
            device_budget_rows: self.recorder.device_budget_rows(),
            device_rows: self.recorder.device_rows(),
            held_rows_peak: self.recorder.held_rows_peak(),
            ranks: u32::from(self.manifest.book.parts()),
            machines: self.wanted_machines as u32,
            device: first.map_or_else(String::new, |report| report.device.clone()),
            cpu_fingerprint: placement::fingerprint(self.members.values().map(|member| &member.request)),
            seed: config.seed,
            idle,
            probing: self.recorder.probing(),
            presampling: self.recorder.presampling(),
            epochs,
            setup,
            evaluation,
            test_accuracy: self.recorder.test_accuracy(),
            weights_sha256: agreed_weights(&self.finished)?,
            peak_rss_bytes: self.finished.iter().map(|report| report.peak_rss_bytes).sum(),
            peak_anon_bytes: self.finished.iter().map(|report| report.peak_anon_bytes).sum(),
            setup_s: (before_steps_s - idle_s).max(0.0),
            total_s: self.started.elapsed().as_secs_f64(),
            bound_by: self.output.bound_by(),
            row_bound: None,
            meters: self.meter_sources(),
            gpu_clocks: config.lower_clocks.as_ref().map(|_| self.output.clock_summary()),
        })
    }

    /// What the meters of the machines read, machines of one host that read the same once.
    fn meter_sources(&self) -> Vec<MeterSources> {
        let mut distinct: Vec<MeterSources> = Vec::new();
        for report in &self.finished {
            let member = self.members.get(&report.machine);
            let host = member.map_or_else(String::new, |member| member.request.boot_id.clone());
            if !distinct
                .iter()
                .any(|known| known.host == host && known.sources == report.meters)
            {
                distinct.push(MeterSources {
                    host,
                    machine: report.machine.clone(),
                    sources: report.meters.clone(),
                });
            }
        }
        distinct
    }

    fn on_lost(&mut self, machine: String, reason: String) -> Result<(), RunError> {
        if self.failures.iter().any(|failure| failure.machine == machine) {
            // It has said why it would go.
            return Ok(());
        }
        Err(RunError::MachineLost { machine, reason })
    }

    /// Machines that answer pings may still hang in a computation; no news of any step for long enough ends the run.
    fn check_progress(&self, myself: &ActorRef<ClusterEvent>) -> Result<(), RunError> {
        let config = &self.options.config;
        let within = config.deadline() * (PATIENCE + 2) + config.idle_for() + config.probe_within(&self.options.work);
        if self.stage == Stage::Running && self.last_progress.elapsed() > within {
            return Err(RunError::NoProgress { within });
        }
        after(CHECK_EVERY, myself.clone(), ClusterEvent::CheckProgress);
        Ok(())
    }

    fn on_overdue(&mut self, stage: Stage) -> Result<(), RunError> {
        if stage != self.stage {
            return Ok(());
        }
        match stage {
            Stage::Joining => {
                let held: Vec<_> = self
                    .members
                    .values()
                    .flat_map(|member| member.request.parts.clone())
                    .collect();
                let missing: Vec<_> = (0..self.manifest.book.parts())
                    .filter(|part| !held.contains(part))
                    .collect();
                Err(RunError::JoinTimeout {
                    joined: self.members.len(),
                    wanted: self.wanted_machines,
                    missing: if missing.is_empty() {
                        "none".to_owned()
                    } else {
                        placement::list(&missing)
                    },
                    within: self.options.join_within,
                })
            }
            Stage::Connecting => {
                let waiting: Vec<_> = self
                    .members
                    .iter()
                    .filter(|(_, member)| !member.ready)
                    .map(|(name, _)| name.as_str())
                    .collect();
                let within = self.options.config.deadline() * 2;
                Err(RunError::ReadyTimeout {
                    waiting: waiting.join(", "),
                    within,
                })
            }
            Stage::Running | Stage::Over => Ok(()),
        }
    }

    fn tell(&self, member: &Member, message: MachineMessage) -> Result<(), RunError> {
        member.gate.cast(message).map_err(|error| RunError::MachineLost {
            machine: member.request.name.clone(),
            reason: error.to_string(),
        })
    }

    /// Tells the machines, hands over the result, and stops.
    fn end(&mut self, myself: &ActorRef<ClusterEvent>, outcome: Result<Outcome, RunError>) {
        if self.stage == Stage::Joining && outcome.is_err() {
            self.output.discard();
        }
        self.stage = Stage::Over;
        let reason = outcome
            .as_ref()
            .err()
            .map(|error| in_one_line(error))
            .unwrap_or_default();
        for member in self.members.values() {
            let _ = member.gate.cast(MachineMessage::Stop(reason.clone()));
        }
        self.output.end();
        if let Some(sender) = self.result.take() {
            let _ = sender.send(outcome);
        }
        let myself = myself.clone();
        tokio::spawn(async move {
            // The messages above leave from tasks of their own; give them a moment before the sessions go.
            tokio::time::sleep(Duration::from_millis(200)).await;
            myself.stop(None);
        });
    }
}

fn after(wait: Duration, cluster: ActorRef<ClusterEvent>, event: ClusterEvent) {
    tokio::spawn(async move {
        tokio::time::sleep(wait).await;
        let _ = cluster.cast(event);
    });
}
