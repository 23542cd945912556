use greengnn_model::book::PartId;
use proptest::prelude::*;

use crate::simulator::{
    Coefficients, Delivery, FetchCost, LaterTraffic, Mode, OwnerTraffic, RankTraffic, SimulatedCost, WindowTraffic,
    simulate, simulate_in_step,
};

/// Three owners that take 1 s and then 0.25 s a row; steps of 4 s.
fn coefficients() -> Coefficients {
    let owner = FetchCost {
        request_j: 1.0,
        row_j: 0.5,
        request_s: 1.0,
        row_s: 0.25,
    };
    Coefficients {
        owners: vec![owner; 3],
        delivery: None,
        row_bytes: 1.0,
        bytes_per_s: f64::INFINITY,
        idle_w: 2.0,
        ahead: 1,
        step_s: 4.0,
        step_j: 10.0,
    }
}

fn fetch(owners: &[(PartId, u64)], issue_gap: u32, steps_ahead: u32) -> Delivery {
    let traffic = owners.iter().map(|&(owner, rows)| OwnerTraffic {
        owner,
        requests: 1,
        deliveries: 1,
        rows,
    });
    Delivery {
        owners: traffic.collect(),
        issue_gap,
        steps_ahead,
        ..Delivery::default()
    }
}

/// One window that evaluates or trains.
fn window(deliveries: Vec<Delivery>, steps: std::ops::Range<u32>, evaluates: bool) -> WindowTraffic {
    WindowTraffic {
        deliveries,
        misses: steps.map(|step| fetch(&[], step, 0)).collect(),
        evaluates,
    }
}

fn training(deliveries: Vec<Delivery>, steps: u32) -> Vec<WindowTraffic> {
    vec![window(deliveries, 0..steps, false)]
}

fn in_step(ranks: &[Vec<WindowTraffic>], coefficients: &Coefficients) -> Vec<SimulatedCost> {
    let ranks: Vec<RankTraffic> = ranks
        .iter()
        .map(|windows| RankTraffic { windows, coefficients })
        .collect();
    simulate_in_step(&ranks, Mode::Plan).unwrap()
}

fn alone(windows: &[WindowTraffic]) -> f64 {
    simulate(windows, &coefficients(), Mode::Plan).unwrap().stall_s()
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0)
}

#[test]
fn a_wait_of_one_rank_is_a_wait_of_all() {
    // 1 + 8 / 4 s before step 0; and before step 1, which is asked for when step 0 begins, 1 + 16 / 4 s less the step.
    let first = training(vec![fetch(&[(1, 8)], 0, 0)], 2);
    let second = training(vec![fetch(&[(1, 16)], 1, 0)], 2);
    assert!(close(alone(&first), 3.0));
    // Alone, the second rank asks 4 s before it begins step 1.
    assert!(close(alone(&second), 1.0));
    let costs = in_step(&[first, second], &coefficients());
    // In step, the second asks for step 1 at the start, since its first batch waits; its rows come while step 0 is trained.
    assert!(
        close(costs[0].stall_s(), 3.0) && close(costs[1].stall_s(), 3.0),
        "{costs:?}"
    );
    assert_eq!((costs[0].own_stall_s, costs[1].own_stall_s), (3.0, 0.0));
    assert!(close(costs[1].stall_j, 6.0));

    // Each waits where the other does not.
    let early = training(vec![fetch(&[(1, 8)], 0, 0)], 4);
    let late = training(vec![fetch(&[(1, 32)], 3, 0)], 4);
    assert!(close(alone(&late), 1.0 + 8.0 - 4.0));
    let costs = in_step(&[early, late], &coefficients());
    assert!(
        close(costs[0].stall_s(), 8.0) && close(costs[1].stall_s(), 8.0),
        "{costs:?}"
    );
    assert!(close(costs[0].own_stall_s, 3.0) && close(costs[1].own_stall_s, 5.0));
}

#[test]
fn what_is_asked_of_one_owner_comes_one_after_the_other_and_shares_the_link() {
    let one_owner = training(vec![fetch(&[(1, 8)], 0, 0), fetch(&[(1, 16)], 0, 1)], 2);
    // There at 3 and 3 + 5 s; step 1 could begin at 7 s.
    assert!(close(alone(&one_owner), 4.0));
    let two_owners = training(vec![fetch(&[(1, 8), (2, 4)], 0, 0)], 1);
    assert!(close(alone(&two_owners), 3.0));
    let narrow = Coefficients {
        bytes_per_s: 4.0,
        ..coefficients()
    };
    let over_narrow = |deliveries| in_step(&[training(deliveries, 1)], &narrow)[0].stall_s();
    // 12 rows of 0.25 s behind an initiation.
    assert!(close(over_narrow(vec![fetch(&[(1, 8), (2, 4)], 0, 0)]), 4.0));
    // Both owners have a half of the link until one of them is done: 4 and 4 rows, although only 4 are waited for.
    let mut later = fetch(&[(1, 4), (2, 8)], 0, 0);
    later.later.push(LaterTraffic {
        owner: 2,
        steps: 1,
        rows: 7,
    });
    let one_step_more = [training(vec![later], 2)];
    assert!(close(in_step(&one_step_more, &narrow)[0].stall_s(), 3.0));
    // A second fetch follows the first through the link, from another owner too.
    let both = vec![fetch(&[(1, 8)], 0, 0), fetch(&[(2, 8)], 0, 0)];
    assert!(close(over_narrow(both), 5.0));
}

