//! A rank on its machine: the actor that owns its presampler, planner, prefetcher and trainer.
//!
//! The four are long loops, so they run beside the actor: sampling, planning and training on threads of their own, the
//! prefetcher as a task. The actor hears from them, passes their news on, and fails with the reason of the first that
//! failed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greengnn_energy::profile::Profile;
use greengnn_model::assemble::InputBuffers;
use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::counters::{Phase, Traffic};
use greengnn_model::layers::{NamedParameter, Trainable};
use greengnn_model::plan::{CacheState, Delivery, DeviceRows};
use greengnn_model::policy::Policy;
use greengnn_model::rows::RowBook;
use greengnn_model::sampling::StepCounts;
use greengnn_model::store::PartStore;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use ractor_cluster::RactorMessage;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::arena::RowArena;
use crate::causes::in_one_line;
use crate::collective::Collective;
use crate::config::TrainConfig;
use crate::filling::Filling;
use crate::gpu_clocks::GpuClocks;
use crate::machine::MachineEvent;
use crate::planner::{Asking, RankPlanner};
use crate::prefetcher::{Prefetched, Prefetcher};
use crate::presampler::{EPOCHS_AHEAD, EpochTrace, Presampler, PresamplerError};
use crate::probe::MachineMeter;
use crate::push_pull::PushPullSeat;
use crate::push_pull::first_layer::FirstLayer;
use crate::push_pull::loader::PushLoader;
use crate::report::records::StepRecord;
use crate::report::summary::Planned;
use crate::residency::Residency;
use crate::trainer::{EpochOutcome, Trainer, TrainerError, TrainerEvents};
use crate::transport::Transport;
use crate::tuning::TrainedEpochs;
use crate::wiring::PATIENCE;
use crate::work::{Chosen, Work};

#[cfg(test)]
mod bounds;
mod loader;
mod measuring;

use loader::{Loader, RowLoader};
use measuring::start_prober;

/// What a rank is given.
pub struct RankStart {
    pub rank: Rank,
    pub config: Arc<TrainConfig>,
    pub work: Work,
    /// The meter of the machine, for one of its ranks.
    pub meter: Option<MachineMeter>,
    /// Who owns which nodes.
    pub book: Arc<PartitionBook>,
    /// Who owns which feature rows.
    pub rows: Arc<RowBook>,
    pub steps: StepCounts,
    pub part: Arc<PartStore>,
    pub graph_hash: [u8; 32],
    pub transport: Arc<dyn Transport>,
    pub collective: Collective,
    pub filling: Collective,
    pub policy: Arc<dyn Policy>,
    pub delivery: Delivery,
    pub budget_rows: u32,
    /// The part of the budget that the device has.
    pub device_rows: u32,
    pub model: Box<dyn Trainable>,
    /// In push-pull, this rank's columns; none in a run that pulls rows.
    pub push_pull: Option<PushPullSeat>,
    pub preaggregate: bool,
    pub trace_folder: PathBuf,
    /// The machine's GPU clocks, if they are to be lowered.
    pub clocks: Option<Arc<GpuClocks>>,
}

/// What happens to a rank.
#[derive(RactorMessage)]
pub enum RankEvent {
    /// What fetches cost is known, where that had to be found out; sampling starts.
    KnowsCosts,
    /// The trace of the first epoch is there.
    Presampled,
    PhaseDone(Option<u32>, Phase),
    StepDone(StepRecord),
    EpochDone(Box<EpochOutcome>),
    /// The trainer has its final parameters.
    Trained(Vec<NamedParameter>),
    /// The static fill is done.
    Filled(Filled),
    /// A probe has come to its end.
    Probed(Box<Profile>),
    /// The ranks have chosen.
    Chosen(Box<Chosen>),
    /// A worker ended with an error. A consequence is the error of a worker whose neighbour failed.
    WorkerFailed {
        reason: String,
        consequence: bool,
    },
}

/// What a rank holds before the first step, and what it took to get it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filled {
    pub traffic: Traffic,
    pub planned: Planned,
    /// Rows on the device, remote and own, and how many may be there.
    pub device_rows: u64,
    pub device_budget_rows: u64,
    /// Bytes of these rows.
    pub upload_bytes: u64,
}

/// The actor of one rank.
pub struct RankActor;

/// What the actor keeps: its machine, what others may see, and the handles that end its workers.
pub struct RankActorState {
    machine: ActorRef<MachineEvent>,
    rank: Rank,
    cancelled: Arc<AtomicBool>,
    /// Dropping it ends the trainer's waits.
    _cancel_trainer: watch::Sender<bool>,
    permits: Vec<Arc<Semaphore>>,
    /// What makes batches, or the probe.
    working: JoinHandle<()>,
}

impl Drop for RankActorState {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // A closed semaphore lets its waiters go, and a gone prefetcher closes the channels of the others.
        self.permits.iter().for_each(|permits| permits.close());
        self.working.abort();
    }
}

