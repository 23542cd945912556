//! `greengnn plan --explain`: what a run would move and keep, before it is made, and what more memory would save.
//!
//! The traces of the run are sampled in this process, from a folder that holds all parts, and every policy plans them. What
//! is planned is what a run counts, so the rows and requests are not estimates.

use std::path::PathBuf;
use std::sync::Arc;

use greengnn_model::book::PartitionBook;
use greengnn_model::plan::Delivery;
use greengnn_model::policy::bound::RunUses;
use greengnn_model::policy::conformance::Case;
use greengnn_model::policy::moves::{Moves, RunMoves, moves_levels};
use greengnn_model::policy::streamed::for_delivery;
use greengnn_model::policy::{Budget, POLICY_NAMES, Policy, UnknownPolicy};
use serde::Serialize;

use super::CliResult;
use super::output::print;
use super::plan::PlanArgs;
use crate::config::{Communication, TrainConfig, TrainFlags};
use crate::offline::{OfflineParts, OfflineRun, Sampling};
use crate::presampler::EPOCHS_AHEAD;

mod text;

/// Shares of the remote rows at which the curve of MIN is given, in percent.
const CURVE: [u32; 11] = [0, 1, 2, 5, 10, 20, 25, 40, 60, 80, 100];
/// More memory, of which it is said what it would save.
const MORE_PERCENT: u32 = 10;
const GIB: u64 = 1 << 30;

/// What `plan` explains.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Sample the traces of a run from the parts, and say what it would move and keep under each policy
    #[arg(long)]
    pub explain: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// What decides which batches a run has.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct SamplingArgs {
    /// A TOML file as `train --config` reads it; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Epochs of the run [default: 10]
    #[arg(long)]
    pub epochs: Option<u32>,
    /// Seed nodes of a rank per step [default: 1000]
    #[arg(long)]
    pub batch_size: Option<u32>,
    /// Neighbours per hop from the seeds outwards [default: 25,10]
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set)]
    pub fanouts: Option<Vec<u32>>,
    /// [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Flags that say how to sample, where nothing is sampled.
#[derive(Debug, thiserror::Error)]
#[error("a trace has been sampled already: --config, --epochs, --batch-size, --fanouts and --seed go with --explain")]
pub struct NothingToSample;

impl SamplingArgs {
    /// As flags of the run.
    pub fn flags(&self) -> TrainFlags {
        TrainFlags {
            config: self.config.clone(),
            epochs: self.epochs,
            batch_size: self.batch_size,
            fanouts: self.fanouts.clone(),
            seed: self.seed,
            ..TrainFlags::default()
        }
    }
}

/// A run without rows.
#[derive(Debug, thiserror::Error)]
#[error("--explain is of runs that move rows, and push-pull moves none; give a configuration that pulls them")]
struct NoRows;

/// What a run would move and keep. Sums are over all ranks unless said otherwise.
#[derive(Debug, Default, Serialize)]
struct Explanation {
    ranks: u16,
    epochs: u32,
    batch_size: u32,
    fanouts: Vec<u32>,
    window: u32,
    budget: String,
    /// Of the rank that has the most.
    budget_rows: u32,
    row_bytes: u64,
    /// Training steps of an epoch.
    steps: u32,
    /// Before the first step: the first epoch is sampled.
    setup: SampledPhase,
    /// The epochs after the first, which are sampled while others train.
    training: SampledPhase,
    evaluation: SampledPhase,
    /// Trace files at the same time, at most.
    trace_bytes_peak: u64,
    needed_rows: u64,
    compulsory_rows: u64,
    /// MIN at the budget.
    fewest_rows: u64,
    policies: Vec<PolicyPrices>,
    /// MIN over budgets.
    curve: Vec<CurvePoint>,
    /// What more memory would save, at best.
    more: Vec<More>,
}

/// What sampling takes in one phase.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct SampledPhase {
    sample_requests: u64,
    trace_bytes: u64,
    /// Nodes of the largest batch.
    largest_batch: u32,
}

#[derive(Debug, Default, Serialize)]
struct PolicyPrices {
    policy: String,
    setup: Counts,
    training: Counts,
    evaluation: Counts,
    whole: Counts,
    /// Rows over the fewest that any policy which moves rows could move with this memory. 1 is the best there is.
    over_min: Option<f64>,
    /// Cache of all ranks.
    cache_bytes: u64,
    /// Inputs of the batches that are put together at the same time, with the rows that come for them directly.
    buffer_bytes: u64,
}

/// What a row takes where it travels and is kept, and in the input of a batch.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    row: u64,
    input: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    feature_requests: u64,
    deliveries: u64,
    feature_rows: u64,
    feature_bytes: u64,
    /// Questions for sampled neighbours that this policy alone asks: presampling for its scores.
    sample_requests: u64,
}

