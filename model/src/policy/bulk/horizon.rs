//! What `bulk` knows of the future: the windows of this epoch and the next, and when each row is needed again.
//!
//! Steps of the next epoch go on counting where this epoch ends.

use crate::book::NodeId;
use crate::policy::slots::global_id;
use crate::policy::{PlanError, PlanInput, RemoteTrace, global_ids, longest_window, read_step};

/// A use that the horizon does not show.
pub(super) const NEVER: u32 = u32::MAX;

/// One window, in steps of the horizon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub first: u32,
    /// The step after the last.
    pub end: u32,
    /// `|N_{s+1} ∪ .. ∪ N_e|`: the rows that have to be held at gap `s + 1`.
    pub later_rows: u32,
    /// Those of them that are not also in `N_s` (nor held at the start of the plan): the rows that have to be held at
    /// gap `s`.
    pub early_rows: u32,
}

pub(super) struct Horizon {
    /// The windows of this epoch, from the first step to plan on.
    pub spans: Vec<Span>,
    /// Rows that have to be held when the next epoch starts, for its first window.
    pub next_early_rows: u32,
    /// Per step of the horizon the last gap at which it pays to hold a row that is next used there: the gap before the
    /// step if the step is the first of a window, else the gap before the first of its window.
    last_gaps: Vec<u32>,
    /// Per step of this epoch and row the step that uses the row next.
    pub next_uses: Vec<Vec<u32>>,
    /// Per node the first step from `from_step` on that uses it. Empty once the sweep has begun.
    pub first_uses: Vec<u32>,
}

impl Horizon {
    pub(super) fn new(input: &PlanInput, share: u32) -> Result<Self, PlanError> {
        let steps = input.trace.steps();
        let mut cutter = Cutter::new(input, share);
        let mut first_uses = vec![NEVER; input.book.nodes() as usize];
        let mut nodes = Vec::new();
        let room = input.budget_rows - input.state.held.len() as u32;

        let spans = cutter.cut(&*input.trace, input.from_step, Some(room), |_, _| {})?;
        let mut last_gaps = vec![0; steps as usize];
        note_last_gaps(&spans, 0, &mut last_gaps);
        let mut next_early_rows = 0;
        if let Some(next) = &input.next {
            let note_first = |step: u32, nodes: &[NodeId]| {
                for node in nodes {
                    let first = &mut first_uses[*node as usize];
                    *first = (*first).min(steps + step);
                }
            };
            let next_spans = cutter.cut(&**next, 0, None, note_first)?;
            last_gaps.resize((steps + next.steps()) as usize, 0);
            note_last_gaps(&next_spans, steps, &mut last_gaps);
            next_early_rows = next_spans.first().map_or(0, |span| span.early_rows);
        }

        let mut next_uses = vec![Vec::new(); steps as usize];
        for step in (input.from_step..steps).rev() {
            let remote = read_step(&*input.trace, &input.book, input.rank, step)?;
            global_ids(&remote, &input.book, &mut nodes);
            next_uses[step as usize] = nodes
                .iter()
                .map(|node| std::mem::replace(&mut first_uses[*node as usize], step))
                .collect();
        }
        Ok(Self {
            spans,
            next_early_rows,
            last_gaps,
            next_uses,
            first_uses,
        })
    }

    /// The last gap at which it pays to hold a row for its use at step `used`, which is in a later window.
    pub(super) fn last_gap(&self, used: u32) -> u32 {
        match used {
            NEVER => self.never_gap(),
            used => self.last_gaps[used as usize],
        }
    }

    /// The gap that stands for the end of time.
    pub(super) fn never_gap(&self) -> u32 {
        self.last_gaps.len() as u32
    }
}

fn note_last_gaps(spans: &[Span], offset: u32, last_gaps: &mut [u32]) {
    for span in spans {
        let (first, end) = (offset + span.first, offset + span.end);
        last_gaps[first as usize] = first;
        // No row is held for a later step of the plan's first window, so gap 0 stands for the gap before it.
        last_gaps[first as usize + 1..end as usize].fill(first.saturating_sub(1));
    }
}

/// Cuts epochs into windows.
struct Cutter<'a> {
    input: &'a PlanInput,
    share: u32,
    /// Per node the last mark that it got.
    marks: Vec<u32>,
    /// The mark of rows of the first batch of a window. The mark above it is that of rows of its later batches.
    mark: u32,
}

impl<'a> Cutter<'a> {
    fn new(input: &'a PlanInput, share: u32) -> Self {
        Self {
            input,
            share,
            marks: vec![0; input.book.nodes() as usize],
            mark: 0,
        }
    }

    /// The windows of an epoch from step `from` on. `room` are the free slots at gap `from`, if something is held there
    /// that can only be dropped after the first step. Shows every step's rows to `visit`, in order.
    fn cut(
        &mut self,
        trace: &dyn RemoteTrace,
        from: u32,
        mut room: Option<u32>,
        mut visit: impl FnMut(u32, &[NodeId]),
    ) -> Result<Vec<Span>, PlanError> {
        let mut spans: Vec<Span> = Vec::new();
        let mut longest = from;
        let mut nodes = Vec::new();
        for step in from..trace.steps() {
            let remote = read_step(trace, &self.input.book, self.input.rank, step)?;
            global_ids(&remote, &self.input.book, &mut nodes);
            visit(step, &nodes);
            if let Some(span) = spans.last_mut() {
                if step < longest {
                    let grown = self.grow(span, &nodes);
                    if grown.later_rows <= self.share && room.is_none_or(|room| grown.early_rows <= room) {
                        *span = grown;
                        continue;
                    }
                }
                room = None;
            }
            longest = longest_window(trace, step, self.input.window);
            self.start(&nodes, room.is_some());
            spans.push(Span {
                first: step,
                end: step + 1,
                later_rows: 0,
                early_rows: 0,
            });
        }
        Ok(spans)
    }

    /// Starts a window with the rows of its first batch.
    fn start(&mut self, nodes: &[NodeId], with_state: bool) {
        self.mark += 2;
        if with_state {
            for held in &self.input.state.held {
                self.marks[global_id(&self.input.book, held.owner, held.row) as usize] = self.mark;
            }
        }
        nodes.iter().for_each(|node| self.marks[*node as usize] = self.mark);
    }

    /// The window with one more batch.
    fn grow(&mut self, span: &Span, nodes: &[NodeId]) -> Span {
        let mut grown = Span {
            end: span.end + 1,
            ..*span
        };
        for node in nodes {
            let before = std::mem::replace(&mut self.marks[*node as usize], self.mark + 1);
            grown.later_rows += u32::from(before != self.mark + 1);
            grown.early_rows += u32::from(before < self.mark);
        }
        grown
    }
}
