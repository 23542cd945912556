//! What a policy will move: its plans, counted without being executed.
//!
//! Requests and rows that are planned are those that a run then counts, so a run's traffic is known as soon as its traces
//! are. Nothing is checked here; [`conformance`](super::conformance) does that, at several times the price.

use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::sync::Arc;

use super::conformance::{Case, ConformanceError};
use super::{FillInput, PlanInput, Policy};
use crate::book::PartId;
use crate::counters::Phase;
use crate::plan::{Delivery, Request};

/// Traffic of feature rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    pub requests: u64,
    /// Arrivals of rows; as many as requests unless a request is answered by a stream.
    pub deliveries: u64,
    pub rows: u64,
}

impl Moves {
    /// Adds an arrival of rows, whose request is counted apart.
    fn add_delivery(&mut self, request: &Request) {
        self.deliveries += 1;
        self.rows += request.rows.len() as u64;
    }
}

impl AddAssign for Moves {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.deliveries += other.deliveries;
        self.rows += other.rows;
    }
}

/// What one epoch moves. A request counts for the phase of the step that needs it, that of a stream for training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochMoves {
    pub training: Moves,
    pub evaluation: Moves,
}

/// What a run of one rank moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunMoves {
    /// Slots of the arena.
    pub budget_rows: u32,
    /// The fill of a static policy.
    pub setup: Moves,
    pub epochs: Vec<EpochMoves>,
    /// The most rows that are written straight into the buffer of one batch.
    pub most_direct_rows: u32,
}

impl RunMoves {
    /// Fill, training and evaluation together.
    pub fn whole(&self) -> Moves {
        let mut sum = self.setup;
        for epoch in &self.epochs {
            sum += epoch.training;
            sum += epoch.evaluation;
        }
        sum
    }
}

/// Plans a run and counts what it moves, asked and answered as `delivery` says; `scores` are one per node of the graph, for a
/// policy that ranks rows by them.
///
/// # Errors
/// The first plan or fill that fails.
pub fn moves(
    policy: &dyn Policy,
    case: &Case,
    scores: Option<&[f64]>,
    delivery: Delivery,
) -> Result<RunMoves, ConformanceError> {
    moves_levels(policy, case, scores, delivery, None)
}

