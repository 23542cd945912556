//! The price of given delivery times.

use std::collections::BTreeSet;

use super::{DeliveryTimes, OwnerReuses, ReuseCounts};

/// What delivery times cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Deliveries that bring something: pairs of an owner and a time.
    pub deliveries: u64,
    /// Rows that are moved: the fewest for these times.
    pub rows: u64,
    /// The most rows that are held over a gap.
    pub peak_rows: u64,
    /// Deliveries, each counted as often as its owner weighs.
    pub weighted_deliveries: u64,
    /// Rows, each counted as often as its owner weighs; and half of the rows that are let go after their last use, in a
    /// [run that goes on](ReuseCounts::of_a_run_that_goes_on).
    pub weighted_rows: u64,
}

/// Delivery times that do not fit: rows that must be held overflow the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rows} rows have to be held before step {gap}, more than the budget; add delivery times there")]
pub struct Overload {
    /// The first gap that overflows.
    pub gap: usize,
    /// Rows that these times force to be held there.
    pub rows: u64,
}

/// When uses are due, and which rows are dropped when: all that a plan row by row adds is which row of a group it is.
pub(in crate::policy) struct Schedule {
    pub delivered: Delivered,
    /// Owner by owner and per step the delivery time at which its uses are due.
    pub due: Vec<Vec<usize>>,
    /// By ascending gap.
    pub drops: Vec<Dropped>,
    /// Per gap the slots that are free beside the rows of uses, those of rows that nobody uses among them.
    pub spare: Vec<u64>,
    /// Per delivery time, and owner by owner, the rows that it brings.
    pub fetched: Vec<u64>,
}

/// Rows that are not held over a gap, though they were over the gap before or were needed by the batch between.
#[derive(Clone, Copy)]
pub(in crate::policy) struct Dropped {
    pub gap: usize,
    /// See [`Schedule::group`].
    pub group: usize,
    pub rows: u64,
}

impl Schedule {
    /// The group of a row of `owner` that can be held from gap `from` on and is used at `step` next, if it may be dropped.
    pub(in crate::policy) fn group(&self, owner: usize, from: usize, step: usize) -> Option<usize> {
        let time = self.due[owner][step];
        let at_once = time == step;
        (time > from || time == from && at_once).then(|| (2 * time + usize::from(at_once)) * self.due.len() + owner)
    }

    /// More than the number of any group.
    pub(in crate::policy) fn groups(&self) -> usize {
        2 * self.spare.len().max(1) * self.due.len()
    }

    /// The delivery time and the owner, as a place in `fetched`, of the rows of a group that its batch needs at once.
    pub(in crate::policy) fn at_once(&self, group: usize) -> Option<usize> {
        let owners = self.due.len();
        let (time, owner) = (group / owners, group % owners);
        (time % 2 == 1).then(|| time / 2 * owners + owner)
    }
}

impl ReuseCounts {
    /// What `times` cost where at most `budget_rows` rows are held over any gap.
    ///
    /// The rows are the fewest where all owners weigh the same ([`weighted`](Self::weighted)). Among rows that end at the
    /// same gap those leave first that a delivery brings which is made anyway, then those of
    /// the largest such group: this changes no row count and spares some deliveries, not always the most.
    ///
    /// # Errors
    /// Times that are not feasible.
    pub fn sweep(&self, budget_rows: u32, times: &DeliveryTimes) -> Result<Delivered, Overload> {
        self.schedule(budget_rows, times).map(|schedule| schedule.delivered)
    }

