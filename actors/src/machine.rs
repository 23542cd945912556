//! The machine supervisor: one per process. It joins the cluster, connects its lanes, starts and watches the owners and
//! ranks that it was assigned, reads the meter at the borders of every period, and reports.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greengnn_energy::clocks::{ClockNews, GuardProgram};
use greengnn_energy::meter::Meter;
use greengnn_energy::profile::Profile;
use greengnn_energy::snapshot::EnergySnapshot;
use greengnn_model::book::{PartId, PartitionBook, Rank};
use greengnn_model::counters::Phase;
use greengnn_model::layers::{NamedParameter, cpu_fingerprint};
use greengnn_model::store::PartsManifest;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent, pg};
use ractor_cluster::RactorMessage;
use tokio::sync::oneshot;

use crate::causes::in_one_line;
use crate::control::{self, ControlError, ControlNode};
use crate::gate::{MachineGate, supervisor_gate};
use crate::gpu_clocks::{self, ClockPlan, GpuClocks};
use crate::probe::MachineMeter;
use crate::protocol::{
    Assignment, Failure, JoinReply, JoinRequest, PROTOCOL_VERSION, PeriodReading, RankReport, SupervisorMessage,
};
use crate::rank::{Filled, RankActor, RankStart};
use crate::report::records::StepRecord;
use crate::rmp::Rmp;
use crate::silence::Silence;
use crate::supervisor::{DEAD_AFTER, incarnation, manifest_sha256};
use crate::trainer::EpochOutcome;
use crate::transport::{Hosted, MachineId};
use crate::wiring::{self, Wiring, WiringError};
use crate::work::{Chosen, Work};

mod reporting;
mod setup;

use reporting::STEPS_AT_ONCE;
use setup::SetupReadings;

/// Step records wait at most this long, or until a message is full.
const STEPS_EVERY: Duration = Duration::from_millis(200);

/// Why a machine ended without success.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Store(#[from] greengnn_model::store::StoreError),
    #[error("{0} holds no part: it needs a manifest.json and at least one folder part-N")]
    NoParts(PathBuf),
    #[error("the supervisor refused this machine: {0}")]
    Refused(String),
    #[error("the supervisor at {address} did not answer the request to join: {reason}")]
    JoinUnanswered { address: String, reason: String },
    #[error("the supervisor at {address} is gone: {reason}")]
    SupervisorLost { address: String, reason: String },
    #[error("the supervisor ended the run: {0}")]
    Stopped(String),
    #[error("{0}")]
    Failed(String),
    #[error("this machine was interrupted")]
    Interrupted,
}

/// What a machine needs to know before it joins.
pub struct MachineOptions {
    /// How the machine is called in messages; unique in the cluster.
    pub name: String,
    /// Address of the supervisor: a host name, an IPv4 or an IPv6 address, with the port.
    pub join: String,
    /// The manifest and at least one part.
    pub parts: PathBuf,
    /// The address on which this machine listens; by default the one that reaches the supervisor.
    pub listen: Option<IpAddr>,
    pub cookie: String,
    /// Where trace files go while they are needed.
    pub work_folder: PathBuf,
    /// Restores GPU clocks if this process is killed while they are low. Without one none are lowered.
    pub clock_guard: Option<GuardProgram>,
    pub meter: Arc<Meter>,
    /// The longest wait for the supervisor to appear.
    pub join_within: Duration,
}

