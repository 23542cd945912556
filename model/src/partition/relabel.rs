//! New ids, so that every part owns one contiguous range.

use super::PartitionError;
use crate::book::{NodeId, PartId, PartitionBook};

/// A bijection between the ids of a graph folder (original) and those of its parts (global), and the book of the latter.
///
/// Inside a part, nodes keep the order of their original ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relabelling {
    pub book: PartitionBook,
    /// The original id of every global id.
    pub original: Vec<NodeId>,
    /// The global id of every original id.
    pub global: Vec<NodeId>,
}

impl Relabelling {
    /// Sorts the nodes by the part that `assignment` gives them. Takes 8 bytes per node.
    ///
    /// # Errors
    /// [`PartitionError::PartOutOfRange`] for a part that is not below `parts`.
    pub fn new(assignment: &[PartId], parts: PartId) -> Result<Self, PartitionError> {
        let mut bounds = vec![0u32; usize::from(parts) + 1];
        for (node, part) in assignment.iter().enumerate() {
            if *part >= parts {
                return Err(PartitionError::PartOutOfRange {
                    node: node as NodeId,
                    part: *part,
                    parts,
                });
            }
            bounds[usize::from(*part) + 1] += 1;
        }
        for part in 0..usize::from(parts) {
            bounds[part + 1] += bounds[part];
        }
        let book = PartitionBook::new(bounds)?;
        let mut next = book.bounds().to_vec();
        let mut original = vec![0; assignment.len()];
        let mut global = vec![0; assignment.len()];
        for (node, part) in assignment.iter().enumerate() {
            let place = &mut next[usize::from(*part)];
            original[*place as usize] = node as NodeId;
            global[node] = *place;
            *place += 1;
        }
        Ok(Self { book, original, global })
    }

    /// The original ids that `part` owns, ascending.
    pub fn members(&self, part: PartId) -> &[NodeId] {
        let range = self.book.range(part);
        &self.original[range.start as usize..range.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_part_beyond_the_last_is_refused() {
        let refused = Relabelling::new(&[0, 2, 1], 2);
        assert!(matches!(
            refused,
            Err(PartitionError::PartOutOfRange {
                node: 1,
                part: 2,
                parts: 2
            })
        ));
    }

    proptest! {
        #[test]
        fn it_is_a_bijection_that_keeps_parts_and_order(assignment in prop::collection::vec(0u16..7, 0..60)) {
            let relabelling = Relabelling::new(&assignment, 7).unwrap();
            for (node, part) in assignment.iter().enumerate() {
                let global = relabelling.global[node];
                prop_assert_eq!(relabelling.original[global as usize] as usize, node);
                prop_assert_eq!(relabelling.book.owner(global), *part);
            }
            for part in 0..7 {
                prop_assert!(relabelling.members(part).is_sorted_by(|one, other| one < other));
            }
        }
    }
}