impl Counts {
    fn add(&mut self, moves: Moves, row_bytes: u64) {
        self.feature_requests += moves.requests;
        self.deliveries += moves.deliveries;
        self.feature_rows += moves.rows;
        self.feature_bytes += moves.rows * row_bytes;
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CurvePoint {
    percent: u32,
    /// Of the rank that has the most.
    budget_rows: u32,
    budget_bytes: u64,
    fewest_rows: u64,
    fewest_bytes: u64,
}

/// What more memory for every rank would save: the difference of MIN.
#[derive(Debug, Serialize)]
struct More {
    what: String,
    /// Rows of a rank that it comes to.
    budget_rows: u32,
    saved_rows: u64,
    saved_bytes: u64,
}

pub fn run(args: &PlanArgs, config: &TrainConfig) -> CliResult {
    let explanation = explain(args, config)?;
    let text = if args.json {
        serde_json::to_string_pretty(&explanation)?
    } else {
        text::explanation(&explanation)
    };
    print(text)?;
    Ok(())
}

fn explain(args: &PlanArgs, config: &TrainConfig) -> Result<Explanation, Box<dyn std::error::Error + Send + Sync>> {
    if config.communication == Communication::PushPull {
        return Err(NoRows.into());
    }
    let names = match &args.policies {
        Some(names) => names.clone(),
        None => POLICY_NAMES.map(str::to_owned).to_vec(),
    };
    let parts = OfflineParts::open(&args.parts)?;
    let traces = tempfile::tempdir()?;
    let book = parts.row_book();
    let budget: Budget = config.budget.parse()?;
    config.check_against(parts.manifest())?;
    let row_bytes = config.row_type.row_bytes(parts.manifest().features);
    let policies = names
        .iter()
        .map(|name| {
            let policy = config.policy_parameters().policy(name.trim())?;
            let config = TrainConfig {
                policy: policy.name().to_owned(),
                ..config.clone()
            };
            let delivery = config.delivery_under(budget, parts.manifest());
            Ok((for_delivery(policy, delivery), delivery))
        })
        .collect::<Result<Vec<_>, UnknownPolicy>>()?;
    let bytes = Bytes {
        row: row_bytes as u64,
        input: parts.manifest().features as u64 * 4,
    };
    let mut explanation = Explanation {
        ranks: book.parts(),
        epochs: config.epochs,
        batch_size: config.batch_size,
        fanouts: config.fanouts.clone(),
        window: config.window.steps(),
        budget: config.budget.clone(),
        row_bytes: row_bytes as u64,
        steps: crate::wiring::step_counts(parts.manifest(), config.batch_size).train,
        policies: policies
            .iter()
            .map(|(policy, _)| PolicyPrices {
                policy: policy.name().to_owned(),
                ..PolicyPrices::default()
            })
            .collect(),
        curve: CURVE.map(|percent| point(book, percent, row_bytes)).into(),
        ..Explanation::default()
    };
    let mut bounds = vec![0; policies.len()];
    let mut at_more = [0; 2];
    for rank in parts.ranks() {
        let run = parts.run(config, rank, Some(traces.path()))?;
        explanation.add_sampling(&run);
        let remote = book.remote_nodes(rank);
        let asked_rows = budget.rows(row_bytes, remote);
        let device_rows = config.device_rows(parts.manifest(), remote)?;
        explanation.budget_rows = explanation.budget_rows.max(asked_rows);
        let uses = run.uses(book)?;
        explanation.add_bounds(&uses, asked_rows, remote);
        for (more, rows) in at_more.iter_mut().zip(more_rows(asked_rows, remote, row_bytes)) {
            *more += uses.fewest_rows(rows);
        }
        let case = Case {
            book: Arc::clone(book),
            rank,
            epochs: run.epochs.clone(),
            asked_rows,
            window: config.window.steps(),
            from_step: 0,
            with_next: true,
        };
        let priced = policies.iter().zip(&mut explanation.policies).zip(&mut bounds);
        for (((policy, delivery), prices), bound) in priced {
            let (moved, presampled) = planned(&**policy, &case, &parts, config, *delivery, device_rows)?;
            *bound += uses.fewest_rows(moved.budget_rows);
            prices.setup.sample_requests += presampled.requests;
            prices.add(&moved, &run, config, bytes);
        }
    }
    for (prices, bound) in explanation.policies.iter_mut().zip(bounds) {
        prices.over_min = (bound > 0).then(|| prices.whole.feature_rows as f64 / bound as f64);
    }
    explanation.more = more(&explanation, book, budget, at_more, row_bytes);
    Ok(explanation)
}

/// What a policy's plans move, and what sampling its scores takes.
fn planned(
    policy: &dyn Policy,
    case: &Case,
    parts: &OfflineParts,
    config: &TrainConfig,
    delivery: Delivery,
    device_rows: Option<u32>,
) -> Result<(RunMoves, Sampling), Box<dyn std::error::Error + Send + Sync>> {
    let scored = policy
        .score_kind()
        .map(|kind| parts.scores(kind, config, case.rank))
        .transpose()?;
    let (scores, sampling) = scored.map_or((None, Sampling::default()), |(scores, sampling)| {
        (Some(scores), sampling)
    });
    let moved = moves_levels(policy, case, scores.as_deref(), delivery, device_rows)?;
    Ok((moved, sampling))
}

fn point(book: &PartitionBook, percent: u32, row_bytes: usize) -> CurvePoint {
    let rows = (0..book.parts())
        .map(|rank| share(percent, book.remote_nodes(rank)))
        .max()
        .unwrap_or(0);
    CurvePoint {
        percent,
        budget_rows: rows,
        budget_bytes: u64::from(rows) * row_bytes as u64,
        fewest_rows: 0,
        fewest_bytes: 0,
    }
}

fn share(percent: u32, remote: u32) -> u32 {
    Budget::Share {
        millionths: percent * 10_000,
    }
    .rows(0, remote)
}

/// What a rank may keep with one more GiB, and with a tenth more of its remote rows.
fn more_rows(asked: u32, remote: u32, row_bytes: usize) -> [u32; 2] {
    let more = [Budget::Bytes(GIB).rows(row_bytes, remote), share(MORE_PERCENT, remote)];
    more.map(|more| asked.saturating_add(more).min(remote))
}

fn more(
    explanation: &Explanation,
    book: &PartitionBook,
    budget: Budget,
    at_more: [u64; 2],
    row_bytes: usize,
) -> Vec<More> {
    let most = |place: usize| {
        let rows = (0..book.parts()).map(|rank| {
            let remote = book.remote_nodes(rank);
            more_rows(budget.rows(row_bytes, remote), remote, row_bytes)[place]
        });
        rows.max().unwrap_or(0)
    };
    let names = ["1 GiB".to_owned(), format!("{MORE_PERCENT} % of the remote rows")];
    let entry = |(place, what)| {
        let saved_rows = explanation.fewest_rows - at_more[place];
        More {
            what,
            budget_rows: most(place),
            saved_rows,
            saved_bytes: saved_rows * row_bytes as u64,
        }
    };
    names.into_iter().enumerate().map(entry).collect()
}

impl SampledPhase {
    fn add(&mut self, sampling: &Sampling) {
        self.sample_requests += sampling.requests;
        self.trace_bytes += sampling.trace_bytes;
        self.largest_batch = self.largest_batch.max(sampling.largest_batch);
    }
}

impl Explanation {
    fn add_sampling(&mut self, run: &OfflineRun) {
        let (first, later) = run.training.split_at(run.training.len().min(1));
        first.iter().for_each(|sampling| self.setup.add(sampling));
        later.iter().for_each(|sampling| self.training.add(sampling));
        self.evaluation.add(&run.evaluation);
        let together = |epochs: &[Sampling]| epochs.iter().map(|sampling| sampling.trace_bytes).sum::<u64>();
        let epochs = EPOCHS_AHEAD.min(run.training.len()).max(1);
        let most = run.training.windows(epochs).map(together).max().unwrap_or(0);
        self.trace_bytes_peak += run.evaluation.trace_bytes + most;
    }

    fn add_bounds(&mut self, uses: &RunUses, asked_rows: u32, remote: u32) {
        self.needed_rows += uses.needed_rows();
        self.compulsory_rows += uses.compulsory_rows();
        self.fewest_rows += uses.fewest_rows(asked_rows);
        for point in &mut self.curve {
            let fewest = uses.fewest_rows(share(point.percent, remote));
            point.fewest_rows += fewest;
            point.fewest_bytes += fewest * self.row_bytes;
        }
    }
}

impl PolicyPrices {
    fn add(&mut self, moved: &RunMoves, run: &OfflineRun, config: &TrainConfig, bytes: Bytes) {
        let row_bytes = bytes.row;
        self.setup.add(moved.setup, row_bytes);
        for epoch in &moved.epochs {
            self.training.add(epoch.training, row_bytes);
            self.evaluation.add(epoch.evaluation, row_bytes);
        }
        self.whole.add(moved.whole(), row_bytes);
        self.whole.sample_requests = self.setup.sample_requests;
        self.cache_bytes += u64::from(moved.budget_rows) * row_bytes;
        let largest = run
            .training
            .iter()
            .chain([&run.evaluation])
            .map(|sampling| sampling.largest_batch)
            .max();
        let inputs = u64::from(largest.unwrap_or(0)) * bytes.input;
        let direct = u64::from(moved.most_direct_rows) * row_bytes;
        self.buffer_bytes += u64::from(1 + config.ahead) * (inputs + direct);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_is_never_more_than_all_remote_rows() {
        assert_eq!(more_rows(250, 1000, 512), [1000, 350]);
        assert_eq!(more_rows(950, 1000, 512), [1000, 1000]);
        // A row of a quarter of a GiB.
        assert_eq!(more_rows(10, 1000, 1 << 28), [14, 110]);
    }

    #[test]
    fn the_curve_has_the_budget_of_the_rank_with_the_most_remote_rows() {
        let book = PartitionBook::new(vec![0, 100, 400]).unwrap();
        let point = point(&book, 10, 8);
        assert_eq!((point.budget_rows, point.budget_bytes), (30, 240));
    }
}