#[test]
fn evaluation_is_taken_apart_and_ends_together() {
    // Each rank waits 3 s, one before the first step and the other before the last.
    let deliveries = |step| vec![fetch(&[(1, if step == 0 { 8 } else { 24 })], step, 0)];
    let ranks = |evaluates| [0, 2].map(|step| vec![window(deliveries(step), 0..3, evaluates)]);
    let trained = in_step(&ranks(false), &coefficients());
    assert!(close(trained[0].stall_s(), 3.0 + 3.0), "{trained:?}");
    let evaluated = in_step(&ranks(true), &coefficients());
    assert!(
        evaluated
            .iter()
            .all(|cost| close(cost.stall_s(), 3.0) && close(cost.own_stall_s, 3.0)),
        "{evaluated:?}"
    );
    // And training does not begin before all have evaluated.
    let then_train = ranks(true).map(|mut windows| {
        windows.push(window(vec![], 3..5, false));
        windows
    });
    let costs = in_step(&then_train, &coefficients());
    assert!(
        costs
            .iter()
            .all(|cost| close(cost.stall_s(), 3.0) && close(cost.compute_s, 20.0))
    );
}

#[test]
fn a_slower_rank_holds_up_the_others_whatever_the_plan() {
    let slow = Coefficients {
        step_s: 10.0,
        ..coefficients()
    };
    // A second is left of 1 + 40 / 4 s: the slow rank's steps hide the rest, also for the fast one.
    let fast_windows = training(vec![fetch(&[(1, 40)], 1, 0)], 2);
    let slow_windows = training(vec![], 2);
    let (fast, idle) = (coefficients(), training(vec![], 2));
    let of = |windows: &[WindowTraffic]| {
        let ranks = [
            RankTraffic {
                windows,
                coefficients: &fast,
            },
            RankTraffic {
                windows: &slow_windows,
                coefficients: &slow,
            },
        ];
        simulate_in_step(&ranks, Mode::Plan).unwrap()
    };
    let costs = of(&fast_windows);
    assert!(
        close(costs[0].stall_s(), 1.0) && close(costs[1].stall_s(), 1.0),
        "{costs:?}"
    );
    // Twelve idle seconds at 2 W beside two steps at 10 J.
    assert!(close(costs[0].compute_j, 20.0 + 24.0) && close(costs[0].compute_s, 20.0));
    assert!(close(costs[1].compute_j, 20.0) && close(costs[1].compute_s, 20.0));
    let without = of(&idle);
    assert_eq!((without[0].compute_j, without[0].stall_s()), (costs[0].compute_j, 0.0));
}

#[test]
fn what_no_step_waits_for_has_come_before_the_end() {
    let fill = |rows| {
        vec![WindowTraffic {
            deliveries: vec![fetch(&[(1, rows)], 0, 0)],
            ..WindowTraffic::default()
        }]
    };
    let costs = in_step(&[fill(8), fill(20)], &coefficients());
    assert!(costs.iter().all(|cost| close(cost.rebuild_stall_s, 6.0)), "{costs:?}");
    // A rank with fewer steps takes no part in the last ones; a number beyond all steps is no panic.
    let few = training(
        vec![fetch(&[(1, 8)], 0, u32::MAX), fetch(&[(2, 4)], u32::MAX, u32::MAX)],
        1,
    );
    let costs = in_step(&[few, training(vec![], 3)], &coefficients());
    assert!(close(costs[0].compute_s, 12.0) && close(costs[1].compute_s, 12.0));
    assert!(close(costs[0].stall_s(), 0.0), "{costs:?}");
}

/// Deliveries of one rank: owner, rows, issue gap, steps ahead, rows that are needed later.
type Drawn = Vec<(PartId, u64, u32, u32, u64)>;

const STEPS: u32 = 8;

fn drawn_rank() -> impl Strategy<Value = Drawn> {
    prop::collection::vec((0..3_u16, 0..60_u64, 0..STEPS, 0..4_u32, 0..60_u64), 0..10)
}

