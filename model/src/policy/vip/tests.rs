//! Inclusion probabilities by hand, and against what the sampler really draws.

use std::convert::Infallible;

use super::*;
use crate::book::{PartitionBook, Rank};
use crate::policy::scores::{degree_scores, out_degrees};
use crate::rng::{CounterRng, Purpose, mix_words};
use crate::sampling::{EpochSpec, InMemoryOwners, SeedOrder, SeedRows, StepCounts, presample};
use crate::synth::SynthSpec;

/// A graph given by the neighbour list of every node.
struct Graph {
    offsets: Vec<u64>,
    neighbors: Vec<NodeId>,
}

impl Graph {
    fn new(rows: &[&[NodeId]]) -> Self {
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len() as u64;
            Some(*end)
        });
        Self {
            offsets: std::iter::once(0).chain(ends).collect(),
            neighbors: rows.concat(),
        }
    }

    /// A graph of 2000 nodes with communities and degrees that follow a power law. Directed, it has one direction of
    /// three quarters of the edges.
    fn synthetic(directed: bool) -> Self {
        let spec = SynthSpec {
            edges: 16_000,
            inside: 0.8,
            exponent: 2.2,
            ..SynthSpec::tiny(2_000)
        };
        let graph = spec.graph().unwrap();
        let whole = graph.topology();
        let rows: Vec<Vec<NodeId>> = (0..whole.rows())
            .map(|node| {
                let kept = |other: &NodeId| {
                    let (low, high) = (node.min(*other), node.max(*other));
                    let draw = CounterRng::new(mix_words(&[u64::from(low), u64::from(high)])).below(8);
                    !directed || draw < 6 && draw.is_multiple_of(2) == (node < *other)
                };
                whole.row(node).iter().copied().filter(kept).collect()
            })
            .collect();
        Self::new(&rows.iter().map(|row| &row[..]).collect::<Vec<_>>())
    }

    fn nodes(&self) -> u32 {
        self.offsets.len() as u32 - 1
    }

    fn part(&self, first: NodeId, end: NodeId) -> Topology<'_> {
        Topology {
            first,
            offsets: &self.offsets[first as usize..=end as usize],
            neighbors: &self.neighbors,
        }
    }

    fn whole(&self) -> Topology<'_> {
        self.part(0, self.nodes())
    }

    fn vip(&self, seeds: &[NodeId], batch_size: u32, fanouts: &[u32]) -> Vec<f64> {
        vip(&[self.whole()], seeds, batch_size, fanouts).unwrap()
    }

    /// In which share of the batches of `epochs` presampled epochs of `rank` each node really is.
    fn sampled(&self, book: &PartitionBook, rank: Rank, batch_size: u32, fanouts: &[u32], epochs: u32) -> Vec<f64> {
        let parts = (0..book.parts()).map(|part| self.part(book.range(part).start, book.range(part).end));
        let parts: Vec<Topology<'_>> = parts.collect();
        let train = seed_rows(book, rank);
        let seeds = SeedRows {
            train: &train,
            ..SeedRows::default()
        };
        let steps = train.len() as u32 / batch_size;
        let mut counts = vec![0.0; self.nodes() as usize];
        for epoch in 0..epochs {
            let spec = EpochSpec {
                seed: 11,
                epoch,
                rank,
                batch_size,
                fanouts: fanouts.to_vec(),
                training: Purpose::Presample,
                order: SeedOrder::Random,
                steps: StepCounts {
                    train: steps,
                    ..StepCounts::default()
                },
            };
            let mut owners = InMemoryOwners::new(parts.clone());
            presample(&spec, seeds, book, parts[usize::from(rank)], &mut owners, |batch| {
                batch.nodes.iter().for_each(|node| counts[*node as usize] += 1.0);
                Ok::<(), Infallible>(())
            })
            .unwrap();
        }
        let batches = f64::from(epochs * steps);
        counts.into_iter().map(|count| count / batches).collect()
    }
}

