//! Counter-based random numbers: every draw is a pure function of a key and a position.
//!
//! Nothing here has a stream that threads could share. What is drawn for a node, a seed order or a dropout mask depends
//! only on what it is drawn *for*, so any machine, part or thread that asks gets the same answer, and a resumed run too.

use serde::{Deserialize, Serialize};

use crate::book::Rank;

/// What a set of batches is sampled for. Keeps the draws of training, evaluation and presampling apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    Train,
    Valid,
    Test,
    Presample,
}

impl Purpose {
    /// The number that stands for the purpose in keys and in trace files.
    pub fn code(self) -> u8 {
        match self {
            Purpose::Train => 0,
            Purpose::Valid => 1,
            Purpose::Test => 2,
            Purpose::Presample => 3,
        }
    }

    /// The inverse of [`code`](Self::code).
    pub fn from_code(code: u8) -> Option<Self> {
        [Purpose::Train, Purpose::Valid, Purpose::Test, Purpose::Presample]
            .get(usize::from(code))
            .copied()
    }
}

/// The golden ratio in 64 bits, the increment of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection that passes for random.
#[inline]
pub fn mix64(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A key made of several words: each word is mixed in, so that (1, 2) and (2, 1) differ.
#[inline]
pub fn mix_words(words: &[u64]) -> u64 {
    words.iter().fold(GOLDEN, |key, word| {
        mix64(key.wrapping_add(GOLDEN) ^ mix64(word.wrapping_add(GOLDEN)))
    })
}

/// Names one mini-batch of one rank: the prefix of every key that is drawn for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchKey {
    pub seed: u64,
    pub purpose: Purpose,
    /// 0 for evaluation, so that every epoch is evaluated on the same blocks.
    pub epoch: u32,
    pub rank: Rank,
    pub step: u32,
}

impl BatchKey {
    /// The key of the neighbours picked at `hop` (0 expands the seeds). It travels with a remote sampling request.
    pub fn hop(&self, hop: u32) -> u64 {
        self.word(1, u64::from(hop))
    }

    /// The key of the dropout mask behind `layer`.
    pub fn dropout(&self, layer: u32) -> u64 {
        self.word(2, u64::from(layer))
    }

    fn word(&self, domain: u64, number: u64) -> u64 {
        mix_words(&[
            self.seed,
            u64::from(self.purpose.code()),
            u64::from(self.epoch),
            u64::from(self.rank),
            u64::from(self.step),
            domain,
            number,
        ])
    }
}

/// A tiny generator over one key: draw `i` is `mix64(key + (i + 1) * golden)`, which is SplitMix64 started at `key`.
#[derive(Clone, Debug)]
pub struct CounterRng {
    state: u64,
}

impl CounterRng {
    pub fn new(key: u64) -> Self {
        Self { state: key }
    }

    /// The generator of `key` after `draws` draws.
    pub fn at(key: u64, draws: u64) -> Self {
        Self {
            state: key.wrapping_add(draws.wrapping_mul(GOLDEN)),
        }
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix64(self.state)
    }

    /// A number below `bound` by multiply-shift (Lemire 2019); the bias of at most `bound / 2^32` is not corrected.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Uniform in [0, 1) with 53 bits.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A standard normal draw (Box and Muller 1958, cosine branch).
    #[inline]
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit_f64()).cos()
    }
}

/// Shuffles `items` by Fisher and Yates with the draws of `key`.
pub fn shuffle<T>(key: u64, items: &mut [T]) {
    let mut rng = CounterRng::new(key);
    for last in (1..items.len()).rev() {
        // Splits hold fewer than 2^32 nodes, so the 64-bit product below never overflows.
        let other = ((u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64) as usize;
        items.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_batch_key_matters() {
        let base = BatchKey {
            seed: 1,
            purpose: Purpose::Train,
            epoch: 2,
            rank: 3,
            step: 4,
        };
        let mut keys = vec![base.hop(0), base.hop(1), base.dropout(0), base.dropout(1)];
        for changed in [
            BatchKey { seed: 2, ..base },
            BatchKey {
                purpose: Purpose::Valid,
                ..base
            },
            BatchKey { epoch: 3, ..base },
            BatchKey { rank: 4, ..base },
            BatchKey { step: 5, ..base },
            BatchKey {
                epoch: 4,
                step: 2,
                ..base
            },
        ] {
            keys.push(changed.hop(0));
        }
        let total = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), total);
    }

    #[test]
    fn shuffle_is_a_permutation_and_uniform_enough() {
        let mut first_place = [0u32; 6];
        for key in 0..6_000 {
            let mut items = [0, 1, 2, 3, 4, 5];
            shuffle(mix64(key), &mut items);
            first_place[items[0]] += 1;
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3, 4, 5]);
        }
        // Chi-squared with 5 degrees of freedom: 20.5 is the 0.1 % point.
        let chi: f64 = first_place
            .iter()
            .map(|count| (f64::from(*count) - 1000.0).powi(2) / 1000.0)
            .sum();
        assert!(chi < 20.5, "counts {first_place:?}, chi-squared {chi}");
    }

    #[test]
    fn normal_draws_have_mean_zero_and_variance_one() {
        let mut rng = CounterRng::new(7);
        let draws: Vec<f64> = (0..40_000).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.03, "variance {variance}");
    }
}
