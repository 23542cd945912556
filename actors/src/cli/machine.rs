//! `greengnn machine`: a process that hosts parts and trains their ranks.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use greengnn_energy::meter::{Meter, MeterConfig};

use super::{AlreadyReported, CliResult};
use crate::control::cookie_from_environment;
use crate::lifetime;
use crate::machine::{self, MachineError, MachineOptions};

#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Address of the supervisor: HOST:PORT, IPv4:PORT or [IPv6]:PORT
    #[arg(long, value_name = "ADDR")]
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
    /// Folder for trace files while they are needed [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// The longest wait for the supervisor to appear, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub join_within: f64,
    /// Process id of the launcher, with which this process ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

pub fn run(args: MachineArgs) -> CliResult {
    if let Some(parent) = args.parent {
        lifetime::end_with_parent(parent)?;
    }
    let work = match &args.work_dir {
        Some(folder) => WorkFolder::at(folder.clone())?,
        None => WorkFolder::at(std::env::temp_dir().join(format!("greengnn-machine-{}", std::process::id())))?,
    };
    let options = MachineOptions {
        name: args.name.unwrap_or_else(default_name),
        join: args.join,
        parts: args.parts,
        listen: args.listen,
        cookie: cookie_from_environment()?,
        work_folder: work.0.clone(),
        meter: Meter::start(MeterConfig::from_env()),
        join_within: Duration::from_secs_f64(args.join_within.clamp(1.0, 1e6)),
    };
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(machine::run(options, lifetime::told_to_end()));
    // Threads of an ended run may still hold trace files; they get a moment, not more.
    runtime.shutdown_timeout(Duration::from_secs(2));
    drop(work);
    match outcome {
        // Under a launcher the supervisor's process says why, once for all.
        Err(MachineError::Stopped(_) | MachineError::SupervisorLost { .. } | MachineError::Interrupted)
            if args.parent.is_some() =>
        {
            Err(Box::new(AlreadyReported))
        }
        other => Ok(other?),
    }
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

/// A folder that is removed, and its parent with it if nothing else is there, when the machine ends.
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn at(path: PathBuf) -> Result<Self, String> {
        std::fs::create_dir_all(&path)
            .map_err(|error| format!("cannot make the folder {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        if let Some(parent) = self.0.parent()
            && parent
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("greengnn-"))
        {
            // Fails, as it should, while another machine's folder is there.
            let _ = std::fs::remove_dir(parent);
        }
    }
}
