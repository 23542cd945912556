//! From raw readings to joules.
//!
//! An energy counter is a register of 32 bits, scaled: it wraps, and a suspended or reloaded driver resets it. A power
//! reading is a point, and points have holes between them. What cannot be known is a gap, never a guess and never 0.

/// Power that no socket or board draws, in watts: more than this between two readings is a reset, not energy.
pub const DEFAULT_POWER_CAP_W: f64 = 1000.0;

/// A counter moves in updates of its own, so that two readings that lie close together may have much energy between
/// them.
const UPDATE_SLACK_S: f64 = 1.0;

/// No counter goes round in a second, so that only a pause that is longer can hide a wrap.
const HIDDEN_WRAP_AFTER_S: f64 = 1.0;

/// The smallest range in the field (32 bits of 15.3 uJ), taken for a counter whose range cannot be read.
const SMALLEST_RANGE_UJ: u64 = 65_532_610_987;

/// Power readings further apart than this are not joined by a straight line.
const LONGEST_TRAPEZOID_S: f64 = 1.0;

/// Where a counter starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterRange {
    /// It wraps after this many microjoules.
    Known(u64),
    /// It wraps, nobody says when.
    Unknown,
    /// 64 bits since the driver was loaded: it never wraps.
    Unbounded,
}

/// What a reading adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first reading; energy is counted from here.
    First,
    /// Microjoules since the reading before.
    Energy(u64),
    /// The energy since the reading before is not known.
    Lost(Loss),
}

/// Why the energy between two readings is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The counter was reset, or moved more than any power explains.
    Reset,
    /// The readings lie so far apart that a wrap may hide between them.
    HiddenWrap,
    /// The counter went back and its range is not known.
    UnknownRange,
}

/// Turns readings of a wrapping counter into energy.
///
/// Between two readings `last` and `now` the energy is one of `d, d + range, d + 2 range, ...` with `d = (now - last)
/// mod range`. The power cap decides: when only `d` needs less power than it, `d` is the energy; when none does the
/// counter was reset; when several do, the energy is not known.
#[derive(Clone, Debug)]
pub struct Unwrapper {
    range: CounterRange,
    power_cap_w: f64,
    last: Option<(u64, f64)>,
}

impl Unwrapper {
    /// `power_cap_w` is the power, in watts, that the domain cannot exceed.
    pub fn new(range: CounterRange, power_cap_w: f64) -> Self {
        Self {
            range,
            power_cap_w,
            last: None,
        }
    }

    /// Takes the counter's value in microjoules, read at `at_s` seconds.
    pub fn feed(&mut self, raw_uj: u64, at_s: f64) -> Step {
        let Some((last_uj, last_s)) = self.last.replace((raw_uj, at_s)) else {
            return Step::First;
        };
        let elapsed_s = (at_s - last_s).max(0.0);
        let Some(energy_uj) = self.smallest_energy(last_uj, raw_uj) else {
            return Step::Lost(Loss::UnknownRange);
        };
        let cap_uj_per_s = self.power_cap_w * 1e6;
        if energy_uj as f64 > cap_uj_per_s * (elapsed_s + UPDATE_SLACK_S) {
            return Step::Lost(Loss::Reset);
        }
        let one_wrap_more = match self.range {
            CounterRange::Known(range) => Some(range),
            CounterRange::Unknown => Some(SMALLEST_RANGE_UJ),
            CounterRange::Unbounded => None,
        }
        .map(|range| energy_uj as f64 + range as f64);
        match one_wrap_more {
            Some(more) if elapsed_s > HIDDEN_WRAP_AFTER_S && more <= cap_uj_per_s * elapsed_s => {
                Step::Lost(Loss::HiddenWrap)
            }
            _ => Step::Energy(energy_uj),
        }
    }

    fn smallest_energy(&self, last_uj: u64, raw_uj: u64) -> Option<u64> {
        if raw_uj >= last_uj {
            return Some(raw_uj - last_uj);
        }
        match self.range {
            CounterRange::Known(range) => Some(range.checked_sub(last_uj)?.saturating_add(raw_uj)),
            CounterRange::Unknown | CounterRange::Unbounded => None,
        }
    }
}

/// What a domain has accumulated at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accumulated {
    /// Joules outside gaps, since the first reading.
    pub joules: f64,
    /// Seconds of which the energy is not known, a gap that is still open included.
    pub gap_s: f64,
    /// Number of gaps.
    pub gaps: u32,
    /// Whether the domain has shown that it measures anything. Until then it has no figure.
    pub live: bool,
}

/// The gaps of a domain.
#[derive(Clone, Debug, Default)]
struct Gaps {
    lost_s: f64,
    count: u32,
    last_good_s: Option<f64>,
    failing: bool,
}

impl Gaps {
    /// A reading came. `lost` says that the time since the last one is not covered.
    fn good(&mut self, at_s: f64, lost: bool) {
        if let (true, Some(last_s)) = (lost, self.last_good_s) {
            self.lost_s += (at_s - last_s).max(0.0);
            self.count = self.count.saturating_add(1);
        }
        self.last_good_s = Some(at_s);
        self.failing = false;
    }

