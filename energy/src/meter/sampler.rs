//! What the meter's thread does, apart from waiting: read all sources, keep the schedule, and say what was seen.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::process::ProcessWatch;
use crate::snapshot::{EnergySnapshot, TickStats};
use crate::source::{Source, SourceReport};

/// The sources, the schedule and the process.
pub(super) struct Sampler {
    /// Host and start, to which snapshots add what was seen.
    start: EnergySnapshot,
    clock: Arc<dyn Clock>,
    sources: Vec<Box<dyn Source>>,
    /// Why other sources could not be opened.
    failed: Vec<SourceReport>,
    process: ProcessWatch,
    period_s: f64,
    next_tick_s: f64,
    last_tick_s: f64,
    first_tick_s: f64,
    ticks: TickStats,
}

impl Sampler {
    pub fn new(
        start: EnergySnapshot,
        clock: Arc<dyn Clock>,
        period_s: f64,
        sources: Vec<Box<dyn Source>>,
        failed: Vec<SourceReport>,
    ) -> Self {
        let now_s = clock.now_s();
        Self {
            start,
            clock,
            sources,
            failed,
            process: ProcessWatch::open(),
            period_s,
            next_tick_s: now_s + period_s,
            last_tick_s: now_s,
            first_tick_s: now_s,
            ticks: TickStats::default(),
        }
    }

    pub fn now_s(&self) -> f64 {
        self.clock.now_s()
    }

    /// How long to wait for the next reading.
    pub fn until_next_tick(&self) -> Duration {
        Duration::try_from_secs_f64(self.next_tick_s - self.now_s()).unwrap_or(Duration::ZERO)
    }

    /// The reading of the schedule. When it is late by whole periods those are missed, and the next tick is on the
    /// schedule again.
    pub fn tick(&mut self) {
        let now_s = self.now_s();
        self.sample(false);
        self.ticks.ticks += 1;
        self.ticks.longest_period_s = self.ticks.longest_period_s.max(now_s - self.last_tick_s);
        self.ticks.mean_period_s = (now_s - self.first_tick_s) / self.ticks.ticks as f64;
        self.last_tick_s = now_s;
        let behind = ((self.now_s() - self.next_tick_s) / self.period_s).floor().max(0.0);
        self.ticks.missed += behind as u64;
        self.next_tick_s += (behind + 1.0) * self.period_s;
    }

    /// Reads all sources.
    pub fn sample(&mut self, fresh: bool) {
        for source in &mut self.sources {
            source.sample(self.clock.as_ref(), fresh);
        }
        self.process.sample();
    }

    /// What has been seen, as of now.
    pub fn snapshot(&self) -> EnergySnapshot {
        let now_s = self.now_s();
        let mut domains = Vec::new();
        for source in &self.sources {
            source.states(now_s, &mut domains);
        }
        EnergySnapshot {
            at_s: now_s,
            process: self.process.usage(),
            domains,
            ticks: self.ticks,
            ..self.start.clone()
        }
    }

    /// What each source gives, or why it gives nothing.
    pub fn reports(&self) -> Vec<SourceReport> {
        self.sources
            .iter()
            .map(|source| source.report())
            .chain(self.failed.iter().cloned())
            .collect()
    }
}
