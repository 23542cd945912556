use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::book::NodeId;
use crate::policy::bound::RunUses;
use crate::policy::tests::{Drawn, bulk, drawn, planned_steps, window_starts};
use crate::policy::{MemoryTrace, Policy};

/// A drawn run with something held at the start and delivery times for every owner.
#[derive(Debug)]
pub(super) struct Horizon {
    drawn: Drawn,
    pub budget: u32,
    held: Vec<NodeId>,
    delivers: Vec<bool>,
}

impl Horizon {
    pub(super) fn counts(&self) -> ReuseCounts {
        let case = &self.drawn.case;
        let held: Vec<HeldRow> = (0..)
            .zip(&self.held)
            .map(|(slot, node)| {
                let owner = case.book.owner(*node);
                let row = node - case.book.range(owner).start;
                HeldRow { owner, row, slot }
            })
            .collect();
        let epochs = case.epochs.iter().map(|trace| &**trace);
        ReuseCounts::new(epochs, case.from_step, case.window, &held, &case.book, case.rank).unwrap()
    }

    fn times(&self, counts: &ReuseCounts) -> DeliveryTimes {
        let mut times = counts.fewest_times();
        let mut delivers = self.delivers.iter().copied();
        for owner in 0..counts.owners.len() {
            for step in 0..counts.steps() {
                times.set(owner, step, delivers.next().unwrap_or(false));
            }
        }
        times
    }

    /// Per node of an owner and step whether the owner delivers there, windows ended where they must.
    fn starts(&self, counts: &ReuseCounts, times: &DeliveryTimes) -> BTreeMap<PartId, Vec<bool>> {
        let case = &self.drawn.case;
        let mut purposes = Vec::new();
        for (epoch, trace) in case.epochs.iter().enumerate() {
            let from = if epoch == 0 { case.from_step } else { 0 };
            purposes.extend((from..trace.steps()).map(|step| trace.purpose(step)));
        }
        let starts = |owner: usize| {
            let mut length = 0;
            (0..purposes.len())
                .map(|step| {
                    let ended = step == 0 || purposes[step] != purposes[step - 1] || length == case.window;
                    let start = ended || times.contains(owner, step);
                    length = if start { 1 } else { length + 1 };
                    start
                })
                .collect()
        };
        counts
            .owners()
            .enumerate()
            .map(|(place, owner)| (owner, starts(place)))
            .collect()
    }
}

pub(super) fn horizon(rows: u32, steps: usize, epochs: usize) -> impl Strategy<Value = Horizon> {
    let delivers = prop::collection::vec(any::<bool>(), 4 * steps * epochs);
    let held = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    (drawn(rows, steps, epochs), delivers, held).prop_map(|(drawn, delivers, held)| {
        let case = &drawn.case;
        let own = case.book.range(case.rank);
        let remote: Vec<NodeId> = (0..case.book.nodes()).filter(|node| !own.contains(node)).collect();
        let held: BTreeSet<NodeId> = match remote.len() {
            0 => BTreeSet::new(),
            len => held.iter().map(|index| remote[index.index(len)]).collect(),
        };
        let budget = case.asked_rows.min(remote.len() as u32);
        let held = held.into_iter().take(budget as usize).collect();
        Horizon {
            drawn,
            budget,
            held,
            delivers,
        }
    })
}

/// The fewest rows for given delivery times, by trying every set that may be held at every gap.
fn fewest_rows(horizon: &Horizon, starts: &BTreeMap<PartId, Vec<bool>>) -> Option<u64> {
    fewest_weighted_rows(horizon, starts, &[])
}

