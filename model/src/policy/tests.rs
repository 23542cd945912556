use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::bulk::Bulk;
use super::conformance::{Case, RunTally, check_levels, check_scored};
use super::delivery::{ReuseCounts, Search};
use super::pinned::{Full, OnDemand};
use super::window::Window;
use super::*;

mod by_hand;
mod caches;
mod scored;

/// The nodes of every step, by which the tests' own planners count.
type Nodes = Vec<(Purpose, Vec<NodeId>)>;

/// A case, and the same epochs as plain lists.
#[derive(Clone)]
pub(super) struct Drawn {
    pub(super) case: Case,
    epochs: Vec<Nodes>,
}

impl std::fmt::Debug for Drawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let case = &self.case;
        write!(
            f,
            "bounds {:?} rank {} asked {} window {} from {} next {} epochs {:?}",
            case.book.bounds(),
            case.rank,
            case.asked_rows,
            case.window,
            case.from_step,
            case.with_next,
            self.epochs
        )
    }
}

impl Drawn {
    fn new(book: PartitionBook, rank: Rank, asked_rows: u32, window: u32, epochs: Vec<Nodes>) -> Self {
        let traces = epochs
            .iter()
            .map(|epoch| {
                let steps = epoch.iter().map(|(purpose, nodes)| (*purpose, &nodes[..]));
                Arc::new(MemoryTrace::from_nodes(&book, steps)) as Arc<dyn RemoteTrace>
            })
            .collect();
        Self {
            case: Case {
                book: Arc::new(book),
                rank,
                epochs: traces,
                asked_rows,
                window,
                from_step: 0,
                with_next: true,
            },
            epochs,
        }
    }

    pub(super) fn run(&self, policy: &dyn Policy) -> RunTally {
        // Policies that rank rows by scores are as right with equal scores as with any.
        let scores = policy.score_kind().map(|_| vec![1.0; self.case.book.nodes() as usize]);
        check_scored(policy, &self.case, scores.as_deref()).unwrap_or_else(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            panic!("{}: {error}: {source:?}", policy.name())
        })
    }

    /// Node lists of the steps that are planned, epoch by epoch.
    fn planned(&self) -> Vec<&[(Purpose, Vec<NodeId>)]> {
        let from = self.case.from_step as usize;
        self.epochs
            .iter()
            .enumerate()
            .map(|(epoch, steps)| if epoch == 0 { &steps[from..] } else { &steps[..] })
            .collect()
    }

    fn owners(&self, nodes: &[NodeId]) -> BTreeSet<PartId> {
        nodes.iter().map(|node| self.case.book.owner(*node)).collect()
    }
}

/// Up to `rows` remote rows over up to 4 owners, some of them empty, and up to 3 epochs of up to `steps` steps.
pub(super) fn drawn(rows: u32, steps: usize, epochs: usize) -> impl Strategy<Value = Drawn> {
    let cuts = prop::collection::vec(0..=rows, 3);
    (cuts, 0..=4u16, 0..3u32).prop_flat_map(move |(mut cuts, rank, local_rows)| {
        cuts.sort_unstable();
        // `rank`'s own rows lie between those of the others.
        let mut sizes: Vec<u32> = [0, cuts[0], cuts[1], cuts[2], rows]
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .collect();
        sizes.insert(usize::from(rank), local_rows);
        let bounds: Vec<u32> = std::iter::once(0)
            .chain(sizes.iter().scan(0, |sum, size| {
                *sum += size;
                Some(*sum)
            }))
            .collect();
        let book = PartitionBook::new(bounds).unwrap();
        let own = book.range(rank);
        let remote: Vec<NodeId> = (0..book.nodes()).filter(|node| !own.contains(node)).collect();
        let count = remote.len();
        let step = prop::sample::subsequence(remote, 0..=count);
        let epoch = (
            prop::collection::vec(step, 0..=steps),
            any::<prop::sample::Index>(),
            any::<prop::sample::Index>(),
        );
        (
            prop::collection::vec(epoch, 1..=epochs),
            0..=rows + 1,
            1..=steps as u32 + 1,
            any::<prop::sample::Index>(),
            any::<bool>(),
        )
            .prop_map(move |(epochs, asked, window, from, with_next)| {
                let epochs: Vec<Nodes> = epochs
                    .into_iter()
                    .map(|(steps, one, other)| {
                        let (one, other) = (one.index(steps.len() + 1), other.index(steps.len() + 1));
                        let (train, valid) = (one.min(other), one.max(other));
                        let purpose = |step| match step {
                            step if step < train => Purpose::Train,
                            step if step < valid => Purpose::Valid,
                            _ => Purpose::Test,
                        };
                        steps
                            .into_iter()
                            .enumerate()
                            .map(|(step, nodes)| (purpose(step), nodes))
                            .collect()
                    })
                    .collect();
                let first_steps = epochs[0].len();
                let mut drawn = Drawn::new(book.clone(), rank, asked, window, epochs);
                // Half of the cases start at the beginning.
                drawn.case.from_step = (from.index(2 * first_steps + 2)).saturating_sub(first_steps + 1) as u32;
                drawn.case.with_next = with_next;
                drawn
            })
    })
}

