//! What a choice of delivery times costs: its deliveries and its rows, without looking at a row.
//!
//! # Delivery times
//!
//! An owner may deliver at some of the steps, not the same for every owner. A delivery at step `s` brings rows of the
//! batch of `s`, straight into its assembly buffer, and rows for later batches, into slots. A use at step `b` is *due* at
//! the last delivery time of its owner that is at most `b`; it is served by that delivery, or by a row that is held. A
//! window of [`bulk`](super::bulk) is the steps from one delivery time to the next, and on demand means that every step
//! is one. Times are optional but where a window may not go on: at the first step, where the purpose changes, and at the
//! greatest number of steps. A delivery may serve steps of the next epoch.
//!
//! # Charge
//!
//! Gap `g` lies just before the assembly of step `g` ([`plan`](crate::plan)). A row that has been used at step `p` can be
//! held from gap `p + 1` on (a row that is held at the start: from gap 0 on), call it gap `r`; to be there at step `b` it
//! is held up to gap `b`. A slot that a delivery at step `s` fills is charged from gap `s` on. So, for a use at `b` that is
//! due at `s`:
//!
//! | use | charged in any case | fetched | charged if it is not to be fetched |
//! |---|---|---|---|
//! | first, `s = b` | nothing | yes | |
//! | first, `s < b` | `s ..= b` | yes | |
//! | again, `s = b` | nothing | unless held | `r ..= b` |
//! | again, `r <= s < b` | `s ..= b` | unless held | `r ..= s - 1` (empty if `r = s`: never fetched) |
//! | again, `s < r` | `r ..= b` | never | |
//!
//! The gaps of the third column are mandatory: times are feasible if and only if the mandatory rows fit into the budget at
//! every gap. The optional intervals of the last column spare one fetch each, and dropping at the first gap that overflows
//! those that end last spares the most, as in [`bound`](super::bound) and [`bulk`](super::bulk). The rule does not ask which
//! row a use belongs to, so counts of uses by owner, `r` and `b` are all that it needs: [`ReuseCounts`], from one pass over
//! a trace. A choice of times is then priced in time proportional to owners times the square of the steps.
//!
//! Rows that are held at the start and never used fill their slots at gap 0, like all that is held there, and are dropped
//! after it.

mod priced;
mod search;
mod sweep;
#[cfg(test)]
mod tests;

use super::slots::global_id;
use super::{PlanError, RemoteTrace, is_remote_row, read_step};
use crate::book::{PartId, PartitionBook, Rank};
use crate::plan::HeldRow;
use crate::rng::Purpose;

pub use search::{Archive, Candidate, Found, Search};
pub(super) use sweep::Schedule;
pub use sweep::{Delivered, Overload};

/// How many rows of each owner are used when, and since when they could be held: what the price of delivery times depends
/// on. Its memory is 2 bytes per owner and square of the steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReuseCounts {
    steps: usize,
    owners: Vec<OwnerReuses>,
    /// Per step the step after the last that a delivery there may serve.
    window_ends: Vec<u32>,
    /// Whether rows that are not used again count where costs are compared.
    goes_on: bool,
}

/// The uses of the rows of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnerReuses {
    part: PartId,
    /// How often its rows and deliveries count where costs are compared; at least 1.
    weight: u32,
    /// Per step the rows that are used there for the first time, and not held at the start.
    first: Vec<u32>,
    /// Per step `b` and gap `0 ..= b` the rows that are used at `b` and could be held from that gap on; and at last, in place
    /// of a step, the rows that are not used again.
    again: Vec<u32>,
}

impl OwnerReuses {
    /// Per gap `0 ..= step` the rows that are used at `step` and could be held from that gap on. After the last step those
    /// that are not used again.
    fn again(&self, step: usize) -> &[u32] {
        let start = row_start(step);
        &self.again[start..start + step + 1]
    }
}

/// Where the counts of a step begin in a triangle with `step + 1` counts a step.
fn row_start(step: usize) -> usize {
    step * (step + 1) / 2
}

/// When rows are used next: a step of the horizon, or the number of its steps if it does not show the use.
pub(in crate::policy) struct NextUses {
    /// Per step and remote row of its batch.
    pub by_step: Vec<Vec<u32>>,
    /// Per node its first use.
    pub first: Vec<u32>,
}

