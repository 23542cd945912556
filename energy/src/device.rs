//! The energy of a window by device: GPUs, processors, and their memory.

use serde::{Deserialize, Serialize};

use crate::domain::DomainKind;
use crate::quality::Quality;
use crate::snapshot::{DomainEnergy, EnergyTotal};

/// Joules, and how they were obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Joules {
    /// None, never 0, if they are not known.
    pub joules: Option<f64>,
    /// That of the worst part; `Unavailable` exactly when there are none.
    pub quality: Quality,
}

/// What the parts of a total come to by device. A device that was not metered is none: its energy is not in the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceEnergy {
    /// All GPU boards.
    pub gpu: Option<Joules>,
    /// All packages, or the estimate that stands in for them.
    pub cpu: Option<Joules>,
    /// The memory of all sockets, where it has a counter.
    pub dram: Option<Joules>,
}

impl EnergyTotal {
    /// The parts of the total by device. Together they are the total, and each has the quality of its own parts.
    pub fn by_device(&self) -> DeviceEnergy {
        let parts = || self.counted.iter().chain(&self.missing);
        let of = |kinds: &[DomainKind]| {
            parts()
                .filter(|energy| kinds.contains(&energy.kind))
                .map(Joules::from)
                .reduce(Joules::plus)
        };
        DeviceEnergy {
            gpu: of(&[DomainKind::Gpu]),
            cpu: of(&[DomainKind::Package, DomainKind::Estimate]),
            dram: of(&[DomainKind::Dram]),
        }
    }
}

impl From<&DomainEnergy> for Joules {
    fn from(energy: &DomainEnergy) -> Self {
        Self {
            joules: energy.joules,
            quality: energy.quality,
        }
    }
}

impl Joules {
    /// The sum, which is not known as soon as one of the two is not.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match self.joules.zip(other.joules) {
            Some((one, other_joules)) => Self {
                joules: Some(one + other_joules),
                quality: self.quality.max(other.quality),
            },
            None => Self::default(),
        }
    }
}

impl DeviceEnergy {
    /// The sum of two windows. A device that was metered in one of them only has no figure for both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |one: Option<Joules>, other: Option<Joules>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or_default().plus(other.unwrap_or_default())),
        };
        Self {
            gpu: sum(self.gpu, other.gpu),
            cpu: sum(self.cpu, other.cpu),
            dram: sum(self.dram, other.dram),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::DomainKey;

    fn part(domain: &str, kind: DomainKind, joules: Option<f64>, quality: Quality) -> DomainEnergy {
        DomainEnergy {
            key: DomainKey::new("host", domain),
            kind,
            joules,
            quality,
            gaps: 0,
            gap_s: 0.0,
        }
    }

    fn joules(joules: f64, quality: Quality) -> Option<Joules> {
        Some(Joules {
            joules: Some(joules),
            quality,
        })
    }

    #[test]
    fn devices_add_up_to_the_total_and_have_the_quality_of_their_own_parts() {
        let total = EnergyTotal {
            joules: Some(115.0),
            quality: Quality::Estimated,
            counted: vec![
                part("gpu/a", DomainKind::Gpu, Some(70.0), Quality::Measured),
                part("gpu/b", DomainKind::Gpu, Some(20.0), Quality::Integrated),
                part("cpu-estimate", DomainKind::Estimate, Some(20.0), Quality::Estimated),
                part("package-0/dram", DomainKind::Dram, Some(5.0), Quality::Measured),
            ],
            ..EnergyTotal::default()
        };
        let devices = total.by_device();
        assert_eq!(devices.gpu, joules(90.0, Quality::Integrated));
        assert_eq!(devices.cpu, joules(20.0, Quality::Estimated));
        assert_eq!(devices.dram, joules(5.0, Quality::Measured));
        let sum: f64 = [devices.gpu, devices.cpu, devices.dram]
            .iter()
            .flatten()
            .filter_map(|part| part.joules)
            .sum();
        assert_eq!(Some(sum), total.joules);
    }

    #[test]
    fn what_is_not_known_is_not_zero_and_what_was_not_metered_is_not_there() {
        let total = EnergyTotal {
            counted: vec![part("package-0", DomainKind::Package, Some(9.0), Quality::Measured)],
            missing: vec![part("gpu/a", DomainKind::Gpu, None, Quality::Unavailable)],
            ..EnergyTotal::default()
        };
        let devices = total.by_device();
        assert_eq!(devices.cpu, joules(9.0, Quality::Measured));
        assert_eq!((devices.gpu, devices.dram), (Some(Joules::default()), None));
        assert_eq!(EnergyTotal::default().by_device(), DeviceEnergy::default());
    }

    #[test]
    fn windows_add_up_and_one_without_a_figure_leaves_none() {
        let one = DeviceEnergy {
            gpu: joules(1.0, Quality::Measured),
            cpu: joules(2.0, Quality::Estimated),
            dram: None,
        };
        let both = one.plus(one);
        assert_eq!(
            (both.gpu, both.cpu, both.dram),
            (joules(2.0, Quality::Measured), joules(4.0, Quality::Estimated), None)
        );
        let partly = one.plus(DeviceEnergy { gpu: None, ..one });
        assert_eq!(partly.gpu, Some(Joules::default()));
    }
}
