//! `greengnn plan --traces`: what every policy would move on the same traces of all ranks, side by side, with what none can
//! go below.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::plan::Delivery;
use greengnn_model::policy::bound::RunUses;
use greengnn_model::policy::bulk::Bulk;
use greengnn_model::policy::conformance::Case;
use greengnn_model::policy::delivery::Search;
use greengnn_model::policy::moves::{EpochMoves, Moves, RunMoves, moves};
use greengnn_model::policy::scored::StaticByScore;
use greengnn_model::policy::scores::presample_counts;
use greengnn_model::policy::window::Window;
use greengnn_model::policy::{Budget, POLICY_NAMES, Policy, RemoteTrace, ScoreKind, policy_by_name, policy_for};
use greengnn_model::row_type::RowType;
use greengnn_model::sampling::EpochSpec;
use greengnn_model::store::PartsManifest;
use serde::Serialize;

use super::{PlanArgs, traces};
use crate::config::TrainConfig;
use crate::offline::OfflineParts;
use crate::presampler::thread_cpu_s;
use crate::report::units::count as digits;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Steps per window of which the best is shown.
const WINDOWS: [u32; 5] = [2, 4, 8, 16, 32];

#[derive(Debug, clap::Args)]
pub struct TableArgs {
    /// Compare policies on all traces of all ranks: the folder that `train --keep-trace` left
    #[arg(long = "traces", value_name = "DIR", conflicts_with_all = ["traces", "policy", "budget", "delivery", "explain"])]
    pub trace_folder: Option<PathBuf>,
    /// Cache memory per rank, with --traces
    #[arg(long, value_delimiter = ',', value_name = "B,B,..", action = clap::ArgAction::Set, default_value = "5%,25%,50%,100%", requires = "trace_folder", conflicts_with = "explain")]
    pub budgets: Vec<Budget>,
}

/// All budgets.
#[derive(Debug, Serialize)]
pub struct Table {
    ranks: usize,
    epochs: usize,
    row_type: RowType,
    /// Rows without a cache.
    needed_rows: u64,
    /// Rows that must come at least once, whatever the budget.
    compulsory_rows: u64,
    budgets: Vec<BudgetTable>,
}

#[derive(Debug, Serialize)]
struct BudgetTable {
    budget: Budget,
    /// Rows of all ranks.
    budget_rows: u64,
    /// Fewest rows for any policy that moves rows: Belady's MIN over the whole run.
    fewest_rows: u64,
    policies: Vec<Line>,
}

/// What one policy moves, the sum over ranks. The run includes initial fills.
#[derive(Debug, Serialize)]
struct Line {
    policy: String,
    window: Option<u32>,
    requests: u64,
    deliveries: u64,
    rows: u64,
    /// Per epoch after the first, or of the only one.
    requests_per_epoch: f64,
    rows_per_epoch: f64,
    /// Share of what batches need that is in the cache.
    hit_rate: f64,
    /// CPU time of planning, per rank and epoch.
    plan_ms: f64,
}

/// The traces of a rank, epoch by epoch.
struct RankRun {
    rank: Rank,
    spec: EpochSpec,
    epochs: Vec<Arc<dyn RemoteTrace>>,
}

/// One line of the table.
struct Contender {
    name: String,
    policy: Arc<dyn Policy>,
    /// Windows of which the best is taken.
    windows: Vec<u32>,
    /// Shows how many steps the windows have.
    shows_window: bool,
    /// Ranks rows by how often the traces themselves need them.
    oracle: bool,
    delivery: Delivery,
}

