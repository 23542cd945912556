//! `greengnn supervisor`: the process that machines join.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greengnn_model::store::PartsManifest;

use super::output::{note, print};
use super::probe::ProbeFlags;
use super::train::{OutputFlags, known, show};
use super::{AlreadyReported, CliResult, seconds};
use crate::config::{TrainConfig, TrainFlags};
use crate::control::cookie_from_environment;
use crate::lifetime;
use crate::supervisor::{self, RunError, SupervisorOptions};
use crate::telemetry;
use crate::work::{Outcome, Work};

#[derive(Debug, clap::Args)]
pub struct SupervisorArgs {
    /// Folder with the manifest.json that `greengnn partition` wrote; the parts may be elsewhere
    pub dir: PathBuf,
    /// Address to listen on; machines join it with `greengnn machine --join`
    #[arg(long, value_name = "ADDR")]
    pub listen: String,
    /// The longest wait until all machines have joined, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub join_within: Duration,
    #[command(flatten)]
    pub flags: TrainFlags,
    #[command(flatten)]
    pub output: OutputFlags,
    /// Print the address that is listened on as the first line of standard output
    #[arg(long, hide = true)]
    pub announce: bool,
    /// What the run is called in its report
    #[arg(long, hide = true)]
    pub title: Option<String>,
    /// The whole configuration as JSON, from a launcher that has resolved it
    #[arg(long, hide = true)]
    pub resolved: Option<String>,
    /// Measure what requests and rows cost between the machines that join, instead of training; the run folder is then a
    /// profile.json
    #[arg(long)]
    pub probe: bool,
    #[command(flatten)]
    pub probe_flags: ProbeFlags,
    /// With --window auto, the folder in which `probe` and `tune` left what they measured [default: tuning, in DIR]
    #[arg(long, value_name = "DIR")]
    pub tuning: Option<PathBuf>,
    /// A file with what to do, as JSON, from a launcher; it is removed
    #[arg(long, hide = true)]
    pub work: Option<PathBuf>,
    /// Process id of the launcher, with which this process ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

/// Reads what a launcher wants done, and removes the file: the launcher's folder goes with its last machine, which removes
/// it only if it is empty.
fn take_work(path: &Path) -> Result<Work, Box<dyn std::error::Error + Send + Sync>> {
    let work = serde_json::from_slice(&std::fs::read(path)?)?;
    std::fs::remove_file(path)?;
    Ok(work)
}

pub fn run(args: SupervisorArgs) -> CliResult {
    if let Some(parent) = args.parent {
        lifetime::end_with_parent(parent)?;
    }
    let config = match &args.resolved {
        Some(text) => {
            let mut config: TrainConfig = serde_json::from_str(text)?;
            config.machines = args.flags.machines.or(config.machines);
            config.check()?;
            config
        }
        None => args.flags.resolve()?,
    };
    let manifest = PartsManifest::open(&args.dir)?;
    config.check_against(&manifest)?;
    for flag in args.flags.unused(std::slice::from_ref(&config), &manifest)? {
        note(format_args!("warning: {flag}"));
    }
    let work = match &args.work {
        Some(path) => take_work(path)?,
        None if args.probe => Work::Probe(args.probe_flags.plan()?),
        None => Work::Train(known(&config, args.tuning.as_deref(), &args.dir, &args.probe_flags)?),
    };
    // A launcher that wants no folder has said so by naming none.
    let out = match (&work, &args.work) {
        (Work::Probe(_) | Work::Tune(_), Some(_)) => args.output.out.clone(),
        _ => Some(args.output.folder()),
    };
    let options = SupervisorOptions {
        config,
        work,
        parts: args.dir.clone(),
        listen: args.listen,
        cookie: cookie_from_environment()?,
        join_within: args.join_within,
        run_folder: out.clone(),
        title: args.title.unwrap_or_else(|| super::train::title(&args.dir)),
        quiet: false,
    };
    let (announce, launched) = (args.announce, args.parent.is_some());
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(async {
        let told = lifetime::told_to_end(args.parent)?;
        if let Some(address) = &args.output.metrics_addr {
            let address = crate::control::resolve(address).await?;
            let serving = telemetry::serve(address)?;
            note(format_args!("metrics: http://{serving}/metrics"));
        }
        let listening = move |address: std::net::SocketAddr| {
            if announce {
                // Whoever does not read this any more has ended, and this process with it.
                let _ = writeln!(std::io::stdout(), "{address}");
            }
            if !launched {
                note(format_args!("listening on {address}; waiting for machines to join"));
            }
        };
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(supervisor::run(options, listening, told.heard()).await)
    })?;
    match outcome {
        // The launcher, who told this process to end, says so.
        Err(RunError::Interrupted) if launched => Err(Box::new(AlreadyReported)),
        outcome => match outcome? {
            Outcome::Trained(summary) => show(&summary, args.output.json, &out.unwrap_or_default()),
            Outcome::Chosen(chosen) => Ok(print(serde_json::to_string(&chosen)?)?),
            Outcome::Probed(profile) => super::probe::show(&profile, args.output.json, out.as_deref()),
        },
    }
}
