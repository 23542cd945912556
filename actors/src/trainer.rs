//! The trainer of a rank: takes assembled batches, computes gradients, averages them with the other ranks, and learns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greengnn_model::assemble::InputBuffers;
use greengnn_model::book::Rank;
use greengnn_model::counters::{Period, Phase};
use greengnn_model::layers::{AssembledBatch, Evaluation, LayerError, NamedParameter, Trainable};
use greengnn_model::policy::RemoteTrace;
use greengnn_model::rng::Purpose;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::causes::in_one_line;
use crate::collective::{Collective, CollectiveError, Moment};
use crate::gpu_clocks::GpuClocks;
use crate::prefetcher::{EpochTally, Prefetched, PreparedBatch};
use crate::presampler::EpochTrace;
use crate::push_pull::PushPullError;
use crate::push_pull::first_layer::{ComputedStep, FirstLayer};
use crate::report::records::StepRecord;
use crate::transport::ParcelKind;
use crate::tuning::{TrainedEpochs, TrainedSteps};

/// Why a rank stopped training.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    #[error("rank {rank}, epoch {epoch}, step {step}: {source}")]
    Layer {
        rank: Rank,
        epoch: u32,
        step: u32,
        source: LayerError,
    },
    #[error("rank {rank}, epoch {epoch}: {}", in_one_line(source))]
    Collective {
        rank: Rank,
        epoch: u32,
        source: CollectiveError,
    },
    #[error("rank {rank}, epoch {epoch}: {}", in_one_line(source))]
    PushPull {
        rank: Rank,
        epoch: u32,
        source: PushPullError,
    },
    #[error("rank {rank} waited {} s for its next batch; the prefetcher did not answer", within.as_secs())]
    NoBatch { rank: Rank, within: Duration },
    #[error("the loader of rank {rank} ended in epoch {epoch}")]
    LoaderEnded { rank: Rank, epoch: u32 },
    #[error("training was cancelled")]
    Cancelled,
    #[error("rank {rank} got {what} out of order")]
    OutOfOrder { rank: Rank, what: &'static str },
    #[error(
        "the loss of epoch {epoch}, step {step}, is not a number any more; lower the learning rate, or look for bad \
         feature values"
    )]
    NotFinite { epoch: u32, step: u32 },
}

/// What a trainer tells its machine.
pub trait TrainerEvents: Send {
    /// The rank has passed the end of the set-up (`epoch` is none) or of a phase of an epoch.
    fn phase_done(&mut self, epoch: Option<u32>, phase: Phase);
    /// The rank is done with a training step.
    fn step_done(&mut self, record: StepRecord);
    /// The rank is done with an epoch.
    fn epoch_done(&mut self, outcome: EpochOutcome);
}

/// What a rank knows at the end of an epoch. Losses and accuracies are over all ranks.
#[derive(Clone, Debug, Default)]
pub struct EpochOutcome {
    pub epoch: u32,
    pub loss_sum: f64,
    pub labelled: u64,
    pub valid: Option<(u64, u64)>,
    pub test: Option<(u64, u64)>,
    pub steps: TrainedSteps,
    pub stall_s: BTreeMap<Phase, f64>,
    pub sync_s: BTreeMap<Phase, f64>,
    pub tally: EpochTally,
    pub presample_cpu_s: f64,
    pub trace_bytes: u64,
}

/// One rank's training loop. Runs on a thread of its own.
pub struct Trainer {
    pub rank: Rank,
    pub epochs: u32,
    pub model: Box<dyn Trainable>,
    pub collective: Collective,
    /// In push-pull, the first layer of all ranks; none in a run that pulls rows.
    pub first_layer: Option<FirstLayer>,
    pub runtime: Handle,
    pub batches: mpsc::Receiver<Prefetched>,
    /// The machine's GPU clocks, if they are to be lowered.
    pub clocks: Option<Arc<GpuClocks>>,
    /// One permit back per finished step: the prefetcher may assemble one more.
    pub ahead: Arc<Semaphore>,
    /// Where the buffers of a batch go once it is done.
    pub buffers: Arc<Mutex<InputBuffers>>,
    /// Is told what the steps of every epoch took.
    pub trained: TrainedEpochs,
    /// Ends every wait when its sender goes.
    pub cancelled: watch::Receiver<bool>,
    /// The longest wait for a batch.
    pub patience: Duration,
}

