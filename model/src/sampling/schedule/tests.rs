use proptest::prelude::*;

use super::*;

fn spec(rank: Rank, batch_size: u32, steps: StepCounts) -> EpochSpec {
    EpochSpec {
        seed: 1,
        epoch: 2,
        rank,
        batch_size,
        fanouts: vec![2],
        training: Purpose::Train,
        order: SeedOrder::Random,
        steps,
    }
}

/// Offsets of a part of `rows` nodes without edges.
fn no_edges(rows: u32) -> Vec<u64> {
    vec![0; rows as usize + 1]
}

fn topology(first: u32, offsets: &[u64]) -> Topology<'_> {
    Topology {
        first,
        offsets,
        neighbors: &[],
    }
}

fn book(rows: &[u32]) -> PartitionBook {
    let mut bounds = vec![0];
    for count in rows {
        bounds.push(bounds[bounds.len() - 1] + count);
    }
    PartitionBook::new(bounds).unwrap()
}

proptest! {
    #[test]
    fn every_seed_is_in_exactly_one_step(counts in prop::collection::vec(0u32..120, 1..6), batch_size in 1u32..50) {
        let book = book(&counts);
        let all = StepCounts { train: steps(&counts, batch_size), valid: steps(&counts, batch_size), test: 0 };
        for (rank, count) in (0..).zip(&counts) {
            let rows: Vec<u32> = (0..*count).collect();
            let offsets = no_edges(*count);
            let local = topology(book.range(rank).start, &offsets);
            let seeds = SeedRows { train: &rows, valid: &rows, test: &rows };
            let schedule = Schedule::new(&spec(rank, batch_size, all), seeds, &book, local).unwrap();
            let mut train: Vec<u32> = (0..all.train).flat_map(|step| schedule.seeds(step)).copied().collect();
            let valid: Vec<u32> = (all.train..all.total()).flat_map(|step| schedule.seeds(step)).copied().collect();
            train.sort_unstable();
            prop_assert_eq!(&train, &rows);
            prop_assert_eq!(&valid, &rows);
            // All batches are full but the last; empty ones follow.
            for step in 0..all.train {
                let left = count.saturating_sub(step * batch_size);
                prop_assert_eq!(schedule.seeds(step).len() as u32, left.min(batch_size));
            }
        }
    }
}

#[test]
fn the_order_of_the_seeds_depends_on_seed_epoch_and_rank() {
    let rows: Vec<u32> = (0..64).collect();
    let seeds = SeedRows {
        train: &rows,
        ..SeedRows::default()
    };
    let all = StepCounts {
        train: 1,
        ..StepCounts::default()
    };
    let book = book(&[64, 64]);
    let base = spec(0, 64, all);
    let offsets = no_edges(64);
    let order = |spec: &EpochSpec| {
        let local = topology(64 * u32::from(spec.rank), &offsets);
        Schedule::new(spec, seeds, &book, local).unwrap().seeds(0).to_vec()
    };
    let first = order(&base);
    assert_ne!(first, rows);
    assert_eq!(first, order(&base));
    for other in [
        EpochSpec {
            seed: 2,
            ..base.clone()
        },
        EpochSpec {
            epoch: 3,
            ..base.clone()
        },
        EpochSpec {
            rank: 1,
            ..base.clone()
        },
        EpochSpec {
            training: Purpose::Presample,
            ..base.clone()
        },
        EpochSpec {
            order: SeedOrder::Proximity { sequences: 4 },
            ..base.clone()
        },
    ] {
        assert_ne!(order(&other), first);
    }
}

#[test]
fn keys_count_inside_their_purpose() {
    let spec = spec(
        1,
        4,
        StepCounts {
            train: 3,
            valid: 2,
            test: 1,
        },
    );
    let keys: Vec<_> = (0..6)
        .map(|step| {
            let key = spec.key_of(step);
            assert_eq!((key.seed, key.rank), (1, 1));
            (key.purpose, key.epoch, key.step)
        })
        .collect();
    let (train, valid) = (Purpose::Train, Purpose::Valid);
    assert_eq!(
        keys,
        [
            (train, 2, 0),
            (train, 2, 1),
            (train, 2, 2),
            (valid, 0, 0),
            (valid, 0, 1),
            (Purpose::Test, 0, 0)
        ]
    );
}

#[test]
fn steps_are_the_maximum_over_ranks() {
    assert_eq!(steps(&[0, 9, 8], 4), 3);
    assert_eq!(steps(&[8], 4), 2);
    assert_eq!(steps(&[], 4), 0);
}

#[test]
fn specifications_that_do_not_fit_are_refused() {
    let book = book(&[5]);
    let all = StepCounts {
        train: 2,
        valid: 0,
        test: 1,
    };
    let offsets = no_edges(5);
    let local = topology(0, &offsets);
    let refusal = |spec: EpochSpec, seeds| Schedule::new(&spec, seeds, &book, local).unwrap_err();
    let none = SeedRows::default();
    assert_eq!(refusal(spec(0, 0, all), none), SpecError::BatchSize);
    assert_eq!(
        refusal(
            EpochSpec {
                fanouts: vec![],
                ..spec(0, 2, all)
            },
            none
        ),
        SpecError::Fanouts
    );
    assert_eq!(refusal(spec(1, 2, all), none), SpecError::Rank { rank: 1, parts: 1 });
    let training = Purpose::Test;
    assert_eq!(
        refusal(
            EpochSpec {
                training,
                ..spec(0, 2, all)
            },
            none
        ),
        SpecError::Training { found: training }
    );
    let many = StepCounts {
        train: u32::MAX,
        valid: 1,
        test: 0,
    };
    assert_eq!(refusal(spec(0, 2, many), none), SpecError::TooManySteps);
    for (rows, index) in [(&[0, 5][..], 1), (&[2, 2], 1), (&[3, 1], 1), (&[9], 0)] {
        let error = refusal(spec(0, 2, all), SeedRows { test: rows, ..none });
        assert!(
            matches!(error, SpecError::Seeds { split: "test", index: at, .. } if at == index),
            "{error}"
        );
    }
    let rows = [0, 1, 2, 3, 4];
    let error = refusal(spec(0, 2, all), SeedRows { train: &rows, ..none });
    assert!(
        matches!(error, SpecError::TooFewSteps { seeds: 5, steps: 2, .. }),
        "{error}"
    );
    // A purpose that is left out may have seeds.
    assert!(Schedule::new(&spec(0, 2, all), SeedRows { valid: &rows, ..none }, &book, local).is_ok());
}
