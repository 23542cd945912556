use std::sync::Arc;

use greengnn_model::book::{PartId, PartitionBook};
use greengnn_model::plan::{self, CacheState, WindowPlan};
use greengnn_model::policy::{MemoryTrace, PlanInput, policy_by_name};
use greengnn_model::rng::Purpose;
use proptest::prelude::*;

use super::ranking::{sign, tie_same_programs};
use super::*;

mod paper;

fn asked(owner: PartId, requests: u64, rows: u64) -> OwnerTraffic {
    OwnerTraffic {
        owner,
        requests,
        deliveries: requests,
        rows,
    }
}

fn missed(step: u32, owners: Vec<OwnerTraffic>) -> Delivery {
    Delivery {
        owners,
        issue_gap: step,
        ..Delivery::default()
    }
}

/// Two owners, the second of which is twice as dear.
fn coefficients() -> Coefficients {
    let near = FetchCost {
        request_j: 1.0,
        row_j: 0.01,
        request_s: 0.1,
        row_s: 0.001,
    };
    let far = FetchCost {
        request_j: 2.0,
        row_j: 0.02,
        request_s: 0.2,
        row_s: 0.002,
    };
    Coefficients {
        owners: vec![near, far],
        delivery: None,
        row_bytes: 400.0,
        bytes_per_s: f64::INFINITY,
        idle_w: 10.0,
        ahead: 0,
        step_s: 0.05,
        step_j: 3.0,
    }
}

