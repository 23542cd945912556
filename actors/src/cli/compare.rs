//! `greengnn compare`: the same training under several policies, again and again, and what of it can be told apart.

use std::path::{Path, PathBuf};

use greengnn_model::plan::Delivery;
use greengnn_model::policy::Budget;
use greengnn_model::policy::streamed::policy_for;
use greengnn_model::store::PartsManifest;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::CliResult;
use super::output::{note, print};
use super::train::{check_device, title};
use crate::config::unused::{Setting, takes_budget, unused_flags};
use crate::config::{Communication, TrainConfig, TrainFlags, Window};
use crate::launcher::{self, LaunchError, LocalRun};
use crate::offline::OfflineParts;
use crate::report::comparison::bounds::add_bounds;
use crate::report::comparison::design::Contender;
use crate::report::comparison::standings::MixedQuality;
use crate::report::comparison::{
    CarryOutError, Cell, CellRun, Comparison, ComparisonFolder, Design, carry_out, csv, page, text,
};
use crate::work::Work;

/// What a cell decides, or the arguments beside the configuration do.
const NOT_OF_ALL_CELLS: [&str; 6] = ["policy", "budget", "window", "batch-size", "seed", "machines"];

#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// Folder that `greengnn partition` wrote
    pub parts: PathBuf,
    /// Policies to compare [default: on-demand,window,bulk,full]
    #[arg(long, value_delimiter = ',', value_name = "P,P,..", action = clap::ArgAction::Set, conflicts_with = "policy")]
    pub policies: Option<Vec<String>>,
    /// Budgets of the policies that take one [default: 5%,25%,100%]
    #[arg(long, value_delimiter = ',', value_name = "B,B,..", action = clap::ArgAction::Set, conflicts_with = "budget")]
    pub budgets: Option<Vec<Budget>>,
    /// Seed nodes of a rank per step [default: 500,1000,2000]
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set, conflicts_with = "batch_size")]
    pub batch_sizes: Option<Vec<u32>>,
    /// Steps per window, for the policies that use them [default: that of --window]
    #[arg(long, value_delimiter = ',', value_name = "W,W,..", action = clap::ArgAction::Set, conflicts_with = "window")]
    pub windows: Option<Vec<u32>>,
    /// Runs of every combination; 2 or more have intervals. Repeat r, from 0, trains with seed + r under every policy
    #[arg(long, default_value_t = 5)]
    pub repeats: u32,
    /// Do not sample the traces once more for the fewest rows that could have moved
    #[arg(long)]
    pub no_bounds: bool,
    /// Rows that cost as much energy as the initiation of a request, for the plot of the one against the other; the
    /// GreenGNN paper has measured 965
    #[arg(long, value_name = "ROWS", default_value_t = 965.0, value_parser = positive)]
    pub crossover_rows: f64,
    /// Compare energies of different quality too, such as measured and estimated ones, which is refused otherwise
    #[arg(long)]
    pub allow_mixed: bool,
    /// Folder of the comparison; one that was interrupted goes on in it
    #[arg(long, value_name = "DIR", default_value = "greengnn-comparison")]
    pub out: PathBuf,
    /// Print the comparison as JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// What is the same in all runs, and single values of what is compared.
    #[command(flatten)]
    pub training: TrainFlags,
}

/// A flag of `train` that a comparison cannot take.
#[derive(Debug, thiserror::Error)]
#[error("--keep-trace keeps the traces of one run, and those of several would take its place; keep them with `train`")]
pub struct KeepTraceError;

/// A comparison of what is no policy.
#[derive(Debug, thiserror::Error)]
#[error(
    "push-pull is no policy, it moves no rows that could be cached: compare policies here, and set beside them the summary that \
     `train --communication push-pull` writes with the same flags"
)]
pub struct PushPullError;

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// Everything that the figures of a comparison depend on. A folder holds one comparison.
#[derive(Serialize)]
struct Description<'a> {
    /// The program's version.
    program: &'static str,
    /// SHA-256 of the manifest of the parts, which has the checksums of their files.
    parts_sha256: String,
    machines: u32,
    design: &'a Design,
    /// The configuration, without what a cell decides.
    training: Value,
}