/// Every second row of the part of `rank`.
fn seed_rows(book: &PartitionBook, rank: Rank) -> Vec<u32> {
    (0..book.part_nodes(rank)).step_by(2).collect()
}

fn assert_close(found: &[f64], expected: &[f64]) {
    let close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-12;
    let all = found.len() == expected.len() && found.iter().zip(expected).all(close);
    assert!(all, "found {found:?}, expected {expected:?}");
}

#[test]
fn a_node_that_is_expanded_at_two_hops_picks_twice_but_arrives_once() {
    // Node 0 lists 1, 2 and 3; node 1 lists 4. One seed of two, one pick a hop.
    let graph = Graph::new(&[&[1, 2, 3], &[4], &[], &[], &[], &[]]);
    let once = 0.5 / 3.0;
    let twice = 0.5 * (1.0 - 4.0 / 9.0);
    assert_close(&graph.vip(&[0, 5], 1, &[1]), &[0.5, once, once, once, 0.0, 0.5]);
    // Node 4 follows only where node 1 came at the first hop, and then surely.
    let found = graph.vip(&[0, 5], 1, &[1, 1]);
    assert_close(&found, &[0.5, twice, twice, twice, once, 0.5]);
    // A row that is taken whole brings its neighbours once, however many hops expand it.
    let found = graph.vip(&[0, 5], 1, &[9, 9, 9]);
    assert_close(&found, &[0.5; 6]);
}

#[test]
fn batches_are_shares_of_the_seeds_and_never_more_than_all() {
    let graph = Graph::new(&[&[], &[0], &[0], &[0]]);
    // Each of three seeds is in a batch with probability 2/3, and any of them brings node 0.
    let missed = 1.0 - 2.0 / 3.0;
    let found = graph.vip(&[1, 2, 3], 2, &[5]);
    assert_close(
        &found,
        &[1.0 - missed * missed * missed, 2.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0],
    );
    assert_close(&graph.vip(&[1, 2, 3], 7, &[5]), &[1.0; 4]);
    assert_close(&graph.vip(&[], 7, &[5]), &[0.0; 4]);
}

#[test]
fn no_probability_is_above_one_however_sure_a_node_is() {
    let graph = Graph::synthetic(true);
    let seeds: Vec<NodeId> = (0..300).collect();
    for batch_size in 1..40 {
        let found = graph.vip(&seeds, batch_size * 7, &[50, 50, 50, 50]);
        assert!(
            found.iter().all(|probability| (0.0..=1.0).contains(probability)),
            "{batch_size}"
        );
        assert!(batch_size < 30 || found.contains(&1.0));
    }
}

#[test]
fn double_edges_are_two_positions_and_a_self_loop_leads_nowhere() {
    let graph = Graph::new(&[&[0, 1, 1, 2], &[], &[], &[]]);
    // Two of four positions: node 1 is missed where both are of the other two, one way of six.
    let found = graph.vip(&[0, 3], 1, &[2]);
    assert_close(&found, &[0.5, 0.5 * 5.0 / 6.0, 0.25, 0.5]);
}

#[test]
fn what_is_no_graph_or_no_batch_is_refused() {
    let graph = Graph::new(&[&[1], &[2], &[7]]);
    let whole = [graph.whole()];
    assert_eq!(vip(&whole, &[0], 0, &[1]), Err(VipError::BatchSize));
    assert_eq!(
        vip(&whole, &[3], 1, &[1]),
        Err(VipError::UnknownSeed { seed: 3, nodes: 3 })
    );
    let unknown = UnknownNeighbor {
        node: 2,
        neighbor: 7,
        nodes: 3,
    };
    assert_eq!(vip(&whole, &[2], 1, &[1]), Err(VipError::UnknownNeighbor(unknown)));
    let hole = VipError::Hole {
        part: 1,
        first: 2,
        wanted: 1,
    };
    assert_eq!(vip(&[graph.part(0, 1), graph.part(2, 3)], &[0], 1, &[1]), Err(hole));
}

