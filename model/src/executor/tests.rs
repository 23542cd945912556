use super::*;
use crate::plan::{Keep, LaterRows, RowType};
use crate::policy::MemoryTrace;
use crate::rng::Purpose;

fn book() -> Arc<PartitionBook> {
    Arc::new(PartitionBook::new(vec![0, 1, 4, 6]).unwrap())
}

/// Two training steps and a validation step of rank 0, which owns node 0.
fn trace(book: &PartitionBook) -> MemoryTrace {
    let steps: [(Purpose, &[NodeId]); 3] = [
        (Purpose::Train, &[1, 2, 4]),
        (Purpose::Train, &[1, 4]),
        (Purpose::Valid, &[2, 5]),
    ];
    MemoryTrace::from_nodes(book, steps)
}

fn request(owner: PartId, rows: &[u32], places: &[Place], issue_gap: u32, needed_by_step: u32) -> Request {
    Request {
        owner,
        rows: rows.to_vec(),
        places: places.to_vec(),
        dtype: RowType::F32,
        issue_after_step: issue_gap.checked_sub(1),
        needed_by_step,
        later: Vec::new(),
    }
}

/// A plan for three slots that uses everything a plan can say. It ends with node 4 in slot 1.
fn plans() -> Vec<WindowPlan> {
    use Place::{Direct, Slot};
    let batch = |step, places: &[Place], direct_rows, releases: &[u32], keeps: &[Keep]| BatchPlan {
        step,
        places: places.to_vec(),
        direct_rows,
        releases: releases.to_vec(),
        keeps: keeps.to_vec(),
    };
    vec![
        WindowPlan {
            purpose: Purpose::Train,
            requests: vec![
                request(1, &[0, 1], &[Slot(0), Direct(0)], 0, 0),
                request(2, &[0], &[Direct(1)], 0, 0),
                request(1, &[1], &[Slot(2)], 1, 2),
            ],
            batches: vec![
                batch(
                    0,
                    &[Slot(0), Direct(0), Direct(1)],
                    2,
                    &[],
                    &[Keep { direct: 1, slot: 1 }],
                ),
                batch(1, &[Slot(0), Slot(1)], 0, &[0], &[]),
            ],
        },
        WindowPlan {
            purpose: Purpose::Valid,
            requests: vec![request(2, &[1], &[Direct(0)], 2, 2)],
            batches: vec![batch(2, &[Slot(2), Direct(0)], 1, &[2], &[])],
        },
    ]
}

fn execute(plans: &[WindowPlan], arrivals: Arrivals) -> Result<Executor, ExecuteError> {
    let book = book();
    let trace = trace(&book);
    let mut executor = Executor::new(book, 0, 3, arrivals);
    executor.start_epoch(0);
    for plan in plans {
        executor.run_window(plan, &trace)?;
    }
    let held = vec![HeldRow {
        owner: 2,
        row: 0,
        slot: 1,
    }];
    executor.end_epoch(3, &CacheState::of_rows(held))?;
    Ok(executor)
}

#[test]
fn a_good_plan_is_executed_and_counted_whenever_answers_come() {
    for arrivals in [Arrivals::AtOnce, Arrivals::WhenNeeded] {
        let executor = execute(&plans(), arrivals).unwrap();
        let training = Tally {
            feature_requests: 2,
            deliveries: 2,
            feature_rows: 3,
            needed_rows: 5,
            held_rows_peak: 3,
        };
        // The third request leaves in the training window and counts for the validation step that needs it.
        let evaluation = Tally {
            feature_requests: 2,
            deliveries: 2,
            feature_rows: 2,
            needed_rows: 2,
            held_rows_peak: 2,
        };
        assert_eq!(executor.tally(Phase::Training), training);
        assert_eq!(executor.tally(Phase::Evaluation), evaluation);
    }
}

/// The rule that is broken by a plan that was changed by `change`.
fn broken_rule(arrivals: Arrivals, change: impl FnOnce(&mut Vec<WindowPlan>)) -> Option<u8> {
    let mut plans = plans();
    change(&mut plans);
    match execute(&plans, arrivals) {
        Ok(_) => None,
        Err(ExecuteError::Violation(violation)) => Some(violation.rule),
        Err(ExecuteError::Trace(error)) => panic!("{error}"),
    }
}

type Change = fn(&mut Vec<WindowPlan>);

