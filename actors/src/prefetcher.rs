//! The prefetcher of a rank: executes the plan. It asks the owners when the plan says so, assembles the next batch while
//! the one before trains, and keeps the arena as the plan wants it.

mod execution;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use greengnn_energy::choice::OwnerFetches;
use greengnn_model::assemble::{AssembleError, InputBuffers};
use greengnn_model::book::{PartId, Rank};
use greengnn_model::counters::{LevelCounts, Period, Phase, Traffic};
use greengnn_model::layers::AssembledBatch;
use greengnn_model::plan::{BatchPlan, Delivery, LaterRows, Level, Place, Request, WindowPlan};
use greengnn_model::policy::{Fill, RemoteTrace};
use greengnn_model::row_type::RowType;
use greengnn_model::rows::RowBook;
use greengnn_model::store::PartStore;
use greengnn_model::trace::TraceError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::arena::RowArena;
use crate::assembly::Assembly;
use crate::landing::Landing;
use crate::planner::{Asking, Planned, PlannerError};
use crate::presampler::EpochTrace;
use crate::report::summary::Planned as PlannedCounts;
use crate::residency::Residency;
use crate::streams::Streams;
use crate::transport::{Arrival, Caller, RowSink, Transport, TransportError};
use crate::tuning::TrainedEpochs;

use execution::{Answer, Asked, Execution, Held, PlacedRows, slots_of};

pub use execution::planned_of;

/// What the trainer takes from the prefetcher.
pub enum Prefetched {
    /// The rows that stay on the device, before the first epoch; nothing is sent if there are none.
    Resident(Vec<f32>),
    /// A batch to try a step on, before the first epoch. Nothing is learnt from it; the sender is told when it was done.
    Trial(Box<PreparedBatch>, oneshot::Sender<Instant>),
    /// An epoch starts.
    Epoch(Arc<EpochTrace>),
    /// The next step.
    Batch(Box<PreparedBatch>),
    /// All steps of the epoch have been handed over.
    EpochEnd(Box<EpochTally>),
}

/// An assembled batch, and how long its parts took.
pub struct PreparedBatch {
    pub step: u32,
    pub batch: AssembledBatch,
    /// This batch's share of presampling, seconds waited for rows, and seconds to assemble.
    pub sample_s: f64,
    pub fetch_s: f64,
    pub assemble_s: f64,
}

/// What a rank asked for in one epoch.
#[derive(Clone, Debug, Default)]
pub struct EpochTally {
    pub traffic: BTreeMap<Phase, Traffic>,
    pub planned: BTreeMap<Phase, PlannedCounts>,
    pub needed_rows: BTreeMap<Phase, u64>,
    /// From which memory the batches' rows were read.
    pub levels: BTreeMap<Phase, LevelCounts>,
    /// Most slots that were charged at once so far in the run.
    pub held_rows_peak: u64,
    pub plan_cpu_s: f64,
    /// How the rows of the epoch were asked for.
    pub asking: Asking,
}

/// Why a rank's plan could not be executed.
#[derive(Debug, thiserror::Error)]
pub enum PrefetchError {
    #[error("rank {rank} could not get the rows of step {step}: {source}")]
    Rows {
        rank: Rank,
        step: u32,
        source: TransportError,
    },
    #[error("rank {rank} has no plan: {source}")]
    Plan { rank: Rank, source: PlannerError },
    #[error("rank {rank} cannot read step {step} of its trace: {source}")]
    Trace { rank: Rank, step: u32, source: TraceError },
    #[error("rank {rank} cannot assemble step {step}: {source}")]
    Assemble {
        rank: Rank,
        step: u32,
        source: AssembleError,
    },
    #[error("the plan of rank {rank}, step {step}, does not fit its batch: {what}")]
    PlanDoesNotFit { rank: Rank, step: u32, what: String },
    #[error("rank {rank}, step {step}: remote row {row} of part {owner} was read before it came or after it was freed")]
    Unwritten {
        rank: Rank,
        step: u32,
        owner: u16,
        row: u32,
    },
    #[error("a task of rank {rank} ended before it was done: {reason}")]
    Task { rank: Rank, reason: String },
}

