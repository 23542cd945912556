//! Graphs on disk: folders of `.npy` files and one manifest.
//!
//! Two kinds of folder, both memory-mapped and both readable with `numpy.load(path, mmap_mode="r")`:
//!
//! - a **graph folder** ([`GraphStore`]) is one whole graph under its original node ids: `manifest.json` and
//!   `{indptr,indices,feat,label,train,valid,test}.npy`;
//! - a **parts folder** ([`PartStore`]) is a graph that was cut: `manifest.json` ([`PartsManifest`], with the partition
//!   book) and, per part, `part-<i>/{indptr,indices,orig_id,feat,label,train,valid,test}.npy`. Nodes are relabelled so
//!   that a part owns a contiguous range of ids. A machine needs only the manifest and the parts that it hosts, and
//!   `row_of_node.npy` where feature rows are owned apart from their nodes ([`RowBook`](crate::rows::RowBook)).
//!
//! | file | type | meaning |
//! |---|---|---|
//! | `indptr` | u64, `[rows + 1]` | offsets of each row's in-neighbours in `indices`; the first is 0 |
//! | `indices` | u32, `[edges]` | in-neighbours, ascending inside a row; global ids |
//! | `feat` | f32, `[rows, features]` | feature rows |
//! | `label` | i64, `[rows]` | class, or -1 where unlabelled |
//! | `train`, `valid`, `test` | u32, `[any]` | rows of the split, ascending |
//! | `orig_id` | u32, `[rows]` | the id that the node had before it was relabelled (parts only) |
//! | `row_of_node` | u32, `[nodes]` | the row id of every node, where rows were moved: `feat` then has the part's rows in the order of row ids (parts only) |
//!
//! [`FolderWriter`] makes both: it writes under a temporary name, and a folder appears under its own name only when it
//! is complete. Opening checks sizes, shapes and offsets; `verify` recomputes every checksum and looks at every value.

use std::path::{Path, PathBuf};

use crate::book::PartId;
use crate::npy::NpyError;

mod folder;
mod graph;
mod hash;
mod manifest;
mod part;
mod rows;

pub use folder::FolderWriter;
pub use graph::GraphStore;
pub use hash::GraphHasher;
pub(crate) use manifest::check_row_map;
pub use manifest::{GraphManifest, Manifest, PartSummary, PartitionerRecord, PartsManifest, RefinementRecord};
pub use part::PartStore;

/// The map from nodes to rows in a parts folder whose rows were moved.
pub const ROW_MAP: &str = "row_of_node.npy";

/// The name of the manifest in every folder.
pub const MANIFEST: &str = "manifest.json";

/// The folder of a part inside a parts folder.
pub fn part_folder(part: PartId) -> String {
    format!("part-{part}")
}

/// Why a folder cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Npy(#[from] NpyError),
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} does not exist: {folder} is not a folder that greengnn wrote, or it is incomplete")]
    NoManifest { path: PathBuf, folder: PathBuf },
    #[error("{path} is not a manifest: {problem}")]
    BadManifest { path: PathBuf, problem: String },
    #[error("{path} is of format '{found}', expected '{expected}'")]
    OtherFormat {
        path: PathBuf,
        found: String,
        expected: &'static str,
    },
    #[error("{path} is of version {found}, this program reads version {known}; use a newer greengnn or write it again")]
    OtherVersion { path: PathBuf, found: u64, known: u32 },
    #[error("{path} needs features that this program does not have: {features}; use a newer greengnn")]
    UnknownFeatures { path: PathBuf, features: String },
    #[error("{path} contradicts its folder: {problem}")]
    Inconsistent { path: PathBuf, problem: String },
    #[error("{path} is damaged: its CRC-32C is {found:08x}, the manifest says {expected:08x}; copy it again")]
    Checksum { path: PathBuf, found: u32, expected: u32 },
    #[error("{folder} does not hold part {part}; it holds {held}")]
    PartNotHeld {
        folder: PathBuf,
        part: PartId,
        held: String,
    },
    #[error("{path} exists already; remove it or choose another name")]
    TargetExists { path: PathBuf },
}

impl StoreError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn inconsistent(path: &Path, problem: impl Into<String>) -> Self {
        Self::Inconsistent {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}

#[cfg(test)]
mod tests;
