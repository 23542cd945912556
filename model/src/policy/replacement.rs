//! `lru`, `lfu` and `fifo`: caches that look back. BGL (Liu et al., NSDI 2023) keeps rows first in, first out; WholeGraph
//! (Yang et al., SC 2022) keeps the most frequently used; LRU is what GraphBolt and most caches of today start from.
//!
//! A batch looks all of its rows up in the cache as it is before the batch. Those that are missing come directly for it,
//! one request per batch and owner, as on demand. After the assembly the rows of the batch join those that are held, and
//! the first `budget` of them stay, in this order:
//!
//! - `lru`: the last batch that needed the row, the latest first;
//! - `lfu`: the number of batches that needed it, the most first; then the last batch, the latest first;
//! - `fifo`: the batch that brought it into the cache, the latest first;
//!
//! and in each of them then by ascending id. A row that came for its batch and does not stay is never in the cache. The
//! peers' caches are sets of some ways; these are fully associative, which is at least as good to them.
//!
//! `lfu` counts the batches of a whole run, those of epochs before and those that missed, as WholeGraph does, whose
//! counters are per row of the graph and not per line of the cache. Without this a row would have to be needed twice
//! within one stay to be kept at all.
//!
//! The caches live on from one epoch to the next, as those of BGL and WholeGraph do; what orders the rows is in
//! [`CacheState::history`]. After a resume and a rejoin they start empty and without a past, as every cache does.

use std::cmp::Reverse;

use super::slots::{Slots, Times, global_id, push_requests};
use super::step_by_step::{StepByStep, StepPlanner};
use super::{PlanError, PlanInput, Planner, Policy, global_ids, read_step};
use crate::book::NodeId;
use crate::plan::{BatchPlan, CacheState, Keep, Place, Request};

/// A cache that knows the past only, by what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// What was used most recently.
    Lru,
    /// What was used most frequently.
    Lfu,
    /// What came last.
    Fifo,
}

impl Policy for Replacement {
    fn name(&self) -> &'static str {
        match self {
            Replacement::Lru => "lru",
            Replacement::Lfu => "lfu",
            Replacement::Fifo => "fifo",
        }
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        input.check()?;
        Ok(Box::new(StepByStep::new(ReplacementPlanner::new(*self, input)?)))
    }
}

/// Plans one epoch in one pass over its trace. Its memory is 12 bytes per node of the graph, 8 per slot, 16 per row that
/// is held or needed by a batch, and one window's plan.
struct ReplacementPlanner {
    order: Replacement,
    slots: Slots,
    held: Vec<NodeId>,
    /// Per node its rank: the row with the greatest stays. The upper half is a number of batches, the lower half the time
    /// of one. Zero for a row that no batch has needed.
    ranks: Vec<u64>,
    /// Number of batches so far, those of epochs before included.
    time: u32,
    input: PlanInput,
}

/// The half of a rank that is the time of a batch.
const TIME: u64 = u32::MAX as u64;

impl ReplacementPlanner {
    fn new(order: Replacement, mut input: PlanInput) -> Result<Self, PlanError> {
        let nodes = input.book.nodes() as usize;
        let mut ranks = std::mem::take(&mut input.state.history);
        match ranks.len() {
            0 => ranks.resize(nodes, 0),
            words if words != nodes => return Err(PlanError::BadHistory { words, nodes }),
            _ => {}
        }
        // Both halves are 32 bits wide.
        let time = ranks.iter().map(|rank| rank & TIME).max().unwrap_or(0) as u32;
        let held = input.state.held.iter();
        Ok(Self {
            order,
            slots: Slots::new(&input.book, input.budget_rows, &input.state),
            held: held.map(|row| global_id(&input.book, row.owner, row.row)).collect(),
            ranks,
            time,
            input,
        })
    }

    /// Ranks the rows of a batch anew.
    fn note_uses(&mut self, nodes: &[NodeId], misses: &[(NodeId, Place)]) {
        self.time = self.time.saturating_add(1);
        let time = u64::from(self.time);
        match self.order {
            Replacement::Lru => nodes.iter().for_each(|node| self.ranks[*node as usize] = time),
            Replacement::Lfu => {
                for node in nodes {
                    let rank = &mut self.ranks[*node as usize];
                    let batches = (*rank >> 32).saturating_add(1).min(TIME);
                    *rank = batches << 32 | time;
                }
            }
            Replacement::Fifo => misses.iter().for_each(|(node, _)| self.ranks[*node as usize] = time),
        }
    }

    /// Leaves the first `budget` rows in `held`. Returns the others, by ascending id.
    fn shrink(&mut self) -> Vec<NodeId> {
        let room = self.input.budget_rows as usize;
        if self.held.len() <= room {
            return Vec::new();
        }
        let rank = |node: &NodeId| (Reverse(self.ranks[*node as usize]), *node);
        let mut ranked: Vec<(Reverse<u64>, NodeId)> = self.held.iter().map(rank).collect();
        ranked.select_nth_unstable(room);
        self.held.clear();
        self.held.extend(ranked[..room].iter().map(|(_, node)| *node));
        let mut leaving: Vec<NodeId> = ranked[room..].iter().map(|(_, node)| *node).collect();
        leaving.sort_unstable();
        leaving
    }
}

impl StepPlanner for ReplacementPlanner {
    fn input(&self) -> &PlanInput {
        &self.input
    }

    fn plan_step(&mut self, step: u32, requests: &mut Vec<Request>) -> Result<BatchPlan, PlanError> {
        let remote = read_step(&*self.input.trace, &self.input.book, self.input.rank, step)?;
        let (mut nodes, mut misses) = (Vec::with_capacity(remote.len()), Vec::new());
        global_ids(&remote, &self.input.book, &mut nodes);
        let places = self.slots.places(&nodes, &mut misses);
        let times = Times {
            issue_gap: step,
            needed_by_step: step,
        };
        push_requests(&self.input.book, &misses, times, requests);

        self.note_uses(&nodes, &misses);
        self.held.extend(misses.iter().map(|(node, _)| *node));
        let leaving = self.shrink();
        let releases = leaving.iter().filter_map(|node| self.slots.release(*node)).collect();
        // Of the misses those are kept that do not leave at once. Both lists ascend.
        let mut leaving = leaving.into_iter().peekable();
        let mut keeps = Vec::new();
        for (direct, (node, _)) in (0..).zip(&misses) {
            while leaving.next_if(|left| left < node).is_some() {}
            if leaving.peek() != Some(node) {
                let slot = self.slots.take(*node, step + 1)?;
                keeps.push(Keep { direct, slot });
            }
        }
        Ok(BatchPlan {
            step,
            places,
            direct_rows: misses.len() as u32,
            releases,
            keeps,
        })
    }

    fn into_state(self) -> CacheState {
        CacheState {
            history: self.ranks,
            ..self.slots.state(&self.input.book)
        }
    }
}
