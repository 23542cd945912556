//! The meter of a process: one thread that reads every source every 50 ms and answers questions in between.
//!
//! All reading happens on that thread, so that hardware that hangs never holds up training: who asks waits for a
//! bounded time and then gets the last thing that was seen. The schedule is absolute: a late tick delays none of the
//! next, and ticks that were missed are counted.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{BootClock, Clock, unix_now_s};
use crate::estimate::{CpuEstimate, CpuPower};
use crate::nvml::{Gpus, NvmlReader};
use crate::process::{self, ProcessUse};
use crate::quality::Quality;
use crate::rapl::{self, Rapl};
use crate::snapshot::{EnergySnapshot, TickStats};
use crate::source::{Source, SourceReport};
use crate::timeline::{Timeline, TimelinePoint};

mod sampler;

use sampler::Sampler;

/// How long a question waits for a fresh reading before the last one is the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How long the sources may take to open (a GPU's driver may have to be loaded) before the start goes on without them.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// How long the end waits for the thread.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Questions that may wait for the thread.
const MOST_QUESTIONS: usize = 64;

/// The shortest interval of a timeline.
const TIMELINE_RESOLUTION_S: f64 = 1.0;

/// Which GPUs are metered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// All that NVML shows.
    #[default]
    All,
    /// None, where no GPU takes part; NVML is then not loaded.
    Off,
}

/// How a process is metered.
#[derive(Clone, Debug)]
pub struct MeterConfig {
    /// Time between readings.
    pub period: Duration,
    /// Root of the powercap tree; none searches the usual places. Counters under a root that is given are taken for the
    /// hardware's own, also in a virtual machine.
    pub rapl_root: Option<PathBuf>,
    pub gpus: GpuChoice,
    /// Power per hardware thread for the estimate; none takes what is known of the CPU model.
    pub cpu_power: Option<CpuPower>,
    /// Identity of the computer; none takes its boot id.
    pub host: Option<String>,
    /// Most points that the timeline holds per domain until it is drained; older ones are merged.
    pub most_timeline_points: usize,
}

impl Default for MeterConfig {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(50),
            rapl_root: None,
            gpus: GpuChoice::All,
            cpu_power: None,
            host: None,
            most_timeline_points: 4096,
        }
    }
}

impl MeterConfig {
    /// The default, with the root of the powercap tree from `GREENGNN_RAPL_ROOT` if that is set.
    pub fn from_env() -> Self {
        let rapl_root = std::env::var_os(rapl::ROOT_VARIABLE)
            .filter(|root| !root.is_empty())
            .map(PathBuf::from);
        Self {
            rapl_root,
            ..Self::default()
        }
    }
}

/// What the thread is asked.
struct Question {
    /// Ends the timeline's interval as well.
    close_interval: bool,
    answer: SyncSender<EnergySnapshot>,
}

/// What the thread shows to others at any time.
struct Shown {
    latest: EnergySnapshot,
    timeline: Timeline,
    reports: Vec<SourceReport>,
}

type Shared = Arc<Mutex<Shown>>;

