//! The flags of `partition --refine`, and what is said of a refined cut.

use greengnn_model::partition::refine::{BatchShape, Moves, RefineSpec};
use greengnn_model::store::RefinementRecord;

use crate::config::TrainConfig;
use crate::report::units;

/// How a cut is refined for the batches that will train.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RefineFlags {
    /// Refine the cut so that epochs need fewer remote rows: `rows` gives feature rows to other owners than their nodes'
    /// and changes no weights, `seeds` gives nodes with their seeds, edges and rows to other parts, `both` does one after
    /// the other
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, default_missing_value = "rows")]
    pub refine: Option<RefineMoves>,
    /// Seeds per batch that `--refine` expects [default: as train]
    #[arg(long, requires = "refine", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: Option<u32>,
    /// Neighbours per hop, from the seeds outwards, that `--refine` expects [default: as train]
    #[arg(long, requires = "refine", value_delimiter = ',', num_args = 1..)]
    pub fanouts: Option<Vec<u32>>,
    /// Epochs that are sampled and counted to correct the estimate by which `--refine` moves rows [default: 0]
    #[arg(long, requires = "refine", value_parser = clap::value_parser!(u32).range(..=64))]
    pub presampled_epochs: Option<u32>,
}

/// What `--refine` may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RefineMoves {
    Rows,
    Seeds,
    Both,
}

impl RefineFlags {
    /// What was asked for; `seed` is that of the run whose first epoch is counted.
    pub fn spec(&self, seed: u64) -> Option<RefineSpec> {
        let defaults = TrainConfig::default();
        Some(RefineSpec {
            moves: match self.refine? {
                RefineMoves::Rows => Moves::Rows,
                RefineMoves::Seeds => Moves::Seeds,
                RefineMoves::Both => Moves::Both,
            },
            shape: BatchShape {
                batch_size: self.batch_size.unwrap_or(defaults.batch_size),
                fanouts: self.fanouts.clone().unwrap_or(defaults.fanouts),
            },
            seed,
            presampled_epochs: self.presampled_epochs.unwrap_or(0),
        })
    }
}

/// What a refinement was good for, in a few lines.
pub fn report(record: &RefinementRecord) -> String {
    let change = |before: f64, after: f64| match before {
        0.0 => 0.0,
        before => (after / before - 1.0) * 100.0,
    };
    let before = record.presampled_rows_before as f64;
    let after = record.presampled_rows_after as f64;
    format!(
        "refined for batches of {} with fanouts {:?}: {} nodes ({} train seeds) moved in {} sweeps, {} rows owned apart, \
         rows balance {:.3}\n\
         remote rows per epoch: expected {} -> {} ({:+.1} %), presampled {} -> {} ({:+.1} %)\n",
        record.batch_size,
        record.fanouts,
        units::count(record.moved_nodes.into()),
        units::count(record.moved_seeds.into()),
        record.sweeps,
        units::count(record.moved_rows.into()),
        record.balance_rows,
        units::count(record.expected_rows_before.round() as u64),
        units::count(record.expected_rows_after.round() as u64),
        change(record.expected_rows_before, record.expected_rows_after),
        units::count(record.presampled_rows_before),
        units::count(record.presampled_rows_after),
        change(before, after),
    )
}