/// Executes the plans of one rank.
pub struct Prefetcher {
    pub rank: Rank,
    pub rows: Arc<RowBook>,
    pub part: Arc<PartStore>,
    pub transport: Arc<dyn Transport>,
    /// Slots of exactly the budget.
    pub arena: Arc<RowArena>,
    /// Which rows are on the device; nothing is in the arena's slots of these.
    pub residency: Arc<Residency>,
    pub width: usize,
    pub row_type: RowType,
    pub preaggregate: bool,
    pub verify: bool,
    /// One permit per batch that may be assembled; the trainer gives one back per finished step.
    pub ahead: Arc<Semaphore>,
    /// Given back to the presampler when an epoch is done.
    pub epochs: Arc<Semaphore>,
    /// Is told how long owners took to answer in every epoch.
    pub trained: TrainedEpochs,
    /// Buffers of trained batches come back here.
    pub buffers: Arc<Mutex<InputBuffers>>,
}

impl Prefetcher {
    /// Fetches what a static policy holds from the start, and returns the rows that are for the device: those of its slots,
    /// then the rank's own. Counted as set-up.
    pub async fn fill(&self, fill: &Fill) -> Result<(Traffic, Vec<f32>), PrefetchError> {
        let caller = Caller {
            rank: self.rank,
            period: Period {
                epoch: 0,
                phase: Phase::Setup,
            },
        };
        let device = &fill.device;
        // Rows for the device land in a buffer, as direct rows do in that of their batch.
        let buffer = Arc::new(RowArena::for_run(device.slots as usize, self.row_bytes(), self.verify));
        let to_buffer = |place: &Place| match *place {
            Place::Slot(slot) if device.level(slot) == Level::Device => Place::Direct(slot),
            place => place,
        };
        let mut traffic = Traffic::default();
        let asked: Vec<Result<Asked, PrefetchError>> = fill
            .requests
            .iter()
            .map(|request| {
                let places = request.places.iter().map(to_buffer).collect();
                let request = Request {
                    places,
                    ..request.clone()
                };
                self.ask(caller, request, &buffer)
            })
            .collect();
        for asked in asked {
            self.answered(0, asked?, &mut traffic).await?;
        }
        let rows = self.device_rows(fill, &buffer)?;
        Ok((traffic, rows))
    }

    /// The rows that the device keeps, decoded: those that came into `buffer`, and the rank's own.
    fn device_rows(&self, fill: &Fill, buffer: &RowArena) -> Result<Vec<f32>, PrefetchError> {
        let device = &fill.device;
        let mut rows = vec![0.0; device.len() * self.width];
        if self.width == 0 {
            return Ok(rows);
        }
        let (remote, own) = rows.split_at_mut(device.slots as usize * self.width);
        for held in fill.state.held.iter().filter(|held| held.slot < device.slots) {
            // SAFETY: the requests that fill the buffer have been answered.
            let encoded = unsafe { buffer.row(held.slot) };
            if self.verify && RowArena::is_poisoned(encoded) {
                return Err(PrefetchError::Unwritten {
                    rank: self.rank,
                    step: 0,
                    owner: held.owner,
                    row: held.row,
                });
            }
            let start = held.slot as usize * self.width;
            self.row_type.decode(encoded, &mut remote[start..start + self.width]);
        }
        for (row, place) in device.own.iter().zip(own.chunks_exact_mut(self.width)) {
            place.copy_from_slice(self.part.feature_row(*row));
        }
        Ok(rows)
    }

