//! The launcher: a run on one computer, as one supervisor process and some machine processes that are its children.
//!
//! It waits on its main thread, because the children's parent-death signal is tied to the thread that started them.
//! What goes wrong in a run is said once, by the process that knows best: mostly the supervisor.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::config::TrainConfig;
use crate::control::{COOKIE_SECRET_VARIABLE, ControlError, random_cookie};
use crate::lifetime::{self, END_WITHIN, ENDED_BY_ANOTHER};
use crate::report::summary::{RunSummary, SummaryError};
use crate::work::{OtherOutcome, Outcome, Work};

/// How often the children are looked at.
const POLL: Duration = Duration::from_millis(10);
/// How long the supervisor may take to listen.
const LISTEN_WITHIN: Duration = Duration::from_secs(30);
/// How long the others may take to end by themselves when one has.
const SETTLE_WITHIN: Duration = END_WITHIN;
/// How long the machines may take to end after the supervisor, which has told them to.
const FOLLOW_WITHIN: Duration = Duration::from_secs(1);
/// Longest summary that is read.
const SUMMARY_LIMIT: u64 = 256 << 20;

/// A run of all machines on this computer.
pub struct LocalRun {
    pub config: TrainConfig,
    pub work: Work,
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
    #[error("the configuration cannot be handed to the supervisor: {0}")]
    Encode(#[from] serde_json::Error),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the supervisor process did not listen within {} s", LISTEN_WITHIN.as_secs())]
    NotListening,
    /// Another process has said on standard error what went wrong. It cannot know by what a machine was killed.
    #[error("")]
    Reported {
        #[source]
        cause: Option<Killed>,
    },
    #[error("{what} ended with {status} and said nothing")]
    Ended { what: String, status: ExitStatus },
    #[error("the supervisor process does not respond: {what} ended with {status}, and it took no notice")]
    Unresponsive { what: String, status: ExitStatus },
    #[error("the supervisor's summary cannot be read: {0}")]
    Summary(#[from] SummaryError),
    #[error("what the supervisor has found out cannot be read: {0}")]
    Output(#[source] serde_json::Error),
    #[error(transparent)]
    Other(#[from] OtherOutcome),
    #[error("the run was interrupted")]
    Interrupted,
}

/// A process that a signal has ended.
#[derive(Debug, thiserror::Error)]
#[error("{what} was ended by {status}")]
pub struct Killed {
    pub what: String,
    pub status: ExitStatus,
}

/// Runs all processes and waits until every one has ended. Call it from the main thread.
pub fn run(local: &LocalRun) -> Result<Outcome, LaunchError> {
    lifetime::catch_interruption().map_err(|source| LaunchError::Start {
        what: "the thread that waits for signals".to_owned(),
        source,
    })?;
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
    // A profile may be larger than an argument may be.
    let work_file = work.path().join("work.json");
    std::fs::write(&work_file, serde_json::to_vec(&local.work)?).map_err(|source| LaunchError::Start {
        what: "a file that tells the supervisor its work".to_owned(),
        source,
    })?;
    let cookie = random_cookie()?;
    let mut family = Family::default();

    let mut supervisor = Command::new(&program);
    supervisor
        .arg("supervisor")
        .arg(&local.parts)
        .args(["--listen", "127.0.0.1:0", "--json", "--announce"])
        .args(["--machines", &local.machines.to_string(), "--title", &local.title])
        .arg("--resolved")
        .arg(serde_json::to_string(&local.config)?)
        .arg("--work")
        .arg(&work_file);
    if let Some(out) = &local.out {
        supervisor.arg("--out").arg(out);
    }
    if let Some(address) = &local.metrics_addr {
        supervisor.args(["--metrics-addr", address]);
    }
    supervisor.stdout(Stdio::piped());
    let output = family.start("the supervisor process".to_owned(), supervisor, &cookie)?;
    let lines = read_output(output);
    let address = family.wait_for_address(&lines)?;

    for index in 0..local.machines {
        let name = format!("machine-{index}");
        let mut machine = Command::new(&program);
        machine
            .args(["machine", "--join", &address, "--name", &name])
            .arg("--parts")
            .arg(&local.parts)
            .arg("--work-dir")
            .arg(work.path())
            .stdout(Stdio::null());
        family.start(name, machine, &cookie)?;
    }
    family.wait()?;
    match lines.recv_timeout(SETTLE_WITHIN) {
        Ok(Output::Rest(text)) => match local.work {
            Work::Train(_) => Ok(Outcome::Trained(Box::new(RunSummary::from_json(&text)?))),
            Work::Probe(_) => Ok(Outcome::Probed(read(&text)?)),
            Work::Tune(_) => Ok(Outcome::Chosen(read(&text)?)),
        },
        _ => Err(LaunchError::Reported { cause: None }),
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, LaunchError> {
    serde_json::from_str(text).map_err(LaunchError::Output)
}

/// A run that trains.
///
/// # Errors
/// As [`run`], or [`LaunchError::Other`] if the work is not to train.
pub fn train(local: LocalRun) -> Result<RunSummary, LaunchError> {
    Ok(run(&local)?.summary()?)
}

/// What the supervisor writes: the address that it listens on, then the outcome.
enum Output {
    Address(String),
    Rest(String),
}

fn read_output(stdout: Option<ChildStdout>) -> Receiver<Output> {
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

impl Member {
    fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_none()
    }

    /// Tells it to end. A stopped process hears nothing before it continues.
    fn tell_to_end(&mut self) {
        if self.is_running() {
            for signal in [libc::SIGTERM, libc::SIGCONT] {
                // SAFETY: the child has not been waited for, so its process id is still its own.
                unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
            }
        }
    }

    fn failed(&self) -> bool {
        self.status.is_some_and(|status| !status.success())
    }
}

impl Family {
    fn start(&mut self, what: String, mut command: Command, cookie: &str) -> Result<Option<ChildStdout>, LaunchError> {
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

    fn wait_for_address(&mut self, lines: &Receiver<Output>) -> Result<String, LaunchError> {
        let started = Instant::now();
        loop {
            match lines.recv_timeout(POLL) {
                Ok(Output::Address(address)) if !address.is_empty() => return Ok(address),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                    // It has closed its output, so it is about to end.
                    self.settle(1, SETTLE_WITHIN);
                    self.verdict()?;
                    return Err(LaunchError::NotListening);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if lifetime::interrupted() {
                return Err(LaunchError::Interrupted);
            }
            if started.elapsed() > LISTEN_WITHIN {
                return Err(LaunchError::NotListening);
            }
        }
    }

    /// Waits until all have ended. When one ends badly the others get a while to end by themselves, which they do with
    /// better words than this process has.
    fn wait(&mut self) -> Result<(), LaunchError> {
        let mut settle_by: Option<Instant> = None;
        while self.running() > 0 {
            if lifetime::interrupted() {
                return Err(LaunchError::Interrupted);
            }
            let supervisor_ended = self.children.first().is_some_and(|member| member.status.is_some());
            if supervisor_ended || self.children.iter().any(Member::failed) {
                let deadline = *settle_by.get_or_insert_with(|| Instant::now() + SETTLE_WITHIN);
                if Instant::now() > deadline {
                    break;
                }
            }
            std::thread::sleep(POLL);
        }
        let verdict = self.verdict();
        if let (Err(LaunchError::Unresponsive { .. }), Some(supervisor)) = (&verdict, self.children.first_mut()) {
            // If it went on now, it would blame its machines for the time that it has missed.
            let _ = supervisor.child.kill();
        }
        verdict
    }

    fn running(&mut self) -> usize {
        self.children
            .iter_mut()
            .map(|member| usize::from(member.is_running()))
            .sum()
    }

    /// Waits until the first `count` have ended, at most so long.
    fn settle(&mut self, count: usize, within: Duration) {
        let deadline = Instant::now() + within;
        while self.children.iter_mut().take(count).any(Member::is_running) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }

    /// How it went, in the words of who knows best.
    fn verdict(&self) -> Result<(), LaunchError> {
        let Some((supervisor, machines)) = self.children.split_first() else {
            return Ok(());
        };
        match supervisor.status {
            Some(status) if status.success() => Ok(()),
            Some(status) if status.code().is_none() => Err(LaunchError::Ended {
                what: supervisor.what.clone(),
                status,
            }),
            Some(_) => Err(LaunchError::Reported {
                cause: machines.iter().find_map(killed),
            }),
            None => match machines
                .iter()
                .find_map(|member| Some((member, member.status.filter(|_| member.failed())?)))
            {
                // A machine that could not join has said why, and nobody else knows of it.
                Some((_, status)) if status.code().is_some_and(|code| code != ENDED_BY_ANOTHER) => {
                    Err(LaunchError::Reported { cause: None })
                }
                Some((member, status)) => Err(LaunchError::Unresponsive {
                    what: member.what.clone(),
                    status,
                }),
                None => Err(LaunchError::NotListening),
            },
        }
    }
}

fn killed(member: &Member) -> Option<Killed> {
    let status = member.status.filter(|status| status.code().is_none())?;
    Some(Killed {
        what: member.what.clone(),
        status,
    })
}

impl Drop for Family {
    /// Asks the supervisor first, who tells its machines; then all; then nobody is asked any more.
    fn drop(&mut self) {
        if let Some(supervisor) = self.children.first_mut()
            && supervisor.is_running()
        {
            supervisor.tell_to_end();
            self.settle(1, END_WITHIN);
            self.settle(usize::MAX, FOLLOW_WITHIN);
        }
        self.children.iter_mut().for_each(Member::tell_to_end);
        self.settle(usize::MAX, END_WITHIN + FOLLOW_WITHIN);
        for member in &mut self.children {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
