//! The presampler of a rank: samples every epoch ahead of training, into trace files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use greengnn_model::batch::{MiniBatch, RemoteRows};
use greengnn_model::book::{PartId, PartitionBook, Rank};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::policy::scores::count_batch;
use greengnn_model::policy::{RemoteTrace, TraceReadError};
use greengnn_model::rng::{BatchKey, Purpose};
use greengnn_model::rows::RowBook;
use greengnn_model::sampling::{
    EpochSpec, NeighborQuery, NeighborReply, NeighborSource, PresampleError, SeedRows, StepCounts, presample,
};
use greengnn_model::store::PartStore;
use greengnn_model::trace::{TraceError, TraceHeader, TraceReader, TraceWriter};
use tokio::sync::{Semaphore, mpsc};

use crate::causes::in_one_line;
use crate::config::{Resample, TrainConfig};
use crate::kept_traces;
use crate::transport::{Caller, Transport, TransportError};

/// Epochs whose trace exists at the same time: the one that trains and the two after it.
pub const EPOCHS_AHEAD: usize = 3;

/// Why an epoch could not be sampled.
#[derive(Debug, thiserror::Error)]
pub enum PresamplerError {
    #[error("epoch {epoch} of rank {rank} could not be sampled: {}", in_one_line(source))]
    Sample {
        rank: Rank,
        epoch: u32,
        source: Box<PresampleError<TransportError, SinkError>>,
    },
    #[error("the trace of rank {rank}, epoch {epoch}: {source}")]
    Trace { rank: Rank, epoch: u32, source: TraceError },
    #[error("sampling was cancelled")]
    Cancelled,
    #[error("the folder {path} for traces cannot be made: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
}

/// Why a batch could not be put into its trace.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("sampling was cancelled")]
    Cancelled,
}

/// The batches of one epoch of one rank: its own training steps, then the validation and test steps that are the same in
/// every epoch and stored once.
pub struct EpochTrace {
    pub epoch: u32,
    pub steps: StepCounts,
    train: Arc<TraceReader>,
    evaluation: Arc<TraceReader>,
    spec: EpochSpec,
    /// Labelled seeds per training step of this rank.
    pub labelled: Vec<u32>,
    /// CPU seconds that sampling took, and bytes of the trace file.
    pub cpu_s: f64,
    pub bytes: u64,
    /// Wall seconds that sampling took, per training step.
    pub step_s: f64,
    _file: Option<TraceFile>,
}

impl EpochTrace {
    /// The batch of a step, with the step's number in this epoch.
    pub fn batch(&self, step: u32) -> Result<MiniBatch, TraceError> {
        let (reader, local) = self.place(step);
        let mut batch = reader.batch(local)?;
        batch.step = step;
        Ok(batch)
    }

    /// The key of everything that is drawn for a step. Replayed epochs have keys of their own for dropout.
    pub fn key(&self, step: u32) -> BatchKey {
        self.spec.key_of(step)
    }

    fn place(&self, step: u32) -> (&TraceReader, u32) {
        if step < self.steps.train {
            (&self.train, step)
        } else {
            (&self.evaluation, step - self.steps.train)
        }
    }
}

impl RemoteTrace for EpochTrace {
    fn steps(&self) -> u32 {
        self.steps.total()
    }

    fn purpose(&self, step: u32) -> Purpose {
        self.spec.purpose_of(step)
    }

    fn remote_rows(&self, step: u32) -> Result<Arc<RemoteRows>, TraceReadError> {
        let (reader, local) = self.place(step);
        RemoteTrace::remote_rows(reader, local).map_err(|error| TraceReadError { step, ..error })
    }
}

/// A trace file that is deleted when the last epoch that uses it is done.
struct TraceFile {
    path: PathBuf,
    keep: bool,
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = std::fs::remove_file(&self.path)
            // The machine that ends removes all files of its run.
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("the trace file {} could not be deleted: {error}", self.path.display());
        }
    }
}

/// Everything that a rank's presampler needs.
#[derive(Clone)]
pub struct Presampler {
    pub rank: Rank,
    pub config: Arc<TrainConfig>,
    /// Who owns which nodes.
    pub book: Arc<PartitionBook>,
    /// Who owns which feature rows.
    pub rows: Arc<RowBook>,
    /// Steps of each purpose, the maximum over ranks.
    pub steps: StepCounts,
    pub part: Arc<PartStore>,
    pub graph_hash: [u8; 32],
    pub transport: Arc<dyn Transport>,
    pub runtime: tokio::runtime::Handle,
    /// Where trace files go, `epoch-E/rank-R.trace`.
    pub folder: PathBuf,
    /// One permit per epoch that may be sampled; given back when an epoch is done.
    pub permits: Arc<Semaphore>,
    pub cancelled: Arc<AtomicBool>,
}

