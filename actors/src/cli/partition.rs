//! `greengnn partition`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use greengnn_model::book::PartId;
use greengnn_model::partition::refine::{RefineError, RefineSpec};
use greengnn_model::partition::{
    BALANCE_LIMIT, PartitionError, assignment_from_file, hash_assignment, partition_graph, partition_graph_and_rows,
    stream_assignment,
};
use greengnn_model::rng::Purpose;
use greengnn_model::store::{FolderWriter, GraphStore, PartitionerRecord, PartsManifest, StoreError};

use super::CliResult;
use super::output::print;
use crate::lifetime::{Scratch, Unfinished};
use crate::metis_child::{MetisChildError, MetisProgram, links_of};

mod refine;

use self::refine::RefineFlags;

#[derive(Debug, clap::Args)]
pub struct PartitionArgs {
    /// Graph folder, as `greengnn import` or `greengnn synth` writes it.
    pub graph: PathBuf,
    /// Number of parts, which is also the number of ranks that will train.
    #[arg(long, value_parser = clap::value_parser!(PartId).range(1..))]
    pub parts: PartId,
    /// Parts folder to write; it must not exist.
    #[arg(long)]
    pub out: PathBuf,
    /// How nodes are given their parts.
    ///
    /// `metis`, `cluster` and `stream` cut few edges and balance nodes, train seeds and edges. `metis` holds the graph in
    /// memory, several times over. `cluster` leaves it on disk and has METIS cut clusters of nodes. `stream` needs a few
    /// bytes per node and reads the graph some twenty times.
    ///
    /// `hash` looks at nothing. `file:PATH` has the part of every node: a text with one part per line as `gpmetis` writes
    /// it, or a .npy of whole numbers.
    #[arg(long, default_value = "metis")]
    pub method: Method,
    /// Seed of the method.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub refine: RefineFlags,
}

/// How nodes are given their parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    Metis,
    /// METIS, of clusters.
    Cluster,
    Stream,
    Hash,
    /// An assignment that another program made.
    File(PathBuf),
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("file:")) {
            ("metis", _) => Ok(Self::Metis),
            ("cluster", _) => Ok(Self::Cluster),
            ("stream", _) => Ok(Self::Stream),
            ("hash", _) => Ok(Self::Hash),
            (_, Some(path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err("expected `metis`, `cluster`, `stream`, `hash` or `file:PATH`".to_owned()),
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Metis => out.write_str("metis"),
            Self::Cluster => out.write_str("cluster"),
            Self::Stream => out.write_str("stream"),
            Self::Hash => out.write_str("hash"),
            Self::File(path) => write!(out, "file:{}", path.display()),
        }
    }
}

