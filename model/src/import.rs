//! Reads a data set into a graph folder.
//!
//! A data set is a folder of plain files, as NumPy and SciPy write them:
//!
//! | what | file | content |
//! |---|---|---|
//! | edges, one of | `edges.csv`, `edges.csv.gz` | source and destination per line; commas, tabs or spaces; `#` starts a comment line; a header line may be there |
//! | | `edge_index.npy` | integers `[2, E]`: sources, then destinations |
//! | | `indptr.npy` + `indices.npy` | SciPy's CSR: row = source, its columns = destinations |
//! | features, one of | `node-feat.npy` | numbers `[N, D]` |
//! | | `node-feat-csr.npz` | `scipy.sparse.save_npz` of a CSR matrix `[N, D]` |
//! | labels | `node-label.npy` | whole numbers (also as floats) `[N]` or `[N, 1]`; -1 and NaN are unlabelled |
//! | splits | `split/{train,valid,test}.npy` | node ids; no node twice |
//!
//! The steps, in the order of this module's files: `edges` reads edges as a stream, twice; `structure` sorts them
//! into rows by counting; `labels` checks labels and splits; `features` copies dense features, and reduces wide sparse
//! ones by `svd` to a few dense columns. `npz` reads SciPy's archives, `dense` is the linear algebra that `svd`
//! needs.
//!
//! **Defaults** are those of `dgl.to_bidirected`: every edge is stored in both directions, edges that were given twice
//! (also once in each direction) are stored once, self-loops stay. All are counted.
//!
//! **Memory**: 4 bytes per stored edge and about 20 per node, beside the features: dense ones pass through one buffer,
//! sparse ones take what `svd` states.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::npy::NpyError;
use crate::store::{FolderWriter, GraphManifest, Manifest, StoreError};

mod dense;
mod edges;
mod features;
mod labels;
mod npz;
mod structure;
mod svd;

pub use features::FeatureRecord;
pub use svd::SvdRecord;

/// Whether edges of a kind stay in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Treatment {
    Keep,
    Drop,
}

/// What a person may decide about an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// Columns to which sparse features that are wider are reduced.
    pub svd: usize,
    /// Keep edges in their direction: an edge u -> v makes u an in-neighbour of v, and not the other way round.
    pub directed: bool,
    pub self_loops: Treatment,
    /// Edges that repeat another one; without `directed` the opposite direction is the same edge.
    pub duplicates: Treatment,
    /// Number of classes; by default the largest label plus one.
    pub classes: Option<u32>,
    /// Seed of the randomized SVD.
    pub seed: u64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            svd: 128,
            directed: false,
            self_loops: Treatment::Keep,
            duplicates: Treatment::Drop,
            classes: None,
            seed: 1,
        }
    }
}

/// What was read and what was done with it; stored as the manifest's `source`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportRecord {
    /// Name of the file (or of the first of two) that the edges came from.
    pub edges_file: String,
    /// Edges as they were given, before anything was added or dropped.
    pub edges_given: u64,
    /// Given edges from a node to itself.
    pub self_loops: u64,
    pub self_loops_treatment: Treatment,
    /// Given edges that repeat another one; self-loops count here only where they were kept.
    pub duplicates: u64,
    pub duplicates_treatment: Treatment,
    /// Nodes that no edge joins to another node.
    pub isolated: u64,
    pub features: FeatureRecord,
    /// Whether the number of classes was declared; otherwise it is the largest label plus one.
    pub classes_declared: bool,
    pub train: u64,
    pub valid: u64,
    pub test: u64,
}

impl ImportRecord {
    /// The record in the manifest of a graph that was imported.
    pub fn of(manifest: &GraphManifest) -> Option<Self> {
        serde_json::from_value(manifest.source.clone()).ok()
    }
}

