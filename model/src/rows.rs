//! Which part owns a feature row, where rows are owned apart from nodes.
//!
//! A part owns the in-edges, labels and splits of its nodes, and as a rule their feature rows too: then a row has the id
//! of its node. A partition may give rows to other parts than their nodes (*moved* rows), because a row is best kept
//! by whoever reads it most, and moving it changes nothing else: the same ranks train the same seeds and draw the same
//! neighbours. Rows then have ids of their own, contiguous per owner like those of nodes, and a map leads from a node to
//! its row.
//!
//! Everything that moves, caches or prices rows (policies, plans, budgets) knows row ids alone, by the [`PartitionBook`]
//! of rows; everything that draws or trains knows nodes. The map is applied where the two meet: to the remote rows of a
//! sampled batch ([`RowBook::locate`]), to scores of nodes ([`RowBook::by_row`]), and where a batch is assembled
//! ([`RowBook::home`]).

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use crate::batch::{MiniBatch, OwnerRows, RemoteRows};
use crate::book::{BookError, NodeId, PartId, PartitionBook, Rank, RowHome};
use crate::npy::MappedArray;
use crate::store::{PartsManifest, ROW_MAP, StoreError, check_row_map};

/// The home of every feature row.
#[derive(Debug)]
pub struct RowBook {
    book: Arc<PartitionBook>,
    map: Option<RowMap>,
}

/// The row id of every node.
#[derive(Debug)]
enum RowMap {
    Memory(Vec<u32>),
    Mapped(MappedArray<u32>),
}

impl Deref for RowMap {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Self::Memory(rows) => rows,
            Self::Mapped(rows) => rows,
        }
    }
}

/// Why a list of row ids is no map of rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowMapError {
    #[error("it maps {found} nodes, the graph has {nodes}")]
    Length { found: usize, nodes: u32 },
    #[error("node {node} has row {row}, there are {rows} rows")]
    OutOfRange { node: NodeId, row: u32, rows: u32 },
    #[error("node {node} has row {row}, which another node has too")]
    Twice { node: NodeId, row: u32 },
}

impl RowBook {
    /// Every row belongs to the part of its node.
    pub fn of_nodes(book: Arc<PartitionBook>) -> Self {
        Self { book, map: None }
    }

    /// Gives row `v`, of node `v`, to the part `owners[v]`, which must be below `parts`. The rows of a part keep the order
    /// of their nodes.
    ///
    /// # Errors
    /// [`BookError`] where there are too many parts.
    pub fn of_owners(owners: &[PartId], parts: PartId) -> Result<Self, BookError> {
        let mut bounds = vec![0u32; usize::from(parts) + 1];
        for owner in owners {
            bounds[usize::from(*owner) + 1] += 1;
        }
        for part in 0..usize::from(parts) {
            bounds[part + 1] += bounds[part];
        }
        let mut next = bounds.clone();
        let row_of_node = owners.iter().map(|owner| {
            let row = &mut next[usize::from(*owner)];
            *row += 1;
            *row - 1
        });
        Ok(Self {
            map: Some(RowMap::Memory(row_of_node.collect())),
            book: Arc::new(PartitionBook::new(bounds)?),
        })
    }

    /// The rows of a parts folder. Maps [`ROW_MAP`] where rows were moved, after a check of every entry.
    ///
    /// # Errors
    /// A map that is missing, damaged, or not one of these rows.
    pub fn open(folder: &Path, manifest: &PartsManifest) -> Result<Self, StoreError> {
        let Some(book) = &manifest.row_bounds else {
            return Ok(Self::of_nodes(Arc::new(manifest.book.clone())));
        };
        let path = folder.join(ROW_MAP);
        check_row_map(folder, manifest)?;
        let map = MappedArray::open_shaped(&path, &[manifest.nodes as usize])?;
        check_bijection(&map, book.nodes()).map_err(|error| StoreError::inconsistent(&path, error.to_string()))?;
        Ok(Self {
            book: Arc::new(book.clone()),
            map: Some(RowMap::Mapped(map)),
        })
    }

    /// Who owns which row ids: what policies are given. Without moved rows it is the book of the nodes.
    pub fn book(&self) -> &Arc<PartitionBook> {
        &self.book
    }

    /// The row id of every node, where rows were moved.
    pub fn row_of_node(&self) -> Option<&[u32]> {
        self.map.as_deref()
    }