impl Trainer {
    /// Trains all epochs and returns the final parameters.
    pub fn run(mut self, events: &mut dyn TrainerEvents) -> Result<Vec<NamedParameter>, TrainerError> {
        self.share_initial_parameters()?;
        for epoch in 0..self.epochs {
            let waiting = Instant::now();
            let trace = self.next_epoch(epoch)?;
            let stall_s = waiting.elapsed().as_secs_f64();
            let mut running = RunningEpoch::new(epoch, &trace);
            if epoch == 0
                && let Some(clocks) = &self.clocks
            {
                // Before the exchange below, which no rank leaves while another has not got here.
                clocks.rank_trains(self.rank);
            }
            let syncing = Instant::now();
            let divisors = self.divisors(&trace)?;
            if epoch > 0 {
                // The waits before the first epoch are set-up.
                running.outcome.stall_s.insert(Phase::Training, stall_s);
                running
                    .outcome
                    .sync_s
                    .insert(Phase::Training, syncing.elapsed().as_secs_f64());
            }
            if epoch == 0 {
                events.phase_done(None, Phase::Setup);
            }
            for step in 0..trace.steps.train {
                let record = self.train_step(&mut running, step, divisors[step as usize])?;
                events.step_done(record);
            }
            self.trained.tell_steps(epoch, running.outcome.steps);
            events.phase_done(Some(epoch), Phase::Training);
            let mut valid = Evaluation::default();
            let mut test = Evaluation::default();
            for step in trace.steps.train..trace.steps.total() {
                let total = match RemoteTrace::purpose(&*trace, step) {
                    Purpose::Test => &mut test,
                    _ => &mut valid,
                };
                self.evaluate_step(&mut running, step, total)?;
            }
            let outcome = self.finish_epoch(running, valid, test)?;
            events.phase_done(Some(epoch), Phase::Evaluation);
            events.epoch_done(outcome);
        }
        self.model
            .parameters()
            .map_err(|source| self.layer_error(self.epochs, 0, source))
    }

