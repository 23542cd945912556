//! The steps of an epoch: which seeds each has, and under which key its neighbours are drawn.

use crate::book::{PartitionBook, Rank};
use crate::rng::{BatchKey, Purpose, mix_words, shuffle};
use crate::sampling::seed_order::proximity_order;
use crate::sampling::{SeedOrder, Topology};

/// Keeps the draws of the seed order apart from those of hops and dropout masks, which end in other words.
const SEED_ORDER: u64 = 3;

/// Steps per purpose, in the order in which the steps of an epoch are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    pub train: u32,
    pub valid: u32,
    /// 0 in epochs that are not tested.
    pub test: u32,
}

impl StepCounts {
    pub fn total(&self) -> u32 {
        self.train + self.valid + self.test
    }
}

/// Steps of an epoch: the maximum over ranks of the batches that `seed_counts` seeds make, short ones included.
/// A `batch_size` of 0 is read as 1.
pub fn steps(seed_counts: &[u32], batch_size: u32) -> u32 {
    let most = seed_counts.iter().copied().max().unwrap_or(0);
    most.div_ceil(batch_size.max(1))
}

/// What an epoch of one rank is a function of, beside the graph and the seeds.
///
/// Steps count on over the whole epoch: first the training steps, then validation, then test. A rank with fewer seeds
/// than another has *empty* steps at the end of each purpose, so that every rank takes part in every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochSpec {
    pub seed: u64,
    pub epoch: u32,
    pub rank: Rank,
    /// Seeds per batch; the last batch of a purpose may have fewer. At least 1.
    pub batch_size: u32,
    /// Neighbours per node in hop order from the seeds; one block per entry. At least one; 0 picks nobody.
    pub fanouts: Vec<u32>,
    /// What the training steps are drawn for: [`Purpose::Train`], or [`Purpose::Presample`] where an epoch is only
    /// counted.
    pub training: Purpose,
    /// The order in which train seeds make up batches. Evaluation takes its seeds as they are.
    pub order: SeedOrder,
    /// Steps of each purpose, the maximum over all ranks ([`steps`]). 0 leaves a purpose out.
    pub steps: StepCounts,
}

impl EpochSpec {
    /// What `step` is sampled for.
    pub fn purpose_of(&self, step: u32) -> Purpose {
        self.place(step).0
    }

    /// The key of everything that is drawn for `step`.
    ///
    /// `step` counts over the whole epoch; [`BatchKey::step`] counts inside the purpose, so that evaluation draws the
    /// same blocks however many training steps come before it. Evaluation has epoch 0 in its key for the same reason.
    pub fn key_of(&self, step: u32) -> BatchKey {
        let (purpose, step) = self.place(step);
        BatchKey {
            seed: self.seed,
            purpose,
            epoch: if purpose == self.training { self.epoch } else { 0 },
            rank: self.rank,
            step,
        }
    }

    /// The purpose of a step, and the step's number inside it.
    fn place(&self, step: u32) -> (Purpose, u32) {
        let StepCounts { train, valid, .. } = self.steps;
        if step < train {
            (self.training, step)
        } else if step - train < valid {
            (Purpose::Valid, step - train)
        } else {
            (Purpose::Test, step - train - valid)
        }
    }
}

/// The labelled rows of one part, local to it, ascending, each once per split.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeedRows<'a> {
    pub train: &'a [u32],
    pub valid: &'a [u32],
    pub test: &'a [u32],
}

/// Why an epoch cannot be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("the batch size must be at least 1")]
    BatchSize,
    #[error("the list of fanouts is empty; give one per layer, seeds first")]
    Fanouts,
    #[error("training steps are drawn for train or presample, not for {found:?}")]
    Training { found: Purpose },
    #[error("rank {rank} does not exist: the partition book has {parts} parts")]
    Rank { rank: Rank, parts: u16 },
    #[error("the topology has {rows} rows from node {first} on, part {rank} owns {wanted} from node {wanted_first} on")]
    Topology {
        rank: Rank,
        rows: u32,
        first: u32,
        wanted: u32,
        wanted_first: u32,
    },
    #[error("the {split} rows of rank {rank} must ascend and lie below {rows}: entry {index} is {row}")]
    Seeds {
        rank: Rank,
        split: &'static str,
        index: usize,
        row: u32,
        rows: u32,
    },
    #[error("{seeds} {split} seeds of rank {rank} do not fit into {steps} steps of {batch_size}")]
    TooFewSteps {
        rank: Rank,
        split: &'static str,
        seeds: usize,
        steps: u32,
        batch_size: u32,
    },
    #[error("an epoch has at most {limit} steps", limit = u32::MAX)]
    TooManySteps,
}

