//! How the energy of a run is shared between GPUs and the rest.
//!
//! A summary has one total per period. The shares come from the power readings over time beside it (`energy.jsonl`): the
//! mean power of the GPUs against that of all domains. That is arithmetic on two sources, so a share is at best
//! estimated, even where the total is measured.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use greengnn_energy::quality::Quality;
use serde::{Deserialize, Serialize};

use crate::report::records::EnergyPoint;
use crate::report::summary::RunSummary;

/// Joules, and how they were obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Joules {
    /// None if the energy is not known.
    pub joules: Option<f64>,
    pub quality: Quality,
}

/// The energy of a whole run by device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceEnergy {
    /// None if no GPU was metered and none trained.
    pub gpu: Option<Joules>,
    /// Processors and their memory.
    pub cpu: Joules,
}

/// Shares the energy of the whole run by the power readings of its folder.
pub fn of_run(summary: &RunSummary, folder: &Path) -> io::Result<DeviceEnergy> {
    let file = File::open(folder.join("energy.jsonl"))?;
    let points = serde_json::Deserializer::from_reader(BufReader::new(file)).into_iter();
    let points = points.collect::<Result<Vec<EnergyPoint>, _>>()?;
    Ok(share(summary, &points))
}

fn share(summary: &RunSummary, points: &[EnergyPoint]) -> DeviceEnergy {
    let whole = summary.whole_run();
    let total = Joules {
        joules: whole.energy_j,
        quality: whole.energy_quality,
    };
    let powers = mean_powers(points);
    let gpu_trained = summary.device.starts_with("cuda");
    let gpu_metered = powers.iter().any(|(kind, _)| *kind == "gpu");
    if !gpu_metered && !gpu_trained && !powers.is_empty() {
        return DeviceEnergy { gpu: None, cpu: total };
    }
    let all: f64 = powers.iter().map(|(_, watts)| watts).sum();
    let gpus: f64 = powers
        .iter()
        .filter(|(kind, _)| *kind == "gpu")
        .map(|(_, watts)| watts)
        .sum();
    let (Some(joules), true) = (total.joules, gpu_metered && all > 0.0) else {
        return DeviceEnergy {
            gpu: Some(Joules::default()),
            cpu: Joules::default(),
        };
    };
    let part = |share: f64| Joules {
        joules: Some(joules * share),
        quality: total.quality.max(Quality::Estimated),
    };
    DeviceEnergy {
        gpu: Some(part(gpus / all)),
        cpu: part((all - gpus) / all),
    }
}

/// The readings of one domain: seconds since the start, and watts.
#[derive(Default)]
struct Domain<'a> {
    kind: &'a str,
    readings: Vec<(f64, f64)>,
}

/// Kind and mean power of every domain that is a part of a total.
fn mean_powers(points: &[EnergyPoint]) -> Vec<(&str, f64)> {
    let mut domains: BTreeMap<(&str, &str), Domain<'_>> = BTreeMap::new();
    for point in points {
        let counts = matches!(point.kind.as_str(), "package" | "dram" | "gpu" | "estimate");
        if let Some(watts) = point.watts.filter(|watts| counts && watts.is_finite()) {
            let domain = domains.entry((&point.host, &point.domain)).or_default();
            domain.kind = &point.kind;
            domain.readings.push((point.at_s, watts));
        }
    }
    let power = |Domain { kind, mut readings }| {
        readings.sort_by(|a, b| a.0.total_cmp(&b.0));
        // A reading is the mean power since the one before. The first has none before it and is left out if it can be.
        let (joules, seconds) = readings.windows(2).fold((0.0, 0.0), |(joules, seconds), pair| {
            let length = pair[1].0 - pair[0].0;
            (joules + pair[1].1 * length, seconds + length)
        });
        let mean = if seconds > 0.0 {
            joules / seconds
        } else {
            readings.iter().map(|reading| reading.1).sum::<f64>() / readings.len() as f64
        };
        (kind, mean)
    };
    domains.into_values().map(power).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::summary::tests::sample;

    fn point(at_s: f64, domain: &str, kind: &str, watts: f64) -> EnergyPoint {
        EnergyPoint {
            at_s,
            host: "a".into(),
            domain: domain.into(),
            kind: kind.into(),
            watts: Some(watts),
            quality: Quality::Measured,
        }
    }

    #[test]
    fn without_a_gpu_all_energy_is_the_processors() {
        let energy = share(&sample(), &[point(1.0, "package-0", "package", 40.0)]);
        assert_eq!(energy.gpu, None);
        assert_eq!(
            (energy.cpu.joules, energy.cpu.quality),
            (Some(380.0), Quality::Estimated)
        );
    }

    #[test]
    fn mean_power_shares_the_total_and_the_share_is_an_estimate() {
        let mut measured = sample();
        measured.epochs[0].period.energy_quality = Quality::Measured;
        // The core domain lies inside the package.
        let points = [
            point(1.0, "package-0", "package", 500.0),
            point(2.0, "package-0", "package", 50.0),
            point(4.0, "package-0", "package", 20.0),
            point(2.0, "core-0", "core", 40.0),
            point(1.0, "gpu/a", "gpu", 10.0),
        ];
        let energy = share(&measured, &points);
        let gpu = energy.gpu.unwrap();
        assert_eq!(gpu.quality, Quality::Estimated);
        // 30 W and 10 W of 380 J.
        assert!((gpu.joules.unwrap() - 95.0).abs() < 1e-9);
        assert!((energy.cpu.joules.unwrap() - 285.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_read_is_not_shared() {
        let mut on_gpu = sample();
        on_gpu.device = "cuda:0".into();
        let unknown = Some(Joules::default());
        assert_eq!(share(&on_gpu, &[point(1.0, "package-0", "package", 40.0)]).gpu, unknown);
        assert_eq!(share(&sample(), &[]).cpu, Joules::default());
        let mut no_total = sample();
        no_total.setup.energy_j = None;
        let energy = share(&no_total, &[point(1.0, "gpu/a", "gpu", 40.0)]);
        assert_eq!((energy.gpu, energy.cpu), (unknown, Joules::default()));
    }
}