/// At which steps each owner may deliver. Steps where a window may not go on are delivery times besides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeliveryTimes {
    steps: usize,
    /// Owner by owner in the order of [`ReuseCounts::owners`], per step whether it is a delivery time.
    at: Vec<bool>,
}

impl DeliveryTimes {
    /// Whether `owner`, by its place in [`ReuseCounts::owners`], may deliver at `step`; `false` for one that does not exist.
    pub fn contains(&self, owner: usize, step: usize) -> bool {
        self.of(owner).get(step).copied().unwrap_or(false)
    }

    /// Makes `step` a delivery time of `owner` or takes it away. One that does not exist is left out.
    pub fn set(&mut self, owner: usize, step: usize, delivers: bool) {
        if step < self.steps
            && let Some(at) = self.at.get_mut(owner * self.steps + step)
        {
            *at = delivers;
        }
    }

    fn of(&self, owner: usize) -> &[bool] {
        self.at
            .get(owner * self.steps..(owner + 1) * self.steps)
            .unwrap_or_default()
    }
}

impl ReuseCounts {
    /// Counts the uses of a horizon of `rank`: epochs one after the other, the first from `from_step` on, whose steps are
    /// numbered from 0. `window` is the greatest number of steps that one delivery serves, `held` what is held at the start.
    ///
    /// # Errors
    /// A trace that cannot be read, or whose rows are not remote rows of `rank`; held rows that are not, or not ascending.
    pub fn new<'a>(
        epochs: impl IntoIterator<Item = &'a dyn RemoteTrace>,
        from_step: u32,
        window: u32,
        held: &[HeldRow],
        book: &PartitionBook,
        rank: Rank,
    ) -> Result<Self, PlanError> {
        let parts = book.parts();
        if rank >= parts {
            return Err(PlanError::UnknownRank { rank, parts });
        }
        if window == 0 {
            return Err(PlanError::EmptyWindow);
        }
        let epochs: Vec<&dyn RemoteTrace> = epochs.into_iter().collect();
        Self::with_next_uses(&epochs, from_step, window, held, book, rank, 0).map(|(counts, _)| counts)
    }

    /// The same, and when the rows of the first `listed` steps are used next: one pass, backwards.
    pub(in crate::policy) fn with_next_uses(
        epochs: &[&dyn RemoteTrace],
        from_step: u32,
        window: u32,
        held: &[HeldRow],
        book: &PartitionBook,
        rank: Rank,
        listed: usize,
    ) -> Result<(Self, NextUses), PlanError> {
        let is_held = held_nodes(held, book, rank)?;
        let spans = epoch_spans(epochs, from_step);
        let steps = spans.last().map_or(0, |span| span.end);
        let mut owners: Vec<OwnerReuses> = (0..book.parts())
            .filter(|part| *part != rank && book.part_nodes(*part) > 0)
            .map(|part| OwnerReuses {
                part,
                weight: 1,
                first: vec![0; steps + 1],
                again: vec![0; row_start(steps + 1)],
            })
            .collect();
        let mut purposes = vec![Purpose::Train; steps];
        let mut used_next = vec![steps as u32; book.nodes() as usize];
        let mut by_step = vec![Vec::new(); listed];
        for (trace, span) in epochs.iter().zip(&spans).rev() {
            let from = trace.steps() - span.len() as u32;
            for step in span.clone().rev() {
                let traced = from + (step - span.start) as u32;
                purposes[step] = trace.purpose(traced);
                let remote = read_step(*trace, book, rank, traced)?;
                let mut uses = vec![0; if step < listed { remote.len() } else { 0 }];
                let mut listed = &mut uses[..];
                for owned in &remote.owners {
                    let Ok(place) = owners.binary_search_by_key(&owned.owner, |owner| owner.part) else {
                        continue;
                    };
                    let again = &mut owners[place].again;
                    let range = book.range(owned.owner);
                    let used_next = &mut used_next[range.start as usize..range.end as usize];
                    let mut use_at = |row: u32| {
                        let next = std::mem::replace(&mut used_next[row as usize], step as u32);
                        // A row that is not used again counts as well: so there is no branch.
                        again[row_start(next as usize) + step + 1] += 1;
                        next
                    };
                    if listed.is_empty() {
                        owned.rows.iter().for_each(|row| {
                            use_at(*row);
                        });
                    } else {
                        let (mine, others) = listed.split_at_mut(owned.rows.len());
                        for (next, row) in mine.iter_mut().zip(&owned.rows) {
                            *next = use_at(*row);
                        }
                        listed = others;
                    }
                }
                if let Some(by_step) = by_step.get_mut(step) {
                    *by_step = uses;
                }
            }
        }
        for owner in &mut owners {
            let range = book.range(owner.part);
            let range = range.start as usize..range.end as usize;
            for (first, held) in used_next[range.clone()].iter().zip(&is_held[range]) {
                let first = *first as usize;
                if *held {
                    owner.again[row_start(first)] += 1;
                } else {
                    owner.first[first] += 1;
                }
            }
            // What is never used does not matter unless it is held.
            owner.first.truncate(steps);
        }
        let counts = Self {
            steps,
            owners,
            window_ends: window_ends(&purposes, window),
            goes_on: false,
        };
        let next_uses = NextUses {
            by_step,
            first: used_next,
        };
        Ok((counts, next_uses))
    }

    /// The same counts where the rows and deliveries of owners do not cost the same. `weights` are by part; a part without one,
    /// or of weight 0, weighs 1.
    ///
    /// With unequal weights the choice of rows that are dropped is a heuristic: those go first whose interval is longest for
    /// its owner's weight. The bound of a [search](Self::search) stays a bound.
    pub fn weighted(mut self, weights: &[u32]) -> Self {
        for owner in &mut self.owners {
            let weight = weights.get(usize::from(owner.part));
            owner.weight = weight.copied().unwrap_or(1).max(1);
        }
        self
    }

    /// The same counts of a run that goes on after the horizon: a row that its last use has left and that there is no room for
    /// counts as half a fetch where costs are compared. (Of the rows that a rank of a products-like graph needs in one
    /// epoch and not in the next, half are needed in the one after.)
    pub fn of_a_run_that_goes_on(mut self) -> Self {
        self.goes_on = true;
        self
    }

    /// Steps of the horizon.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The parts that may deliver, ascending: all others that have rows.
    pub fn owners(&self) -> impl ExactSizeIterator<Item = PartId> {
        self.owners.iter().map(|owner| owner.part)
    }

    /// Rows of all batches, each counted in every batch that needs it.
    pub fn needed_rows(&self) -> u64 {
        let counts = self
            .owners
            .iter()
            .flat_map(|owner| owner.first.iter().chain(&owner.again[..row_start(self.steps)]));
        counts.map(|rows| u64::from(*rows)).sum()
    }

    /// Every step a delivery time of every owner: the most deliveries and the fewest rows.
    pub fn every_step(&self) -> DeliveryTimes {
        DeliveryTimes {
            steps: self.steps,
            at: vec![true; self.owners.len() * self.steps],
        }
    }

    /// No delivery time but those where a window may not go on: the fewest that may be.
    pub fn fewest_times(&self) -> DeliveryTimes {
        DeliveryTimes {
            steps: self.steps,
            at: vec![false; self.owners.len() * self.steps],
        }
    }

    /// Windows that are as long as `|N_{s+1} ∪ .. ∪ N_e|` is at most `share_rows`, the same for every owner: those of
    /// [`bulk`](super::bulk).
    pub fn greedy_windows(&self, budget_rows: u32, share_rows: u32) -> DeliveryTimes {
        let held = self.held_rows();
        let room = u64::from(budget_rows).saturating_sub(held);
        let mut times = self.fewest_times();
        let mut first = 0;
        let (mut later_rows, mut early_rows) = (0u64, 0u64);
        for step in 1..self.steps {
            let mut later = 0;
            let mut early = 0;
            for owner in &self.owners {
                let unseen = u64::from(owner.first[step]);
                // What step `first` or one before it used last.
                let seen: u64 = owner.again(step)[..=first + 1]
                    .iter()
                    .map(|rows| u64::from(*rows))
                    .sum();
                later += unseen + seen;
                early += unseen;
            }
            later_rows += later;
            early_rows += early;
            let fits = later_rows <= u64::from(share_rows) && (first > 0 || held == 0 || early_rows <= room);
            if !fits || step >= self.window_ends[first] as usize {
                (0..self.owners.len()).for_each(|owner| times.set(owner, step, true));
                first = step;
                (later_rows, early_rows) = (0, 0);
            }
        }
        times
    }

    /// Rows that are held at the start and never used.
    pub(in crate::policy) fn idle_rows(&self) -> u64 {
        self.idle_from(0)
    }

    /// Rows that could be held from `gap` on, since the step before it used them, and that are not used again.
    pub(in crate::policy) fn idle_from(&self, gap: usize) -> u64 {
        let rows = |owner: &OwnerReuses| u64::from(owner.again(self.steps)[gap]);
        self.owners.iter().map(rows).sum()
    }

    /// Per delivery time, and owner by owner, the rows that a schedule brings for the batch of that step itself.
    pub(in crate::policy) fn at_once(&self, schedule: &Schedule) -> Vec<u64> {
        let owners = self.owners.len();
        let mut rows = vec![0; schedule.fetched.len()];
        for (place, (owner, due)) in self.owners.iter().zip(&schedule.due).enumerate() {
            for (step, first) in owner.first.iter().enumerate().filter(|(step, _)| due[*step] == *step) {
                rows[step * owners + place] += u64::from(*first);
            }
        }
        for dropped in &schedule.drops {
            if let Some(place) = schedule.at_once(dropped.group) {
                rows[place] += dropped.rows;
            }
        }
        rows
    }

    /// Rows that are held at the start.
    fn held_rows(&self) -> u64 {
        let used: u64 = (0..self.steps)
            .flat_map(|step| self.owners.iter().map(move |owner| u64::from(owner.again(step)[0])))
            .sum();
        used + self.idle_rows()
    }

    /// Per step the delivery time of `owner` at which its uses are due.
    fn due(&self, times: &DeliveryTimes, owner: usize) -> Vec<usize> {
        let at = times.of(owner);
        let mut last = 0;
        (0..self.steps)
            .map(|step| {
                if at.get(step) == Some(&true) || step >= self.window_ends[last] as usize {
                    last = step;
                }
                last
            })
            .collect()
    }
}

