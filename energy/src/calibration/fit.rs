//! The minimum of the pairwise logistic loss with ridges, which is convex: Newton's method with halved steps.

use super::{CalibrationOptions, FEATURES};

/// Steps at most. From zero a handful are enough; the loss falls in every one.
const MOST_STEPS: u32 = 50;

/// Two windows of a setting, of which one was measured to be better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pair {
    pub better: u32,
    pub worse: u32,
    /// The analytic score of the worse less that of the better: positive if it has them in order.
    pub offset: f64,
    /// The same difference of the standardised features.
    pub z: [f64; FEATURES],
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weights {
    pub beta: [f64; FEATURES],
    /// One per window that has a bias.
    pub gamma: Vec<f64>,
}

impl Weights {
    /// The score of the worse less that of the better.
    pub fn margin(&self, pair: &Pair, windows: &[u32]) -> f64 {
        let parameters: Vec<f64> = self.beta.iter().chain(&self.gamma).copied().collect();
        margin(&parameters, pair, &direction(pair, windows))
    }
}

/// How a pair's margin grows with each parameter: beta, then gamma.
fn direction(pair: &Pair, windows: &[u32]) -> Vec<f64> {
    let bias = |window: &u32| f64::from(u8::from(*window == pair.worse)) - f64::from(u8::from(*window == pair.better));
    pair.z.iter().copied().chain(windows.iter().map(bias)).collect()
}

fn margin(parameters: &[f64], pair: &Pair, direction: &[f64]) -> f64 {
    let learnt: f64 = parameters
        .iter()
        .zip(direction)
        .map(|(weight, along)| weight * along)
        .sum();
    pair.offset + learnt
}

/// `log(1 + exp(-margin))` without overflow.
fn logistic_loss(margin: f64) -> f64 {
    (-margin.abs()).exp().ln_1p() + (-margin).max(0.0)
}

/// Weights that minimise the mean loss of Eq. 5 over `pairs` plus the ridges. Without a pair all are zero.
pub(super) fn fit(pairs: &[Pair], windows: &[u32], options: CalibrationOptions) -> Weights {
    let count = FEATURES + windows.len();
    let directions: Vec<Vec<f64>> = pairs.iter().map(|pair| direction(pair, windows)).collect();
    let ridge = |parameter: usize| {
        if parameter < FEATURES {
            options.ridge
        } else {
            options.window_ridge.unwrap_or(options.ridge)
        }
    };
    let mean = 1.0 / pairs.len().max(1) as f64;
    let loss = |parameters: &[f64]| {
        let losses = pairs.iter().zip(&directions);
        let losses: f64 = losses
            .map(|(pair, direction)| logistic_loss(margin(parameters, pair, direction)))
            .sum();
        let ridges = parameters
            .iter()
            .enumerate()
            .map(|(index, weight)| ridge(index) * weight * weight);
        losses * mean + ridges.sum::<f64>()
    };
    let mut parameters = vec![0.0; count];
    for _ in 0..MOST_STEPS {
        let mut gradient: Vec<f64> = (0..count).map(|index| 2.0 * ridge(index) * parameters[index]).collect();
        let mut curvature = vec![vec![0.0; count]; count];
        (0..count).for_each(|index| curvature[index][index] = 2.0 * ridge(index));
        for (pair, direction) in pairs.iter().zip(&directions) {
            let wrong = 1.0 / (1.0 + margin(&parameters, pair, direction).exp());
            for (row, along) in direction.iter().enumerate() {
                gradient[row] -= mean * wrong * along;
                for (column, across) in direction.iter().enumerate() {
                    curvature[row][column] += mean * wrong * (1.0 - wrong) * along * across;
                }
            }
        }
        let step = solve(curvature, &gradient);
        let before = loss(&parameters);
        let mut length = 1.0;
        let moved = loop {
            let tried: Vec<f64> = parameters
                .iter()
                .zip(&step)
                .map(|(weight, step)| weight - length * step)
                .collect();
            if loss(&tried) < before {
                break Some(tried);
            }
            length *= 0.5;
            if length < 1e-6 {
                break None;
            }
        };
        match moved {
            Some(better) => parameters = better,
            None => break,
        }
    }
    let (beta, gamma) = parameters.split_at(FEATURES);
    Weights {
        beta: std::array::from_fn(|feature| beta[feature]),
        gamma: gamma.to_vec(),
    }
}

/// Solves `matrix x = right` for a positive definite matrix: elimination without exchanges, which such a matrix allows.
fn solve(mut matrix: Vec<Vec<f64>>, right: &[f64]) -> Vec<f64> {
    let count = right.len();
    let mut x = right.to_vec();
    for pivot in 0..count {
        let (above, below) = matrix.split_at_mut(pivot + 1);
        let eliminating = &above[pivot];
        for (row, values) in (pivot + 1..).zip(below) {
            let factor = values[pivot] / eliminating[pivot];
            values
                .iter_mut()
                .zip(eliminating)
                .for_each(|(value, pivot)| *value -= factor * pivot);
            x[row] -= factor * x[pivot];
        }
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|column| matrix[row][column] * x[column]).sum();
        x[row] = (x[row] - known) / matrix[row][row];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_solved() {
        let x = solve(vec![vec![4.0, 1.0], vec![1.0, 3.0]], &[9.0, 13.0]);
        assert!(
            (x[0] - 14.0 / 11.0).abs() < 1e-12 && (x[1] - 43.0 / 11.0).abs() < 1e-12,
            "{x:?}"
        );
    }

    #[test]
    fn the_loss_neither_overflows_nor_vanishes() {
        assert_eq!(logistic_loss(0.0), std::f64::consts::LN_2);
        assert_eq!(logistic_loss(-1000.0), 1000.0);
        assert_eq!(logistic_loss(1000.0), 0.0);
    }

    #[test]
    fn at_the_minimum_the_gradient_is_zero() {
        let pair = |offset, z| Pair {
            better: 1,
            worse: 2,
            offset,
            z,
        };
        let pairs = [
            pair(-1.0, [1.0, 0.0, 0.5, 0.0]),
            pair(0.5, [-0.3, 0.2, 0.0, 0.0]),
            pair(0.1, [2.0, -1.0, 0.0, 0.4]),
        ];
        let options = CalibrationOptions {
            ridge: 0.05,
            window_ridge: Some(0.2),
        };
        let weights = fit(&pairs, &[1, 2], options);
        for feature in 0..FEATURES {
            let slope: f64 = pairs
                .iter()
                .map(|pair| -pair.z[feature] / (1.0 + weights.margin(pair, &[1, 2]).exp()))
                .sum();
            let gradient = slope / 3.0 + 2.0 * 0.05 * weights.beta[feature];
            assert!(gradient.abs() < 1e-9, "{feature}: {gradient}");
        }
        // Only the difference of two biases shows, and the ridge makes them opposite.
        assert!((weights.gamma[0] + weights.gamma[1]).abs() < 1e-9);
    }
}
