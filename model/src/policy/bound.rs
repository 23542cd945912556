//! What no policy can beat: the fewest rows that a run has to move.
//!
//! A use of a row is free of a fetch only if the row is held at every gap since its use before; each such interval of gaps
//! spares one fetch, and at most `budget` of them may cover a gap. Everything else is fetched for its batch, directly,
//! which charges nothing. So the fewest rows are all uses less the most intervals that can be packed, and dropping at the
//! first gap that overflows those that end last packs the most (each later gap only gains by the exchange). That is
//! Belady's MIN (IBM Systems Journal 5(2), 1966) with bypass, for rows that are charged at the gaps between batches
//! ([`plan`](crate::plan)).
//!
//! The run is seen as a whole: all its epochs, evaluation included, from an empty cache. Rows that a policy fetches at
//! set-up count among what it moves, so the bound holds for static policies too. It is a bound for policies that move rows,
//! in one precision, under the same charge: not for `--carry`, and not for a run that starts from a warm cache.

use super::{PlanError, RemoteTrace, global_ids, read_step};
use crate::book::{NodeId, PartitionBook, Rank};

/// A use that is the last of the run.
const NEVER: u32 = u32::MAX;

/// When the rows of a rank are used in a run: what the bounds at all budgets need of its traces. It has 4 bytes per remote
/// row of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunUses {
    /// Per step of the run, and per row that it uses, the step that uses the row next.
    next_uses: Vec<Vec<u32>>,
    distinct_rows: u64,
}

impl RunUses {
    /// The uses of a run of `rank`: its epochs one after the other, the first from `from_step` on.
    ///
    /// # Errors
    /// A trace that cannot be read, or whose rows are not remote rows of `rank`.
    pub fn new<'a>(
        epochs: impl IntoIterator<Item = &'a dyn RemoteTrace>,
        from_step: u32,
        book: &PartitionBook,
        rank: Rank,
    ) -> Result<Self, PlanError> {
        if rank >= book.parts() {
            return Err(PlanError::UnknownRank {
                rank,
                parts: book.parts(),
            });
        }
        let mut next_uses: Vec<Vec<u32>> = Vec::new();
        // Per node its last use so far: a step, and the place of the node among the rows of that step.
        let mut last_uses: Vec<Option<(u32, u32)>> = vec![None; book.nodes() as usize];
        let mut distinct_rows = 0;
        let mut nodes: Vec<NodeId> = Vec::new();
        let mut first = from_step;
        for trace in epochs {
            for step in std::mem::take(&mut first)..trace.steps() {
                global_ids(&*read_step(trace, book, rank, step)?, book, &mut nodes);
                let used = next_uses.len() as u32;
                for (place, node) in (0..).zip(&nodes) {
                    match last_uses[*node as usize].replace((used, place)) {
                        Some((before, place)) => next_uses[before as usize][place as usize] = used,
                        None => distinct_rows += 1,
                    }
                }
                next_uses.push(vec![NEVER; nodes.len()]);
            }
        }
        Ok(Self {
            next_uses,
            distinct_rows,
        })
    }

    /// Rows of all batches, each counted in every batch that needs it: what is moved without a cache.
    pub fn needed_rows(&self) -> u64 {
        self.next_uses.iter().map(|uses| uses.len() as u64).sum()
    }

    /// Rows that are needed at all: each has to come once, whatever the budget.
    pub fn compulsory_rows(&self) -> u64 {
        self.distinct_rows
    }

    /// The fewest rows that move where at most `budget_rows` are held at any gap: MIN at the budget.
    ///
    /// It takes time in proportion to the uses, and 4 bytes per step.
    pub fn fewest_rows(&self, budget_rows: u32) -> u64 {
        // Per step how many held rows are used there next. Which rows they are does not matter.
        let mut held = vec![0u32; self.next_uses.len()];
        let mut held_rows: u64 = 0;
        let mut spared: u64 = 0;
        // No held row is used later.
        let mut latest = 0;
        for (step, uses) in self.next_uses.iter().enumerate() {
            // What is held up to here is found by its batch.
            let found = u64::from(std::mem::take(&mut held[step]));
            spared += found;
            held_rows -= found;
            for used in uses.iter().filter(|used| **used != NEVER) {
                held[*used as usize] += 1;
                held_rows += 1;
                latest = latest.max(*used as usize);
            }
            while held_rows > u64::from(budget_rows) {
                let excess = held_rows - u64::from(budget_rows);
                let dropped = excess.min(u64::from(held[latest]));
                // At most the number of rows that are held for that step, so the cast keeps the value.
                held[latest] -= dropped as u32;
                held_rows -= dropped;
                if held[latest] == 0 {
                    latest = latest.saturating_sub(1);
                }
            }
        }
        self.needed_rows() - spared
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::tests::{Drawn, belady_rows, drawn, fewest_rows, planned_steps};

    fn uses(drawn: &Drawn) -> RunUses {
        let case = &drawn.case;
        let epochs = case.epochs.iter().map(|trace| &**trace);
        RunUses::new(epochs, case.from_step, &case.book, case.rank).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn the_bound_is_what_trying_every_held_set_gives(drawn in drawn(5, 5, 2)) {
            let steps = planned_steps(&drawn);
            let everywhere = (0..steps.len()).collect();
            let budget = drawn.case.asked_rows.min(drawn.case.book.nodes());
            let fewest = fewest_rows(&steps, &everywhere, budget, drawn.case.book.nodes());
            prop_assert_eq!(Some(uses(&drawn).fewest_rows(budget)), fewest);
        }

        #[test]
        fn the_bound_is_beladys_min_and_falls_from_all_uses_to_the_compulsory_rows(drawn in drawn(12, 9, 3)) {
            let (steps, uses) = (planned_steps(&drawn), uses(&drawn));
            let mut before = uses.needed_rows();
            prop_assert_eq!(uses.fewest_rows(0), before);
            for budget in 0..=13 {
                let fewest = uses.fewest_rows(budget);
                prop_assert_eq!(fewest, belady_rows(&steps, budget as usize));
                prop_assert!(fewest <= before);
                before = fewest;
            }
            prop_assert_eq!(before, uses.compulsory_rows());
            prop_assert_eq!(uses.fewest_rows(u32::MAX), uses.compulsory_rows());
        }
    }

    #[test]
    fn a_row_that_is_used_in_two_batches_running_needs_a_slot_between_them() {
        let book = PartitionBook::new(vec![0, 1, 4]).unwrap();
        let steps: [&[NodeId]; 3] = [&[1, 2], &[1, 2, 3], &[3]];
        let steps = steps.map(|nodes| (crate::rng::Purpose::Train, nodes));
        let trace = crate::policy::MemoryTrace::from_nodes(&book, steps);
        let uses = RunUses::new([&trace as &dyn RemoteTrace], 0, &book, 0).unwrap();
        assert_eq!((uses.needed_rows(), uses.compulsory_rows()), (6, 3));
        assert_eq!([0, 1, 2, 3].map(|budget| uses.fewest_rows(budget)), [6, 4, 3, 3]);
    }
}
