//! `greengnn tune`: chooses policy, budget and window for a run, and says how far the choice is to be trusted.

use std::path::{Path, PathBuf};

use greengnn_energy::choice::{Candidates, Choice, Method, WINDOWS};
use greengnn_energy::files::write_json;
use greengnn_energy::probing::ProbePlan;
use greengnn_energy::simulator::Mode;
use greengnn_model::plan::Delivery;
use greengnn_model::policy::{Budget, PolicyParameters};
use greengnn_model::store::PartsManifest;

use super::CliResult;
use super::compare::KeepTraceError;
use super::output::print;
use super::probe::ProbeFlags;
use super::train::{check_device, title};
use crate::config::{Communication, TrainConfig, TrainFlags};
use crate::launcher::{self, LocalRun};
use crate::tuning::folder::TuningFolder;
use crate::work::{Chosen, TunePlan, Work};

mod calibration;
mod evaluation;
mod runs;

use runs::Runs;

#[derive(Debug, clap::Args)]
pub struct TuneArgs {
    /// Folder that `greengnn partition` wrote
    pub parts: PathBuf,
    /// Policies to choose from [default: that of --policy, or window,bulk]
    #[arg(long, value_delimiter = ',', value_name = "P,P,..", action = clap::ArgAction::Set, conflicts_with = "policy")]
    pub policies: Option<Vec<String>>,
    /// Budgets to choose from [default: that of --budget]
    #[arg(long, value_delimiter = ',', value_name = "B,B,..", action = clap::ArgAction::Set, conflicts_with = "budget")]
    pub budgets: Option<Vec<Budget>>,
    /// Windows to choose from [default: 1,2,4,8,16,32,64]
    #[arg(long, value_delimiter = ',', value_name = "W,W,..", action = clap::ArgAction::Set, conflicts_with = "window")]
    pub windows: Option<Vec<u32>>,
    /// Which waits count: those that training does not hide (plan), or all, as in the GreenGNN paper (paper)
    #[arg(long, value_enum, default_value_t = ModeName::Plan)]
    pub mode: ModeName,
    /// Train with these windows too, and learn from what they cost how to correct the order of the others
    #[arg(long, value_delimiter = ',', value_name = "W,W,..", action = clap::ArgAction::Set)]
    pub calibrate: Option<Vec<u32>>,
    /// Train with every candidate, and hold the choice against what they cost
    #[arg(long, conflicts_with = "calibrate")]
    pub evaluate: bool,
    /// Seed nodes of a rank per step, for --evaluate [default: that of --batch-size]
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set, requires = "evaluate", conflicts_with = "batch_size")]
    pub batch_sizes: Option<Vec<u32>>,
    /// Runs of every candidate, for --calibrate and --evaluate; 2 or more
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub repeats: u32,
    #[command(flatten)]
    pub probe: ProbeFlags,
    #[command(flatten)]
    pub flags: TrainFlags,
    /// Folder for what is measured and chosen [default: tuning, in the folder of the parts]
    #[arg(long, value_name = "DIR")]
    pub tuning: Option<PathBuf>,
    /// Print the choice, or the evaluation, as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Which waits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ModeName {
    Plan,
    Paper,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Plan => Self::Plan,
            ModeName::Paper => Self::Paper,
        }
    }
}

/// What cannot be tuned.
#[derive(Debug, thiserror::Error)]
enum TuneError {
    #[error("push-pull moves no rows, so that there is nothing to choose; leave --communication out")]
    NoRows,
    #[error("--window auto is what this command works for; name windows with --windows, or leave it out")]
    Auto,
    #[error(
        "--calibrate needs at least three windows, found {0}: each is predicted once from the others; name three of the \
         candidates or more"
    )]
    TooFewToCalibrate(usize),
    #[error("the graph is in one part, which owns every row; there is nothing to choose")]
    OnePart,
    #[error("--calibrate names window {0}, which is not one of the candidates; add it to --windows")]
    NoCandidate(u32),
}

pub fn run(args: TuneArgs) -> CliResult {
    let tune = Tune::new(args)?;
    tune.folder.make()?;
    if tune.args.evaluate {
        return evaluation::run(&tune);
    }
    let chosen = tune.choose(&tune.config)?;
    let choice = match &tune.args.calibrate {
        None => chosen.choice,
        Some(windows) => calibration::run(&tune, chosen, windows)?,
    };
    choice.save(&tune.folder.choice_path())?;
    if tune.args.json {
        print(serde_json::to_string_pretty(&choice)?)?;
        return Ok(());
    }
    print(choice.to_string().trim_end())?;
    print(format_args!("choice: {}", tune.folder.choice_path().display()))?;
    print(format_args!(
        "to train so: greengnn train {} {}",
        tune.args.parts.display(),
        flags_of(&choice, &tune.config, tune.args.tuning.as_deref())
    ))?;
    Ok(())
}