    /// Seconds and number of gaps up to `now_s`.
    fn until(&self, now_s: f64) -> (f64, u32) {
        match (self.failing, self.last_good_s) {
            (true, Some(last_s)) => (self.lost_s + (now_s - last_s).max(0.0), self.count.saturating_add(1)),
            _ => (self.lost_s, self.count),
        }
    }
}

/// The energy of a domain that has a counter.
///
/// A reading that fails loses nothing by itself: the next one that succeeds has the energy since the last, unless a
/// wrap may have passed unseen. Until then the gap is open.
#[derive(Clone, Debug)]
pub struct CounterTotal {
    unwrapper: Unwrapper,
    total_uj: u64,
    gaps: Gaps,
    moved: bool,
}

impl CounterTotal {
    pub fn new(unwrapper: Unwrapper) -> Self {
        Self {
            unwrapper,
            total_uj: 0,
            gaps: Gaps::default(),
            moved: false,
        }
    }

    /// A reading of the counter in microjoules. Returns what it added.
    pub fn feed(&mut self, raw_uj: u64, at_s: f64) -> Step {
        let step = self.unwrapper.feed(raw_uj, at_s);
        if let Step::Energy(energy_uj) = step {
            self.total_uj = self.total_uj.saturating_add(energy_uj);
            self.moved |= energy_uj > 0;
        }
        self.gaps.good(at_s, matches!(step, Step::Lost(_)));
        step
    }

    /// The counter could not be read.
    pub fn miss(&mut self) {
        self.gaps.failing = true;
    }

    /// What it has accumulated by `now_s`. It is live once it has moved: some guests show a counter that never does.
    pub fn at(&self, now_s: f64) -> Accumulated {
        let (gap_s, gaps) = self.gaps.until(now_s);
        Accumulated {
            joules: self.total_uj as f64 * 1e-6,
            gap_s,
            gaps,
            live: self.moved,
        }
    }
}

/// The energy of a domain that has a power sensor: the trapezoid of its readings over their real times.
#[derive(Clone, Debug, Default)]
pub struct PowerIntegral {
    joules: f64,
    last: Option<(f64, f64)>,
    gaps: Gaps,
    live: bool,
}

impl PowerIntegral {
    /// A reading of the power in watts, at `at_s` seconds.
    pub fn feed(&mut self, watts: f64, at_s: f64) {
        let mut lost = false;
        if let Some((last_watts, last_s)) = self.last.replace((watts, at_s)) {
            let elapsed_s = (at_s - last_s).max(0.0);
            lost = elapsed_s > LONGEST_TRAPEZOID_S;
            if !lost {
                self.joules += 0.5 * (last_watts + watts) * elapsed_s;
                self.live = true;
            }
        }
        self.gaps.good(at_s, lost);
    }

    /// The power could not be read.
    pub fn miss(&mut self) {
        self.gaps.failing = true;
    }

