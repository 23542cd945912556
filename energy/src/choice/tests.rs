use std::sync::Arc;

use greengnn_model::book::PartitionBook;
use greengnn_model::policy::MemoryTrace;
use greengnn_model::policy::conformance::{Case, check_delivered};
use greengnn_model::policy::policy_for;
use greengnn_model::rng::Purpose;
use proptest::prelude::*;

use super::*;
use crate::calibration::{CalibrationOptions, Candidate, MeasuredCost, Setting};
use crate::simulator::FetchCost;

const PART_NODES: u32 = 8;
const PARTS: PartId = 3;

fn book() -> Arc<PartitionBook> {
    Arc::new(PartitionBook::new((0..=u32::from(PARTS)).map(|part| part * PART_NODES).collect()).unwrap())
}

/// Per rank, epoch and step a bit per node of the graph.
type Bits = Vec<Vec<Vec<u32>>>;

/// Two ranks, whose epochs end with a step of validation.
fn workload(bits: &Bits) -> Workload {
    let book = book();
    let trace = |rank: Rank, steps: &Vec<u32>| {
        let own = book.range(rank);
        let nodes: Vec<Vec<u32>> = steps
            .iter()
            .map(|bits| {
                let needed = (0..book.nodes()).filter(|node| bits >> node & 1 == 1);
                needed.filter(|node| !own.contains(node)).collect()
            })
            .collect();
        let steps = nodes.iter().enumerate().map(|(step, rows)| {
            let is_last = nodes.len() > 1 && step + 1 == nodes.len();
            (if is_last { Purpose::Valid } else { Purpose::Train }, &rows[..])
        });
        Arc::new(MemoryTrace::from_nodes(&book, steps)) as Arc<dyn RemoteTrace>
    };
    let ranks = (0..).zip(bits).map(|(rank, epochs)| RankTraces {
        rank,
        epochs: epochs.iter().map(|steps| trace(rank, steps)).collect(),
        held: None,
        tuned: Tuned::default(),
    });
    Workload {
        ranks: ranks.collect(),
        book: Arc::clone(&book),
        row_bytes: 4,
        run_epochs: 10,
    }
}

fn drawn() -> impl Strategy<Value = Bits> {
    (1..=2_usize).prop_flat_map(|epochs| {
        let steps = prop::collection::vec(any::<u32>(), 0..7);
        prop::collection::vec(prop::collection::vec(steps, epochs), 2)
    })
}

fn prices() -> Prices {
    let owner = |factor: f64| FetchCost {
        request_j: factor,
        row_j: 0.125 * factor,
        request_s: 0.25 * factor,
        row_s: 0.0625 * factor,
    };
    let coefficients = Coefficients {
        owners: vec![owner(1.0), owner(2.0), owner(1.0)],
        delivery: None,
        row_bytes: 4.0,
        bytes_per_s: 100.0,
        idle_w: 2.0,
        ahead: 1,
        step_s: 0.5,
        step_j: 1.0,
    };
    Prices {
        by_rank: vec![coefficients; 2],
        quality: Quality::Estimated,
        doubts: vec!["owner 1: joules per row".to_owned()],
        fingerprint: None,
    }
}

fn percent(percent: u32) -> Budget {
    Budget::Share {
        millionths: percent * 10_000,
    }
}

fn candidates(budgets: &[u32]) -> Candidates {
    Candidates::with_budgets(budgets.iter().map(|share| percent(*share)).collect())
}

/// Five steps that share half of their rows.
fn example() -> Workload {
    let epoch = |seed: u32| -> Vec<u32> {
        (0..6)
            .map(|step| 0x00f0_f0f0 ^ (0x0101_0101_u32 << ((step + seed) % 8)))
            .collect()
    };
    workload(&vec![vec![epoch(0), epoch(3)], vec![epoch(5), epoch(6)]])
}

