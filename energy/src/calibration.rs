//! What the simulator's order lacks, learnt from a few windows that were run for real (the paper's Eq. 4 and 5).
//!
//! The paper adds a score without a unit to joules, so that its order depends on the unit. Here the score is
//!
//! ```text
//! S(W) = E_phy(W) / s + beta' z(W) + gamma_W
//! ```
//!
//! with `s` the standard deviation of `E_phy` over the candidates of a setting and `z` features that are standardised over
//! them; the pairwise loss of Eq. 5 is taken of this `S`, so that `beta = 0` is the analytic order. `beta` and `gamma` both
//! have a ridge, since without one the loss has no minimum. `gamma` is off by default: a window that was not run has none, and
//! one that was is judged by itself. Pairs that measurements cannot tell apart say nothing and are left out.
//!
//! Calibration can hurt. So every measured window is predicted once by weights that have not seen it, and the weights are
//! used only if they put fewer pairs in the wrong order than the analytic score does.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::files::{FileError, read_json, write_json};
use crate::fingerprint::Fingerprint;
use crate::simulator::{Mode, SimulatedCost};

mod fit;
#[cfg(test)]
mod tests;

use fit::{Pair, fit};

/// Number of features.
pub const FEATURES: usize = 4;

/// What the simulator says of a window beside its energy: the paper's rebuild count, miss count, stall time and hit ratio.
pub const FEATURE_NAMES: [&str; FEATURES] = ["rebuild_requests", "miss_requests", "stall_s", "hit_share"];

/// The layout of a calibration file.
const FORMAT_VERSION: u32 = 2;

/// One window of one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub window: u32,
    /// The simulator's joules that depend on the schedule (E_phy).
    pub physical_j: f64,
    /// In the order of [`FEATURE_NAMES`].
    pub features: [f64; FEATURES],
    /// What it really cost, where it was run.
    pub measured: Option<MeasuredCost>,
}

impl Candidate {
    /// A candidate as it was simulated. `needed_rows` are the remote rows of all batches.
    pub fn simulated(window: u32, cost: &SimulatedCost, needed_rows: u64) -> Self {
        let missed = cost.miss_rows as f64 / (needed_rows.max(1)) as f64;
        Self {
            window,
            physical_j: cost.physical_j(),
            features: [
                cost.rebuild_requests as f64,
                cost.miss_requests as f64,
                cost.stall_s(),
                1.0 - missed,
            ],
            measured: None,
        }
    }
}

/// The cost of a run, in any unit that is the same for all runs of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCost {
    pub mean: f64,
    /// Half the width of its interval; 0 for a single run.
    pub half_width: f64,
}

/// A graph, batch size and budget, and its candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub name: String,
    /// Steps per epoch: windows of at least that many steps are one program.
    pub steps: u32,
    pub candidates: Vec<Candidate>,
}

/// How weights are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationOptions {
    /// Ridge on `beta`, per pair.
    pub ridge: f64,
    /// Ridge on `gamma`, per pair; `None` leaves `gamma` out.
    pub window_ridge: Option<f64>,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self {
            ridge: 0.1,
            window_ridge: None,
        }
    }
}

/// Pairs of measured windows, each predicted without the window that is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveOneOut {
    pub pairs: u32,
    /// Pairs that the analytic score puts in the wrong order.
    pub analytic_wrong: u32,
    /// Pairs that the learnt score puts in the wrong order.
    pub learnt_wrong: u32,
}

/// What was learnt, and whether it is of use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    format_version: u32,
    /// The hardware that the windows were run on.
    pub fingerprint: Fingerprint,
    /// Whose prices are corrected.
    pub mode: Mode,
    /// Names of the weights' features.
    pub features: Vec<String>,
    /// Weights of the standardised features.
    pub beta: [f64; FEATURES],
    /// Bias by window; empty unless asked for.
    pub gamma: BTreeMap<u32, f64>,
    pub leave_one_out: LeaveOneOut,
    /// Whether the weights do better than the analytic score on windows that they have not seen. If not, they are kept to
    /// be looked at, and [`score`](Self::score) is analytic.
    pub is_used: bool,
    /// The settings that were run.
    pub trained_on: Vec<String>,
}

