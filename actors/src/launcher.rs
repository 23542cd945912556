//! The launcher: a run on one computer, as one supervisor process and some machine processes that are its children.
//!
//! It waits on its main thread, because the children's parent-death signal is tied to the thread that started them.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::config::TrainConfig;
use crate::control::{COOKIE_SECRET_VARIABLE, ControlError, random_cookie};
use crate::report::summary::{RunSummary, SummaryError};

/// How often the children are looked at.
const POLL: Duration = Duration::from_millis(10);
/// How long the supervisor may take to listen.
const LISTEN_WITHIN: Duration = Duration::from_secs(30);
/// How long the others may take to end when one has.
const SETTLE_WITHIN: Duration = Duration::from_secs(15);
/// Longest summary that is read.
const SUMMARY_LIMIT: u64 = 256 << 20;

/// A run of all machines on this computer.
pub struct LocalRun {
    pub config: TrainConfig,
    pub parts: PathBuf,
    /// Number of machine processes.
    pub machines: u32,
    pub out: Option<PathBuf>,
    /// What the run is called in its report.
    pub title: String,
    pub metrics_addr: Option<String>,
}

/// Why a local run did not end well.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot start {what}: {source}")]
    Start { what: String, source: std::io::Error },
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the supervisor process did not listen within {} s", LISTEN_WITHIN.as_secs())]
    NotListening,
    /// The supervisor has said on standard error what went wrong.
    #[error("")]
    Reported,
    #[error("{what} ended with {status} and said nothing")]
    Ended { what: String, status: ExitStatus },
    #[error("the supervisor's summary cannot be read: {0}")]
    Summary(#[from] SummaryError),
    #[error("interrupted")]
    Interrupted,
}

/// Runs all processes and waits until every one has ended.
pub fn run(local: &LocalRun) -> Result<RunSummary, LaunchError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for kind in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(kind, Arc::clone(&interrupted)).map_err(|source| LaunchError::Start {
            what: "the signal handler".to_owned(),
            source,
        })?;
    }
    let program = std::env::current_exe().map_err(|source| LaunchError::Start {
        what: "another process of this program".to_owned(),
        source,
    })?;
    let work = tempfile::Builder::new()
        .prefix("greengnn-")
        .tempdir()
        .map_err(|source| LaunchError::Start {
            what: "a folder for temporary files".to_owned(),
            source,
        })?;
    let cookie = random_cookie()?;
    let mut family = Family::default();

    let mut supervisor = Command::new(&program);
    supervisor
        .arg("supervisor")
        .arg(&local.parts)
        .args(["--listen", "127.0.0.1:0", "--json", "--announce"]);
    supervisor.args(["--machines", &local.machines.to_string(), "--title", &local.title]);
    supervisor
        .arg("--resolved")
        .arg(serde_json::to_string(&local.config).unwrap_or_default());
    if let Some(out) = &local.out {
        supervisor.arg("--out").arg(out);
    }
    if let Some(address) = &local.metrics_addr {
        supervisor.args(["--metrics-addr", address]);
    }
    supervisor.stdout(Stdio::piped());
    let mut output = family.start("the supervisor".to_owned(), supervisor, &cookie)?;
    let lines = read_output(output.take());
    let address = family.wait_for_address(&lines, &interrupted)?;

    for index in 0..local.machines {
        let name = format!("machine-{index}");
        let mut machine = Command::new(&program);
        machine
            .args(["machine", "--join", &address, "--name", &name])
            .arg("--parts")
            .arg(&local.parts);
        machine
            .arg("--work-dir")
            .arg(work.path().join(&name))
            .stdout(Stdio::null());
        family.start(name, machine, &cookie)?;
    }
    family.wait(&interrupted)?;
    match lines.recv_timeout(SETTLE_WITHIN) {
        Ok(Output::Rest(text)) => Ok(RunSummary::from_json(&text)?),
        _ => Err(LaunchError::Reported),
    }
}

/// What the supervisor writes: the address that it listens on, then the summary.
enum Output {
    Address(String),
    Rest(String),
}

