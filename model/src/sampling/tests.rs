//! Whole epochs against a naive sampler that knows the whole graph, uses hash maps and sorts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use proptest::prelude::*;

use crate::batch::{Block, MiniBatch, OwnerRows, RemoteRows};
use crate::book::{NodeId, PartitionBook, Rank};
use crate::rng::{CounterRng, Purpose, mix_words};
use crate::sampling::presample::ExpandError;
use crate::sampling::*;

/// A graph of random rows, cut into parts.
pub(crate) struct TestGraph {
    pub book: PartitionBook,
    rows: Vec<Vec<NodeId>>,
    /// Per part its offsets and neighbours.
    parts: Vec<(Vec<u64>, Vec<NodeId>)>,
    /// Per part its training, validation and test rows.
    splits: Vec<[Vec<u32>; 3]>,
}

impl TestGraph {
    /// Parts of the given sizes; degrees up to `degree`, with self-loops, duplicates and isolated nodes.
    pub fn new(key: u64, sizes: &[u32], degree: u32) -> Self {
        let mut rng = CounterRng::new(mix_words(&[key]));
        let mut bounds = vec![0];
        for size in sizes {
            bounds.push(bounds[bounds.len() - 1] + size);
        }
        let book = PartitionBook::new(bounds).unwrap();
        let nodes = book.nodes();
        let rows: Vec<Vec<NodeId>> = (0..nodes)
            .map(|_| (0..rng.below(degree + 1)).map(|_| rng.below(nodes)).collect())
            .collect();
        let mut parts = Vec::new();
        let mut splits = Vec::new();
        for part in 0..book.parts() {
            let (mut offsets, mut neighbors) = (vec![0], Vec::new());
            let mut split: [Vec<u32>; 3] = Default::default();
            for (row, node) in (0..).zip(book.range(part)) {
                neighbors.extend(&rows[node as usize]);
                offsets.push(neighbors.len() as u64);
                if let Some(rows) = split.get_mut(rng.below(5) as usize) {
                    rows.push(row);
                }
            }
            parts.push((offsets, neighbors));
            splits.push(split);
        }
        Self {
            book,
            rows,
            parts,
            splits,
        }
    }

    pub fn topology(&self, part: Rank) -> Topology<'_> {
        let (offsets, neighbors) = &self.parts[usize::from(part)];
        Topology {
            first: self.book.range(part).start,
            offsets,
            neighbors,
        }
    }

    pub fn owners(&self) -> InMemoryOwners<'_> {
        InMemoryOwners::new((0..self.book.parts()).map(|part| self.topology(part)).collect())
    }

    pub fn seeds(&self, rank: Rank) -> SeedRows<'_> {
        let [train, valid, test] = &self.splits[usize::from(rank)];
        SeedRows { train, valid, test }
    }

    pub fn spec(&self, rank: Rank, batch_size: u32, fanouts: &[u32]) -> EpochSpec {
        let most = |split: usize| {
            let counts: Vec<u32> = self.splits.iter().map(|rows| rows[split].len() as u32).collect();
            steps(&counts, batch_size)
        };
        EpochSpec {
            seed: 7,
            epoch: 3,
            rank,
            batch_size,
            fanouts: fanouts.to_vec(),
            training: Purpose::Train,
            order: SeedOrder::Random,
            steps: StepCounts {
                train: most(0),
                valid: most(1),
                test: most(2),
            },
        }
    }

    pub fn sample(&self, spec: &EpochSpec) -> Vec<MiniBatch> {
        let mut batches = Vec::new();
        let (seeds, local) = (self.seeds(spec.rank), self.topology(spec.rank));
        presample(spec, seeds, &self.book, local, &mut self.owners(), |batch| {
            batches.push(batch);
            Ok::<(), Infallible>(())
        })
        .unwrap();
        batches
    }
}