/// Why a data set is refused.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Npy(#[from] NpyError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{folder} has no {wanted}")]
    Missing { folder: PathBuf, wanted: &'static str },
    #[error("{folder} has both {first} and {second}; remove the one that is not meant")]
    Ambiguous {
        folder: PathBuf,
        first: &'static str,
        second: &'static str,
    },
    #[error("{path}, {place}: {value} {problem}")]
    Value {
        path: PathBuf,
        /// A line (from 1), row or edge (from 0).
        place: String,
        value: String,
        problem: String,
    },
    #[error("{path} is not a readable archive of a SciPy CSR matrix: {problem}")]
    Archive { path: PathBuf, problem: String },
    #[error("{path} has {nodes} nodes, but {other} has {other_nodes}")]
    NodeCount {
        path: PathBuf,
        nodes: u64,
        other: PathBuf,
        other_nodes: u64,
    },
    #[error("{path} has {nodes} nodes; a graph holds from 1 to {limit}", limit = u32::MAX)]
    NodesOutOfRange { path: PathBuf, nodes: u64 },
    #[error("{path} changed while it was read")]
    Changed { path: PathBuf },
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory { bytes: u64, what: &'static str },
    #[error("cannot reduce features to {0} columns; ask for at least 1")]
    NoColumns(usize),
}

impl ImportError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}

/// Reads the data set in `folder` and writes the graph folder `out`, which must not exist. On an error nothing is left.
pub fn import_folder(folder: &Path, options: &ImportOptions, out: &Path) -> Result<GraphManifest, ImportError> {
    if options.svd == 0 {
        return Err(ImportError::NoColumns(options.svd));
    }
    FolderWriter::check_free(out)?;
    let edges = edges::find(folder)?;
    let features = features::open(folder)?;
    let nodes = node_count(features.path(), features.rows())?;
    let labels = labels::read(folder, options.classes)?;
    if labels.values.len() as u64 != u64::from(nodes) {
        return Err(ImportError::NodeCount {
            path: labels.path,
            nodes: labels.values.len() as u64,
            other: features.path().to_owned(),
            other_nodes: u64::from(nodes),
        });
    }
    let splits = labels::read_splits(folder, nodes)?;
    let mut writer = FolderWriter::create(out)?;

    let structure = structure::build(&edges, nodes, options)?;
    let rows = nodes as usize;
    let mut files = vec![
        writer.whole_array("indptr.npy", &[rows + 1], &structure.offsets)?,
        writer.whole_array("indices.npy", &[structure.neighbors.len()], &structure.neighbors)?,
        writer.whole_array("label.npy", &[rows], &labels.values)?,
    ];
    for split in &splits {
        files.push(writer.whole_array(&format!("{}.npy", split.name), &[split.nodes.len()], &split.nodes)?);
    }
    let (feature_file, feature_record) = features.write(&mut writer, options)?;
    files.push(feature_file);

    let [train, valid, test] = splits.map(|split| split.nodes.len() as u64);
    let record = ImportRecord {
        edges_file: edges.name().to_owned(),
        edges_given: structure.given,
        self_loops: structure.self_loops,
        self_loops_treatment: options.self_loops,
        duplicates: structure.duplicates,
        duplicates_treatment: options.duplicates,
        isolated: structure.isolated,
        classes_declared: options.classes.is_some(),
        train,
        valid,
        test,
        features: feature_record,
    };
    let manifest = GraphManifest {
        format: GraphManifest::FORMAT.to_owned(),
        version: GraphManifest::VERSION,
        feature_bits: Vec::new(),
        nodes,
        edges: structure.neighbors.len() as u64,
        features: record.features.columns,
        classes: labels.classes,
        directed: options.directed,
        labelled: labels.labelled,
        source: serde_json::to_value(&record).map_err(|error| StoreError::BadManifest {
            path: out.to_owned(),
            problem: error.to_string(),
        })?,
        files,
    };
    writer.finish(&manifest)?;
    Ok(manifest)
}

/// A number of rows as a number of nodes.
fn node_count(path: &Path, rows: u64) -> Result<u32, ImportError> {
    match u32::try_from(rows) {
        Ok(nodes) if nodes > 0 => Ok(nodes),
        _ => Err(ImportError::NodesOutOfRange {
            path: path.to_owned(),
            nodes: rows,
        }),
    }
}

#[cfg(test)]
mod tests;
