//! The offline choice: which policy, budget and window to run, before anything has run.
//!
//! Traces say which rows every batch needs, so every candidate can be planned with the policies that the runtime executes
//! (`plans`), priced by the [simulator](crate::simulator), and ordered (`ranked`). Predicted requests, deliveries and
//! rows are those that a run of these epochs counts, exactly; joules and stalls are as good as the coefficients.
//!
//! Candidates whose schedules are the same program are ties, whatever made them the same: windows of at least an epoch, a
//! policy that uses no window, a budget that leaves nothing to choose. A schedule is planned once where that is known
//! beforehand.
//!
//! Memory has no price. So a greater budget is never worse in joules alone, and which budgets may be chosen is up to who
//! asks; of budgets that cost the same the smaller one is picked.
//!
//! A run may choose again before every epoch, with what the epochs before have shown ([`Adaptation`]).
//!
//! Ranks train in step, so they are priced together; each has coefficients of its own, by owner, and a step time of its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use greengnn_model::book::{PartId, PartitionBook, Rank};
use greengnn_model::plan::{CacheState, Delivery};
use greengnn_model::policy::{Budget, FillError, PlanError, RemoteTrace, TraceReadError, UnknownPolicy};
use serde::{Deserialize, Serialize};

use crate::calibration::{Calibration, CalibrationError, Setting};
use crate::files::{FileError, read_json, write_json};
use crate::fingerprint::Fingerprint;
use crate::quality::Quality;
use crate::simulator::{Coefficients, Mode, SimulatedCost, SimulationError};

mod adapt;
mod plans;
mod ranked;
#[cfg(test)]
mod tests;
mod tuned;
mod weights;

pub use adapt::{AdaptError, Adaptation, FACTORS, MARGIN, ObservedEpoch, OwnerFetches, RankEpoch, next_candidate};
pub use weights::owner_weights;

pub use plans::{Extent, Moved, RankMoves, rank_moves};
pub use tuned::Tuned;

/// The layout of a file with a choice.
const FORMAT_VERSION: u32 = 2;

/// The windows that the paper chooses from.
pub const WINDOWS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A policy and how its plans are asked and answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Method {
    /// As [`policy_by_name`](greengnn_model::policy::policy_by_name) knows it.
    pub policy: String,
    pub delivery: Delivery,
}

impl Method {
    pub fn new(policy: &str, delivery: Delivery) -> Self {
        Self {
            policy: policy.to_owned(),
            delivery,
        }
    }
}

/// What there is to choose from: every combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidates {
    pub methods: Vec<Method>,
    pub budgets: Vec<Budget>,
    pub windows: Vec<u32>,
}

impl Candidates {
    /// The paper's windows for `window`, and for `bulk` in both ways of delivery.
    pub fn with_budgets(budgets: Vec<Budget>) -> Self {
        Self {
            methods: vec![
                Method::new("window", Delivery::Windowed),
                Method::new("bulk", Delivery::Windowed),
                Method::new("bulk", Delivery::Stream),
            ],
            budgets,
            windows: WINDOWS.to_vec(),
        }
    }

    /// # Errors
    /// Nothing to choose from, or something twice.
    pub fn check(&self) -> Result<(), ChoiceError> {
        once("policy", &self.methods, |method| {
            format!("{} ({})", method.policy, method.delivery.name())
        })?;
        once("budget", &self.budgets, |budget| format!("a budget of {budget}"))?;
        once("window", &self.windows, |window| format!("window {window}"))
    }
}

/// The traces of one rank, epoch after epoch from the first one on.
#[derive(Clone)]
pub struct RankTraces {
    pub rank: Rank,
    pub epochs: Vec<Arc<dyn RemoteTrace>>,
    /// What the rank holds before the first of these epochs; none for the first epoch of a run, before which a policy
    /// fills its cache.
    pub held: Option<CacheState>,
    /// How its policies are made.
    pub tuned: Tuned,
}

/// What is to be run.
#[derive(Clone)]
pub struct Workload {
    pub book: Arc<PartitionBook>,
    /// All ranks, with as many epochs each.
    pub ranks: Vec<RankTraces>,
    /// Bytes of a row in memory, for budgets in bytes.
    pub row_bytes: usize,
    /// Epochs of the whole run, over which what a policy fetches at set-up is spread; at least 1.
    pub run_epochs: u32,
}