/// Per step the step after the last of the longest window from there on: at most `limit` steps, all of one purpose.
fn window_ends(purposes: &[Purpose], limit: u32) -> Vec<u32> {
    let mut ends = vec![0; purposes.len()];
    let mut end = purposes.len() as u32;
    for (step, purpose) in (0..end).zip(purposes).rev() {
        if purposes.get(step as usize + 1).is_some_and(|next| next != purpose) {
            end = step + 1;
        }
        ends[step as usize] = end.min(step.saturating_add(limit));
    }
    ends
}

/// The steps of each epoch in the horizon, whose first starts at `from_step`.
fn epoch_spans(epochs: &[&dyn RemoteTrace], from_step: u32) -> Vec<std::ops::Range<usize>> {
    let mut first_step = from_step;
    let mut end = 0;
    let span = |trace: &&dyn RemoteTrace| {
        let start = end;
        end += trace.steps().saturating_sub(std::mem::take(&mut first_step)) as usize;
        start..end
    };
    epochs.iter().map(span).collect()
}

/// Per node whether it is held at the start.
fn held_nodes(held: &[HeldRow], book: &PartitionBook, rank: Rank) -> Result<Vec<bool>, PlanError> {
    let mut is_held = vec![false; book.nodes() as usize];
    let mut before = None;
    for row in held {
        let refuse = |reason| PlanError::BadState {
            owner: row.owner,
            row: row.row,
            slot: row.slot,
            reason,
        };
        if !is_remote_row(book, rank, row.owner, row.row) {
            return Err(refuse("no other part has that row"));
        }
        if before.is_some_and(|before| before >= (row.owner, row.row)) {
            return Err(refuse("rows are not in ascending order, each once"));
        }
        before = Some((row.owner, row.row));
        let node = global_id(book, row.owner, row.row);
        is_held[node as usize] = true;
    }
    Ok(is_held)
}
