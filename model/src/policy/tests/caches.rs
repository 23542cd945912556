//! `lru`, `lfu`, `fifo` and `epoch` against their definitions.

use super::by_hand::{input, plans, questions};
use super::*;
use crate::plan::Place;
use crate::policy::epoch::Epoch;
use crate::policy::replacement::Replacement;

const ORDERS: [Replacement; 3] = [Replacement::Lru, Replacement::Lfu, Replacement::Fifo];

/// Rows and requests per epoch, and the rows that are held in the end, of a cache that sorts everything after each batch.
fn naive(order: Replacement, drawn: &Drawn) -> (Vec<(u64, u64)>, BTreeSet<NodeId>) {
    let budget = order.budget_rows(&drawn.case.book, drawn.case.rank, drawn.case.asked_rows) as usize;
    // Per row the batches that needed it, and the batches that brought it into the cache.
    let mut uses: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    let mut inserted: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut held: BTreeSet<NodeId> = BTreeSet::new();
    let mut batch = 0;
    let mut epochs = Vec::new();
    for steps in drawn.planned() {
        let (mut rows, mut requests) = (0, 0);
        for (_, nodes) in steps {
            batch += 1;
            let misses: Vec<NodeId> = nodes.iter().filter(|node| !held.contains(node)).copied().collect();
            rows += misses.len() as u64;
            requests += drawn.owners(&misses).len() as u64;
            for node in nodes {
                uses.entry(*node).or_default().push(batch);
            }
            for node in misses {
                inserted.insert(node, batch);
                held.insert(node);
            }
            let mut best: Vec<NodeId> = held.iter().copied().collect();
            best.sort_by_key(|node| {
                let (count, last) = (uses[node].len(), uses[node].last().copied());
                let rank = match order {
                    Replacement::Lru => (last, None),
                    Replacement::Lfu => (Some(count), last),
                    Replacement::Fifo => (inserted.get(node).copied(), None),
                };
                std::cmp::Reverse(rank)
            });
            held = best.into_iter().take(budget).collect();
        }
        epochs.push((rows, requests));
    }
    (epochs, held)
}

/// Rows and requests per epoch of RapidGNN's hot sets.
fn naive_epoch(drawn: &Drawn) -> Vec<(u64, u64)> {
    let budget = Epoch.budget_rows(&drawn.case.book, drawn.case.rank, drawn.case.asked_rows) as usize;
    let epoch = |steps: &[(Purpose, Vec<NodeId>)]| {
        let mut counts: BTreeMap<NodeId, i32> = BTreeMap::new();
        let uses = steps.iter().flat_map(|(_, nodes)| nodes);
        uses.for_each(|node| *counts.entry(*node).or_default() -= 1);
        let mut hot: Vec<NodeId> = counts.keys().copied().collect();
        hot.sort_by_key(|node| counts[node]);
        hot.truncate(budget);
        let (mut rows, mut requests) = (0, 0);
        for (index, (_, nodes)) in steps.iter().enumerate() {
            let mut asked: BTreeSet<NodeId> = nodes.iter().filter(|node| !hot.contains(node)).copied().collect();
            if index == 0 {
                asked.extend(&hot);
            }
            rows += asked.len() as u64;
            requests += drawn.owners(&asked.into_iter().collect::<Vec<_>>()).len() as u64;
        }
        (rows, requests)
    };
    drawn.planned().into_iter().map(epoch).collect()
}

/// What is held after a whole run of `policy`, epoch by epoch as the runtime does it.
fn held_in_the_end(policy: &dyn Policy, case: &Case) -> BTreeSet<NodeId> {
    let mut state = CacheState::default();
    for (epoch, trace) in case.epochs.iter().enumerate() {
        let mut planner = policy
            .plan(PlanInput {
                rank: case.rank,
                book: Arc::clone(&case.book),
                budget_rows: policy.budget_rows(&case.book, case.rank, case.asked_rows),
                window: case.window,
                trace: Arc::clone(trace),
                next: None,
                from_step: if epoch == 0 { case.from_step } else { 0 },
                state,
            })
            .unwrap();
        while planner.next_window().unwrap().is_some() {}
        state = planner.into_state();
    }
    let rows = state.held.iter();
    rows.map(|row| case.book.range(row.owner).start + row.row).collect()
}

