//! Means with their 95 % confidence intervals.

use serde::{Deserialize, Serialize};

/// Quantiles of Student's t distribution at 0.975, for 1 to 30 degrees of freedom.
const T_975: [f64; 30] = [
    12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157, 2.228_139,
    2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922, 2.093_024, 2.085_963,
    2.079_614, 2.073_873, 2.068_658, 2.063_899, 2.059_539, 2.055_529, 2.051_831, 2.048_407, 2.045_230, 2.042_272,
];
/// The quantile of the standard normal distribution at 0.975.
const Z_975: f64 = 1.959_963_984_540_054;

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
            t_975(values.len() - 1) * (variance / count).sqrt()
        });
        Some(Self { mean, half_width })
    }

    /// Whether the two intervals have a point in common; none if one of them has no interval.
    pub fn overlaps(&self, other: &Self) -> Option<bool> {
        let reach = self.half_width? + other.half_width?;
        Some((self.mean - other.mean).abs() <= reach)
    }
}

/// The quantile at 0.975 for that many degrees of freedom. Beyond the table it is the expansion in 1/n (Abramowitz and
/// Stegun 26.7.5), which is right to five decimals there; none is infinitely wide.
fn t_975(degrees: usize) -> f64 {
    if degrees == 0 {
        return f64::INFINITY;
    }
    if let Some(quantile) = T_975.get(degrees - 1) {
        return *quantile;
    }
    let (z, n) = (Z_975, degrees as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / n + second / n.powi(2) + third / n.powi(3)
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

    #[test]
    fn quantiles_fall_and_meet_the_table_of_many_degrees() {
        // From tables: 40, 60 and 120 degrees of freedom.
        for (degrees, quantile) in [(40, 2.021_075), (60, 2.000_298), (120, 1.979_930)] {
            assert!(
                (t_975(degrees) - quantile).abs() < 1e-5,
                "{degrees}: {}",
                t_975(degrees)
            );
        }
        assert!((1..200).all(|degrees| t_975(degrees) > t_975(degrees + 1)));
        assert!(t_975(1_000_000) - Z_975 < 1e-5);
    }
}
