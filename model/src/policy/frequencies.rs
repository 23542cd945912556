//! Counting which rows are needed most.

use std::sync::Arc;

use super::global_ids;
use crate::batch::RemoteRows;
use crate::book::{NodeId, PartitionBook};

/// In how many of some batches each row is needed. All zero between two counts.
pub(super) struct Frequencies {
    batches: Vec<u32>,
    seen: Vec<NodeId>,
    nodes: Vec<NodeId>,
}

impl Frequencies {
    pub(super) fn new(nodes: u32) -> Self {
        Self {
            batches: vec![0; nodes as usize],
            seen: Vec::new(),
            nodes: Vec::new(),
        }
    }

    pub(super) fn count(&mut self, batches: &[Arc<RemoteRows>], book: &PartitionBook) {
        for remote in batches {
            global_ids(remote, book, &mut self.nodes);
            for node in &self.nodes {
                let batches = &mut self.batches[*node as usize];
                if *batches == 0 {
                    self.seen.push(*node);
                }
                *batches += 1;
            }
        }
    }

    /// The `hot_rows` most frequent rows, or all that there are: by falling frequency, ties by ascending id. Forgets the
    /// batches.
    pub(super) fn take_hottest(&mut self, hot_rows: u32) -> Vec<NodeId> {
        // Ascending keys are falling frequencies, then ascending ids.
        let batches = &mut self.batches;
        let key = |node: NodeId| {
            let frequency = std::mem::take(&mut batches[node as usize]);
            u64::from(u32::MAX - frequency) << 32 | u64::from(node)
        };
        let mut keys: Vec<u64> = self.seen.drain(..).map(key).collect();
        let hot_rows = hot_rows as usize;
        if hot_rows < keys.len() {
            keys.select_nth_unstable(hot_rows);
            keys.truncate(hot_rows);
        }
        keys.sort_unstable();
        keys.into_iter().map(|key| key as u32).collect()
    }

    /// The largest number, at most `limit`, of first rows of both lists that are together at most `budget_rows` rows.
    pub(super) fn largest_pair(&mut self, one: &[NodeId], other: &[NodeId], budget_rows: u32, limit: u32) -> u32 {
        let mut largest = 0;
        let mut together = 0;
        let longer = one.len().max(other.len()) as u32;
        while largest < limit {
            if largest >= longer {
                largest = limit;
                break;
            }
            for node in [one, other].into_iter().filter_map(|list| list.get(largest as usize)) {
                if std::mem::replace(&mut self.batches[*node as usize], 1) == 0 {
                    together += 1;
                }
            }
            if together > budget_rows {
                break;
            }
            largest += 1;
        }
        one.iter()
            .chain(other)
            .for_each(|node| self.batches[*node as usize] = 0);
        largest
    }
}