/// What requests, rows and steps cost, and how far that is to be trusted.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// By rank: what each owner costs it, and what its steps and waits cost. The same for all ranks of a cluster of like
    /// machines.
    pub by_rank: Vec<Coefficients>,
    /// Of the joules.
    pub quality: Quality,
    /// Coefficients that should not be trusted, in words.
    pub doubts: Vec<String>,
    /// The hardware that was probed; none for coefficients that were made up.
    pub fingerprint: Option<Fingerprint>,
}

impl Prices {
    /// The coefficients of each of `ranks`, in their order.
    fn of_ranks(&self, ranks: &[RankMoves]) -> Result<Vec<&Coefficients>, ChoiceError> {
        let of_rank = |moves: &RankMoves| {
            let priced = self.by_rank.len();
            let found = self.by_rank.get(usize::from(moves.rank));
            let coefficients = found.ok_or(ChoiceError::Unpriced {
                rank: moves.rank,
                priced,
            })?;
            coefficients.check()?;
            Ok(coefficients)
        };
        ranks.iter().map(of_rank).collect()
    }
}

/// A candidate and what it was predicted to do, summed over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    #[serde(flatten)]
    pub method: Method,
    pub budget: Budget,
    pub window: u32,
    /// Slots of the rank that has the most.
    pub budget_rows: u32,
    /// 1 is the best of the candidates with this method and budget. Ties share a rank; after a tie of two the next rank is
    /// left out.
    pub rank: u32,
    /// The first window of this method and budget whose schedule is the same, where that is another one.
    pub same_schedule_as: Option<u32>,
    /// What a policy fetches once, before the first step; nothing hides it.
    pub setup: SimulatedCost,
    /// All traced epochs, priced as in the paper.
    pub paper: SimulatedCost,
    /// All traced epochs, priced as the runtime stalls.
    pub plan: SimulatedCost,
    /// Joules that depend on the schedule, per epoch and with the share of the set-up, in the mode of the choice.
    pub epoch_j: f64,
    /// What the ranks are by, the lower the better: `epoch_j`, or the calibrated score, which has no unit.
    pub score: f64,
}

impl Prediction {
    /// The price of the traced epochs in `mode`.
    pub fn cost(&self, mode: Mode) -> &SimulatedCost {
        match mode {
            Mode::Paper => &self.paper,
            Mode::Plan => &self.plan,
        }
    }
}

/// What was chosen, from what, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    format_version: u32,
    pub mode: Mode,
    /// Of the joules.
    pub quality: Quality,
    /// What should not be trusted, in words.
    pub doubts: Vec<String>,
    /// The hardware of the coefficients; none if they were made up.
    pub fingerprint: Option<Fingerprint>,
    pub ranks: u32,
    /// Traced epochs.
    pub epochs: u32,
    /// Remote rows of all batches of all ranks and traced epochs.
    pub needed_rows: u64,
    /// The most steps that a window can have: longer windows are the same program.
    pub longest_window: u32,
    /// Seconds of a step whose rows are there, by rank.
    pub step_s: Vec<f64>,
    /// Whether a calibration decided between windows.
    pub is_calibrated: bool,
    /// By method and budget in the order in which they were given, the best window first.
    pub predictions: Vec<Prediction>,
    /// What to run: one of `predictions`.
    pub pick: Prediction,
    /// In a sentence or a few.
    pub why: String,
}