    /// Executes everything that the planner sends, until it ends or the trainer goes away.
    pub async fn run(
        self,
        held_at_start: u64,
        mut plans: mpsc::Receiver<Result<Planned, PlannerError>>,
        trainer: mpsc::Sender<Prefetched>,
    ) -> Result<(), PrefetchError> {
        let mut held = Held {
            rows: held_at_start,
            peak: held_at_start,
        };
        let mut current: Option<Execution> = None;
        while let Some(planned) = plans.recv().await {
            let rank = self.rank;
            let planned = planned.map_err(|source| PrefetchError::Plan { rank, source })?;
            match (planned, &mut current) {
                (Planned::Epoch(trace, asking), _) => {
                    let streams = Streams::new(Arc::clone(&self.transport), rank, trace.epoch);
                    current = Some(Execution::new(Arc::clone(&trace), asking, streams));
                    if trainer.send(Prefetched::Epoch(trace)).await.is_err() {
                        return Ok(());
                    }
                }
                (Planned::Window(mut window), Some(execution)) => {
                    execution.plan(&window.requests);
                    if execution.asking.delivery == Delivery::Stream {
                        self.schedule(execution, &mut window).await?;
                    }
                    let mut requests = window.requests.into_iter().peekable();
                    for plan in window.batches {
                        let Ok(permit) = self.ahead.acquire().await else {
                            return Ok(());
                        };
                        permit.forget();
                        let due = std::iter::from_fn(|| requests.next_if(|request| request.issue_gap() <= plan.step));
                        let due: Vec<Request> = due.collect();
                        let prepared = self.step(execution, &mut held, plan, due).await?;
                        if trainer.send(Prefetched::Batch(Box::new(prepared))).await.is_err() {
                            return Ok(());
                        }
                    }
                    if let Some(request) = requests.next() {
                        let what = "a request of the window leaves after its last step".to_owned();
                        return Err(PrefetchError::PlanDoesNotFit {
                            rank,
                            step: request.needed_by_step,
                            what,
                        });
                    }
                }
                (Planned::EpochEnd { plan_cpu_s }, Some(execution)) => {
                    if let Some(step) = execution.in_flight.keys().next() {
                        let what = "a request is not needed by any step of its epoch".to_owned();
                        return Err(PrefetchError::PlanDoesNotFit {
                            rank,
                            step: *step,
                            what,
                        });
                    }
                    let mut tally = std::mem::take(&mut execution.tally);
                    tally.plan_cpu_s = plan_cpu_s;
                    tally.held_rows_peak = held.peak;
                    tally.asking = execution.asking;
                    let fetches = std::mem::take(&mut execution.fetches);
                    self.trained
                        .tell_fetches(execution.trace.epoch, fetches.into_values().collect());
                    current = None;
                    self.epochs.add_permits(1);
                    if trainer.send(Prefetched::EpochEnd(Box::new(tally))).await.is_err() {
                        return Ok(());
                    }
                }
                (Planned::Window(_) | Planned::EpochEnd { .. }, None) => {}
            }
        }
        Ok(())
    }

