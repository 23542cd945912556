//! The hash by which machines make sure that they hold the same graph.

use sha2::{Digest, Sha256};

use crate::book::PartitionBook;
use crate::rng::Purpose;
use crate::rows::RowBook;

/// SHA-256 over bounds, structure and splits of a cut graph, independent of paths, features and labels.
///
/// The bytes hashed are little-endian: the tag `greengnn-graph-hash-1`, the bounds (count, then values), and per part, in
/// order, the offsets, the neighbours and the splits train, valid and test, each as its count in 64 bits and its values.
/// Where rows were moved, the tag `rows`, the bounds of row ids and the map from nodes to rows follow.
#[derive(Clone, Debug)]
pub struct GraphHasher {
    sha256: Sha256,
}

impl GraphHasher {
    pub fn new(book: &PartitionBook) -> Self {
        let mut hasher = Self { sha256: Sha256::new() };
        hasher.sha256.update(b"greengnn-graph-hash-1");
        hasher.array(book.bounds());
        hasher
    }

    /// Adds the next part: its offsets, its neighbours (global ids) and its splits (local rows).
    pub fn part<'a>(&mut self, offsets: &[u64], neighbors: &[u32], split: impl Fn(Purpose) -> &'a [u32]) {
        self.array(offsets);
        self.array(neighbors);
        for purpose in [Purpose::Train, Purpose::Valid, Purpose::Test] {
            self.array(split(purpose));
        }
    }

    /// Adds where the rows are, after the last part, if they were moved.
    pub fn rows(&mut self, rows: &RowBook) {
        if let Some(map) = rows.row_of_node() {
            self.sha256.update(b"rows");
            self.array(rows.book().bounds());
            self.array(map);
        }
    }

    /// The hash, 64 hexadecimal digits.
    pub fn finish(self) -> String {
        self.sha256
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn array<T: bytemuck::Pod>(&mut self, values: &[T]) {
        self.sha256.update((values.len() as u64).to_le_bytes());
        self.sha256.update(bytemuck::cast_slice::<T, u8>(values));
    }
}
