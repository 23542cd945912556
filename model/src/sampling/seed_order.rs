//! The order in which a rank's train seeds make up the batches of an epoch.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Topology;
use crate::rng::{CounterRng, mix_words, shuffle};

/// How train seeds are ordered. Every order is a permutation of the seeds, drawn anew for each epoch and rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum SeedOrder {
    /// All permutations are equally likely.
    #[default]
    Random,
    /// Seeds that are near each other share a batch, or come in batches that follow each other, so that batches need fewer
    /// rows: the order of BGL (Liu et al., NSDI 2023). Batches are no longer independent draws, which changes what is
    /// learnt; the more sequences, the less.
    Proximity {
        /// Sequences that a batch is drawn from; at least 1.
        sequences: u32,
    },
}

impl SeedOrder {
    /// Sequences of `proximity` where none are named.
    ///
    /// BGL takes the fewest for which the shuffling error stays below a bound, which needs the labels of all ranks. With ten,
    /// a batch has seeds of ten places of the part.
    pub const DEFAULT_SEQUENCES: u32 = 10;
}

impl fmt::Display for SeedOrder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => out.write_str("random"),
            Self::Proximity { sequences } => write!(out, "proximity:{sequences}"),
        }
    }
}

/// The name of no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `random`, `proximity` or `proximity:SEQUENCES` with at least 1 sequence, found '{0}'")]
pub struct UnknownSeedOrder(String);

impl FromStr for SeedOrder {
    type Err = UnknownSeedOrder;