#[test]
fn every_broken_rule_is_named() {
    let changes: [(u8, Change); 26] = [
        (1, |plans| plans.truncate(1)),
        (1, |plans| plans[0].purpose = Purpose::Valid),
        (1, |plans| plans.swap(0, 1)),
        (1, |plans| plans[1].batches.clear()),
        (2, |plans| plans[0].batches[0].places.truncate(2)),
        (2, |plans| plans[0].batches[0].direct_rows = 3),
        (3, |plans| plans[0].requests[0].rows.swap(0, 1)),
        (3, |plans| plans[0].requests[0].owner = 0),
        (3, |plans| plans[0].requests[0].owner = 3),
        (3, |plans| plans[0].requests[1].rows[0] = 2),
        (3, |plans| plans[0].requests[1].places.clear()),
        (3, |plans| plans[0].requests[1].places[0] = Place::Direct(2)),
        (3, |plans| plans[0].requests[2].places[0] = Place::Slot(3)),
        (4, |plans| plans[0].requests.swap(0, 2)),
        (4, |plans| plans[0].requests[2].issue_after_step = Some(1)),
        (4, |plans| plans[0].requests[2].needed_by_step = 0),
        (4, |plans| plans[0].requests[2].places[0] = Place::Direct(0)),
        (4, |plans| plans[0].requests[2].needed_by_step = 3),
        (5, |plans| {
            let first = &mut plans[0].requests[0];
            let (rows, places) = (first.rows.split_off(1), first.places.split_off(1));
            plans[0].requests.insert(1, request(1, &rows, &places, 0, 0));
        }),
        (6, |plans| plans[0].requests[2].places[0] = Place::Slot(0)),
        (7, |plans| plans[0].batches[1].places.swap(0, 1)),
        (8, |plans| plans[0].batches[1].releases.push(0)),
        (8, |plans| plans[0].batches[1].releases.push(2)),
        (9, |plans| plans[0].batches[0].keeps[0].slot = 0),
        (9, |plans| plans[0].batches[0].keeps[0].direct = 2),
        (10, |plans| {
            let last = &mut plans[1].requests[0];
            last.rows.insert(0, 0);
            last.places.insert(0, Place::Direct(0));
        }),
    ];
    for (index, (rule, change)) in changes.into_iter().enumerate() {
        for arrivals in [Arrivals::AtOnce, Arrivals::WhenNeeded] {
            assert_eq!(
                broken_rule(arrivals, change),
                Some(rule),
                "change {index}, answers {arrivals:?}"
            );
        }
    }
}

#[test]
fn a_stream_has_no_later_rows() {
    let (book, mut plans) = (book(), plans());
    // Node 3, which nobody needs before the last step, comes with nodes 1 and 2.
    let first = &mut plans[0].requests[0];
    first.rows.push(2);
    first.places.push(Place::Slot(2));
    first.later.push(LaterRows {
        first_row: 2,
        needed_by_step: 2,
    });
    let run = |delivery| {
        let mut executor = Executor::new(Arc::clone(&book), 0, 4, Arrivals::WhenNeeded).with_delivery(delivery);
        let mut window = plans[0].clone();
        // The slot is taken by the later row.
        window.requests.truncate(2);
        executor.start_epoch(0);
        executor.run_window(&window, &trace(&book))
    };
    run(Delivery::Windowed).unwrap();
    match run(Delivery::Stream) {
        Err(ExecuteError::Violation(violation)) => assert_eq!((violation.rule, violation.step), (16, 0)),
        other => panic!("later rows in a stream: {other:?}"),
    }
}

#[test]
fn a_row_that_is_read_before_it_is_due_is_found_by_late_answers_only() {
    let change: Change = |plans| {
        let requests = &mut plans[0].requests;
        requests[0] = request(1, &[1], &[Place::Direct(0)], 0, 0);
        requests.insert(1, request(1, &[0], &[Place::Slot(0)], 0, 1));
    };
    assert_eq!(broken_rule(Arrivals::AtOnce, change), None);
    assert_eq!(broken_rule(Arrivals::WhenNeeded, change), Some(7));
}

#[test]
fn a_row_is_gone_once_its_slot_is_released() {
    let change: Change = |plans| plans[0].batches[0].releases.push(0);
    assert_eq!(broken_rule(Arrivals::AtOnce, change), Some(7));
}

#[test]
fn a_state_that_is_not_what_is_held_is_refused() {
    let executor = execute(&plans(), Arrivals::AtOnce).unwrap();
    let refused = executor.end_epoch(3, &CacheState::default()).unwrap_err();
    assert_eq!(refused.rule, 11);
}

#[test]
fn a_fill_asks_each_part_once_and_holds_what_its_state_names() {
    let fill = Fill {
        requests: vec![
            request(1, &[2], &[Place::Slot(1)], 0, 0),
            request(2, &[0], &[Place::Slot(0)], 0, 0),
        ],
        state: CacheState::of_rows(vec![
            HeldRow {
                owner: 1,
                row: 2,
                slot: 1,
            },
            HeldRow {
                owner: 2,
                row: 0,
                slot: 0,
            },
        ]),
        ..Fill::default()
    };
    let run = |fill: &Fill| {
        let mut executor = Executor::new(book(), 0, 2, Arrivals::WhenNeeded);
        executor.fill(fill).map(|()| executor.tally(Phase::Setup))
    };
    let tally = run(&fill).unwrap();
    assert_eq!(
        (tally.feature_requests, tally.feature_rows, tally.held_rows_peak),
        (2, 2, 2)
    );

    let mut unordered = fill.clone();
    unordered.requests.swap(0, 1);
    assert_eq!(run(&unordered).unwrap_err().rule, 13);
    let mut unnamed = fill.clone();
    unnamed.state.held.pop();
    assert_eq!(run(&unnamed).unwrap_err().rule, 13);
    let mut direct = fill;
    direct.requests[0].places[0] = Place::Direct(0);
    assert_eq!(run(&direct).unwrap_err().rule, 3);
}
