//! A line through points whose noise grows with their height.

use serde::{Deserialize, Serialize};

use crate::statistics::student_t_975;

/// A measured number and its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coefficient {
    pub value: f64,
    /// Half the width of the interval.
    pub half_width: f64,
}

/// `y = intercept + slope x`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub intercept: Coefficient,
    pub slope: Coefficient,
    /// The share of the points' weighted variance that the line explains.
    pub r_squared: f64,
    pub points: u32,
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    #[error("{points} points are too few, at least three are needed")]
    TooFew { points: usize },
    #[error("all points have the same number of rows")]
    OneAbscissa,
    #[error("a point is not a finite number")]
    NotFinite,
}

/// Lays a line through `points` by least squares of relative errors: a fetch of ten thousand rows is measured no better in
/// percent than one of a single row, and would otherwise decide the intercept alone. Weights come from a first line
/// without any.
///
/// # Errors
/// Fewer than three points, points of one abscissa, or numbers that are not finite.
pub fn fit_line(points: &[(f64, f64)]) -> Result<Line, LineError> {
    if points.len() < 3 {
        return Err(LineError::TooFew { points: points.len() });
    }
    if points.iter().any(|(x, y)| !x.is_finite() || !y.is_finite()) {
        return Err(LineError::NotFinite);
    }
    if points.iter().all(|(x, _)| *x == points[0].0) {
        return Err(LineError::OneAbscissa);
    }
    let first = weighted(points, |_| 1.0);
    // Below a thousandth of the greatest height noise does not shrink any further.
    let floor = points.iter().map(|(_, y)| y.abs()).fold(0.0, f64::max) * 1e-3;
    if floor == 0.0 {
        return Ok(first);
    }
    let height = |x: f64| (first.intercept.value + first.slope.value * x).abs().max(floor);
    Ok(weighted(points, |x| height(x).powi(-2)))
}

fn weighted(points: &[(f64, f64)], weight: impl Fn(f64) -> f64) -> Line {
    let sum = |term: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| weight(*x) * term(*x, *y)).sum::<f64>();
    let total = sum(&|_, _| 1.0);
    let (mean_x, mean_y) = (sum(&|x, _| x) / total, sum(&|_, y| y) / total);
    let spread = sum(&|x, _| (x - mean_x).powi(2));
    let slope = sum(&|x, y| (x - mean_x) * (y - mean_y)) / spread;
    let intercept = mean_y - slope * mean_x;
    let unexplained = sum(&|x, y| (y - intercept - slope * x).powi(2));
    let all = sum(&|_, y| (y - mean_y).powi(2));
    let freedom = points.len() as f64 - 2.0;
    let variance = unexplained / freedom;
    let t = student_t_975(freedom);
    Line {
        intercept: Coefficient {
            value: intercept,
            half_width: t * (variance * (1.0 / total + mean_x.powi(2) / spread)).sqrt(),
        },
        slope: Coefficient {
            value: slope,
            half_width: t * (variance / spread).sqrt(),
        },
        r_squared: if all > 0.0 { 1.0 - unexplained / all } else { 1.0 },
        points: points.len() as u32,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn points_on_a_line_give_the_line() {
        let line = fit_line(&[(1.0, 5.0), (10.0, 23.0), (100.0, 203.0)]).unwrap();
        assert!((line.intercept.value - 3.0).abs() < 1e-9 && (line.slope.value - 2.0).abs() < 1e-9);
        assert!(line.r_squared > 1.0 - 1e-12 && line.slope.half_width < 1e-6);
    }

    #[test]
    fn an_unweighted_line_has_the_textbook_s_interval() {
        // x = 1..5, y = 2, 4, 5, 4, 5: slope 0.6, intercept 2.2, standard error of the slope 0.2828, t(3) = 3.1824.
        let points = [(1.0, 2.0), (2.0, 4.0), (3.0, 5.0), (4.0, 4.0), (5.0, 5.0)];
        let line = weighted(&points, |_| 1.0);
        assert!((line.slope.value - 0.6).abs() < 1e-12 && (line.intercept.value - 2.2).abs() < 1e-12);
        assert!(
            (line.slope.half_width - 3.182_446 * 0.282_842_7).abs() < 1e-5,
            "{line:?}"
        );
        assert!((line.r_squared - 0.6).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_line_is_refused() {
        assert_eq!(
            fit_line(&[(1.0, 1.0), (2.0, 2.0)]),
            Err(LineError::TooFew { points: 2 })
        );
        assert_eq!(fit_line(&[(1.0, 1.0); 3]), Err(LineError::OneAbscissa));
        assert_eq!(
            fit_line(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0)]),
            Err(LineError::NotFinite)
        );
        assert_eq!(
            fit_line(&[(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]).unwrap().slope.value,
            0.0
        );
    }

    proptest! {
        /// Noise of 5 % leaves the small intercept beside a large slope visible, which a plain line would lose.
        #[test]
        fn initiation_is_found_under_noise_in_proportion(
            noise in prop::collection::vec(-0.05f64..0.05, 40),
            initiation in 1e-3f64..1e-1,
            row in 1e-6f64..1e-4,
        ) {
            let sizes = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0];
            let points: Vec<(f64, f64)> = noise
                .iter()
                .enumerate()
                .map(|(index, noise)| {
                    let x = sizes[index % sizes.len()];
                    (x, (initiation + row * x) * (1.0 + noise))
                })
                .collect();
            let line = fit_line(&points).unwrap();
            prop_assert!((line.intercept.value / initiation - 1.0).abs() < 0.06, "{line:?}");
            prop_assert!((line.slope.value / row - 1.0).abs() < 0.25, "{line:?}");
            prop_assert!(line.intercept.half_width > 0.0 && line.r_squared <= 1.0);
        }
    }
}