/// Windows and whether they tie with the one before, in the order of a choice.
fn order(choice: &Choice) -> Vec<(Method, u32, u32)> {
    let place = |one: &Prediction| (one.method.clone(), one.window, one.rank);
    choice.predictions.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_predicted_is_what_the_executor_moves(bits in drawn(), share in 0..=100_u32) {
        let workload = workload(&bits);
        let mut all = candidates(&[share]);
        for policy in ["on-demand", "lru", "epoch", "full"] {
            all.methods.push(Method::new(policy, Delivery::Windowed));
            all.methods.push(Method::new(policy, Delivery::Stream));
        }
        all.windows = vec![1, 2, 5, 64];
        let choice = choose(&workload, &all, &prices(), None, Mode::Plan).unwrap();
        prop_assert_eq!(choice.predictions.len(), all.methods.len() * 4);
        for prediction in &choice.predictions {
            let policy = policy_for(&prediction.method.policy, prediction.method.delivery).unwrap();
            let (mut requests, mut deliveries, mut rows) = (0, 0, 0);
            for traces in &workload.ranks {
                let remote = workload.book.remote_nodes(traces.rank);
                let case = Case {
                    book: Arc::clone(&workload.book),
                    rank: traces.rank,
                    epochs: traces.epochs.clone(),
                    asked_rows: prediction.budget.rows(4, remote),
                    window: prediction.window,
                    from_step: 0,
                    with_next: true,
                };
                let executed = check_delivered(&*policy, &case, None, prediction.method.delivery).unwrap();
                requests += executed.feature_requests();
                deliveries += executed.deliveries();
                rows += executed.feature_rows();
            }
            for mode in [Mode::Paper, Mode::Plan] {
                let mut cost = *prediction.cost(mode);
                cost += prediction.setup;
                prop_assert_eq!(
                    (cost.requests(), cost.deliveries(), cost.rows()),
                    (requests, deliveries, rows),
                    "{:?} {}", prediction.method, prediction.window
                );
            }
        }
    }

    #[test]
    fn windows_of_an_epoch_tie_and_a_budget_for_all_rows_leaves_no_miss(bits in drawn(), share in 0..100_u32) {
        let workload = workload(&bits);
        let choice = choose(&workload, &candidates(&[share, 100]), &prices(), None, Mode::Plan).unwrap();
        // At most five steps of training, since the last is one of validation.
        for prediction in choice.predictions.iter().filter(|one| one.method.policy == "window") {
            let others = choice.predictions.iter().filter(|other| {
                other.method == prediction.method && other.budget == prediction.budget && other.window >= 8
            });
            for other in others.filter(|_| prediction.window >= 8) {
                prop_assert_eq!((other.rank, other.epoch_j), (prediction.rank, prediction.epoch_j));
                prop_assert_eq!(other.paper, prediction.paper);
            }
            if prediction.budget == percent(100) {
                prop_assert_eq!(prediction.plan.miss_rows + prediction.plan.miss_requests, 0);
                prop_assert_eq!(prediction.plan.miss_j + prediction.plan.miss_stall_s, 0.0);
            }
        }
    }

    /// Joules or units of 1024 joules, which rounding does not tell apart.
    #[test]
    fn the_choice_does_not_depend_on_the_unit(bits in drawn(), share in 0..=100_u32) {
        let workload = workload(&bits);
        let mut scaled = prices();
        let unit = 1.0 / 1024.0;
        for rank in &mut scaled.by_rank {
            for owner in &mut rank.owners {
                owner.request_j *= unit;
                owner.row_j *= unit;
            }
            rank.idle_w *= unit;
            rank.step_j *= unit;
        }
        for mode in [Mode::Paper, Mode::Plan] {
            let one = choose(&workload, &candidates(&[share]), &prices(), None, mode).unwrap();
            let other = choose(&workload, &candidates(&[share]), &scaled, None, mode).unwrap();
            prop_assert_eq!(order(&one), order(&other));
            prop_assert_eq!((&one.pick.method, one.pick.window), (&other.pick.method, other.pick.window));
            prop_assert_eq!(one.pick.epoch_j * unit, other.pick.epoch_j);
        }
    }

    #[test]
    fn a_calibration_without_weights_changes_no_order(bits in drawn(), share in 0..=100_u32) {
        let workload = workload(&bits);
        let plain = choose(&workload, &candidates(&[share]), &prices(), None, Mode::Plan).unwrap();
        let mut calibration = learnt();
        calibration.beta = [0.0; 4];
        let calibrated = choose(&workload, &candidates(&[share]), &prices(), Some(&calibration), Mode::Plan).unwrap();
        prop_assert!(calibrated.is_calibrated);
        prop_assert_eq!(order(&plain), order(&calibrated));
        prop_assert_eq!(plain.pick.window, calibrated.pick.window);
    }
}