/// The last two steps evaluate.
fn windows(drawn: &Drawn) -> Vec<WindowTraffic> {
    let deliveries = drawn
        .iter()
        .map(|&(owner, rows, issue_gap, steps_ahead, later)| Delivery {
            later: vec![LaterTraffic {
                owner,
                steps: 2,
                rows: later.min(rows),
            }],
            ..fetch(&[(owner, rows), ((owner + 1) % 3, rows / 2)], issue_gap, steps_ahead)
        });
    vec![
        window(deliveries.collect(), 0..STEPS - 2, false),
        window(vec![], STEPS - 2..STEPS, true),
    ]
}

fn drawn_cluster() -> impl Strategy<Value = (Vec<Drawn>, Coefficients)> {
    let speeds = (0.0..2.0_f64, 0.0..0.3_f64, 1.0..20.0_f64, 0.1..8.0_f64, 0..3_u32);
    (prop::collection::vec(drawn_rank(), 1..5), speeds).prop_map(
        |(ranks, (request_s, row_s, bytes_per_s, step_s, ahead))| {
            let mut coefficients = coefficients();
            for owner in &mut coefficients.owners {
                (owner.request_s, owner.row_s) = (request_s, row_s);
            }
            (coefficients.bytes_per_s, coefficients.step_s, coefficients.ahead) = (bytes_per_s, step_s, ahead);
            (ranks, coefficients)
        },
    )
}

proptest! {
    #[test]
    fn all_ranks_wait_as_long_and_their_order_does_not_matter((ranks, coefficients) in drawn_cluster(), by in 0..5_usize) {
        let mut moved: Vec<Vec<WindowTraffic>> = ranks.iter().map(windows).collect();
        let mut costs = in_step(&moved, &coefficients);
        for cost in &costs {
            prop_assert!(close(cost.stall_s(), costs[0].stall_s()));
            prop_assert!(cost.own_stall_s <= cost.stall_s() + 1e-9);
            prop_assert_eq!(cost.compute_s, f64::from(STEPS) * coefficients.step_s);
        }
        let by = by % moved.len();
        moved.rotate_left(by);
        costs.rotate_left(by);
        for (one, other) in costs.iter().zip(in_step(&moved, &coefficients)) {
            prop_assert!(close(one.stall_s(), other.stall_s()) && close(one.own_stall_s, other.own_stall_s));
            prop_assert_eq!((one.rebuild_j, one.requests(), one.rows()), (other.rebuild_j, other.requests(), other.rows()));
        }
    }

    /// Owners are only names, to all ranks alike.
    #[test]
    fn owners_may_change_their_names((ranks, mut coefficients) in drawn_cluster(), by in 0..3_u16) {
        for (factor, owner) in [1.0, 2.0, 3.5].iter().zip(&mut coefficients.owners) {
            (owner.request_s, owner.row_s) = (owner.request_s * factor, owner.row_s * factor);
        }
        let moved: Vec<Vec<WindowTraffic>> = ranks.iter().map(windows).collect();
        let mut renamed = moved.clone();
        for delivery in renamed.iter_mut().flatten().flat_map(|window| &mut window.deliveries) {
            delivery.owners.iter_mut().for_each(|traffic| traffic.owner = (traffic.owner + by) % 3);
            delivery.later.iter_mut().for_each(|later| later.owner = (later.owner + by) % 3);
        }
        let as_named = in_step(&moved, &coefficients);
        coefficients.owners.rotate_right(usize::from(by));
        for (one, other) in as_named.iter().zip(in_step(&renamed, &coefficients)) {
            prop_assert!(close(one.stall_s(), other.stall_s()) && close(one.total_j(), other.total_j()));
        }
    }

    /// In step no rank waits less than it would alone, and like ranks wait as one does.
    #[test]
    fn company_never_makes_a_rank_wait_less((ranks, coefficients) in drawn_cluster()) {
        let moved: Vec<Vec<WindowTraffic>> = ranks.iter().map(windows).collect();
        let together = in_step(&moved, &coefficients)[0].stall_s();
        for windows in &moved {
            let alone = simulate(windows, &coefficients, Mode::Plan).unwrap();
            prop_assert!(alone.stall_s() <= together + 1e-9, "{} {together}", alone.stall_s());
            prop_assert!(close(alone.own_stall_s, alone.stall_s()));
            let twins = in_step(&[windows.clone(), windows.clone()], &coefficients);
            prop_assert!(close(twins[1].stall_s(), alone.stall_s()));
        }
    }

    #[test]
    fn slower_fetches_never_shorten_a_wait((ranks, coefficients) in drawn_cluster(), factor in 1.0..8.0_f64) {
        let moved: Vec<Vec<WindowTraffic>> = ranks.iter().map(windows).collect();
        let stall_s = |factor| in_step(&moved, &coefficients.with_slower_fetches(factor))[0].stall_s();
        prop_assert!(stall_s(1.0) <= stall_s(factor) + 1e-9);
        prop_assert!(close(stall_s(1e-12), 0.0));
    }
}