impl Actor for RankActor {
    type Msg = RankEvent;
    type State = RankActorState;
    type Arguments = (RankStart, ActorRef<MachineEvent>);

    async fn pre_start(
        &self,
        myself: ActorRef<RankEvent>,
        (start, machine): Self::Arguments,
    ) -> Result<RankActorState, ActorProcessingErr> {
        Ok(start_workers(start, myself, machine)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<RankEvent>,
        event: RankEvent,
        state: &mut RankActorState,
    ) -> Result<(), ActorProcessingErr> {
        let rank = state.rank;
        match event {
            RankEvent::KnowsCosts => state.machine.cast(MachineEvent::KnowsCosts)?,
            RankEvent::Presampled => state.machine.cast(MachineEvent::Presampled)?,
            RankEvent::PhaseDone(epoch, phase) => state.machine.cast(MachineEvent::PhaseDone { epoch, phase })?,
            RankEvent::StepDone(record) => state.machine.cast(MachineEvent::StepDone(record))?,
            RankEvent::EpochDone(outcome) => {
                state.machine.cast(MachineEvent::EpochDone { rank, outcome })?;
            }
            RankEvent::Trained(parameters) => {
                state.machine.cast(MachineEvent::Trained { rank, parameters })?;
            }
            // All ranks have come to the same.
            RankEvent::Probed(_) | RankEvent::Chosen(_) if rank != 0 => {}
            RankEvent::Chosen(chosen) => state.machine.cast(MachineEvent::Chosen(chosen))?,
            RankEvent::Probed(profile) => state.machine.cast(MachineEvent::Probed(profile))?,
            RankEvent::Filled(filled) => state.machine.cast(MachineEvent::Filled { rank, filled })?,
            RankEvent::WorkerFailed {
                reason,
                consequence: false,
            } => return Err(reason.into()),
            RankEvent::WorkerFailed {
                reason,
                consequence: true,
            } => {
                // The cause is about to arrive; when it does not, the consequence is all there is to say.
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    let _ = myself.cast(RankEvent::WorkerFailed {
                        reason,
                        consequence: false,
                    });
                });
            }
        }
        Ok(())
    }
}