    /// The same, with what is to be done.
    pub(in crate::policy) fn schedule(&self, budget_rows: u32, times: &DeliveryTimes) -> Result<Schedule, Overload> {
        let due: Vec<Vec<usize>> = (0..self.owners.len()).map(|owner| self.due(times, owner)).collect();
        let mandatory = self.mandatory_rows(&due);
        let mut waiting = Waiting::new(self, &due);
        let budget = u64::from(budget_rows);
        let mut drops = Vec::new();
        let mut spare = Vec::with_capacity(self.steps);
        let mut peak_rows = 0;
        for (gap, mandatory) in mandatory.into_iter().enumerate() {
            waiting.settle(gap);
            waiting.start(self, &due, gap);
            let forced = match gap {
                // Nothing can be dropped before the first step.
                0 => mandatory + waiting.rows + self.idle_rows(),
                _ => mandatory,
            };
            let Some(room) = budget.checked_sub(mandatory).filter(|_| forced <= budget) else {
                return Err(Overload { gap, rows: forced });
            };
            waiting.shrink(room, gap, &mut drops);
            spare.push(room - waiting.rows);
            peak_rows = peak_rows.max(forced.max(mandatory + waiting.rows));
        }
        let mut delivered = Delivered {
            peak_rows,
            ..Delivered::default()
        };
        let weights = self.owners.iter().map(|owner| u64::from(owner.weight));
        for (rows, weight) in waiting.fetched.iter().zip(weights.cycle()) {
            let brought = u64::from(*rows > 0);
            delivered.deliveries += brought;
            delivered.rows += rows;
            delivered.weighted_deliveries += weight * brought;
            delivered.weighted_rows += weight * rows;
        }
        if self.goes_on {
            delivered.weighted_rows += self.idle_rows_lost(&spare) / 2;
        }
        Ok(Schedule {
            delivered,
            due,
            drops,
            spare,
            fetched: waiting.fetched,
        })
    }

    /// Rows that `spare` has no room for after their last use.
    fn idle_rows_lost(&self, spare: &[u64]) -> u64 {
        let (mut idle, mut lost) = (0, 0);
        for (gap, spare) in spare.iter().enumerate() {
            idle += self.idle_from(gap);
            lost += idle.saturating_sub(*spare);
            idle = idle.min(*spare);
        }
        lost
    }

    /// Per gap the rows that have to be held there.
    fn mandatory_rows(&self, due: &[Vec<usize>]) -> Vec<u64> {
        // What is held from a gap on, less what was held up to the one before.
        let mut changes = vec![0i64; self.steps + 1];
        for (owner, due) in self.owners.iter().zip(due) {
            for (step, time) in due.iter().copied().enumerate().filter(|(step, time)| time < step) {
                let again = owner.again(step);
                let from_delivery = again[..=time].iter().map(|rows| i64::from(*rows)).sum::<i64>();
                changes[time] += from_delivery + i64::from(owner.first[step]);
                let mut ends = from_delivery + i64::from(owner.first[step]);
                for (gap, rows) in again.iter().enumerate().skip(time + 1) {
                    changes[gap] += i64::from(*rows);
                    ends += i64::from(*rows);
                }
                changes[step + 1] -= ends;
            }
        }
        let mut rows = 0;
        changes[..self.steps]
            .iter()
            .map(|change| {
                rows += change;
                // What is held is never less than nothing.
                rows.unsigned_abs()
            })
            .collect()
    }
}

/// Rows that are held though they could be fetched: the optional intervals that cover a gap, in groups.
///
/// Group `2 s` of an owner are rows that are due at `s` for a later step, whose interval ends at gap `s - 1`; group
/// `2 s + 1` are rows that are due at `s` for `s` itself, which ends at gap `s`.
struct Waiting {
    owners: usize,
    /// Per group and owner its rows.
    groups: Vec<u64>,
    /// Owners of one weight, by ascending weight.
    classes: Vec<Class>,
    /// Per owner its class.
    class_of: Vec<usize>,
    /// All rows.
    rows: u64,
    /// Per delivery time and owner the rows that are fetched.
    fetched: Vec<u64>,
}

/// The waiting rows of owners that weigh the same.
struct Class {
    weight: usize,
    /// Per last gap the rows of its groups.
    by_end: Vec<u64>,
    /// No row has a later last gap.
    latest: usize,
}

impl Waiting {
    /// Nothing is held, and only first uses are fetched.
    fn new(counts: &ReuseCounts, due: &[Vec<usize>]) -> Self {
        let owners = counts.owners.len();
        let mut fetched = vec![0; counts.steps * owners];
        for (place, (owner, due)) in counts.owners.iter().zip(due).enumerate() {
            for (rows, time) in owner.first.iter().zip(due) {
                fetched[time * owners + place] += u64::from(*rows);
            }
        }
        let weights: BTreeSet<u32> = counts.owners.iter().map(|owner| owner.weight).collect();
        let class = |weight: &u32| Class {
            weight: *weight as usize,
            by_end: vec![0; counts.steps],
            latest: 0,
        };
        let class_of = |owner: &OwnerReuses| weights.range(..owner.weight).count();
        Self {
            owners,
            groups: vec![0; (2 * counts.steps + 1) * owners],
            classes: weights.iter().map(class).collect(),
            class_of: counts.owners.iter().map(class_of).collect(),
            rows: 0,
            fetched,
        }
    }

