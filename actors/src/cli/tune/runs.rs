//! Candidates that are run for real.

use std::collections::BTreeMap;
use std::path::Path;

use greengnn_energy::choice::Prediction;
use greengnn_energy::profile::Profile;
use greengnn_energy::quality::Quality;
use greengnn_model::rng::{mix_words, shuffle};
use serde::Serialize;

use super::title;
use crate::cli::output::note;
use crate::config::{TrainConfig, Window};
use crate::launcher::{self, LaunchError, LocalRun};
use crate::report::summary::RunSummary;
use crate::work::{Known, Work};

/// Keeps the draws of the order apart from all others.
const ORDER: u64 = 0x7475_6e65_0000;

/// What an epoch of a run cost, mean over its epochs: training without evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EpochCost {
    /// Of all processes.
    pub cpu_s: f64,
    /// None where the energy of an epoch is not known.
    pub joules: Option<f64>,
    pub quality: Quality,
    pub wall_s: f64,
}

impl EpochCost {
    fn of(summary: &RunSummary) -> Self {
        let epochs = summary.epochs.len().max(1) as f64;
        let periods = || summary.epochs.iter().map(|epoch| &epoch.period);
        let joules: Option<f64> = periods().map(|period| period.energy_j).sum();
        Self {
            cpu_s: periods().map(|period| period.cpu_s).sum::<f64>() / epochs,
            joules: joules.map(|joules| joules / epochs),
            quality: periods().map(|period| period.energy_quality).max().unwrap_or_default(),
            wall_s: periods().map(|period| period.wall_s).sum::<f64>() / epochs,
        }
    }
}

/// What candidates cost, by candidate and repeat.
pub type Costs = BTreeMap<usize, Vec<EpochCost>>;

/// Runs candidates again and again.
pub struct Runs<'a> {
    pub parts: &'a Path,
    pub machines: u32,
    pub repeats: u32,
}

/// One candidate of one configuration.
pub struct CandidateRun<'a> {
    pub config: &'a TrainConfig,
    pub prediction: &'a Prediction,
    /// What the prediction rests on, with which the run plans too.
    pub profile: &'a Profile,
}

impl Runs<'_> {
    /// Runs every candidate as often as there are repeats, in random order. Repeat `r` trains with the seed plus `r`, under all
    /// candidates.
    ///
    /// # Errors
    /// See [`LaunchError`].
    pub fn costs(&self, candidates: &[CandidateRun<'_>]) -> Result<Costs, LaunchError> {
        let mut order: Vec<(usize, u32)> = (0..candidates.len())
            .flat_map(|candidate| (0..self.repeats).map(move |repeat| (candidate, repeat)))
            .collect();
        let seed = candidates.first().map_or(0, |candidate| candidate.config.seed);
        shuffle(mix_words(&[ORDER, seed]), &mut order);
        let mut found: BTreeMap<(usize, u32), EpochCost> = BTreeMap::new();
        for (number, (candidate, repeat)) in order.iter().enumerate() {
            let run = &candidates[*candidate];
            let CandidateRun { config, prediction, .. } = run;
            note(format_args!(
                "run {} of {}: {} ({}) at {}, window {}, batch size {}, repeat {repeat}",
                number + 1,
                order.len(),
                prediction.method.policy,
                prediction.method.delivery.name(),
                prediction.budget,
                prediction.window,
                config.batch_size,
            ));
            found.insert((*candidate, *repeat), self.cost(run, *repeat)?);
        }
        let mut costs = Costs::new();
        for ((candidate, _), cost) in found {
            costs.entry(candidate).or_default().push(cost);
        }
        Ok(costs)
    }

    fn cost(&self, run: &CandidateRun<'_>, repeat: u32) -> Result<EpochCost, LaunchError> {
        let CandidateRun {
            config,
            prediction,
            profile,
        } = run;
        let folder = tempfile::tempdir().map_err(|source| LaunchError::Start {
            what: "a folder for the run".to_owned(),
            source,
        })?;
        let summary = launcher::train(LocalRun {
            config: TrainConfig {
                policy: prediction.method.policy.clone(),
                delivery: Some(prediction.method.delivery),
                budget: prediction.budget.to_string(),
                window: Window::Steps(prediction.window),
                seed: config.seed.wrapping_add(u64::from(repeat)),
                ..(*config).clone()
            },
            work: Work::Train(Known {
                profile: Some(Box::new((*profile).clone())),
                ..Known::default()
            }),
            parts: self.parts.to_owned(),
            machines: self.machines,
            out: Some(folder.path().join("run")),
            title: title(self.parts),
            metrics_addr: None,
        })?;
        Ok(EpochCost::of(&summary))
    }
}
