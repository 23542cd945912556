//! `greengnn plan`: what a policy would move, from trace files alone; or what all of them would, side by side. With
//! `--explain`, what a run would cost: see [`explain`].

mod table;
mod traces;

use std::path::PathBuf;
use std::sync::Arc;

use greengnn_model::book::Rank;
use greengnn_model::executor::Tally;
use greengnn_model::plan::Delivery;
use greengnn_model::policy::bound::RunUses;
use greengnn_model::policy::conformance::{Case, RunTally, check_delivered};
use greengnn_model::policy::{Budget, RemoteTrace, ScoreKind, policy_for};
use greengnn_model::row_type::RowType;
use greengnn_model::store::PartsManifest;
use serde::Serialize;

use super::CliResult;
use super::explain::{self, ExplainArgs, NothingToSample, SamplingArgs};
use super::output::print;
use crate::config::{TrainConfig, TrainFlags, Window};
use crate::report::units;

#[derive(Debug, clap::Args)]
pub struct PlanArgs {
    /// Folder with the manifest.json of the parts that the traces are of; the parts themselves are read with --traces and
    /// --explain alone
    pub parts: PathBuf,
    /// Trace file of one rank, as `train --keep-trace` leaves it; several are successive epochs of the rank
    #[arg(
        long = "trace",
        value_name = "FILE",
        required_unless_present_any = ["explain", "trace_folder"],
        conflicts_with = "explain"
    )]
    pub traces: Vec<PathBuf>,
    /// How remote rows are cached
    #[arg(long, default_value = "bulk", conflicts_with = "explain")]
    pub policy: String,
    /// How remote rows are asked for: windowed or stream [default: stream for bulk unless all rows fit, else windowed]
    #[arg(long)]
    pub delivery: Option<Delivery>,
    /// Cache memory: 25% of the remote rows, 64MiB, or 1000rows [default: 25%]
    #[arg(long)]
    pub budget: Option<Budget>,
    /// How remote rows travel and are kept: f32, f16, bf16 or int8 [default: f32]
    #[arg(long, value_name = "TYPE")]
    pub row_type: Option<RowType>,
    /// Steps per window; exact for `window`, a maximum for `bulk` [default: 16]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Policies to compare with --traces or to explain with --explain [default: all]
    #[arg(long, value_delimiter = ',', value_name = "P,P,..", action = clap::ArgAction::Set)]
    pub policies: Option<Vec<String>>,
    /// Print the prices as JSON on standard output
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub explain: ExplainArgs,
    #[command(flatten)]
    pub table: table::TableArgs,
}

/// Several policies, where one is priced.
#[derive(Debug, thiserror::Error)]
#[error(
    "the traces of one rank are priced for one policy: name it with --policy, or compare with --traces or --explain"
)]
pub struct OnePolicy;

/// A window that a run chooses.
#[derive(Debug, thiserror::Error)]
#[error("the file's window is auto, which a run comes to by measuring; name one with --window")]
struct NoWindow;

/// A policy that one rank's trace says too little for.
#[derive(Debug, thiserror::Error)]
#[error(
    "policy {policy} ranks rows by {scores}, which the trace of one rank does not say; price it on the traces of all ranks with \
     --traces, or before a run with --explain"
)]
pub struct NeedsScores {
    policy: &'static str,
    scores: &'static str,
}

/// What a policy ranks rows by, in words.
fn scores_of(kind: ScoreKind) -> &'static str {
    match kind {
        ScoreKind::Degree => "the out-degrees of the whole graph",
        ScoreKind::Presample { .. } => "how often presampled epochs need them",
        ScoreKind::Vip => "the probability that a batch needs them, from the whole graph",
        ScoreKind::CorrectedVip { .. } => {
            "the probability that a batch needs them, from the whole graph and presampled epochs"
        }
    }
}

/// What a plan costs, and what no plan can go below.
#[derive(Debug, Serialize)]
struct Prices {
    policy: &'static str,
    delivery: Delivery,
    rank: Rank,
    window: u32,
    row_type: RowType,
    budget_rows: u32,
    held_rows_peak: u32,
    /// The fill of a static policy.
    setup: Phase,
    epochs: Vec<EpochPrices>,
    feature_requests: u64,
    deliveries: u64,
    feature_rows: u64,
    feature_bytes: u64,
    /// Rows without a cache.
    needed_rows: u64,
    /// Rows that must come at least once, whatever the budget.
    compulsory_rows: u64,
    /// Fewest rows at this budget for any policy that moves rows: Belady's MIN over the whole run.
    fewest_rows: u64,
}

#[derive(Debug, Serialize)]
struct EpochPrices {
    training: Phase,
    evaluation: Phase,
}

#[derive(Debug, Serialize)]
struct Phase {
    feature_requests: u64,
    deliveries: u64,
    feature_rows: u64,
    needed_rows: u64,
}

impl From<Tally> for Phase {
    fn from(tally: Tally) -> Self {
        Self {
            feature_requests: tally.feature_requests,
            deliveries: tally.deliveries,
            feature_rows: tally.feature_rows,
            needed_rows: tally.needed_rows,
        }
    }
}