/// Takes part in one run: joins, works, and returns when the supervisor says that it is over.
pub async fn run(
    options: MachineOptions,
    cancel: impl Future<Output = ()> + Send + 'static,
) -> Result<(), MachineError> {
    let manifest = PartsManifest::open(&options.parts)?;
    let manifest_sha256 = manifest_sha256(&options.parts)?;
    let parts = PartsManifest::held_parts(&options.parts)?;
    if parts.is_empty() {
        return Err(MachineError::NoParts(options.parts));
    }
    let id = MachineId::new(options.name.clone(), incarnation()?);
    // A task that panics has said so.
    let _ = tokio::task::spawn_blocking(gpu_clocks::repair).await;
    let mut cancel = Box::pin(cancel);
    let connected = tokio::select! {
        connected = connect(&options, &id) => connected?,
        () = &mut cancel => return Err(MachineError::Interrupted),
    };
    let (ip, node, supervisor) = connected;
    let node = Arc::new(node);

    let (result_sender, result) = oneshot::channel();
    let actor_name = node_name(&id);
    let start = MachineStart {
        id,
        ip,
        parts,
        manifest: Arc::new(manifest),
        manifest_sha256,
        node: Arc::clone(&node),
        supervisor,
        options,
        result: result_sender,
    };
    let (machine, handle) = Actor::spawn(Some(actor_name), MachineSupervisor, start)
        .await
        .map_err(|error| MachineError::Failed(error.to_string()))?;
    let canceller = machine.clone();
    let cancelling = tokio::spawn(async move {
        cancel.await;
        let _ = canceller.cast(MachineEvent::Cancelled);
    });
    let outcome = result
        .await
        .unwrap_or_else(|_| Err(MachineError::Failed("the machine supervisor died".to_owned())));
    cancelling.abort();
    let _ = tokio::time::timeout(Duration::from_secs(3), handle).await;
    if let Some(node) = Arc::into_inner(node) {
        node.stop().await;
    }
    outcome
}

/// How long the supervisor may take to show itself on a connection that it has accepted.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Reaches the supervisor, and starts this machine's node on the address from which it did, unless another was given.
async fn connect(
    options: &MachineOptions,
    id: &MachineId,
) -> Result<(IpAddr, ControlNode, ActorRef<SupervisorMessage>), MachineError> {
    let stream = control::reach(&options.join, options.join_within).await?;
    let own = stream.local_addr().map_err(|source| ControlError::Listen {
        address: options.join.clone(),
        source,
    })?;
    let ip = options.listen.unwrap_or(own.ip());
    let listen = SocketAddr::new(ip, 0).to_string();
    let node = ControlNode::start(&node_name(id), &listen, &options.cookie).await?;
    node.adopt(stream, &options.join, options.join_within)?;
    let who = format!("the supervisor at {}", options.join);
    let cell = control::wait_for_member(&control::supervisor_group(), &who, SEEN_WITHIN).await?;
    Ok((ip, node, supervisor_gate(cell)))
}

fn node_name(id: &MachineId) -> String {
    format!("{}-{:016x}", id.name, id.incarnation)
}

/// What happens to a machine.
#[derive(RactorMessage)]
pub enum MachineEvent {
    /// The answer to the request to join.
    Joined(Result<JoinReply, String>),
    Assigned(Box<Assignment>),
    Connected(Box<Result<Wiring, WiringError>>),
    Begin,
    Pinged,
    /// The supervisor ended the run; an empty reason means success.
    Stopped(String),
    /// The idle power has been measured for as long as was asked.
    Idled,
    /// A rank of a run that chooses its windows knows what fetches cost.
    KnowsCosts,
    /// A rank has the trace of its first epoch.
    Presampled,
    Filled {
        rank: Rank,
        filled: Filled,
    },
    PhaseDone {
        epoch: Option<u32>,
        phase: Phase,
    },
    StepDone(StepRecord),
    EpochDone {
        rank: Rank,
        outcome: Box<EpochOutcome>,
    },
    Trained {
        rank: Rank,
        parameters: Vec<NamedParameter>,
    },
    /// What became of the clocks of the machine's GPUs.
    Clocks(ClockNews),
    /// A probe has come to its end, as rank 0 saw it.
    Probed(Box<Profile>),
    /// The ranks have chosen, as rank 0 knows.
    Chosen(Box<Chosen>),
    /// Look whether the supervisor still pings.
    Check,
    Cancelled,
}

struct MachineStart {
    id: MachineId,
    ip: IpAddr,
    parts: Vec<PartId>,
    manifest: Arc<PartsManifest>,
    manifest_sha256: String,
    node: Arc<ControlNode>,
    supervisor: ActorRef<SupervisorMessage>,
    options: MachineOptions,
    result: oneshot::Sender<Result<(), MachineError>>,
}

