use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::rng::mix64;

/// The picked positions: the row lists its own positions.
fn positions(key: u64, node: NodeId, degree: u32, fanout: u32) -> Vec<u32> {
    let row: Vec<u32> = (0..degree).collect();
    let mut picks = Vec::new();
    pick_neighbors(key, node, &row, fanout, &mut picks);
    picks
}

/// Floyd's algorithm as it is printed, with a sorted set.
fn floyd_reference(key: u64, node: NodeId, degree: u32, fanout: u32) -> Vec<u32> {
    let mut rng = CounterRng::new(mix_words(&[key, u64::from(node)]));
    let mut taken = std::collections::BTreeSet::new();
    for last in degree - fanout..degree {
        let drawn = rng.below(last + 1);
        if !taken.insert(drawn) {
            taken.insert(last);
        }
    }
    taken.into_iter().collect()
}

/// The statistic of Pearson's test for equal probabilities.
fn chi_squared(counts: impl Iterator<Item = u32>, expected: f64) -> f64 {
    counts
        .map(|count| (f64::from(count) - expected).powi(2) / expected)
        .sum()
}

#[test]
fn every_subset_is_equally_likely() {
    // 2 of 5, 3 of 6 and 4 of 6 over different keys and over different nodes; bounds are the 0.1 % points.
    for (degree, fanout, subsets, bound) in [(5, 2, 10u32, 27.9), (6, 3, 20, 43.8), (6, 4, 15, 36.1)] {
        let draws = 1_000 * subsets;
        for by_node in [false, true] {
            let mut counts = HashMap::<Vec<u32>, u32>::new();
            for draw in 0..draws {
                let (key, node) = if by_node {
                    (1, draw)
                } else {
                    (mix64(u64::from(draw)), 1)
                };
                *counts.entry(positions(key, node, degree, fanout)).or_default() += 1;
            }
            assert_eq!(counts.len() as u32, subsets);
            let chi = chi_squared(counts.into_values(), 1_000.0);
            assert!(
                chi < bound,
                "{fanout} of {degree}, by node {by_node}: chi-squared {chi}"
            );
        }
    }
}

#[test]
fn positions_are_uniform_in_rows_of_every_kind() {
    // Bitmap on the stack, list, bitmap on the heap.
    for (degree, fanout) in [(40, 10), (1_024, 25), (1_030, 10), (2_000, 100)] {
        let rounds = 200_000 / fanout;
        let mut counts = vec![0u32; 10];
        for node in 0..rounds {
            for position in positions(9, node, degree, fanout) {
                counts[(u64::from(position) * 10 / u64::from(degree)) as usize] += 1;
            }
        }
        let chi = counts
            .iter()
            .enumerate()
            .map(|(tenth, count)| {
                let from = (tenth as u32 * degree).div_ceil(10);
                let to = ((tenth as u32 + 1) * degree).div_ceil(10);
                let expected = f64::from((to - from) * rounds) * f64::from(fanout) / f64::from(degree);
                (f64::from(*count) - expected).powi(2) / expected
            })
            .sum::<f64>();
        // 9 degrees of freedom; picks without replacement vary less than the test assumes.
        assert!(chi < 27.9, "{fanout} of {degree}: {counts:?}, chi-squared {chi}");
    }
}

#[test]
fn duplicate_edges_are_picks_of_their_own() {
    // A row with node 5 twice: 2 of 3 positions have it twice in one case of three, once in two of three.
    let (mut twice, mut once) = (0u32, 0u32);
    for node in 0..9_000 {
        let mut picks = Vec::new();
        pick_neighbors(3, node, &[5, 8, 5], 2, &mut picks);
        match picks[..] {
            [5, 5] => twice += 1,
            [5, 8] | [8, 5] => once += 1,
            _ => panic!("picks {picks:?}"),
        }
    }
    let chi = (f64::from(twice) - 3_000.0).powi(2) / 3_000.0 + (f64::from(once) - 6_000.0).powi(2) / 6_000.0;
    assert!(chi < 10.8, "twice {twice}, once {once}");
}

#[test]
fn picks_of_hops_keys_and_nodes_are_independent() {
    // The overlap of two independent draws of 10 of 100 has mean 1 (and variance 9/11 * 90/100).
    for other in [(1u64, 2u32), (2, 1), (2, 2)] {
        let overlap: usize = (0..2_000)
            .map(|round| {
                let one = positions(mix64(round), 1, 100, 10);
                let (key, node) = (mix64(round + (other.0 - 1) * 1_000_000), other.1);
                let two = positions(key, node, 100, 10);
                one.iter().filter(|position| two.contains(position)).count()
            })
            .sum();
        let mean = overlap as f64 / 2_000.0;
        assert!((mean - 1.0).abs() < 0.08, "{other:?}: {mean}");
    }
}

proptest! {
    #[test]
    fn picks_are_those_of_the_printed_algorithm(
        key: u64,
        node: u32,
        degree in prop_oneof![0u32..80, 1_000u32..1_100, 3_000u32..3_050],
        fanout in prop_oneof![0u32..40, 60u32..70, 900u32..1_100],
    ) {
        let picks = positions(key, node, degree, fanout);
        let expected = if degree <= fanout {
            (0..degree).collect()
        } else {
            floyd_reference(key, node, degree, fanout)
        };
        prop_assert_eq!(picks, expected);
    }

    #[test]
    fn many_rows_draw_what_each_draws_alone(key: u64, degrees in prop::collection::vec(0u64..50, 1..100), fanout in 0u32..20) {
        let mut offsets = vec![0];
        for degree in degrees {
            offsets.push(offsets[offsets.len() - 1] + degree);
        }
        let neighbors: Vec<u32> = (0..offsets[offsets.len() - 1] as u32).collect();
        let topology = Topology { first: 17, offsets: &offsets, neighbors: &neighbors };
        let rows: Vec<u32> = (0..topology.rows()).rev().collect();
        let mut places = Vec::new();
        let mut all = Vec::new();
        pick_rows(topology, key, fanout, &rows, |place, picks| {
            places.push(place);
            all.extend(picks);
        });
        prop_assert!(places.into_iter().eq(0..rows.len()));
        let mut alone = Vec::new();
        for row in &rows {
            pick_neighbors(key, 17 + row, topology.row(*row), fanout, &mut alone);
            }
        prop_assert_eq!(&all, &alone);
        let counts: u32 = rows.iter().map(|row| pick_count(topology, *row, fanout)).sum();
        prop_assert_eq!(counts as usize, alone.len());
    }
}