pub(super) fn bulk(window_share_percent: u32, lead: bool) -> Bulk {
    Bulk {
        window_share_percent,
        lead,
        search: None,
        ..Bulk::default()
    }
}

fn searching(rows_per_delivery: u32) -> Bulk {
    Bulk {
        search: Some(Search {
            rows_per_delivery,
            iterations: 12,
            changes: 20,
            frontier: false,
        }),
        ..Bulk::default()
    }
}

/// Node lists of the steps that are planned, those of all epochs one after the other.
pub(super) fn planned_steps(drawn: &Drawn) -> Vec<&[NodeId]> {
    let epochs = drawn.planned().into_iter();
    epochs
        .flat_map(|steps| steps.iter().map(|(_, nodes)| &nodes[..]))
        .collect()
}

/// Belady's MIN with bypass, rows charged at gaps: after every batch the rows with the nearest next use stay.
pub(super) fn belady_rows(steps: &[&[NodeId]], budget: usize) -> u64 {
    let next_use = |node: &NodeId, after: usize| (after + 1..steps.len()).find(|step| steps[*step].contains(node));
    let mut held: Vec<NodeId> = Vec::new();
    let mut rows = 0;
    for (step, nodes) in steps.iter().enumerate() {
        rows += nodes.iter().filter(|node| !held.contains(node)).count() as u64;
        held.extend(nodes.iter());
        held.retain(|node| next_use(node, step).is_some());
        held.sort_by_key(|node| (next_use(node, step), *node));
        held.dedup();
        held.truncate(budget);
    }
    rows
}

/// The fewest rows for given first steps of windows, by trying every set that may be held at every gap.
pub(super) fn fewest_rows(steps: &[&[NodeId]], starts: &BTreeSet<usize>, budget: u32, nodes: u32) -> Option<u64> {
    let mask = |nodes: &[NodeId]| nodes.iter().fold(0u32, |mask, node| mask | 1 << node);
    let sets = || (0..1u32 << nodes).filter(|set| set.count_ones() <= budget);
    // Per set that is charged at the gap before a step the fewest rows so far.
    let mut best: BTreeMap<u32, u64> = BTreeMap::from([(0, 0)]);
    let mut before = 0;
    for (step, nodes) in steps.iter().enumerate() {
        let needed = mask(nodes);
        let mut next: BTreeMap<u32, u64> = BTreeMap::new();
        for (held, rows) in &best {
            for set in sets() {
                let fetched = set & !(held | before);
                // What the batch needs and is not held over the gap would have to be fetched directly.
                let direct = needed & !set;
                let asked = (fetched | direct).count_ones();
                if asked > 0 && !starts.contains(&step) {
                    continue;
                }
                let total = rows + u64::from(asked);
                next.entry(set)
                    .and_modify(|best| *best = total.min(*best))
                    .or_insert(total);
            }
        }
        best = next;
        before = needed;
    }
    best.values().min().copied()
}

