//! The manifests: what a folder holds, how it was made, and the size and checksum of every file.

use std::path::{Component, Path};

use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{MANIFEST, ROW_MAP, StoreError, part_folder};
use crate::book::{PartId, PartitionBook};
use crate::npy::FileRecord;
use crate::partition::refine::Moves;

/// A manifest names every file, so it grows with the number of parts only; more than this is no manifest.
const LARGEST: u64 = 256 << 20;

/// What both kinds of manifest have in common.
pub trait Manifest: Serialize + DeserializeOwned {
    const FORMAT: &'static str;
    const VERSION: u32;
    /// The features that this program knows.
    const FEATURES: &'static [&'static str] = &[];

    /// Every file of the folder, the manifest itself left out.
    fn files(&self) -> &[FileRecord];

    /// Checks that the numbers of the manifest fit each other.
    fn check(&self) -> Result<(), String>;
}

/// The manifest of a graph folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphManifest {
    pub format: String,
    pub version: u32,
    /// Names of features that a reader must know; a reader that does not know one refuses the folder.
    #[serde(default)]
    pub feature_bits: Vec<String>,
    pub nodes: u32,
    /// Stored in-edges. An undirected edge is two.
    pub edges: u64,
    /// Width of a feature row.
    pub features: usize,
    pub classes: u32,
    /// Whether edges were kept in the direction in which they were given.
    pub directed: bool,
    /// Nodes with a label.
    pub labelled: u64,
    /// How the graph was made: counts and settings, in the words of whoever made it.
    #[serde(default)]
    pub source: serde_json::Value,
    pub files: Vec<FileRecord>,
}

/// What one part holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartSummary {
    pub nodes: u32,
    /// In-edges of the part's nodes.
    pub edges: u64,
    pub train: u32,
    pub valid: u32,
    pub test: u32,
    pub labelled: u64,
    /// Distinct nodes of other parts that are in-neighbours of this one's.
    pub halo: u64,
}

/// How a graph was cut, and how well. A balance is the largest part's share over the mean: 1 is perfect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionerRecord {
    pub method: String,
    pub seed: u64,
    /// Stored in-edges whose ends are in different parts.
    pub cut_edges: u64,
    /// `cut_edges` over all stored edges.
    pub edge_cut: f64,
    pub balance_nodes: f64,
    pub balance_train: f64,
    pub balance_edges: f64,
    /// How it was refined, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refinement: Option<RefinementRecord>,
}

/// How a cut was refined for the batches that will train, and what that is good for. Remote rows are of one epoch of
/// training, summed over ranks and batches, as the policy `on-demand` moves them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefinementRecord {
    pub moves: Moves,
    pub batch_size: u32,
    pub fanouts: Vec<u32>,
    /// Epochs whose counts took part in the decision.
    pub presampled_epochs: u32,
    /// Sweeps of node moves.
    pub sweeps: u32,
    /// Nodes that changed their part.
    pub moved_nodes: u32,
    /// Train seeds among them.
    pub moved_seeds: u32,
    /// Rows whose owner is not the part of their node.
    pub moved_rows: u32,
    /// Rows of the part with the most over the mean.
    pub balance_rows: f64,
    /// What the estimate expects.
    pub expected_rows_before: f64,
    pub expected_rows_after: f64,
    /// What the sampler draws in the first epoch of a run with the seed of the cut.
    pub presampled_rows_before: u64,
    pub presampled_rows_after: u64,
}

/// The manifest of a parts folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartsManifest {
    pub format: String,
    pub version: u32,
    /// Names of features that a reader must know; a reader that does not know one refuses the folder.
    #[serde(default)]
    pub feature_bits: Vec<String>,
    pub nodes: u32,
    /// Stored in-edges of the whole graph.
    pub edges: u64,
    /// Width of a feature row.
    pub features: usize,
    pub classes: u32,
    pub book: PartitionBook,
    /// The bounds of row ids, where feature rows are owned apart from their nodes (feature bit
    /// [`ROW_HOME`](Self::ROW_HOME)); the map from nodes to rows is in [`ROW_MAP`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_bounds: Option<PartitionBook>,
    pub parts: Vec<PartSummary>,
    pub partitioner: PartitionerRecord,
    /// SHA-256 over structure, bounds and splits, in hex ([`GraphHasher`](super::GraphHasher)).
    pub graph_hash: String,
    pub files: Vec<FileRecord>,
}