/// Locks; a thread that panicked has left data that is only old.
fn lock(shared: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Meters the process and its computer from its start until it is dropped.
///
/// It may be shared between threads. Starting it never fails: what cannot be read has no figure, and [`Meter::reports`]
/// says why.
pub struct Meter {
    shared: Shared,
    questions: Option<SyncSender<Question>>,
    /// Behind a lock only so that the meter may be shared between threads.
    finished: Mutex<Receiver<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Meter {
    /// Opens the sources and takes the first reading.
    ///
    /// Waits up to 10 s for sources that are slow to open; they join in when they are ready, and what they measure
    /// counts from then.
    pub fn start(config: MeterConfig) -> Self {
        let open_config = config.clone();
        Self::start_with(&config, Arc::new(BootClock), move || open_sources(&open_config))
    }

    /// The same with any clock and any sources, which are opened on the thread.
    fn start_with(
        config: &MeterConfig,
        clock: Arc<dyn Clock>,
        open: impl FnOnce() -> (Vec<Box<dyn Source>>, Vec<SourceReport>) + Send + 'static,
    ) -> Self {
        let host = config.host.clone().unwrap_or_else(process::boot_id);
        let started_s = clock.now_s();
        let timeline = Timeline::new(
            &host,
            unix_now_s() - started_s,
            TIMELINE_RESOLUTION_S,
            config.most_timeline_points,
        );
        let latest = EnergySnapshot {
            host,
            started_s,
            at_s: started_s,
            process: ProcessUse {
                cpu_s: process::cpu_seconds(),
                ..ProcessUse::default()
            },
            domains: Vec::new(),
            ticks: TickStats::default(),
        };
        let shared: Shared = Arc::new(Mutex::new(Shown {
            latest: latest.clone(),
            timeline,
            reports: Vec::new(),
        }));
        let (questions, asked) = sync_channel(MOST_QUESTIONS);
        let (ready, is_ready) = sync_channel(1);
        let (finish, finished) = sync_channel(1);
        let period_s = config.period.as_secs_f64().max(1e-3);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("greengnn-meter".to_owned())
            .spawn(move || {
                let (sources, failed) = open();
                let mut sampler = Sampler::new(latest, clock, period_s, sources, failed);
                sampler.sample(true);
                show(&sampler, &for_thread, true);
                // Nobody listens any more if the start did not wait.
                let _ = ready.try_send(());
                run(&mut sampler, &asked, &for_thread);
                let _ = finish.try_send(());
            });
        let thread = match thread {
            Ok(thread) => {
                let _ = is_ready.recv_timeout(READY_WITHIN);
                Some(thread)
            }
            Err(error) => {
                let detail = format!("the meter's thread cannot be started ({error})");
                lock(&shared)
                    .reports
                    .push(SourceReport::new("meter", Quality::Unavailable, detail));
                None
            }
        };
        Self {
            shared,
            questions: Some(questions),
            finished: Mutex::new(finished),
            thread,
        }
    }

    /// Everything seen since the start, all domains read now.
    ///
    /// Takes well under a millisecond without GPUs and a few milliseconds with. Waits at most 2 s for hardware that
    /// hangs, and then returns what was seen last, which says when that was. It blocks: in async code call it where
    /// blocking is allowed.
    pub fn snapshot(&self) -> EnergySnapshot {
        self.ask(false).unwrap_or_else(|| lock(&self.shared).latest.clone())
    }

    /// Takes the points of the timeline since it was drained last, up to now, by time.
    ///
    /// Drained rarely, it stays bounded and gets coarser.
    pub fn drain_timeline(&self) -> Vec<TimelinePoint> {
        let _ = self.ask(true);
        lock(&self.shared).timeline.drain()
    }

    /// What each source gives, or why it gives nothing and what to do about it.
    pub fn reports(&self) -> Vec<SourceReport> {
        let _ = self.ask(false);
        lock(&self.shared).reports.clone()
    }

    fn ask(&self, close_interval: bool) -> Option<EnergySnapshot> {
        let (answer, answered) = sync_channel(1);
        self.questions
            .as_ref()?
            .try_send(Question { close_interval, answer })
            .ok()?;
        answered.recv_timeout(ANSWER_WITHIN).ok()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // The thread ends when nobody can ask it any more.
        self.questions = None;
        let finished = self.finished.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = finished.recv_timeout(STOP_WITHIN);
        // A thread that hangs in a driver is left to the end of the process; one that panicked has disconnected.
        if !matches!(ended, Err(RecvTimeoutError::Timeout))
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Reads at every tick and whenever somebody asks, until nobody can.
fn run(sampler: &mut Sampler, asked: &Receiver<Question>, shared: &Shared) {
    loop {
        match asked.recv_timeout(sampler.until_next_tick()) {
            Ok(question) => {
                sampler.sample(true);
                show(sampler, shared, question.close_interval);
                // Who asked may have given up.
                let _ = question.answer.try_send(sampler.snapshot());
            }
            Err(RecvTimeoutError::Timeout) => {
                sampler.tick();
                let due = lock(shared).timeline.due(sampler.now_s());
                if due {
                    show(sampler, shared, true);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Publishes what the sampler has.
fn show(sampler: &Sampler, shared: &Shared, close_interval: bool) {
    let snapshot = sampler.snapshot();
    let reports = sampler.reports();
    let mut shown = lock(shared);
    if close_interval {
        shown.timeline.record(snapshot.at_s, &snapshot.domains);
    }
    shown.latest = snapshot;
    shown.reports = reports;
}

/// Opens what this computer has, and says why it has no more.
fn open_sources(config: &MeterConfig) -> (Vec<Box<dyn Source>>, Vec<SourceReport>) {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let mut failed = Vec::new();
    let unavailable = |source: &str, why: String| SourceReport::new(source, Quality::Unavailable, why);
    let rapl = match &config.rapl_root {
        Some(root) => Rapl::open(root, Quality::Measured),
        None => Rapl::search(),
    };
    match rapl {
        Ok(rapl) => sources.push(Box::new(rapl)),
        Err(error) => failed.push(unavailable("rapl", error.to_string())),
    }
    if config.gpus == GpuChoice::All {
        match NvmlReader::load().and_then(|reader| Gpus::open(Box::new(reader))) {
            Ok(gpus) => sources.push(Box::new(gpus)),
            Err(error) => failed.push(unavailable("nvml", error.to_string())),
        }
    }
    match CpuEstimate::open(config.cpu_power) {
        Ok(estimate) => sources.push(Box::new(estimate)),
        Err(error) => failed.push(unavailable("estimate", error.to_string())),
    }
    (sources, failed)
}

#[cfg(test)]
mod tests;