fn rows_and_requests(tally: &RunTally) -> Vec<(u64, u64)> {
    let epochs = tally.epochs.iter();
    epochs
        .map(|epoch| (epoch.feature_rows(), epoch.feature_requests()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn caches_that_look_back_are_what_sorting_after_each_batch_gives(drawn in drawn(12, 9, 3)) {
        for order in ORDERS {
            let (epochs, held) = naive(order, &drawn);
            prop_assert_eq!(rows_and_requests(&drawn.run(&order)), epochs, "{}", order.name());
            prop_assert_eq!(held_in_the_end(&order, &drawn.case), held, "{}", order.name());
        }
    }

    #[test]
    fn epoch_moves_and_asks_what_its_hot_sets_do(drawn in drawn(12, 9, 3)) {
        prop_assert_eq!(rows_and_requests(&drawn.run(&Epoch)), naive_epoch(&drawn));
    }

    #[test]
    fn windows_do_not_change_what_a_cache_without_foresight_moves(drawn in drawn(12, 9, 2), window in 1..=10u32) {
        for policy in ["lru", "lfu", "fifo", "epoch"] {
            let policy = policy_by_name(policy).unwrap();
            let mut other = drawn.clone();
            other.case.window = window;
            prop_assert_eq!(drawn.run(&*policy), other.run(&*policy));
        }
    }
}

/// Node ids that are held after each step, in the order of their slots.
fn held_after_steps(order: Replacement, epoch: &[&[NodeId]], budget_rows: u32) -> Vec<Vec<NodeId>> {
    let mut arena: BTreeMap<u32, NodeId> = BTreeMap::new();
    let mut after = Vec::new();
    let plans = plans(&order, input(epoch, budget_rows, 4));
    for (batch, nodes) in plans.iter().flat_map(|plan| &plan.batches).zip(epoch) {
        let misses: Vec<NodeId> = nodes
            .iter()
            .zip(&batch.places)
            .filter(|(_, place)| matches!(place, Place::Direct(_)))
            .map(|(node, _)| *node)
            .collect();
        arena.retain(|slot, _| !batch.releases.contains(slot));
        for keep in &batch.keeps {
            assert_eq!(arena.insert(keep.slot, misses[keep.direct as usize]), None);
        }
        let mut held: Vec<NodeId> = arena.values().copied().collect();
        held.sort_unstable();
        after.push(held);
    }
    after
}

#[test]
fn each_cache_drops_another_row() {
    // When node 4 comes, node 1 has come first and is used most, node 2 was used longest ago.
    let epoch: [&[NodeId]; 6] = [&[1], &[2], &[1], &[3], &[1, 3], &[4]];
    let after = |order| held_after_steps(order, &epoch, 3)[5].clone();
    assert_eq!(after(Replacement::Lru), [1, 3, 4]);
    assert_eq!(after(Replacement::Lfu), [1, 3, 4]);
    assert_eq!(after(Replacement::Fifo), [2, 3, 4]);
    // With two slots: by use node 2 leaves for node 3, by arrival node 1, which then comes again.
    let after = |order| held_after_steps(order, &epoch, 2);
    let lru = [vec![1], vec![1, 2], vec![1, 2], vec![1, 3], vec![1, 3], vec![1, 4]];
    assert_eq!(after(Replacement::Lru), lru);
    let lfu = [vec![1], vec![1, 2], vec![1, 2], vec![1, 3], vec![1, 3], vec![1, 3]];
    assert_eq!(after(Replacement::Lfu), lfu);
    let fifo = [vec![1], vec![1, 2], vec![1, 2], vec![2, 3], vec![1, 3], vec![1, 4]];
    assert_eq!(after(Replacement::Fifo), fifo);
}

#[test]
fn of_rows_that_come_together_those_of_low_id_stay() {
    let plans = plans(&Replacement::Lru, input(&[&[4], &[1, 2, 5]], 2, 4));
    let batch = &plans[0].batches[1];
    assert_eq!(questions(&plans[0])[1..], [(1, vec![0, 1], 1, 1), (2, vec![1], 1, 1)]);
    assert_eq!(batch.releases.len(), 1);
    let kept: Vec<u32> = batch.keeps.iter().map(|keep| keep.direct).collect();
    assert_eq!(kept, [0, 1]);
}

#[test]
fn lfu_remembers_rows_that_it_does_not_hold() {
    // Node 2 misses twice. The second time it has been used as often as node 1, and later, though it was not held.
    let epoch: [&[NodeId]; 6] = [&[1], &[1], &[2], &[2], &[4], &[2]];
    let after = held_after_steps(Replacement::Lfu, &epoch, 1);
    assert_eq!(after, [vec![1], vec![1], vec![1], vec![2], vec![2], vec![2]]);
}

#[test]
fn a_history_of_another_graph_is_refused() {
    for order in ORDERS {
        let mut input = input(&[&[1]], 2, 2);
        input.state.history = vec![0; 6];
        let refused = order.plan(input).err();
        assert_eq!(refused, Some(PlanError::BadHistory { words: 6, nodes: 7 }));
    }
}

#[test]
fn epoch_asks_once_for_its_hot_rows_and_lets_them_go_at_the_end() {
    // Nodes 4 and 1 are needed three times and twice, node 2 twice as well: ties by id.
    let plans = plans(&Epoch, input(&[&[1, 2, 5], &[4], &[1, 2, 4], &[4]], 2, 3));
    assert_eq!(plans.len(), 2);
    assert_eq!(
        questions(&plans[0]),
        [(1, vec![0, 1], 0, 0), (2, vec![0, 1], 0, 0), (1, vec![1], 2, 2)]
    );
    assert_eq!(questions(&plans[1]), []);
    let releases: Vec<usize> = plans
        .iter()
        .flat_map(|plan| &plan.batches)
        .map(|batch| batch.releases.len())
        .collect();
    assert_eq!(releases, [0, 0, 0, 2]);
}