/// The same where rows count as often as their part weighs, 1 for parts without a weight.
fn fewest_weighted_rows(horizon: &Horizon, starts: &BTreeMap<PartId, Vec<bool>>, weights: &[u32]) -> Option<u64> {
    let book = &horizon.drawn.case.book;
    let weight = |node: NodeId| {
        weights
            .get(usize::from(book.owner(node)))
            .map_or(1, |weight| u64::from(*weight))
    };
    let weigh = |set: u32| {
        (0..book.nodes())
            .filter(|node| set >> node & 1 == 1)
            .map(weight)
            .sum::<u64>()
    };
    let mask = |nodes: &[NodeId]| nodes.iter().fold(0u32, |mask, node| mask | 1 << node);
    let sets = || (0..1u32 << book.nodes()).filter(|set| set.count_ones() <= horizon.budget);
    let initial = mask(&horizon.held);
    // Per set that is charged at the gap before a step the fewest rows so far.
    let mut best = BTreeMap::from([(initial, 0)]);
    let mut before = 0;
    for (step, nodes) in planned_steps(&horizon.drawn).into_iter().enumerate() {
        let needed = mask(nodes);
        let delivered = (0..book.nodes())
            .filter(|node| starts.get(&book.owner(*node)).is_some_and(|starts| starts[step]))
            .fold(0u32, |mask, node| mask | 1 << node);
        let mut next: BTreeMap<u32, u64> = BTreeMap::new();
        for (held, rows) in &best {
            for set in sets().filter(|set| step > 0 || set & initial == initial) {
                let asked = set & !(held | before) | needed & !set;
                if asked & !delivered == 0 {
                    let total = rows + weigh(asked);
                    let best = next.entry(set).or_insert(total);
                    *best = total.min(*best);
                }
            }
        }
        best = next;
        before = needed;
    }
    best.values().min().copied()
}