struct MachineState {
    id: MachineId,
    ip: IpAddr,
    manifest: Arc<PartsManifest>,
    node: Arc<ControlNode>,
    options: MachineOptions,
    result: Option<oneshot::Sender<Result<(), MachineError>>>,
    supervisor: ActorRef<SupervisorMessage>,
    hosted: Arc<Hosted>,
    wiring: Option<Wiring>,
    ranks: BTreeMap<Rank, ActorRef<crate::rank::RankEvent>>,
    silence: Silence,
    last_snapshot: EnergySnapshot,
    /// When the period began, on the meter's clock.
    period_began_s: f64,
    setup: SetupReadings,
    /// How many ranks have passed each border.
    passed: BTreeMap<(Option<u32>, Phase), usize>,
    readings: BTreeMap<Option<u32>, Vec<PeriodReading>>,
    reports: BTreeMap<u32, Vec<RankReport>>,
    fills: BTreeMap<Rank, Filled>,
    steps: Vec<StepRecord>,
    steps_sent: Instant,
    weights: BTreeMap<Rank, String>,
    device: String,
    clocks: Option<Arc<GpuClocks>>,
}

struct MachineSupervisor;

impl Actor for MachineSupervisor {
    type Msg = MachineEvent;
    type State = MachineState;
    type Arguments = MachineStart;