fn read_output(stdout: Option<std::process::ChildStdout>) -> Receiver<Output> {
    let (sender, receiver) = channel();
    if let Some(stdout) = stdout {
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut address = String::new();
            if reader.read_line(&mut address).is_err() {
                return;
            }
            let _ = sender.send(Output::Address(address.trim().to_owned()));
            let mut rest = String::new();
            if reader.take(SUMMARY_LIMIT).read_to_string(&mut rest).is_ok() {
                let _ = sender.send(Output::Rest(rest));
            }
        });
    }
    receiver
}

/// The children, the supervisor first. Dropping it ends them all.
#[derive(Default)]
struct Family {
    children: Vec<Member>,
}

struct Member {
    what: String,
    child: Child,
    status: Option<ExitStatus>,
}

impl Family {
    fn start(
        &mut self,
        what: String,
        mut command: Command,
        cookie: &str,
    ) -> Result<Option<std::process::ChildStdout>, LaunchError> {
        command.args(["--parent", &std::process::id().to_string()]);
        command.env(COOKIE_SECRET_VARIABLE, cookie).stdin(Stdio::null());
        let mut child = command.spawn().map_err(|source| LaunchError::Start {
            what: what.clone(),
            source,
        })?;
        let stdout = child.stdout.take();
        self.children.push(Member {
            what,
            child,
            status: None,
        });
        Ok(stdout)
    }

    fn wait_for_address(&mut self, lines: &Receiver<Output>, interrupted: &AtomicBool) -> Result<String, LaunchError> {
        let started = Instant::now();
        loop {
            match lines.recv_timeout(POLL) {
                Ok(Output::Address(address)) if !address.is_empty() => return Ok(address),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(self.why_the_supervisor_ended()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(LaunchError::Interrupted);
            }
            if started.elapsed() > LISTEN_WITHIN {
                return Err(LaunchError::NotListening);
            }
        }
    }

    /// The supervisor says on standard error why it ends; only one that was killed says nothing.
    fn why_the_supervisor_ended(&mut self) -> LaunchError {
        let Some(supervisor) = self.children.first_mut() else {
            return LaunchError::NotListening;
        };
        match supervisor.child.wait() {
            Ok(status) if status.code().is_none() => LaunchError::Ended {
                what: supervisor.what.clone(),
                status,
            },
            _ => LaunchError::Reported,
        }
    }

    /// Waits until all have ended. When one ends badly the others get a while to end by themselves, which they do with
    /// better words than this process has.
    fn wait(&mut self, interrupted: &AtomicBool) -> Result<(), LaunchError> {
        let mut settle_by: Option<Instant> = None;
        loop {
            let mut running = 0;
            for member in &mut self.children {
                if member.status.is_none() {
                    member.status = member.child.try_wait().ok().flatten();
                }
                running += usize::from(member.status.is_none());
            }
            if running == 0 {
                break;
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(LaunchError::Interrupted);
            }
            let ended = self.children.iter().any(|member| member.status.is_some());
            if ended {
                let deadline = *settle_by.get_or_insert_with(|| Instant::now() + SETTLE_WITHIN);
                let supervisor_done = self.children.first().is_some_and(|member| member.status.is_some());
                let failed = self
                    .children
                    .iter()
                    .any(|member| member.status.is_some_and(|status| !status.success()));
                if (failed || supervisor_done) && Instant::now() > deadline {
                    break;
                }
                if !failed && !supervisor_done {
                    settle_by = None;
                }
            }
            std::thread::sleep(POLL);
        }
        self.verdict()
    }

    fn verdict(&self) -> Result<(), LaunchError> {
        let Some(supervisor) = self.children.first() else {
            return Ok(());
        };
        match supervisor.status {
            Some(status) if status.success() => Ok(()),
            Some(status) if status.code().is_none() => Err(LaunchError::Ended {
                what: supervisor.what.clone(),
                status,
            }),
            Some(_) => Err(LaunchError::Reported),
            None => Err(LaunchError::NotListening),
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let running = |member: &mut Member| member.status.is_none() && matches!(member.child.try_wait(), Ok(None));
        for member in &mut self.children {
            if running(member) {
                // SAFETY: the child has not been waited for, so its process id is still its own.
                unsafe { libc::kill(member.child.id() as libc::pid_t, libc::SIGTERM) };
            }
        }
        let deadline = Instant::now() + crate::lifetime::END_WITHIN + Duration::from_secs(1);
        while Instant::now() < deadline && self.children.iter_mut().any(running) {
            std::thread::sleep(POLL);
        }
        for member in &mut self.children {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
