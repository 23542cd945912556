//! Power over time, for plots, in bounded memory whatever the length of the run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::{DomainKey, DomainKind};
use crate::quality::Quality;
use crate::snapshot::DomainState;

/// Intervals shorter than this are left to the next one: a counter has updates of its own.
const SHORTEST_INTERVAL_S: f64 = 0.1;

/// The mean power of a domain over an interval. A gap has no point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// End of the interval, in seconds since 1970.
    pub unix_s: f64,
    pub domain: DomainKey,
    pub kind: DomainKind,
    pub watts: f64,
    pub quality: Quality,
}

/// One interval of a domain.
#[derive(Clone, Copy, Debug)]
struct Interval {
    end_s: f64,
    seconds: f64,
    joules: f64,
}

/// The intervals of one domain.
#[derive(Debug)]
struct Series {
    kind: DomainKind,
    joules: f64,
    gap_s: f64,
    since_s: f64,
    intervals: Vec<Interval>,
}

/// Mean power per interval of every domain. When a series is full, neighbours are merged and the interval doubles.
#[derive(Debug)]
pub struct Timeline {
    host: String,
    /// What to add to the meter's clock to have seconds since 1970.
    unix_offset_s: f64,
    resolution_s: f64,
    next_s: f64,
    most_points: usize,
    series: BTreeMap<(String, Quality), Series>,
}

impl Timeline {
    /// `resolution_s` is the length of an interval to begin with; no domain ever holds more than `most_points` (at
    /// least 2).
    pub fn new(host: &str, unix_offset_s: f64, resolution_s: f64, most_points: usize) -> Self {
        Self {
            host: host.to_owned(),
            unix_offset_s,
            resolution_s: resolution_s.max(SHORTEST_INTERVAL_S),
            next_s: f64::NEG_INFINITY,
            most_points: most_points.max(2),
            series: BTreeMap::new(),
        }
    }

    /// Whether an interval has ended by `now_s`.
    pub fn due(&self, now_s: f64) -> bool {
        now_s >= self.next_s
    }

    /// Ends the current interval with what the domains have accumulated by `now_s`.
    pub fn record(&mut self, now_s: f64, states: &[DomainState]) {
        let has_package = states
            .iter()
            .any(|state| state.kind == DomainKind::Package && state.live);
        for state in states {
            let series = self
                .series
                .entry((state.domain.clone(), state.quality))
                .or_insert_with(|| Series {
                    kind: state.kind,
                    joules: state.joules,
                    gap_s: state.gap_s,
                    since_s: now_s,
                    intervals: Vec::new(),
                });
            let seconds = now_s - series.since_s;
            if seconds < SHORTEST_INTERVAL_S {
                continue;
            }
            let seen = state.gap_s == series.gap_s && state.live;
            let stands_in = state.kind != DomainKind::Estimate || !has_package;
            // A GPU with a counter has its power beside it, which is not drawn a second time.
            let has_better = states
                .iter()
                .any(|other| other.domain == state.domain && other.quality < state.quality && other.live);
            if seen && stands_in && !has_better {
                let joules = (state.joules - series.joules).max(0.0);
                series.intervals.push(Interval {
                    end_s: now_s,
                    seconds,
                    joules,
                });
            }
            (series.joules, series.gap_s, series.since_s) = (state.joules, state.gap_s, now_s);
        }
        if self
            .series
            .values()
            .any(|series| series.intervals.len() >= self.most_points)
        {
            self.halve();
        }
        self.next_s = now_s + self.resolution_s;
    }

    fn halve(&mut self) {
        self.resolution_s *= 2.0;
        for series in self.series.values_mut() {
            series.intervals = series
                .intervals
                .chunks(2)
                .map(|pair| Interval {
                    end_s: pair
                        .iter()
                        .map(|interval| interval.end_s)
                        .fold(f64::NEG_INFINITY, f64::max),
                    seconds: pair.iter().map(|interval| interval.seconds).sum(),
                    joules: pair.iter().map(|interval| interval.joules).sum(),
                })
                .collect();
        }
    }

