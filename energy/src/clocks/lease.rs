//! A lease: lowered clocks that end with it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::guard::{FAREWELL, HEARTBEAT, READY};
use super::record::{LeaseFolder, LeaseRecord, LeasedGpu, restore_gpus};
use super::{ClockControl, ClockError};
use crate::nvml::GpuError;

/// The longest wait for the guard to have loaded NVML.
const GUARD_READY_WITHIN: Duration = Duration::from_secs(10);

/// The longest wait for the guard to end once it has been told farewell.
const GUARD_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The program that runs [`guard::run`](super::guard::run) on its standard input; the lease's file is its last argument.
#[derive(Clone, Debug)]
pub struct GuardProgram {
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

/// How clocks are leased.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    pub folder: LeaseFolder,
    pub guard: GuardProgram,
    /// Without a heartbeat for so long the guard restores. Heartbeats come four times as often.
    pub time_to_live: Duration,
    /// The guard restores after this time whatever happens.
    pub most: Duration,
    /// Lower clocks although another process computes on the GPU.
    pub allow_shared: bool,
    /// Processes that may compute on the GPU as well, because they have nothing to do there while the lease lasts.
    pub companions: Vec<u32>,
}

impl LeaseOptions {
    /// Ten seconds to live, an hour at most.
    pub fn new(folder: LeaseFolder, guard: GuardProgram) -> Self {
        Self {
            folder,
            guard,
            time_to_live: Duration::from_secs(10),
            most: Duration::from_secs(3600),
            allow_shared: false,
            companions: Vec::new(),
        }
    }
}

/// Lowered clocks. Dropping it restores them.
pub struct ClockLease {
    control: Box<dyn ClockControl>,
    record: LeaseRecord,
    path: PathBuf,
    guard: Guard,
    /// By GPU the clock that is asked for, in MHz; empty while clocks are what they were.
    requested_mhz: Vec<(String, u32)>,
    /// How many of the lease's GPUs, from the first on, may be low.
    touched: usize,
    is_over: bool,
}

impl ClockLease {
    /// Lowers the clocks of `uuids`. Before the first one is lowered, the lease is in its file and the guard is ready.
    ///
    /// # Errors
    /// A GPU cannot be set, is shared or is held down already, or there is no guard; then all clocks are what they were.
    pub fn take(control: Box<dyn ClockControl>, uuids: &[String], options: &LeaseOptions) -> Result<Self, ClockError> {
        let mut lease = Self::arm(control, uuids, options)?;
        // An error drops the lease, which restores what was lowered before.
        lease.lower()?;
        Ok(lease)
    }

    /// A lease under which nothing is lowered yet: from now on [`lower`](Self::lower) and [`raise`](Self::raise) cost
    /// no more than the driver's calls.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn arm(
        mut control: Box<dyn ClockControl>,
        uuids: &[String],
        options: &LeaseOptions,
    ) -> Result<Self, ClockError> {
        options.folder.make()?;
        let record = {
            // Who looks whether a GPU is held down, and then writes that it is, must do so alone.
            let _alone = options.folder.lock()?;
            let leased = leased(control.as_mut(), uuids, options)?;
            let (time_to_live_s, most_s) = (options.time_to_live.as_secs_f64(), options.most.as_secs_f64());
            let record = LeaseRecord::of_this_process(time_to_live_s, most_s, leased);
            record.write(&options.folder.file_of(record.pid))?;
            record
        };
        let path = options.folder.file_of(record.pid);
        let guard = match Guard::start(&options.guard, &path, options.time_to_live) {
            Ok(guard) => guard,
            Err(error) => {
                // Nothing was lowered.
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        };
        Ok(Self {
            control,
            record,
            path,
            guard,
            requested_mhz: Vec::new(),
            touched: 0,
            is_over: false,
        })
    }

    /// Lowers the clocks of the lease's GPUs.
    ///
    /// # Errors
    /// The first GPU that cannot be set, or that the guard is gone. Those before it are low until the lease ends.
    pub fn lower(&mut self) -> Result<(), ClockError> {
        if !self.guard.is_there() {
            return Err(ClockError::GuardGone);
        }
        self.requested_mhz.clear();
        for (index, gpu) in self.record.gpus.iter().enumerate() {
            let lowered = self.control.lower(&gpu.uuid, gpu.before);
            // Who may not set clocks could not restore them either, and has nothing to restore.
            if !matches!(lowered, Err(GpuError::NoPermission | GpuError::NotSupported)) {
                self.touched = self.touched.max(index + 1);
            }
            let lowered = lowered.map_err(|source| ClockError::Gpu {
                uuid: gpu.uuid.clone(),
                source,
            })?;
            self.requested_mhz.push((gpu.uuid.clone(), lowered));
        }
        Ok(())
    }

    /// Restores the clocks, and keeps the lease.
    ///
    /// # Errors
    /// The first GPU that cannot be restored; the others are.
    pub fn raise(&mut self) -> Result<(), ClockError> {
        self.requested_mhz.clear();
        let touched = self.record.gpus.iter().take(self.touched);
        let (_, failed) = restore_gpus(touched, self.control.as_mut());
        match failed.into_iter().next() {
            Some(error) => Err(error),
            None => {
                self.touched = 0;
                Ok(())
            }
        }
    }

    /// Whether the guard still watches: it ends after [`LeaseOptions::most`].
    pub fn has_guard(&mut self) -> bool {
        self.guard.is_there()
    }

    /// By GPU the clock that is asked for, in MHz; empty while clocks are what they were.
    pub fn requested_mhz(&self) -> &[(String, u32)] {
        &self.requested_mhz
    }

    /// The UUIDs of the lease's GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &str> {
        self.record.gpus.iter().map(|gpu| gpu.uuid.as_str())
    }

    /// By GPU the clock that it runs at now, in MHz. Those that do not answer are left out.
    pub fn observed_mhz(&mut self) -> Vec<(String, u32)> {
        let gpus = self.record.gpus.iter();
        gpus.filter_map(|gpu| Some((gpu.uuid.clone(), self.control.observed_mhz(&gpu.uuid).ok()?)))
            .collect()
    }

    /// Restores the clocks.
    ///
    /// # Errors
    /// The first GPU that cannot be restored. The lease's file stays, and the guard tries again.
    pub fn give_back(mut self) -> Result<(), ClockError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ClockError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let restored = self.raise();
        if restored.is_ok() {
            self.record.forget(&self.path);
        }
        self.guard.end(restored.is_ok());
        restored
    }
}

