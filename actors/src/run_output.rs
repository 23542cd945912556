//! Where a run shows itself while it lasts: the terminal, the run folder, and the metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use greengnn_energy::choice::Choice;
use greengnn_energy::clocks::ClockNews;
use greengnn_energy::domain::DomainKey;
use greengnn_energy::profile::Profile;
use greengnn_energy::timeline::TimelinePoint;

use greengnn_model::store::PartsManifest;

use crate::protocol::{EpochReport, MachineInfo};
use crate::recorder::CompletedEpoch;
use crate::report::bound::BoundMeter;
use crate::report::clocks::{ClockLog, ClockRecord, ClockSummary};
use crate::report::html::{self, Report};
use crate::report::plot::PlotError;
use crate::report::progress::Progress;
use crate::report::records::{EnergyPoint, MeterRecord, MetricsRecord, StepRecord};
use crate::report::run_folder::{RunFolder, RunFolderError};
use crate::report::summary::{PeriodSummary, RunSummary};
use crate::supervisor::SupervisorOptions;
use crate::telemetry;
use crate::wiring::step_counts;
use crate::work::Work;

/// Power readings that the report's plot is drawn from; the run folder has all of them.
const REPORT_POINTS: usize = 200_000;

/// Why a run could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum RunOutputError {
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    #[error("the report could not be drawn: {0}")]
    Plot(#[from] PlotError),
}

/// The sinks of one run.
pub struct RunOutput {
    progress: Progress,
    folder: Option<RunFolder>,
    config_text: String,
    title: String,
    bound: Option<BoundMeter>,
    energy: Vec<EnergyPoint>,
    /// The machine that each domain is taken from.
    domain_sources: BTreeMap<DomainKey, String>,
    clocks: ClockLog,
    started_unix_s: f64,
    ranks: usize,
    steps_done: u32,
    epoch_stall_s: f64,
    epoch_time_s: f64,
}

impl RunOutput {
    /// Makes the run folder, if there is to be one, and writes the configuration.
    pub fn new(options: &SupervisorOptions, manifest: &PartsManifest) -> Result<Self, RunOutputError> {
        let folder = options.run_folder.clone().map(RunFolder::create).transpose()?;
        let config_text = match &folder {
            Some(folder) => folder.write_config(&options.config)?,
            None => String::new(),
        };
        let steps = step_counts(manifest, options.config.batch_size);
        Ok(Self {
            progress: Progress::new(options.config.epochs, steps.train, options.quiet),
            folder,
            config_text,
            title: options.title.clone(),
            bound: None,
            energy: Vec::new(),
            domain_sources: BTreeMap::new(),
            clocks: ClockLog::default(),
            started_unix_s: greengnn_energy::clock::unix_now_s(),
            ranks: usize::from(manifest.book.parts()),
            steps_done: 0,
            epoch_stall_s: 0.0,
            epoch_time_s: 0.0,
        })
    }

    /// A line about what the run does outside its epochs.
    pub fn note(&mut self, line: &str) {
        self.progress.note(line);
    }

    /// All machines are ready.
    pub fn begin(&mut self, placement: &[MachineInfo], work: &Work, idle_for: Duration) {
        let mut machines = vec![String::new(); self.ranks];
        for machine in placement {
            for rank in &machine.ranks {
                machines[usize::from(*rank)].clone_from(&machine.name);
            }
        }
        self.bound = Some(BoundMeter::new(machines));
        if !idle_for.is_zero() {
            let seconds = idle_for.as_secs_f64();
            self.note(&format!("measuring the idle power of the machines for {seconds} s"));
        }
        self.note(match work {
            Work::Train(_) | Work::Tune(_) => "sampling the first epoch",
            Work::Probe(_) => "probing",
        });
    }

    /// Training starts: the set-up of every machine is done, and took this.
    pub fn set_up(&mut self, setup: &PeriodSummary) {
        for domain in setup.energy_by_domain.iter().filter(|domain| domain.counted) {
            if let Some(joules) = domain.energy.joules {
                telemetry::record_energy(&domain.key, domain.energy.quality, joules);
            }
        }
        self.progress.epoch_started();
    }

    /// Keeps a choice; the first of a run is that of its cold cache, the last one stays.
    pub fn choice(&mut self, choice: &Choice) -> Result<(), RunOutputError> {
        self.note(&format!("chosen: {}", choice.why));
        match &self.folder {
            Some(folder) => Ok(folder.write_choice(choice)?),
            None => Ok(()),
        }
    }

    /// Keeps what a probe measured.
    pub fn profile(&mut self, profile: &Profile) -> Result<(), RunOutputError> {
        match &self.folder {
            Some(folder) => Ok(folder.write_profile(profile)?),
            None => Ok(()),
        }
    }

