//! Small cases whose plans can be written down.

use super::*;
use crate::batch::OwnerRows;
use crate::plan::HeldRow;

/// Rank 0 owns node 0; part 1 owns 1 to 3 and part 2 owns 4 to 6.
pub(super) fn input(epoch: &[&[NodeId]], budget_rows: u32, window: u32) -> PlanInput {
    let book = PartitionBook::new(vec![0, 1, 4, 7]).unwrap();
    let trace = MemoryTrace::from_nodes(&book, epoch.iter().map(|nodes| (Purpose::Train, *nodes)));
    PlanInput {
        rank: 0,
        book: Arc::new(book),
        budget_rows,
        window,
        trace: Arc::new(trace),
        next: None,
        from_step: 0,
        state: CacheState::default(),
    }
}

pub(super) fn plans(policy: &dyn Policy, input: PlanInput) -> Vec<WindowPlan> {
    let mut planner = policy.plan(input).unwrap();
    std::iter::from_fn(|| planner.next_window().unwrap()).collect()
}

/// Owner, rows, issue gap and needed step of every request.
pub(super) fn questions(plan: &WindowPlan) -> Vec<(PartId, Vec<u32>, u32, u32)> {
    let question = |request: &Request| {
        (
            request.owner,
            request.rows.clone(),
            request.issue_gap(),
            request.needed_by_step,
        )
    };
    plan.requests.iter().map(question).collect()
}

#[test]
fn window_asks_for_the_next_hot_set_one_window_ahead() {
    // Two hot rows a window: {1, 4}, then {1, 5}.
    let plans = plans(&Window, input(&[&[1, 4], &[1, 2, 4], &[1, 5], &[1, 5, 6]], 3, 2));
    assert_eq!(plans.len(), 2);
    assert_eq!(
        questions(&plans[0]),
        [
            (1, vec![0], 0, 0),
            (2, vec![0], 0, 0),
            (2, vec![1], 0, 2),
            (1, vec![1], 1, 1)
        ]
    );
    assert_eq!(questions(&plans[1]), [(2, vec![2], 3, 3)]);
    // Node 4 leaves with its window, node 1 stays for the next.
    assert_eq!(plans[0].batches[1].releases.len(), 1);
    assert_eq!(plans[1].batches[1].releases.len(), 2);
}

#[test]
fn bulk_asks_once_per_window_and_owner_and_keeps_what_comes_back() {
    let policy = bulk(100, false);
    let plans = plans(&policy, input(&[&[1, 2, 4], &[2, 5], &[1, 2, 4], &[3, 4]], 2, 2));
    assert_eq!(plans.len(), 2);
    // Row 1 of part 2 (node 5) comes with the window, for its second step. Node 2 is kept from the first.
    assert_eq!(questions(&plans[0]), [(1, vec![0, 1], 0, 0), (2, vec![0, 1], 0, 0)]);
    assert_eq!(plans[0].batches[0].keeps.len(), 1);
    // Node 3 has to be held at gap 2, so of nodes 1, 2 and 4 only one may be: node 2, used last.
    assert_eq!(questions(&plans[1]), [(1, vec![0, 2], 2, 2), (2, vec![0], 2, 2)]);
}

#[test]
fn bulk_leads_where_slots_are_free() {
    let epoch: [&[NodeId]; 4] = [&[1], &[1], &[2, 4], &[2]];
    let gaps = |policy: &Bulk, budget_rows| -> Vec<(u32, u32)> {
        plans(policy, input(&epoch, budget_rows, 2))
            .iter()
            .flat_map(|plan| {
                plan.requests
                    .iter()
                    .map(|request| (request.issue_gap(), request.needed_by_step))
            })
            .collect()
    };
    assert_eq!(gaps(&bulk(50, false), 3), [(0, 0), (2, 2), (2, 2)]);
    // Nothing is charged at gap 0 and one row at gap 1.
    assert_eq!(gaps(&bulk(50, true), 3), [(0, 0), (0, 2), (0, 2)]);
    // With two slots there is room for one of the two requests.
    assert_eq!(gaps(&bulk(50, true), 2), [(0, 0), (0, 2), (2, 2)]);
}

#[test]
fn a_searched_request_brings_rows_in_the_order_of_their_first_use() {
    let policy = searching(1000);
    let plans = plans(&policy, input(&[&[1, 5], &[3], &[2, 5], &[1, 2]], 5, 4));
    assert_eq!(plans.len(), 1);
    assert_eq!(questions(&plans[0]), [(1, vec![0, 2, 1], 0, 0), (2, vec![1], 0, 0)]);
    let request = &plans[0].requests[0];
    assert_eq!([0, 1, 2, 3].map(|step| request.rows_needed_by(step)), [1, 2, 3, 3]);
    assert_eq!(request.last_needed_by_step(), 2);
    // Only the first batch has rows that come directly.
    let direct: Vec<u32> = plans[0].batches.iter().map(|batch| batch.direct_rows).collect();
    assert_eq!(direct, [2, 0, 0, 0]);
}