/// What is set for each of `uuids` now, unless somebody else computes on one of them or holds it down.
fn leased(
    control: &mut dyn ClockControl,
    uuids: &[String],
    options: &LeaseOptions,
) -> Result<Vec<LeasedGpu>, ClockError> {
    let leases = options.folder.leases()?;
    let mut gpus = Vec::with_capacity(uuids.len());
    for uuid in uuids {
        let holds = |lease: &LeaseRecord| lease.is_alive() && lease.gpus.iter().any(|gpu| gpu.uuid == *uuid);
        if let Some((_, lease)) = leases.iter().find(|(_, lease)| holds(lease)) {
            // What is set now is not what was before: two leases would restore each other's low clocks.
            return Err(ClockError::Held {
                uuid: uuid.clone(),
                process: lease.pid,
            });
        }
        let failed = |source| ClockError::Gpu {
            uuid: uuid.clone(),
            source,
        };
        // Who cannot tell who else computes is not alone.
        if !options.allow_shared {
            let others = control.other_processes(uuid).map_err(failed)?;
            if let Some(process) = others.iter().find(|process| !options.companions.contains(process)) {
                return Err(ClockError::Shared {
                    uuid: uuid.clone(),
                    process: *process,
                });
            }
        }
        let before = control.settings(uuid).map_err(failed)?;
        gpus.push(LeasedGpu {
            uuid: uuid.clone(),
            before,
        });
    }
    Ok(gpus)
}

impl Drop for ClockLease {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("GPU clocks could not be restored: {error}");
        }
    }
}

/// The child that restores clocks when this process cannot, and the thread that tells it that all is well.
struct Guard {
    child: Child,
    stopped: Arc<AtomicBool>,
    /// Ends the heartbeats, and then gives back the pipe.
    heartbeats: Option<JoinHandle<ChildStdin>>,
}

impl Guard {
    fn start(program: &GuardProgram, lease: &std::path::Path, time_to_live: Duration) -> Result<Self, ClockError> {
        let failed = |source| ClockError::Guard {
            program: program.program.clone(),
            source,
        };
        let mut command = Command::new(&program.program);
        command.args(&program.arguments).arg(lease);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A signal to this process's group, such as that of Ctrl-C, is not for the guard.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            let _ = child.kill();
            return Err(failed(std::io::Error::other("it has no pipes")));
        };
        if let Err(said) = wait_until_ready(output) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(ClockError::GuardNotReady {
                within: GUARD_READY_WITHIN,
                said,
            });
        }
        let stopped = Arc::new(AtomicBool::new(false));
        let beating = {
            let stopped = Arc::clone(&stopped);
            move || beat(input, time_to_live / 4, &stopped)
        };
        let heartbeats = std::thread::Builder::new()
            .name("clock-heartbeat".to_owned())
            .spawn(beating);
        match heartbeats {
            Ok(heartbeats) => Ok(Self {
                child,
                stopped,
                heartbeats: Some(heartbeats),
            }),
            Err(source) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(source))
            }
        }
    }

    /// Whether the guard runs.
    fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the guard: with a farewell if there is nothing left to restore, else by closing the pipe.
    fn end(&mut self, is_restored: bool) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(heartbeats) = self.heartbeats.take() {
            heartbeats.thread().unpark();
            if let Ok(mut input) = heartbeats.join()
                && is_restored
            {
                // A guard that is gone needs no farewell.
                let _ = input.write_all(&[FAREWELL]);
            }
        }
        let until = Instant::now() + GUARD_ENDS_WITHIN;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        tracing::warn!(
            "the guard of GPU clocks does not end; process {} is left to itself",
            self.child.id()
        );
    }
}

/// Writes heartbeats until it is stopped or nobody reads them.
fn beat(mut input: ChildStdin, period: Duration, stopped: &AtomicBool) -> ChildStdin {
    while !stopped.load(Ordering::Relaxed) && input.write_all(&[HEARTBEAT]).is_ok() {
        std::thread::park_timeout(period);
    }
    input
}

/// Waits for the guard's first line. `Err` is what it said instead.
fn wait_until_ready(output: ChildStdout) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    let reading = move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        // Nobody listens any more once the wait is over.
        let _ = sender.send(read.map(|_| line));
    };
    let started = std::thread::Builder::new()
        .name("clock-guard-ready".to_owned())
        .spawn(reading);
    started.map_err(|error| error.to_string())?;
    match receiver.recv_timeout(GUARD_READY_WITHIN) {
        Ok(Ok(line)) if line.trim_end() == READY => Ok(()),
        Ok(Ok(line)) if line.is_empty() => Err("it ended at once".to_owned()),
        Ok(Ok(line)) => Err(line.trim_end().to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it said nothing".to_owned()),
    }
}
