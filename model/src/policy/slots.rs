//! What planners that change their cache share: the slots of the arena, and requests made of global ids.

use super::PlanError;
use crate::book::{NodeId, PartId, PartitionBook};
use crate::plan::{CacheState, HeldRow, Place, Request, RowType};

const NO_SLOT: u32 = u32::MAX;
/// In place of a slot: the row comes directly for the batch that is being planned. No arena has that many slots, since a
/// graph has fewer nodes.
const DIRECT: u32 = u32::MAX - 1;

/// Which slot every held row is in: 4 bytes per node of the graph, and 4 per slot.
pub(super) struct Slots {
    slot_of: Vec<u32>,
    free: Vec<u32>,
    budget_rows: u32,
}

impl Slots {
    /// The slots of an arena that holds `state`, which has been checked.
    pub(super) fn new(book: &PartitionBook, budget_rows: u32, state: &CacheState) -> Self {
        let mut slot_of = vec![NO_SLOT; book.nodes() as usize];
        let mut taken = vec![false; budget_rows as usize];
        for held in &state.held {
            slot_of[global_id(book, held.owner, held.row) as usize] = held.slot;
            taken[held.slot as usize] = true;
        }
        // Taken from the end: the lowest slot first.
        let free = (0..budget_rows).rev().filter(|slot| !taken[*slot as usize]).collect();
        Self {
            slot_of,
            free,
            budget_rows,
        }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<u32> {
        let slot = self.slot_of[node as usize];
        (slot < DIRECT).then_some(slot)
    }

    /// Appends those of an owner's `rows`, whose nodes start at `start`, that are neither in a slot nor come directly.
    pub(super) fn missing(&self, start: NodeId, rows: &[u32], missing: &mut Vec<u32>) {
        // Whether a row is missing is hard to foretell, so there is no branch on it.
        let mut end = missing.len();
        missing.resize(end + rows.len(), 0);
        for row in rows {
            missing[end] = *row;
            end += usize::from(self.slot_of[(start + row) as usize] == NO_SLOT);
        }
        missing.truncate(end);
    }

    /// Notes that `node`, which has no slot, comes directly for the batch that is being planned.
    pub(super) fn come_directly(&mut self, node: NodeId) {
        self.slot_of[node as usize] = DIRECT;
    }

    pub(super) fn comes_directly(&self, node: NodeId) -> bool {
        self.slot_of[node as usize] == DIRECT
    }

    /// Where a batch finds an owner's `rows`, whose nodes start at `start`: each has a slot or comes directly, as the
    /// next after `directs`.
    pub(super) fn append_places(&self, start: NodeId, rows: &[u32], directs: &mut u32, places: &mut Vec<Place>) {
        places.extend(rows.iter().map(|row| {
            let slot = self.slot_of[(start + row) as usize];
            let direct = slot == DIRECT;
            let place = if direct {
                Place::Direct(*directs)
            } else {
                Place::Slot(slot)
            };
            *directs += u32::from(direct);
            place
        }));
    }

    /// Where a batch finds its `nodes`: in their slots, or else directly, one after the other. Puts those that come
    /// directly into `misses`, in the order of `nodes`.
    pub(super) fn places(&self, nodes: &[NodeId], misses: &mut Vec<(NodeId, Place)>) -> Vec<Place> {
        misses.clear();
        let place = |node: &NodeId| match self.get(*node) {
            Some(slot) => Place::Slot(slot),
            None => {
                let place = Place::Direct(misses.len() as u32);
                misses.push((*node, place));
                place
            }
        };
        nodes.iter().map(place).collect()
    }

    /// Gives `node`, which has none, a slot from gap `step` on.
    pub(super) fn take(&mut self, node: NodeId, step: u32) -> Result<u32, PlanError> {
        let slot = self.free.pop().ok_or(PlanError::OverBudget {
            step,
            budget_rows: self.budget_rows,
        })?;
        self.slot_of[node as usize] = slot;
        Ok(slot)
    }

    /// Gives slots to those of `nodes` that have none, and lists them.
    pub(super) fn take_all(&mut self, nodes: &[NodeId], step: u32) -> Result<Vec<(NodeId, Place)>, PlanError> {
        let mut taken = Vec::new();
        for node in nodes {
            if self.get(*node).is_none() {
                taken.push((*node, Place::Slot(self.take(*node, step)?)));
            }
        }
        Ok(taken)
    }

    /// Frees the slot of `node`, if it has one; if it came directly, it is gone.
    pub(super) fn release(&mut self, node: NodeId) -> Option<u32> {
        let slot = std::mem::replace(&mut self.slot_of[node as usize], NO_SLOT);
        if slot >= DIRECT {
            return None;
        }
        self.free.push(slot);
        Some(slot)
    }

    /// All rows that have a slot.
    pub(super) fn state(&self, book: &PartitionBook) -> CacheState {
        let mut held = Vec::with_capacity(self.budget_rows as usize - self.free.len());
        for owner in 0..book.parts() {
            let range = book.range(owner);
            let slots = &self.slot_of[range.start as usize..range.end as usize];
            held.extend(
                (0..)
                    .zip(slots)
                    .filter(|(_, slot)| **slot < DIRECT)
                    .map(|(row, slot)| HeldRow {
                        owner,
                        row,
                        slot: *slot,
                    }),
            );
        }
        CacheState::of_rows(held)
    }
}

pub(super) fn global_id(book: &PartitionBook, owner: PartId, row: u32) -> NodeId {
    book.range(owner).start + row
}

/// When a request leaves and when its answer is needed.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub issue_gap: u32,
    pub needed_by_step: u32,
}

/// Appends one request per owner for `rows`, which are in ascending order of their global ids.
pub(super) fn push_requests(book: &PartitionBook, rows: &[(NodeId, Place)], times: Times, requests: &mut Vec<Request>) {
    let mut rest = rows;
    while let Some((first, _)) = rest.first() {
        let owner = book.owner(*first);
        let range = book.range(owner);
        let (owned, others) = rest.split_at(rest.partition_point(|(node, _)| *node < range.end));
        rest = others;
        requests.push(Request {
            owner,
            rows: owned.iter().map(|(node, _)| node - range.start).collect(),
            places: owned.iter().map(|(_, place)| *place).collect(),
            dtype: RowType::default(),
            issue_after_step: times.issue_gap.checked_sub(1),
            needed_by_step: times.needed_by_step,
            later: Vec::new(),
        });
    }
}

/// Sorts a window's requests: by issue gap, the most urgent first.
pub(super) fn sort_requests(requests: &mut [Request]) {
    requests.sort_by_key(|request| (request.issue_gap(), request.needed_by_step, request.owner));
}