    /// One step: asks what is due, waits for what the step needs, assembles, and tidies the arena.
    async fn step(
        &self,
        execution: &mut Execution,
        held: &mut Held,
        plan: BatchPlan,
        due: Vec<Request>,
    ) -> Result<PreparedBatch, PrefetchError> {
        let step = plan.step;
        let direct = execution.assembly_buffer(plan.direct_rows as usize, self.row_bytes(), self.verify);
        for request in due {
            let phase = execution.phase(request.needed_by_step);
            held.rows += slots_of(&request);
            let caller = Caller {
                rank: self.rank,
                period: Period {
                    epoch: execution.trace.epoch,
                    phase,
                },
            };
            let needed_by = request.needed_by_step;
            let asked = match execution.asking.delivery {
                Delivery::Windowed => self.ask(caller, request, &direct)?,
                Delivery::Stream => self.grant(execution, caller.period.phase, request, &direct).await?,
            };
            execution.in_flight.entry(needed_by).or_default().push(asked);
        }
        held.peak = held.peak.max(held.rows);
        let phase = execution.phase(step);
        *execution.tally.needed_rows.entry(phase).or_default() += plan.places.len() as u64;

        let waiting = Instant::now();
        while let Some(entry) = execution.in_flight.first_entry() {
            if *entry.key() > step {
                break;
            }
            for mut asked in entry.remove() {
                if let Some((rows, next_step)) = asked.not_all(step) {
                    self.came(step, &mut asked, rows).await?;
                    execution.in_flight.entry(next_step).or_default().push(asked);
                } else {
                    let traffic = execution.tally.traffic.entry(asked.phase).or_default();
                    let fetched = self.answered(step, asked, traffic).await?;
                    execution.note(fetched);
                }
            }
        }
        let fetch_s = waiting.elapsed().as_secs_f64();

        let assembling = Instant::now();
        let assembly = self.assembly(&execution.trace, &direct, self.verify);
        let (batch, plan, levels) = tokio::task::spawn_blocking(move || assembly.run(plan))
            .await
            .map_err(|error| self.task_ended(&error))??;
        *execution.tally.levels.entry(phase).or_default() += levels;
        let assemble_s = assembling.elapsed().as_secs_f64();

        self.tidy(&plan, &direct);
        execution.spare = Some(direct);
        held.rows = held.rows + plan.keeps.len() as u64 - plan.releases.len() as u64;
        Ok(PreparedBatch {
            step,
            batch,
            sample_s: execution.trace.step_s,
            fetch_s,
            assemble_s,
        })
    }

    /// What assembles a batch of a trace, whose own rows are in `direct`.
    fn assembly(&self, trace: &Arc<EpochTrace>, direct: &Arc<RowArena>, verify: bool) -> Assembly {
        Assembly {
            rank: self.rank,
            rows: Arc::clone(&self.rows),
            part: Arc::clone(&self.part),
            arena: Arc::clone(&self.arena),
            residency: Arc::clone(&self.residency),
            direct: Arc::clone(direct),
            trace: Arc::clone(trace),
            width: self.width,
            row_type: self.row_type,
            preaggregate: self.preaggregate,
            verify,
            buffers: Arc::clone(&self.buffers),
        }
    }

    /// Frees slots, then copies rows that came for this batch and are kept for a later one.
    fn tidy(&self, plan: &BatchPlan, direct: &RowArena) {
        if self.verify {
            for slot in &plan.releases {
                // SAFETY: the plan frees the slot after this step, and the next request for it has not left yet.
                unsafe { self.arena.poison(*slot) };
            }
        }
        for keep in &plan.keeps {
            // SAFETY: the direct row was answered before the assembly; the slot is free in the plan, so nobody else has it.
            unsafe { self.arena.write(keep.slot, direct.row(keep.direct)) };
        }
    }

    /// Puts what a window asks for on the schedules of its owners.
    async fn schedule(&self, execution: &mut Execution, window: &mut WindowPlan) -> Result<(), PrefetchError> {
        let trace = Arc::clone(&execution.trace);
        let step = window.first_step();
        let last = step + window.batches.len() as u32 == RemoteTrace::steps(&*trace);
        let phase_of = |step| Phase::from(RemoteTrace::purpose(&*trace, step));
        let opened = execution.streams.schedule(&mut window.requests, phase_of, last).await;
        let requests = opened.map_err(|source| self.no_rows(step, source))?;
        let training = execution.tally.traffic.entry(Phase::Training).or_default();
        training.feature_requests += requests;
        Ok(())
    }

    /// Lets the owner of a scheduled request send its rows; they land where the plan wants them.
    async fn grant(
        &self,
        execution: &mut Execution,
        phase: Phase,
        mut request: Request,
        direct: &Arc<RowArena>,
    ) -> Result<Asked, PrefetchError> {
        let (owner, step) = (request.owner, request.needed_by_step);
        let sink = self.places(&mut request, direct)?;
        let landing = Arc::clone(&sink.landing);
        let granted = execution.streams.grant(owner, Box::new(sink)).await;
        Ok(Asked {
            owner,
            took_s: None,
            answer: Answer::Delivery(granted.map_err(|source| self.no_rows(step, source))?),
            landing,
            later: request.later,
            requested: false,
            phase,
        })
    }