    /// Forgets the rows that have been held long enough at gap `gap`.
    fn settle(&mut self, gap: usize) {
        if gap > 0 {
            self.groups[(2 * gap - 1) * self.owners..(2 * gap + 1) * self.owners].fill(0);
            for class in &mut self.classes {
                self.rows -= std::mem::take(&mut class.by_end[gap - 1]);
            }
        }
    }

    /// Adds the intervals that start at gap `gap`.
    fn start(&mut self, counts: &ReuseCounts, due: &[Vec<usize>], gap: usize) {
        for (place, (owner, due)) in counts.owners.iter().zip(due).enumerate() {
            // Uses that are due before the gap are mandatory.
            let first = due.partition_point(|time| *time < gap);
            for (step, time) in due.iter().copied().enumerate().skip(first) {
                let at_once = time == step;
                let rows = u64::from(owner.again(step)[gap]);
                // Those that are due at it for a later step need no interval.
                if rows == 0 || (time == gap && !at_once) {
                    continue;
                }
                let end = if at_once { time } else { time - 1 };
                self.groups[(2 * time + usize::from(at_once)) * self.owners + place] += rows;
                let class = &mut self.classes[self.class_of[place]];
                class.by_end[end] += rows;
                class.latest = class.latest.max(end);
                self.rows += rows;
            }
        }
    }

    /// Drops rows until at most `room` are left: those that end last, or where owners do not weigh the same, those that
    /// would be held longest for their weight.
    fn shrink(&mut self, room: u64, gap: usize, drops: &mut Vec<Dropped>) {
        while self.rows > room {
            let Some(longest) = self.longest(gap) else {
                break;
            };
            let class = &mut self.classes[longest];
            // The two groups of each owner that end there, and the deliveries that would bring them, which lie in the same
            // order. At the last step only one of the two exists.
            let (first, fetches) = ((2 * class.latest + 1) * self.owners, class.latest * self.owners);
            let ending = &mut self.groups[first..first + 2 * self.owners];
            let fetched = &mut self.fetched[fetches..];
            let excess = self.rows - room;
            let ends = &mut class.by_end[class.latest];
            let mut left = excess.min(*ends);
            self.rows -= left;
            *ends -= left;
            let all = *ends == 0;
            while left > 0 {
                let with_rows = ending
                    .iter()
                    .zip(&*fetched)
                    .enumerate()
                    .filter(|(place, (rows, _))| **rows > 0 && self.class_of[place % self.owners] == longest);
                let mut keys = with_rows.map(|(place, (rows, fetched))| (*fetched > 0, *rows, place));
                // Where all of them leave, the order does not matter.
                let victim = if all { keys.next() } else { keys.max() };
                let Some((_, rows, place)) = victim else {
                    break;
                };
                let rows = rows.min(left);
                left -= rows;
                ending[place] -= rows;
                fetched[place] += rows;
                let group = first + place;
                drops.push(Dropped { gap, group, rows });
            }
        }
    }

    /// The class whose last rows would be held longest from `gap` on for their weight; of equal ones the lightest.
    fn longest(&mut self, gap: usize) -> Option<usize> {
        let mut longest = None;
        for (place, class) in self.classes.iter_mut().enumerate() {
            while class.latest > gap && class.by_end[class.latest] == 0 {
                class.latest -= 1;
            }
            if class.by_end[class.latest] == 0 {
                continue;
            }
            let (gaps, weight) = (class.latest + 1 - gap, class.weight);
            if longest.is_none_or(|(_, other, other_weight)| gaps * other_weight > other * weight) {
                longest = Some((place, gaps, weight));
            }
        }
        longest.map(|(place, _, _)| place)
    }
}