/// Why there is no choice.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    #[error("there is no {what} to choose from; give at least one")]
    Nothing { what: &'static str },
    #[error("{what} stands twice among the candidates; give each once")]
    Twice { what: String },
    #[error("rank {rank} has {found} traced epochs and the first rank {expected}; trace the same epochs of all ranks")]
    Epochs { rank: Rank, found: usize, expected: usize },
    #[error("rank {rank} stands twice among the traces; give each once")]
    RankTwice { rank: Rank },
    #[error("rank {rank} has no part: the partition book has {parts} parts")]
    UnknownRank { rank: Rank, parts: PartId },
    #[error("rank {rank} has no coefficients: there are those of {priced} ranks; probe from every rank")]
    Unpriced { rank: Rank, priced: usize },
    #[error("the ranks have planned other candidates than those that are to be priced")]
    OtherCandidates,
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error("rank {rank}, policy {policy}: there is no fill")]
    Fill {
        rank: Rank,
        policy: String,
        #[source]
        source: FillError,
    },
    #[error("rank {rank}, policy {policy} with windows of {window}: there is no plan of epoch {epoch}")]
    Plan {
        rank: Rank,
        policy: String,
        window: u32,
        epoch: usize,
        #[source]
        source: PlanError,
    },
    #[error("rank {rank}, epoch {epoch}")]
    Trace {
        rank: Rank,
        epoch: usize,
        #[source]
        source: TraceReadError,
    },
    #[error(transparent)]
    Price(#[from] SimulationError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    #[error("the choice has format {found}, this program reads {}; choose again", FORMAT_VERSION)]
    OtherFormat { found: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Plans and prices every candidate, orders them, and picks one.
///
/// `mode` says which price decides; both are in the result. With a calibration that is [used](Calibration::is_used) its
/// scores order the windows of one method and budget. Between methods and budgets the joules decide, since scores are
/// comparable only among candidates that were standardised together.
///
/// # Errors
/// [`ChoiceError`]. A policy that ranks rows by scores has no fill here, since there are none.
pub fn choose(
    workload: &Workload,
    candidates: &Candidates,
    prices: &Prices,
    calibration: Option<&Calibration>,
    mode: Mode,
) -> Result<Choice, ChoiceError> {
    check(workload, candidates)?;
    let moves = |traces: &RankTraces| rank_moves(&workload.book, workload.row_bytes, traces, candidates);
    let moves: Vec<RankMoves> = workload.ranks.iter().map(moves).collect::<Result<_, _>>()?;
    choose_from(&moves, workload.run_epochs, candidates, prices, calibration, mode)
}

/// The choice of [`choose`] from what all ranks would move, by ascending rank. `run_epochs` are those of the whole run.
///
/// # Errors
/// [`ChoiceError`], also where ranks have planned other candidates than these.
pub fn choose_from(
    moves: &[RankMoves],
    run_epochs: u32,
    candidates: &Candidates,
    prices: &Prices,
    calibration: Option<&Calibration>,
    mode: Mode,
) -> Result<Choice, ChoiceError> {
    candidates.check()?;
    let coefficients = prices.of_ranks(moves)?;
    let extent = Extent::of_all(moves);
    let calibration = calibration.filter(|calibration| calibration.is_used);
    let context = ranked::Context {
        extent: &extent,
        epochs: moves
            .iter()
            .flat_map(|moves| moves.plans.first())
            .map(|moved| moved.epochs.len() as u32)
            .max()
            .unwrap_or(0),
        run_epochs,
        calibration,
        mode,
    };
    let mut predictions = Vec::new();
    let mut candidate = 0..;
    for method in &candidates.methods {
        for budget in &candidates.budgets {
            let mut priced = Vec::with_capacity(candidates.windows.len());
            for (window, candidate) in candidates.windows.iter().zip(&mut candidate) {
                let of_ranks: Option<Vec<&Moved>> = moves.iter().map(|moves| moves.of(candidate)).collect();
                let of_ranks = of_ranks.ok_or(ChoiceError::OtherCandidates)?;
                priced.push(plans::price(*window, &of_ranks, &coefficients)?);
            }
            predictions.extend(ranked::rank(method, *budget, priced, &context)?);
        }
    }
    let pick = ranked::pick(&predictions)
        .ok_or(ChoiceError::Nothing { what: "candidate" })?
        .clone();
    let mut doubts = prices.doubts.clone();
    let has_streams = candidates
        .methods
        .iter()
        .any(|method| method.delivery == Delivery::Stream);
    if has_streams && coefficients.iter().any(|rank| rank.delivery.is_none()) {
        doubts.push("a delivery of a stream was not measured, and counts its rows alone".to_owned());
    }
    let mut choice = Choice {
        format_version: FORMAT_VERSION,
        mode,
        quality: prices.quality,
        doubts,
        fingerprint: prices.fingerprint.clone(),
        ranks: moves.len() as u32,
        epochs: context.epochs,
        needed_rows: extent.needed_rows,
        longest_window: extent.longest_window,
        step_s: coefficients.iter().map(|rank| rank.step_s).collect(),
        is_calibrated: calibration.is_some(),
        predictions,
        pick,
        why: String::new(),
    };
    choice.why = ranked::why(&choice);
    Ok(choice)
}

impl Choice {
    /// The same with another pick, which is one of the predictions: what runs may be kept though something else is a little
    /// better.
    pub fn picking(mut self, method: &Method, window: u32) -> Self {
        let picked = self
            .predictions
            .iter()
            .find(|prediction| prediction.method == *method && prediction.window == window);
        if let Some(picked) = picked {
            self.pick = picked.clone();
            self.why = ranked::why(&self);
        }
        self
    }

    /// The methods and budgets that were chosen from, each with its predictions, the best window first.
    pub fn settings(&self) -> impl Iterator<Item = &[Prediction]> {
        self.predictions.chunk_by(ranked::is_same_setting)
    }

    /// The candidates of one method and budget as a calibration takes them, and the name that it gives them. What they
    /// really cost is for the caller to add.
    pub fn calibration_setting(&self, predictions: &[Prediction]) -> Setting {
        ranked::setting(predictions, self.longest_window, self.needed_rows, self.mode)
    }

    /// The same candidates in the order that a calibration gives the windows of each method and budget, if it is of use.
    ///
    /// # Errors
    /// A price that is not finite.
    pub fn calibrated(mut self, calibration: &Calibration) -> Result<Self, ChoiceError> {
        if !calibration.is_used {
            return Ok(self);
        }
        let settings: Vec<Vec<Prediction>> = self.settings().map(<[Prediction]>::to_vec).collect();
        self.predictions.clear();
        for mut predictions in settings {
            predictions.sort_by_key(|prediction| prediction.window);
            let setting = self.calibration_setting(&predictions);
            let scores = calibration.score(&setting)?;
            for (prediction, score) in predictions.iter_mut().zip(scores) {
                prediction.score = score;
            }
            ranked::order(&mut predictions);
            self.predictions.append(&mut predictions);
        }
        self.is_calibrated = true;
        if let Some(pick) = ranked::pick(&self.predictions) {
            self.pick = pick.clone();
        }
        self.why = ranked::why(&self);
        Ok(self)
    }

    /// Writes the choice to a file, as a whole or not at all.
    ///
    /// # Errors
    /// [`ChoiceError::File`].
    pub fn save(&self, path: &Path) -> Result<(), ChoiceError> {
        Ok(write_json(path, self)?)
    }

    /// Reads a choice.
    ///
    /// # Errors
    /// [`ChoiceError::File`], [`ChoiceError::OtherFormat`].
    pub fn load(path: &Path) -> Result<Self, ChoiceError> {
        let choice: Self = read_json(path, "a choice")?;
        if choice.format_version != FORMAT_VERSION {
            return Err(ChoiceError::OtherFormat {
                found: choice.format_version,
            });
        }
        Ok(choice)
    }
}

fn check(workload: &Workload, candidates: &Candidates) -> Result<(), ChoiceError> {
    let nothing = |what| Err(ChoiceError::Nothing { what });
    let Some(first) = workload.ranks.first() else {
        return nothing("rank");
    };
    if first.epochs.is_empty() {
        return nothing("epoch");
    }
    let mut seen = BTreeSet::new();
    for RankTraces { rank, epochs, .. } in &workload.ranks {
        if *rank >= workload.book.parts() {
            return Err(ChoiceError::UnknownRank {
                rank: *rank,
                parts: workload.book.parts(),
            });
        }
        if !seen.insert(*rank) {
            return Err(ChoiceError::RankTwice { rank: *rank });
        }
        if epochs.len() != first.epochs.len() {
            return Err(ChoiceError::Epochs {
                rank: *rank,
                found: epochs.len(),
                expected: first.epochs.len(),
            });
        }
    }
    candidates.check()
}

/// Checks that there is at least one, and none twice.
fn once<T: PartialEq>(what: &'static str, all: &[T], name: impl Fn(&T) -> String) -> Result<(), ChoiceError> {
    if all.is_empty() {
        return Err(ChoiceError::Nothing { what });
    }
    for (index, one) in all.iter().enumerate() {
        if all[..index].contains(one) {
            return Err(ChoiceError::Twice { what: name(one) });
        }
    }
    Ok(())
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{:<16} {:>8} {:>7} {:>4} {:>10} {:>10} {:>12} {:>10} {:>10}",
            "policy", "budget", "window", "rank", "requests", "deliveries", "rows", "stall s", "J/epoch"
        )?;
        for prediction in self.predictions.iter().filter(|one| one.same_schedule_as.is_none()) {
            let cost = prediction.cost(self.mode);
            let windows = ranked::windows_of_program(&self.predictions, prediction);
            let setup = &prediction.setup;
            writeln!(
                f,
                "{:<16} {:>8} {:>7} {:>4} {:>10} {:>10} {:>12} {:>10.3} {:>10.3}",
                ranked::name(&prediction.method),
                prediction.budget.to_string(),
                windows,
                prediction.rank,
                cost.requests() + setup.requests(),
                cost.deliveries() + setup.deliveries(),
                cost.rows() + setup.rows(),
                cost.stall_s() + setup.stall_s(),
                prediction.epoch_j,
            )?;
        }
        writeln!(f, "joules are {}; {}", self.quality, self.why)?;
        for doubt in &self.doubts {
            writeln!(f, "not to be trusted: {doubt}")?;
        }
        Ok(())
    }
}
