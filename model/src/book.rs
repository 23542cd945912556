//! The partition book: which part owns a node, and at which row of that part it is stored.
//!
//! Nodes are relabelled at partition time so that every part owns one contiguous range of global ids. The whole book is
//! therefore `parts + 1` numbers, and the owner of a node is found by comparing its id with them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A global node id after relabelling. Ids are contiguous per part.
pub type NodeId = u32;
/// A part of the graph, counted from 0.
pub type PartId = u16;
/// A logical trainer. Rank `r` trains the seed nodes of part `r`, wherever the process that hosts it runs.
pub type Rank = u16;

/// Where the feature row of a node lives: the part that owns it, and the row inside that part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RowHome {
    pub owner: PartId,
    pub row: u32,
}

/// The bounds of all parts: part `p` owns the ids `bounds[p] .. bounds[p + 1]`. Parts may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct PartitionBook {
    bounds: Vec<u32>,
}

/// Why a list of bounds is not a partition book.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    #[error("a partition book needs at least two bounds, found {0}")]
    TooShort(usize),
    #[error("the first bound of a partition book must be 0, found {0}")]
    FirstNotZero(u32),
    #[error("bound {index} of the partition book is {value}, below the bound before it ({before})")]
    Decreasing { index: usize, value: u32, before: u32 },
    #[error("a graph is cut into at most {limit} parts, {parts} were asked for", limit = PartId::MAX)]
    TooManyParts { parts: usize },
}

impl PartitionBook {
    /// Checks that `bounds` starts at 0 and never decreases.
    pub fn new(bounds: Vec<u32>) -> Result<Self, BookError> {
        if bounds.len() < 2 {
            return Err(BookError::TooShort(bounds.len()));
        }
        if bounds.len() - 1 > usize::from(PartId::MAX) {
            return Err(BookError::TooManyParts {
                parts: bounds.len() - 1,
            });
        }
        if bounds[0] != 0 {
            return Err(BookError::FirstNotZero(bounds[0]));
        }
        for (index, pair) in bounds.windows(2).enumerate() {
            if pair[1] < pair[0] {
                return Err(BookError::Decreasing {
                    index: index + 1,
                    value: pair[1],
                    before: pair[0],
                });
            }
        }
        Ok(Self { bounds })
    }

    /// Number of parts, which is also the number of ranks.
    pub fn parts(&self) -> PartId {
        (self.bounds.len() - 1) as PartId
    }

    /// Number of nodes of the whole graph.
    pub fn nodes(&self) -> u32 {
        self.bounds[self.bounds.len() - 1]
    }

    /// The global ids that `part` owns.
    pub fn range(&self, part: PartId) -> Range<NodeId> {
        self.bounds[usize::from(part)]..self.bounds[usize::from(part) + 1]
    }

    /// Number of nodes that `part` owns.
    pub fn part_nodes(&self, part: PartId) -> u32 {
        let range = self.range(part);
        range.end - range.start
    }

    /// Number of rows that `rank` does not own: what 100 % of a budget means.
    pub fn remote_nodes(&self, rank: Rank) -> u32 {
        self.nodes() - self.part_nodes(rank)
    }

    /// Every id that `rank` does not own, ascending.
    pub fn remote_ids(&self, rank: Rank) -> impl Iterator<Item = NodeId> {
        let own = self.range(rank);
        (0..own.start).chain(own.end..self.nodes())
    }

    /// The part that owns `node`, which must be below [`nodes`](Self::nodes).
    pub fn owner(&self, node: NodeId) -> PartId {
        debug_assert!(node < self.nodes(), "node {node} of {}", self.nodes());
        (self.bounds.partition_point(|bound| *bound <= node) - 1) as PartId
    }

    /// The part and row that hold the features of `node`.
    pub fn row_home(&self, node: NodeId) -> RowHome {
        let owner = self.owner(node);
        RowHome {
            owner,
            row: node - self.bounds[usize::from(owner)],
        }
    }

    /// The global id of a row; the inverse of [`row_home`](Self::row_home).
    pub fn node(&self, home: RowHome) -> NodeId {
        self.bounds[usize::from(home.owner)] + home.row
    }

    /// All bounds, one more than there are parts.
    pub fn bounds(&self) -> &[u32] {
        &self.bounds
    }
}

impl TryFrom<Vec<u32>> for PartitionBook {
    type Error = BookError;

    fn try_from(bounds: Vec<u32>) -> Result<Self, BookError> {
        Self::new(bounds)
    }
}

impl From<PartitionBook> for Vec<u32> {
    fn from(book: PartitionBook) -> Self {
        book.bounds
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_parts_own_nothing_and_never_answer_for_a_node() {
        let book = PartitionBook::new(vec![0, 0, 3, 3, 5]).unwrap();
        assert_eq!(book.parts(), 4);
        let owners: Vec<PartId> = (0..5).map(|node| book.owner(node)).collect();
        assert_eq!(owners, [1, 1, 1, 3, 3]);
        assert_eq!(book.part_nodes(2), 0);
        assert_eq!(book.remote_nodes(1), 2);
    }

    #[test]
    fn bad_bounds_are_refused_with_index_and_value() {
        assert_eq!(PartitionBook::new(vec![0]), Err(BookError::TooShort(1)));
        assert_eq!(PartitionBook::new(vec![1, 2]), Err(BookError::FirstNotZero(1)));
        let decreasing = PartitionBook::new(vec![0, 5, 4]);
        assert_eq!(
            decreasing,
            Err(BookError::Decreasing {
                index: 2,
                value: 4,
                before: 5
            })
        );
    }

    proptest! {
        #[test]
        fn row_home_and_node_are_inverse(sizes in prop::collection::vec(0u32..20, 1..9)) {
            let bounds = std::iter::once(0)
                .chain(sizes.iter().scan(0, |sum, size| { *sum += size; Some(*sum) }))
                .collect();
            let book = PartitionBook::new(bounds).unwrap();
            for node in 0..book.nodes() {
                let home = book.row_home(node);
                prop_assert!(book.range(home.owner).contains(&node));
                prop_assert_eq!(book.node(home), node);
            }
        }
    }
}