    /// Bytes of one encoded row.
    fn row_bytes(&self) -> usize {
        self.row_type.row_bytes(self.width)
    }

    /// The sink that puts the rows of a request where the plan wants them.
    fn places(&self, request: &mut Request, direct: &Arc<RowArena>) -> Result<PlacedRows, PrefetchError> {
        if request.dtype != self.row_type {
            return Err(PrefetchError::PlanDoesNotFit {
                rank: self.rank,
                step: request.needed_by_step,
                what: format!("a request wants {} rows in a run of {}", request.dtype, self.row_type),
            });
        }
        Ok(PlacedRows {
            arena: Arc::clone(&self.arena),
            direct: Arc::clone(direct),
            places: std::mem::take(&mut request.places),
            row_bytes: self.row_bytes(),
            landing: Landing::new(&request.later),
        })
    }

    /// Sends a request; its rows land where the plan wants them.
    fn ask(&self, caller: Caller, mut request: Request, direct: &Arc<RowArena>) -> Result<Asked, PrefetchError> {
        let (owner, asked_rows) = (request.owner, std::mem::take(&mut request.rows));
        let sink = self.places(&mut request, direct)?;
        let transport = Arc::clone(&self.transport);
        let later = std::mem::take(&mut request.later);
        let landing = Arc::clone(&sink.landing);
        let answer = tokio::spawn(async move {
            let asked = Instant::now();
            transport.fetch_rows(caller, owner, asked_rows, Box::new(sink)).await?;
            Ok(asked.elapsed().as_secs_f64())
        });
        Ok(Asked {
            owner,
            took_s: None,
            answer: Answer::Request(answer),
            landing,
            later,
            requested: true,
            phase: caller.period.phase,
        })
    }

    /// Waits for the first rows of an answer.
    async fn came(&self, step: u32, asked: &mut Asked, rows: usize) -> Result<(), PrefetchError> {
        let landing = Arc::clone(&asked.landing);
        tokio::select! {
            biased;
            () = landing.reached(rows) => Ok(()),
            // All of them, or none.
            ended = self.ended(step, asked) => ended,
        }
    }

    /// Waits until an answer has ended, well or not.
    async fn ended(&self, step: u32, asked: &mut Asked) -> Result<(), PrefetchError> {
        let came = match &mut asked.answer {
            Answer::Request(answer) => answer.await.map_err(|error| self.task_ended(&error))?.map(Some),
            Answer::Delivery(arrival) => arrival.await.map(|()| None),
            Answer::Ended => return Ok(()),
        };
        asked.answer = Answer::Ended;
        asked.took_s = came.map_err(|source| self.no_rows(step, source))?;
        Ok(())
    }

    /// Waits for all of an answer, and counts what came. Returns how long a request took.
    async fn answered(
        &self,
        step: u32,
        mut asked: Asked,
        traffic: &mut Traffic,
    ) -> Result<Option<OwnerFetches>, PrefetchError> {
        self.ended(step, &mut asked).await?;
        // What has landed, not what was asked for: the plan is held against it.
        let rows = asked.landing.come() as u64;
        *traffic += Traffic {
            feature_requests: u64::from(asked.requested),
            deliveries: 1,
            sample_requests: 0,
            feature_rows: rows,
            feature_bytes: rows * self.row_bytes() as u64,
            ..Traffic::default()
        };
        Ok(asked.took_s.map(|seconds| OwnerFetches {
            owner: asked.owner,
            requests: 1,
            rows,
            seconds,
        }))
    }

    fn no_rows(&self, step: u32, source: TransportError) -> PrefetchError {
        PrefetchError::Rows {
            rank: self.rank,
            step,
            source,
        }
    }

    fn task_ended(&self, error: &tokio::task::JoinError) -> PrefetchError {
        PrefetchError::Task {
            rank: self.rank,
            reason: error.to_string(),
        }
    }
}
