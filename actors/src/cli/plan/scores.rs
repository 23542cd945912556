//! Scores of remote rows for static policies, from all parts of a graph at once: what the ranks of a run compute
//! together.

use std::path::Path;

use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::policy::scores::{degree_scores, out_degrees, presample_counts};
use greengnn_model::policy::{MemoryTrace, RemoteTrace, ScoreKind, vip};
use greengnn_model::rng::Purpose;
use greengnn_model::sampling::{EpochSpec, InMemoryOwners, SeedRows, StepCounts, Topology, presample};
use greengnn_model::store::PartStore;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The parts of a graph.
pub struct Parts {
    book: PartitionBook,
    parts: Vec<PartStore>,
}

impl Parts {
    pub fn open(folder: &Path, book: &PartitionBook) -> Result<Self, Failure> {
        let parts = (0..book.parts()).map(|part| PartStore::open(folder, part));
        Ok(Self {
            book: book.clone(),
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    fn topologies(&self) -> Vec<Topology<'_>> {
        self.parts.iter().map(PartStore::topology).collect()
    }

    fn part(&self, rank: Rank) -> Result<&PartStore, Failure> {
        let part = self.parts.get(usize::from(rank));
        part.ok_or_else(|| format!("the graph has no part {rank}").into())
    }

    /// One score per node for `rank`, which trains as `spec` says.
    pub fn scores(&self, kind: ScoreKind, rank: Rank, spec: &EpochSpec) -> Result<Vec<f64>, Failure> {
        match kind {
            ScoreKind::Degree => Ok(degree_scores(&out_degrees(self.topologies(), self.book.nodes())?)),
            ScoreKind::Vip => {
                let first = self.book.range(rank).start;
                let seeds = self.part(rank)?.split(Purpose::Train);
                let seeds: Vec<u32> = seeds.iter().map(|row| first + row).collect();
                Ok(vip(&self.topologies(), &seeds, spec.batch_size, &spec.fanouts)?)
            }
            ScoreKind::Presample { epochs } => {
                let counted = (0..epochs).map(|epoch| self.presampled(rank, spec, epoch));
                let traces = counted.collect::<Result<Vec<_>, _>>()?;
                let traces = traces.iter().map(|trace| trace as &dyn RemoteTrace);
                Ok(presample_counts(traces, &self.book, rank)?)
            }
        }
    }

    /// What an epoch needs that is drawn to be counted only.
    fn presampled(&self, rank: Rank, spec: &EpochSpec, epoch: u32) -> Result<MemoryTrace, Failure> {
        let spec = EpochSpec {
            epoch,
            rank,
            training: Purpose::Presample,
            steps: StepCounts {
                valid: 0,
                test: 0,
                ..spec.steps
            },
            ..spec.clone()
        };
        let part = self.part(rank)?;
        let seeds = SeedRows {
            train: part.split(Purpose::Train),
            ..SeedRows::default()
        };
        let mut owners = InMemoryOwners::new(self.topologies());
        let mut needed = Vec::new();
        presample(&spec, seeds, &self.book, part.topology(), &mut owners, |batch| {
            needed.push((batch.purpose, batch.remote));
            Ok::<_, std::convert::Infallible>(())
        })?;
        Ok(MemoryTrace::new(needed))
    }
}