/// Why there is no calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("{setting}, window {window}: {what} is {value}; simulate or measure it again: it must be a finite number")]
    NotFinite {
        setting: String,
        window: u32,
        what: &'static str,
        value: f64,
    },
    #[error("no two of the windows that were run can be told apart; run others, or repeat them more often")]
    NothingToLearn,
    #[error("the calibration was made on other hardware ({difference}); run `greengnn tune --calibrate` here")]
    OtherHardware { difference: String },
    #[error("the calibration corrects prices of the other mode; run `greengnn tune --calibrate` with this one")]
    OtherMode,
    #[error(
        "the calibration has format {found}, this program reads {}; calibrate again",
        FORMAT_VERSION
    )]
    OtherFormat { found: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Calibration {
    /// Learns from the measured windows of `settings`.
    ///
    /// # Errors
    /// A figure that is not finite, or no pair of windows that differ.
    pub fn learn(
        settings: &[Setting],
        options: CalibrationOptions,
        fingerprint: Fingerprint,
        mode: Mode,
    ) -> Result<Self, CalibrationError> {
        let standardised: Vec<Standardised> = settings.iter().map(Standardised::new).collect::<Result<_, _>>()?;
        let pairs: Vec<Pair> = standardised.iter().flat_map(Standardised::pairs).collect();
        if pairs.is_empty() {
            return Err(CalibrationError::NothingToLearn);
        }
        let windows = windows_of(settings, options);
        let weights = fit(&pairs, &windows, options);
        let leave_one_out = leave_one_out(&pairs, &windows, options);
        Ok(Self {
            format_version: FORMAT_VERSION,
            fingerprint,
            mode,
            features: FEATURE_NAMES.map(str::to_owned).to_vec(),
            beta: weights.beta,
            gamma: windows.iter().copied().zip(weights.gamma).collect(),
            leave_one_out,
            is_used: leave_one_out.learnt_wrong < leave_one_out.analytic_wrong,
            trained_on: settings.iter().map(|setting| setting.name.clone()).collect(),
        })
    }

    /// The score of every candidate of a setting, the lower the better. Without a unit; the analytic one if the weights are
    /// not [used](Self::is_used).
    ///
    /// # Errors
    /// A figure that is not finite.
    pub fn score(&self, setting: &Setting) -> Result<Vec<f64>, CalibrationError> {
        let standardised = Standardised::new(setting)?;
        let score = |candidate: &StandardCandidate| {
            if !self.is_used {
                return candidate.offset;
            }
            let learnt: f64 = self.beta.iter().zip(candidate.z).map(|(beta, z)| beta * z).sum();
            candidate.offset + learnt + self.gamma.get(&candidate.window).copied().unwrap_or(0.0)
        };
        Ok(standardised.candidates.iter().map(score).collect())
    }

    /// Writes the calibration to a file, as a whole or not at all.
    ///
    /// # Errors
    /// [`CalibrationError::File`].
    pub fn save(&self, path: &Path) -> Result<(), CalibrationError> {
        Ok(write_json(path, self)?)
    }

    /// Reads a calibration, whatever hardware it was made on.
    ///
    /// # Errors
    /// [`CalibrationError::File`], [`CalibrationError::OtherFormat`].
    pub fn read(path: &Path) -> Result<Self, CalibrationError> {
        let calibration: Self = read_json(path, "a calibration")?;
        if calibration.format_version != FORMAT_VERSION {
            return Err(CalibrationError::OtherFormat {
                found: calibration.format_version,
            });
        }
        Ok(calibration)
    }

    /// Refuses other hardware than that on which the windows were run, and another price of waits than the one that was
    /// corrected.
    ///
    /// # Errors
    /// [`CalibrationError::OtherHardware`], [`CalibrationError::OtherMode`].
    pub fn check(&self, here: &Fingerprint, mode: Mode) -> Result<(), CalibrationError> {
        if let Some(difference) = self.fingerprint.difference(here) {
            return Err(CalibrationError::OtherHardware { difference });
        }
        match self.mode == mode {
            true => Ok(()),
            false => Err(CalibrationError::OtherMode),
        }
    }
}

/// A candidate in the units of its setting.
struct StandardCandidate {
    window: u32,
    /// `E_phy / s`.
    offset: f64,
    z: [f64; FEATURES],
    measured: Option<MeasuredCost>,
}

struct Standardised {
    steps: u32,
    candidates: Vec<StandardCandidate>,
}

impl Standardised {
    fn new(setting: &Setting) -> Result<Self, CalibrationError> {
        for candidate in &setting.candidates {
            check(setting, candidate)?;
        }
        let candidates = &setting.candidates;
        let (_, scale) = mean_and_deviation(candidates.iter().map(|candidate| candidate.physical_j));
        let moments: [(f64, f64); FEATURES] = std::array::from_fn(|feature| {
            mean_and_deviation(candidates.iter().map(|candidate| candidate.features[feature]))
        });
        let standard = |candidate: &Candidate| StandardCandidate {
            window: candidate.window,
            offset: candidate.physical_j / if scale > 0.0 { scale } else { 1.0 },
            z: std::array::from_fn(|feature| match moments[feature] {
                (mean, deviation) if deviation > 0.0 => (candidate.features[feature] - mean) / deviation,
                _ => 0.0,
            }),
            measured: candidate.measured,
        };
        Ok(Self {
            steps: setting.steps,
            candidates: candidates.iter().map(standard).collect(),
        })
    }

    /// All pairs of measured windows that are not the same program and whose intervals do not overlap.
    fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (index, a) in self.candidates.iter().enumerate() {
            for b in &self.candidates[index + 1..] {
                let (Some(cost_a), Some(cost_b)) = (a.measured, b.measured) else {
                    continue;
                };
                let difference = cost_b.mean - cost_a.mean;
                let is_same_program = a.window.min(self.steps) == b.window.min(self.steps);
                if is_same_program || difference.abs() <= cost_a.half_width + cost_b.half_width {
                    continue;
                }
                let (better, worse) = if difference > 0.0 { (a, b) } else { (b, a) };
                pairs.push(Pair {
                    better: better.window,
                    worse: worse.window,
                    offset: worse.offset - better.offset,
                    z: std::array::from_fn(|feature| worse.z[feature] - better.z[feature]),
                });
            }
        }
        pairs
    }
}

