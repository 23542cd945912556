//! The tuner of a rank: chooses, together with all other ranks, how the rows of the next epoch are asked for.
//!
//! A rank plans every candidate on its own trace, tells the others what that would move, and prices what all of them would
//! move together; so all come to the same choice, and no machine needs the trace of another. It plans them once, at
//! set-up, for the first epoch and for the second, whose cache is warm: epochs are alike, and what may change is the
//! price. After every epoch the measured waits and steps correct the coefficients ([`Adaptation`]), and another candidate
//! is taken where it saves more than a margin, two epochs in a row: one epoch may have been disturbed. Weights do not
//! depend on any of this.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use greengnn_energy::calibration::Calibration;
use greengnn_energy::choice::{
    AdaptError, Adaptation, Candidates, Choice, ChoiceError, MARGIN, Method, OwnerFetches, Prediction, Prices,
    RankEpoch, RankMoves, RankTraces, Tuned, choose_from, next_candidate, rank_moves,
};
use greengnn_energy::profile::Profile;
use greengnn_energy::simulator::{Coefficients, Mode, TrafficCounter, WindowTraffic};
use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::plan::{CacheState, Delivery, WindowPlan};
use greengnn_model::policy::{Budget, Policy, PolicyParameters, RemoteTrace, UnknownPolicy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::causes::in_one_line;
use crate::collective::{Collective, CollectiveError, Moment};
use crate::config::Window;
use crate::transport::ParcelKind;

pub mod folder;
pub mod stage;
#[cfg(test)]
mod tests;

/// The steps of the moments of a decision: what is known, what is learnt from, what is planned, and the candidate. Those of
/// the [stage] lie between.
const KNOWN: u32 = 0;
const PAST: u32 = 1;
const MOVES: u32 = 2;
const CANDIDATE: u32 = 5;
/// What a tuner keeps of the past, in epochs: a decision is at most two epochs ahead of what has been trained.
const KEPT_EPOCHS: usize = 4;
/// The longest trace, in epochs, that candidates are planned on at once.
pub const TRACED_EPOCHS: usize = 2;

/// Why ranks could not choose.
#[derive(Debug, thiserror::Error)]
pub enum TuningError {
    #[error("the ranks did not choose together: {}", in_one_line(.0))]
    Together(#[from] CollectiveError),
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error(transparent)]
    Adapt(#[from] AdaptError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error("the choice was cancelled")]
    Cancelled,
}

/// What one rank's training steps of an epoch took, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainedSteps {
    pub steps: u32,
    /// Forward, backward and the optimizer, and waits for batches whose rows were there: what a step takes by itself.
    pub compute_s: f64,
    /// Waits for the gradients of others.
    pub sync_s: f64,
    /// Waits for batches whose rows had not come, those of the first step left out.
    pub row_stall_s: f64,
}

/// What the trainer and the prefetcher of a rank tell its tuner, epoch by epoch; only of the last few.
#[derive(Clone, Debug, Default)]
pub struct TrainedEpochs(Arc<Mutex<BTreeMap<u32, TrainedEpoch>>>);

/// What is known of one epoch.
#[derive(Clone, Debug, Default)]
struct TrainedEpoch {
    steps: Option<TrainedSteps>,
    fetches: Option<Vec<OwnerFetches>>,
}

impl TrainedEpochs {
    /// What the training steps of an epoch took.
    pub fn tell_steps(&self, epoch: u32, steps: TrainedSteps) {
        self.tell(epoch, |known| known.steps = Some(steps));
    }

    /// How long the owners took to answer in an epoch.
    pub fn tell_fetches(&self, epoch: u32, fetches: Vec<OwnerFetches>) {
        self.tell(epoch, |known| known.fetches = Some(fetches));
    }

    fn tell(&self, epoch: u32, what: impl FnOnce(&mut TrainedEpoch)) {
        let mut epochs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        what(epochs.entry(epoch).or_default());
        while epochs.len() > KEPT_EPOCHS {
            epochs.pop_first();
        }
    }

    /// The epochs of which all is known.
    fn all(&self) -> BTreeMap<u32, (TrainedSteps, Vec<OwnerFetches>)> {
        let epochs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = |(epoch, known): (&u32, &TrainedEpoch)| Some((*epoch, (known.steps?, known.fetches.clone()?)));
        epochs.iter().filter_map(whole).collect()
    }
}

/// What decides a choice, the same at all ranks.
#[derive(Clone, Debug)]
pub struct TuningSetting {
    pub candidates: Candidates,
    /// Epochs of the run.
    pub epochs: u32,
    /// Bytes of a row in memory.
    pub row_bytes: usize,
    pub parameters: PolicyParameters,
    /// Batches that are assembled ahead.
    pub ahead: u32,
    pub profile: Profile,
    /// Seconds of a step whose rows are there, by rank.
    pub step_s: Vec<f64>,
    pub calibration: Option<Calibration>,
    /// Which stalls are charged.
    pub mode: Mode,
}

/// How the rows of an epoch are asked for.
#[derive(Clone)]
pub struct Decision {
    pub method: Method,
    pub policy: Arc<dyn Policy>,
    pub window: u32,
    /// Why, where it is not what the epoch before did.
    pub choice: Option<Box<Choice>>,
}

/// One rank's part in the choices of a run.
pub struct Tuner {
    rank: Rank,
    book: Arc<PartitionBook>,
    collective: Collective,
    runtime: Handle,
    cancelled: watch::Receiver<bool>,
    setting: TuningSetting,
    tuned: Tuned,
    adaptation: Adaptation,
    trained: TrainedEpochs,
    /// What all ranks would move, by rank.
    moves: Vec<RankMoves>,
    /// What runs: a method and its windows; there is one budget in a run.
    current: Option<(Method, u32)>,
    /// Whether something else was better when the ranks chose last.
    is_challenged: bool,
    /// What this rank's plans of the last epochs moved.
    executed: BTreeMap<u32, Vec<WindowTraffic>>,
    counter: TrafficCounter,
    /// The last epoch that was learnt from.
    learnt: Option<u32>,
}

/// What a rank knows of an epoch that all have trained.
#[derive(Debug, Serialize, Deserialize)]
struct Past {
    steps: TrainedSteps,
    fetches: Vec<OwnerFetches>,
    windows: Vec<WindowTraffic>,
}

impl Tuner {
    pub fn new(
        collective: Collective,
        book: Arc<PartitionBook>,
        runtime: Handle,
        cancelled: watch::Receiver<bool>,
        trained: TrainedEpochs,
        setting: TuningSetting,
    ) -> Self {
        let rank = collective.rank();
        let by_rank = coefficients(&setting, book.parts());
        let tuned = match by_rank.get(usize::from(rank)) {
            Some(own) => Tuned::by(own, rank, setting.parameters),
            None => Tuned::default(),
        };
        Self {
            rank,
            book,
            collective,
            runtime,
            cancelled,
            tuned,
            adaptation: Adaptation::new(by_rank),
            setting,
            trained,
            moves: Vec::new(),
            current: None,
            is_challenged: false,
            executed: BTreeMap::new(),
            counter: TrafficCounter::default(),
            learnt: None,
        }
    }

    /// Decides how the rows of `epoch` are asked for. `traces` starts with that epoch's, and `held` is what the cache has.
    ///
    /// It waits for all ranks, which decide the same.
    ///
    /// # Errors
    /// A rank that does not answer, or a candidate that cannot be planned or priced.
    pub fn decide(
        &mut self,
        epoch: u32,
        traces: Vec<Arc<dyn RemoteTrace>>,
        held: &CacheState,
    ) -> Result<Decision, TuningError> {
        let has_learnt = self.learn(epoch)?;
        // At the same prices the choice is the same.
        if let Some(current) = self.current.clone().filter(|_| !has_learnt) {
            return self.decision(current, None);
        }
        if self.moves.is_empty() {
            self.moves = self.gather_moves(epoch, traces, Some(held.clone()))?;
        }
        let choice = self.price()?;
        let own = self.pick(&choice);
        // All ranks have computed the same, up to the last bits of their processors' arithmetic: the first one's counts.
        let all: Vec<(Method, u32)> = self.gather(epoch, CANDIDATE, &own)?;
        let candidate = all.into_iter().next().unwrap_or(own);
        let changes = self.current.as_ref() != Some(&candidate);
        self.current = Some(candidate.clone());
        self.decision(candidate, changes.then_some(choice))
    }

    fn decision(&mut self, (method, window): (Method, u32), choice: Option<Choice>) -> Result<Decision, TuningError> {
        self.counter = TrafficCounter::new(method.delivery);
        let policy = self.tuned.policy(&method)?;
        let choice = choice.map(|choice| Box::new(choice.picking(&method, window)));
        Ok(Decision {
            // A schedule without windows travels in parts of the usual length.
            window: if policy.uses_window() {
                window
            } else {
                Window::default().steps()
            },
            policy,
            method,
            choice,
        })
    }

    /// Chooses from all candidates before anything has run.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    pub fn choose(&mut self, traces: Vec<Arc<dyn RemoteTrace>>) -> Result<Choice, TuningError> {
        self.moves = self.gather_moves(0, traces, None)?;
        self.price()
    }

    /// Counts a window that is about to be executed.
    pub fn count(&mut self, plan: &WindowPlan) {
        self.counter.add(plan);
    }

    /// The epoch has been planned to its end.
    pub fn planned(&mut self, epoch: u32) {
        self.executed.insert(epoch, std::mem::take(&mut self.counter).finish());
        while self.executed.len() > KEPT_EPOCHS {
            self.executed.pop_first();
        }
    }

    /// Learns from the last epoch that all ranks have trained, and says whether there is a new one.
    fn learn(&mut self, epoch: u32) -> Result<bool, TuningError> {
        let trained = self.trained.all();
        let known = trained
            .keys()
            .rev()
            .find(|epoch| self.executed.contains_key(epoch))
            .copied();
        let all: Vec<Option<u32>> = self.gather(epoch, KNOWN, &known)?;
        let Some(common) = all
            .into_iter()
            .min()
            .flatten()
            .filter(|common| self.learnt < Some(*common))
        else {
            return Ok(false);
        };
        let (steps, fetches) = trained.get(&common).cloned().unwrap_or_default();
        let own = Past {
            steps,
            fetches,
            windows: self.executed.get(&common).cloned().unwrap_or_default(),
        };
        let all: Vec<Past> = self.gather(epoch, PAST, &own)?;
        // The rank that everybody waited for waited for nobody: what it still spent is the exchange itself.
        let exchange_s = all.iter().map(|past| past.steps.sync_s).reduce(f64::min).unwrap_or(0.0);
        let ranks: Vec<RankEpoch> = all
            .into_iter()
            .map(|past| RankEpoch {
                windows: past.windows,
                step_s: (past.steps.compute_s + exchange_s) / f64::from(past.steps.steps.max(1)),
                stall_s: past.steps.row_stall_s,
                fetches: past.fetches,
            })
            .collect();
        let seen = self.adaptation.observe(&ranks)?;
        tracing::info!(
            "rank {}, epoch {common}: ranks waited {:.3} s for rows where {:.3} s were predicted; fetches take {:.2} times as \
             long as they were probed",
            self.rank,
            seen.measured_stall_s,
            seen.predicted_stall_s,
            seen.smoothed
        );
        if let Some(own) = self.adaptation.coefficients().get(usize::from(self.rank)) {
            // A share of the budget follows what an owner costs beside the others.
            self.tuned = Tuned::by(own, self.rank, self.setting.parameters);
        }
        self.learnt = Some(common);
        Ok(true)
    }

    fn gather_moves(
        &self,
        epoch: u32,
        traces: Vec<Arc<dyn RemoteTrace>>,
        held: Option<CacheState>,
    ) -> Result<Vec<RankMoves>, TuningError> {
        let traces = RankTraces {
            rank: self.rank,
            epochs: traces,
            held,
            tuned: self.tuned.clone(),
        };
        let own = rank_moves(&self.book, self.setting.row_bytes, &traces, &self.setting.candidates)?;
        self.gather(epoch, MOVES, &own)
    }

    fn price(&self) -> Result<Choice, TuningError> {
        let setting = &self.setting;
        let prices = Prices {
            by_rank: self.adaptation.coefficients(),
            quality: setting.profile.quality,
            doubts: setting.profile.doubts(),
            fingerprint: Some(setting.profile.fingerprint.clone()),
        };
        let calibration = setting.calibration.as_ref();
        let choice = choose_from(
            &self.moves,
            setting.epochs,
            &setting.candidates,
            &prices,
            calibration,
            setting.mode,
        );
        Ok(choice?)
    }

    /// The candidate that runs, unless a better one has been there twice in a row: by the prices of this epoch and of the last
    /// something has saved more than the margin. By a calibration's scores, which are no joules, the best one is better.
    fn pick(&mut self, choice: &Choice) -> (Method, u32) {
        let best = candidate(&choice.pick);
        let Some(current) = self.current.clone() else {
            return best;
        };
        let better = if choice.is_calibrated {
            best
        } else {
            let priced = |prediction: &Prediction| (candidate(prediction), prediction.epoch_j);
            let predicted: Vec<_> = choice.predictions.iter().map(priced).collect();
            next_candidate(&current, &predicted, MARGIN)
        };
        let had_challenger = std::mem::replace(&mut self.is_challenged, better != current);
        if had_challenger { better } else { current }
    }

    /// What every rank brings, by rank.
    fn gather<T: Serialize + DeserializeOwned>(&self, epoch: u32, step: u32, own: &T) -> Result<Vec<T>, TuningError> {
        let together = gather(&self.collective, epoch, step, own);
        let mut cancelled = self.cancelled.clone();
        self.runtime.block_on(async {
            tokio::select! {
                all = together => all,
                _ = cancelled.changed() => Err(TuningError::Cancelled),
            }
        })
    }
}

