//! `greengnn probe`: what requests and rows cost on this hardware.

use std::path::{Path, PathBuf};

use greengnn_energy::probing::{ProbePlan, ProbePlanError};
use greengnn_energy::profile::Profile;
use greengnn_model::store::PartsManifest;

use super::CliResult;
use super::output::print;
use super::train::title;
use crate::config::TrainFlags;
use crate::launcher::{self, LocalRun};
use crate::tuning::folder::TuningFolder;
use crate::work::Work;

#[derive(Debug, clap::Args)]
pub struct ProbeArgs {
    /// Folder that `greengnn partition` wrote
    pub parts: PathBuf,
    #[command(flatten)]
    pub probe: ProbeFlags,
    #[command(flatten)]
    pub flags: TrainFlags,
    /// File for the profile [default: tuning/profile.json in the folder of the parts, where `train` and `tune` look for it]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the profile as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// What is probed.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ProbeFlags {
    /// Rows per request, each size in turn [default: 1,64,256,1024,4096]
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set)]
    pub probe_sizes: Option<Vec<u32>>,
    /// How often every owner is asked in every size, 5 or more [default: 6]
    #[arg(long, value_name = "N")]
    pub probe_repeats: Option<u32>,
    /// Seconds for every size, owner and repeat [default: 1 where energy is measured, 0.2 where it is computed from CPU time]
    #[arg(long, value_name = "SECONDS")]
    pub probe_seconds: Option<f64>,
}

impl ProbeFlags {
    /// The plan that the flags say, checked.
    ///
    /// # Errors
    /// A value that no probe can have.
    pub fn plan(&self) -> Result<ProbePlan, ProbePlanError> {
        let default = ProbePlan::default();
        let plan = ProbePlan {
            sizes: self.probe_sizes.clone().unwrap_or(default.sizes),
            repeats: self.probe_repeats.unwrap_or(default.repeats),
            slot_s: self.probe_seconds,
        };
        plan.check()?;
        Ok(plan)
    }
}

pub fn run(args: ProbeArgs) -> CliResult {
    let config = args.flags.resolve()?;
    let plan = args.probe.plan()?;
    let manifest = PartsManifest::open(&args.parts)?;
    config.check_against(&manifest)?;
    let folder = TuningFolder::new(None, &args.parts);
    let profile = launcher::run(&LocalRun {
        machines: config.machines.unwrap_or(u32::from(manifest.book.parts())),
        config,
        work: Work::Probe(plan),
        out: None,
        title: title(&args.parts),
        parts: args.parts,
        metrics_addr: None,
    })?
    .profile()?;
    let out = match args.out {
        Some(out) => out,
        None => {
            folder.make()?;
            folder.profile_path()
        }
    };
    profile.save(&out)?;
    if args.json {
        print(serde_json::to_string_pretty(&profile)?)?;
    } else {
        print(format_args!("{profile}profile: {}", out.display()))?;
    }
    Ok(())
}

/// Prints what a probe led by `supervisor` came to.
pub(super) fn show(profile: &Profile, json: bool, folder: Option<&Path>) -> CliResult {
    if json {
        print(serde_json::to_string_pretty(profile)?)?;
        return Ok(());
    }
    print(profile.to_string().trim_end())?;
    if let Some(folder) = folder {
        print(format_args!("profile: {}", folder.join("profile.json").display()))?;
    }
    Ok(())
}
