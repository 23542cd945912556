//! Means with their 95 % confidence intervals.

use greengnn_energy::statistics::student_t_975;
use serde::{Deserialize, Serialize};

/// The mean of repeats and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub mean: f64,
    /// Half the width of the 95 % confidence interval; none for a single value, which says nothing of its spread.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// Of independent values with a normal distribution of unknown variance; none without values, or if one is not
    /// finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let count = values.len() as f64;
        // Taken from the first value, so that equal values have their mean without a rounding error.
        let mean = values[0] + values.iter().map(|value| value - values[0]).sum::<f64>() / count;
        let half_width = (values.len() > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let variance = squares / (count - 1.0);
            student_t_975(count - 1.0) * (variance / count).sqrt()
        });
        Some(Self { mean, half_width })
    }

    /// Whether the two intervals have a point in common; none if one of them has no interval.
    pub fn overlaps(&self, other: &Self) -> Option<bool> {
        let reach = self.half_width? + other.half_width?;
        Some((self.mean - other.mean).abs() <= reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_textbook() {
        // 10 +- t(4) * s / sqrt(5), with s = sqrt(2.5).
        let estimate = Estimate::of(&[8.0, 9.0, 10.0, 11.0, 12.0]).unwrap();
        assert_eq!(estimate.mean, 10.0);
        let half_width = estimate.half_width.unwrap();
        assert!((half_width - 1.963_243).abs() < 1e-5, "{half_width}");
        let two = Estimate::of(&[1.0, 3.0]).unwrap();
        assert!((two.half_width.unwrap() - 12.706_205).abs() < 1e-5);
    }

    #[test]
    fn a_single_value_has_no_interval_and_equal_ones_have_none_to_speak_of() {
        let one = Estimate::of(&[0.1]).unwrap();
        assert_eq!((one.mean, one.half_width), (0.1, None));
        let equal = Estimate::of(&[0.1; 7]).unwrap();
        assert_eq!((equal.mean, equal.half_width), (0.1, Some(0.0)));
        assert_eq!(equal.overlaps(&one), None);
        assert_eq!(equal.overlaps(&equal), Some(true));
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn intervals_overlap_if_they_touch() {
        let estimate = |mean, half_width| Estimate {
            mean,
            half_width: Some(half_width),
        };
        assert_eq!(estimate(1.0, 0.5).overlaps(&estimate(2.0, 0.5)), Some(true));
        assert_eq!(estimate(2.0, 0.5).overlaps(&estimate(1.0, 0.25)), Some(false));
    }
}