impl PlanArgs {
    /// The configuration of the run that is planned; where traces have been sampled already, only how their rows are cached
    /// is taken from it.
    fn config(&self) -> Result<TrainConfig, Box<dyn std::error::Error + Send + Sync>> {
        let flags = TrainFlags {
            budget: self.budget.map(|budget| budget.to_string()),
            row_type: self.row_type,
            window: self.window.map(Window::Steps),
            delivery: self.delivery,
            ..self.explain.sampling.flags()
        };
        let config = flags.resolve()?;
        match config.window {
            Window::Auto => Err(NoWindow.into()),
            Window::Steps(_) => Ok(config),
        }
    }
}

pub fn run(args: PlanArgs) -> CliResult {
    let config = args.config()?;
    if let Some(folder) = &args.table.trace_folder {
        let table = table::make(&args, &config, folder)?;
        let text = if args.json {
            serde_json::to_string_pretty(&table)?
        } else {
            table::describe(&table)
        };
        print(text.trim_end())?;
        return Ok(());
    }
    if args.explain.explain {
        return explain::run(&args, &config);
    }
    if args.policies.is_some() {
        return Err(OnePolicy.into());
    }
    if args.explain.sampling != SamplingArgs::default() {
        return Err(NothingToSample.into());
    }
    let prices = price(&args, &config)?;
    let text = if args.json {
        serde_json::to_string_pretty(&prices)?
    } else {
        describe(&prices)
    };
    print(text)?;
    Ok(())
}

fn price(args: &PlanArgs, config: &TrainConfig) -> Result<Prices, Box<dyn std::error::Error + Send + Sync>> {
    let manifest = PartsManifest::open(&args.parts)?;
    // What a run does: one way for all ranks.
    let config = TrainConfig {
        policy: args.policy.clone(),
        ..config.clone()
    };
    let budget: Budget = config.budget.parse()?;
    let delivery = config.delivery(&manifest)?;
    let policy = policy_for(&args.policy, delivery)?;
    if let Some(kind) = policy.score_kind() {
        return Err(NeedsScores {
            policy: policy.name(),
            scores: scores_of(kind),
        }
        .into());
    }
    let (rank, found) = traces::of_one_rank(&args.traces, &args.parts, &manifest)?;
    let epochs = found
        .into_iter()
        .map(|trace| Arc::new(trace.reader) as Arc<dyn RemoteTrace>);
    let epochs: Vec<_> = epochs.collect();
    let book = Arc::new(manifest.row_book().clone());
    let row_bytes = config.row_type.row_bytes(manifest.features);
    let asked_rows = budget.rows(row_bytes, book.remote_nodes(rank));
    let uses = RunUses::new(epochs.iter().map(|epoch| &**epoch), 0, &book, rank)?;
    let case = Case {
        asked_rows,
        book,
        rank,
        epochs,
        window: config.window.steps(),
        from_step: 0,
        with_next: true,
    };
    let tally = check_delivered(&*policy, &case, None, delivery)?;
    Ok(Prices {
        policy: policy.name(),
        delivery,
        rank,
        window: config.window.steps(),
        row_type: config.row_type,
        budget_rows: tally.budget_rows,
        held_rows_peak: held_rows_peak(&tally),
        feature_requests: tally.feature_requests(),
        deliveries: tally.deliveries(),
        feature_rows: tally.feature_rows(),
        feature_bytes: tally.feature_rows() * row_bytes as u64,
        setup: tally.setup.into(),
        epochs: tally
            .epochs
            .iter()
            .map(|epoch| EpochPrices {
                training: epoch.training.into(),
                evaluation: epoch.evaluation.into(),
            })
            .collect(),
        needed_rows: uses.needed_rows(),
        compulsory_rows: uses.compulsory_rows(),
        fewest_rows: uses.fewest_rows(tally.budget_rows),
    })
}

fn held_rows_peak(tally: &RunTally) -> u32 {
    let epochs = tally.epochs.iter().flat_map(|epoch| [epoch.training, epoch.evaluation]);
    epochs
        .chain([tally.setup])
        .map(|tally| tally.held_rows_peak)
        .max()
        .unwrap_or(0)
}

fn describe(prices: &Prices) -> String {
    let count = units::count;
    format!(
        "rank {} under {}, {}, window {}, budget {} rows, {} epochs\n\
         moves      {} rows in {} requests and {} deliveries, {}\n\
         needs      {} rows without a cache, {} distinct\n\
         no policy  that moves rows can move fewer than {} at this budget\n\
         holds      at most {} rows",
        prices.rank,
        prices.policy,
        prices.delivery.name(),
        prices.window,
        count(prices.budget_rows.into()),
        prices.epochs.len(),
        count(prices.feature_rows),
        count(prices.feature_requests),
        count(prices.deliveries),
        units::bytes(prices.feature_bytes),
        count(prices.needed_rows),
        count(prices.compulsory_rows),
        count(prices.fewest_rows),
        count(prices.held_rows_peak.into()),
    )
}