fn check(setting: &Setting, candidate: &Candidate) -> Result<(), CalibrationError> {
    let named = FEATURE_NAMES.iter().copied().zip(candidate.features);
    let measured = candidate
        .measured
        .iter()
        .flat_map(|cost| [("the measured cost", cost.mean), ("its interval", cost.half_width)]);
    let all = std::iter::once(("the simulated energy", candidate.physical_j))
        .chain(named)
        .chain(measured);
    for (what, value) in all {
        if !value.is_finite() {
            return Err(CalibrationError::NotFinite {
                setting: setting.name.clone(),
                window: candidate.window,
                what,
                value,
            });
        }
    }
    Ok(())
}

/// Mean and standard deviation over all candidates.
fn mean_and_deviation(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    let deviation = (values.map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    // Figures that differ by rounding alone are the same.
    (mean, if deviation > mean.abs() * 1e-12 { deviation } else { 0.0 })
}

/// The windows that have a bias, ascending.
fn windows_of(settings: &[Setting], options: CalibrationOptions) -> Vec<u32> {
    if options.window_ridge.is_none() {
        return Vec::new();
    }
    let measured = settings
        .iter()
        .flat_map(|setting| &setting.candidates)
        .filter(|candidate| candidate.measured.is_some());
    let mut windows: Vec<u32> = measured.map(|candidate| candidate.window).collect();
    windows.sort_unstable();
    windows.dedup();
    windows
}

/// Predicts the pairs of every window by weights that were learnt without that window, in any setting.
fn leave_one_out(pairs: &[Pair], windows: &[u32], options: CalibrationOptions) -> LeaveOneOut {
    let mut left_out: Vec<u32> = pairs.iter().flat_map(|pair| [pair.better, pair.worse]).collect();
    left_out.sort_unstable();
    left_out.dedup();
    let mut result = LeaveOneOut::default();
    for window in left_out {
        let (held_out, seen): (Vec<&Pair>, Vec<&Pair>) = pairs
            .iter()
            .partition(|pair| pair.better == window || pair.worse == window);
        let seen: Vec<Pair> = seen.into_iter().copied().collect();
        let weights = fit(&seen, windows, options);
        for pair in held_out {
            result.pairs += 1;
            result.analytic_wrong += u32::from(pair.offset <= 0.0);
            result.learnt_wrong += u32::from(weights.margin(pair, windows) <= 0.0);
        }
    }
    result
}
