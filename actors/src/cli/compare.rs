//! `greengnn compare`: the same training under several policies, again and again, and what of it can be told apart.

use std::io::Write;
use std::path::{Path, PathBuf};

use greengnn_model::policy::{Budget, policy_by_name};
use greengnn_model::store::PartsManifest;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::CliResult;
use super::train::{check_device, title};
use crate::config::{Resample, TrainConfig, TrainFlags};
use crate::launcher::{self, LaunchError, LocalRun};
use crate::report::comparison::design::{Contender, takes_budget};
use crate::report::comparison::{
    CarryOutError, Cell, Comparison, ComparisonFolder, Design, carry_out, csv, page, text,
};

/// What a cell decides, or the arguments beside the configuration do.
const NOT_OF_ALL_CELLS: [&str; 5] = ["policy", "budget", "batch-size", "seed", "machines"];

#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// Folder that `greengnn partition` wrote
    pub parts: PathBuf,
    /// Policies to compare
    #[arg(long, value_delimiter = ',', value_name = "P,P,..", action = clap::ArgAction::Set, default_value = "on-demand,window,bulk,full")]
    pub policies: Vec<String>,
    /// Cache memory per rank of the policies that take a budget: 25% of the remote rows, 64MiB, or 1000rows
    #[arg(long, value_delimiter = ',', value_name = "B,B,..", action = clap::ArgAction::Set, default_value = "5%,25%,100%")]
    pub budgets: Vec<Budget>,
    /// Seed nodes of a rank per step
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set, default_value = "500,1000,2000")]
    pub batch_sizes: Vec<u32>,
    /// Epochs of every run
    #[arg(long, default_value_t = 3)]
    pub epochs: u32,
    /// Runs of every combination; 2 or more have intervals
    #[arg(long, default_value_t = 5)]
    pub repeats: u32,
    /// Seed of the first repeat and of the order of the runs; repeat r trains with seed + r under every policy
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder of the comparison; one that was interrupted goes on in it
    #[arg(long, value_name = "DIR", default_value = "greengnn-comparison")]
    pub out: PathBuf,
    /// Print the comparison as JSON on standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub training: TrainingArgs,
}

/// What is the same in all runs.
#[derive(Debug, clap::Args)]
pub struct TrainingArgs {
    /// A TOML file as `train --config` reads it; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Steps per window; exact for `window`, a maximum for `bulk` [default: 16]
    #[arg(long, value_name = "W")]
    pub window: Option<u32>,
    /// Neighbours per hop from the seeds outwards; one layer per hop [default: 25,10]
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set)]
    pub fanouts: Option<Vec<u32>>,
    /// Width of the layers between [default: 128]
    #[arg(long)]
    pub hidden: Option<usize>,
    /// Learning rate of Adam [default: 0.003]
    #[arg(long)]
    pub lr: Option<f64>,
    /// [default: 0.5]
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Machine processes [default: one per part]
    #[arg(long)]
    pub machines: Option<u32>,
    /// Compute threads per machine process [default: cores / machines on the host]
    #[arg(long)]
    pub threads: Option<u32>,
    /// auto, cpu, cuda or cuda:N [default: auto]
    #[arg(long)]
    pub device: Option<String>,
    /// Sample each epoch afresh, or replay the first epoch's trace [default: epoch]
    #[arg(long, value_enum)]
    pub resample: Option<Resample>,
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
    let design = design(&args, &manifest)?;
    let config = base_config(&args)?;
    for cell in design.cells() {
        config_of(&config, &cell).check()?;
    }
    config.check_against(&manifest)?;
    check_device(&config)?;
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
        eprintln!("[{}/{}] {}", turn.number, turn.of, turn.cell);
        launcher::run(&LocalRun {
            config: config_of(&config, turn.cell),
            parts: args.parts.clone(),
            machines,
            out: Some(out.to_owned()),
            title: format!("{dataset}, {}", turn.cell),
            metrics_addr: None,
        })
    });
    let comparison = match runs {
        Ok(runs) => Comparison::new(dataset, design, runs),
        Err(error) => return Err(interrupted(error, &args.out)),
    };
    show(&args, &folder, &comparison)
}

/// The run's own error, which says what happened; the rest of the comparison is still there.
fn interrupted(error: CarryOutError<LaunchError>, out: &Path) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        CarryOutError::Run(error) => {
            eprintln!(
                "the runs that have finished stay in {}; the same command goes on from there",
                out.display()
            );
            error.into()
        }
        other => other.into(),
    }
}

fn design(args: &CompareArgs, manifest: &PartsManifest) -> Result<Design, Box<dyn std::error::Error + Send + Sync>> {
    let contender = |name: &String| {
        policy_by_name(name.trim()).map(|policy| Contender {
            policy: policy.name().to_owned(),
            takes_budget: takes_budget(&*policy, manifest.row_book()),
        })
    };
    let design = Design {
        contenders: args.policies.iter().map(contender).collect::<Result<_, _>>()?,
        budgets: args.budgets.clone(),
        batch_sizes: args.batch_sizes.clone(),
        repeats: args.repeats,
        seed: args.seed,
    };
    design.check()?;
    Ok(design)
}

fn base_config(args: &CompareArgs) -> Result<TrainConfig, crate::config::ConfigError> {
    let training = &args.training;
    let flags = TrainFlags {
        config: training.config.clone(),
        window: training.window,
        epochs: Some(args.epochs),
        fanouts: training.fanouts.clone(),
        hidden: training.hidden,
        lr: training.lr,
        dropout: training.dropout,
        machines: training.machines,
        threads: training.threads,
        device: training.device.clone(),
        resample: training.resample,
        ..TrainFlags::default()
    };
    flags.resolve()
}

fn config_of(config: &TrainConfig, cell: &Cell) -> TrainConfig {
    TrainConfig {
        policy: cell.policy.clone(),
        budget: cell.budget.map_or("0%".to_owned(), |budget| budget.to_string()),
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
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{json}")?;
    } else {
        writeln!(stdout, "{}", text::table(comparison))?;
        writeln!(stdout, "report: {}", folder.path().join("report.html").display())?;
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
            batch_size: 7,
            repeat: 2,
            seed: 3,
        };
        let of_cell = config_of(&config, &cell);
        assert_eq!((of_cell.policy.as_str(), of_cell.budget.as_str()), ("window", "5%"));
        assert_eq!((of_cell.batch_size, of_cell.seed, of_cell.hidden), (7, 3, 16));
        assert_eq!(of_all_cells(&of_cell).unwrap(), of_all_cells(&config).unwrap());
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
