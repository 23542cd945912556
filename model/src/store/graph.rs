//! A graph folder, opened.

use std::path::{Path, PathBuf};

use super::manifest::check_checksums;
use super::rows::{Expected, Rows};
use super::{GraphManifest, StoreError};
use crate::book::NodeId;
use crate::rng::Purpose;
use crate::sampling::Topology;

/// A whole graph, memory-mapped. Node ids are those of the data set.
#[derive(Debug)]
pub struct GraphStore {
    folder: PathBuf,
    manifest: GraphManifest,
    rows: Rows,
}

impl GraphStore {
    /// Opens a graph folder, checking sizes, shapes, offsets and splits, but not every value ([`verify`](Self::verify)).
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let manifest = GraphManifest::open(folder)?;
        let rows = Rows::open(folder, "", &manifest.files, &expected(&manifest))?;
        Ok(Self {
            folder: folder.to_owned(),
            manifest,
            rows,
        })
    }

    /// Recomputes every checksum, and looks at every neighbour, label and feature.
    pub fn verify(&self) -> Result<(), StoreError> {
        check_checksums(&self.folder, &Rows::records(&self.manifest.files, ""))?;
        self.rows.check_values(&self.folder, "", &expected(&self.manifest))
    }

    pub fn manifest(&self) -> &GraphManifest {
        &self.manifest
    }

    /// The in-edges of every node: row = destination, neighbours ascending.
    pub fn topology(&self) -> Topology<'_> {
        self.rows.topology()
    }

    /// All feature rows, row-major, `nodes * features` values.
    pub fn features(&self) -> &[f32] {
        self.rows.features()
    }

    /// The features of `node`, which must be below the number of nodes.
    pub fn feature_row(&self, node: NodeId) -> &[f32] {
        self.rows.feature_row(node)
    }

    /// The class of every node, -1 where unlabelled.
    pub fn labels(&self) -> &[i64] {
        self.rows.labels()
    }

    /// The nodes of a split, ascending. Presampling uses those of training.
    pub fn split(&self, purpose: Purpose) -> &[NodeId] {
        self.rows.split(purpose)
    }
}

fn expected(manifest: &GraphManifest) -> Expected {
    Expected {
        first: 0,
        rows: manifest.nodes,
        feature_rows: manifest.nodes,
        edges: manifest.edges,
        features: manifest.features,
        classes: manifest.classes,
        nodes: manifest.nodes,
    }
}