#[test]
fn parts_one_by_one_are_the_whole_graph() {
    let graph = Graph::synthetic(true);
    let parts = [graph.part(0, 700), graph.part(700, 700), graph.part(700, graph.nodes())];
    let seeds: Vec<NodeId> = (0..300).collect();
    let found = vip(&parts, &seeds, 20, &[4, 3]).unwrap();
    // The factors are the same, multiplied in another order.
    assert_close(&found, &graph.vip(&seeds, 20, &[4, 3]));
}

#[test]
fn on_a_forest_the_sampler_draws_what_the_estimate_says() {
    // Nodes 0 to 7 each list four of the next 32, and each of these lists three of the next 96.
    let list = |first: u32, count: u32| (first..first + count).collect::<Vec<NodeId>>();
    let mut rows: Vec<Vec<NodeId>> = (0..8).map(|node| list(8 + 4 * node, 4)).collect();
    rows.extend((0..32).map(|node| list(40 + 3 * node, 3)));
    rows.resize(136, Vec::new());
    let graph = Graph::new(&rows.iter().map(|row| &row[..]).collect::<Vec<_>>());
    let book = PartitionBook::new(vec![0, 8, 136]).unwrap();
    let seeds: Vec<NodeId> = seed_rows(&book, 0);
    let epochs = 4_000;
    let sampled = graph.sampled(&book, 0, 1, &[2, 2], epochs);
    let expected = graph.vip(&seeds, 1, &[2, 2]);
    let batches = f64::from(epochs) * seeds.len() as f64;
    for (node, (sampled, expected)) in sampled.iter().zip(&expected).enumerate() {
        let deviation = (expected * (1.0 - expected) / batches).sqrt();
        assert!(
            (sampled - expected).abs() <= 5.0 * deviation,
            "node {node}: {sampled}, {expected}"
        );
    }
}

/// The share of what a rank needs from others that it finds in the `budget` remote rows of highest score.
fn hit_rate(book: &PartitionBook, needed: &[f64], scores: &[f64], budget: usize) -> f64 {
    let mut remote: Vec<usize> = (book.range(0).end as usize..needed.len()).collect();
    let all: f64 = remote.iter().map(|node| needed[*node]).sum();
    remote.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
    remote[..budget].iter().map(|node| needed[*node]).sum::<f64>() / all
}

#[test]
fn on_graphs_with_loops_the_estimate_ranks_rows_as_counting_does() {
    let shapes: [(u32, &[u32]); 3] = [(25, &[5, 3]), (10, &[25, 10]), (5, &[4, 3, 2])];
    for (directed, (batch_size, fanouts)) in [false, true]
        .into_iter()
        .flat_map(|directed| shapes.map(|shape| (directed, shape)))
    {
        let case = format!("directed {directed}, batches of {batch_size}, fanouts {fanouts:?}");
        let graph = Graph::synthetic(directed);
        let book = PartitionBook::new(vec![0, 500, 1_000, 2_000]).unwrap();
        let seeds = seed_rows(&book, 0);
        let sampled = graph.sampled(&book, 0, batch_size, fanouts, 150);
        let estimate = graph.vip(&seeds, batch_size, fanouts);
        let degrees = degree_scores(&out_degrees([graph.whole()], graph.nodes()).unwrap());
        let remote = |of: &[f64]| of[500..].iter().sum::<f64>();
        let ratio = remote(&estimate) / remote(&sampled);
        assert!((0.97..1.1).contains(&ratio), "{case}: {ratio}");
        for budget in [75, 150, 375, 750] {
            let rate = |scores: &[f64]| hit_rate(&book, &sampled, scores, budget);
            let (oracle, vip, degree) = (rate(&sampled), rate(&estimate), rate(&degrees));
            assert!(vip > oracle - 0.005, "{case}, budget {budget}: {vip} of {oracle}");
            assert!(vip > degree, "{case}, budget {budget}: {vip}, degree {degree}");
        }
    }
}
