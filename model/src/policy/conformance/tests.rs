use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::book::NodeId;
use crate::plan::HeldRow;
use crate::policy::bulk::Bulk;
use crate::policy::delivery::Search;
use crate::policy::pinned::{Full, OnDemand};
use crate::policy::window::Window;
use crate::policy::{MemoryTrace, Planner};
use crate::rng::{CounterRng, Purpose};

/// Two epochs of rank 0, which owns 100 of 400 nodes. A node of low id is in most of the batches, one of high id in few.
fn skewed(asked_rows: u32) -> Case {
    let book = PartitionBook::new(vec![0, 100, 200, 200, 300, 400]).unwrap();
    let mut rng = CounterRng::new(7);
    let epochs = (0..2)
        .map(|_| {
            let steps: Vec<(Purpose, Vec<NodeId>)> = (0..14)
                .map(|step| {
                    let purpose = if step < 10 { Purpose::Train } else { Purpose::Valid };
                    let needed = |node: &NodeId| rng.unit_f64() < 0.9 * (f64::from(400 - node) / 300.0).powi(4);
                    (purpose, (100..400).filter(needed).collect())
                })
                .collect();
            let steps = steps.iter().map(|(purpose, nodes)| (*purpose, &nodes[..]));
            Arc::new(MemoryTrace::from_nodes(&book, steps)) as Arc<dyn RemoteTrace>
        })
        .collect();
    Case {
        book: Arc::new(book),
        rank: 0,
        epochs,
        asked_rows,
        window: 4,
        from_step: 0,
        with_next: true,
    }
}

#[test]
fn on_a_skewed_trace_rows_fall_strictly_from_on_demand_to_window_to_bulk() {
    for asked_rows in [15, 30, 75, 150, 300] {
        let case = skewed(asked_rows);
        let run = |policy: &dyn Policy| check(policy, &case).unwrap();
        let windows = Bulk {
            search: None,
            ..Bulk::default()
        };
        let (on_demand, window, bulk) = (run(&OnDemand), run(&Window), run(&windows));
        assert!(bulk.feature_rows() < window.feature_rows(), "{asked_rows}");
        assert!(window.feature_rows() < on_demand.feature_rows(), "{asked_rows}");
        assert!(bulk.feature_requests() <= on_demand.feature_requests(), "{asked_rows}");
        let searched = run(&Bulk::default());
        let cost =
            |tally: &RunTally| tally.feature_rows() + u64::from(Search::CROSSOVER_ROWS) * tally.feature_requests();
        assert!(cost(&searched) <= cost(&bulk), "{asked_rows}");
        assert!(
            run(&Bulk::fewest_rows()).feature_rows() <= bulk.feature_rows(),
            "{asked_rows}"
        );
        for epoch in bulk.epochs.iter().chain(&searched.epochs) {
            assert!(epoch.training.held_rows_peak <= asked_rows, "{asked_rows}");
        }
    }
}

/// A policy that is right but for what `fault` does to it.
struct Faulty {
    policy: Box<dyn Policy>,
    fault: Fault,
    plans: AtomicU32,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    TooManySlots,
    LongWindows,
    OtherPlanEachTime,
    OtherFillEachTime,
    SaysItStartsCold,
    ForgetsItsState,
    StopsEarly,
    CrowdsTheDevice,
    LeavesDeviceSlotsEmpty,
    PutsAStrangeRowOnTheDevice,
    FreesASlotOfTheDevice,
    KeepsOwnRowsBesideTheBudget,
}

struct FaultyPlanner {
    planner: Box<dyn Planner>,
    fault: Fault,
    windows: u32,
}

