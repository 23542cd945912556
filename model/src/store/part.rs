//! One part of a parts folder, opened.

use std::path::{Path, PathBuf};

use super::manifest::{check_checksums, check_length, record};
use super::rows::{Expected, Rows};
use super::{MANIFEST, PartSummary, PartsManifest, StoreError, part_folder};
use crate::book::{NodeId, PartId};
use crate::npy::MappedArray;
use crate::rng::Purpose;
use crate::sampling::Topology;

/// What one part owns, memory-mapped. Rows are local; neighbours are global ids after relabelling.
#[derive(Debug)]
pub struct PartStore {
    folder: PathBuf,
    part: PartId,
    manifest: PartsManifest,
    rows: Rows,
    original_ids: MappedArray<u32>,
}

impl PartStore {
    /// Opens part `part` of a parts folder, which needs to hold no other part. Checks sizes, shapes, offsets and splits,
    /// but not every value ([`verify`](Self::verify)).
    pub fn open(folder: &Path, part: PartId) -> Result<Self, StoreError> {
        let manifest = PartsManifest::open(folder)?;
        let Some(expected) = expected(&manifest, part).filter(|_| folder.join(part_folder(part)).is_dir()) else {
            return Err(StoreError::PartNotHeld {
                folder: folder.to_owned(),
                part,
                held: in_words(&PartsManifest::held_parts(folder)?),
            });
        };
        let prefix = prefix(part);
        let rows = Rows::open(folder, &prefix, &manifest.files, &expected)?;
        let path = format!("{prefix}orig_id.npy");
        check_length(folder, record(&manifest.files, &folder.join(MANIFEST), &path)?)?;
        let original_ids = MappedArray::open_shaped(&folder.join(path), &[expected.rows as usize])?;
        Ok(Self {
            folder: folder.to_owned(),
            part,
            manifest,
            rows,
            original_ids,
        })
    }

    /// Recomputes the checksums of this part's files, and looks at every neighbour, label and feature.
    pub fn verify(&self) -> Result<(), StoreError> {
        let prefix = prefix(self.part);
        check_checksums(&self.folder, &Rows::records(&self.manifest.files, &prefix))?;
        match expected(&self.manifest, self.part) {
            Some(expected) => self.rows.check_values(&self.folder, &prefix, &expected),
            None => Ok(()),
        }
    }

    pub fn part(&self) -> PartId {
        self.part
    }

    /// The manifest of the whole folder.
    pub fn manifest(&self) -> &PartsManifest {
        &self.manifest
    }

    /// What the manifest says of this part.
    pub fn summary(&self) -> &PartSummary {
        &self.manifest.parts[usize::from(self.part)]
    }

    /// The in-edges of the part's nodes: row = destination, local; neighbours global and ascending.
    pub fn topology(&self) -> Topology<'_> {
        self.rows.topology()
    }

    /// The feature rows of the part, row-major: of its nodes, or where rows were moved of those that it owns, by row id.
    pub fn features(&self) -> &[f32] {
        self.rows.features()
    }

    /// Number of feature rows, which is that of nodes unless rows were moved.
    pub fn feature_rows(&self) -> u32 {
        self.manifest.row_book().part_nodes(self.part)
    }

    /// The features of a local row, which must be below [`feature_rows`](Self::feature_rows).
    pub fn feature_row(&self, row: u32) -> &[f32] {
        self.rows.feature_row(row)
    }

    /// The class of every local row, -1 where unlabelled.
    pub fn labels(&self) -> &[i64] {
        self.rows.labels()
    }

    /// The local rows of a split, ascending. Presampling uses those of training.
    pub fn split(&self, purpose: Purpose) -> &[u32] {
        self.rows.split(purpose)
    }

    /// Per local row the id that the node had in the graph before it was cut.
    pub fn original_ids(&self) -> &[NodeId] {
        &self.original_ids
    }
}

fn prefix(part: PartId) -> String {
    format!("{}/", part_folder(part))
}

fn expected(manifest: &PartsManifest, part: PartId) -> Option<Expected> {
    let summary = manifest.parts.get(usize::from(part))?;
    Some(Expected {
        first: manifest.book.range(part).start,
        rows: summary.nodes,
        feature_rows: manifest.row_book().part_nodes(part),
        edges: summary.edges,
        features: manifest.features,
        classes: manifest.classes,
        nodes: manifest.nodes,
    })
}

fn in_words(parts: &[PartId]) -> String {
    if parts.is_empty() {
        return "no part".to_owned();
    }
    let list: Vec<String> = parts.iter().map(PartId::to_string).collect();
    format!("part {}", list.join(", "))
}