    pub fn steps(&mut self, steps: &[StepRecord]) -> Result<(), RunOutputError> {
        for step in steps {
            telemetry::record_step(step);
            if let Some(folder) = &self.folder {
                folder.append_metrics(&MetricsRecord::Step(*step))?;
            }
            if let Some(bound) = &mut self.bound {
                bound.add(step);
            }
            self.epoch_stall_s += step.stall_s;
            self.epoch_time_s += step.elapsed_s();
            if step.rank == 0 {
                self.steps_done = step.step + 1;
                let share = (self.epoch_time_s > 0.0).then(|| self.epoch_stall_s / self.epoch_time_s);
                self.progress.step(self.steps_done, step.loss, share);
            }
        }
        Ok(())
    }

    /// What one machine's meter read over the periods of its report.
    pub fn meter(&mut self, report: &EpochReport) -> Result<(), RunOutputError> {
        if let Some(folder) = &self.folder {
            for record in MeterRecord::of(report) {
                folder.append_metrics(&MetricsRecord::Meter(record))?;
            }
        }
        Ok(())
    }

    /// Power over time from one machine. Machines of one host see the same domains; each is taken from the one that showed
    /// it first.
    pub fn timeline(&mut self, machine: &str, points: &[TimelinePoint]) -> Result<(), RunOutputError> {
        let mut fresh = Vec::new();
        for point in points {
            let source = self
                .domain_sources
                .entry(point.domain.clone())
                .or_insert_with(|| machine.to_owned());
            if source != machine {
                continue;
            }
            fresh.push(EnergyPoint {
                at_s: point.unix_s - self.started_unix_s,
                host: point.domain.host.clone(),
                domain: point.domain.domain.clone(),
                kind: point.kind.name().to_owned(),
                watts: Some(point.watts),
                quality: point.quality,
            });
        }
        if let Some(folder) = &self.folder {
            folder.append_energy(&fresh)?;
        }
        self.energy.extend(
            fresh
                .into_iter()
                .take(REPORT_POINTS - self.energy.len().min(REPORT_POINTS)),
        );
        Ok(())
    }

    /// What became of the clocks of a machine's GPUs.
    pub fn clocks(&mut self, machine: &str, news: &ClockNews) -> Result<(), RunOutputError> {
        if let Some(line) = self.clocks.add(machine, news) {
            self.note(&line);
        }
        if let ClockNews::Seen(points) = news {
            for point in points {
                telemetry::record_clock(point);
                let record = ClockRecord {
                    at_s: point.unix_s - self.started_unix_s,
                    machine: machine.to_owned(),
                    gpu: point.gpu.clone(),
                    requested_mhz: point.requested_mhz,
                    observed_mhz: point.observed_mhz,
                };
                if let Some(folder) = &self.folder {
                    folder.append_metrics(&MetricsRecord::Clock(record))?;
                }
            }
        }
        Ok(())
    }

    /// What became of all of them.
    pub fn clock_summary(&self) -> ClockSummary {
        self.clocks.summary()
    }

    /// Everything of an epoch is known.
    pub fn epoch(&mut self, completed: &CompletedEpoch, more: bool) -> Result<(), RunOutputError> {
        let summary = &completed.summary;
        telemetry::record_epoch(summary);
        telemetry::record_wire_bytes(summary.period.wire_bytes + completed.evaluation.wire_bytes);
        for rank in &completed.ranks {
            telemetry::record_traffic(rank.rank, &rank.counted);
            telemetry::record_held_rows(rank.rank, rank.held_rows_peak);
        }
        for domain in &completed.energy.counted {
            if let Some(joules) = domain.joules {
                telemetry::record_energy(&domain.key, domain.quality, joules);
            }
        }
        if let Some(folder) = &self.folder {
            folder.append_metrics(&MetricsRecord::Epoch(summary.clone()))?;
            for record in &completed.ranks {
                folder.append_metrics(&MetricsRecord::Rank(*record))?;
            }
        }
        self.progress.epoch_finished(summary);
        (self.epoch_stall_s, self.epoch_time_s) = (0.0, 0.0);
        if more {
            self.progress.epoch_started();
        }
        Ok(())
    }

    /// What bound the run, in one line.
    pub fn bound_by(&self) -> String {
        self.bound
            .as_ref()
            .map_or_else(String::new, |bound| bound.bound().to_string())
    }

    /// Writes what stays of a run that ended well.
    pub fn finish(&mut self, summary: &RunSummary, weights: &[u8]) -> Result<(), RunOutputError> {
        self.energy.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        if let Some(folder) = &self.folder {
            folder.write_model(weights)?;
            let report = Report {
                title: &self.title,
                summary,
                energy: &self.energy,
                config: &self.config_text,
            };
            folder.write_report(&html::render(report)?)?;
            // Last, so that a folder with a summary is whole.
            folder.write_summary(summary)?;
        }
        Ok(())
    }

    /// Leaves nothing of a run that never began.
    pub fn discard(&mut self) {
        if let Some(folder) = self.folder.take() {
            folder.discard();
        }
    }

    /// Clears the progress bar.
    pub fn end(&mut self) {
        self.progress.finish();
    }
}
