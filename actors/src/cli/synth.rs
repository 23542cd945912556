//! `greengnn synth`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use greengnn_model::synth::{PRESETS, SynthSpec, SynthStatistics};

use super::CliResult;
use super::output::print;
use crate::lifetime::Unfinished;

#[derive(Debug, clap::Args)]
pub struct SynthArgs {
    /// Which graph: `small` (20,000 nodes), or Reddit or ogbn-products at a quarter of their size.
    #[arg(value_parser = PossibleValuesParser::new(PRESETS))]
    pub preset: String,
    /// Graph folder to write; it must not exist.
    #[arg(long)]
    pub out: PathBuf,
    /// Seed of every draw; the same seed gives the same bits at any number of threads.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

pub fn run(args: SynthArgs) -> CliResult {
    let spec = SynthSpec::preset(&args.preset, args.seed)?;
    let _unfinished = Unfinished::target(&args.out)?;
    let manifest = spec.write(&args.out)?;
    print(format_args!(
        "{}: {} nodes, {} edges ({} stored), {} features, {} classes",
        args.out.display(),
        manifest.nodes,
        spec.edges,
        manifest.edges,
        manifest.features,
        manifest.classes,
    ))?;
    let statistics: SynthStatistics = serde_json::from_value(manifest.source["statistics"].clone())?;
    print(format_args!(
        "degree: mean {:.1}, median {}, 99th percentile {}, largest {}; {} isolated nodes; \
         {:.1} % of the edges join one class",
        statistics.mean_degree,
        statistics.median_degree,
        statistics.p99_degree,
        statistics.largest_degree,
        statistics.isolated_nodes,
        100.0 * statistics.same_label_edges,
    ))?;
    Ok(())
}
