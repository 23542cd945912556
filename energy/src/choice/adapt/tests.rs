use proptest::prelude::*;

use super::*;
use crate::simulator::{Delivery, DeliveryCost, FetchCost, LaterTraffic, OwnerTraffic};

const STEPS: u32 = 8;

fn coefficients() -> Coefficients {
    let owner = FetchCost {
        request_j: 1.0,
        row_j: 0.01,
        request_s: 0.01,
        row_s: 1e-4,
    };
    Coefficients {
        owners: vec![owner; 3],
        delivery: Some(DeliveryCost {
            delivery_j: 0.1,
            delivery_s: 0.001,
        }),
        row_bytes: 100.0,
        bytes_per_s: 1.5e6,
        idle_w: 5.0,
        ahead: 1,
        step_s: 9.0,
        step_j: 2.0,
    }
}

/// Per step what is asked at which owner, how many steps ahead, and how many of the rows are for a later step.
type Asked = Vec<(u16, u64, u32, u64)>;

fn epoch_of(ranks: &[Asked], step_s: f64) -> Vec<RankEpoch> {
    let windows = |asked: &Asked| {
        let deliveries = (0..)
            .zip(asked)
            .map(|(step, &(owner, rows, steps_ahead, later))| Delivery {
                owners: vec![OwnerTraffic {
                    owner,
                    requests: 1,
                    deliveries: 2,
                    rows,
                }],
                later: vec![LaterTraffic {
                    owner,
                    steps: 1,
                    rows: later.min(rows),
                }],
                issue_gap: step,
                steps_ahead,
            });
        let deliveries = deliveries.filter(|delivery| delivery.owners[0].rows > 0);
        let misses = (0..STEPS).map(|step| Delivery {
            issue_gap: step,
            ..Delivery::default()
        });
        vec![WindowTraffic {
            deliveries: deliveries.collect(),
            misses: misses.collect(),
            evaluates: false,
        }]
    };
    let rank = |asked| RankEpoch {
        windows: windows(asked),
        step_s,
        stall_s: 0.0,
        fetches: Vec::new(),
    };
    ranks.iter().map(rank).collect()
}

/// The epoch as it would have been measured if fetches took `factor` times as long.
fn measured(mut epoch: Vec<RankEpoch>, factor: f64) -> Vec<RankEpoch> {
    let prices = Coefficients {
        step_s: epoch[0].step_s,
        ..coefficients().with_slower_fetches(factor)
    };
    let ranks = epoch.iter().map(|rank| RankTraffic {
        windows: &rank.windows,
        coefficients: &prices,
    });
    let waits = waits_in_step(&ranks.collect::<Vec<_>>()).unwrap();
    for (rank, waits) in epoch.iter_mut().zip(waits) {
        rank.stall_s = waits.own_training_s;
    }
    epoch
}

fn two_ranks() -> Adaptation {
    Adaptation::new(vec![coefficients(); 2])
}

fn exposed() -> Vec<RankEpoch> {
    let all = (0..u64::from(STEPS)).map(|step| (1, 100 + 10 * step, 0, 0));
    epoch_of(&[all.clone().collect(), all.collect()], 0.005)
}

#[test]
fn a_factor_of_all_fetches_is_found_where_it_shows() {
    for factor in [0.3, 1.0, 1.7, 12.0, 64.0] {
        let mut adaptation = two_ranks();
        let observed = adaptation.observe(&measured(exposed(), factor)).unwrap();
        let found = observed.factor.unwrap();
        assert!((found / factor - 1.0).abs() < 1e-6, "{found} is not {factor}");
        assert_eq!(adaptation.fetch_factor(), found);
        let corrected = &adaptation.coefficients()[1];
        assert_eq!((corrected.step_s, corrected.step_j), (0.005, 2.0));
        assert_eq!(corrected.owners[1].request_s, 0.01 * found);
        assert_eq!(corrected.owners[1].request_j, 1.0);
        assert_eq!(corrected.bytes_per_s, 1.5e6 / found);
    }
}

#[test]
fn factors_are_bounded_and_later_ones_count_half() {
    let mut adaptation = two_ranks();
    assert_eq!(adaptation.fetch_factor(), 1.0);
    let mut slow = exposed();
    slow[0].stall_s = 1e9;
    assert_eq!(adaptation.observe(&slow).unwrap().factor, Some(64.0));
    let observed = adaptation.observe(&measured(exposed(), 1.0)).unwrap();
    assert_eq!((observed.factor, observed.smoothed), (Some(1.0), 8.0));
    assert!(observed.predicted_stall_s > observed.measured_stall_s);
    // Nobody waited: the largest factor by which the steps hide all but the first requests.
    let hidden = adaptation.observe(&exposed()).unwrap().factor.unwrap();
    assert!(hidden > FACTORS.0 && hidden < 0.3, "{hidden}");
}

