//! Repeated runs: means, intervals, and which differences are none.
//!
//! One run says nothing about noise, so that a mean has an interval only from two runs on, and two samples differ only
//! when the interval of their difference leaves out 0. Figures of different quality are not compared unless that is asked
//! for by name: an estimate that is off by 40 % beside a measurement makes a saving out of nothing.

use std::fmt;

use crate::quality::Quality;

mod student;

pub use student::{student_t_975, student_t_of_several};

/// One energy figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub joules: f64,
    pub quality: Quality,
}

/// Why figures are no sample, or samples cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    #[error("there is no figure; run at least once, and five times for an interval that is worth having")]
    NoFigure,
    #[error("a figure is {value}, which is no energy; leave the run out or repeat it")]
    NotFinite { value: f64 },
    #[error(
        "a figure is unavailable, and what is not known has no mean; see `greengnn doctor` for what can be measured"
    )]
    Unavailable,
    #[error(
        "figures that are {baseline} and figures that are {candidate} are not compared; measure both in the same way, or ask \
         for a comparison of mixed quality"
    )]
    DifferentQuality { baseline: Quality, candidate: Quality },
    #[error(
        "figures that are {best} and figures that are {worst} make no sample; measure all runs in the same way, or ask for \
         a sample of mixed quality"
    )]
    MixedSample { best: Quality, worst: Quality },
    #[error("a saving of a baseline of {mean_j} J has no percentage; the baseline must be more than 0 J")]
    NoBaseline { mean_j: f64 },
    #[error(
        "runs in pairs need as many of each: there are {baseline} of the baseline and {candidate} of the candidate"
    )]
    Unpaired { baseline: usize, candidate: usize },
}

/// Energies of repeated runs of one program, in the order in which they ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    joules: Vec<f64>,
    best: Quality,
    worst: Quality,
}

impl Sample {
    /// # Errors
    /// There is no figure, one is not finite or unavailable, or their qualities differ.
    pub fn new(figures: &[Figure]) -> Result<Self, StatisticsError> {
        let sample = Self::of_mixed_quality(figures)?;
        if sample.best != sample.worst {
            return Err(StatisticsError::MixedSample {
                best: sample.best,
                worst: sample.worst,
            });
        }
        Ok(sample)
    }

    /// The same of figures whose qualities may differ. The sample's is the worst.
    ///
    /// # Errors
    /// There is no figure, or one is not finite or unavailable.
    pub fn of_mixed_quality(figures: &[Figure]) -> Result<Self, StatisticsError> {
        let qualities = || figures.iter().map(|figure| figure.quality);
        let (Some(best), Some(worst)) = (qualities().min(), qualities().max()) else {
            return Err(StatisticsError::NoFigure);
        };
        if worst == Quality::Unavailable {
            return Err(StatisticsError::Unavailable);
        }
        if let Some(figure) = figures.iter().find(|figure| !figure.joules.is_finite()) {
            return Err(StatisticsError::NotFinite { value: figure.joules });
        }
        Ok(Self {
            joules: figures.iter().map(|figure| figure.joules).collect(),
            best,
            worst,
        })
    }

    /// The worst of its figures.
    pub fn quality(&self) -> Quality {
        self.worst
    }

    /// Mean and 95 % interval of the runs' energy.
    pub fn mean(&self) -> Mean {
        mean_of(&self.joules)
    }
}

/// A mean in joules and its 95 % confidence interval (Student's t).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    pub runs: usize,
    pub mean_j: f64,
    /// Half the width of the interval; none with one run.
    pub half_width_j: Option<f64>,
}

impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.half_width_j {
            Some(half) => write!(f, "{:.1} ± {half:.1} J ({} runs, 95 %)", self.mean_j, self.runs),
            None => write!(f, "{:.1} J (one run, no interval)", self.mean_j),
        }
    }
}

/// What a difference between two samples amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate takes less energy.
    Saves,
    /// The candidate takes more energy.
    Costs,
    /// The interval of the difference holds 0, or there are too few runs for one.
    NotDistinguishable,
}