#[test]
fn a_searched_plan_leads_where_slots_are_free() {
    let gaps = |lead| -> Vec<(u32, u32)> {
        let policy = Bulk {
            lead,
            ..searching(1000)
        };
        let plans = plans(&policy, input(&[&[1], &[1], &[2, 4], &[2]], 3, 2));
        let requests = plans.iter().flat_map(|plan| &plan.requests);
        requests
            .map(|request| (request.issue_gap(), request.needed_by_step))
            .collect()
    };
    // A window has at most two steps.
    assert_eq!(gaps(false), [(0, 0), (2, 2), (2, 2)]);
    assert_eq!(gaps(true), [(0, 0), (0, 2), (0, 2)]);
}

#[test]
fn a_policy_is_found_by_its_name_only() {
    for name in POLICY_NAMES {
        assert_eq!(policy_by_name(name).unwrap().name(), name);
    }
    let unknown = policy_by_name("Bulk").err().unwrap();
    assert_eq!(
        unknown.to_string(),
        "there is no policy \"Bulk\"; choose one of on-demand, degree, presample, vip, two-level, lru, lfu, fifo, \
         epoch, window, bulk, full"
    );
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let error = |policy: &dyn Policy, change: fn(&mut PlanInput)| {
        let mut input = input(&[&[1, 4], &[2]], 2, 2);
        change(&mut input);
        policy.plan(input).err()
    };
    for name in POLICY_NAMES {
        let policy = policy_by_name(name).unwrap();
        assert_eq!(error(&*policy, |_| {}), None);
        let unknown = error(&*policy, |input| input.rank = 3);
        assert_eq!(unknown, Some(PlanError::UnknownRank { rank: 3, parts: 3 }));
        assert_eq!(error(&*policy, |input| input.window = 0), Some(PlanError::EmptyWindow));
        let late = error(&*policy, |input| input.from_step = 3);
        assert_eq!(late, Some(PlanError::StartsAfterEnd { from_step: 3, steps: 2 }));
    }
    let held = |row, slot| HeldRow { owner: 1, row, slot };
    let states = [
        vec![held(3, 0)],
        vec![held(0, 2)],
        vec![held(0, 0), held(1, 0)],
        vec![held(1, 0), held(0, 1)],
    ];
    for held in states {
        let mut input = input(&[&[1]], 2, 2);
        input.state = CacheState::of_rows(held);
        let refused = Bulk::default().plan(input.clone()).err();
        assert!(matches!(refused, Some(PlanError::BadState { .. })), "{refused:?}");
        input.state.held = vec![HeldRow {
            owner: 1,
            row: 0,
            slot: 0,
        }];
        let cold = PlanError::ColdStart {
            policy: "window",
            rows: 1,
        };
        assert_eq!(Window.plan(input).err(), Some(cold));
    }
}

#[test]
fn rows_of_a_trace_that_are_no_remote_rows_are_refused_with_their_step() {
    let rows = |owner, rows: &[u32]| OwnerRows {
        owner,
        rows: rows.to_vec(),
    };
    let bad = [
        (vec![rows(0, &[0])], 0, 0),
        (vec![rows(3, &[0])], 3, 0),
        (vec![rows(1, &[1, 3])], 1, 3),
        (vec![rows(1, &[1, 1])], 1, 1),
        (vec![rows(2, &[0]), rows(1, &[2])], 1, 2),
    ];
    for (owners, owner, row) in bad {
        let steps = [RemoteRows::default(), RemoteRows { owners }];
        let trace = MemoryTrace::new(steps.into_iter().map(|rows| (Purpose::Train, rows)));
        for name in POLICY_NAMES {
            let mut input = input(&[], 2, 1);
            input.trace = Arc::new(trace.clone());
            let plan = || -> Result<(), PlanError> {
                let mut planner = policy_by_name(name).unwrap().plan(input)?;
                while planner.next_window()?.is_some() {}
                Ok(())
            };
            assert_eq!(plan(), Err(PlanError::BadRow { step: 1, owner, row }), "{name}");
        }
    }
}

#[test]
fn bulk_plans_from_a_full_cache_that_no_plan_has_left() {
    // The cache holds what nobody needs, and there is no room for rows that would come early.
    let mut input = input(&[&[4], &[5, 6], &[5]], 2, 3);
    let held = [0, 1].map(|row| HeldRow {
        owner: 1,
        row,
        slot: row,
    });
    input.state = CacheState::of_rows(held.to_vec());
    let plans = plans(&bulk(100, true), input);
    let starts: Vec<u32> = plans.iter().map(WindowPlan::first_step).collect();
    assert_eq!(starts, [0, 1]);
    assert_eq!(questions(&plans[0]), [(2, vec![0], 0, 0)]);
    assert_eq!(questions(&plans[1]), [(2, vec![1, 2], 1, 1)]);
}