    /// The row id of a node, which must be below the number of nodes.
    #[inline]
    pub fn row_id(&self, node: NodeId) -> u32 {
        match &self.map {
            None => node,
            Some(map) => map[node as usize],
        }
    }

    /// The part that owns the row of `node`, and the row's place inside that part.
    #[inline]
    pub fn home(&self, node: NodeId) -> RowHome {
        self.book.row_home(self.row_id(node))
    }

    /// The node of every row id, where rows were moved: the inverse of [`row_of_node`](Self::row_of_node).
    pub fn node_of_row(&self) -> Option<Vec<NodeId>> {
        let map = self.map.as_ref()?;
        let mut nodes = vec![0; map.len()];
        for (node, row) in (0..).zip(map.iter()) {
            nodes[*row as usize] = node;
        }
        Some(nodes)
    }

    /// The rows of `nodes`, in any order and each once, that `rank` does not own.
    pub fn remote_rows(&self, rank: Rank, nodes: &[NodeId]) -> RemoteRows {
        let own = self.book.range(rank);
        let mut rows: Vec<u32> = (nodes.iter().map(|node| self.row_id(*node)))
            .filter(|row| !own.contains(row))
            .collect();
        rows.sort_unstable();
        let mut rest = &rows[..];
        let mut owners = Vec::new();
        while let Some(first) = rest.first() {
            let owner = self.book.owner(*first);
            let range = self.book.range(owner);
            let (owned, after) = rest.split_at(rest.partition_point(|row| *row < range.end));
            owners.push(OwnerRows {
                owner,
                rows: owned.iter().map(|row| row - range.start).collect(),
            });
            rest = after;
        }
        RemoteRows { owners }
    }

    /// Gives a batch of `rank`, as the sampler leaves it, the remote rows of its nodes. Changes nothing unless rows were
    /// moved.
    pub fn locate(&self, rank: Rank, batch: &mut MiniBatch) {
        if self.map.is_some() {
            batch.remote = self.remote_rows(rank, &batch.nodes);
        }
    }

    /// Values of nodes as values of rows: what node `v` has goes to its row.
    pub fn by_row<T: Copy + Default>(&self, of_nodes: Vec<T>) -> Vec<T> {
        let Some(map) = &self.map else { return of_nodes };
        let mut of_rows = vec![T::default(); of_nodes.len()];
        for (row, value) in map.iter().zip(of_nodes) {
            of_rows[*row as usize] = value;
        }
        of_rows
    }
}

