//! What the machines of a cluster do together once they have joined, and what comes of it.

use greengnn_energy::probing::ProbePlan;
use greengnn_energy::profile::Profile;
use serde::{Deserialize, Serialize};

use crate::report::summary::RunSummary;

/// What a supervisor leads its machines in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A training run.
    #[default]
    Train,
    /// A probe of what requests and rows cost between them.
    Probe(ProbePlan),
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Trained(Box<RunSummary>),
    Probed(Box<Profile>),
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
            Self::Probed(_) => Err(OtherOutcome { wanted: "a summary" }),
        }
    }

    /// The profile of a probe.
    ///
    /// # Errors
    /// It was no probe.
    pub fn profile(self) -> Result<Profile, OtherOutcome> {
        match self {
            Self::Probed(profile) => Ok(*profile),
            Self::Trained(_) => Err(OtherOutcome { wanted: "a profile" }),
        }
    }
}