impl Presampler {
    /// Samples all epochs in order and sends each. Ends early when nobody listens any more. `first_is_ready` is called
    /// before the first is sent.
    pub fn run(
        self,
        epochs: mpsc::Sender<Arc<EpochTrace>>,
        first_is_ready: impl FnOnce(),
    ) -> Result<(), PresamplerError> {
        let mut first_is_ready = Some(first_is_ready);
        let (evaluation, evaluation_file) = self.sample_evaluation()?;
        let evaluation = Arc::new(evaluation);
        let mut replayed: Option<Arc<EpochTrace>> = None;
        for epoch in 0..self.config.epochs {
            let Some(()) = self.wait_for_permit() else { break };
            let is_last = epoch + 1 == self.config.epochs;
            let steps = StepCounts {
                test: if is_last { self.steps.test } else { 0 },
                ..self.steps
            };
            let spec = self.spec(epoch, steps);
            let trace = match (&replayed, self.config.resample) {
                (Some(first), Resample::Never) => EpochTrace {
                    epoch,
                    steps,
                    train: Arc::clone(&first.train),
                    evaluation: Arc::clone(&evaluation),
                    spec,
                    labelled: first.labelled.clone(),
                    cpu_s: 0.0,
                    bytes: 0,
                    step_s: 0.0,
                    _file: None,
                },
                _ => self.sample_training(epoch, spec, &evaluation)?,
            };
            let trace = Arc::new(trace);
            if self.config.resample == Resample::Never && replayed.is_none() {
                replayed = Some(Arc::clone(&trace));
            }
            if let Some(tell) = first_is_ready.take() {
                tell();
            }
            if epochs.blocking_send(trace).is_err() {
                break;
            }
        }
        drop(evaluation_file);
        Ok(())
    }