/// Checks that every node has a row of its own.
fn check_bijection(row_of_node: &[u32], rows: u32) -> Result<(), RowMapError> {
    if row_of_node.len() != rows as usize {
        return Err(RowMapError::Length {
            found: row_of_node.len(),
            nodes: rows,
        });
    }
    let mut taken = vec![0u64; (rows as usize).div_ceil(64)];
    for (node, row) in (0..).zip(row_of_node.iter().copied()) {
        if row >= rows {
            return Err(RowMapError::OutOfRange { node, row, rows });
        }
        let word = &mut taken[(row / 64) as usize];
        let bit = 1 << (row % 64);
        if *word & bit != 0 {
            return Err(RowMapError::Twice { node, row });
        }
        *word |= bit;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::partition::partition_graph_and_rows;
    use crate::store::{GraphStore, PartitionerRecord};
    use crate::synth::SynthSpec;

    proptest! {
        #[test]
        fn the_map_is_a_bijection_onto_the_ranges_of_the_owners(owners in prop::collection::vec(0u16..5, 0..60)) {
            let rows = RowBook::of_owners(&owners, 5).unwrap();
            let map = rows.row_of_node().unwrap();
            prop_assert_eq!(check_bijection(map, rows.book().nodes()), Ok(()));
            let back = rows.node_of_row().unwrap();
            for (node, owner) in (0..).zip(&owners) {
                let home = rows.home(node);
                prop_assert_eq!(home.owner, *owner);
                prop_assert_eq!(rows.book().node(home), rows.row_id(node));
                prop_assert_eq!(back[rows.row_id(node) as usize], node);
            }
            for part in 0..5 {
                let range = rows.book().range(part);
                let nodes = &back[range.start as usize..range.end as usize];
                prop_assert!(nodes.is_sorted_by(|one, other| one < other));
            }
            let values: Vec<u32> = (0..owners.len() as u32).collect();
            prop_assert_eq!(rows.by_row(values), back);
        }

        #[test]
        fn remote_rows_are_those_that_others_own(
            owners in prop::collection::vec(0u16..4, 1..60),
            picked: prop::sample::Index,
            rank in 0u16..4,
        ) {
            let rows = RowBook::of_owners(&owners, 4).unwrap();
            let all: Vec<NodeId> = (0..owners.len() as u32).collect();
            let mut nodes = all[picked.index(all.len())..].to_vec();
            nodes.reverse();
            let remote = rows.remote_rows(rank, &nodes);
            let mut expected: Vec<RowHome> =
                nodes.iter().map(|node| rows.home(*node)).filter(|home| home.owner != rank).collect();
            expected.sort_unstable();
            let found: Vec<RowHome> = remote.iter().map(|(owner, row)| RowHome { owner, row }).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(remote.owners.iter().all(|owned| !owned.rows.is_empty()));
            prop_assert!(remote.owners.windows(2).all(|pair| pair[0].owner < pair[1].owner));
        }
    }

    #[test]
    fn rows_that_were_not_moved_are_those_of_their_nodes() {
        let book = Arc::new(PartitionBook::new(vec![0, 2, 5]).unwrap());
        let rows = RowBook::of_nodes(Arc::clone(&book));
        assert_eq!(rows.home(3), book.row_home(3));
        assert_eq!((rows.row_of_node(), rows.node_of_row()), (None, None));
        assert_eq!(rows.by_row(vec![1, 2]), [1, 2]);
        let same = RowBook::of_owners(&[0, 0, 1, 1, 1], 2).unwrap();
        assert_eq!(same.row_of_node().unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(same.book(), rows.book());
    }

    #[test]
    fn a_map_that_is_missing_damaged_or_unknown_is_refused_in_a_clear_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let spec = SynthSpec::tiny(10);
        spec.write(&folder.path().join("graph")).unwrap();
        let graph = GraphStore::open(&folder.path().join("graph")).unwrap();
        let refusal = |name: &str, damage: &dyn Fn(&Path)| {
            let out = folder.path().join(name);
            let record = PartitionerRecord::default();
            partition_graph_and_rows(&graph, &[0, 1].repeat(5), &[1, 0].repeat(5), 2, record, &out).unwrap();
            damage(&out);
            let opened = PartsManifest::open(&out).and_then(|manifest| RowBook::open(&out, &manifest));
            opened.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(refusal("whole", &|_| ()), Ok(()));
        let missing = refusal("missing", &|out| std::fs::remove_file(out.join(ROW_MAP)).unwrap());
        assert!(missing.unwrap_err().contains(ROW_MAP));
        let damaged = refusal("damaged", &|out| {
            let path = out.join(ROW_MAP);
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(path, bytes).unwrap();
        });
        assert!(damaged.unwrap_err().contains("is damaged"));
        let edit = |from: &'static str, to: &'static str| {
            move |out: &Path| {
                let path = out.join("manifest.json");
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(text.contains(from), "{from} in {text}");
                std::fs::write(path, text.replacen(from, to, 1)).unwrap();
            }
        };
        // What a program says that does not know a feature, as an older one says of this.
        let unknown = refusal("unknown", &edit("\"row-home\"", "\"row-home\", \"row-away\""));
        assert!(unknown.unwrap_err().contains("does not have: row-away"));
        let silent = refusal("silent", &edit("\"row-home\"", ""));
        assert!(silent.unwrap_err().contains("row bounds without the feature row-home"));
        let renamed = refusal("renamed", &edit("\"row_bounds\"", "\"row_limits\""));
        assert!(renamed.unwrap_err().contains("the feature row-home without row bounds"));
    }

    #[test]
    fn a_list_that_is_no_bijection_is_refused() {
        assert_eq!(
            check_bijection(&[0], 2),
            Err(RowMapError::Length { found: 1, nodes: 2 })
        );
        let beyond = RowMapError::OutOfRange {
            node: 1,
            row: 2,
            rows: 2,
        };
        assert_eq!(check_bijection(&[0, 2], 2), Err(beyond));
        assert_eq!(check_bijection(&[1, 1], 2), Err(RowMapError::Twice { node: 1, row: 1 }));
    }
}
