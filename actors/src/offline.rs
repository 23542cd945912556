//! Presampling without a cluster: the batches of every rank, from a folder that holds all parts, in one process.
//!
//! What a run will need is a function of its configuration and of the graph, so that it can be looked at before the run.
//! [`OfflineParts::run`] samples exactly the batches that the [presampler](crate::presampler) of a rank samples in a
//! run, with owners that answer from memory-mapped parts. It keeps the remote rows of every batch, 4 bytes each; the batches
//! themselves go by one group at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use greengnn_model::batch::MiniBatch;
use greengnn_model::book::{NodeId, PartitionBook, Rank};
use greengnn_model::policy::bound::RunUses;
use greengnn_model::policy::scores::{UnknownNeighbor, corrected, count_batch, degree_scores, out_degrees};
use greengnn_model::policy::vip::VipError;
use greengnn_model::policy::{Budget, MemoryTrace, PlanError, Policy, RemoteTrace, ScoreKind, vip};
use greengnn_model::rng::Purpose;
use greengnn_model::rows::RowBook;
use greengnn_model::sampling::{
    EpochSpec, InMemoryOwners, PresampleError, QueryError, SeedRows, StepCounts, Topology, presample,
};
use greengnn_model::store::{PartStore, PartsManifest, StoreError};
use greengnn_model::trace::{TraceError, TraceHeader, TraceWriter};

use crate::config::{Resample, TrainConfig};
use crate::report::summary::RowBound;
use crate::wiring::{WiringError, parse_hash, step_counts};

/// Why a run cannot be looked at before it is made.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("epoch {epoch} of rank {rank} could not be sampled")]
    Sample {
        rank: Rank,
        epoch: u32,
        source: Box<PresampleError<QueryError, TraceError>>,
    },
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Hash(#[from] WiringError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Neighbor(#[from] UnknownNeighbor),
    #[error(transparent)]
    Vip(#[from] VipError),
}

/// All parts of a graph, opened.
pub struct OfflineParts {
    manifest: PartsManifest,
    /// Who owns which nodes.
    book: Arc<PartitionBook>,
    rows: RowBook,
    parts: Vec<PartStore>,
}

/// What sampling some steps took and left.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Questions of the rank to owners for sampled neighbours.
    pub requests: u64,
    /// Size of the trace file, where one was written.
    pub trace_bytes: u64,
    /// Nodes of the batch that has the most.
    pub largest_batch: u32,
    pub wall_s: f64,
}

/// The remote rows of every step of a run of one rank.
pub struct OfflineRun {
    pub rank: Rank,
    /// Training, validation, and in the last epoch test.
    pub epochs: Vec<Arc<dyn RemoteTrace>>,
    /// The training steps of each epoch.
    pub training: Vec<Sampling>,
    /// Validation and test, which are sampled once.
    pub evaluation: Sampling,
}

impl OfflineRun {
    /// When each row is used, for the bounds of the run.
    ///
    /// # Errors
    /// See [`RunUses::new`].
    pub fn uses(&self, book: &PartitionBook) -> Result<RunUses, PlanError> {
        RunUses::new(self.epochs.iter().map(|epoch| &**epoch), 0, book, self.rank)
    }
}