    /// All ranks start from rank 0's parameters, so that no difference between builds can make them diverge.
    fn share_initial_parameters(&mut self) -> Result<(), TrainerError> {
        let own = self.flat_parameters()?;
        let own = bytemuck::cast_slice(&own).to_vec();
        let shared = self.agree(
            0,
            self.collective
                .broadcast(ParcelKind::Parameters, moment(0, 0, Phase::Setup), own),
        )?;
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&shared);
        self.model
            .set_parameters(&values)
            .map_err(|source| self.layer_error(0, 0, source))
    }

    fn flat_parameters(&self) -> Result<Vec<f32>, TrainerError> {
        let parameters = self
            .model
            .parameters()
            .map_err(|source| self.layer_error(0, 0, source))?;
        Ok(parameters.into_iter().flat_map(|parameter| parameter.values).collect())
    }

    fn next_epoch(&mut self, epoch: u32) -> Result<Arc<EpochTrace>, TrainerError> {
        let mut received = self.receive(epoch)?;
        if let Prefetched::Resident(rows) = received {
            self.model
                .set_resident(rows)
                .map_err(|source| self.layer_error(epoch, 0, source))?;
            received = self.receive(epoch)?;
        }
        while let Prefetched::Trial(prepared, done) = received {
            let labelled = prepared.batch.labels.iter().filter(|label| **label >= 0).count();
            self.gradients(&prepared.batch, labelled.max(1) as u32, epoch, prepared.step)?;
            // Who gave it may be gone by now.
            let _ = done.send(Instant::now());
            self.step_over(*prepared);
            received = self.receive(epoch)?;
        }
        match received {
            Prefetched::Epoch(trace) if trace.epoch == epoch => Ok(trace),
            _ => Err(TrainerError::OutOfOrder {
                rank: self.rank,
                what: "a batch before its epoch",
            }),
        }
    }

    /// The labelled seeds of every step over all ranks, by which each rank divides its loss.
    fn divisors(&mut self, trace: &EpochTrace) -> Result<Vec<u32>, TrainerError> {
        let own: Vec<u8> = bytemuck::cast_slice(&trace.labelled).to_vec();
        let phase = if trace.epoch == 0 {
            Phase::Setup
        } else {
            Phase::Training
        };
        let at = moment(trace.epoch, 0, phase);
        let all = self.agree(
            trace.epoch,
            self.collective.all_gather(ParcelKind::LabelCounts, at, own),
        )?;
        let mut divisors = vec![0u32; trace.steps.train as usize];
        for counts in all {
            let counts: Vec<u32> = bytemuck::pod_collect_to_vec(&counts);
            divisors.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(divisors)
    }

    fn train_step(&mut self, running: &mut RunningEpoch, step: u32, divisor: u32) -> Result<StepRecord, TrainerError> {
        let epoch = running.outcome.epoch;
        let (prepared, stall_s) = self.next_batch(running, step, Phase::Training)?;
        let ComputedStep {
            outcome,
            forward_s,
            backward_s,
            waited_s,
        } = self.gradients(&prepared.batch, divisor.max(1), epoch, step)?;
        // The loss travels as one more value behind the gradients.
        let mut sum = outcome.gradients;
        sum.push(outcome.loss_sum);
        let syncing = Instant::now();
        self.agree(
            epoch,
            self.collective
                .all_reduce_sum(moment(epoch, step, Phase::Training), &mut sum),
        )?;
        let sync_s = waited_s + syncing.elapsed().as_secs_f64();
        let loss = sum.pop().unwrap_or(0.0);
        if !loss.is_finite() {
            return Err(TrainerError::NotFinite { epoch, step });
        }
        let updating = Instant::now();
        if divisor > 0 {
            self.model
                .apply(&sum)
                .map_err(|source| self.layer_error(epoch, step, source))?;
        }
        let optimizer_s = updating.elapsed().as_secs_f64();
        let row_stall_s = stall_s.min(prepared.fetch_s);
        let steps = &mut running.outcome.steps;
        steps.steps += 1;
        steps.compute_s += forward_s + backward_s + optimizer_s + (stall_s - row_stall_s);
        steps.sync_s += sync_s;
        // What the first step waits for was asked for in the epoch before.
        if step > 0 {
            steps.row_stall_s += row_stall_s;
        }
        running.outcome.loss_sum += f64::from(loss);
        running.outcome.labelled += u64::from(divisor);
        *running.outcome.sync_s.entry(Phase::Training).or_default() += sync_s;
        let record = StepRecord {
            epoch,
            step,
            rank: u32::from(self.rank),
            seeds: prepared.batch.labels.iter().filter(|label| **label >= 0).count() as u32,
            sample_s: prepared.sample_s,
            fetch_s: prepared.fetch_s,
            assemble_s: prepared.assemble_s,
            forward_s,
            backward_s,
            optimizer_s,
            sync_s,
            stall_s,
            loss: if divisor == 0 {
                0.0
            } else {
                f64::from(loss) / f64::from(divisor)
            },
        };
        self.step_over(*prepared);
        Ok(record)
    }

    /// Forward, loss and backward of one batch: alone, or in push-pull together with the other ranks.
    fn gradients(
        &mut self,
        batch: &AssembledBatch,
        divisor: u32,
        epoch: u32,
        step: u32,
    ) -> Result<ComputedStep, TrainerError> {
        if let Some(first_layer) = &mut self.first_layer {
            let at = moment(epoch, step, Phase::Training);
            let done = first_layer.gradients(self.model.as_mut(), batch, divisor, at);
            return done.map_err(|source| self.push_pull_error(epoch, step, source));
        }
        let computing = Instant::now();
        let mut forward_s = 0.0;
        let outcome = self
            .model
            .gradients_observed(batch, divisor, &mut || forward_s = computing.elapsed().as_secs_f64())
            .map_err(|source| self.layer_error(epoch, step, source))?;
        Ok(ComputedStep {
            outcome,
            forward_s,
            backward_s: computing.elapsed().as_secs_f64() - forward_s,
            waited_s: 0.0,
        })
    }

    fn evaluate_step(
        &mut self,
        running: &mut RunningEpoch,
        step: u32,
        total: &mut Evaluation,
    ) -> Result<(), TrainerError> {
        let (prepared, _) = self.next_batch(running, step, Phase::Evaluation)?;
        let epoch = running.outcome.epoch;
        let found = match &mut self.first_layer {
            None => {
                let found = self.model.evaluate(&prepared.batch);
                found.map_err(|source| self.layer_error(epoch, step, source))?
            }
            Some(first_layer) => {
                let at = moment(epoch, step, Phase::Evaluation);
                let found = first_layer.evaluate(self.model.as_mut(), &prepared.batch, at);
                let (found, waited_s) = found.map_err(|source| self.push_pull_error(epoch, step, source))?;
                *running.outcome.sync_s.entry(Phase::Evaluation).or_default() += waited_s;
                found
            }
        };
        total.loss_sum += found.loss_sum;
        total.correct += found.correct;
        total.labelled += found.labelled;
        self.step_over(*prepared);
        Ok(())
    }

    /// Gives the batch's buffers back, and the prefetcher leave to assemble one more.
    fn step_over(&self, prepared: PreparedBatch) {
        self.buffers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recycle(prepared.batch.input);
        self.ahead.add_permits(1);
    }

    /// Adds up what all ranks evaluated, and takes the epoch's tally from the prefetcher.
    fn finish_epoch(
        &mut self,
        running: RunningEpoch,
        valid: Evaluation,
        test: Evaluation,
    ) -> Result<EpochOutcome, TrainerError> {
        let mut outcome = running.outcome;
        let epoch = outcome.epoch;
        let own = [valid.correct, valid.labelled, test.correct, test.labelled];
        let syncing = Instant::now();
        let own = bytemuck::cast_slice(&own).to_vec();
        let at = moment(epoch, 0, Phase::Evaluation);
        let all = self.agree(epoch, self.collective.all_gather(ParcelKind::Evaluation, at, own))?;
        *outcome.sync_s.entry(Phase::Evaluation).or_default() += syncing.elapsed().as_secs_f64();
        let mut sums = [0u64; 4];
        for counts in all {
            let counts: Vec<u64> = bytemuck::pod_collect_to_vec(&counts);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [valid_correct, valid_labelled, test_correct, test_labelled] = sums;
        outcome.valid = (valid_labelled > 0).then_some((valid_correct, valid_labelled));
        outcome.test = (test_labelled > 0).then_some((test_correct, test_labelled));
        match self.receive(epoch)? {
            Prefetched::EpochEnd(tally) => outcome.tally = *tally,
            _ => {
                return Err(TrainerError::OutOfOrder {
                    rank: self.rank,
                    what: "a batch after the last",
                });
            }
        }
        if let Some(first_layer) = &mut self.first_layer {
            for (phase, traffic) in std::mem::take(&mut first_layer.traffic) {
                *outcome.tally.traffic.entry(phase).or_default() += traffic;
            }
        }
        Ok(outcome)
    }

    fn next_batch(
        &mut self,
        running: &mut RunningEpoch,
        step: u32,
        phase: Phase,
    ) -> Result<(Box<PreparedBatch>, f64), TrainerError> {
        let waiting = Instant::now();
        let received = self.receive(running.outcome.epoch)?;
        let stall_s = waiting.elapsed().as_secs_f64();
        *running.outcome.stall_s.entry(phase).or_default() += stall_s;
        match received {
            Prefetched::Batch(prepared) if prepared.step == step => Ok((prepared, stall_s)),
            _ => Err(TrainerError::OutOfOrder {
                rank: self.rank,
                what: "a batch",
            }),
        }
    }

    fn receive(&mut self, epoch: u32) -> Result<Prefetched, TrainerError> {
        let (rank, within) = (self.rank, self.patience);
        let _waits = self.clocks.as_ref().map(GpuClocks::rank_waits);
        let mut cancelled = self.cancelled.clone();
        let batches = &mut self.batches;
        self.runtime.block_on(async {
            tokio::select! {
                received = tokio::time::timeout(within, batches.recv()) => received
                    .map_err(|_| TrainerError::NoBatch { rank, within })?
                    .ok_or(TrainerError::LoaderEnded { rank, epoch }),
                _ = cancelled.changed() => Err(TrainerError::Cancelled),
            }
        })
    }

    /// Waits for what all ranks do together, unless the rank is cancelled.
    fn agree<T>(
        &self,
        epoch: u32,
        together: impl Future<Output = Result<T, CollectiveError>>,
    ) -> Result<T, TrainerError> {
        let mut cancelled = self.cancelled.clone();
        self.runtime.block_on(async {
            tokio::select! {
                agreed = together => agreed.map_err(|source| TrainerError::Collective { rank: self.rank, epoch, source }),
                _ = cancelled.changed() => Err(TrainerError::Cancelled),
            }
        })
    }

    fn push_pull_error(&self, epoch: u32, step: u32, source: PushPullError) -> TrainerError {
        let rank = self.rank;
        match source {
            PushPullError::Cancelled => TrainerError::Cancelled,
            PushPullError::Layer(source) => self.layer_error(epoch, step, source),
            source => TrainerError::PushPull { rank, epoch, source },
        }
    }

    fn layer_error(&self, epoch: u32, step: u32, source: LayerError) -> TrainerError {
        TrainerError::Layer {
            rank: self.rank,
            epoch,
            step,
            source,
        }
    }
}

fn moment(epoch: u32, step: u32, phase: Phase) -> Moment {
    Moment {
        epoch,
        step,
        period: Period { epoch, phase },
    }
}

struct RunningEpoch {
    outcome: EpochOutcome,
}

impl RunningEpoch {
    fn new(epoch: u32, trace: &EpochTrace) -> Self {
        let outcome = EpochOutcome {
            epoch,
            presample_cpu_s: trace.cpu_s,
            trace_bytes: trace.bytes,
            ..EpochOutcome::default()
        };
        Self { outcome }
    }
}