fn candidate(prediction: &Prediction) -> (Method, u32) {
    (prediction.method.clone(), prediction.window)
}

/// What every rank brings to a choice, by rank.
///
/// # Errors
/// A rank that does not answer, or whose answer cannot be read.
pub async fn gather<T: Serialize + DeserializeOwned>(
    collective: &Collective,
    epoch: u32,
    step: u32,
    own: &T,
) -> Result<Vec<T>, TuningError> {
    let moment = Moment {
        epoch,
        step,
        period: Period {
            epoch,
            phase: if epoch == 0 { Phase::Setup } else { Phase::Training },
        },
    };
    Ok(collective.all_gather_values(ParcelKind::Choice, moment, own).await?)
}

/// The prices that a profile and measured steps give, by rank.
fn coefficients(setting: &TuningSetting, parts: Rank) -> Vec<Coefficients> {
    let ranks = u32::from(parts);
    (0..parts)
        .map(|rank| {
            let step_s = setting.step_s.get(usize::from(rank)).copied().unwrap_or(0.0);
            Coefficients {
                ahead: setting.ahead,
                ..setting.profile.coefficients_of(rank, parts, ranks, step_s, 0.0)
            }
        })
        .collect()
}

/// The candidates of a run: every window of the paper for its policy and budget, in each way of delivery that the policy has
/// plans for, or in the one that was asked for.
pub fn candidates_of_run(policy: &str, delivery: Option<Delivery>, budget: Budget, windows: &[u32]) -> Candidates {
    let deliveries = match delivery {
        Some(delivery) => vec![delivery],
        None if policy == "bulk" => vec![Delivery::Windowed, Delivery::Stream],
        None => vec![Delivery::Windowed],
    };
    Candidates {
        methods: deliveries
            .into_iter()
            .map(|delivery| Method::new(policy, delivery))
            .collect(),
        budgets: vec![budget],
        windows: windows.to_vec(),
    }
}
