//! The energy of a window by device (GPUs, processors, and their memory), and by domain.

use serde::{Deserialize, Serialize};

use std::collections::BTreeMap;

use crate::domain::{DomainKey, DomainKind};
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

/// What one domain took, in files and tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainJoules {
    /// The computer's boot id, and the domain's name on it.
    #[serde(flatten)]
    pub key: DomainKey,
    pub kind: DomainKind,
    /// Whether it is a part of the total; else it lies inside a part, or around all of them, and is only shown.
    pub counted: bool,
    #[serde(flatten)]
    pub energy: Joules,
}

impl EnergyTotal {
    /// Every domain that was metered, those that are only shown included, by host and name.
    pub fn by_domain(&self) -> Vec<DomainJoules> {
        let parts = self.counted.iter().chain(&self.missing).chain(&self.shown);
        let mut domains: Vec<DomainJoules> = parts.map(DomainJoules::from).collect();
        domains.sort_by(|a, b| a.key.cmp(&b.key));
        domains
    }
}

/// The domains of two windows, added up. One that has a figure for one of them only has none for both.
pub fn add_domains(one: &[DomainJoules], other: &[DomainJoules]) -> Vec<DomainJoules> {
    let mut sums: BTreeMap<&DomainKey, (DomainJoules, bool)> = BTreeMap::new();
    for domain in one {
        sums.insert(&domain.key, (domain.clone(), false));
    }
    for domain in other {
        match sums.get_mut(&domain.key) {
            Some((sum, in_both)) => {
                sum.energy = sum.energy.plus(domain.energy);
                *in_both = true;
            }
            None => {
                sums.insert(&domain.key, (domain.clone(), false));
            }
        }
    }
    let of_both = |(sum, in_both): (DomainJoules, bool)| DomainJoules {
        energy: if in_both { sum.energy } else { Joules::default() },
        ..sum
    };
    sums.into_values().map(of_both).collect()
}

impl From<&DomainEnergy> for DomainJoules {
    fn from(energy: &DomainEnergy) -> Self {
        Self {
            key: energy.key.clone(),
            kind: energy.kind,
            counted: energy.kind.counts_in_total(),
            energy: energy.into(),
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
    fn every_domain_is_there_and_says_whether_it_counts() {
        let total = EnergyTotal {
            counted: vec![
                part("package-1", DomainKind::Package, Some(9.0), Quality::Measured),
                part("package-0", DomainKind::Package, Some(4.0), Quality::Measured),
            ],
            shown: vec![part("psys", DomainKind::Psys, Some(30.0), Quality::Measured)],
            missing: vec![part("gpu/a", DomainKind::Gpu, None, Quality::Unavailable)],
            ..EnergyTotal::default()
        };
        let domains = total.by_domain();
        let seen: Vec<_> = domains
            .iter()
            .map(|domain| (domain.key.domain.as_str(), domain.counted, domain.energy.joules))
            .collect();
        assert_eq!(
            seen,
            [
                ("gpu/a", true, None),
                ("package-0", true, Some(4.0)),
                ("package-1", true, Some(9.0)),
                ("psys", false, Some(30.0))
            ]
        );
        let json = serde_json::to_value(&domains[1]).unwrap();
        assert_eq!((&json["domain"], &json["joules"]), (&"package-0".into(), &4.0.into()));

        let twice = add_domains(&domains, &domains);
        let sums: Vec<_> = twice.iter().map(|domain| domain.energy.joules).collect();
        assert_eq!(sums, [None, Some(8.0), Some(18.0), Some(60.0)]);
        let partly = add_domains(&domains, &domains[1..2]);
        let known: Vec<_> = partly.iter().filter_map(|domain| domain.energy.joules).collect();
        assert_eq!(known, [8.0], "what one window lacks is not known of both");
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
