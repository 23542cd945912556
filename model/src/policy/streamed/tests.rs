use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::policy::POLICY_NAMES;
use crate::policy::bound::RunUses;
use crate::policy::conformance::{RunTally, check_delivered};
use crate::policy::tests::{Drawn, drawn};

fn run(drawn: &Drawn, policy: &dyn Policy, delivery: Delivery) -> RunTally {
    let scores = policy.score_kind().map(|_| vec![1.0; drawn.case.book.nodes() as usize]);
    check_delivered(policy, &drawn.case, scores.as_deref(), delivery).unwrap()
}

/// Belady's MIN at the budget.
fn fewest_rows(drawn: &Drawn) -> u64 {
    let case = &drawn.case;
    let epochs = case.epochs.iter().map(|trace| &**trace);
    let uses = RunUses::new(epochs, case.from_step, &case.book, case.rank).unwrap();
    uses.fewest_rows(case.asked_rows)
}

/// Per epoch the owners of the rows that its steps need.
fn owners_needed(drawn: &Drawn) -> Vec<u64> {
    let epochs = drawn
        .case
        .epochs
        .iter()
        .zip([drawn.case.from_step].into_iter().chain(std::iter::repeat(0)));
    epochs
        .map(|(trace, from)| {
            let steps = (from..trace.steps()).map(|step| trace.remote_rows(step).unwrap());
            let owners: BTreeSet<_> = steps
                .flat_map(|remote| remote.iter().map(|(owner, _)| owner).collect::<Vec<_>>())
                .collect();
            owners.len() as u64
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_stream_moves_the_fewest_rows_at_every_budget(mut drawn in drawn(12, 9, 2)) {
        // The horizon is the whole run.
        drawn.case.with_next = true;
        let ample = drawn.case.book.remote_nodes(drawn.case.rank);
        for asked_rows in [0, 1, 3, drawn.case.asked_rows, ample] {
            drawn.case.asked_rows = asked_rows;
            let tally = run(&drawn, &EveryStep, Delivery::Stream);
            prop_assert_eq!(tally.feature_rows(), fewest_rows(&drawn));
        }
    }

    #[test]
    fn without_a_budget_every_owner_that_is_needed_is_asked_once_an_epoch(mut drawn in drawn(12, 9, 3)) {
        drawn.case.asked_rows = 0;
        let tally = run(&drawn, &EveryStep, Delivery::Stream);
        for (epoch, owners) in tally.epochs.iter().zip(owners_needed(&drawn)) {
            prop_assert_eq!(epoch.training.feature_requests, owners);
            prop_assert_eq!(epoch.evaluation.feature_requests, 0);
        }
    }

    #[test]
    fn streams_of_any_policy_ask_each_owner_once_an_epoch_and_deliver_what_requests_would(drawn in drawn(12, 9, 3)) {
        for name in POLICY_NAMES {
            let policy = policy_for(name, Delivery::Stream).unwrap();
            let streamed = run(&drawn, &*policy, Delivery::Stream);
            let asked = run(&drawn, &*policy, Delivery::Windowed);
            prop_assert_eq!(streamed.setup, asked.setup);
            for ((streamed, asked), owners) in streamed.epochs.iter().zip(&asked.epochs).zip(owners_needed(&drawn)) {
                prop_assert_eq!(asked.deliveries(), asked.feature_requests());
                prop_assert_eq!(streamed.training.deliveries, asked.training.deliveries);
                prop_assert_eq!(streamed.evaluation.deliveries, asked.evaluation.deliveries);
                prop_assert_eq!(streamed.feature_rows(), asked.feature_rows());
                prop_assert!(streamed.feature_requests() <= owners.min(streamed.deliveries()));
                prop_assert_eq!(streamed.feature_requests() == 0, streamed.deliveries() == 0);
            }
        }
    }
}

#[test]
fn only_bulk_is_planned_in_another_way_for_streams() {
    for name in POLICY_NAMES {
        let policy = policy_by_name(name).unwrap();
        let streamed = for_delivery(Arc::clone(&policy), Delivery::Stream);
        assert_eq!(streamed.name(), name);
        assert_eq!(Arc::ptr_eq(&policy, &streamed), name != "bulk", "{name}");
    }
    assert!(policy_for("belady", Delivery::Stream).is_err());
    assert_eq!("stream".parse(), Ok(Delivery::Stream));
    assert!("streamed".parse::<Delivery>().is_err());
}

#[test]
fn bulk_is_streamed_unless_all_rows_fit() {
    assert_eq!(usual_delivery("bulk", 9, 10), Delivery::Stream);
    assert_eq!(usual_delivery("bulk", 10, 10), Delivery::Windowed);
    assert_eq!(usual_delivery("lru", 9, 10), Delivery::Windowed);
}