impl OfflineParts {
    /// Opens every part of the folder.
    ///
    /// # Errors
    /// A part is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, OfflineError> {
        let manifest = PartsManifest::open(folder)?;
        let parts = (0..manifest.book.parts())
            .map(|part| PartStore::open(folder, part))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            book: Arc::new(manifest.book.clone()),
            rows: RowBook::open(folder, &manifest)?,
            manifest,
            parts,
        })
    }

    pub fn manifest(&self) -> &PartsManifest {
        &self.manifest
    }

    /// The home of every feature row.
    pub fn row_map(&self) -> &RowBook {
        &self.rows
    }

    /// Who owns which feature rows, which is what policies are given.
    pub fn row_book(&self) -> &Arc<PartitionBook> {
        self.rows.book()
    }

    pub fn ranks(&self) -> std::ops::Range<Rank> {
        0..self.book.parts()
    }

    /// Samples all epochs of a run of `rank`. Trace files are written into `traces` one after the other, measured and
    /// removed, if a folder is given.
    ///
    /// # Errors
    /// A configuration that does not fit the graph, a damaged part, or a trace that cannot be written.
    pub fn run(&self, config: &TrainConfig, rank: Rank, traces: Option<&Path>) -> Result<OfflineRun, OfflineError> {
        let steps = step_counts(&self.manifest, config.batch_size);
        let training_only = StepCounts {
            train: steps.train,
            ..StepCounts::default()
        };
        let spec = |epoch, steps| config.epoch_spec(rank, epoch, Purpose::Train, steps);
        let (evaluated, evaluation) = self.rows(&spec(0, StepCounts { train: 0, ..steps }), traces)?;
        let mut run = OfflineRun {
            rank,
            epochs: Vec::new(),
            training: Vec::new(),
            evaluation,
        };
        let mut replayed = None;
        for epoch in 0..config.epochs {
            let (trained, sampling) = match replayed.take() {
                Some(trained) => (trained, Sampling::default()),
                None => self.rows(&spec(epoch, training_only), traces)?,
            };
            let is_last = epoch + 1 == config.epochs;
            let evaluated_steps = steps.valid + if is_last { steps.test } else { 0 };
            run.epochs
                .push(Arc::new(trained.followed_by(&evaluated, evaluated_steps)));
            run.training.push(sampling);
            if config.resample == Resample::Never {
                replayed = Some(trained);
            }
        }
        Ok(run)
    }

    /// The fewest rows that a run can move under each of these policies and budgets, which change nothing of what it needs.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn bounds(
        &self,
        config: &TrainConfig,
        caches: &[(Arc<dyn Policy>, Budget)],
    ) -> Result<Vec<RowBound>, OfflineError> {
        let row_bytes = config.row_type.row_bytes(self.manifest.features);
        let mut bounds = vec![RowBound::default(); caches.len()];
        for rank in self.ranks() {
            let uses = self.run(config, rank, None)?.uses(self.rows.book())?;
            for ((policy, budget), bound) in caches.iter().zip(&mut bounds) {
                let asked = budget.rows(row_bytes, self.rows.book().remote_nodes(rank));
                bound.needed_rows += uses.needed_rows();
                bound.compulsory_rows += uses.compulsory_rows();
                bound.fewest_rows += uses.fewest_rows(policy.budget_rows(self.rows.book(), rank, asked));
            }
        }
        Ok(bounds)
    }

    /// The scores by which a static policy ranks rows, as a run computes them, and what sampling took for them.
    ///
    /// # Errors
    /// A damaged part.
    pub fn scores(
        &self,
        kind: ScoreKind,
        config: &TrainConfig,
        rank: Rank,
    ) -> Result<(Vec<f64>, Sampling), OfflineError> {
        let (of_nodes, sampling) = match kind {
            ScoreKind::Degree => {
                let degrees = out_degrees(self.topologies(), self.book.nodes())?;
                (degree_scores(&degrees), Sampling::default())
            }
            ScoreKind::Presample { epochs } => self.counts(config, rank, epochs)?,
            ScoreKind::Vip => (self.estimate(config, rank)?, Sampling::default()),
            ScoreKind::CorrectedVip { weight, epochs } => {
                let (counts, sampling) = self.counts(config, rank, epochs)?;
                let seeds = self.parts[usize::from(rank)].split(Purpose::Train).len() as u32;
                let batches = seeds.div_ceil(config.batch_size.max(1));
                let estimate = self.estimate(config, rank)?;
                (corrected(&estimate, batches, &counts, epochs, weight), sampling)
            }
        };
        Ok((self.rows.by_row(of_nodes), sampling))
    }

    /// In how many batches of presampled epochs each node is needed.
    fn counts(&self, config: &TrainConfig, rank: Rank, epochs: u32) -> Result<(Vec<f64>, Sampling), OfflineError> {
        let steps = StepCounts {
            train: step_counts(&self.manifest, config.batch_size).train,
            ..StepCounts::default()
        };
        let mut whole = Sampling::default();
        let mut counts = vec![0f64; self.book.nodes() as usize];
        for epoch in 0..epochs {
            let sampling = self.sample(&config.epoch_spec(rank, epoch, Purpose::Presample, steps), |batch| {
                count_batch(&batch.nodes, &mut counts);
                Ok(())
            })?;
            whole.requests += sampling.requests;
            whole.wall_s += sampling.wall_s;
        }
        Ok((counts, whole))
    }

    /// With which probability a batch needs each node.
    fn estimate(&self, config: &TrainConfig, rank: Rank) -> Result<Vec<f64>, OfflineError> {
        let first = self.book.range(rank).start;
        let rows = self.parts[usize::from(rank)].split(Purpose::Train);
        let seeds: Vec<NodeId> = rows.iter().map(|row| first + row).collect();
        Ok(vip(&self.topologies(), &seeds, config.batch_size, &config.fanouts)?)
    }

    /// Samples the steps of `spec` and shows each batch to `visit`, in order.
    ///
    /// # Errors
    /// A specification that does not fit the graph, a damaged part, or what `visit` returns.
    pub fn sample(
        &self,
        spec: &EpochSpec,
        mut visit: impl FnMut(&MiniBatch) -> Result<(), TraceError>,
    ) -> Result<Sampling, OfflineError> {
        let part = &self.parts[usize::from(spec.rank)];
        let rows = |purpose, steps| if steps == 0 { &[] } else { part.split(purpose) };
        let seeds = SeedRows {
            train: rows(Purpose::Train, spec.steps.train),
            valid: rows(Purpose::Valid, spec.steps.valid),
            test: rows(Purpose::Test, spec.steps.test),
        };
        let mut owners = InMemoryOwners::new(self.topologies());
        let mut sampling = Sampling::default();
        let started = Instant::now();
        presample(spec, seeds, &self.book, part.topology(), &mut owners, |mut batch| {
            self.rows.locate(spec.rank, &mut batch);
            sampling.largest_batch = sampling.largest_batch.max(batch.nodes.len() as u32);
            visit(&batch)
        })
        .map_err(|source| OfflineError::Sample {
            rank: spec.rank,
            epoch: spec.epoch,
            source: Box::new(source),
        })?;
        sampling.requests = owners.requests().iter().sum();
        sampling.wall_s = started.elapsed().as_secs_f64();
        Ok(sampling)
    }

    fn rows(&self, spec: &EpochSpec, traces: Option<&Path>) -> Result<(MemoryTrace, Sampling), OfflineError> {
        let mut file = traces.map(|folder| self.trace_file(spec, folder)).transpose()?;
        let mut rows = Vec::new();
        let mut sampling = self.sample(spec, |batch| {
            rows.push((batch.purpose, batch.remote.clone()));
            file.as_mut().map_or(Ok(()), |(writer, _)| writer.append(batch))
        })?;
        if let Some((writer, path)) = file {
            writer.finish()?;
            sampling.trace_bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            // The folder goes at the end; what is left in it until then is only space.
            let _ = std::fs::remove_file(&path);
        }
        Ok((MemoryTrace::new(rows), sampling))
    }

    fn trace_file(&self, spec: &EpochSpec, folder: &Path) -> Result<(TraceWriter, PathBuf), OfflineError> {
        let path = folder.join(format!("epoch-{}-rank-{}.trace", spec.epoch, spec.rank));
        let header = TraceHeader {
            spec: spec.clone(),
            book: (*self.book).clone(),
            rows: self.manifest.row_bounds.clone(),
            graph_hash: parse_hash(&self.manifest.graph_hash)?,
        };
        Ok((TraceWriter::create(&path, header)?, path))
    }

    fn topologies(&self) -> Vec<Topology<'_>> {
        self.parts.iter().map(PartStore::topology).collect()
    }
}
