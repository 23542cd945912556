//! Adam on the flat parameters (Kingma and Ba, ICLR 2015, algorithm 1).

/// Adam with its state, which is all that a resumed run needs besides the parameters.
///
/// Elementwise on the host in f32, so every device and number of threads takes the same step from the same gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    pub learning_rate: f64,
    /// Steps taken.
    pub step: u32,
    /// Running mean of the gradients, per parameter.
    pub mean: Vec<f32>,
    /// Running mean of the squared gradients, per parameter.
    pub square: Vec<f32>,
}

const BETA_MEAN: f64 = 0.9;
const BETA_SQUARE: f64 = 0.999;
const EPSILON: f64 = 1e-8;

impl Adam {
    pub fn new(learning_rate: f64, parameters: usize) -> Self {
        Self {
            learning_rate,
            step: 0,
            mean: vec![0.0; parameters],
            square: vec![0.0; parameters],
        }
    }

    /// Moves the parameters by one step against the gradients. The slices are as long as the state.
    pub fn apply(&mut self, parameters: &mut [f32], gradients: &[f32]) {
        self.step = self.step.saturating_add(1);
        let bias_mean = 1.0 - power(BETA_MEAN, self.step);
        let bias_square = 1.0 - power(BETA_SQUARE, self.step);
        let rate = (self.learning_rate / bias_mean) as f32;
        let root_bias = bias_square.sqrt() as f32;
        let state = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, gradient), (mean, square)) in parameters.iter_mut().zip(gradients).zip(state) {
            *mean += (1.0 - BETA_MEAN) as f32 * (gradient - *mean);
            *square = BETA_SQUARE as f32 * *square + (1.0 - BETA_SQUARE) as f32 * gradient * gradient;
            *parameter -= rate * *mean / (square.sqrt() / root_bias + EPSILON as f32);
        }
    }
}

/// `base` to the power of `exponent` by squaring: `f64::powi` may differ between platforms in its last bit.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_paper_in_f64() {
        let mut adam = Adam::new(0.01, 3);
        let mut parameters = [0.5f32, -1.0, 2.0];
        let mut exact = parameters.map(f64::from);
        let (mut mean, mut square) = ([0.0f64; 3], [0.0f64; 3]);
        for step in 1..=50 {
            let gradients = [0.3 * step as f32, -1e-4, (step as f32).sin()];
            adam.apply(&mut parameters, &gradients);
            for at in 0..3 {
                let gradient = f64::from(gradients[at]);
                mean[at] = 0.9 * mean[at] + 0.1 * gradient;
                square[at] = 0.999 * square[at] + 0.001 * gradient * gradient;
                let (corrected, root) = (
                    mean[at] / (1.0 - 0.9f64.powi(step)),
                    square[at] / (1.0 - 0.999f64.powi(step)),
                );
                exact[at] -= 0.01 * corrected / (root.sqrt() + 1e-8);
            }
        }
        for (found, wanted) in parameters.iter().zip(exact) {
            assert!((f64::from(*found) - wanted).abs() < 1e-5, "{found} and {wanted}");
        }
    }

    #[test]
    fn without_a_gradient_nothing_moves() {
        let mut adam = Adam::new(0.1, 2);
        let mut parameters = [1.0, -1.0];
        adam.apply(&mut parameters, &[0.0, 0.0]);
        assert_eq!(parameters, [1.0, -1.0]);
        assert_eq!(adam.step, 1);
    }
}