impl Manifest for GraphManifest {
    const FORMAT: &'static str = "greengnn-graph";
    const VERSION: u32 = 1;

    fn files(&self) -> &[FileRecord] {
        &self.files
    }

    fn check(&self) -> Result<(), String> {
        if self.labelled > u64::from(self.nodes) {
            return Err(format!("{} of {} nodes are labelled", self.labelled, self.nodes));
        }
        Ok(())
    }
}

impl Manifest for PartsManifest {
    const FORMAT: &'static str = "greengnn-parts";
    const VERSION: u32 = 1;
    const FEATURES: &'static [&'static str] = &[PartsManifest::ROW_HOME];

    fn files(&self) -> &[FileRecord] {
        &self.files
    }

    fn check(&self) -> Result<(), String> {
        if self.book.nodes() != self.nodes {
            return Err(format!(
                "the partition book has {} nodes, the graph {}",
                self.book.nodes(),
                self.nodes
            ));
        }
        if self.parts.len() != usize::from(self.book.parts()) {
            return Err(format!(
                "{} parts are described, the partition book has {}",
                self.parts.len(),
                self.book.parts()
            ));
        }
        for (part, summary) in (0..self.book.parts()).zip(&self.parts) {
            let owned = self.book.part_nodes(part);
            if summary.nodes != owned {
                return Err(format!(
                    "part {part} is said to have {} nodes, the partition book gives it {owned}",
                    summary.nodes
                ));
            }
        }
        self.check_rows()?;
        let edges = self
            .parts
            .iter()
            .try_fold(0u64, |sum, part| sum.checked_add(part.edges));
        if edges != Some(self.edges) {
            return Err(format!("the edges of the parts do not add up to {}", self.edges));
        }
        Ok(())
    }
}

impl GraphManifest {
    /// Reads and checks the manifest of a graph folder.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        open(folder)
    }
}

impl PartsManifest {
    /// The feature bit of folders whose feature rows are owned apart from their nodes.
    pub const ROW_HOME: &'static str = "row-home";

    /// Who owns which feature rows: the bounds of row ids, or the partition book where no rows were moved.
    pub fn row_book(&self) -> &PartitionBook {
        self.row_bounds.as_ref().unwrap_or(&self.book)
    }

    fn check_rows(&self) -> Result<(), String> {
        let announced = self.feature_bits.iter().any(|bit| bit == Self::ROW_HOME);
        match &self.row_bounds {
            None if announced => Err(format!("it has the feature {} without row bounds", Self::ROW_HOME)),
            Some(_) if !announced => Err(format!("it has row bounds without the feature {}", Self::ROW_HOME)),
            Some(rows) if (rows.parts(), rows.nodes()) != (self.book.parts(), self.nodes) => Err(format!(
                "its row bounds are of {} rows in {} parts, the graph has {} nodes in {}",
                rows.nodes(),
                rows.parts(),
                self.nodes,
                self.book.parts()
            )),
            _ => Ok(()),
        }
    }

    /// Reads and checks the manifest of a parts folder, without looking at any part.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        open(folder)
    }

    /// The parts whose folders are there, ascending. The manifest decides which parts there are at all.
    pub fn held_parts(folder: &Path) -> Result<Vec<PartId>, StoreError> {
        let manifest = Self::open(folder)?;
        Ok((0..manifest.book.parts())
            .filter(|part| folder.join(part_folder(*part)).is_dir())
            .collect())
    }
}