/// The table of the traces in `folder`, as `args` want it.
pub fn make(args: &PlanArgs, config: &TrainConfig, folder: &Path) -> Result<Table, Failure> {
    let manifest = PartsManifest::open(&args.parts)?;
    let book = Arc::new(manifest.row_book().clone());
    let runs = read_runs(&args.parts, folder, &manifest)?;
    let contenders = contenders(args.policies.as_deref(), config.window.steps())?;
    let graph = OfflineParts::open(&args.parts)?;
    let mut scores = Vec::new();
    for contender in &contenders {
        scores.push(score(contender, &graph, &runs, &book)?);
    }
    let uses = runs
        .iter()
        .map(|run| RunUses::new(run.epochs.iter().map(|epoch| &**epoch), 0, &book, run.rank));
    let uses = uses.collect::<Result<Vec<_>, _>>()?;
    let needed = uses.iter().map(RunUses::needed_rows).sum();
    let row_bytes = config.row_type.row_bytes(manifest.features);
    let mut budgets = Vec::new();
    for budget in &args.table.budgets {
        let asked: Vec<u32> = runs
            .iter()
            .map(|run| budget.rows(row_bytes, book.remote_nodes(run.rank)))
            .collect();
        let mut policies = Vec::new();
        for (contender, scores) in contenders.iter().zip(&scores) {
            policies.push(best_line(contender, scores, &runs, &book, &asked, needed)?);
        }
        budgets.push(BudgetTable {
            budget: *budget,
            budget_rows: asked.iter().map(|rows| u64::from(*rows)).sum(),
            fewest_rows: uses
                .iter()
                .zip(&asked)
                .map(|(uses, rows)| uses.fewest_rows(*rows))
                .sum(),
            policies,
        });
    }
    Ok(Table {
        ranks: runs.len(),
        epochs: runs.first().map_or(0, |run| run.epochs.len()),
        row_type: config.row_type,
        needed_rows: needed,
        compulsory_rows: uses.iter().map(RunUses::compulsory_rows).sum(),
        budgets,
    })
}

/// The traces `epoch-E/rank-R.trace` of all ranks.
fn read_runs(parts: &Path, folder: &Path, manifest: &PartsManifest) -> Result<Vec<RankRun>, Failure> {
    let of_rank = |found: Vec<traces::Found>| {
        let spec = found.first()?.header().spec.clone();
        let epochs = found
            .into_iter()
            .map(|trace| Arc::new(trace.reader) as Arc<dyn RemoteTrace>);
        Some(RankRun {
            rank: spec.rank,
            spec,
            epochs: epochs.collect(),
        })
    };
    let ranks = traces::of_all_ranks(folder, parts, manifest)?;
    Ok(ranks.into_iter().filter_map(of_rank).collect())
}

/// The policies of these names; without names all, and variants of `window` and `bulk` beside.
fn contenders(names: Option<&[String]>, window: u32) -> Result<Vec<Contender>, Failure> {
    let plain = |name: &str, policy: Arc<dyn Policy>| Contender {
        name: name.to_owned(),
        policy,
        windows: vec![window],
        shows_window: false,
        oracle: false,
        delivery: Delivery::Windowed,
    };
    if let Some(names) = names {
        let named = names.iter().map(|name| Ok(plain(name, policy_by_name(name)?)));
        return named.collect();
    }
    let mut contenders: Vec<Contender> = Vec::new();
    let vip: Arc<dyn Policy> = Arc::new(StaticByScore { kind: ScoreKind::Vip });
    let known = POLICY_NAMES.iter().filter(|name| **name != vip.name());
    for name in known {
        let mut contender = plain(name, policy_by_name(name)?);
        contender.shows_window = *name == Window.name();
        contenders.push(contender);
        match *name {
            "presample" => {
                contenders.push(plain(vip.name(), Arc::clone(&vip)));
                contenders.push(Contender {
                    oracle: true,
                    ..plain("best static rows", Arc::clone(&vip))
                });
            }
            "window" => contenders.push(Contender {
                windows: WINDOWS.to_vec(),
                shows_window: true,
                ..plain("window, best", Arc::new(Window))
            }),
            "bulk" => {
                contenders.push(Contender {
                    delivery: Delivery::Stream,
                    ..plain("bulk, streamed", policy_for(name, Delivery::Stream)?)
                });
                contenders.push(plain(
                    "bulk, same windows for all owners",
                    Arc::new(Bulk::windows_only()),
                ));
                contenders.push(plain("bulk, fewest rows", Arc::new(Bulk::fewest_rows())));
            }
            _ => {}
        }
    }
    Ok(contenders)
}

/// Per rank the scores that a contender ranks rows by.
fn score(
    contender: &Contender,
    graph: &OfflineParts,
    runs: &[RankRun],
    book: &PartitionBook,
) -> Result<Vec<Option<Vec<f64>>>, Failure> {
    let of = |run: &RankRun| -> Result<Option<Vec<f64>>, Failure> {
        match contender.policy.score_kind() {
            None => Ok(None),
            Some(_) if contender.oracle => {
                let traces = run.epochs.iter().map(|epoch| &**epoch);
                Ok(Some(presample_counts(traces, book, run.rank)?))
            }
            Some(kind) => Ok(Some(graph.scores(kind, &training_of(&run.spec), run.rank)?.0)),
        }
    };
    runs.iter().map(of).collect()
}

