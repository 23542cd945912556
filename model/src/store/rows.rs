//! The arrays that a graph and a part have in common: structure, features, labels and splits of a range of nodes.

use std::path::Path;

use rayon::prelude::*;

use super::manifest::{check_length, record};
use super::{MANIFEST, StoreError};
use crate::book::NodeId;
use crate::npy::{FileRecord, MappedArray};
use crate::rng::Purpose;
use crate::sampling::Topology;

/// The names of the arrays, without `orig_id`.
const ARRAYS: [&str; 7] = ["indptr", "indices", "feat", "label", "train", "valid", "test"];

/// What the manifest says about the arrays.
pub(super) struct Expected {
    /// Global id of row 0.
    pub first: NodeId,
    pub rows: u32,
    /// Rows of the features.
    pub feature_rows: u32,
    pub edges: u64,
    pub features: usize,
    pub classes: u32,
    /// Nodes of the whole graph.
    pub nodes: u32,
}

/// The mapped arrays of a range of nodes.
#[derive(Debug)]
pub(super) struct Rows {
    first: NodeId,
    features: usize,
    indptr: MappedArray<u64>,
    indices: MappedArray<u32>,
    feat: MappedArray<f32>,
    label: MappedArray<i64>,
    train: MappedArray<u32>,
    valid: MappedArray<u32>,
    test: MappedArray<u32>,
}

impl Rows {
    /// Maps the arrays below `folder` whose paths start with `prefix`, and checks sizes, shapes, offsets and splits.
    pub fn open(folder: &Path, prefix: &str, files: &[FileRecord], expected: &Expected) -> Result<Self, StoreError> {
        let manifest = folder.join(MANIFEST);
        for name in ARRAYS {
            check_length(folder, record(files, &manifest, &format!("{prefix}{name}.npy"))?)?;
        }
        let path = |name: &str| folder.join(format!("{prefix}{name}.npy"));
        let row_count = expected.rows as usize;
        let edge_count = usize::try_from(expected.edges)
            .map_err(|_| StoreError::inconsistent(&manifest, format!("{} edges fit no memory", expected.edges)))?;
        let rows = Self {
            first: expected.first,
            features: expected.features,
            indptr: MappedArray::open_shaped(&path("indptr"), &[row_count + 1])?,
            indices: MappedArray::open_shaped(&path("indices"), &[edge_count])?,
            feat: MappedArray::open_shaped(&path("feat"), &[expected.feature_rows as usize, expected.features])?,
            label: MappedArray::open_shaped(&path("label"), &[row_count])?,
            train: MappedArray::open(&path("train"))?,
            valid: MappedArray::open(&path("valid"))?,
            test: MappedArray::open(&path("test"))?,
        };
        rows.check_offsets(&path("indptr"), expected.edges)?;
        for (name, split) in [("train", &rows.train), ("valid", &rows.valid), ("test", &rows.test)] {
            check_split(&path(name), split, expected.rows)?;
        }
        Ok(rows)
    }

    fn check_offsets(&self, path: &Path, edges: u64) -> Result<(), StoreError> {
        let (first, last) = (self.indptr[0], self.indptr[self.indptr.len() - 1]);
        if first != 0 || last != edges {
            return Err(StoreError::inconsistent(
                path,
                format!("its offsets go from {first} to {last}, expected from 0 to {edges}"),
            ));
        }
        if let Some(row) = self.indptr.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(StoreError::inconsistent(
                path,
                format!(
                    "row {row}: its offsets decrease from {} to {}",
                    self.indptr[row],
                    self.indptr[row + 1]
                ),
            ));
        }
        Ok(())
    }

    /// Looks at every neighbour and every label; `folder` and `prefix` are where the arrays were opened.
    pub fn check_values(&self, folder: &Path, prefix: &str, expected: &Expected) -> Result<(), StoreError> {
        let path = |name: &str| folder.join(format!("{prefix}{name}.npy"));
        let outside = self.indices.par_iter().position_first(|node| *node >= expected.nodes);
        if let Some(edge) = outside {
            return Err(StoreError::inconsistent(
                &path("indices"),
                format!(
                    "value {edge} is node {}, the graph has {}",
                    self.indices[edge], expected.nodes
                ),
            ));
        }
        let classes = i64::from(expected.classes);
        let outside = self
            .label
            .par_iter()
            .position_first(|label| *label < -1 || *label >= classes);
        if let Some(row) = outside {
            return Err(StoreError::inconsistent(
                &path("label"),
                format!(
                    "row {row} has label {}, the graph has {classes} classes",
                    self.label[row]
                ),
            ));
        }
        let strange = self.feat.par_iter().position_first(|value| !value.is_finite());
        if let Some(index) = strange {
            return Err(StoreError::inconsistent(
                &path("feat"),
                format!("row {} holds {}", index / self.features.max(1), self.feat[index]),
            ));
        }
        Ok(())
    }

    pub fn topology(&self) -> Topology<'_> {
        Topology {
            first: self.first,
            offsets: &self.indptr,
            neighbors: &self.indices,
        }
    }

    pub fn features(&self) -> &[f32] {
        &self.feat
    }

    pub fn feature_row(&self, row: u32) -> &[f32] {
        let start = row as usize * self.features;
        &self.feat[start..start + self.features]
    }

    pub fn labels(&self) -> &[i64] {
        &self.label
    }

    pub fn split(&self, purpose: Purpose) -> &[u32] {
        match purpose {
            Purpose::Train | Purpose::Presample => &self.train,
            Purpose::Valid => &self.valid,
            Purpose::Test => &self.test,
        }
    }

    /// The records of the arrays that [`open`](Self::open) maps.
    pub fn records<'a>(files: &'a [FileRecord], prefix: &str) -> Vec<&'a FileRecord> {
        files.iter().filter(|file| file.path.starts_with(prefix)).collect()
    }
}

fn check_split(path: &Path, split: &MappedArray<u32>, rows: u32) -> Result<(), StoreError> {
    if split.shape().len() != 1 {
        return Err(StoreError::inconsistent(path, "a split must have one axis"));
    }
    if let Some(at) = split.windows(2).position(|pair| pair[1] <= pair[0]) {
        return Err(StoreError::inconsistent(
            path,
            format!(
                "value {} ({}) does not ascend from {}",
                at + 1,
                split[at + 1],
                split[at]
            ),
        ));
    }
    match split.last() {
        Some(last) if *last >= rows => Err(StoreError::inconsistent(
            path,
            format!("it names row {last}, there are {rows}"),
        )),
        _ => Ok(()),
    }
}