/// The fields that are looked at before all others, since they say how to read the rest.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    version: u64,
    #[serde(default)]
    feature_bits: Vec<String>,
}

fn open<M: Manifest>(folder: &Path) -> Result<M, StoreError> {
    let path = folder.join(MANIFEST);
    let metadata = std::fs::metadata(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => StoreError::NoManifest {
            path: path.clone(),
            folder: folder.to_owned(),
        },
        _ => StoreError::io("read", &path)(error),
    })?;
    let bad = |problem: String| StoreError::BadManifest {
        path: path.clone(),
        problem,
    };
    if metadata.len() > LARGEST {
        return Err(bad(format!("it is {} bytes long", metadata.len())));
    }
    let text = std::fs::read_to_string(&path).map_err(StoreError::io("read", &path))?;
    let preamble: Preamble = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if preamble.format != M::FORMAT {
        return Err(StoreError::OtherFormat {
            path,
            found: preamble.format,
            expected: M::FORMAT,
        });
    }
    if preamble.version != u64::from(M::VERSION) {
        return Err(StoreError::OtherVersion {
            path,
            found: preamble.version,
            known: M::VERSION,
        });
    }
    let mut unknown = preamble.feature_bits;
    unknown.retain(|bit| !M::FEATURES.contains(&&**bit));
    if !unknown.is_empty() {
        return Err(StoreError::UnknownFeatures {
            path,
            features: unknown.join(", "),
        });
    }
    let manifest: M = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    manifest.check().map_err(bad)?;
    for file in manifest.files() {
        if !stays_inside(&file.path) {
            return Err(bad(format!("the file '{}' lies outside the folder", file.path)));
        }
    }
    Ok(manifest)
}

/// Whether a path of a manifest names something below the folder.
fn stays_inside(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path)
            .components()
            .all(|component| matches!(component, Component::Normal(_)))
}

/// The record of one file.
pub(super) fn record<'a>(files: &'a [FileRecord], manifest: &Path, path: &str) -> Result<&'a FileRecord, StoreError> {
    files
        .iter()
        .find(|file| file.path == path)
        .ok_or_else(|| StoreError::inconsistent(manifest, format!("it does not list {path}")))
}

/// Fails unless the map of moved rows is the file that was written.
pub(crate) fn check_row_map(folder: &Path, manifest: &PartsManifest) -> Result<(), StoreError> {
    check_checksums(folder, &[record(&manifest.files, &folder.join(MANIFEST), ROW_MAP)?])
}

/// Fails unless the file is as long as its record says.
pub(super) fn check_length(folder: &Path, record: &FileRecord) -> Result<(), StoreError> {
    let path = folder.join(&record.path);
    let found = std::fs::metadata(&path).map_err(StoreError::io("open", &path))?.len();
    if found != record.bytes {
        return Err(StoreError::inconsistent(
            &path,
            format!("it is {found} bytes long, the manifest says {}", record.bytes),
        ));
    }
    Ok(())
}

/// Recomputes the checksums of `files`, several files at a time.
pub(super) fn check_checksums(folder: &Path, files: &[&FileRecord]) -> Result<(), StoreError> {
    files.par_iter().try_for_each(|record| {
        check_length(folder, record)?;
        let path = folder.join(&record.path);
        let found = checksum(&path)?;
        if found != record.crc32c {
            return Err(StoreError::Checksum {
                path,
                found,
                expected: record.crc32c,
            });
        }
        Ok(())
    })
}

fn checksum(path: &Path) -> Result<u32, StoreError> {
    use std::io::Read;
    let mut file = std::fs::File::open(path).map_err(StoreError::io("open", path))?;
    let mut buffer = vec![0u8; 1 << 20];
    let mut sum = 0;
    loop {
        let length = file.read(&mut buffer).map_err(StoreError::io("read", path))?;
        if length == 0 {
            return Ok(sum);
        }
        sum = crc32c::crc32c_append(sum, &buffer[..length]);
    }
}
