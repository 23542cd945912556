//! What the machines of a cluster do together once they have joined, and what comes of it.

use greengnn_energy::calibration::Calibration;
use greengnn_energy::choice::{Candidates, Choice};
use greengnn_energy::probing::ProbePlan;
use greengnn_energy::profile::Profile;
use greengnn_energy::simulator::Mode;
use serde::{Deserialize, Serialize};

use crate::report::summary::RunSummary;

/// What a supervisor leads its machines in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A training run. What is known of the hardware is used by one that chooses its windows itself.
    Train(Known),
    /// A probe of what requests and rows cost between them.
    Probe(ProbePlan),
    /// A choice of policy, budget and window for a run of this configuration, without the run.
    Tune(Box<TunePlan>),
}

impl Default for Work {
    fn default() -> Self {
        Self::Train(Known::default())
    }
}

/// What was measured before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Known {
    /// Used if it is of the hardware that takes part; otherwise the machines are probed.
    pub profile: Option<Box<Profile>>,
    /// The same.
    pub calibration: Option<Box<Calibration>>,
    /// How to probe.
    pub probe: ProbePlan,
}

/// What is to be chosen from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TunePlan {
    pub candidates: Candidates,
    /// Which stalls are charged.
    pub mode: Mode,
    pub known: Known,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Trained(Box<RunSummary>),
    Probed(Box<Profile>),
    Chosen(Box<Chosen>),
}

/// A choice, and what it rests on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chosen {
    pub choice: Choice,
    pub profile: Profile,
    /// Seconds of a step whose rows are there, by rank.
    pub step_s: Vec<f64>,
}

/// The machines did something else than what was asked of them.
#[derive(Debug, thiserror::Error)]
#[error("the run ended without {wanted}")]
pub struct OtherOutcome {
    wanted: &'static str,
}

impl Outcome {
    /// The summary of a training run.
    ///
    /// # Errors
    /// It was no training run.
    pub fn summary(self) -> Result<RunSummary, OtherOutcome> {
        match self {
            Self::Trained(summary) => Ok(*summary),
            _ => Err(OtherOutcome { wanted: "a summary" }),
        }
    }

    /// The profile of a probe.
    ///
    /// # Errors
    /// It was no probe.
    pub fn profile(self) -> Result<Profile, OtherOutcome> {
        match self {
            Self::Probed(profile) => Ok(*profile),
            _ => Err(OtherOutcome { wanted: "a profile" }),
        }
    }

    /// A choice without its run.
    ///
    /// # Errors
    /// It was something else.
    pub fn chosen(self) -> Result<Chosen, OtherOutcome> {
        match self {
            Self::Chosen(chosen) => Ok(*chosen),
            _ => Err(OtherOutcome { wanted: "a choice" }),
        }
    }
}