#[test]
fn without_a_wait_the_factor_is_the_largest_that_predicts_none() {
    // 100 rows that are asked for one step ahead and take 0.01 + 0.001 + 0.01 s.
    let asked: Asked = vec![(1, 0, 0, 0), (1, 0, 0, 0), (1, 100, 1, 0)];
    let mut epoch = epoch_of(&[asked.clone(), asked], 0.042);
    let mut adaptation = two_ranks();
    let observed = adaptation.observe(&epoch).unwrap();
    assert_eq!(observed.predicted_stall_s, 0.0);
    assert_eq!(observed.factor, Some(1.0), "of at most 1");
    // Two steps no longer hide it.
    for rank in &mut epoch {
        rank.step_s = 0.0042;
    }
    let found = adaptation.observe(&epoch).unwrap().factor.unwrap();
    let mut check = two_ranks();
    check.factor = Some(found);
    assert!(check.observe(&epoch).unwrap().predicted_stall_s < 1e-9);
    check.factor = Some(found * 1.01);
    assert!(check.observe(&epoch).unwrap().predicted_stall_s > 0.0);
}

/// What the first step waits for was asked for in the epoch before: a network that hides it is not taken for a fast one.
#[test]
fn a_first_window_that_is_hidden_says_nothing_of_the_network() {
    let asked: Asked = vec![(1, 100, 0, 0)];
    let observed = two_ranks().observe(&epoch_of(&[asked.clone(), asked], 0.02)).unwrap();
    assert_eq!((observed.predicted_stall_s, observed.factor), (0.0, None));
}

#[test]
fn one_slow_owner_is_not_counted_twice() {
    let mut truth = coefficients();
    truth.owners[1].request_s *= 4.0;
    truth.owners[1].row_s *= 4.0;
    truth.step_s = 0.005;
    // All owners are asked, each exposed in its steps.
    let asked: Asked = (0..u64::from(STEPS))
        .map(|step| ((step % 3) as u16, 100, 0, 0))
        .collect();
    let mut epoch = epoch_of(&[asked.clone(), asked], 0.005);
    let waits = waits_in_step(
        &epoch
            .iter()
            .map(|rank| RankTraffic {
                windows: &rank.windows,
                coefficients: &truth,
            })
            .collect::<Vec<_>>(),
    );
    for (rank, waits) in epoch.iter_mut().zip(waits.unwrap()) {
        rank.stall_s = waits.own_training_s;
        rank.fetches = fetches(&[1.0, 4.0, 1.0]);
    }
    let mut adaptation = two_ranks();
    let observed = adaptation.observe(&epoch).unwrap();
    assert!((observed.smoothed - 1.0).abs() < 0.01, "{observed:?}");
    assert!((adaptation.coefficients()[0].owners[1].row_s / truth.owners[1].row_s - 1.0).abs() < 0.01);
}

#[test]
fn an_epoch_without_fetches_changes_no_factor() {
    let mut adaptation = two_ranks();
    adaptation.observe(&measured(exposed(), 3.0)).unwrap();
    let before = adaptation.fetch_factor();
    let mut idle = epoch_of(&[vec![], vec![]], 0.25);
    idle[1].stall_s = 4.0;
    let observed = adaptation.observe(&idle).unwrap();
    assert_eq!((observed.factor, observed.smoothed), (None, before));
    assert_eq!(adaptation.coefficients()[0].step_s, 0.25);
}

#[test]
fn figures_that_are_none_are_refused_and_nothing_is_learnt() {
    let mut adaptation = two_ranks();
    let mut epoch = exposed();
    epoch[1].stall_s = f64::NAN;
    let error = adaptation.observe(&epoch).unwrap_err().to_string();
    assert!(error.contains("the wait for batches of rank 1 is NaN"), "{error}");
    epoch.pop();
    assert_eq!(
        adaptation.observe(&epoch),
        Err(AdaptError::Ranks { found: 1, expected: 2 })
    );
    assert_eq!(adaptation, two_ranks());
}