    fn from_str(text: &str) -> Result<Self, UnknownSeedOrder> {
        let unknown = || UnknownSeedOrder(text.to_owned());
        match (text, text.strip_prefix("proximity:")) {
            ("random", _) => Ok(Self::Random),
            ("proximity", _) => Ok(Self::Proximity {
                sequences: Self::DEFAULT_SEQUENCES,
            }),
            (_, Some(count)) => match count.parse() {
                Ok(sequences) if sequences > 0 => Ok(Self::Proximity { sequences }),
                _ => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }
}

impl TryFrom<String> for SeedOrder {
    type Error = UnknownSeedOrder;

    fn try_from(text: String) -> Result<Self, UnknownSeedOrder> {
        text.parse()
    }
}

impl From<SeedOrder> for String {
    fn from(order: SeedOrder) -> Self {
        order.to_string()
    }
}

/// The proximity-aware order of BGL (Liu et al., NSDI 2023, section 3.2.2), reconstructed, on what one part knows.
///
/// Breadth-first searches from random seeds, over edges inside the part, list the seeds; each list ends with its share of
/// them, and the next one starts at a seed that none has. Each list is then rotated by a random offset, so that batches differ
/// from epoch to epoch and a list's end is no special place, and the seeds are taken from the lists in turn.
///
/// `seeds` are rows of `local`, ascending. The result is a permutation of them and depends only on the arguments. Takes
/// up to 22 bytes per row of the part, and time in proportion to its edges.
pub(super) fn proximity_order(key: u64, sequences: u32, seeds: &[u32], local: Topology<'_>) -> Vec<u32> {
    let mut lists = breadth_first_lists(key, sequences, seeds, local);
    let mut rng = CounterRng::new(mix_words(&[key, 1]));
    for list in &mut lists {
        let offset = rng.below(list.len() as u32) as usize;
        list.rotate_left(offset);
    }
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut order = Vec::with_capacity(seeds.len());
    for place in 0..longest {
        order.extend(lists.iter().filter_map(|list| list.get(place)));
    }
    order
}

/// What a search knows of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    New,
    /// In the queue.
    Seen,
    /// Out of the queue; a seed is in a list.
    Done,
}

/// Non-empty lists of about equal length, at most `sequences`, with every seed in exactly one.
fn breadth_first_lists(key: u64, sequences: u32, seeds: &[u32], local: Topology<'_>) -> Vec<Vec<u32>> {
    let share = seeds.len().div_ceil(sequences.max(1) as usize);
    let mut roots = seeds.to_vec();
    shuffle(key, &mut roots);
    let mut roots = roots.into_iter();
    let mut rows = vec![Row::New; local.rows() as usize];
    let mut is_seed = vec![false; rows.len()];
    seeds.iter().for_each(|seed| is_seed[*seed as usize] = true);
    let mut lists = Vec::new();
    let mut list = Vec::with_capacity(share);
    let mut queue: VecDeque<u32> = VecDeque::new();
    loop {
        // An empty queue has reached all that it can: the list goes on somewhere else.
        let next = queue
            .pop_front()
            .or_else(|| roots.find(|root| rows[*root as usize] == Row::New));
        let Some(row) = next else {
            break;
        };
        rows[row as usize] = Row::Done;
        if is_seed[row as usize] {
            list.push(row);
            if list.len() == share {
                lists.push(std::mem::replace(&mut list, Vec::with_capacity(share)));
                // What was seen but not reached is for other lists.
                for row in queue.drain(..) {
                    rows[row as usize] = Row::New;
                }
                continue;
            }
        }
        for neighbor in local.row(row) {
            let Some(neighbor) = neighbor.checked_sub(local.first) else {
                continue;
            };
            if let Some(state) = rows.get_mut(neighbor as usize)
                && *state == Row::New
            {
                *state = Row::Seen;
                queue.push_back(neighbor);
            }
        }
    }
    if !list.is_empty() {
        lists.push(list);
    }
    lists
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampling::tests::TestGraph;

    /// `count` rings of `length` nodes each, one after the other; all nodes are seeds.
    fn rings(count: u32, length: u32) -> (Vec<u64>, Vec<u32>) {
        let offsets = (0..=u64::from(count * length)).map(|row| 2 * row).collect();
        let neighbors = (0..count * length).flat_map(|node| {
            let (first, place) = (node / length * length, node % length);
            [first + (place + length - 1) % length, first + (place + 1) % length]
        });
        (offsets, neighbors.collect())
    }

    proptest! {
        #[test]
        fn it_is_a_permutation_that_follows_its_key(
            key: u64,
            sizes in prop::collection::vec(1u32..90, 1..4),
            degree in 0u32..12,
            sequences in 1u32..20,
            share in 1u32..4,
        ) {
            let graph = TestGraph::new(key, &sizes, degree);
            for (part, size) in (0..).zip(&sizes) {
                let local = graph.topology(part);
                let seeds: Vec<u32> = (0..*size).filter(|row| row % share == 0).collect();
                let order = proximity_order(key, sequences, &seeds, local);
                prop_assert_eq!(&order, &proximity_order(key, sequences, &seeds, local));
                let mut sorted = order;
                sorted.sort_unstable();
                prop_assert_eq!(&sorted, &seeds);
                let lists = breadth_first_lists(key, sequences, &seeds, local);
                prop_assert!(lists.len() <= sequences as usize && lists.iter().all(|list| !list.is_empty()));
                let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
                prop_assert!(longest <= seeds.len().div_ceil(sequences as usize));
            }
        }
    }

    #[test]
    fn a_list_walks_through_neighbours() {
        let (offsets, neighbors) = rings(1, 100);
        let local = Topology {
            first: 0,
            offsets: &offsets,
            neighbors: &neighbors,
        };
        let seeds: Vec<u32> = (0..100).collect();
        let lists = breadth_first_lists(5, 4, &seeds, local);
        // The nodes of a list that is not the last make one arc of the ring.
        let mut arc = lists[0].clone();
        assert_eq!(arc.len(), 25);
        arc.sort_unstable();
        let gaps = arc.windows(2).filter(|pair| pair[1] - pair[0] > 1).count();
        assert!(gaps <= 1, "{arc:?}");
    }

    #[test]
    fn a_batch_has_seeds_of_every_list() {
        let (offsets, neighbors) = rings(4, 25);
        let local = Topology {
            first: 0,
            offsets: &offsets,
            neighbors: &neighbors,
        };
        let seeds: Vec<u32> = (0..100).collect();
        let order = proximity_order(3, 4, &seeds, local);
        // Every list fills one ring, since rings have just its length.
        for batch in order.chunks(20) {
            for ring in 0..4 {
                assert_eq!(batch.iter().filter(|seed| **seed / 25 == ring).count(), 5, "{batch:?}");
            }
        }
    }

    #[test]
    fn orders_are_read_as_they_are_written() {
        for order in [SeedOrder::Random, SeedOrder::Proximity { sequences: 3 }] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        assert_eq!(
            "proximity".parse(),
            Ok(SeedOrder::Proximity {
                sequences: SeedOrder::DEFAULT_SEQUENCES
            })
        );
        for text in ["", "bfs", "proximity:", "proximity:0", "proximity:-1", "random:2"] {
            assert!(
                text.parse::<SeedOrder>()
                    .unwrap_err()
                    .to_string()
                    .contains("at least 1 sequence")
            );
        }
    }
}