/// The batch of `step` straight from the definition.
fn naive(graph: &TestGraph, schedule: &Schedule, step: u32) -> MiniBatch {
    let spec = schedule.spec();
    let first = graph.book.range(spec.rank).start;
    let mut nodes: Vec<NodeId> = schedule.seeds(step).iter().map(|row| first + row).collect();
    let mut blocks = Vec::new();
    for (hop, fanout) in (0..).zip(&spec.fanouts) {
        let key = spec.key_of(step).hop(hop);
        let picks: Vec<Vec<NodeId>> = nodes
            .iter()
            .map(|node| {
                let mut picks = Vec::new();
                pick_neighbors(key, *node, &graph.rows[*node as usize], *fanout, &mut picks);
                picks
            })
            .collect();
        let known: BTreeSet<NodeId> = nodes.iter().copied().collect();
        let new: BTreeSet<NodeId> = picks
            .iter()
            .flatten()
            .copied()
            .filter(|node| !known.contains(node))
            .collect();
        nodes.extend(new);
        let local: HashMap<NodeId, u32> = (0..).zip(&nodes).map(|(local, node)| (*node, local)).collect();
        let mut offsets = vec![0];
        let mut sources = Vec::new();
        for picks in picks {
            sources.extend(picks.iter().map(|node| local[node]));
            offsets.push(sources.len() as u32);
        }
        blocks.push(Block {
            offsets,
            sources,
            source_count: nodes.len() as u32,
        });
    }
    let mut remote = BTreeMap::<_, Vec<u32>>::new();
    for node in nodes.iter().collect::<BTreeSet<_>>() {
        let home = graph.book.row_home(*node);
        if home.owner != spec.rank {
            remote.entry(home.owner).or_default().push(home.row);
        }
    }
    let owners = remote
        .into_iter()
        .map(|(owner, rows)| OwnerRows { owner, rows })
        .collect();
    MiniBatch {
        step,
        purpose: spec.purpose_of(step),
        nodes,
        blocks,
        remote: RemoteRows { owners },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn batches_are_those_of_the_naive_sampler(
        key: u64,
        sizes in prop::collection::vec(0u32..90, 1..5),
        degree in 0u32..40,
        batch_size in 1u32..20,
        fanouts in prop::collection::vec(0u32..12, 1..4),
    ) {
        let graph = TestGraph::new(key, &sizes, degree);
        for rank in 0..graph.book.parts() {
            let mut spec = graph.spec(rank, batch_size, &fanouts);
            if key % 2 == 0 {
                spec.order = SeedOrder::Proximity { sequences: batch_size };
            }
            let schedule = Schedule::new(&spec, graph.seeds(rank), &graph.book, graph.topology(rank)).unwrap();
            let batches = graph.sample(&spec);
            prop_assert_eq!(batches.len() as u32, spec.steps.total());
            for (step, batch) in (0..).zip(&batches) {
                prop_assert_eq!(batch, &naive(&graph, &schedule, step));
            }
        }
    }

    #[test]
    fn requests_stay_below_their_bound(
        key: u64,
        sizes in prop::collection::vec(1u32..300, 2..5),
        batch_size in 1u32..4,
        fanouts in prop::collection::vec(0u32..4, 1..4),
    ) {
        let graph = TestGraph::new(key, &sizes, 6);
        let mut spec = graph.spec(0, batch_size, &fanouts);
        spec.steps.valid = 0;
        spec.steps.test = 0;
        let mut owners = graph.owners();
        let sink = |_| Ok::<(), Infallible>(());
        presample(&spec, graph.seeds(0), &graph.book, graph.topology(0), &mut owners, sink).unwrap();
        let groups = u64::from(spec.steps.train.div_ceil(GROUP_BATCHES));
        let bound = (fanouts.len() as u64 - 1) * groups;
        prop_assert_eq!(owners.requests()[0], 0);
        prop_assert!(owners.requests().iter().all(|requests| *requests <= bound));
    }
}

#[test]
fn a_rank_without_seeds_has_empty_blocks_in_every_step() {
    let mut graph = TestGraph::new(1, &[40, 40], 5);
    graph.splits[1] = Default::default();
    let spec = graph.spec(1, 3, &[2, 2]);
    let batches = graph.sample(&spec);
    assert_eq!(batches.len() as u32, spec.steps.total());
    assert!(spec.steps.train > 1);
    let empty = Block {
        offsets: vec![0],
        sources: Vec::new(),
        source_count: 0,
    };
    for batch in &batches {
        assert!(batch.nodes.is_empty() && batch.seeds().is_empty() && batch.remote.is_empty());
        assert_eq!(batch.blocks, [empty.clone(), empty.clone()]);
    }
}

#[test]
fn fanout_zero_reaches_nobody_and_asks_nobody() {
    let graph = TestGraph::new(2, &[60, 60], 9);
    let spec = graph.spec(0, 8, &[0, 0]);
    let mut owners = graph.owners();
    presample(
        &spec,
        graph.seeds(0),
        &graph.book,
        graph.topology(0),
        &mut owners,
        |batch| {
            assert_eq!(batch.nodes, batch.seeds());
            assert!(batch.blocks.iter().all(|block| block.edge_count() == 0));
            assert!(batch.remote.is_empty());
            Ok::<(), Infallible>(())
        },
    )
    .unwrap();
    assert_eq!(owners.requests(), [0, 0]);
}

#[test]
fn every_epoch_draws_other_neighbours_but_evaluates_on_the_same() {
    let graph = TestGraph::new(3, &[150, 150], 12);
    let spec = graph.spec(0, 10, &[3, 3]);
    let first = graph.sample(&spec);
    let second = graph.sample(&EpochSpec {
        epoch: 4,
        ..spec.clone()
    });
    let train = spec.steps.train as usize;
    let full = graph.seeds(0).train.len() / 10;
    assert!(full > 1 && (0..full).all(|step| first[step].blocks != second[step].blocks));
    assert_eq!(first[train..], second[train..]);
    let counted = graph.sample(&EpochSpec {
        training: Purpose::Presample,
        ..spec
    });
    assert_eq!(counted[0].purpose, Purpose::Presample);
    assert_ne!(counted[0].nodes, first[0].nodes);
}

/// A source that answers with something else than it was asked.
struct Liar<'a> {
    owners: InMemoryOwners<'a>,
    distort: fn(&mut Vec<Vec<NeighborReply>>),
}