/// The seeds of every step of one epoch of one rank.
#[derive(Clone, Debug)]
pub struct Schedule {
    spec: EpochSpec,
    train: Vec<u32>,
    valid: Vec<u32>,
    test: Vec<u32>,
}

impl Schedule {
    /// Orders the seeds: training rows by a permutation keyed by (seed, epoch, rank), the others as they are.
    ///
    /// `local` is the topology of the rank's own part, by which [`SeedOrder::Proximity`] orders.
    pub fn new(
        spec: &EpochSpec,
        seeds: SeedRows<'_>,
        book: &PartitionBook,
        local: Topology<'_>,
    ) -> Result<Self, SpecError> {
        check_spec(spec, book)?;
        check_topology(spec, book, local)?;
        let StepCounts { train, valid, test } = spec.steps;
        for (split, rows, steps, optional) in [
            ("training", seeds.train, train, false),
            ("validation", seeds.valid, valid, true),
            ("test", seeds.test, test, true),
        ] {
            check_rows(spec, split, rows, book.part_nodes(spec.rank))?;
            let skipped = optional && steps == 0;
            if !skipped && (rows.len() as u64) > u64::from(steps) * u64::from(spec.batch_size) {
                return Err(SpecError::TooFewSteps {
                    rank: spec.rank,
                    split,
                    seeds: rows.len(),
                    steps,
                    batch_size: spec.batch_size,
                });
            }
        }
        let key = mix_words(&[
            spec.seed,
            u64::from(spec.training.code()),
            u64::from(spec.epoch),
            u64::from(spec.rank),
            SEED_ORDER,
        ]);
        let train = match spec.order {
            SeedOrder::Random => {
                let mut train = seeds.train.to_vec();
                shuffle(key, &mut train);
                train
            }
            SeedOrder::Proximity { sequences } => proximity_order(key, sequences, seeds.train, local),
        };
        Ok(Self {
            spec: spec.clone(),
            train,
            valid: seeds.valid.to_vec(),
            test: seeds.test.to_vec(),
        })
    }

    pub fn spec(&self) -> &EpochSpec {
        &self.spec
    }

    /// The seeds of `step` as rows of the rank's part, in the order of the batch. Empty where the rank has none left.
    pub fn seeds(&self, step: u32) -> &[u32] {
        let (purpose, step) = self.spec.place(step);
        let rows = match purpose {
            Purpose::Train | Purpose::Presample => &self.train,
            Purpose::Valid => &self.valid,
            Purpose::Test => &self.test,
        };
        let size = self.spec.batch_size as usize;
        let start = (step as usize).saturating_mul(size).min(rows.len());
        &rows[start..start.saturating_add(size).min(rows.len())]
    }
}

fn check_spec(spec: &EpochSpec, book: &PartitionBook) -> Result<(), SpecError> {
    if spec.batch_size == 0 {
        return Err(SpecError::BatchSize);
    }
    if spec.fanouts.is_empty() {
        return Err(SpecError::Fanouts);
    }
    if !matches!(spec.training, Purpose::Train | Purpose::Presample) {
        return Err(SpecError::Training { found: spec.training });
    }
    if spec.rank >= book.parts() {
        return Err(SpecError::Rank {
            rank: spec.rank,
            parts: book.parts(),
        });
    }
    let StepCounts { train, valid, test } = spec.steps;
    match train.checked_add(valid).and_then(|sum| sum.checked_add(test)) {
        Some(_) => Ok(()),
        None => Err(SpecError::TooManySteps),
    }
}

fn check_topology(spec: &EpochSpec, book: &PartitionBook, local: Topology<'_>) -> Result<(), SpecError> {
    let owned = book.range(spec.rank);
    let wanted = owned.end - owned.start;
    if local.first == owned.start && local.rows() == wanted {
        return Ok(());
    }
    Err(SpecError::Topology {
        rank: spec.rank,
        rows: local.rows(),
        first: local.first,
        wanted,
        wanted_first: owned.start,
    })
}

fn check_rows(spec: &EpochSpec, split: &'static str, seeds: &[u32], rows: u32) -> Result<(), SpecError> {
    for (index, row) in seeds.iter().enumerate() {
        if *row >= rows || (index > 0 && seeds[index - 1] >= *row) {
            return Err(SpecError::Seeds {
                rank: spec.rank,
                split,
                index,
                row: *row,
                rows,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
