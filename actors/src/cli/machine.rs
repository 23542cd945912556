//! `greengnn machine`: a process that hosts parts and trains their ranks.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use greengnn_energy::meter::{Meter, MeterConfig};

use super::clocks::guard_program;
use super::{CliResult, seconds};
use crate::control::{ControlError, check_address, cookie_from_environment};
use crate::lifetime::{self, Told};
use crate::machine::{self, MachineError, MachineOptions};

/// How long a machine may take to say good-bye once it is told to end.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How often the removal of the work folder is tried.
const REMOVALS: u32 = 100;

#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Address of the supervisor, HOST:PORT; an IPv6 address stands in brackets
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub join: String,
    /// Folder with the manifest.json and the parts that this machine holds
    #[arg(long, value_name = "DIR")]
    pub parts: PathBuf,
    /// Name of this machine, unique in the cluster [default: the host's name and the process id]
    #[arg(long)]
    pub name: Option<String>,
    /// Address that other machines reach this one on [default: the one that reaches the supervisor]
    #[arg(long, value_name = "IP")]
    pub listen: Option<IpAddr>,
    /// Folder in which a temporary one is made for trace files [default: that of the system]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// The longest wait for the supervisor to appear, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub join_within: Duration,
    /// Process id of the launcher, with which this process ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

fn address(text: &str) -> Result<String, ControlError> {
    check_address(text).map(|()| text.to_owned())
}

pub fn run(args: MachineArgs) -> CliResult {
    if let Some(parent) = args.parent {
        lifetime::end_with_parent(parent)?;
    }
    let cookie = cookie_from_environment()?;
    let runtime = super::runtime()?;
    let told = {
        let _inside = runtime.enter();
        lifetime::told_to_end(args.parent)?
    };
    let work = WorkFolder::new(args.work_dir.as_deref(), args.parent.is_some())?;
    let options = MachineOptions {
        name: args.name.unwrap_or_else(default_name),
        join: args.join,
        parts: args.parts,
        listen: args.listen,
        cookie,
        work_folder: work.path.clone(),
        clock_guard: Some(guard_program()?),
        meter: Arc::new(Meter::start(MeterConfig::from_env())),
        join_within: args.join_within,
    };
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = machine::run(options, told.clone().heard()) => outcome,
            // A machine that still waits for the supervisor does not take leave of anybody.
            () = too_late(told) => Err(MachineError::Interrupted),
        }
    });
    drop(work);
    // Threads of a run that failed may still wait for a message. They end with the process and need the runtime until
    // then.
    std::mem::forget(runtime);
    match outcome {
        Err(error) if args.parent.is_some() && is_said_by_another(&error) => {
            std::process::exit(lifetime::ENDED_BY_ANOTHER)
        }
        outcome => Ok(outcome?),
    }
}

/// Resolves some time after the process was told to end.
async fn too_late(told: Told) {
    told.heard().await;
    tokio::time::sleep(LEAVE_WITHIN).await;
}

/// Under a launcher the supervisor's process says why, once for all; it has been told of failures.
fn is_said_by_another(error: &MachineError) -> bool {
    matches!(
        error,
        MachineError::Failed(_)
            | MachineError::Stopped(_)
            | MachineError::SupervisorLost { .. }
            | MachineError::Interrupted
    )
}

fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!(
        "{}-{}",
        if host.is_empty() { "machine" } else { host },
        std::process::id()
    )
}

/// A new folder that is removed when the machine ends.
struct WorkFolder {
    path: PathBuf,
    /// The launcher's folder, which the last machine removes if the launcher could not.
    of_launcher: Option<PathBuf>,
}

impl WorkFolder {
    fn new(parent: Option<&Path>, launched: bool) -> Result<Self, String> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = tempfile::Builder::new().prefix("greengnn-machine-").tempdir_in(&parent);
        let folder = folder.map_err(|error| format!("cannot make a folder in {}: {error}", parent.display()))?;
        Ok(Self {
            path: folder.keep(),
            of_launcher: launched.then_some(parent),
        })
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // A rank that was just stopped may still be making a file.
        for _ in 0..REMOVALS {
            let _ = std::fs::remove_dir_all(&self.path);
            if !self.path.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(parent) = &self.of_launcher {
            // Fails, as it should, while another machine's folder is there.
            let _ = std::fs::remove_dir(parent);
        }
    }
}