/// Why a graph folder was not cut.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    #[error("cannot make a temporary folder beside {target}")]
    Scratch { target: PathBuf, source: std::io::Error },
    #[error("cannot find the program that is running, which METIS needs")]
    CurrentProgram(#[source] std::io::Error),
    #[error(transparent)]
    Metis(#[from] MetisChildError),
    #[error(transparent)]
    Partition(#[from] PartitionError),
    #[error("the cut was not refined: {0}")]
    Refine(#[from] RefineError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Cuts the graph folder `graph` into the parts folder `out`.
///
/// With [`Method::Metis`] and [`Method::Cluster`] the running program must be `greengnn`, which is started once more as a child; others call
/// [`MetisProgram::assign`] and [`partition_graph`] themselves. Parts are written straight from the mapped graph, one block
/// of rows at a time, so features are never held in memory.
pub fn cut(graph: &Path, parts: PartId, method: &Method, seed: u64, out: &Path) -> Result<PartsManifest, CutError> {
    cut_and_refine(graph, parts, method, seed, None, out)
}

/// As [`cut`], and refines the cut before it is written.
pub fn cut_and_refine(
    graph: &Path,
    parts: PartId,
    method: &Method,
    seed: u64,
    refinement: Option<&RefineSpec>,
    out: &Path,
) -> Result<PartsManifest, CutError> {
    FolderWriter::check_free(out)?;
    let store = GraphStore::open(graph)?;
    let nodes = store.manifest().nodes;
    let assignment = match method {
        Method::Metis => metis_program()?.assign(graph, parts, seed)?,
        Method::Cluster => {
            let scratch = scratch_beside(out)?;
            metis_program()?.assign_clusters(graph, parts, seed, scratch.path())?
        }
        Method::Stream => {
            let scratch = scratch_beside(out)?;
            let links = links_of(&store, scratch.path())?;
            stream_assignment(&links, store.split(Purpose::Train), parts, seed)?
        }
        Method::Hash => hash_assignment(nodes, parts, seed),
        Method::File(path) => assignment_from_file(path, nodes, parts)?,
    };
    let record = PartitionerRecord {
        method: method.to_string(),
        seed,
        ..PartitionerRecord::default()
    };
    let Some(spec) = refinement else {
        return Ok(partition_graph(&store, &assignment, parts, record, out)?);
    };
    let refined = greengnn_model::partition::refine::refine(&store, &assignment, parts, spec)?;
    let record = PartitionerRecord {
        refinement: Some(refined.record),
        ..record
    };
    let assignment = &refined.assignment;
    Ok(match &refined.row_owners {
        None => partition_graph(&store, assignment, parts, record, out)?,
        Some(owners) => partition_graph_and_rows(&store, assignment, owners, parts, record, out)?,
    })
}

fn metis_program() -> Result<MetisProgram, CutError> {
    MetisProgram::current().map_err(CutError::CurrentProgram)
}

fn scratch_beside(target: &Path) -> Result<Scratch, CutError> {
    Scratch::beside(target).map_err(|source| CutError::Scratch {
        target: target.to_owned(),
        source,
    })
}

pub fn run(args: PartitionArgs) -> CliResult {
    let _unfinished = Unfinished::target(&args.out)?;
    let spec = args.refine.spec(args.seed);
    let (graph, out) = (&args.graph, &args.out);
    let manifest = cut_and_refine(graph, args.parts, &args.method, args.seed, spec.as_ref(), out)?;
    print(report(&manifest).trim_end())?;
    Ok(())
}

/// What a person wants to know of a cut, in a few lines.
fn report(manifest: &PartsManifest) -> String {
    use std::fmt::Write;

    let record = &manifest.partitioner;
    let halo: u64 = manifest.parts.iter().map(|part| part.halo).sum();
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{} parts by {}: edge cut {:.3} ({} of {} stored edges), halo per node {:.3}",
        manifest.parts.len(),
        record.method,
        record.edge_cut,
        record.cut_edges,
        manifest.edges,
        halo as f64 / f64::from(manifest.nodes.max(1)),
    );
    let _ = writeln!(
        text,
        "balance (largest over mean): nodes {:.3}, train seeds {:.3}, edges {:.3}",
        record.balance_nodes, record.balance_train, record.balance_edges,
    );
    let balances = [record.balance_nodes, record.balance_train, record.balance_edges];
    let balanced = matches!(record.method.as_str(), "metis" | "cluster" | "stream");
    // METIS works in 32-bit floats, which may end a little above the limit that it was given.
    if balanced && balances.iter().any(|balance| *balance > BALANCE_LIMIT + 0.002) {
        let _ = writeln!(
            text,
            "note: a balance above {BALANCE_LIMIT} is the best that was found; single nodes are too heavy for this many parts, or \
             the three balances exclude each other",
        );
    }
    let _ = writeln!(text, "part        nodes        edges        seeds         halo");
    for (part, summary) in manifest.parts.iter().enumerate() {
        let _ = writeln!(
            text,
            "{part:>4} {:>12} {:>12} {:>12} {:>12}",
            summary.nodes, summary.edges, summary.train, summary.halo,
        );
    }
    if let Some(refinement) = &record.refinement {
        text.push_str(&refine::report(refinement));
    }
    text
}

#[cfg(test)]
mod tests {
    use greengnn_model::synth::SynthSpec;

    use super::*;

    #[test]
    fn methods_are_read_as_they_are_written() {
        for text in ["metis", "cluster", "stream", "hash", "file:a/graph.part.4"] {
            assert_eq!(text.parse::<Method>().unwrap().to_string(), text);
        }
        for text in ["", "file:", "Metis", "kahip"] {
            assert!(text.parse::<Method>().unwrap_err().contains("file:PATH"));
        }
    }

    #[test]
    fn the_report_names_cut_balances_halo_and_seeds() {
        let folder = tempfile::tempdir().unwrap();
        let graph = folder.path().join("graph");
        SynthSpec::tiny(4).write(&graph).unwrap();
        let file = folder.path().join("graph.part.3");
        std::fs::write(&file, "0\n0\n1\n1\n").unwrap();
        let method = Method::File(file);
        let manifest = cut(&graph, 3, &method, 1, &folder.path().join("parts")).unwrap();
        let text = report(&manifest);
        assert!(text.starts_with("3 parts by file:"), "{text}");
        assert!(text.contains("nodes 1.500, train seeds"), "{text}");
        assert!(text.contains("halo per node"), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
    }

    #[test]
    fn a_target_that_exists_is_refused_before_the_graph_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = cut(&missing, 2, &Method::Hash, 1, folder.path()).unwrap_err();
        assert!(
            matches!(error, CutError::Store(StoreError::TargetExists { .. })),
            "{error}"
        );
    }

    #[test]
    fn a_balance_beyond_the_limit_is_explained_where_it_was_promised() {
        let folder = tempfile::tempdir().unwrap();
        let graph = folder.path().join("graph");
        SynthSpec::tiny(4).write(&graph).unwrap();
        for (method, explained) in [(Method::Stream, true), (Method::Hash, false)] {
            let out = folder.path().join(method.to_string());
            let text = report(&cut(&graph, 3, &method, 1, &out).unwrap());
            assert_eq!(text.contains("too heavy for this many parts"), explained, "{text}");
        }
    }
}
