use std::time::Duration;

use greengnn_model::policy::{FillInput, Policy, ScoreKind, scored::StaticByScore, vip};
use greengnn_model::rng::CounterRng;

use super::*;
use crate::transport::testing::{ranks, settings};

/// A part of a graph: the in-neighbours of its nodes, and the rows that are seeds.
struct Part {
    first: u32,
    offsets: Vec<u64>,
    neighbors: Vec<u32>,
    seeds: Vec<u32>,
}

impl PartGraph for Part {
    fn topology(&self) -> Topology<'_> {
        Topology {
            first: self.first,
            offsets: &self.offsets,
            neighbors: &self.neighbors,
        }
    }

    fn seeds(&self) -> &[u32] {
        &self.seeds
    }
}

/// A directed graph with nodes without in-edges, doubled edges and self-loops; every third node of a part is a seed.
fn graph(bounds: &[u32], most_neighbors: u32, seed: u64) -> (Arc<PartitionBook>, Vec<Arc<Part>>) {
    let book = Arc::new(PartitionBook::new(bounds.to_vec()).unwrap());
    let nodes = book.nodes();
    let mut rng = CounterRng::new(seed);
    let parts = (0..book.parts()).map(|part| {
        let (mut offsets, mut neighbors) = (vec![0], Vec::new());
        for _ in book.range(part) {
            let count = rng.below(most_neighbors + 1);
            let mut row: Vec<u32> = (0..count).map(|_| rng.below(nodes)).collect();
            if count == most_neighbors {
                row.push(row[0]);
            }
            row.sort_unstable();
            neighbors.extend(row);
            offsets.push(neighbors.len() as u64);
        }
        Arc::new(Part {
            first: book.range(part).start,
            offsets,
            neighbors,
            seeds: (0..book.part_nodes(part)).step_by(3).collect(),
        })
    });
    let parts = parts.collect();
    (book, parts)
}

/// What every rank estimates, rank `r` on machine `placement[r]`.
async fn together(
    book: &Arc<PartitionBook>,
    parts: &[Arc<Part>],
    sampling: &Sampling,
    placement: &[usize],
) -> Vec<Result<Vec<f64>, InclusionError>> {
    let (_machines, ranks) = ranks(placement, &settings()).await;
    let names: Vec<String> = placement.iter().map(|machine| format!("machine-{machine}")).collect();
    let running: Vec<_> = ranks
        .into_iter()
        .zip(parts)
        .enumerate()
        .map(|(rank, ((router, inbox), part))| {
            let names = names.clone();
            let (book, part, sampling) = (Arc::clone(book), Arc::clone(part), sampling.clone());
            tokio::spawn(async move {
                let patience = Duration::from_secs(20);
                let collective = Collective::new(rank as Rank, names, router, inbox, patience).unwrap();
                probabilities(&collective, book, part, sampling).await
            })
        })
        .collect();
    let mut found = Vec::new();
    for rank in running {
        found.push(rank.await.unwrap());
    }
    found
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

async fn ranks_find_what_one_place_finds(bounds: &[u32], most_neighbors: u32, fanouts: &[u32]) {
    let (book, parts) = graph(bounds, most_neighbors, 5);
    let sampling = Sampling {
        batch_size: 7,
        fanouts: fanouts.to_vec(),
    };
    let apart: Vec<usize> = (0..parts.len()).map(|rank| rank % 2).collect();
    let topologies: Vec<Topology<'_>> = parts.iter().map(|part| part.topology()).collect();
    for placement in [vec![0; parts.len()], apart] {
        let found = together(&book, &parts, &sampling, &placement).await;
        for (rank, found) in (0..book.parts()).zip(found) {
            let found = found.unwrap();
            let part = &parts[usize::from(rank)];
            let seeds: Vec<u32> = part.seeds.iter().map(|row| part.first + row).collect();
            let expected = vip(&topologies, &seeds, sampling.batch_size, fanouts).unwrap();
            assert_eq!(bits(&found), bits(&expected), "rank {rank} of {placement:?}");
            assert!(seeds.is_empty() || found.iter().any(|probability| *probability > 0.0));
            let policy = StaticByScore { kind: ScoreKind::Vip };
            let fill = |scores: &[f64]| {
                policy.fill_scored(FillInput {
                    book: &book,
                    rank,
                    budget_rows: book.remote_nodes(rank) / 4,
                    device_rows: 0,
                    scores: Some(scores),
                })
            };
            assert_eq!(fill(&found), fill(&expected));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_each_have_a_part_find_the_bits_of_the_whole_graph() {
    // Among the parts one without nodes and one with a single node.
    ranks_find_what_one_place_finds(&[0, 200, 200, 201, 500], 9, &[5, 3]).await;
    ranks_find_what_one_place_finds(&[0, 40, 90], 4, &[3, 2, 2]).await;
    ranks_find_what_one_place_finds(&[0, 50], 4, &[3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_more_than_one_round_are_exchanged_whole() {
    let rows = ROUND_ROWS as u32;
    ranks_find_what_one_place_finds(&[0, rows + 100, rows + 400], 3, &[2, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_lists_a_node_outside_the_graph_fails_and_says_which() {
    let (book, mut parts) = graph(&[0, 3], 2, 1);
    parts[0] = Arc::new(Part {
        first: 0,
        offsets: vec![0, 1, 1, 1],
        neighbors: vec![7],
        seeds: vec![0],
    });
    let sampling = Sampling {
        batch_size: 1,
        fanouts: vec![1],
    };
    let found = together(&book, &parts, &sampling, &[0]).await.remove(0);
    let error = found.unwrap_err().to_string();
    assert!(error.contains("neighbour of node 0 is node 7"), "{error}");
}

#[test]
fn only_numbers_that_are_not_zero_travel() {
    assert_eq!(encode(&[0.0; 10], 0), Vec::<u8>::new());
    let mut values = vec![0.0; ROUND_ROWS + 2];
    values[ROUND_ROWS + 1] = 0.5;
    assert!(encode(&values, 0).is_empty());
    let bytes = encode(&values, ROUND_ROWS);
    assert_eq!(bytes.len(), ENTRY_BYTES);
    assert_eq!(
        (&bytes[..2], &bytes[2..]),
        (&1u16.to_le_bytes()[..], &0.5f64.to_le_bytes()[..])
    );
}