/// The flags of a run with the policy and the budget of a choice, whose ranks come to the same window, and otherwise of this
/// configuration.
fn flags_of(choice: &Choice, config: &TrainConfig, tuning: Option<&Path>) -> String {
    let pick = &choice.pick;
    let mut flags = format!("--policy {} --budget {}", pick.method.policy, pick.budget);
    let windows = PolicyParameters::default().policy(&pick.method.policy);
    if windows.is_ok_and(|policy| policy.uses_window()) {
        flags += " --window auto";
    }
    if let Some(tuning) = tuning {
        flags += &format!(" --tuning {}", tuning.display());
    }
    for (name, value) in config.other_than_default() {
        if !["policy", "budget", "window"].contains(&name.as_str()) {
            flags += &format!(" --{name}{value}");
        }
    }
    flags
}

/// The command with everything that its parts need.
pub(super) struct Tune {
    args: TuneArgs,
    config: TrainConfig,
    machines: u32,
    folder: TuningFolder,
    probe: ProbePlan,
    candidates: Candidates,
}

impl Tune {
    fn new(args: TuneArgs) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        if args.flags.keep_trace.is_some() {
            return Err(KeepTraceError.into());
        }
        let config = args.flags.resolve()?;
        if config.communication == Communication::PushPull {
            return Err(TuneError::NoRows.into());
        }
        if config.window.is_auto() {
            return Err(TuneError::Auto.into());
        }
        let manifest = PartsManifest::open(&args.parts)?;
        config.check_against(&manifest)?;
        if manifest.book.parts() == 1 {
            return Err(TuneError::OnePart.into());
        }
        check_device(&config)?;
        let candidates = candidates(&args, &config)?;
        candidates.check()?;
        if let Some(windows) = &args.calibrate {
            if windows.len() < 3 {
                return Err(TuneError::TooFewToCalibrate(windows.len()).into());
            }
            if let Some(other) = windows.iter().find(|window| !candidates.windows.contains(window)) {
                return Err(TuneError::NoCandidate(*other).into());
            }
        }
        let folder = TuningFolder::new(args.tuning.as_deref(), &args.parts);
        Ok(Self {
            machines: config.machines.unwrap_or(u32::from(manifest.book.parts())),
            probe: args.probe.plan()?,
            folder,
            candidates,
            config,
            args,
        })
    }

    /// Has the ranks choose for a run of this configuration, and keeps the profile that they used.
    fn choose(&self, config: &TrainConfig) -> Result<Chosen, Box<dyn std::error::Error + Send + Sync>> {
        // A choice before this one may have probed.
        let mut known = self.folder.known(self.probe.clone())?;
        if self.args.calibrate.is_some() {
            known.calibration = None;
        }
        let chosen = launcher::run(&LocalRun {
            config: config.clone(),
            work: Work::Tune(Box::new(TunePlan {
                candidates: self.candidates.clone(),
                mode: self.args.mode.into(),
                known,
            })),
            parts: self.args.parts.clone(),
            machines: self.machines,
            out: None,
            title: title(&self.args.parts),
            metrics_addr: None,
        })?
        .chosen()?;
        chosen.profile.save(&self.folder.profile_path())?;
        Ok(chosen)
    }

    fn runs(&self) -> Runs<'_> {
        Runs {
            parts: &self.args.parts,
            machines: self.machines,
            repeats: self.args.repeats,
        }
    }

    fn write_evaluation(&self, evaluation: &impl serde::Serialize) -> CliResult {
        Ok(write_json(&self.folder.evaluation_path(), evaluation)?)
    }
}

/// What there is to choose from. `bulk` is planned in both ways of delivery, unless one is named or windows are to be run.
fn candidates(args: &TuneArgs, config: &TrainConfig) -> Result<Candidates, Box<dyn std::error::Error + Send + Sync>> {
    let policies = match (&args.policies, &args.flags.policy) {
        (Some(policies), _) => policies.clone(),
        (None, Some(policy)) => vec![policy.clone()],
        (None, None) => vec!["window".to_owned(), "bulk".to_owned()],
    };
    let mut methods = Vec::new();
    for policy in &policies {
        // Refuses an unknown name before anything has started.
        let policy = config.policy_parameters().policy(policy.trim())?;
        let both = policy.name() == "bulk" && config.delivery.is_none() && !args.evaluate;
        let usual = config.delivery.unwrap_or(Delivery::Windowed);
        methods.push(Method::new(policy.name(), usual));
        if both {
            methods.push(Method::new(policy.name(), Delivery::Stream));
        }
    }
    Ok(Candidates {
        methods,
        budgets: match &args.budgets {
            Some(budgets) => budgets.clone(),
            None => vec![config.budget.parse()?],
        },
        windows: match (&args.windows, args.flags.window) {
            (Some(windows), _) => windows.clone(),
            (None, Some(window)) => vec![window.steps()],
            (None, None) => WINDOWS.to_vec(),
        },
    })
}