/// A plan row by row: what it costs, after a check that every batch finds its rows. `None` if the times are not feasible.
fn plan_rows(horizon: &Horizon, counts: &ReuseCounts, starts: &BTreeMap<PartId, Vec<bool>>) -> Option<Delivered> {
    struct Use {
        node: NodeId,
        step: usize,
        due: usize,
        /// The gaps over which the row is held if it is not fetched, of which those from `mandatory` on are in any case.
        from: usize,
        mandatory: usize,
        fetched: bool,
    }
    let book = &horizon.drawn.case.book;
    let steps = planned_steps(&horizon.drawn);
    let mut held_from: BTreeMap<NodeId, usize> = horizon.held.iter().map(|node| (*node, 0)).collect();
    let mut uses = Vec::new();
    for (step, nodes) in steps.iter().enumerate() {
        for node in *nodes {
            let due = (0..=step).rev().find(|time| starts[&book.owner(*node)][*time]).unwrap();
            let before = held_from.insert(*node, step + 1);
            let delivered_from = if due == step { step + 1 } else { due };
            uses.push(Use {
                node: *node,
                step,
                due,
                from: before.unwrap_or(delivered_from),
                mandatory: before.unwrap_or(0).max(delivered_from),
                fetched: before.is_none(),
            });
        }
    }
    let idle: BTreeSet<NodeId> = horizon
        .held
        .iter()
        .copied()
        .filter(|node| held_from[node] == 0)
        .collect();
    let held_at = |uses: &[Use], gap: usize| -> BTreeSet<NodeId> {
        let held = uses.iter().filter(|used| {
            let from = if used.fetched { used.mandatory } else { used.from };
            (from..=used.step).contains(&gap)
        });
        let idle = idle.iter().copied().filter(|_| gap == 0);
        held.map(|used| used.node).chain(idle).collect()
    };
    let delivery = |used: &Use| (used.due, book.owner(used.node));
    let budget = horizon.budget as usize;
    let mut peak_rows = 0;
    for gap in 0..steps.len() {
        while held_at(&uses, gap).len() > budget {
            if gap == 0 {
                return None;
            }
            let made: BTreeSet<_> = uses.iter().filter(|used| used.fetched).map(delivery).collect();
            let droppable = |used: &&Use| !used.fetched && (used.from..used.mandatory).contains(&gap);
            let ends = |used: &Use| used.mandatory.min(used.step + 1);
            let latest = uses.iter().filter(droppable).map(ends).max()?;
            let mut groups: BTreeMap<_, usize> = BTreeMap::new();
            for used in uses.iter().filter(droppable).filter(|used| ends(used) == latest) {
                *groups
                    .entry((used.due, used.due == used.step, book.owner(used.node)))
                    .or_default() += 1;
            }
            let group = *groups
                .iter()
                .max_by_key(|((due, at_once, owner), rows)| {
                    (made.contains(&(*due, *owner)), **rows, *due, *at_once, *owner)
                })?
                .0;
            // The whole group, or as many as overflow.
            let mut excess = held_at(&uses, gap).len() - budget;
            for used in &mut uses {
                let active = !used.fetched && (used.from..used.mandatory).contains(&gap);
                let key = (used.due, used.due == used.step, book.owner(used.node));
                if active && ends(used) == latest && key == group && excess > 0 {
                    used.fetched = true;
                    excess -= 1;
                }
            }
        }
        peak_rows = peak_rows.max(held_at(&uses, gap).len() as u64);
    }
    // Follow the rows: what is held stems from the gap before, from the batch before, or from a delivery now.
    let mut held: BTreeSet<NodeId> = horizon.held.iter().copied().collect();
    let mut rows = 0;
    for (step, nodes) in steps.iter().enumerate() {
        let arrived: BTreeSet<NodeId> = uses
            .iter()
            .filter(|used| used.fetched && used.due == step)
            .map(|used| used.node)
            .collect();
        rows += arrived.len() as u64;
        let charged = held_at(&uses, step);
        assert!(charged.iter().all(|node| held.contains(node) || arrived.contains(node)));
        assert!(
            nodes
                .iter()
                .all(|node| charged.contains(node) || arrived.contains(node))
        );
        held = charged.into_iter().chain(nodes.iter().copied()).collect();
    }
    let deliveries: BTreeSet<_> = uses.iter().filter(|used| used.fetched).map(delivery).collect();
    assert_eq!(rows, uses.iter().filter(|used| used.fetched).count() as u64);
    assert_eq!(counts.needed_rows(), uses.len() as u64);
    Some(Delivered {
        deliveries: deliveries.len() as u64,
        rows,
        peak_rows,
        weighted_deliveries: deliveries.len() as u64,
        weighted_rows: rows,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_sweep_is_a_plan_row_by_row(horizon in horizon(10, 8, 2)) {
        let counts = horizon.counts();
        let times = horizon.times(&counts);
        let plan = plan_rows(&horizon, &counts, &horizon.starts(&counts, &times));
        prop_assert_eq!(counts.sweep(horizon.budget, &times).ok(), plan);
    }

    #[test]
    fn no_held_sets_move_fewer_rows_for_the_same_times(horizon in horizon(5, 5, 2)) {
        let counts = horizon.counts();
        let times = horizon.times(&counts);
        let fewest = fewest_rows(&horizon, &horizon.starts(&counts, &times));
        prop_assert_eq!(counts.sweep(horizon.budget, &times).ok().map(|delivered| delivered.rows), fewest);
    }

    #[test]
    fn with_every_step_a_delivery_time_rows_are_those_of_the_bound(mut horizon in horizon(12, 9, 3)) {
        horizon.held.clear();
        let case = &horizon.drawn.case;
        let uses = RunUses::new(case.epochs.iter().map(|trace| &**trace), case.from_step, &case.book, case.rank).unwrap();
        let counts = horizon.counts();
        for budget in 0..=13 {
            let delivered = counts.sweep(budget, &counts.every_step()).unwrap();
            prop_assert_eq!(delivered.rows, uses.fewest_rows(budget));
            prop_assert!(delivered.peak_rows <= u64::from(budget));
        }
    }

    #[test]
    fn greedy_windows_are_those_of_bulk_and_so_are_their_rows(mut drawn in drawn(12, 9, 2), share in 0..=100u32) {
        drawn.case.from_step = 0;
        drawn.case.with_next = true;
        let policy = bulk(share, true);
        let budget = policy.budget_rows(&drawn.case.book, drawn.case.rank, drawn.case.asked_rows);
        let starts = window_starts(&policy, &drawn);
        let tally = drawn.run(&policy);
        // Windows of a later epoch may be cut by what is held when it starts, so they are given.
        let horizon = Horizon { drawn, budget, held: Vec::new(), delivers: Vec::new() };
        let counts = horizon.counts();
        let mut times = counts.fewest_times();
        for owner in 0..counts.owners.len() {
            starts.iter().for_each(|step| times.set(owner, *step, true));
        }
        let delivered = counts.sweep(budget, &times).unwrap();
        prop_assert_eq!(delivered.rows, tally.feature_rows());
        let greedy = counts.greedy_windows(budget, budget * share / 100);
        let first_epoch = horizon.drawn.case.epochs[0].steps() as usize;
        for owner in 0..counts.owners.len() {
            let due = counts.due(&greedy, owner);
            let cut: BTreeSet<usize> = (0..first_epoch).filter(|step| due[*step] == *step).collect();
            prop_assert_eq!(cut, starts.range(..first_epoch).copied().collect());
        }
    }
}

#[test]
fn owners_with_times_of_their_own_ask_less_often_than_windows_of_all() {
    // Nodes 1 to 3 and 4 to 6 are needed by every batch. With three slots one owner is held whole.
    let book = Arc::new(PartitionBook::new(vec![0, 1, 4, 7]).unwrap());
    let nodes: Vec<NodeId> = (1..7).collect();
    let steps = [&nodes[..]; 4].map(|nodes| (crate::rng::Purpose::Train, nodes));
    let trace = MemoryTrace::from_nodes(&book, steps);
    let counts = ReuseCounts::new([&trace as &dyn RemoteTrace], 0, u32::MAX, &[], &book, 0).unwrap();
    let mut times = counts.every_step();
    (1..4).for_each(|step| times.set(0, step, false));
    let own = counts.sweep(3, &times).unwrap();
    assert_eq!((own.deliveries, own.rows, own.peak_rows), (5, 15, 3));
    let overload = counts.sweep(2, &times).unwrap_err();
    assert_eq!((overload.gap, overload.rows), (1, 3));
    // Held whole, though it could deliver at every step.
    assert_eq!(counts.sweep(3, &counts.every_step()).unwrap(), own);
}

#[test]
fn held_rows_that_are_no_rows_of_others_are_refused() {
    let book = PartitionBook::new(vec![0, 1, 3]).unwrap();
    let counts = |held: &[HeldRow]| ReuseCounts::new([], 0, 1, held, &book, 0);
    let row = |owner, row| HeldRow { owner, row, slot: 0 };
    for held in [&[row(0, 0)][..], &[row(1, 2)], &[row(1, 1), row(1, 0)], &[row(1, 0); 2]] {
        assert!(matches!(counts(held), Err(PlanError::BadState { .. })), "{held:?}");
    }
    let counts = counts(&[row(1, 0)]).unwrap();
    assert_eq!((counts.steps(), counts.needed_rows()), (0, 0));
    let free = Delivered::default();
    assert_eq!(counts.sweep(0, &counts.every_step()), Ok(free));
}

/// The least cost over all choices of delivery times.
fn least_cost(counts: &ReuseCounts, budget: u32, price: u64) -> u64 {
    let bits = counts.owners.len() * counts.steps();
    let costs = (0..1u32 << bits).filter_map(|choice| {
        let mut times = counts.fewest_times();
        for bit in (0..bits).filter(|bit| choice >> bit & 1 == 1) {
            times.set(bit / counts.steps(), bit % counts.steps(), true);
        }
        let delivered = counts.sweep(budget, &times).ok()?;
        Some(Candidate { delivered, times }.cost(price))
    });
    costs.min().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_found_lies_between_the_bound_and_the_plain_candidates(horizon in horizon(9, 7, 2), price in 0..40u32) {
        let counts = horizon.counts();
        let search = Search { rows_per_delivery: price, ..Search::default() };
        let found = counts.search(horizon.budget, &search).unwrap();
        let cost = found.chosen.cost(u64::from(price));
        prop_assert!(found.bound <= cost as f64 + 1e-6, "{} {cost}", found.bound);
        prop_assert_eq!(counts.sweep(horizon.budget, &found.chosen.times), Ok(found.chosen.delivered));
        let candidates = found.archive.candidates();
        prop_assert!(candidates.contains(&found.chosen));
        for pair in candidates.windows(2) {
            prop_assert!(pair[0].delivered.deliveries < pair[1].delivered.deliveries);
            prop_assert!(pair[0].delivered.rows > pair[1].delivered.rows);
        }
        let fewest = counts.sweep(horizon.budget, &counts.every_step()).unwrap().rows;
        prop_assert_eq!(candidates.last().map(|candidate| candidate.delivered.rows), Some(fewest));
        for percent in [0, 25, 50, 75, 100] {
            let windows = counts.greedy_windows(horizon.budget, horizon.budget * percent / 100);
            if let Ok(delivered) = counts.sweep(horizon.budget, &windows) {
                prop_assert!(cost <= delivered.rows + u64::from(price) * delivered.deliveries);
            }
        }
        prop_assert_eq!(counts.search(horizon.budget, &search).unwrap(), found);
    }

    #[test]
    fn no_choice_of_times_beats_the_bound(horizon in horizon(7, 5, 2), price in 0..40u32) {
        let counts = horizon.counts();
        prop_assume!(counts.owners.len() * counts.steps() <= 10);
        let search = Search { rows_per_delivery: price, ..Search::default() };
        let found = counts.search(horizon.budget, &search).unwrap();
        let least = least_cost(&counts, horizon.budget, u64::from(price));
        prop_assert!(found.bound <= least as f64 + 1e-6, "{} {least}", found.bound);
        prop_assert!(found.chosen.cost(u64::from(price)) >= least);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn with_weights_the_bound_is_below_every_held_set_and_every_choice_of_times(
        horizon in horizon(5, 5, 1),
        weights in prop::collection::vec(1..6u32, 5),
        price in 0..9u32,
    ) {
        let counts = horizon.counts().weighted(&weights);
        let starts = horizon.starts(&counts, &counts.every_step());
        let fewest = fewest_weighted_rows(&horizon, &starts, &weights);
        let delivered = counts.sweep(horizon.budget, &counts.every_step()).ok();
        prop_assert!(delivered.map(|delivered| delivered.weighted_rows) >= fewest);
        let free = Search { rows_per_delivery: 0, ..Search::default() };
        let bound = counts.search(horizon.budget, &free).unwrap().bound;
        prop_assert!(fewest.is_none_or(|fewest| bound <= fewest as f64 + 1e-6), "{bound} {fewest:?}");
        let search = Search { rows_per_delivery: price, ..Search::default() };
        let found = counts.search(horizon.budget, &search).unwrap();
        let cost = found.chosen.cost(u64::from(price));
        prop_assert!(found.bound <= cost as f64 + 1e-6, "{} {cost}", found.bound);
        if counts.owners.len() * counts.steps() <= 10 {
            let least = least_cost(&counts, horizon.budget, u64::from(price));
            prop_assert!(found.bound <= least as f64 + 1e-6 && least <= cost, "{} {least} {cost}", found.bound);
        }
    }

    #[test]
    fn a_run_that_goes_on_pays_for_rows_that_it_lets_go(horizon in horizon(9, 7, 2), price in 0..9u32) {
        let (ends, goes_on) = (horizon.counts(), horizon.counts().of_a_run_that_goes_on());
        let times = horizon.times(&ends);
        if let (Ok(ends), Ok(goes_on)) = (ends.sweep(horizon.budget, &times), goes_on.sweep(horizon.budget, &times)) {
            prop_assert_eq!((ends.rows, ends.deliveries), (goes_on.rows, goes_on.deliveries));
            // Nothing is let go that is not among the distinct rows.
            let distinct = planned_steps(&horizon.drawn).into_iter().flatten().chain(&horizon.held).collect::<BTreeSet<_>>();
            prop_assert!((ends.weighted_rows..=ends.weighted_rows + distinct.len() as u64 / 2).contains(&goes_on.weighted_rows));
        }
        let search = Search { rows_per_delivery: price, ..Search::default() };
        let found = goes_on.search(horizon.budget, &search).unwrap();
        prop_assert!(found.bound <= found.chosen.cost(u64::from(price)) as f64 + 1e-6);
        for candidate in found.archive.candidates() {
            prop_assert!(candidate.cost(u64::from(price)) >= found.chosen.cost(u64::from(price)));
        }
    }

    #[test]
    fn equal_weights_change_nothing_but_the_scale(horizon in horizon(9, 7, 2), weight in 1..5u32) {
        let (counts, weighted) = (horizon.counts(), horizon.counts().weighted(&[weight; 5]));
        let times = horizon.times(&counts);
        match (counts.sweep(horizon.budget, &times), weighted.sweep(horizon.budget, &times)) {
            (Ok(plain), Ok(scaled)) => {
                prop_assert_eq!((plain.deliveries, plain.rows), (scaled.deliveries, scaled.rows));
                prop_assert_eq!(scaled.weighted_rows, u64::from(weight) * plain.rows);
                prop_assert_eq!(scaled.weighted_deliveries, u64::from(weight) * plain.deliveries);
            }
            (plain, scaled) => prop_assert_eq!(plain.err(), scaled.err()),
        }
    }
}

#[test]
fn rows_of_a_dear_owner_stay_though_they_are_used_later() {
    // Node 1 of part 1 is used again at step 3, node 2 of part 2 at step 2; there is one slot.
    let book = PartitionBook::new(vec![0, 1, 2, 3]).unwrap();
    let steps: [&[NodeId]; 4] = [&[1, 2], &[], &[2], &[1]];
    let steps = steps.map(|nodes| (crate::rng::Purpose::Train, nodes));
    let trace = MemoryTrace::from_nodes(&book, steps);
    let counts = ReuseCounts::new([&trace as &dyn RemoteTrace], 0, 1, &[], &book, 0).unwrap();
    let rows = |counts: &ReuseCounts| {
        let schedule = counts.schedule(1, &counts.every_step()).unwrap();
        let owners = schedule.due.len();
        [0, 1].map(|owner| schedule.fetched.iter().skip(owner).step_by(owners).sum::<u64>())
    };
    assert_eq!(rows(&counts), [2, 1]);
    assert_eq!(rows(&counts.weighted(&[1, 2, 1])), [1, 2]);
}

#[test]
fn the_search_finds_the_least_cost_of_nearly_all_small_cases() {
    let book = PartitionBook::new(vec![0, 1, 4, 7]).unwrap();
    let mut rng = crate::rng::CounterRng::new(11);
    let (mut optimal, mut worst, mut bounds) = (0, 1.0f64, 0.0);
    for case in 0..200u32 {
        let steps: Vec<Vec<NodeId>> = (0..6)
            .map(|_| (1..7).filter(|_| rng.unit_f64() < 0.55).collect())
            .collect();
        let steps = steps.iter().map(|nodes| (crate::rng::Purpose::Train, &nodes[..]));
        let trace = MemoryTrace::from_nodes(&book, steps);
        let counts = ReuseCounts::new([&trace as &dyn RemoteTrace], 0, u32::MAX, &[], &book, 0).unwrap();
        let (budget, price) = (1 + case % 5, 1 + case % 7);
        let search = Search {
            rows_per_delivery: price,
            ..Search::default()
        };
        let found = counts.search(budget, &search).unwrap();
        let least = least_cost(&counts, budget, u64::from(price));
        bounds += found.bound / least as f64 / 200.0;
        let found = found.chosen.cost(u64::from(price));
        optimal += u32::from(found == least);
        worst = worst.max(found as f64 / least as f64);
    }
    assert!(optimal >= 190, "{optimal} of 200, worst {worst}");
    assert!(worst <= 1.2, "{worst}");
    // The bound is not far below, and on the whole no empty one.
    assert!((0.75..=1.0).contains(&bounds), "{bounds}");
}

#[test]
fn more_held_rows_than_the_budget_are_refused() {
    let book = PartitionBook::new(vec![0, 1, 3]).unwrap();
    let trace = MemoryTrace::from_nodes(&book, [(crate::rng::Purpose::Train, &[1][..])]);
    let held = [0, 1].map(|row| HeldRow {
        owner: 1,
        row,
        slot: row,
    });
    let counts = ReuseCounts::new([&trace as &dyn RemoteTrace], 0, 4, &held, &book, 0).unwrap();
    let refused = counts.search(1, &Search::default()).unwrap_err();
    assert_eq!((refused.gap, refused.rows), (0, 2));
    let found = counts.search(2, &Search::default()).unwrap();
    assert_eq!((found.chosen.delivered.deliveries, found.chosen.delivered.rows), (0, 0));
}

#[test]
fn a_long_horizon_is_searched_too() {
    let book = PartitionBook::new(vec![0, 1, 4, 7]).unwrap();
    let mut rng = crate::rng::CounterRng::new(3);
    let steps: Vec<Vec<NodeId>> = (0..1500)
        .map(|_| (1..7).filter(|_| rng.unit_f64() < 0.5).collect())
        .collect();
    let steps = steps.iter().map(|nodes| (crate::rng::Purpose::Train, &nodes[..]));
    let trace = MemoryTrace::from_nodes(&book, steps);
    let counts = ReuseCounts::new([&trace as &dyn RemoteTrace], 0, u32::MAX, &[], &book, 0).unwrap();
    let found = counts.search(3, &Search::default()).unwrap();
    let greedy = counts.sweep(3, &counts.greedy_windows(3, 3)).unwrap();
    assert!(found.chosen.cost(965) <= greedy.rows + 965 * greedy.deliveries);
    assert!(found.bound <= found.chosen.cost(965) as f64);
}