/// The configuration of a run with traces like these.
fn training_of(spec: &EpochSpec) -> TrainConfig {
    TrainConfig {
        seed: spec.seed,
        batch_size: spec.batch_size,
        fanouts: spec.fanouts.clone(),
        batch_order: spec.order,
        ..TrainConfig::default()
    }
}

/// The line of a contender at its cheapest window.
fn best_line(
    contender: &Contender,
    scores: &[Option<Vec<f64>>],
    runs: &[RankRun],
    book: &Arc<PartitionBook>,
    asked: &[u32],
    needed: u64,
) -> Result<Line, Failure> {
    let cost = |line: &Line| line.rows + u64::from(Search::CROSSOVER_ROWS) * line.requests;
    let mut best: Option<Line> = None;
    for window in &contender.windows {
        let mut moved = Vec::new();
        let start_s = thread_cpu_s();
        for ((run, scores), asked) in runs.iter().zip(scores).zip(asked) {
            let case = Case {
                book: Arc::clone(book),
                rank: run.rank,
                epochs: run.epochs.clone(),
                asked_rows: *asked,
                window: *window,
                from_step: 0,
                with_next: true,
            };
            moved.push(moves(&*contender.policy, &case, scores.as_deref(), contender.delivery)?);
        }
        let plan_s = thread_cpu_s() - start_s;
        let line = line(contender, *window, &moved, needed, plan_s);
        if best.as_ref().is_none_or(|best| cost(&line) < cost(best)) {
            best = Some(line);
        }
    }
    best.ok_or_else(|| "a policy has no window to be tried with".into())
}

fn line(contender: &Contender, window: u32, moved: &[RunMoves], needed: u64, plan_s: f64) -> Line {
    let sum = |moves: &mut dyn Iterator<Item = Moves>| {
        let mut total = Moves::default();
        moves.for_each(|moves| total += moves);
        total
    };
    let phases = |epoch: &EpochMoves| [epoch.training, epoch.evaluation];
    let epochs = moved.first().map_or(0, |run| run.epochs.len());
    let run = sum(&mut moved.iter().map(RunMoves::whole));
    let fill = sum(&mut moved.iter().map(|run| run.setup));
    let first = usize::from(epochs > 1);
    let later = sum(&mut moved.iter().flat_map(|run| &run.epochs[first..]).flat_map(phases));
    let later_epochs = (epochs - first).max(1) as f64;
    Line {
        policy: contender.name.clone(),
        window: contender.shows_window.then_some(window),
        requests: run.requests,
        deliveries: run.deliveries,
        rows: run.rows,
        requests_per_epoch: later.requests as f64 / later_epochs,
        rows_per_epoch: later.rows as f64 / later_epochs,
        hit_rate: 1.0 - (run.rows - fill.rows) as f64 / needed.max(1) as f64,
        plan_ms: 1e3 * plan_s / (moved.len() * epochs).max(1) as f64,
    }
}

/// The table as Markdown.
pub fn describe(table: &Table) -> String {
    let mut text = format!(
        "{} ranks, {} epochs: {} rows are needed without a cache, {} distinct rows must come\n",
        table.ranks,
        table.epochs,
        digits(table.needed_rows),
        digits(table.compulsory_rows)
    );
    for budget in &table.budgets {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\nbudget {} ({} rows over all ranks): no policy can move fewer than {} rows\n\n\
             | policy | requests | deliveries | rows | above MIN | per epoch: requests | rows | hit rate | planning, ms |\n\
             |---|---|---|---|---|---|---|---|---|\n",
            budget.budget,
            digits(budget.budget_rows),
            digits(budget.fewest_rows)
        );
        for line in &budget.policies {
            let window = line.window.map_or(String::new(), |window| format!(" (W = {window})"));
            let above = 100.0 * (line.rows as f64 / budget.fewest_rows.max(1) as f64 - 1.0);
            let _ = writeln!(
                text,
                "| {}{window} | {} | {} | {} | {above:.2} % | {:.0} | {} | {:.1} % | {:.1} |",
                line.policy,
                digits(line.requests),
                digits(line.deliveries),
                digits(line.rows),
                line.requests_per_epoch,
                digits(line.rows_per_epoch.round() as u64),
                100.0 * line.hit_rate,
                line.plan_ms,
            );
        }
    }
    text
}
