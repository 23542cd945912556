//! The partition that looks at nothing: what every other has to beat.

use crate::book::{NodeId, PartId};
use crate::rng::mix_words;

/// Gives every node a part by its hash: even in expectation, and cuts `1 - 1 / parts` of the edges.
pub fn hash_assignment(nodes: u32, parts: PartId, seed: u64) -> Vec<PartId> {
    (0..nodes).map(|node| hash_part(node, parts, seed)).collect()
}

fn hash_part(node: NodeId, parts: PartId, seed: u64) -> PartId {
    let word = mix_words(&[seed, u64::from(node)]);
    // Multiply-shift: the upper half of the word, as a fraction, times the number of parts.
    (((word >> 32) * u64::from(parts)) >> 32) as PartId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_follow_the_seed() {
        let assignment = hash_assignment(40_000, 4, 1);
        for part in 0..4 {
            let nodes = assignment.iter().filter(|other| **other == part).count();
            // Six standard deviations of a binomial draw are 520.
            assert!(nodes.abs_diff(10_000) < 520, "part {part} has {nodes} nodes");
        }
        assert_eq!(assignment, hash_assignment(40_000, 4, 1));
        assert_ne!(assignment, hash_assignment(40_000, 4, 2));
    }
}