impl NeighborSource for Liar<'_> {
    type Error = QueryError;

    fn sample(&mut self, requests: Vec<(u16, Vec<NeighborQuery>)>) -> Result<Vec<Vec<NeighborReply>>, QueryError> {
        let mut answers = self.owners.sample(requests)?;
        (self.distort)(&mut answers);
        Ok(answers)
    }
}

#[test]
fn wrong_answers_are_refused() {
    let graph = TestGraph::new(4, &[80, 80], 9);
    let spec = graph.spec(0, 10, &[3, 3]);
    let run = |distort| {
        let owners = graph.owners();
        let mut liar = Liar { owners, distort };
        presample(&spec, graph.seeds(0), &graph.book, graph.topology(0), &mut liar, |_| {
            Ok::<(), Infallible>(())
        })
        .unwrap_err()
    };
    let error = run(|answers| answers.truncate(0));
    assert!(
        matches!(error, PresampleError::Answers { wanted: 1, found: 0 }),
        "{error}"
    );
    let error = run(|answers| drop(answers[0].pop()));
    assert!(matches!(error, PresampleError::Answers { .. }), "{error}");
    for distort in [
        (|answers| answers[0][0].counts.truncate(1)) as fn(&mut Vec<Vec<NeighborReply>>),
        |answers| answers[0][0].neighbors.truncate(1),
        |answers| answers[0][0].counts[0] += 4,
    ] {
        let error = run(distort);
        let bad = matches!(
            &error,
            PresampleError::Batch {
                source: ExpandError::BadReply { .. },
                ..
            }
        );
        assert!(bad, "{error:?}");
    }
    let error = run(|answers| answers[0][0].neighbors[0] = 160);
    let stranger = ExpandError::NeighborOutOfRange { node: 160, nodes: 160 };
    assert!(
        matches!(&error, PresampleError::Batch { source, .. } if *source == stranger),
        "{error:?}"
    );
}

#[test]
fn a_failing_sink_ends_the_epoch() {
    let graph = TestGraph::new(5, &[80], 9);
    let spec = graph.spec(0, 5, &[3]);
    let mut seen = 0;
    let error = presample(
        &spec,
        graph.seeds(0),
        &graph.book,
        graph.topology(0),
        &mut graph.owners(),
        |_| {
            seen += 1;
            if seen == 2 {
                Err(QueryError::NotHeld { owner: 9 })
            } else {
                Ok(())
            }
        },
    )
    .unwrap_err();
    assert_eq!(seen, 2);
    assert!(matches!(error, PresampleError::Sink { step: 0, .. }), "{error}");
}

#[test]
fn a_topology_of_another_part_is_refused() {
    let graph = TestGraph::new(6, &[30, 31], 4);
    let spec = graph.spec(0, 5, &[3]);
    let sink = |_| Ok::<(), Infallible>(());
    let error = presample(
        &spec,
        graph.seeds(0),
        &graph.book,
        graph.topology(1),
        &mut graph.owners(),
        sink,
    );
    let refused = matches!(error, Err(PresampleError::Spec(SpecError::Topology { rows: 31, .. })));
    assert!(refused, "{error:?}");
}