/// The same with a device that keeps rows: as many as `asked_device_rows`, or as the policy puts there by itself.
///
/// # Errors
/// The first plan or fill that fails.
pub fn moves_levels(
    policy: &dyn Policy,
    case: &Case,
    scores: Option<&[f64]>,
    delivery: Delivery,
    asked_device_rows: Option<u32>,
) -> Result<RunMoves, ConformanceError> {
    let budget_rows = policy.budget_rows(&case.book, case.rank, case.asked_rows);
    let fill = policy.fill_scored(FillInput {
        book: &case.book,
        rank: case.rank,
        budget_rows,
        device_rows: policy.device_rows(budget_rows, asked_device_rows),
        scores,
    })?;
    let mut run = RunMoves {
        budget_rows,
        ..RunMoves::default()
    };
    for request in &fill.requests {
        run.setup.requests += 1;
        run.setup.add_delivery(request);
    }
    let mut state = fill.state;
    for (epoch, trace) in case.epochs.iter().enumerate() {
        let failed = |error| ConformanceError::Plan { epoch, error };
        let wants_next = case.with_next && policy.needs_next_epoch();
        let input = PlanInput {
            rank: case.rank,
            book: Arc::clone(&case.book),
            budget_rows,
            window: case.window,
            trace: Arc::clone(trace),
            next: case.epochs.get(epoch + 1).filter(|_| wants_next).cloned(),
            from_step: if epoch == 0 { case.from_step } else { 0 },
            state,
        };
        let mut planner = policy.plan(input).map_err(failed)?;
        let mut moved = EpochMoves::default();
        // The owners that have been sent the schedule of a stream.
        let mut streams: BTreeSet<PartId> = BTreeSet::new();
        while let Some(window) = planner.next_window().map_err(failed)? {
            for request in &window.requests {
                let EpochMoves { training, evaluation } = &mut moved;
                let phase = match Phase::from(trace.purpose(request.needed_by_step)) {
                    Phase::Evaluation => &mut *evaluation,
                    Phase::Training | Phase::Setup => &mut *training,
                };
                phase.add_delivery(request);
                match delivery {
                    Delivery::Windowed => phase.requests += 1,
                    Delivery::Stream => training.requests += u64::from(streams.insert(request.owner)),
                }
            }
            let direct = window.batches.iter().map(|batch| batch.direct_rows).max();
            run.most_direct_rows = run.most_direct_rows.max(direct.unwrap_or(0));
        }
        run.epochs.push(moved);
        state = planner.into_state();
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::book::PartitionBook;
    use crate::policy::conformance::check_delivered;
    use crate::policy::streamed::policy_for;
    use crate::policy::tests::drawn;
    use crate::policy::{POLICY_NAMES, policy_by_name};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn what_is_counted_is_what_the_executor_moves(drawn in drawn(9, 7, 3), streamed in any::<bool>()) {
            let delivery = if streamed { Delivery::Stream } else { Delivery::Windowed };
            let scores = vec![1.0; drawn.case.book.nodes() as usize];
            for name in POLICY_NAMES {
                let policy = policy_for(name, delivery).unwrap();
                let counted = moves(&*policy, &drawn.case, Some(&scores), delivery).unwrap();
                let executed = check_delivered(&*policy, &drawn.case, Some(&scores), delivery).unwrap();
                prop_assert_eq!(counted.budget_rows, executed.budget_rows);
                let whole = counted.whole();
                prop_assert_eq!(whole.rows, executed.feature_rows(), "{}", name);
                prop_assert_eq!(whole.requests, executed.feature_requests(), "{}", name);
                prop_assert_eq!(whole.deliveries, executed.deliveries(), "{}", name);
                for (counted, executed) in counted.epochs.iter().zip(&executed.epochs) {
                    prop_assert_eq!(counted.training.rows, executed.training.feature_rows);
                    prop_assert_eq!(counted.training.requests, executed.training.feature_requests);
                    prop_assert_eq!(counted.evaluation.requests, executed.evaluation.feature_requests);
                }
            }
        }

        #[test]
        fn a_policy_that_uses_no_window_moves_the_same_at_any(drawn in drawn(9, 7, 2), window in 1..9u32) {
            let scores = vec![1.0; drawn.case.book.nodes() as usize];
            let case = Case { window, ..drawn.case.clone() };
            for delivery in [Delivery::Windowed, Delivery::Stream] {
                for name in POLICY_NAMES {
                    let policy = policy_for(name, delivery).unwrap();
                    if !policy.uses_window() {
                        let count = |case| moves(&*policy, case, Some(&scores), delivery).unwrap();
                        prop_assert_eq!(count(&case), count(&drawn.case), "{} {:?}", name, delivery);
                    }
                }
            }
        }
    }

    #[test]
    fn a_policy_without_its_scores_has_no_count() {
        let case = Case {
            book: Arc::new(PartitionBook::new(vec![0, 1, 3]).unwrap()),
            rank: 0,
            epochs: Vec::new(),
            asked_rows: 1,
            window: 1,
            from_step: 0,
            with_next: true,
        };
        let policy = policy_by_name("degree").unwrap();
        let error = moves(&*policy, &case, None, Delivery::Windowed).unwrap_err();
        assert!(matches!(error, ConformanceError::Fill(_)), "{error}");
        let filled = moves(&*policy, &case, Some(&[0.0, 1.0, 2.0]), Delivery::Windowed).unwrap();
        let one = Moves {
            requests: 1,
            deliveries: 1,
            rows: 1,
        };
        assert_eq!(filled.setup, one);
    }
}