    async fn pre_start(
        &self,
        myself: ActorRef<MachineEvent>,
        start: MachineStart,
    ) -> Result<MachineState, ActorProcessingErr> {
        let MachineStart {
            id,
            ip,
            parts,
            manifest,
            manifest_sha256,
            node,
            supervisor,
            options,
            result,
        } = start;
        let gate = MachineGate { id: id.clone() };
        Actor::spawn_linked(
            Some(format!("gate@{}", node_name(&id))),
            gate,
            myself.clone(),
            myself.get_cell(),
        )
        .await?;
        pg::monitor(control::supervisor_group(), myself.get_cell());
        let request = JoinRequest {
            name: id.name.clone(),
            incarnation: id.incarnation,
            protocol: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            parts,
            manifest_sha256,
            cpu_fingerprint: cpu_fingerprint(),
            boot_id: greengnn_energy::process::boot_id(),
            process: std::process::id(),
            control_address: node.address().to_string(),
        };
        join(supervisor.clone(), request, myself.clone());
        check_soon(myself);
        let last_snapshot = options.meter.snapshot();
        Ok(MachineState {
            hosted: Arc::new(Hosted::new(id.clone())),
            id,
            ip,
            manifest,
            node,
            period_began_s: last_snapshot.at_s,
            last_snapshot,
            setup: SetupReadings::default(),
            options,
            result: Some(result),
            supervisor,
            wiring: None,
            ranks: BTreeMap::new(),
            silence: Silence::default(),
            passed: BTreeMap::new(),
            readings: BTreeMap::new(),
            reports: BTreeMap::new(),
            fills: BTreeMap::new(),
            steps: Vec::new(),
            steps_sent: Instant::now(),
            weights: BTreeMap::new(),
            device: String::new(),
            clocks: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<MachineEvent>,
        event: MachineEvent,
        state: &mut MachineState,
    ) -> Result<(), ActorProcessingErr> {
        if state.result.is_none() {
            return Ok(());
        }
        match state.on_event(&myself, event).await {
            Ok(false) => {}
            Ok(true) => state.end(&myself, Ok(())),
            Err(error) => state.end(&myself, Err(error)),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<MachineEvent>,
        event: SupervisionEvent,
        state: &mut MachineState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(_, error) => {
                state.end(&myself, Err(MachineError::Failed(error.to_string())));
            }
            SupervisionEvent::ProcessGroupChanged(pg::GroupChangeMessage::Leave(_, group, _))
                if group == control::supervisor_group() =>
            {
                let address = state.options.join.clone();
                let reason = "its connection closed".to_owned();
                state.end(&myself, Err(MachineError::SupervisorLost { address, reason }));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Asks to join, on a task of its own, so that pings and assignments are not kept waiting.
fn join(supervisor: ActorRef<SupervisorMessage>, request: JoinRequest, machine: ActorRef<MachineEvent>) {
    tokio::spawn(async move {
        let answer = ractor::call_t!(supervisor, SupervisorMessage::Join, 15_000, Rmp(request));
        let answer = answer.map(|reply| reply.0).map_err(|error| error.to_string());
        let _ = machine.cast(MachineEvent::Joined(answer));
    });
}

fn check_soon(machine: ActorRef<MachineEvent>) {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _ = machine.cast(MachineEvent::Check);
    });
}

impl MachineState {
    /// Handles an event; true when the run is over.
    async fn on_event(&mut self, myself: &ActorRef<MachineEvent>, event: MachineEvent) -> Result<bool, MachineError> {
        match event {
            MachineEvent::Joined(Ok(JoinReply::Accepted)) => {}
            MachineEvent::Joined(Ok(JoinReply::Refused(reason))) => return Err(MachineError::Refused(reason)),
            MachineEvent::Joined(Err(reason)) => {
                return Err(MachineError::JoinUnanswered {
                    address: self.options.join.clone(),
                    reason,
                });
            }
            MachineEvent::Assigned(assignment) => self.connect(myself, *assignment),
            MachineEvent::Connected(wiring) => {
                let wiring = (*wiring).map_err(|error| MachineError::Failed(in_one_line(&error)))?;
                self.device = wiring.device.clone();
                self.wiring = Some(wiring);
                self.tell(SupervisorMessage::Ready(self.id.name.clone()))?;
            }
            MachineEvent::Begin => self.on_begin(myself).await?,
            MachineEvent::Idled => self.on_idled(myself).await?,
            MachineEvent::KnowsCosts => self.on_probed(),
            MachineEvent::Presampled => self.on_presampled(),
            MachineEvent::Pinged => self.silence.broken(),
            MachineEvent::Stopped(reason) if reason.is_empty() => return Ok(true),
            MachineEvent::Stopped(reason) => return Err(MachineError::Stopped(reason)),
            MachineEvent::Filled { rank, filled } => {
                self.fills.insert(rank, filled);
            }
            MachineEvent::PhaseDone { epoch, phase } => self.on_phase_done(epoch, phase)?,
            MachineEvent::StepDone(record) => {
                self.steps.push(record);
                if self.steps.len() >= STEPS_AT_ONCE || self.steps_sent.elapsed() >= STEPS_EVERY {
                    self.send_steps()?;
                }
            }
            MachineEvent::EpochDone { rank, outcome } => self.on_epoch_done(rank, *outcome)?,
            MachineEvent::Trained { rank, parameters } => self.on_trained(rank, &parameters)?,
            MachineEvent::Clocks(news) => self.tell(SupervisorMessage::Clocks(self.id.name.clone(), Rmp(news)))?,
            MachineEvent::Probed(profile) => self.tell(SupervisorMessage::Probed(Rmp(profile)))?,
            MachineEvent::Chosen(chosen) => self.tell(SupervisorMessage::Chosen(Rmp(chosen)))?,
            MachineEvent::Check => {
                self.check_supervisor()?;
                check_soon(myself.clone());
            }
            MachineEvent::Cancelled => return Err(MachineError::Interrupted),
        }
        Ok(false)
    }

    /// A supervisor that has accepted us pings twice a second; give a starved one three times the deadline.
    fn check_supervisor(&mut self) -> Result<(), MachineError> {
        self.silence.goes_on();
        if self.silence.lasted() <= DEAD_AFTER * 3 {
            return Ok(());
        }
        let reason = format!("it has not pinged for {:.1} s", self.silence.lasted().as_secs_f64());
        Err(MachineError::SupervisorLost {
            address: self.options.join.clone(),
            reason,
        })
    }

    fn connect(&self, myself: &ActorRef<MachineEvent>, assignment: Assignment) {
        let order = wiring::Order {
            assignment,
            me: self.id.clone(),
            ip: self.ip,
            parts_folder: self.options.parts.clone(),
            work_folder: self.options.work_folder.clone(),
            manifest: Arc::clone(&self.manifest),
            node: Arc::clone(&self.node),
            hosted: Arc::clone(&self.hosted),
            supervisor: myself.get_cell(),
        };
        let machine = myself.clone();
        tokio::spawn(async move {
            let wiring = wiring::connect(order).await;
            let _ = machine.cast(MachineEvent::Connected(Box::new(wiring)));
        });
    }

    async fn begin(&mut self, myself: &ActorRef<MachineEvent>) -> Result<(), MachineError> {
        let Some(wiring) = &mut self.wiring else {
            return Err(MachineError::Failed(
                "the supervisor said begin before this machine was ready".to_owned(),
            ));
        };
        self.clocks = lowered_clocks(wiring, self.options.clock_guard.as_ref(), myself)?;
        let book: Arc<PartitionBook> = Arc::clone(&wiring.book);
        let ranks: Vec<Rank> = wiring.seats.iter().map(|seat| seat.rank).collect();
        // One rank of the machine reads its meter.
        let mut meter = Some(MachineMeter {
            meter: Arc::clone(&self.options.meter),
            ranks,
        });
        for seat in wiring.seats.drain(..) {
            let rank = seat.rank;
            let trace_folder = wiring
                .config
                .keep_trace
                .clone()
                .unwrap_or_else(|| self.options.work_folder.clone());
            let start = RankStart {
                rank,
                config: Arc::clone(&wiring.config),
                work: wiring.work.clone(),
                meter: meter.take(),
                book: Arc::clone(&book),
                rows: Arc::clone(&wiring.rows),
                steps: wiring.steps,
                part: seat.part,
                graph_hash: wiring.graph_hash,
                transport: Arc::clone(&wiring.transport),
                collective: seat.collective,
                filling: seat.filling,
                policy: Arc::clone(&wiring.policy),
                delivery: wiring.delivery,
                budget_rows: seat.budget_rows,
                device_rows: seat.device_rows,
                model: seat.model,
                push_pull: seat.push_pull,
                preaggregate: wiring.preaggregate,
                trace_folder,
                clocks: self.clocks.clone(),
            };
            let name = format!("rank-{rank}@{}", self.id.name);
            let (actor, _) = Actor::spawn_linked(Some(name), RankActor, (start, myself.clone()), myself.get_cell())
                .await
                .map_err(|error| MachineError::Failed(format!("rank {rank} could not start: {error}")))?;
            self.ranks.insert(rank, actor);
        }
        Ok(())
    }

    fn tell(&self, message: SupervisorMessage) -> Result<(), MachineError> {
        self.supervisor
            .cast(message)
            .map_err(|error| MachineError::SupervisorLost {
                address: self.options.join.clone(),
                reason: error.to_string(),
            })
    }

    /// Says how it ended, to the supervisor if it is a failure of this machine, and stops everything.
    fn end(&mut self, myself: &ActorRef<MachineEvent>, outcome: Result<(), MachineError>) {
        let Some(result) = self.result.take() else { return };
        if let Err(error @ (MachineError::Failed(_) | MachineError::Interrupted)) = &outcome {
            let failure = Failure {
                machine: self.id.name.clone(),
                reason: in_one_line(error),
            };
            let _ = self.supervisor.cast(SupervisorMessage::Failed(Rmp(failure)));
        }
        for rank in self.ranks.values() {
            rank.stop(None);
        }
        let clocks = self.clocks.take();
        let myself = myself.clone();
        tokio::spawn(async move {
            if let Some(clocks) = clocks {
                // A task that panics has dropped its lease, and so restored.
                let _ = tokio::task::spawn_blocking(move || clocks.end()).await;
            }
            // The message above leaves from a task of its own; give it a moment before the session goes.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let _ = result.send(outcome);
            myself.stop(None);
        });
    }
}

/// Lowers the clocks of the machine's GPUs until its ranks are set up, if that was asked for.
fn lowered_clocks(
    wiring: &Wiring,
    guard: Option<&GuardProgram>,
    machine: &ActorRef<MachineEvent>,
) -> Result<Option<Arc<GpuClocks>>, MachineError> {
    // A probe and a choice measure the hardware as it is.
    let (Some(lower), Work::Train(_)) = (&wiring.config.lower_clocks, &wiring.work) else {
        return Ok(None);
    };
    let Some(guard) = guard else {
        let reason = "this program has no guard that would restore them".to_owned();
        let _ = machine.cast(MachineEvent::Clocks(ClockNews::NotLowered { reason }));
        return Ok(None);
    };
    let plan = ClockPlan {
        lower: lower.clone(),
        while_waiting: wiring.config.lower_clocks_while_waiting,
        devices: wiring.gpus.clone(),
        companions: wiring.companions.clone(),
        ranks: wiring.seats.iter().map(|seat| seat.rank).collect(),
        guard: guard.clone(),
    };
    let machine = machine.clone();
    let tell = move |news| {
        // A machine that has ended tells nobody.
        let _ = machine.cast(MachineEvent::Clocks(news));
    };
    let clocks = GpuClocks::lower(plan, tell);
    let clocks = clocks.map_err(|error| MachineError::Failed(format!("no thread for GPU clocks: {error}")))?;
    Ok(Some(Arc::new(clocks)))
}