    /// Samples an epoch that is only counted, apart from those that train: adds to `counts`, one per node of the graph,
    /// the batches that have the node.
    pub fn count_nodes(&self, epoch: u32, counts: &mut [f64]) -> Result<(), PresamplerError> {
        let steps = StepCounts {
            valid: 0,
            test: 0,
            ..self.steps
        };
        let spec = EpochSpec {
            training: Purpose::Presample,
            ..self.spec(epoch, steps)
        };
        let seeds = SeedRows {
            train: self.part.split(Purpose::Train),
            ..SeedRows::default()
        };
        let mut owners = self.owners(Period {
            epoch: 0,
            phase: Phase::Setup,
        });
        let sampled = presample(&spec, seeds, &self.book, self.part.topology(), &mut owners, |batch| {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(SinkError::Cancelled);
            }
            count_batch(&batch.nodes, counts);
            Ok(())
        });
        sampled.map(|_| ()).map_err(|source| self.sample_error(epoch, source))
    }

    fn owners(&self, period: Period) -> RemoteOwners {
        RemoteOwners {
            transport: Arc::clone(&self.transport),
            runtime: self.runtime.clone(),
            caller: Caller {
                rank: self.rank,
                period,
            },
        }
    }

    fn sample_error(&self, epoch: u32, source: PresampleError<TransportError, SinkError>) -> PresamplerError {
        match source {
            PresampleError::Sink {
                source: SinkError::Cancelled,
                ..
            } => PresamplerError::Cancelled,
            source => PresamplerError::Sample {
                rank: self.rank,
                epoch,
                source: Box::new(source),
            },
        }
    }

    fn wait_for_permit(&self) -> Option<()> {
        let permit = self.runtime.block_on(self.permits.acquire()).ok()?;
        permit.forget();
        (!self.cancelled.load(Ordering::Relaxed)).then_some(())
    }

    fn spec(&self, epoch: u32, steps: StepCounts) -> EpochSpec {
        self.config.epoch_spec(self.rank, epoch, Purpose::Train, steps)
    }

    fn sample_evaluation(&self) -> Result<(TraceReader, TraceFile), PresamplerError> {
        let spec = self.spec(0, StepCounts { train: 0, ..self.steps });
        let period = Period {
            epoch: 0,
            phase: Phase::Evaluation,
        };
        let path = self.folder.join(kept_traces::EVALUATION).join(self.file_name());
        let file = self.trace_file(&path)?;
        let reader = self.sample(&spec, period, &path, |_| ())?;
        Ok((reader, file))
    }

    fn sample_training(
        &self,
        epoch: u32,
        spec: EpochSpec,
        evaluation: &Arc<TraceReader>,
    ) -> Result<EpochTrace, PresamplerError> {
        // The first epoch is sampled before training starts: set-up.
        let phase = if epoch == 0 { Phase::Setup } else { Phase::Training };
        let steps = spec.steps;
        let own = EpochSpec {
            steps: StepCounts {
                train: steps.train,
                valid: 0,
                test: 0,
            },
            ..spec.clone()
        };
        let path = self.folder.join(kept_traces::epoch(epoch)).join(self.file_name());
        let file = self.trace_file(&path)?;
        let labels = self.part.labels();
        let first = self.book.range(self.rank).start;
        let mut labelled = Vec::with_capacity(steps.train as usize);
        let (started, cpu_before) = (Instant::now(), thread_cpu_s());
        let train = self.sample(&own, Period { epoch, phase }, &path, |batch| {
            let count = batch
                .seeds()
                .iter()
                .filter(|seed| labels[(**seed - first) as usize] >= 0)
                .count();
            labelled.push(count as u32);
        })?;
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Ok(EpochTrace {
            epoch,
            steps,
            train: Arc::new(train),
            evaluation: Arc::clone(evaluation),
            spec,
            labelled,
            cpu_s: thread_cpu_s() - cpu_before,
            bytes,
            step_s: started.elapsed().as_secs_f64() / f64::from(steps.train.max(1)),
            _file: Some(file),
        })
    }

    fn sample(
        &self,
        spec: &EpochSpec,
        period: Period,
        path: &Path,
        mut visit: impl FnMut(&MiniBatch),
    ) -> Result<TraceReader, PresamplerError> {
        let (rank, epoch) = (self.rank, spec.epoch);
        let trace_error = |source| PresamplerError::Trace { rank, epoch, source };
        let header = TraceHeader {
            spec: spec.clone(),
            book: (*self.book).clone(),
            rows: self.part.manifest().row_bounds.clone(),
            graph_hash: self.graph_hash,
        };
        let mut writer = TraceWriter::create(path, header).map_err(trace_error)?;
        let seeds = SeedRows {
            train: self.part.split(Purpose::Train),
            valid: self.part.split(Purpose::Valid),
            test: self.part.split(Purpose::Test),
        };
        let seeds = SeedRows {
            train: if spec.steps.train == 0 { &[] } else { seeds.train },
            valid: if spec.steps.valid == 0 { &[] } else { seeds.valid },
            test: if spec.steps.test == 0 { &[] } else { seeds.test },
        };
        let mut owners = self.owners(period);
        presample(
            spec,
            seeds,
            &self.book,
            self.part.topology(),
            &mut owners,
            |mut batch| {
                if self.cancelled.load(Ordering::Relaxed) {
                    return Err(SinkError::Cancelled);
                }
                self.rows.locate(rank, &mut batch);
                visit(&batch);
                Ok(writer.append(&batch)?)
            },
        )
        .map_err(|source| self.sample_error(epoch, source))?;
        writer.finish().map_err(trace_error)?;
        TraceReader::open(path).map_err(trace_error)
    }

    fn file_name(&self) -> String {
        format!("rank-{}.trace", self.rank)
    }

    fn trace_file(&self, path: &Path) -> Result<TraceFile, PresamplerError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| PresamplerError::Folder {
                path: folder.to_owned(),
                source,
            })?;
        }
        Ok(TraceFile {
            path: path.to_owned(),
            keep: self.config.keep_trace.is_some(),
        })
    }
}

/// CPU seconds of the calling thread. Work that rayon does for it on other threads is not in it.
pub fn thread_cpu_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if result == 0 {
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    } else {
        0.0
    }
}

/// Owners behind the transport. All owners of a group are asked at once.
struct RemoteOwners {
    transport: Arc<dyn Transport>,
    runtime: tokio::runtime::Handle,
    caller: Caller,
}

impl NeighborSource for RemoteOwners {
    type Error = TransportError;

    fn sample(
        &mut self,
        requests: Vec<(PartId, Vec<NeighborQuery>)>,
    ) -> Result<Vec<Vec<NeighborReply>>, TransportError> {
        let caller = self.caller;
        self.runtime.block_on(async {
            let asked: Vec<_> = requests
                .into_iter()
                .map(|(owner, queries)| {
                    let transport = Arc::clone(&self.transport);
                    tokio::spawn(async move { transport.sample(caller, owner, queries).await })
                })
                .collect();
            let mut replies = Vec::with_capacity(asked.len());
            for answer in asked {
                replies.push(answer.await.map_err(|error| TransportError::Broken {
                    peer: "this process".to_owned(),
                    what: "a request for sampled neighbours".to_owned(),
                    reason: error.to_string(),
                })??);
            }
            Ok(replies)
        })
    }
}