pub fn run(args: CompareArgs) -> CliResult {
    let manifest = PartsManifest::open(&args.parts)?;
    if args.training.keep_trace.is_some() {
        return Err(KeepTraceError.into());
    }
    if is_push_pull(args.training.communication, &args) {
        return Err(PushPullError.into());
    }
    let config = args.training.resolve()?;
    if is_push_pull(Some(config.communication), &args) {
        return Err(PushPullError.into());
    }
    let design = design(&args, &config, &manifest)?;
    let runs: Vec<_> = design.cells().iter().map(|cell| config_of(&config, cell)).collect();
    for run in &runs {
        run.check()?;
        run.check_against(&manifest)?;
    }
    check_device(&config)?;
    for flag in unused_flags(&given(&args), &runs, &manifest)? {
        note(format_args!("warning: {flag}"));
    }
    let machines = config.machines.unwrap_or(u32::from(manifest.book.parts()));
    let folder = ComparisonFolder::open(
        &args.out,
        &Description {
            program: env!("CARGO_PKG_VERSION"),
            parts_sha256: sha256(&serde_json::to_vec(&manifest)?),
            machines,
            design: &design,
            training: of_all_cells(&config)?,
        },
    )?;
    let dataset = title(&args.parts);
    let runs = carry_out(&design, &folder, |turn, out| {
        note(format_args!("[{}/{}] {}", turn.number, turn.of, turn.cell));
        launcher::train(LocalRun {
            work: Work::default(),
            config: config_of(&config, turn.cell),
            parts: args.parts.clone(),
            machines,
            out: Some(out.to_owned()),
            title: format!("{dataset}, {}", turn.cell),
            metrics_addr: None,
        })
    });
    let mut runs = match runs {
        Ok(runs) => runs,
        Err(error) => return Err(interrupted(error, &args.out)),
    };
    if !args.no_bounds {
        bound(&args, &config, &mut runs)?;
    }
    let mixed = match args.allow_mixed {
        true => MixedQuality::Allowed,
        false => MixedQuality::Refused,
    };
    let comparison = Comparison::with(dataset, design, runs, args.crossover_rows, mixed);
    show(&args, &folder, &comparison)
}

/// Whether push-pull is to be one of what is compared: for all runs, or by its name.
fn is_push_pull(communication: Option<Communication>, args: &CompareArgs) -> bool {
    let named = args.policies.iter().flatten().chain(&args.training.policy);
    communication == Some(Communication::PushPull) || named.into_iter().any(|name| name.trim() == "push-pull")
}

/// The flags that some policies have no use for, the lists too.
fn given(args: &CompareArgs) -> Vec<(&'static str, Setting)> {
    let lists = [
        args.budgets.as_ref().map(|_| ("--budgets", Setting::Budget)),
        args.windows.as_ref().map(|_| ("--windows", Setting::Window)),
    ];
    args.training
        .given()
        .into_iter()
        .chain(lists.into_iter().flatten())
        .collect()
}

/// Says of every run what no policy could have beaten.
fn bound(args: &CompareArgs, config: &TrainConfig, runs: &mut [CellRun]) -> CliResult {
    let parts = OfflineParts::open(&args.parts)?;
    add_bounds(
        runs,
        &parts,
        |cell| config_of(config, cell),
        |batch_size, seed| note(format_args!("bounds: sampling batch size {batch_size}, seed {seed}")),
    )?;
    Ok(())
}

/// The run's own error, which says what happened; the rest of the comparison is still there.
fn interrupted(error: CarryOutError<LaunchError>, out: &Path) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        CarryOutError::Run(error) => {
            note(format_args!(
                "the runs that have finished stay in {}; the same command goes on from there",
                out.display()
            ));
            error.into()
        }
        other => other.into(),
    }
}

