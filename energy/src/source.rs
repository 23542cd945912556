//! What the meter reads: a source has domains and is asked at every tick.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::quality::Quality;
use crate::snapshot::DomainState;

/// Something that measures domains of this computer.
pub trait Source: Send {
    /// Reads the hardware. `fresh` asks for a reading now, also from a source that otherwise reads more rarely than
    /// every tick. What cannot be read becomes a gap.
    fn sample(&mut self, clock: &dyn Clock, fresh: bool);

    /// Adds what every domain has accumulated by `now_s`.
    fn states(&self, now_s: f64, into: &mut Vec<DomainState>);

    /// What the source gives, or why it gives nothing.
    fn report(&self) -> SourceReport;
}

/// What one source of energy figures gives on this computer, or why it gives nothing and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// `rapl`, `nvml` or `estimate`.
    pub source: String,
    /// Quality of its figures; `Unavailable` without any.
    pub quality: Quality,
    /// One sentence for people.
    pub detail: String,
    /// Doubts about figures that there are.
    #[serde(default)]
    pub warnings: Vec<SourceWarning>,
}

/// A doubt about a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SourceWarning {
    /// A GPU's energy counter and the integral of its power differ by more than 10 % of the larger, over at least 10 s
    /// in which both could be read. The counter's figure is used, unless it has never moved.
    #[error(
        "{domain}: the energy counter gives {counter_j:.0} J and its power integrates to {power_j:.0} J over the same time; \
         trust neither before a meter at the plug has decided"
    )]
    CounterAndPowerDiffer {
        domain: String,
        counter_j: f64,
        power_j: f64,
    },
    /// The counter of one socket does not move while another's does. The processors have no measured figure then: the
    /// sum of the others would look like one of the whole.
    #[error(
        "{domain}: its counter never moves while that of another socket does, so that the processors are estimated"
    )]
    SocketStandsStill { domain: String },
}

impl SourceReport {
    pub fn new(source: &str, quality: Quality, detail: impl Into<String>) -> Self {
        Self {
            source: source.to_owned(),
            quality,
            detail: detail.into(),
            warnings: Vec::new(),
        }
    }
}
