//! Which rows `bulk` fetches, holds and drops: the sweep over the gaps of an epoch, without slots.

use std::sync::Arc;

use super::horizon::{Horizon, Span};
use crate::batch::RemoteRows;
use crate::book::NodeId;
use crate::policy::slots::global_id;
use crate::policy::{PlanError, PlanInput, global_ids, read_step};
use crate::rng::Purpose;

/// One window, with what it fetches and what it drops.
pub(super) struct HeldWindow {
    pub first: u32,
    /// The step after the last.
    pub end: u32,
    pub remote: Vec<Arc<RemoteRows>>,
    /// Rows of the first step that are not held, by ascending id.
    pub direct: Vec<DirectRow>,
    /// Rows that are not held and that only later steps need, by ascending id.
    pub early: Vec<NodeId>,
    /// Per step the rows that are not held after it. They were held before it, or the step needed them.
    pub drops: Vec<Vec<NodeId>>,
    /// Per step the slots that nobody needs at the gap after it.
    pub spare: Vec<u32>,
}

/// A row that its batch does not find in the cache.
#[derive(Clone, Copy)]
pub(super) struct DirectRow {
    pub node: NodeId,
    /// Whether it is held after its batch.
    pub kept: bool,
}

pub(super) struct Sweep {
    input: PlanInput,
    horizon: Horizon,
    /// Index of the next window.
    next_span: usize,
    /// Per node whether it is held or on its way.
    held: Vec<bool>,
    optional: Optional,
    nodes: Vec<NodeId>,
}

impl Sweep {
    pub(super) fn new(mut input: PlanInput, mut horizon: Horizon) -> Self {
        let mut held = vec![false; input.book.nodes() as usize];
        let mut optional = Optional::new(horizon.never_gap());
        let first_end = horizon.spans.first().map_or(input.from_step, |span| span.end);
        let first_uses = std::mem::take(&mut horizon.first_uses);
        for row in std::mem::take(&mut input.state).held {
            let node = global_id(&input.book, row.owner, row.row);
            held[node as usize] = true;
            let used = first_uses[node as usize];
            if used >= first_end {
                optional.insert(horizon.last_gap(used), node);
            }
        }
        Self {
            input,
            horizon,
            next_span: 0,
            held,
            optional,
            nodes: Vec::new(),
        }
    }

    pub(super) fn purpose(&self, step: u32) -> Purpose {
        self.input.trace.purpose(step)
    }

    pub(super) fn next_window(&mut self) -> Result<Option<HeldWindow>, PlanError> {
        let Some(span) = self.horizon.spans.get(self.next_span).copied() else {
            return Ok(None);
        };
        self.next_span += 1;
        let next_early_rows = match self.horizon.spans.get(self.next_span) {
            Some(next) => next.early_rows,
            None => self.horizon.next_early_rows,
        };
        let mut window = self.fetch(span)?;
        let mut mandatory = span.later_rows;
        for step in span.first..span.end {
            let uses = std::mem::take(&mut self.horizon.next_uses[step as usize]);
            let remote = &window.remote[(step - span.first) as usize];
            global_ids(remote, &self.input.book, &mut self.nodes);
            for (node, used) in self.nodes.iter().zip(&uses) {
                if *used >= span.end {
                    self.optional.insert(self.horizon.last_gap(*used), *node);
                    mandatory -= u32::from(step > span.first);
                }
            }
            let gap = step + 1;
            let load = if gap == span.end { next_early_rows } else { mandatory };
            self.optional.settle(gap);
            let room = self.input.budget_rows.saturating_sub(load);
            let drops = self.optional.shrink(room);
            drops.iter().for_each(|node| self.held[*node as usize] = false);
            window.drops.push(drops);
            if step == span.first {
                let held = &self.held;
                window
                    .direct
                    .iter_mut()
                    .for_each(|row| row.kept = held[row.node as usize]);
            }
            window.spare.push(room - self.optional.rows);
        }
        Ok(Some(window))
    }

    /// What a window needs and nobody holds. From here on it counts as held.
    fn fetch(&mut self, span: Span) -> Result<HeldWindow, PlanError> {
        let mut window = HeldWindow {
            first: span.first,
            end: span.end,
            remote: Vec::new(),
            direct: Vec::new(),
            early: Vec::new(),
            drops: Vec::new(),
            spare: Vec::new(),
        };
        for step in span.first..span.end {
            let remote = read_step(&*self.input.trace, &self.input.book, self.input.rank, step)?;
            global_ids(&remote, &self.input.book, &mut self.nodes);
            window.remote.push(remote);
            let held = &mut self.held;
            let nodes = self.nodes.iter().copied();
            let missing = nodes.filter(|node| !std::mem::replace(&mut held[*node as usize], true));
            if step == span.first {
                window.direct = missing.map(|node| DirectRow { node, kept: false }).collect();
            } else {
                window.early.extend(missing);
            }
        }
        // One ascending run per step, which a stable sort merges.
        window.early.sort();
        Ok(window)
    }
}

/// Rows that are held though the window does not need them any more, by the last gap at which it pays to hold them.
struct Optional {
    by_last_gap: Vec<Vec<NodeId>>,
    /// No row has a later last gap.
    latest: usize,
    rows: u32,
}

impl Optional {
    fn new(never_gap: u32) -> Self {
        Self {
            by_last_gap: vec![Vec::new(); never_gap as usize + 1],
            latest: 0,
            rows: 0,
        }
    }

    fn insert(&mut self, last_gap: u32, node: NodeId) {
        self.by_last_gap[last_gap as usize].push(node);
        self.latest = self.latest.max(last_gap as usize);
        self.rows += 1;
    }

    /// Forgets the rows that have been held long enough at gap `gap`: their window needs them.
    fn settle(&mut self, gap: u32) {
        if let Some(due) = gap
            .checked_sub(1)
            .and_then(|last| self.by_last_gap.get_mut(last as usize))
        {
            self.rows -= due.len() as u32;
            *due = Vec::new();
        }
    }

    /// Drops rows until at most `room` are left: those with the latest last gap, ties by falling id. Returns them.
    fn shrink(&mut self, room: u32) -> Vec<NodeId> {
        let mut drops = Vec::new();
        let mut excess = self.rows.saturating_sub(room) as usize;
        while excess > 0 {
            let latest = &mut self.by_last_gap[self.latest];
            let stay = latest.len().saturating_sub(excess);
            if stay > 0 {
                latest.select_nth_unstable(stay);
            }
            excess -= latest.len() - stay;
            drops.extend(latest.drain(stay..));
            if stay == 0 {
                self.latest = self.latest.saturating_sub(1);
            }
        }
        self.rows -= drops.len() as u32;
        drops
    }
}