/// What a candidate saves of a baseline's energy, in joules: positive is less energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saving {
    pub saved_j: f64,
    /// Half the width of the 95 % interval of `saved_j`; none with too few runs.
    pub half_width_j: Option<f64>,
    /// `saved_j` as a share of the baseline's mean.
    pub share: f64,
    pub verdict: Verdict,
    pub baseline_quality: Quality,
    pub candidate_quality: Quality,
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quality = if self.baseline_quality == self.candidate_quality {
            self.baseline_quality.to_string()
        } else {
            format!("{} against {}", self.candidate_quality, self.baseline_quality)
        };
        let interval = match self.half_width_j {
            Some(half) => format!("{:.1} ± {half:.1} J, 95 %", self.saved_j.abs()),
            None => "too few runs for an interval".to_owned(),
        };
        let percent = 100.0 * self.share.abs();
        match self.verdict {
            Verdict::Saves => write!(f, "{percent:.1} % less energy ({interval}; {quality})"),
            Verdict::Costs => write!(f, "{percent:.1} % more energy ({interval}; {quality})"),
            Verdict::NotDistinguishable => write!(f, "not distinguishable ({interval}; {quality})"),
        }
    }
}

/// What `candidate` saves of `baseline`, for runs that are independent of each other (Welch's interval).
///
/// # Errors
/// The samples differ in quality, or the baseline's mean is not positive.
pub fn saving(baseline: &Sample, candidate: &Sample) -> Result<Saving, StatisticsError> {
    same_quality(baseline, candidate)?;
    saving_of_mixed_quality(baseline, candidate)
}

/// The same for samples whose qualities may differ; the result carries both.
///
/// # Errors
/// The baseline's mean is not positive.
pub fn saving_of_mixed_quality(baseline: &Sample, candidate: &Sample) -> Result<Saving, StatisticsError> {
    let (runs_a, runs_b) = (baseline.joules.len() as f64, candidate.joules.len() as f64);
    let half_width_j = variance(&baseline.joules)
        .zip(variance(&candidate.joules))
        .map(|(a, b)| {
            let (a, b) = (a / runs_a, b / runs_b);
            let spread = a + b;
            if spread == 0.0 {
                return 0.0;
            }
            // Welch (1947) and Satterthwaite (1946).
            let freedom = spread * spread / (a * a / (runs_a - 1.0) + b * b / (runs_b - 1.0));
            student_t_975(freedom) * spread.sqrt()
        });
    let saved_j = baseline.mean().mean_j - candidate.mean().mean_j;
    judged(baseline, candidate, saved_j, half_width_j)
}

/// What `candidate` saves of `baseline`, for runs that were made in pairs, one of each under the same conditions (ABBA):
/// the interval is that of the pairs' differences.
///
/// # Errors
/// The samples differ in quality or length, or the baseline's mean is not positive.
pub fn paired_saving(baseline: &Sample, candidate: &Sample) -> Result<Saving, StatisticsError> {
    same_quality(baseline, candidate)?;
    if baseline.joules.len() != candidate.joules.len() {
        return Err(StatisticsError::Unpaired {
            baseline: baseline.joules.len(),
            candidate: candidate.joules.len(),
        });
    }
    let pairs = baseline.joules.iter().zip(&candidate.joules);
    let differences: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
    let mean = mean_of(&differences);
    judged(baseline, candidate, mean.mean_j, mean.half_width_j)
}

fn same_quality(baseline: &Sample, candidate: &Sample) -> Result<(), StatisticsError> {
    if baseline.quality() == candidate.quality() {
        Ok(())
    } else {
        Err(StatisticsError::DifferentQuality {
            baseline: baseline.quality(),
            candidate: candidate.quality(),
        })
    }
}

fn judged(
    baseline: &Sample,
    candidate: &Sample,
    saved_j: f64,
    half_width_j: Option<f64>,
) -> Result<Saving, StatisticsError> {
    let mean_j = baseline.mean().mean_j;
    if mean_j <= 0.0 {
        return Err(StatisticsError::NoBaseline { mean_j });
    }
    let verdict = match half_width_j {
        Some(half) if saved_j > half => Verdict::Saves,
        Some(half) if -saved_j > half => Verdict::Costs,
        _ => Verdict::NotDistinguishable,
    };
    Ok(Saving {
        saved_j,
        half_width_j,
        share: saved_j / mean_j,
        verdict,
        baseline_quality: baseline.quality(),
        candidate_quality: candidate.quality(),
    })
}

fn mean_of(values: &[f64]) -> Mean {
    let runs = values.len() as f64;
    Mean {
        runs: values.len(),
        mean_j: values.iter().sum::<f64>() / runs,
        half_width_j: variance(values).map(|variance| student_t_975(runs - 1.0) * (variance / runs).sqrt()),
    }
}

/// The unbiased variance; none of one value.
fn variance(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let runs = values.len() as f64;
    let mean = values.iter().sum::<f64>() / runs;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    Some(squares / (runs - 1.0))
}

#[cfg(test)]
mod tests;