#[test]
fn a_window_changes_only_for_more_than_the_margin() {
    let predicted = [(1, 100.0), (4, 98.5), (16, 97.0), (64, f64::NAN)];
    assert_eq!(next_candidate(&1, &predicted, MARGIN), 16);
    assert_eq!(next_candidate(&4, &predicted, MARGIN), 4);
    assert_eq!(next_candidate(&16, &predicted, MARGIN), 16);
    assert_eq!(next_candidate(&64, &predicted, MARGIN), 16, "its cost is not known");
    assert_eq!(next_candidate(&8, &[], MARGIN), 8);
    assert_eq!(next_candidate(&2, &[(1, 0.0), (2, 0.0)], MARGIN), 2);
}

proptest! {
    #[test]
    fn the_factor_predicts_what_was_measured_and_is_bounded(
        asked in prop::collection::vec(prop::collection::vec((0..3_u16, 0..400_u64, 0..4_u32, 0..400_u64), 0..8), 2),
        octave in -4.0..6.0_f64,
        step_s in 0.001..0.2_f64,
    ) {
        let factor = octave.exp2();
        let epoch = measured(epoch_of(&asked, step_s), factor);
        let mut adaptation = two_ranks();
        let observed = adaptation.observe(&epoch).unwrap();
        prop_assert_eq!(&observed, &two_ranks().observe(&epoch).unwrap());
        if let Some(found) = observed.factor {
            prop_assert!((FACTORS.0..=FACTORS.1).contains(&found));
            let predicted = adaptation.observe(&epoch).unwrap().predicted_stall_s;
            let measured = observed.measured_stall_s;
            prop_assert!((predicted - measured).abs() <= 1e-6 * (1.0 + measured), "{predicted} {measured}");
        }
        let as_probed = two_ranks().observe(&self::measured(epoch_of(&asked, step_s), 1.0)).unwrap();
        prop_assert!(as_probed.factor.is_none_or(|factor| factor == 1.0), "{as_probed:?}");
    }

    #[test]
    fn a_choice_stays_once_it_is_made(
        costs in prop::collection::vec(0.0..100.0_f64, 1..7), start in 0..7_usize, margin in 0.0..0.5_f64,
    ) {
        let predicted: Vec<(u32, f64)> = costs.iter().enumerate().map(|(index, cost)| (1 << index, *cost)).collect();
        let start = predicted[start % costs.len()];
        let next = next_candidate(&start.0, &predicted, margin);
        prop_assert_eq!(next_candidate(&next, &predicted, margin), next);
        let next_j = predicted.iter().find(|(window, _)| *window == next).unwrap().1;
        prop_assert!(next == start.0 || start.1 - next_j > margin * start.1);
        // Two that are within the margin: each stays where it runs.
        let near = [(1, 100.0), (2, 100.0 * (1.0 - margin * 0.99))];
        prop_assert_eq!((next_candidate(&1, &near, margin), next_candidate(&2, &near, margin)), (1, 2));
    }
}

/// Fetches whose answers took so many times as long as they were probed to, by owner.
fn fetches(slowness: &[f64]) -> Vec<OwnerFetches> {
    let fetch = |(owner, slowness): (PartId, &f64)| OwnerFetches {
        owner,
        requests: 10,
        rows: 1000,
        seconds: slowness * (10.0 * 0.01 + 1000.0 * 1e-4),
    };
    (0..).zip(slowness).map(fetch).collect()
}

#[test]
fn an_owner_that_answers_more_slowly_than_the_others_costs_more_time() {
    let mut adaptation = two_ranks();
    let mut epoch = exposed();
    epoch[0].fetches = fetches(&[2.0, 2.0, 8.0]);
    adaptation.observe(&epoch).unwrap();
    let [one, other] = &adaptation.coefficients()[..] else {
        panic!("there are two ranks");
    };
    let slower = |rank: &Coefficients| rank.owners[2].row_s / rank.owners[1].row_s;
    assert!((slower(one) - 4.0).abs() < 1e-9, "{}", slower(one));
    assert_eq!(slower(other), 1.0);
    assert_eq!(one.owners[2].row_j, one.owners[1].row_j);
    // An epoch like the probe halves the distance; nonsense changes nothing.
    epoch[0].fetches = fetches(&[1.0, 1.0, 1.0]);
    adaptation.observe(&epoch).unwrap();
    assert!((slower(&adaptation.coefficients()[0]) - 2.0).abs() < 1e-9);
    epoch[0].fetches = fetches(&[f64::NAN, -1.0, 0.0]);
    adaptation.observe(&epoch).unwrap();
    assert!((slower(&adaptation.coefficients()[0]) - 2.0).abs() < 1e-9);
}