    /// Takes all points out, by time and domain.
    pub fn drain(&mut self) -> Vec<TimelinePoint> {
        let mut points = Vec::new();
        for ((domain, quality), series) in &mut self.series {
            let key = DomainKey::new(&self.host, domain);
            points.extend(series.intervals.drain(..).map(|interval| TimelinePoint {
                unix_s: self.unix_offset_s + interval.end_s,
                domain: key.clone(),
                kind: series.kind,
                watts: interval.joules / interval.seconds,
                quality: *quality,
            }));
        }
        points.sort_by(|a, b| a.unix_s.total_cmp(&b.unix_s).then_with(|| a.domain.cmp(&b.domain)));
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Accumulated;

    fn package(joules: f64, gap_s: f64) -> DomainState {
        let so_far = Accumulated {
            joules,
            gap_s,
            gaps: 0,
            live: true,
        };
        DomainState::new("package-0", DomainKind::Package, Quality::Measured, so_far)
    }

    fn estimate(joules: f64) -> DomainState {
        let so_far = Accumulated {
            joules,
            gap_s: 0.0,
            gaps: 0,
            live: true,
        };
        DomainState::new("cpu-estimate", DomainKind::Estimate, Quality::Estimated, so_far)
    }

    #[test]
    fn a_point_is_the_mean_power_of_its_interval() {
        let mut timeline = Timeline::new("host", 1000.0, 1.0, 100);
        timeline.record(5.0, &[package(0.0, 0.0)]);
        assert!(!timeline.due(5.9) && timeline.due(6.0));
        timeline.record(6.0, &[package(120.0, 0.0)]);
        timeline.record(8.0, &[package(200.0, 0.0)]);
        let points = timeline.drain();
        let seen: Vec<_> = points.iter().map(|point| (point.unix_s, point.watts)).collect();
        assert_eq!(seen, [(1006.0, 120.0), (1008.0, 40.0)]);
        assert_eq!(points[0].domain, DomainKey::new("host", "package-0"));
        assert!(timeline.drain().is_empty());
    }

    #[test]
    fn a_gap_has_no_point() {
        let mut timeline = Timeline::new("host", 0.0, 1.0, 100);
        timeline.record(0.0, &[package(0.0, 0.0)]);
        timeline.record(1.0, &[package(0.0, 1.0)]);
        timeline.record(2.0, &[package(50.0, 1.0)]);
        let seen: Vec<_> = timeline
            .drain()
            .iter()
            .map(|point| (point.unix_s, point.watts))
            .collect();
        assert_eq!(seen, [(2.0, 50.0)]);
    }

    #[test]
    fn an_estimate_is_drawn_only_where_nothing_is_measured() {
        let mut timeline = Timeline::new("host", 0.0, 1.0, 100);
        for second in 0..3 {
            timeline.record(
                f64::from(second),
                &[package(f64::from(second), 0.0), estimate(f64::from(second))],
            );
        }
        assert!(timeline.drain().iter().all(|point| point.quality == Quality::Measured));
        timeline.record(3.0, &[estimate(10.0)]);
        assert_eq!(timeline.drain().len(), 1);
    }

    #[test]
    fn a_long_run_stays_bounded_and_keeps_its_energy() {
        let mut timeline = Timeline::new("host", 0.0, 1.0, 64);
        let (mut now_s, mut joules) = (0.0, 0.0);
        for _ in 0..20_000 {
            if timeline.due(now_s) {
                timeline.record(now_s, &[package(joules, 0.0)]);
            }
            now_s += 1.0;
            joules += 30.0;
        }
        timeline.record(now_s, &[package(joules, 0.0)]);
        let points = timeline.drain();
        assert!(points.len() <= 64 && points.len() > 16, "{} points", points.len());
        assert!(points.iter().all(|point| (point.watts - 30.0).abs() < 1e-6));
        assert_eq!(points.last().unwrap().unix_s, now_s);
        let mut steps: Vec<f64> = points.windows(2).map(|pair| pair[1].unix_s - pair[0].unix_s).collect();
        steps.pop();
        assert!(
            steps.iter().all(|step| *step == steps[0]),
            "the old part is as fine as the new one: {steps:?}"
        );
    }
}
