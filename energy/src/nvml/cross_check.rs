//! Two figures of one energy: what a GPU's counter counts and what its power integrates to.
//!
//! Counters exist that are wrong by a factor, and power that is averaged over seconds or sampled for a part of the time.
//! Neither is corrected by the other; that they differ is told.

use crate::counter::Accumulated;

/// Over less time than this an averaging power sensor and a counter that moves in steps may differ.
const SHORTEST_COMPARISON_S: f64 = 10.0;

/// Differences below this many joules are the edges of the time compared.
const SMALLEST_DIFFERENCE_J: f64 = 5.0;

/// Share of the larger figure that the two may differ by.
const LARGEST_DIFFERENCE: f64 = 0.1;

/// Compares the two figures over the time in which both could be read.
#[derive(Debug, Default)]
pub(super) struct CrossCheck {
    last: Option<Readings>,
    counter_j: f64,
    power_j: f64,
    seconds: f64,
}

/// Both figures at one time.
#[derive(Clone, Copy, Debug)]
struct Readings {
    at_s: f64,
    counter: Accumulated,
    power: Accumulated,
}

impl CrossCheck {
    /// Takes both figures of a tick in which both could be read.
    pub(super) fn feed(&mut self, at_s: f64, counter: Accumulated, power: Accumulated) {
        let now = Readings { at_s, counter, power };
        let Some(last) = self.last.replace(now) else {
            return;
        };
        // What one of them missed the other may have seen, so that the time of a gap is left out of both.
        if counter.gap_s != last.counter.gap_s || power.gap_s != last.power.gap_s {
            return;
        }
        self.counter_j += counter.joules - last.counter.joules;
        self.power_j += power.joules - last.power.joules;
        self.seconds += at_s - last.at_s;
    }

    /// Counted and integrated joules, if they differ by more than 10 % of the larger one.
    pub(super) fn difference(&self) -> Option<(f64, f64)> {
        let apart_j = (self.counter_j - self.power_j).abs();
        let differ = self.seconds >= SHORTEST_COMPARISON_S
            && apart_j > SMALLEST_DIFFERENCE_J
            && apart_j > LARGEST_DIFFERENCE * self.counter_j.max(self.power_j);
        differ.then_some((self.counter_j, self.power_j))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(joules: f64, gap_s: f64) -> Accumulated {
        Accumulated {
            joules,
            gap_s,
            gaps: u32::from(gap_s > 0.0),
            live: true,
        }
    }

    /// The difference after `seconds` at these constant powers.
    fn after(seconds: u32, counter_w: f64, power_w: f64) -> Option<(f64, f64)> {
        let mut check = CrossCheck::default();
        for second in 0..=seconds {
            let at_s = f64::from(second);
            check.feed(at_s, figure(counter_w * at_s, 0.0), figure(power_w * at_s, 0.0));
        }
        check.difference()
    }

    #[test]
    fn more_than_a_tenth_of_the_larger_is_told_in_both_directions() {
        assert_eq!(after(20, 100.0, 89.0), Some((2000.0, 1780.0)));
        assert_eq!(after(20, 89.0, 100.0), Some((1780.0, 2000.0)));
        assert_eq!(after(20, 100.0, 91.0), None);
        assert_eq!(after(20, 91.0, 100.0), None);
    }

    #[test]
    fn short_times_and_few_joules_are_not_compared() {
        assert_eq!(after(9, 100.0, 50.0), None);
        assert_eq!(after(20, 0.4, 0.2), None);
    }

    #[test]
    fn the_time_of_a_gap_is_left_out_of_both() {
        let mut check = CrossCheck::default();
        for second in 0..=10 {
            let joules = f64::from(second) * 100.0;
            check.feed(f64::from(second), figure(joules, 0.0), figure(joules, 0.0));
        }
        // The counter made good what the power missed.
        check.feed(30.0, figure(3000.0, 0.0), figure(1000.0, 20.0));
        for second in 31..=40 {
            let joules = f64::from(second) * 100.0;
            check.feed(f64::from(second), figure(joules, 0.0), figure(joules - 2000.0, 20.0));
        }
        assert_eq!(check.difference(), None);
        assert_eq!((check.counter_j, check.power_j, check.seconds), (2000.0, 2000.0, 20.0));
    }
}