/// First steps of the windows of a plan, counted over all epochs.
pub(super) fn window_starts(policy: &dyn Policy, drawn: &Drawn) -> BTreeSet<usize> {
    let mut starts = BTreeSet::new();
    let mut state = CacheState::default();
    let mut offset = 0;
    let case = &drawn.case;
    for (epoch, trace) in case.epochs.iter().enumerate() {
        let mut planner = policy
            .plan(PlanInput {
                rank: case.rank,
                book: Arc::clone(&case.book),
                budget_rows: policy.budget_rows(&case.book, case.rank, case.asked_rows),
                window: case.window,
                trace: Arc::clone(trace),
                next: case.epochs.get(epoch + 1).cloned(),
                from_step: 0,
                state,
            })
            .unwrap();
        while let Some(plan) = planner.next_window().unwrap() {
            starts.insert(offset + plan.first_step() as usize);
        }
        offset += trace.steps() as usize;
        state = planner.into_state();
    }
    starts
}

/// Rows and requests of GreenGNN's algorithm, counted window by window from its definition.
fn algorithm_1(drawn: &Drawn, steps: &[(Purpose, Vec<NodeId>)]) -> (u64, u64) {
    let budget = Window.budget_rows(&drawn.case.book, drawn.case.rank, drawn.case.asked_rows) as usize;
    let mut windows: Vec<Vec<&[NodeId]>> = Vec::new();
    let mut purpose_before = None;
    for (purpose, nodes) in steps {
        match windows.last_mut() {
            Some(last) if purpose_before == Some(*purpose) && last.len() < drawn.case.window as usize => {
                last.push(nodes)
            }
            _ => windows.push(vec![nodes]),
        }
        purpose_before = Some(*purpose);
    }
    let hot_set = |window: &[&[NodeId]], hot_rows: usize| -> BTreeSet<NodeId> {
        let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
        window
            .iter()
            .for_each(|nodes| nodes.iter().for_each(|node| *counts.entry(*node).or_default() += 1));
        let mut order: Vec<_> = counts
            .into_iter()
            .map(|(node, count)| (usize::MAX - count, node))
            .collect();
        order.sort_unstable();
        order.into_iter().take(hot_rows).map(|(_, node)| node).collect()
    };
    let hot_sets =
        |hot_rows| -> Vec<BTreeSet<NodeId>> { windows.iter().map(|window| hot_set(window, hot_rows)).collect() };
    let fits = |hot_rows: &usize| {
        let sets = hot_sets(*hot_rows);
        sets.iter().all(|set| set.len() <= budget)
            && sets.windows(2).all(|pair| pair[0].union(&pair[1]).count() <= budget)
    };
    let hot_sets = hot_sets((0..=40).filter(fits).max().unwrap());
    let (mut rows, mut requests) = (0, 0);
    for (index, window) in windows.iter().enumerate() {
        let hot = &hot_sets[index];
        let cold = BTreeSet::new();
        let cached = if index == 0 { &cold } else { &hot_sets[index - 1] };
        let rebuild: Vec<NodeId> = hot.difference(cached).copied().collect();
        rows += rebuild.len() as u64;
        if index > 0 {
            requests += drawn.owners(&rebuild).len() as u64;
        }
        for (batch, nodes) in window.iter().enumerate() {
            let misses: Vec<NodeId> = nodes.iter().filter(|node| !hot.contains(node)).copied().collect();
            rows += misses.len() as u64;
            let mut owners = drawn.owners(&misses);
            if index == 0 && batch == 0 {
                // The first hot set and the first misses are asked for at the same time.
                owners.extend(drawn.owners(&rebuild));
            }
            requests += owners.len() as u64;
        }
    }
    (rows, requests)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_policy_keeps_every_rule(drawn in drawn(12, 9, 3), share in 0..=100u32, lead in any::<bool>()) {
        for name in POLICY_NAMES {
            let policy = policy_by_name(name).unwrap();
            let tally = drawn.run(&*policy);
            if policy.has_levels() {
                let scores = vec![1.0; drawn.case.book.nodes() as usize];
                let levels = check_levels(&*policy, &drawn.case, Some(&scores), Some(share / 8)).unwrap();
                prop_assert_eq!(levels.budget_rows, tally.budget_rows);
            }
        }
        drawn.run(&bulk(share, lead));
        for rows_per_delivery in [0, 3, 1000] {
            drawn.run(&searching(rows_per_delivery));
        }
    }

    #[test]
    fn owners_of_any_weight_have_plans_that_keep_the_rules(drawn in drawn(12, 9, 3), weights in prop::collection::vec(0..9u32, 5), price in 0..9u32) {
        drawn.run(&Bulk { owner_weights: weights, ..searching(price) });
    }

    #[test]
    fn a_searched_plan_moves_the_same_with_and_without_a_lead(drawn in drawn(12, 9, 2), price in 0..20u32) {
        let late = drawn.run(&Bulk { lead: false, ..searching(price) });
        let early = drawn.run(&searching(price));
        prop_assert_eq!(late.feature_rows(), early.feature_rows());
        prop_assert_eq!(late.feature_requests(), early.feature_requests());
    }

    #[test]
    fn with_room_for_everything_a_searched_plan_moves_no_row_twice(mut drawn in drawn(12, 9, 3), price in 0..20u32) {
        drawn.case.asked_rows = u32::MAX;
        drawn.case.with_next = true;
        let distinct: BTreeSet<NodeId> = planned_steps(&drawn).into_iter().flatten().copied().collect();
        prop_assert_eq!(drawn.run(&searching(price)).feature_rows(), distinct.len() as u64);
    }

    #[test]
    fn bulk_moves_and_asks_what_the_search_has_found(mut drawn in drawn(12, 9, 1), price in 0..20u32) {
        let policy = searching(price);
        drawn.case.with_next = true;
        let case = &drawn.case;
        let epochs = case.epochs.iter().map(|trace| &**trace);
        let counts = ReuseCounts::new(epochs, case.from_step, case.window, &[], &case.book, case.rank).unwrap();
        let tally = drawn.run(&policy);
        let found = policy.search.map(|search| counts.search(tally.budget_rows, &search).unwrap());
        let delivered = found.map(|found| (found.chosen.delivered.rows, found.chosen.delivered.deliveries));
        prop_assert_eq!(delivered, Some((tally.feature_rows(), tally.feature_requests())));
    }

    #[test]
    fn free_deliveries_make_bulk_beladys_min(mut drawn in drawn(12, 9, 2)) {
        drawn.case.with_next = true;
        let steps = planned_steps(&drawn);
        let fewest = belady_rows(&steps, drawn.case.asked_rows as usize);
        prop_assert_eq!(drawn.run(&searching(0)).feature_rows(), fewest);
        prop_assert_eq!(drawn.run(&Bulk::fewest_rows()).feature_rows(), fewest);
    }

    #[test]
    fn on_demand_asks_once_per_batch_and_owner(drawn in drawn(12, 9, 3)) {
        let tally = drawn.run(&OnDemand);
        for (epoch, steps) in tally.epochs.iter().zip(drawn.planned()) {
            let pairs: usize = steps.iter().map(|(_, nodes)| drawn.owners(nodes).len()).sum();
            let rows: usize = steps.iter().map(|(_, nodes)| nodes.len()).sum();
            prop_assert_eq!(epoch.feature_requests(), pairs as u64);
            prop_assert_eq!(epoch.feature_rows(), rows as u64);
        }
    }

    #[test]
    fn full_moves_every_remote_row_once_at_set_up(drawn in drawn(12, 9, 3)) {
        let tally = drawn.run(&Full);
        prop_assert_eq!(tally.setup.feature_rows, u64::from(drawn.case.book.remote_nodes(drawn.case.rank)));
        prop_assert_eq!(tally.feature_rows(), tally.setup.feature_rows);
        prop_assert_eq!(tally.feature_requests(), tally.setup.feature_requests);
    }

    #[test]
    fn window_moves_and_asks_what_algorithm_1_does(drawn in drawn(12, 9, 3)) {
        let tally = drawn.run(&Window);
        for (epoch, steps) in tally.epochs.iter().zip(drawn.planned()) {
            prop_assert_eq!((epoch.feature_rows(), epoch.feature_requests()), algorithm_1(&drawn, steps));
        }
    }

    #[test]
    fn bulk_moves_the_fewest_rows_for_its_windows(mut drawn in drawn(5, 5, 2), share in 0..=100u32, lead in any::<bool>()) {
        drawn.case.from_step = 0;
        drawn.case.with_next = true;
        let policy = bulk(share, lead);
        let steps: Vec<&[NodeId]> = drawn.epochs.iter().flatten().map(|(_, nodes)| &nodes[..]).collect();
        let starts = window_starts(&policy, &drawn);
        let budget = policy.budget_rows(&drawn.case.book, drawn.case.rank, drawn.case.asked_rows);
        let fewest = fewest_rows(&steps, &starts, budget, drawn.case.book.nodes());
        prop_assert_eq!(fewest, Some(drawn.run(&policy).feature_rows()));
    }

    #[test]
    fn bulk_with_one_batch_a_window_is_beladys_min(mut drawn in drawn(12, 9, 2), share in 0..=100u32) {
        drawn.case.window = 1;
        drawn.case.with_next = true;
        let steps = planned_steps(&drawn);
        let fewest = belady_rows(&steps, drawn.case.asked_rows as usize);
        prop_assert_eq!(drawn.run(&bulk(share, true)).feature_rows(), fewest);
    }

    #[test]
    fn each_policy_moves_at_most_what_the_simpler_one_moves(mut drawn in drawn(12, 9, 2), share in 0..=100u32) {
        drawn.case.with_next = true;
        let on_demand = drawn.run(&OnDemand);
        let window = drawn.run(&Window);
        let windows = drawn.run(&bulk(share, true));
        prop_assert!(window.feature_rows() <= on_demand.feature_rows());
        prop_assert!(windows.feature_rows() <= on_demand.feature_rows());
        prop_assert!(windows.feature_requests() <= on_demand.feature_requests());
        let mut single = drawn.clone();
        single.case.window = 1;
        let single = single.run(&bulk(share, true));
        prop_assert!(single.feature_rows() <= window.feature_rows());
        prop_assert!(single.feature_rows() <= windows.feature_rows());
    }

    #[test]
    fn without_a_budget_bulk_and_window_are_on_demand(mut drawn in drawn(12, 9, 3), share in 0..=100u32) {
        drawn.case.asked_rows = 0;
        let on_demand = drawn.run(&OnDemand);
        prop_assert_eq!(&drawn.run(&bulk(share, true)), &on_demand);
        prop_assert_eq!(&drawn.run(&Window), &on_demand);
    }

    #[test]
    fn with_room_for_everything_bulk_moves_no_row_twice(mut drawn in drawn(12, 9, 3), share in 0..=100u32) {
        drawn.case.asked_rows = u32::MAX;
        let distinct: BTreeSet<NodeId> =
            drawn.planned().iter().flat_map(|steps| steps.iter().flat_map(|(_, nodes)| nodes.iter().copied())).collect();
        prop_assert_eq!(drawn.run(&bulk(share, true)).feature_rows(), distinct.len() as u64);
    }

    #[test]
    fn a_lead_changes_neither_rows_nor_requests(drawn in drawn(12, 9, 3), share in 0..=100u32) {
        let (late, early) = (drawn.run(&bulk(share, false)), drawn.run(&bulk(share, true)));
        for (late, early) in late.epochs.iter().zip(&early.epochs) {
            for (late, early) in [(late.training, early.training), (late.evaluation, early.evaluation)] {
                prop_assert_eq!(late.feature_rows, early.feature_rows);
                prop_assert_eq!(late.feature_requests, early.feature_requests);
            }
        }
    }
}