/// A calibration to which a stall is worth more than the simulator says, and that is used.
fn learnt() -> Calibration {
    let candidates = (0..7).map(|index| Candidate {
        window: 1 << index,
        physical_j: f64::from(7 - index),
        features: [0.0, 0.0, f64::from(index * index), 1.0],
        measured: Some(MeasuredCost {
            mean: f64::from(index),
            half_width: 0.0,
        }),
    });
    let setting = Setting {
        name: "graph".to_owned(),
        steps: 100,
        candidates: candidates.collect(),
    };
    let here = Fingerprint::of_this_computer(Vec::new());
    let calibration = Calibration::learn(&[setting], CalibrationOptions::default(), here, Mode::Plan).unwrap();
    assert!(calibration.is_used);
    calibration
}

#[test]
fn a_calibration_orders_windows_and_joules_order_the_rest() {
    let mut all = candidates(&[20]);
    all.methods.truncate(1);
    let plain = choose(&example(), &all, &prices(), None, Mode::Plan).unwrap();
    // What asks least is what costs least here, and the weight makes it the worst.
    let mut calibration = learnt();
    calibration.beta = [-100.0, 0.0, 0.0, 0.0];
    let calibrated = choose(&example(), &all, &prices(), Some(&calibration), Mode::Plan).unwrap();
    assert_ne!(plain.pick.window, calibrated.pick.window);
    let most = calibrated.predictions.iter().map(|one| one.plan.rebuild_requests).max();
    assert_eq!(Some(calibrated.pick.plan.rebuild_requests), most);
    assert!(
        calibrated.why.contains("a calibration ordered the windows"),
        "{}",
        calibrated.why
    );
    calibration.is_used = false;
    let refused = choose(&example(), &all, &prices(), Some(&calibration), Mode::Plan).unwrap();
    assert_eq!((refused.is_calibrated, refused.pick), (false, plain.pick));
}

#[test]
fn the_pick_has_the_fewest_joules_and_of_equals_the_smaller_budget() {
    let choice = choose(&example(), &candidates(&[10, 50, 100]), &prices(), None, Mode::Plan).unwrap();
    let fewest = choice
        .predictions
        .iter()
        .map(|one| one.epoch_j)
        .fold(f64::INFINITY, f64::min);
    assert_eq!(choice.pick.epoch_j, fewest);
    // Without a cache the budget changes nothing.
    let mut nothing = candidates(&[50, 0]);
    nothing.methods = vec![Method::new("on-demand", Delivery::Windowed)];
    let choice = choose(&example(), &nothing, &prices(), None, Mode::Plan).unwrap();
    assert_eq!((choice.pick.budget_rows, choice.pick.window), (0, 1));
    assert!(choice.predictions.iter().all(|one| one.rank == 1));
    assert!(
        choice.why.contains("the same with windows of 2, 4, 8, 16, 32, 64"),
        "{}",
        choice.why
    );
}

