//! Traces of real and synthetic graphs, cut into four parts by METIS and presampled in memory.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use greengnn_energy::choice::{RankTraces, Tuned, Workload};
use greengnn_model::book::{NodeId, PartId, PartitionBook};
use greengnn_model::import::{ImportOptions, import_folder};
use greengnn_model::partition::{Adjacency, NodeLoads, Relabelling, metis_assignment};
use greengnn_model::policy::{MemoryTrace, RemoteTrace};
use greengnn_model::rng::Purpose;
use greengnn_model::sampling::{
    EpochSpec, InMemoryOwners, SeedOrder, SeedRows, StepCounts, Topology, presample, steps,
};
use greengnn_model::store::GraphStore;
use greengnn_model::synth::SynthSpec;

pub const PARTS: PartId = 4;
/// Epochs of every trace: the second starts with what a policy has kept.
const EPOCHS: u32 = 2;
const ROW_BYTES: usize = 400;

/// A graph under the ids that its nodes have once it is cut.
pub struct Graph {
    book: PartitionBook,
    offsets: Vec<u64>,
    neighbors: Vec<NodeId>,
    /// Per part its train seeds, as local rows, ascending.
    seeds: Vec<Vec<u32>>,
}

impl Graph {
    fn new(graph: Topology<'_>, train: &[NodeId]) -> Self {
        let adjacency = Adjacency::symmetric(graph).unwrap();
        let assignment = metis_assignment(&adjacency, &NodeLoads::new(graph, train), PARTS, 1).unwrap();
        let cut = Relabelling::new(&assignment, PARTS).unwrap();
        let (mut offsets, mut neighbors) = (vec![0], Vec::with_capacity(graph.neighbors.len()));
        for node in &cut.original {
            let start = neighbors.len();
            neighbors.extend(graph.row(*node).iter().map(|neighbor| cut.global[*neighbor as usize]));
            neighbors[start..].sort_unstable();
            offsets.push(neighbors.len() as u64);
        }
        let mut seeds = vec![Vec::new(); usize::from(PARTS)];
        for node in train {
            let home = cut.book.row_home(cut.global[*node as usize]);
            seeds[usize::from(home.owner)].push(home.row);
        }
        seeds.iter_mut().for_each(|seeds| seeds.sort_unstable());
        Self {
            book: cut.book,
            offsets,
            neighbors,
            seeds,
        }
    }

    /// The package graph of the examples: 63,000 packages and what they depend on.
    pub fn debian() -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/debian-packages");
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("graph");
        // Features are not looked at.
        let options = ImportOptions {
            svd: 1,
            ..ImportOptions::default()
        };
        import_folder(&data, &options, &out).unwrap();
        let store = GraphStore::open(&out).unwrap();
        Self::new(store.topology(), store.split(Purpose::Train))
    }

    /// A graph of communities with a few nodes of very many neighbours.
    pub fn synthetic(seed: u64) -> Self {
        let graph = SynthSpec::preset("small", seed).unwrap().graph().unwrap();
        Self::new(graph.topology(), &graph.train)
    }

    fn topology(&self, part: PartId) -> Topology<'_> {
        let range = self.book.range(part);
        Topology {
            first: range.start,
            offsets: &self.offsets[range.start as usize..=range.end as usize],
            neighbors: &self.neighbors,
        }
    }

    /// All training steps of all ranks, sampled with `seed`.
    pub fn traces(&self, seed: u64, batch_size: u32, fanouts: &[u32]) -> Workload {
        let counts: Vec<u32> = self.seeds.iter().map(|seeds| seeds.len() as u32).collect();
        let topologies: Vec<Topology<'_>> = (0..PARTS).map(|part| self.topology(part)).collect();
        let trace = |rank: PartId, epoch| {
            let spec = EpochSpec {
                seed,
                epoch,
                rank,
                batch_size,
                fanouts: fanouts.to_vec(),
                training: Purpose::Train,
                order: SeedOrder::Random,
                steps: StepCounts {
                    train: steps(&counts, batch_size),
                    ..StepCounts::default()
                },
            };
            let seeds = SeedRows {
                train: &self.seeds[usize::from(rank)],
                ..SeedRows::default()
            };
            let mut owners = InMemoryOwners::new(topologies.clone());
            let mut rows = Vec::new();
            let local = topologies[usize::from(rank)];
            presample(&spec, seeds, &self.book, local, &mut owners, |batch| {
                rows.push((batch.purpose, batch.remote));
                Ok::<_, Infallible>(())
            })
            .unwrap();
            Arc::new(MemoryTrace::new(rows)) as Arc<dyn RemoteTrace>
        };
        let ranks = (0..PARTS).map(|rank| RankTraces {
            rank,
            epochs: (0..EPOCHS).map(|epoch| trace(rank, epoch)).collect(),
            held: None,
            tuned: Tuned::default(),
        });
        Workload {
            ranks: ranks.collect(),
            book: Arc::new(self.book.clone()),
            row_bytes: ROW_BYTES,
            run_epochs: EPOCHS,
        }
    }
}
