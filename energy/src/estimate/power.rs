//! How much power a hardware thread draws at a load.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Load and share of the way from idle to full power: the curve of Boavizta, (P - 0.12) / (1.02 - 0.12), rounded.
const LOAD_CURVE: [(f64, f64); 4] = [(0.0, 0.0), (0.1, 0.22), (0.5, 0.70), (1.0, 1.0)];

/// A generation of CPUs, as `/proc/cpuinfo` names it.
struct Generation {
    name: &'static str,
    vendor: &'static str,
    family: u32,
    models: &'static [u32],
    steppings: RangeInclusive<u32>,
    power: CpuPower,
}

/// Watts per hardware thread, from the SPECpower_ssj2008 table of Cloud Carbon Footprint (Apache-2.0).
const GENERATIONS: [Generation; 5] = [
    intel(
        "Haswell",
        &[63],
        0..=u32::MAX,
        CpuPower {
            idle_w: 1.90,
            full_w: 6.01,
        },
    ),
    intel(
        "Broadwell",
        &[79, 86],
        0..=u32::MAX,
        CpuPower {
            idle_w: 0.71,
            full_w: 3.69,
        },
    ),
    // Model 85 with a smaller stepping is Skylake.
    intel(
        "Cascade Lake",
        &[85],
        5..=7,
        CpuPower {
            idle_w: 0.64,
            full_w: 3.97,
        },
    ),
    epyc(
        "EPYC of the first generation",
        &[1],
        CpuPower {
            idle_w: 0.82,
            full_w: 2.55,
        },
    ),
    epyc(
        "EPYC of the second generation",
        &[49],
        CpuPower {
            idle_w: 0.474,
            full_w: 1.693,
        },
    ),
];

const fn intel(
    name: &'static str,
    models: &'static [u32],
    steppings: RangeInclusive<u32>,
    power: CpuPower,
) -> Generation {
    Generation {
        name,
        vendor: "GenuineIntel",
        family: 6,
        models,
        steppings,
        power,
    }
}

const fn epyc(name: &'static str, models: &'static [u32], power: CpuPower) -> Generation {
    Generation {
        name,
        vendor: "AuthenticAMD",
        family: 23,
        models,
        steppings: 0..=u32::MAX,
        power,
    }
}

/// Power of one hardware thread, its share of the package included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuPower {
    /// Watts when idle.
    pub idle_w: f64,
    /// Watts when busy all the time.
    pub full_w: f64,
}

impl CpuPower {
    /// A thread of a server of about the year 2020.
    pub const GENERIC: CpuPower = CpuPower {
        idle_w: 0.7,
        full_w: 3.7,
    };

    /// Watts of a thread that is busy for the share `load` of the time.
    pub fn watts_per_thread(&self, load: f64) -> f64 {
        self.idle_w + (self.full_w - self.idle_w) * load_curve(load)
    }

    /// The power of the model that `/proc/cpuinfo` describes, and where it is from.
    pub(super) fn of_model(cpuinfo: &str) -> (CpuPower, String) {
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim())
            })
        };
        let number = |name: &str| field(name).and_then(|value| value.parse::<u32>().ok());
        let (vendor, family, model) = (field("vendor_id"), number("cpu family"), number("model"));
        let stepping = number("stepping").unwrap_or(0);
        let known = GENERATIONS.iter().find(|generation| {
            vendor == Some(generation.vendor)
                && family == Some(generation.family)
                && model.is_some_and(|model| generation.models.contains(&model))
                && generation.steppings.contains(&stepping)
        });
        match known {
            Some(generation) => (generation.power, generation.name.to_owned()),
            None => (Self::GENERIC, "a generic server".to_owned()),
        }
    }
}

/// The share of the way from idle to full power at a load in 0..=1.
fn load_curve(load: f64) -> f64 {
    if load.is_nan() {
        return 0.0;
    }
    let load = load.clamp(0.0, 1.0);
    LOAD_CURVE
        .windows(2)
        .find(|ends| load <= ends[1].0)
        .map_or(1.0, |ends| {
            ends[0].1 + (ends[1].1 - ends[0].1) * (load - ends[0].0) / (ends[1].0 - ends[0].0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_curve_meets_its_points_and_is_clamped() {
        for (load, share) in LOAD_CURVE {
            assert!((load_curve(load) - share).abs() < 1e-12);
        }
        assert_eq!(load_curve(-1.0), 0.0);
        assert_eq!(load_curve(7.0), 1.0);
        assert_eq!(load_curve(f64::NAN), 0.0);
        assert!((load_curve(0.3) - 0.46).abs() < 1e-12);
    }

    #[test]
    fn models_are_told_apart() {
        let cpuinfo = |model: u32, stepping: u32| {
            format!(
                "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: x\nstepping\t: {stepping}\n"
            )
        };
        assert_eq!(CpuPower::of_model(&cpuinfo(63, 2)).0.full_w, 6.01);
        assert_eq!(CpuPower::of_model(&cpuinfo(85, 7)).1, "Cascade Lake");
        assert_eq!(
            CpuPower::of_model(&cpuinfo(85, 4)).0,
            CpuPower::GENERIC,
            "Skylake is not in the table"
        );
        assert_eq!(CpuPower::of_model("").0, CpuPower::GENERIC);
    }

    proptest! {
        /// Looking at an interval early never gives more energy than its end does: time times the curve of busy over
        /// time grows.
        #[test]
        fn energy_grows_with_time_and_use(
            busy in 0.0..10.0f64, more_busy in 0.0..10.0f64, elapsed in 0.01..10.0f64, more in 0.0..10.0f64,
        ) {
            let energy = |busy: f64, elapsed: f64| CpuPower::GENERIC.watts_per_thread(busy / elapsed) * elapsed;
            let (busy, later) = (busy.min(elapsed), elapsed + more);
            prop_assert!(energy(busy + more_busy.min(more), later) >= energy(busy, elapsed) - 1e-9);
        }
    }
}