#[test]
fn a_stream_asks_each_owner_once_an_epoch_and_its_deliveries_have_a_price() {
    let mut streamed = candidates(&[20]);
    streamed.methods.retain(|method| method.delivery == Delivery::Stream);
    let free = choose(&example(), &streamed, &prices(), None, Mode::Plan).unwrap();
    // Two ranks, two owners, two epochs.
    assert_eq!(free.pick.plan.requests(), 8);
    assert!(free.pick.plan.deliveries() > 8);
    assert!(
        free.doubts.iter().any(|doubt| doubt.contains("a delivery of a stream")),
        "{free}"
    );
    let mut prices = prices();
    for rank in &mut prices.by_rank {
        rank.delivery = Some(crate::simulator::DeliveryCost {
            delivery_j: 0.5,
            delivery_s: 0.0,
        });
    }
    let priced = choose(&example(), &streamed, &prices, None, Mode::Plan).unwrap();
    let unasked = (priced.pick.plan.deliveries() - 8) as f64;
    let difference = priced.pick.plan.physical_j() - free.pick.plan.physical_j();
    assert!((difference - 0.5 * unasked).abs() < 1e-9, "{difference} for {unasked}");
    assert!(
        !priced
            .doubts
            .iter()
            .any(|doubt| doubt.contains("a delivery of a stream"))
    );
}

#[test]
fn a_choice_is_written_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("choice.json");
    let choice = choose(&example(), &candidates(&[25]), &prices(), None, Mode::Plan).unwrap();
    choice.save(&path).unwrap();
    // Reading a number from JSON may lose its last bit.
    assert_eq!(Choice::load(&path).unwrap().to_string(), choice.to_string());
    let text = choice.to_string();
    assert!(
        text.contains("joules are estimated; ") && text.contains("not to be trusted: owner 1"),
        "{text}"
    );
    let stored = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        stored.replacen("\"format_version\": 2", "\"format_version\": 7", 1),
    )
    .unwrap();
    assert!(matches!(
        Choice::load(&path),
        Err(ChoiceError::OtherFormat { found: 7 })
    ));
}

#[test]
fn what_cannot_be_chosen_from_is_refused_by_name() {
    let refused = |workload: &Workload, candidates: &Candidates, prices: &Prices| {
        let error = choose(workload, candidates, prices, None, Mode::Plan).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error} {}", source.unwrap_or_default())
    };
    let all = candidates(&[20]);
    let without = |change: fn(&mut Candidates)| {
        let mut all = all.clone();
        change(&mut all);
        refused(&example(), &all, &prices())
    };
    assert!(without(|all| all.windows.clear()).contains("no window to choose from"));
    assert!(without(|all| all.windows.push(1)).contains("window 1 stands twice"));
    assert!(without(|all| all.windows.push(0)).contains("a window needs at least one step"));
    assert!(without(|all| all.budgets.clear()).contains("no budget"));
    assert!(without(|all| all.methods.push(Method::new("none", Delivery::Windowed))).contains("no policy \"none\""));
    let by_score = without(|all| all.methods.push(Method::new("vip", Delivery::Windowed)));
    assert!(
        by_score.contains("policy vip") && by_score.contains("scores"),
        "{by_score}"
    );

    let mut workload = example();
    workload.ranks[1].epochs.pop();
    assert!(refused(&workload, &all, &prices()).contains("rank 1 has 1 traced epochs and the first rank 2"));
    workload.ranks[1].rank = 0;
    assert!(refused(&workload, &all, &prices()).contains("rank 0 stands twice"));
    workload.ranks[1].rank = 9;
    assert!(refused(&workload, &all, &prices()).contains("rank 9 has no part"));
    workload.ranks.clear();
    assert!(refused(&workload, &all, &prices()).contains("no rank"));

    let mut few = prices();
    few.by_rank[1].owners.truncate(2);
    assert!(refused(&example(), &all, &few).contains("coefficients of 2 owners"));
    let mut few = prices();
    few.by_rank.truncate(1);
    assert!(refused(&example(), &all, &few).contains("rank 1 has no coefficients: there are those of 1 ranks"));
}
