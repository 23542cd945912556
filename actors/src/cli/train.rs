//! `greengnn train`: a run on this computer.

use std::path::{Path, PathBuf};

use greengnn_model::layers::{Device, DeviceChoice, LayerError};
use greengnn_model::policy::policy_by_name;
use greengnn_model::store::PartsManifest;

use super::CliResult;
use super::output::{note, print};
use super::probe::ProbeFlags;
use crate::config::{Communication, TrainConfig, TrainFlags};
use crate::kept_traces;
use crate::launcher::{self, LocalRun};
use crate::offline::OfflineParts;
use crate::report::run_folder;
use crate::report::summary::RunSummary;
use crate::report::table;
use crate::tuning::folder::TuningFolder;
use crate::work::{Known, Work};

#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// Folder that `greengnn partition` wrote
    pub parts: PathBuf,
    #[command(flatten)]
    pub flags: TrainFlags,
    #[command(flatten)]
    pub output: OutputFlags,
    #[command(flatten)]
    pub probe: ProbeFlags,
    /// With --window auto, the folder in which `probe` and `tune` left what they measured [default: tuning, in the folder of the
    /// parts]
    #[arg(long, value_name = "DIR")]
    pub tuning: Option<PathBuf>,
    /// Sample the traces once more after the run, and say what the fewest rows are that could have moved
    #[arg(long)]
    pub bound: bool,
}

/// Where a run's results go.
#[derive(Clone, Debug, clap::Args)]
pub struct OutputFlags {
    /// Folder for the run's configuration, metrics, model and report [default: runs/N, the first that is free]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,
    /// Print the summary as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Serve metrics for Prometheus on this address
    #[arg(long, value_name = "ADDR")]
    pub metrics_addr: Option<String>,
}

impl OutputFlags {
    /// The run folder: what was asked for, or the first free `runs/N`.
    pub fn folder(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let runs = PathBuf::from("runs");
            let free = (1u32..)
                .map(|number| runs.join(number.to_string()))
                .find(|folder| !folder.exists());
            free.unwrap_or_else(|| runs.join("0"))
        })
    }
}

/// The fewest rows of a run that moves none.
#[derive(Debug, thiserror::Error)]
#[error("--bound is of runs that move rows, and push-pull moves none; leave it out")]
struct NoBound;

pub fn run(args: TrainArgs) -> CliResult {
    let config = args.flags.resolve()?;
    let manifest = PartsManifest::open(&args.parts)?;
    config.check_against(&manifest)?;
    for flag in args.flags.unused(std::slice::from_ref(&config), &manifest)? {
        note(format_args!("warning: {flag}"));
    }
    check_device(&config)?;
    if let Some(folder) = &config.keep_trace {
        kept_traces::check_free(folder)?;
    }
    if args.bound && config.communication == Communication::PushPull {
        return Err(NoBound.into());
    }
    let machines = config.machines.unwrap_or(u32::from(manifest.book.parts()));
    let out = args.output.folder();
    let mut summary = launcher::train(LocalRun {
        work: Work::Train(known(&config, args.tuning.as_deref(), &args.parts, &args.probe)?),
        config: config.clone(),
        machines,
        out: Some(out.clone()),
        title: title(&args.parts),
        parts: args.parts.clone(),
        metrics_addr: args.output.metrics_addr,
    })?;
    if args.bound {
        let cache = (policy_by_name(&config.policy)?, config.budget.parse()?);
        summary.row_bound = OfflineParts::open(&args.parts)?.bounds(&config, &[cache])?.pop();
        run_folder::replace_summary(&out, &summary)?;
    }
    show(&summary, args.output.json, &out)
}

/// What was measured before, for a run that chooses its windows.
///
/// # Errors
/// A probe that cannot be made, or a file in the folder that cannot be read.
pub(super) fn known(
    config: &TrainConfig,
    tuning: Option<&Path>,
    parts: &Path,
    probe: &ProbeFlags,
) -> Result<Known, Box<dyn std::error::Error + Send + Sync>> {
    let plan = probe.plan()?;
    if !config.window.is_auto() {
        return Ok(Known::default());
    }
    Ok(TuningFolder::new(tuning, parts).known(plan)?)
}

/// Refuses a GPU that this computer, which all machines of the run are on, does not have.
pub(super) fn check_device(config: &TrainConfig) -> Result<(), LayerError> {
    let choice: DeviceChoice = config.device.parse()?;
    if let DeviceChoice::Cuda(_) = choice {
        Device::probe(choice, 0)?;
    }
    Ok(())
}

/// Prints what a run of `supervisor` or `train` came to.
pub fn show(summary: &RunSummary, json: bool, out: &Path) -> CliResult {
    if json {
        print(summary.to_json()?)?;
    } else {
        print(table::run(summary))?;
        print(format_args!("report: {}", out.join("report.html").display()))?;
    }
    Ok(())
}

/// What a run on this folder is called.
pub fn title(parts: &Path) -> String {
    let name = parts
        .canonicalize()
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| "a graph".to_owned())
}