impl Policy for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn budget_rows(&self, book: &PartitionBook, rank: Rank, asked: u32) -> u32 {
        match self.fault {
            Fault::TooManySlots => book.nodes(),
            _ => self.policy.budget_rows(book, rank, asked),
        }
    }

    fn needs_next_epoch(&self) -> bool {
        self.policy.needs_next_epoch()
    }

    fn keeps_across_epochs(&self) -> bool {
        self.fault != Fault::SaysItStartsCold && self.policy.keeps_across_epochs()
    }

    fn fill(&self, book: &PartitionBook, rank: Rank, budget_rows: u32) -> Fill {
        let less = match self.fault {
            Fault::OtherFillEachTime => self.plans.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        let mut fill = self.policy.fill(book, rank, budget_rows - less);
        match self.fault {
            Fault::CrowdsTheDevice => fill.device.slots = 11,
            Fault::LeavesDeviceSlotsEmpty | Fault::FreesASlotOfTheDevice => fill.device.slots = 1,
            Fault::KeepsOwnRowsBesideTheBudget => fill.device.own = vec![0, 1],
            Fault::PutsAStrangeRowOnTheDevice => fill.device.own = vec![book.part_nodes(rank)],
            _ => {}
        }
        fill
    }

    fn has_levels(&self) -> bool {
        true
    }

    fn plan(&self, mut input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        match self.fault {
            Fault::LongWindows => input.window += 1,
            Fault::OtherPlanEachTime => input.window -= self.plans.fetch_add(1, Ordering::Relaxed) % 2,
            _ => {}
        }
        Ok(Box::new(FaultyPlanner {
            planner: self.policy.plan(input)?,
            fault: self.fault,
            windows: 0,
        }))
    }
}

impl Planner for FaultyPlanner {
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError> {
        self.windows += 1;
        let mut window = match self.fault {
            Fault::StopsEarly if self.windows > 1 => None,
            _ => self.planner.next_window()?,
        };
        if self.fault == Fault::FreesASlotOfTheDevice
            && let Some(batch) = window.iter_mut().flat_map(|window| &mut window.batches).next()
        {
            batch.releases.push(0);
        }
        Ok(window)
    }

    fn into_state(self: Box<Self>) -> CacheState {
        let mut state = self.planner.into_state();
        if self.fault == Fault::ForgetsItsState {
            let forgotten: Option<HeldRow> = state.held.pop();
            assert!(forgotten.is_some());
        }
        state
    }
}

#[test]
fn plans_that_wait_for_later_rows_cannot_be_streamed() {
    let case = skewed(100);
    let rows = |delivery| check_delivered(&Bulk::default(), &case, None, delivery);
    rows(Delivery::Windowed).unwrap();
    match rows(Delivery::Stream) {
        Err(ConformanceError::Execute {
            error: ExecuteError::Violation(violation),
            ..
        }) => assert_eq!(violation.rule, 16),
        other => panic!("bulk's windows were streamed: {other:?}"),
    }
}

#[test]
fn a_faulty_policy_is_found_and_its_rule_named() {
    let full = || -> Box<dyn Policy> { Box::new(Full) };
    let bulk = || -> Box<dyn Policy> { Box::new(Bulk::default()) };
    let on_demand = || -> Box<dyn Policy> { Box::new(OnDemand) };
    let faults = [
        (on_demand(), Fault::TooManySlots, 6),
        (on_demand(), Fault::LongWindows, 1),
        (on_demand(), Fault::OtherPlanEachTime, 12),
        (full(), Fault::OtherFillEachTime, 12),
        (full(), Fault::SaysItStartsCold, 11),
        (bulk(), Fault::ForgetsItsState, 11),
        (bulk(), Fault::StopsEarly, 1),
        (full(), Fault::CrowdsTheDevice, 14),
        (bulk(), Fault::LeavesDeviceSlotsEmpty, 14),
        (full(), Fault::PutsAStrangeRowOnTheDevice, 14),
        (full(), Fault::FreesASlotOfTheDevice, 14),
        (full(), Fault::KeepsOwnRowsBesideTheBudget, 15),
        // Its slots are within the budget until it fills them.
        (bulk(), Fault::KeepsOwnRowsBesideTheBudget, 15),
    ];
    for (policy, fault, expected) in faults {
        let faulty = Faulty {
            policy,
            fault,
            plans: AtomicU32::new(0),
        };
        let rule = match check_levels(&faulty, &skewed(100), None, Some(10)) {
            Err(ConformanceError::Rule { violation, .. }) => violation.rule,
            Err(ConformanceError::Execute {
                error: ExecuteError::Violation(violation),
                ..
            }) => violation.rule,
            other => panic!("rule {expected} is not named: {other:?}"),
        };
        assert_eq!(rule, expected);
    }
}