fn design(
    args: &CompareArgs,
    config: &TrainConfig,
    manifest: &PartsManifest,
) -> Result<Design, Box<dyn std::error::Error + Send + Sync>> {
    let flags = &args.training;
    let policies = values(
        &args.policies,
        &flags.policy,
        &["on-demand", "window", "bulk", "full"].map(str::to_owned),
    );
    let budget: Option<Budget> = flags.budget.as_deref().map(str::parse).transpose()?;
    let percent = |percent: u32| Budget::Share {
        millionths: percent * 10_000,
    };
    let budgets = values(&args.budgets, &budget, &[5, 25, 100].map(percent));
    let contender = |name: &String| {
        let config = TrainConfig {
            policy: name.trim().to_owned(),
            ..config.clone()
        };
        // Windows change something where they do under any of the budgets.
        let windowed = budgets
            .iter()
            .any(|budget| config.delivery_under(*budget, manifest) == Delivery::Windowed);
        let delivery = if windowed { Delivery::Windowed } else { Delivery::Stream };
        policy_for(name.trim(), delivery).map(|policy| Contender {
            policy: policy.name().to_owned(),
            takes_budget: takes_budget(&*policy, manifest.row_book()),
            takes_window: policy.uses_window(),
        })
    };
    let design = Design {
        contenders: policies.iter().map(contender).collect::<Result<_, _>>()?,
        budgets,
        batch_sizes: values(&args.batch_sizes, &flags.batch_size, &[500, 1000, 2000]),
        windows: values(&args.windows, &None, &[config.window.steps()]),
        repeats: args.repeats,
        seed: config.seed,
    };
    design.check()?;
    Ok(design)
}

/// The values that were listed, or the single one that was given, or the default.
fn values<T: Clone>(listed: &Option<Vec<T>>, single: &Option<T>, default: &[T]) -> Vec<T> {
    match (listed, single) {
        (Some(listed), _) => listed.clone(),
        (None, Some(single)) => vec![single.clone()],
        (None, None) => default.to_vec(),
    }
}

fn config_of(config: &TrainConfig, cell: &Cell) -> TrainConfig {
    TrainConfig {
        policy: cell.policy.clone(),
        budget: cell.budget.map_or("0%".to_owned(), |budget| budget.to_string()),
        window: cell.window.map_or(config.window, Window::Steps),
        batch_size: cell.batch_size,
        seed: cell.seed,
        ..config.clone()
    }
}

fn of_all_cells(config: &TrainConfig) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(config)?;
    if let Some(values) = value.as_object_mut() {
        values.retain(|name, _| !NOT_OF_ALL_CELLS.contains(&name.as_str()));
    }
    Ok(value)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show(args: &CompareArgs, folder: &ComparisonFolder, comparison: &Comparison) -> CliResult {
    let json = serde_json::to_string_pretty(comparison)?;
    folder.write("comparison.json", &json)?;
    folder.write("comparison.csv", &csv::table(comparison))?;
    folder.write("report.html", &page::render(comparison)?)?;
    if args.json {
        print(json)?;
    } else {
        print(text::table(comparison))?;
        print(format_args!("report: {}", folder.path().join("report.html").display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_decides_its_part_of_the_configuration_and_nothing_else() {
        let config = TrainConfig {
            hidden: 16,
            ..TrainConfig::default()
        };
        let cell = Cell {
            policy: "window".into(),
            budget: Some("5%".parse().unwrap()),
            window: Some(4),
            batch_size: 7,
            repeat: 2,
            seed: 3,
        };
        let of_cell = config_of(&config, &cell);
        assert_eq!(
            (of_cell.policy.as_str(), of_cell.budget.as_str(), of_cell.window),
            ("window", "5%", Window::Steps(4))
        );
        assert_eq!((of_cell.batch_size, of_cell.seed, of_cell.hidden), (7, 3, 16));
        assert_eq!(of_all_cells(&of_cell).unwrap(), of_all_cells(&config).unwrap());
    }

    #[test]
    fn a_list_a_single_value_and_the_default_are_taken_in_this_order() {
        assert_eq!(values(&Some(vec![1, 2]), &Some(3), &[4]), [1, 2]);
        assert_eq!(values(&None, &Some(3), &[4]), [3]);
        assert_eq!(values(&None, &None, &[4, 5]), [4, 5]);
    }

    #[test]
    fn a_crossover_is_a_positive_number() {
        assert_eq!(positive("965"), Ok(965.0));
        for text in ["0", "-1", "inf", "NaN", "many"] {
            assert!(positive(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_all_cells_share_is_told_apart() {
        let (some, other) = (
            TrainConfig::default(),
            TrainConfig {
                lr: 0.1,
                ..TrainConfig::default()
            },
        );
        assert_ne!(of_all_cells(&some).unwrap(), of_all_cells(&other).unwrap());
        let names = of_all_cells(&some).unwrap();
        assert!(NOT_OF_ALL_CELLS.iter().all(|name| names.get(name).is_none()));
    }
}
