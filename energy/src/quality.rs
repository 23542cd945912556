//! How an energy figure was obtained. Every figure carries its quality, and a total takes its worst part.

use serde::{Deserialize, Serialize};

/// From best to worst, so that `max` is the quality of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// Read from an energy counter of the hardware.
    Measured,
    /// Integrated from power readings of the hardware.
    Integrated,
    /// A share that a hypervisor apportioned.
    Virtual,
    /// Computed by a model: from CPU use, or over a gap between readings.
    Estimated,
    /// Not known. There is no figure, and it is not 0.
    #[default]
    Unavailable,
}

impl std::fmt::Display for Quality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Quality::Measured => "measured",
            Quality::Integrated => "integrated",
            Quality::Virtual => "virtual",
            Quality::Estimated => "estimated",
            Quality::Unavailable => "unavailable",
        })
    }
}
