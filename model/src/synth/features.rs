//! The feature rows: a weak class signal in strong noise, `signal * centroid[class] + N(0, 1)`.

use rayon::prelude::*;

use super::SynthSpec;
use crate::rng::{CounterRng, mix_words};

mod domain {
    pub const CENTROID: u64 = 101;
    pub const NOISE: u64 = 102;
}

/// Makes any row of the feature matrix by its node id.
pub(super) struct FeatureRows {
    seed: u64,
    width: usize,
    /// The centroid of every class, already scaled by the signal; one class after the other.
    centroids: Vec<f32>,
}

impl FeatureRows {
    pub(super) fn new(spec: &SynthSpec) -> Self {
        let width = spec.features as usize;
        let mut centroids = vec![0.0; usize::from(spec.classes) * width];
        if width > 0 {
            for (class, centroid) in centroids.chunks_exact_mut(width).enumerate() {
                fill_normal(mix_words(&[spec.seed, domain::CENTROID, class as u64]), centroid);
                centroid.iter_mut().for_each(|value| *value *= spec.signal);
            }
        }
        Self {
            seed: spec.seed,
            width,
            centroids,
        }
    }

    /// Fills `rows` with the rows of the nodes from `first` on, whose classes are `classes`.
    pub(super) fn fill(&self, first: usize, classes: &[i64], rows: &mut [f32]) {
        if self.width == 0 {
            return;
        }
        rows.par_chunks_exact_mut(self.width)
            .zip(classes)
            .enumerate()
            .for_each(|(offset, (row, class))| {
                fill_normal(mix_words(&[self.seed, domain::NOISE, (first + offset) as u64]), row);
                let centroid = &self.centroids[*class as usize * self.width..][..self.width];
                row.iter_mut().zip(centroid).for_each(|(value, mean)| *value += mean);
            });
    }
}

/// Standard normal draws, two at a time (Box and Muller 1958, both branches).
fn fill_normal(key: u64, values: &mut [f32]) {
    let mut rng = CounterRng::new(key);
    for pair in values.chunks_mut(2) {
        let radius = (-2.0 * (1.0 - rng.unit_f64()).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * rng.unit_f64()).sin_cos();
        pair[0] = (radius * cosine) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (radius * sine) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_standard_normal_and_neighbours_are_uncorrelated() {
        let mut values = vec![0.0f32; 40_001];
        fill_normal(11, &mut values);
        let count = values.len() as f64;
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
        let variance = values
            .iter()
            .map(|value| (f64::from(*value) - mean).powi(2))
            .sum::<f64>()
            / count;
        let paired = values
            .chunks_exact(2)
            .map(|pair| f64::from(pair[0]) * f64::from(pair[1]))
            .sum::<f64>()
            / (count / 2.0);
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.03, "variance {variance}");
        assert!(paired.abs() < 0.03, "covariance of a pair {paired}");
    }

    #[test]
    fn a_row_does_not_depend_on_the_block_that_it_is_made_in() {
        let spec = SynthSpec::tiny(8);
        let rows = FeatureRows::new(&spec);
        let width = spec.features as usize;
        let classes = [0, 1, 2, 3, 0, 1, 2, 3];
        let mut whole = vec![0.0; 8 * width];
        rows.fill(0, &classes, &mut whole);
        let mut tail = vec![0.0; 3 * width];
        rows.fill(5, &classes[5..], &mut tail);
        assert_eq!(tail, whole[5 * width..]);
    }
}
