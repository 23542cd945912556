//! Requests that leave before their window starts, where slots are free.
//!
//! A row that the window before still drops cannot be among them: it was dropped at a gap that was full, and a request
//! leaves only at a gap from which on none is.

use super::sweep::{DirectRow, HeldWindow};
use crate::book::{NodeId, PartitionBook};

/// A request of the next window that leaves early, with all of its rows in slots.
pub(super) struct Lead {
    pub gap: u32,
    /// Rows of one owner, by ascending id.
    pub rows: Vec<NodeId>,
}

/// The free slots at every gap from that before a window to that after it.
pub(super) struct Room {
    first_gap: u32,
    free: Vec<u32>,
}

impl Room {
    pub(super) fn new(window: &HeldWindow, at_start: u32) -> Self {
        Self {
            first_gap: window.first,
            free: std::iter::once(at_start).chain(window.spare.iter().copied()).collect(),
        }
    }

    /// The free slots at the gap after the window.
    pub(super) fn at_end(&self) -> u32 {
        self.free.last().copied().unwrap_or(0)
    }

    /// Charges `more` slots from the earliest gap on that allows it, where the gap after the window charges all but
    /// `direct` of them already. `None` if that is no earlier than that gap.
    fn charge(&mut self, more: u32, direct: u32) -> Option<u32> {
        let (end, before) = self.free.split_last_mut()?;
        let full = before.iter().rposition(|free| *free < more);
        let start = full.map_or(0, |full| full + 1);
        if start == before.len() || *end < direct {
            return None;
        }
        *end -= direct;
        before[start..].iter_mut().for_each(|free| *free -= more);
        Some(self.first_gap + start as u32)
    }
}

/// Moves the requests of `next` that have room to gaps of the window before, owner by owner.
pub(super) fn lead(next: &mut HeldWindow, room: &mut Room, book: &PartitionBook) -> Vec<Lead> {
    let mut leads = Vec::new();
    let (mut late_direct, mut late_early) = (Vec::new(), Vec::new());
    let (mut direct, mut early) = (&next.direct[..], &next.early[..]);
    while let Some(node) = direct
        .first()
        .map(node_of)
        .into_iter()
        .chain(early.first().copied())
        .min()
    {
        let end = book.range(book.owner(node)).end;
        let owned_direct = split_below(&mut direct, end, node_of);
        let owned_early = split_below(&mut early, end, |node| *node);
        let rows = (owned_direct.len() + owned_early.len()) as u32;
        match room.charge(rows, owned_direct.len() as u32) {
            Some(gap) => {
                let mut rows: Vec<NodeId> = owned_direct.iter().map(node_of).collect();
                rows.extend_from_slice(owned_early);
                rows.sort();
                leads.push(Lead { gap, rows });
            }
            None => {
                late_direct.extend_from_slice(owned_direct);
                late_early.extend_from_slice(owned_early);
            }
        }
    }
    next.direct = late_direct;
    next.early = late_early;
    leads
}

fn node_of(row: &DirectRow) -> NodeId {
    row.node
}

/// Takes the rows with ids below `end` off the front of `rows`, which ascend.
fn split_below<'a, T>(rows: &mut &'a [T], end: NodeId, node: impl Fn(&T) -> NodeId) -> &'a [T] {
    let (below, rest) = rows.split_at(rows.partition_point(|row| node(row) < end));
    *rows = rest;
    below
}