    /// What it has accumulated by `now_s`.
    pub fn at(&self, now_s: f64) -> Accumulated {
        let (gap_s, gaps) = self.gaps.until(now_s);
        Accumulated {
            joules: self.joules,
            gap_s,
            gaps,
            live: self.live,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANGE: u64 = 262_143_328_850;

    fn unwrapper() -> Unwrapper {
        Unwrapper::new(CounterRange::Known(RANGE), DEFAULT_POWER_CAP_W)
    }

    #[test]
    fn a_wrap_is_energy() {
        let mut unwrapper = unwrapper();
        assert_eq!(unwrapper.feed(RANGE - 3_000_000, 0.0), Step::First);
        assert_eq!(unwrapper.feed(2_000_000, 0.05), Step::Energy(5_000_000));
        assert_eq!(unwrapper.feed(2_500_000, 0.10), Step::Energy(500_000));
    }

    #[test]
    fn a_reset_is_lost_and_counting_goes_on_after_it() {
        let mut unwrapper = unwrapper();
        unwrapper.feed(100_000_000_000, 0.0);
        assert_eq!(unwrapper.feed(1_000_000, 0.05), Step::Lost(Loss::Reset));
        assert_eq!(unwrapper.feed(3_000_000, 0.10), Step::Energy(2_000_000));
    }

    #[test]
    fn a_pause_that_could_hide_a_wrap_is_lost() {
        // At 1000 W the range lasts 262 s.
        let mut unwrapper = unwrapper();
        unwrapper.feed(0, 0.0);
        assert_eq!(unwrapper.feed(10_000_000_000, 200.0), Step::Energy(10_000_000_000));
        assert_eq!(unwrapper.feed(20_000_000_000, 500.0), Step::Lost(Loss::HiddenWrap));
        assert_eq!(unwrapper.feed(20_000_001_000, 500.05), Step::Energy(1_000));
    }

    #[test]
    fn a_decrease_without_a_range_is_lost() {
        for range in [CounterRange::Unknown, CounterRange::Unbounded] {
            let mut unwrapper = Unwrapper::new(range, DEFAULT_POWER_CAP_W);
            unwrapper.feed(5_000_000, 0.0);
            assert_eq!(unwrapper.feed(6_000_000, 0.05), Step::Energy(1_000_000));
            assert_eq!(unwrapper.feed(1_000, 0.10), Step::Lost(Loss::UnknownRange));
        }
    }

    #[test]
    fn a_value_above_its_range_is_no_panic() {
        let mut unwrapper = Unwrapper::new(CounterRange::Known(10), DEFAULT_POWER_CAP_W);
        unwrapper.feed(u64::MAX, 0.0);
        assert_eq!(unwrapper.feed(3, 0.05), Step::Lost(Loss::UnknownRange));
        assert_eq!(unwrapper.feed(u64::MAX, 0.1), Step::Lost(Loss::Reset));
    }

    #[test]
    fn two_readings_close_together_may_have_an_update_between_them() {
        let mut unwrapper = unwrapper();
        unwrapper.feed(0, 0.0);
        assert_eq!(unwrapper.feed(2_000_000, 1e-5), Step::Energy(2_000_000));
    }

    #[test]
    fn a_counter_makes_good_what_a_failed_reading_missed() {
        let mut total = CounterTotal::new(unwrapper());
        total.feed(1_000_000, 0.0);
        total.feed(2_000_000, 1.0);
        total.miss();
        let open = total.at(1.5);
        assert_eq!((open.joules, open.gap_s, open.gaps), (1.0, 0.5, 1));
        total.feed(5_000_000, 2.0);
        let closed = total.at(2.0);
        assert_eq!((closed.joules, closed.gap_s, closed.gaps), (4.0, 0.0, 0));
    }

    #[test]
    fn a_reset_leaves_a_gap_of_its_length() {
        let mut total = CounterTotal::new(unwrapper());
        total.feed(100_000_000_000, 0.0);
        total.feed(100_000_500_000, 1.0);
        total.feed(0, 3.0);
        let state = total.at(3.0);
        assert_eq!((state.joules, state.gap_s, state.gaps), (0.5, 2.0, 1));
    }

    #[test]
    fn a_counter_is_live_once_it_has_moved() {
        let mut total = CounterTotal::new(unwrapper());
        for tick in 0..100 {
            total.feed(0, f64::from(tick) * 0.05);
        }
        assert!(!total.at(5.0).live);
        total.feed(1, 5.0);
        assert!(total.at(5.0).live);
    }

    #[test]
    fn power_is_integrated_over_real_times() {
        let mut power = PowerIntegral::default();
        assert!(!power.at(0.0).live);
        power.feed(100.0, 0.0);
        power.feed(200.0, 0.5);
        power.feed(200.0, 0.6);
        let state = power.at(0.6);
        assert!((state.joules - 95.0).abs() < 1e-9 && state.live && state.gaps == 0);
    }

    #[test]
    fn a_hole_in_the_power_is_a_gap() {
        let mut power = PowerIntegral::default();
        power.feed(100.0, 0.0);
        power.feed(100.0, 1.0);
        power.miss();
        assert_eq!(power.at(4.0).gap_s, 3.0);
        power.feed(100.0, 5.0);
        power.feed(100.0, 6.0);
        let state = power.at(6.0);
        assert_eq!((state.joules, state.gap_s, state.gaps), (200.0, 4.0, 1));
    }

    proptest! {
        /// For any walk that no power cap forbids, read at any pace that no wrap can hide in, the sum is the true
        /// energy.
        #[test]
        fn the_unwrapped_sum_is_the_true_energy(
            start in 0..RANGE,
            steps in prop::collection::vec((0.0..1.0f64, 0.001..200.0f64), 1..200),
        ) {
            let mut total = CounterTotal::new(unwrapper());
            total.feed(start, 0.0);
            let (mut truth_uj, mut at_s) = (0u64, 0.0);
            for (share, elapsed_s) in steps {
                truth_uj += (share * elapsed_s * DEFAULT_POWER_CAP_W * 1e6) as u64;
                at_s += elapsed_s;
                total.feed((start + truth_uj) % RANGE, at_s);
            }
            let state = total.at(at_s);
            prop_assert_eq!(total.total_uj, truth_uj);
            prop_assert_eq!(state.gaps, 0);
            prop_assert_eq!(state.gap_s, 0.0);
        }

        /// Whatever the counter does, what is claimed never exceeds what the power cap allows, and time is never
        /// counted twice.
        #[test]
        fn nonsense_never_becomes_energy(
            readings in prop::collection::vec((any::<u64>(), 0.0..500.0f64), 2..50),
            range in prop_oneof![
                Just(CounterRange::Known(RANGE)), Just(CounterRange::Unknown), Just(CounterRange::Unbounded)
            ],
        ) {
            let mut total = CounterTotal::new(Unwrapper::new(range, DEFAULT_POWER_CAP_W));
            let mut at_s = 0.0;
            for (raw, elapsed_s) in &readings {
                at_s += elapsed_s;
                total.feed(*raw, at_s);
            }
            let state = total.at(at_s);
            let intervals = readings.len() as f64;
            prop_assert!(state.joules <= DEFAULT_POWER_CAP_W * (at_s + intervals * UPDATE_SLACK_S));
            prop_assert!(state.gap_s <= at_s + 1e-6);
        }
    }
}
