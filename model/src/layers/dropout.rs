//! Dropout by counter: whether an activation is dropped depends on the batch's key and its place, and on nothing else.
//!
//! So the mask is the same at any number of threads and after a resume, and it need not be stored: forward recomputes
//! it, backward sees it in the output's zeros.

use crate::rng::CounterRng;

/// Which activations of one layer and batch are dropped. The others are scaled up, so that the mean stays ("inverted
/// dropout"; Srivastava et al., JMLR 2014, section 10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    key: u64,
    /// Draws of 16 bits below it drop.
    threshold: u32,
}

/// Draws that one number of the generator gives, 16 bits each.
const LANES: usize = 4;

/// Number of values of a draw.
const DRAWS: u32 = 1 << 16;

impl Dropout {
    /// Dropout with the key of a batch and layer ([`BatchKey::dropout`](crate::rng::BatchKey::dropout)).
    ///
    /// `share` is rounded to a multiple of 2^-16; `None` if that drops nothing.
    pub fn new(key: u64, share: f64) -> Option<Self> {
        let threshold = (share * f64::from(DRAWS)).round().clamp(0.0, f64::from(DRAWS - 1)) as u32;
        (threshold > 0).then_some(Self { key, threshold })
    }

    /// What kept activations are multiplied with: one over the share that is kept.
    pub fn scale(&self) -> f32 {
        DRAWS as f32 / (DRAWS - self.threshold) as f32
    }

    /// Multiplies the activations at places `first ..` of the layer, in row-major order, by 0 or by the scale.
    pub fn apply(&self, first: usize, values: &mut [f32]) {
        let scale = self.scale();
        let lead = first.next_multiple_of(LANES) - first;
        let (head, body) = values.split_at_mut(lead.min(values.len()));
        let mut rng = self.at(first / LANES);
        if !head.is_empty() {
            self.apply_lanes(rng.next_u64() >> (16 * (LANES - lead)), scale, head);
        }
        for lanes in body.chunks_mut(LANES) {
            self.apply_lanes(rng.next_u64(), scale, lanes);
        }
    }

    /// The factors of the first `count` places, for back ends that take the mask as a tensor.
    pub fn factors(&self, count: usize) -> Vec<f32> {
        use rayon::prelude::*;

        const CHUNK: usize = 1 << 14;
        let mut factors = vec![1.0; count];
        factors
            .par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, factors)| self.apply(chunk * CHUNK, factors));
        factors
    }

    #[inline(always)]
    fn apply_lanes(&self, mut bits: u64, scale: f32, lanes: &mut [f32]) {
        for value in lanes {
            let kept = (bits as u32 & (DRAWS - 1)) >= self.threshold;
            *value *= if kept { scale } else { 0.0 };
            bits >>= 16;
        }
    }

    /// The generator, ready to give the number for the group of places `group`.
    fn at(&self, group: usize) -> CounterRng {
        CounterRng::at(self.key, group as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_dropped_is_the_share_asked_for() {
        for (key, share) in [(1u64, 0.1), (2, 0.5), (3, 0.9)] {
            let factors = Dropout::new(key, share).unwrap().factors(400_000);
            let dropped = factors.iter().filter(|factor| **factor == 0.0).count() as f64 / 400_000.0;
            // Five standard deviations of a binomial share.
            assert!(
                (dropped - share).abs() < 5.0 * (share * (1.0 - share) / 4e5).sqrt(),
                "{share}: {dropped}"
            );
            let mean = factors.iter().map(|factor| f64::from(*factor)).sum::<f64>() / 4e5;
            assert!((mean - 1.0).abs() < 0.03, "{share}: mean {mean}");
        }
    }

    #[test]
    fn neighbouring_places_are_independent() {
        let factors = Dropout::new(9, 0.5).unwrap().factors(200_000);
        for lag in 1..=8 {
            let both = factors
                .windows(lag + 1)
                .filter(|pair| pair[0] > 0.0 && pair[lag] > 0.0)
                .count();
            let share = both as f64 / (200_000 - lag) as f64;
            assert!((share - 0.25).abs() < 0.006, "lag {lag}: {share}");
        }
    }

    #[test]
    fn a_mask_is_the_same_in_pieces_and_differs_by_key() {
        let dropout = Dropout::new(77, 0.3).unwrap();
        let whole = dropout.factors(1000);
        for cut in [1, 2, 3, 4, 5, 499, 998] {
            let mut pieces = vec![1.0; 1000];
            let (left, right) = pieces.split_at_mut(cut);
            dropout.apply(0, left);
            let (middle, right) = right.split_at_mut(1);
            dropout.apply(cut, middle);
            dropout.apply(cut + 1, right);
            assert_eq!(pieces, whole, "cut at {cut}");
        }
        assert_ne!(Dropout::new(78, 0.3).unwrap().factors(1000), whole);
    }

    #[test]
    fn no_share_is_no_dropout() {
        assert_eq!(Dropout::new(1, 0.0), None);
        assert_eq!(Dropout::new(1, 0.5).unwrap().scale(), 2.0);
    }
}
