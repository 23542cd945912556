//! `greengnn import`.

use std::path::PathBuf;

use clap::ValueEnum;
use greengnn_model::import::{ImportOptions, ImportRecord, Treatment, import_folder};
use greengnn_model::store::GraphManifest;

use super::CliResult;
use super::output::print;
use crate::lifetime::Unfinished;

#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// The data set: a folder with edges (edges.csv, edges.csv.gz, edge_index.npy, or indptr.npy and indices.npy),
    /// features (node-feat.npy or node-feat-csr.npz), node-label.npy and split/{train,valid,test}.npy.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The graph folder to write. It must not exist.
    #[arg(long, value_name = "GRAPH")]
    pub out: PathBuf,
    /// Columns to which wider sparse features are reduced.
    #[arg(long, value_name = "COLUMNS", default_value_t = ImportOptions::default().svd)]
    pub svd: usize,
    /// Keep edges in their direction, instead of storing each in both.
    #[arg(long)]
    pub directed: bool,
    /// Edges from a node to itself.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = KeepOrDrop::Keep)]
    pub self_loops: KeepOrDrop,
    /// Edges that were given before (without --directed also in the other direction).
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = KeepOrDrop::Drop)]
    pub duplicates: KeepOrDrop,
    /// Number of classes [default: the largest label plus one]
    #[arg(long, value_name = "N")]
    pub classes: Option<u32>,
    /// Seed of the reduction of sparse features.
    #[arg(long, value_name = "N", default_value_t = ImportOptions::default().seed)]
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeepOrDrop {
    Keep,
    Drop,
}

impl From<KeepOrDrop> for Treatment {
    fn from(choice: KeepOrDrop) -> Self {
        match choice {
            KeepOrDrop::Keep => Treatment::Keep,
            KeepOrDrop::Drop => Treatment::Drop,
        }
    }
}

pub fn run(args: ImportArgs) -> CliResult {
    let options = ImportOptions {
        svd: args.svd,
        directed: args.directed,
        self_loops: args.self_loops.into(),
        duplicates: args.duplicates.into(),
        classes: args.classes,
        seed: args.seed,
    };
    let _unfinished = Unfinished::target(&args.out)?;
    let manifest = import_folder(&args.folder, &options, &args.out)?;
    for (name, value) in table(&manifest) {
        print(format_args!("{name:<12} {value}"))?;
    }
    print(format_args!("{:<12} {}", "written to", args.out.display()))?;
    Ok(())
}

/// What a person wants to know about the graph, line by line.
fn table(manifest: &GraphManifest) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("nodes", manifest.nodes.to_string()),
        (
            "edges",
            format!(
                "{} stored, {}",
                manifest.edges,
                if manifest.directed {
                    "in their direction"
                } else {
                    "in both directions"
                }
            ),
        ),
    ];
    let Some(record) = ImportRecord::of(manifest) else {
        return lines;
    };
    let fate = |treatment| match treatment {
        Treatment::Keep => "kept",
        Treatment::Drop => "dropped",
    };
    let features = match &record.features.svd {
        None => format!("{} columns, from {}", record.features.columns, record.features.file),
        Some(svd) => format!(
            "{} columns, from {} of {} by SVD ({:.1} % of the squares explained, scaled by {:.4})",
            svd.columns,
            record.features.given_columns,
            record.features.file,
            100.0 * svd.explained,
            svd.scale
        ),
    };
    lines.extend([
        ("", format!("{} given in {}", record.edges_given, record.edges_file)),
        (
            "self-loops",
            format!("{}, {}", record.self_loops, fate(record.self_loops_treatment)),
        ),
        (
            "duplicates",
            format!("{}, {}", record.duplicates, fate(record.duplicates_treatment)),
        ),
        ("isolated", format!("{} nodes", record.isolated)),
        (
            "labels",
            format!(
                "{} nodes in {} classes ({})",
                manifest.labelled,
                manifest.classes,
                if record.classes_declared {
                    "declared"
                } else {
                    "largest label plus one"
                }
            ),
        ),
        (
            "splits",
            format!("{} train, {} valid, {} test", record.train, record.valid, record.test),
        ),
        ("features", features),
    ]);
    lines
}