/// Two windows of two steps; the second delivery has the first window to hide behind.
fn two_windows() -> Vec<WindowTraffic> {
    let first = WindowTraffic {
        deliveries: vec![Delivery {
            owners: vec![asked(0, 1, 100), asked(1, 1, 50)],
            ..Delivery::default()
        }],
        misses: vec![missed(0, vec![asked(0, 1, 10)]), missed(1, vec![])],
        ..WindowTraffic::default()
    };
    let second = WindowTraffic {
        deliveries: vec![Delivery {
            owners: vec![asked(0, 1, 100)],
            steps_ahead: 2,
            ..Delivery::default()
        }],
        misses: vec![missed(2, vec![]), missed(3, vec![asked(1, 1, 5)])],
        ..WindowTraffic::default()
    };
    vec![first, second]
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn the_paper_charges_every_delivery_and_the_plan_what_is_exposed() {
    let paper = simulate(&two_windows(), &coefficients(), Mode::Paper).unwrap();
    // 1 + 1 and 2 + 1 joules, then 1 + 1; misses 1 + 0.1 and 2 + 0.1.
    assert!(close(paper.rebuild_j, 7.0) && close(paper.miss_j, 3.2), "{paper:?}");
    // The slower owner: max(0.2, 0.3), then 0.2; misses 0.11 and 0.21.
    assert!(close(paper.rebuild_stall_s, 0.5) && close(paper.miss_stall_s, 0.32));
    assert!(close(paper.stall_j, 8.2) && close(paper.physical_j(), 18.4));
    assert!(close(paper.compute_j, 12.0) && close(paper.compute_s, 0.2) && close(paper.total_j(), 30.4));
    assert_eq!((paper.rebuild_requests, paper.rebuild_rows), (3, 250));
    assert_eq!((paper.miss_requests, paper.miss_rows), (2, 15));
    assert_eq!((paper.requests(), paper.rows()), (5, 265));

    // Step 0 waits for its miss, which its owner sends after what it delivers: 0.2 + 0.11 s. The second delivery
    // follows it, there at 0.51 s; step 2 could begin at 0.41 s. Step 3 asks once it could begin, and waits 0.21 s.
    let plan = simulate(&two_windows(), &coefficients(), Mode::Plan).unwrap();
    assert!(
        close(plan.miss_stall_s, 0.31 + 0.21) && close(plan.rebuild_stall_s, 0.1),
        "{plan:?}"
    );
    assert!(close(plan.stall_j, 6.2) && plan.own_stall_s == plan.stall_s());
    assert_eq!((plan.rebuild_j, plan.rows()), (paper.rebuild_j, paper.rows()));

    let hidden = Coefficients {
        step_s: 1.0,
        ..coefficients()
    };
    let hidden = simulate(&two_windows(), &hidden, Mode::Plan).unwrap();
    assert!(
        hidden.rebuild_stall_s == 0.0 && close(hidden.miss_stall_s, 0.52),
        "the second delivery comes while step 0 is trained: {hidden:?}"
    );
}

#[test]
fn the_link_bounds_an_event_that_its_owners_would_answer_faster() {
    let narrow = Coefficients {
        bytes_per_s: 60_000.0,
        ..coefficients()
    };
    let cost = simulate(&two_windows(), &narrow, Mode::Paper).unwrap();
    // 150 rows of 400 bytes take 1 s, then 100 rows 2/3 s; the misses are bound by their owners.
    assert!(close(cost.rebuild_stall_s, 1.0 + 2.0 / 3.0) && close(cost.miss_stall_s, 0.32));
}

#[test]
fn batches_that_are_assembled_ahead_hide_a_step_except_at_the_start() {
    let ahead = Coefficients {
        ahead: 1,
        ..coefficients()
    };
    let cost = simulate(&two_windows(), &ahead, Mode::Plan).unwrap();
    // Nothing is trained before step 0. Step 3 asks while step 2 is trained, which hides 0.05 of its 0.21 s.
    assert!(close(cost.miss_stall_s, 0.31 + 0.16), "{cost:?}");
    let paper = simulate(&two_windows(), &ahead, Mode::Paper).unwrap();
    assert!(close(paper.stall_s(), 0.82), "the paper waits in full: {paper:?}");
}

#[test]
fn a_step_waits_for_the_rows_that_it_needs_and_not_for_later_ones() {
    let later = |steps, rows| LaterTraffic { owner: 0, steps, rows };
    let windows = |later: Vec<LaterTraffic>| {
        let fetch = Delivery {
            owners: vec![asked(0, 1, 100)],
            later,
            ..Delivery::default()
        };
        let others = (1..6).map(|step| missed(step, vec![]));
        [WindowTraffic {
            deliveries: vec![],
            misses: std::iter::once(fetch).chain(others).collect(),
            ..WindowTraffic::default()
        }]
    };
    let stall = |later, bytes_per_s| {
        let coefficients = Coefficients {
            bytes_per_s,
            ..coefficients()
        };
        simulate(&windows(later), &coefficients, Mode::Plan).unwrap().stall_s()
    };
    let wide = f64::INFINITY;
    assert!(close(stall(vec![], wide), 0.2));
    // 0.1 s and 40 rows of 1 ms; the others have 2 and 4 steps of 50 ms more.
    assert!(close(stall(vec![later(2, 30), later(4, 30)], wide), 0.14));
    // Ten rows in 0.11 s. The second step could begin 0.05 s later, and its rows are there at 0.2 s.
    assert!(close(stall(vec![later(1, 90)], wide), 0.15));
    // Over a narrow link 10 rows take 0.4 s after the initiation, and all of them 4 s, of which 0.2 s are hidden.
    assert!(close(stall(vec![later(4, 90)], 10_000.0), 3.9));
    // What no step of the epoch needs has come when it ends: 0.11 s, and 0.3 s of training hide the rest.
    assert!(close(stall(vec![later(9, 90)], wide), 0.11));
    assert!(close(stall(vec![later(9, 90)], 10_000.0), 0.5 + 3.3));
}

#[test]
fn ranks_add_up() {
    let one = simulate(&two_windows(), &coefficients(), Mode::Plan).unwrap();
    let both: SimulatedCost = [one, one].into_iter().sum();
    assert!(close(both.total_j(), 2.0 * one.total_j()) && close(both.stall_s(), 2.0 * one.stall_s()));
    assert_eq!(both.rows(), 2 * one.rows());
}

#[test]
fn coefficients_and_owners_that_are_not_there_are_errors() {
    let bad = Coefficients {
        idle_w: -1.0,
        ..coefficients()
    };
    assert_eq!(
        simulate(&[], &bad, Mode::Plan),
        Err(SimulationError::BadCoefficient {
            name: "idle_w",
            value: -1.0
        })
    );
    for bytes_per_s in [0.0, f64::NAN] {
        let bad = Coefficients {
            bytes_per_s,
            ..coefficients()
        };
        assert!(simulate(&[], &bad, Mode::Plan).is_err());
    }
    let unknown = [WindowTraffic {
        deliveries: vec![],
        misses: vec![missed(0, vec![asked(2, 1, 1)])],
        ..WindowTraffic::default()
    }];
    let error = simulate(&unknown, &coefficients(), Mode::Plan).unwrap_err();
    assert_eq!(error, SimulationError::UnknownOwner { owner: 2, measured: 2 });
}

/// The plan of a rank whose other two parts have 40 nodes each, for an epoch of `steps` batches of 24 of them.
fn planned(policy: &str, budget_rows: u32, window: u32, steps: u32) -> Vec<WindowPlan> {
    let book = PartitionBook::new(vec![0, 10, 50, 90]).unwrap();
    let batches: Vec<Vec<u32>> = (0..steps)
        .map(|step| {
            // A third of the rows comes back in every batch.
            let mut nodes: Vec<u32> = (0..8)
                .map(|node| 10 + node * 9)
                .chain((0..16).map(|node| 10 + (step * 7 + node * 13) % 80))
                .collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        })
        .collect();
    let trace = MemoryTrace::from_nodes(&book, batches.iter().map(|nodes| (Purpose::Train, &nodes[..])));
    let policy = policy_by_name(policy).unwrap();
    let mut planner = policy
        .plan(PlanInput {
            rank: 0,
            budget_rows: policy.budget_rows(&book, 0, budget_rows),
            book: Arc::new(book),
            window,
            trace: Arc::new(trace),
            next: None,
            from_step: 0,
            state: CacheState::default(),
        })
        .unwrap();
    std::iter::from_fn(|| planner.next_window().unwrap()).collect()
}

fn three_owners() -> Coefficients {
    let cost = coefficients().owners[0];
    Coefficients {
        owners: vec![cost; 3],
        ..coefficients()
    }
}

#[test]
fn requests_and_rows_are_those_that_the_plan_executes() {
    for policy in ["on-demand", "window", "bulk", "lru"] {
        for (budget, window) in [(0, 1), (10, 2), (20, 4), (80, 16)] {
            let plan = planned(policy, budget, window, 10);
            let cost = simulate(
                &traffic_of_plan(&plan, plan::Delivery::Windowed),
                &three_owners(),
                Mode::Plan,
            )
            .unwrap();
            let requests: Vec<_> = plan.iter().flat_map(|window| &window.requests).collect();
            let rows: usize = requests.iter().map(|request| request.rows.len()).sum();
            assert_eq!(
                (cost.requests(), cost.rows()),
                (requests.len() as u64, rows as u64),
                "{policy} with {budget} rows and windows of {window}"
            );
            assert!(close(cost.compute_s, 0.5));
        }
    }
}

#[test]
fn without_a_cache_all_are_misses_and_with_room_for_all_there_is_none() {
    let none = simulate(
        &traffic_of_plan(&planned("on-demand", 0, 4, 10), plan::Delivery::Windowed),
        &three_owners(),
        Mode::Plan,
    )
    .unwrap();
    assert!(none.rebuild_requests == 0 && none.miss_rows > 0);
    let all = simulate(
        &traffic_of_plan(&planned("window", 80, 4, 10), plan::Delivery::Windowed),
        &three_owners(),
        Mode::Plan,
    )
    .unwrap();
    assert!(all.miss_requests == 0 && all.rebuild_rows > 0, "{all:?}");
}

#[test]
fn the_first_window_is_exposed_and_later_ones_have_steps_to_hide_behind() {
    let traffic = traffic_of_plan(&planned("window", 80, 4, 12), plan::Delivery::Windowed);
    assert_eq!(traffic.len(), 3);
    assert!(traffic[0].deliveries.iter().all(|delivery| delivery.steps_ahead == 0));
    let later: Vec<u32> = traffic[1..]
        .iter()
        .flat_map(|window| &window.deliveries)
        .map(|delivery| delivery.steps_ahead)
        .collect();
    assert!(!later.is_empty() && later.iter().all(|steps| *steps > 0), "{later:?}");
}

#[test]
fn windows_of_at_least_an_epoch_are_one_program_and_a_tie() {
    let cost = |window| {
        let traffic = traffic_of_plan(&planned("window", 20, window, 10), plan::Delivery::Windowed);
        let cost = simulate(&traffic, &three_owners(), Mode::Plan).unwrap();
        (window, cost.physical_j())
    };
    let costs = [1, 2, 4, 8, 16, 32, 64].map(cost);
    assert_eq!((costs[4].1, costs[5].1), (costs[5].1, costs[6].1));
    let groups = rank_windows(&costs, 10).unwrap();
    assert!(groups.iter().any(|group| group.windows == [16, 32, 64]), "{groups:?}");

    // Measured, their differences are noise.
    let groups = rank_windows(&[(64, 9.0), (8, 12.0), (16, 11.0), (32, 13.0)], 16).unwrap();
    let expected = [
        TieGroup {
            rank: 1,
            windows: vec![16, 32, 64],
            joules: 11.0,
        },
        TieGroup {
            rank: 4,
            windows: vec![8],
            joules: 12.0,
        },
    ];
    assert_eq!(groups, expected);
}

#[test]
fn candidates_that_cannot_be_ordered_are_errors() {
    assert_eq!(rank_windows(&[], 10), Err(RankError::NoCandidate));
    assert_eq!(
        rank_windows(&[(1, 1.0), (1, 2.0)], 10),
        Err(RankError::Twice { window: 1 })
    );
    assert_eq!(
        rank_windows(&[(1, 1.0), (2, f64::NAN)], 10),
        Err(RankError::NotFinite { window: 2 })
    );
}

#[test]
fn tau_b_of_known_lists() {
    let tau = |a: &[f64], b: &[f64]| kendall_tau_b(a, b);
    assert_eq!(tau(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), Some(1.0));
    assert_eq!(tau(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
    // Five pairs agree and one of the six is a tie on one side.
    let tied = tau(&[1.0, 2.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert!(close(tied, 5.0 / 30_f64.sqrt()));
    assert_eq!(tau(&[1.0, 1.0], &[1.0, 2.0]), None);
    assert_eq!(tau(&[1.0], &[1.0]), None);
    assert_eq!(tau(&[1.0, 2.0], &[1.0]), None);
}

fn configuration(name: &str, simulated: &[f64], measured: &[f64]) -> Configuration {
    Configuration {
        name: name.to_owned(),
        windows: vec![1, 2, 4],
        steps: None,
        simulated: simulated.to_vec(),
        measured: Measured::Joules(measured.to_vec()),
    }
}

#[test]
fn a_simulator_that_follows_the_machine_is_told_from_a_constant() {
    let configurations = [
        configuration("a", &[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]),
        configuration("b", &[3.0, 2.0, 1.0], &[30.0, 20.0, 10.0]),
        configuration("c", &[3.0, 2.0, 1.0], &[33.0, 20.0, 11.0]),
    ];
    let evaluation = evaluate(&configurations, 0.0).unwrap();
    assert_eq!(
        (evaluation.simulator.top_1, evaluation.simulator.mean_tau_b),
        (3, Some(1.0))
    );
    assert_eq!(evaluation.simulator.worst_regret, Some(0.0));
    assert_eq!(evaluation.constant_order, [4, 2, 1]);
    let constant = evaluation.constant_in_hindsight;
    assert_eq!((constant.top_1, constant.worst_regret), (2, Some(2.0)));
    assert!(close(constant.mean_tau_b.unwrap(), 1.0 / 3.0));
    let text = evaluation.to_string();
    assert!(
        text.contains("simulator: best 3/3, mean tau-b 1.000, regret 0.0 % (worst 0.0 %)"),
        "{text}"
    );
    assert!(
        text.contains("constant order [4, 2, 1], chosen in hindsight: best 2/3, mean tau-b 0.333"),
        "{text}"
    );
    assert!(text.contains("chosen on the other configurations: best "), "{text}");
}

#[test]
fn a_pick_within_the_noise_is_the_best() {
    let configurations = [configuration("a", &[1.0, 2.0, 3.0], &[10.1, 10.0, 30.0])];
    assert_eq!(evaluate(&configurations, 0.0).unwrap().simulator.top_1, 0);
    let evaluation = evaluate(&configurations, 0.02).unwrap();
    assert_eq!(evaluation.simulator.top_1, 1);
    assert!(evaluation.constant_from_others.is_none());
    assert!(close(evaluation.simulator.mean_regret.unwrap(), 0.01));
}

#[test]
fn configurations_that_do_not_fit_together_are_errors() {
    let a = configuration("a", &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
    assert_eq!(evaluate(&[], 0.0), Err(RankError::NoCandidate));
    let other = Configuration {
        windows: vec![1, 2, 8],
        ..configuration("b", &[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0])
    };
    assert!(matches!(
        evaluate(&[a.clone(), other], 0.0),
        Err(RankError::OtherWindows { .. })
    ));
    let short = configuration("c", &[1.0, 2.0, 3.0], &[1.0, 2.0]);
    assert!(matches!(evaluate(&[a, short], 0.0), Err(RankError::Lengths { .. })));
    let many = Configuration {
        name: "many".to_owned(),
        windows: (1..=15).collect(),
        steps: None,
        simulated: vec![1.0; 15],
        measured: Measured::Ranks(vec![1.0; 15]),
    };
    assert!(matches!(evaluate(&[many], 0.0), Err(RankError::TooMany { .. })));
}

/// The most that any of all orders of the windows scores.
fn best_by_trying_all(configurations: &[Configuration]) -> f64 {
    fn orders(left: Vec<f64>, taken: Vec<f64>, all: &mut Vec<Vec<f64>>) {
        if left.is_empty() {
            all.push(taken.clone());
        }
        for index in 0..left.len() {
            let (mut left, mut taken) = (left.clone(), taken.clone());
            taken.push(left.remove(index));
            orders(left, taken, all);
        }
    }
    let mut all = Vec::new();
    let windows = configurations[0].windows.len();
    orders((0..windows).map(|rank| rank as f64).collect(), Vec::new(), &mut all);
    let score = |order: &Vec<f64>| {
        let taus = configurations
            .iter()
            .filter_map(|configuration| match &configuration.measured {
                Measured::Joules(measured) | Measured::Ranks(measured) => kendall_tau_b(order, measured),
            });
        taus.sum::<f64>()
    };
    all.iter().map(score).fold(f64::NEG_INFINITY, f64::max)
}

proptest! {
    #[test]
    fn the_best_constant_order_is_the_best_of_all(
        measured in prop::collection::vec(prop::collection::vec(0_u32..6, 5), 1..6),
    ) {
        let configurations: Vec<Configuration> = measured
            .iter()
            .filter(|costs| costs.iter().any(|cost| *cost != costs[0]))
            .map(|costs| Configuration {
                name: "drawn".to_owned(),
                windows: vec![1, 2, 4, 8, 16],
                steps: None,
                simulated: vec![1.0, 2.0, 3.0, 4.0, 5.0],
                measured: Measured::Joules(costs.iter().map(|cost| f64::from(*cost)).collect()),
            })
            .collect();
        prop_assume!(!configurations.is_empty());
        let evaluation = evaluate(&configurations, 0.0).unwrap();
        let score = evaluation.constant_in_hindsight.mean_tau_b.unwrap() * configurations.len() as f64;
        prop_assert!((score - best_by_trying_all(&configurations)).abs() < 1e-9);
        prop_assert!(evaluation.simulator.mean_tau_b.unwrap() * configurations.len() as f64 <= score + 1e-9);
    }

    /// Joules or kilojoules: the costs scale and the order stays.
    #[test]
    fn the_order_does_not_depend_on_the_unit(costs in prop::collection::vec(1.0..1e6_f64, 7)) {
        let in_unit = |factor: f64| -> Vec<(u32, f64)> {
            costs.iter().enumerate().map(|(index, cost)| (1 << index, cost * factor)).collect()
        };
        let order = |factor| -> Vec<Vec<u32>> {
            rank_windows(&in_unit(factor), 39).unwrap().into_iter().map(|group| group.windows).collect()
        };
        // A power of two, so that rounding makes no new ties.
        prop_assert_eq!(order(1.0), order(1.0 / 1024.0));
    }

    /// Owners are only names.
    #[test]
    fn owners_may_change_places(rows in prop::collection::vec((0_u64..50, 0_u64..50), 1..20), steps_ahead in 0_u32..4) {
        let windows = |first: PartId, second: PartId| -> Vec<WindowTraffic> {
            rows.iter()
                .map(|(a, b)| WindowTraffic {
                    deliveries: vec![Delivery {
                        owners: vec![asked(first, 1, *a), asked(second, 1, *b)],
                        steps_ahead,
                        ..Delivery::default()
                    }],
                    misses: vec![missed(0, vec![asked(second, 1, *a)]), missed(1, vec![asked(first, 1, *b)])],
                    ..WindowTraffic::default()
                })
                .collect()
        };
        let as_named = coefficients();
        let mut exchanged = coefficients();
        exchanged.owners.reverse();
        for mode in [Mode::Paper, Mode::Plan] {
            let one = simulate(&windows(0, 1), &as_named, mode).unwrap();
            let other = simulate(&windows(1, 0), &exchanged, mode).unwrap();
            prop_assert!(close(one.total_j(), other.total_j()) && close(one.stall_s(), other.stall_s()));
        }
    }

    /// What the plan hides the paper charges. (Where the link is the bound the paper leaves the initiation out.)
    #[test]
    fn the_paper_never_stalls_less(rows in prop::collection::vec((0_u64..500, 0_u32..8), 1..20)) {
        let windows: Vec<WindowTraffic> = rows
            .iter()
            .map(|(rows, steps_ahead)| WindowTraffic {
                deliveries: vec![Delivery {
                    owners: vec![asked(0, 1, *rows)],
                    steps_ahead: *steps_ahead,
                    ..Delivery::default()
                }],
                misses: vec![missed(0, vec![asked(1, 1, *rows)])],
                ..WindowTraffic::default()
            })
            .collect();
        let paper = simulate(&windows, &coefficients(), Mode::Paper).unwrap();
        let plan = simulate(&windows, &coefficients(), Mode::Plan).unwrap();
        prop_assert!(plan.stall_s() <= paper.stall_s() * (1.0 + 1e-9));
        prop_assert_eq!(plan.rebuild_j, paper.rebuild_j);
    }

    #[test]
    fn programs_that_are_the_same_are_exact_ties(costs in prop::collection::vec(0.1..1e3_f64, 7), steps in 1_u32..80) {
        let windows = [1, 2, 4, 8, 16, 32, 64];
        let tied = tie_same_programs(&windows, steps, &costs);
        for i in 0..7 {
            for j in 0..i {
                if windows[i].min(steps) == windows[j].min(steps) {
                    prop_assert_eq!(sign(tied[i] - tied[j]), 0.0);
                }
            }
            if windows[i] < steps {
                prop_assert_eq!(tied[i], costs[i]);
            }
        }
    }
}
