//! What the slots are for that no use of the horizon needs: rows that may be used after it, and requests that leave
//! before their delivery time. Neither changes what the horizon moves.

use crate::policy::delivery::{ReuseCounts, Schedule};

/// A request that leaves before its delivery time, with all of its rows in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    pub gap: usize,
    /// The delivery time.
    pub time: usize,
    /// Place among the owners of the schedule.
    pub owner: usize,
}

/// Per gap how many of the rows stay that the horizon does not use again: all, or as many as there is room for. They are
/// taken out of `spare`. Nothing is dropped at gap 0.
pub(super) fn idle_rows(counts: &ReuseCounts, spare: &mut [u64]) -> Vec<u64> {
    let mut idle = 0;
    let mut stay = Vec::with_capacity(spare.len());
    for (gap, spare) in spare.iter_mut().enumerate() {
        idle = (idle + counts.idle_from(gap)).min(*spare);
        *spare -= idle;
        stay.push(idle);
    }
    stay
}

/// The deliveries of the first `steps` steps that have room to leave early, each at the earliest gap from the delivery
/// before it on from which its rows have slots in `free`, which are taken. By ascending gap.
///
/// None of its rows is dropped after that gap, since a row is dropped only at a gap that is full; and none is used before
/// the delivery time, since the use would have been delivered or held.
pub(super) fn leads(counts: &ReuseCounts, schedule: &Schedule, free: &mut [u64], steps: usize) -> Vec<Lead> {
    let owners = schedule.due.len();
    let at_once = counts.at_once(schedule);
    let mut leads = Vec::new();
    // Per owner the delivery before.
    let mut before = vec![0; owners];
    for time in 0..steps {
        for (owner, before) in before.iter_mut().enumerate() {
            let place = time * owners + owner;
            let (rows, at_once) = (schedule.fetched[place], at_once[place]);
            if rows == 0 {
                continue;
            }
            let earliest = std::mem::replace(before, time);
            if free[time] < at_once {
                continue;
            }
            let gaps = &mut free[earliest..time];
            let full = gaps.iter().rposition(|free| *free < rows);
            let start = full.map_or(0, |full| full + 1);
            if start < gaps.len() {
                gaps[start..].iter_mut().for_each(|free| *free -= rows);
                free[time] -= at_once;
                let gap = earliest + start;
                leads.push(Lead { gap, time, owner });
            }
        }
    }
    leads.sort_by_key(|lead| (lead.gap, lead.time, lead.owner));
    leads
}