fn start_workers(
    start: RankStart,
    myself: ActorRef<RankEvent>,
    machine: ActorRef<MachineEvent>,
) -> std::io::Result<RankActorState> {
    if let Work::Probe(plan) = &start.work {
        let prober = start.prober(plan.clone());
        return Ok(start_prober(prober, myself, machine));
    }
    let (cancel_trainer, trainer_cancelled) = watch::channel(false);
    let trained = TrainedEpochs::default();
    let tuning = start.tuning_stage(trained.clone(), trainer_cancelled.clone());
    let tuned_policy = start.tuned_policy();
    let rank = start.rank;
    let config = &start.config;
    let runtime = tokio::runtime::Handle::current();
    let cancelled = Arc::new(AtomicBool::new(false));
    // Where something is to be measured first, sampling waits, so that meters do not take it for a part of that.
    let epochs_ahead = if tuning.is_some() { 0 } else { EPOCHS_AHEAD };
    let epoch_permits = Arc::new(Semaphore::new(epochs_ahead));
    let ahead = Arc::new(Semaphore::new(1 + config.ahead as usize));
    let width = start.part.manifest().features;
    let row_bytes = config.row_type.row_bytes(width);
    let (trace_sender, traces) = mpsc::channel(EPOCHS_AHEAD);
    // Batches are bounded by `ahead`; the borders of an epoch need room beside them.
    let (batch_sender, batches) = mpsc::channel(4);

    let presampler = Presampler {
        rank,
        config: Arc::clone(config),
        book: Arc::clone(&start.book),
        rows: Arc::clone(&start.rows),
        steps: start.steps,
        part: Arc::clone(&start.part),
        graph_hash: start.graph_hash,
        transport: Arc::clone(&start.transport),
        runtime: runtime.clone(),
        folder: start.trace_folder,
        permits: Arc::clone(&epoch_permits),
        cancelled: Arc::clone(&cancelled),
    };
    let filling = Filling {
        rank,
        policy: Arc::clone(&start.policy),
        rows: Arc::clone(&start.rows),
        part: Arc::clone(&start.part),
        budget_rows: start.budget_rows,
        device_rows: start.device_rows,
        presampler: presampler.clone(),
        collective: start.filling.clone(),
    };
    let told = myself.clone();
    spawn_worker(format!("presample-{rank}"), &myself, move || {
        let first_is_ready = || {
            let _ = told.cast(RankEvent::Presampled);
        };
        match presampler.run(trace_sender, first_is_ready) {
            Ok(()) | Err(PresamplerError::Cancelled) => {}
            Err(error) => fail(&told, in_one_line(&error), false),
        }
    })?;

    // In push-pull a batch has an input per rank.
    let inputs = start.push_pull.as_ref().map_or(1, |_| start.book.parts());
    let buffers = Arc::new(Mutex::new(InputBuffers::for_inputs(usize::from(inputs))));
    let push_loader = start.push_pull.as_ref().map(|seat| PushLoader {
        book: Arc::clone(&start.book),
        part: Arc::clone(&start.part),
        shard: Arc::clone(&seat.shard),
        collective: start.filling,
        holders: seat.holders.clone(),
        outputs: seat.slice.outputs(),
        ahead: Arc::clone(&ahead),
        epochs: Arc::clone(&epoch_permits),
        buffers: Arc::clone(&buffers),
    });
    let prefetcher = Prefetcher {
        rank,
        rows: Arc::clone(&start.rows),
        part: start.part,
        transport: start.transport,
        arena: Arc::new(RowArena::for_run(start.budget_rows as usize, row_bytes, config.verify)),
        residency: Arc::new(Residency::new(DeviceRows::default(), 0)),
        width,
        row_type: config.row_type,
        preaggregate: start.preaggregate,
        verify: config.verify,
        ahead: Arc::clone(&ahead),
        epochs: Arc::clone(&epoch_permits),
        trained: trained.clone(),
        buffers: Arc::clone(&buffers),
    };
    let planner = RankPlanner {
        rank,
        policy: tuned_policy.unwrap_or(start.policy),
        book: Arc::clone(start.rows.book()),
        budget_rows: start.budget_rows,
        asking: Asking {
            window: config.window.steps(),
            delivery: start.delivery,
        },
        tuner: None,
        tell_choice: Box::new(|_| ()),
        row_type: config.row_type,
        epochs: config.epochs,
        state: CacheState::default(),
    };
    let loader = match push_loader {
        Some(loader) => Loader::Columns(loader),
        None => Loader::Rows(Box::new(RowLoader {
            filling,
            planner,
            prefetcher,
            tuning,
            clocks: start.clocks.clone(),
        })),
    };
    let told = myself.clone();
    let prefetching = tokio::spawn(async move {
        let working = tokio::spawn({
            let told = told.clone();
            async move { loader.run(traces, batch_sender, &told).await }
        });
        // Aborting this task must end the work too.
        let _ends_with_this = AbortOnDrop(working.abort_handle());
        match working.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => fail(&told, in_one_line(&error), false),
            Err(error) => fail(&told, format!("the prefetcher of rank {rank} ended: {error}"), false),
        }
    });

    let first_layer = start.push_pull.map(|seat| FirstLayer {
        slice: seat.slice,
        holders: seat.holders,
        collective: start.collective.clone(),
        runtime: runtime.clone(),
        cancelled: trainer_cancelled.clone(),
        shard: seat.shard,
        traffic: BTreeMap::new(),
    });
    let trainer = Trainer {
        rank,
        epochs: config.epochs,
        model: start.model,
        collective: start.collective,
        first_layer,
        runtime,
        batches,
        clocks: start.clocks,
        ahead: Arc::clone(&ahead),
        buffers,
        trained,
        cancelled: trainer_cancelled,
        // Longer than the others wait for a rank, so that their error, which names it, comes first.
        patience: config.deadline() * (PATIENCE + 1) + config.probe_within(&start.work),
    };
    let told = myself.clone();
    spawn_worker(format!("rank-{rank}"), &myself, move || {
        let mut events = Teller(told.clone());
        match trainer.run(&mut events) {
            Ok(parameters) => {
                let _ = told.cast(RankEvent::Trained(parameters));
            }
            Err(TrainerError::Cancelled) => {}
            Err(error) => {
                let consequence = matches!(error, TrainerError::LoaderEnded { .. } | TrainerError::NoBatch { .. });
                fail(&told, in_one_line(&error), consequence);
            }
        }
    })?;

    Ok(RankActorState {
        machine,
        rank,
        cancelled,
        _cancel_trainer: cancel_trainer,
        permits: vec![epoch_permits, ahead],
        working: prefetching,
    })
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn fail(rank: &ActorRef<RankEvent>, reason: String, consequence: bool) {
    let _ = rank.cast(RankEvent::WorkerFailed { reason, consequence });
}

/// Starts a worker. One that panics has failed, and says so like one that returned an error.
fn spawn_worker(name: String, rank: &ActorRef<RankEvent>, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let told = rank.clone();
    let thread = name.clone();
    let guarded = move || {
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no words");
            fail(&told, format!("thread {thread} panicked: {words}"), false);
        }
    };
    std::thread::Builder::new().name(name).spawn(guarded).map(|_| ())
}

/// Passes the trainer's news to the actor.
struct Teller(ActorRef<RankEvent>);

impl TrainerEvents for Teller {
    fn phase_done(&mut self, epoch: Option<u32>, phase: Phase) {
        let _ = self.0.cast(RankEvent::PhaseDone(epoch, phase));
    }

    fn step_done(&mut self, record: StepRecord) {
        let _ = self.0.cast(RankEvent::StepDone(record));
    }

    fn epoch_done(&mut self, outcome: EpochOutcome) {
        let _ = self.0.cast(RankEvent::EpochDone(Box::new(outcome)));
    }
}
