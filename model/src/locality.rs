//! How often the remote nodes of a rank repeat within some consecutive batches, and how much of the need the most frequent
//! of them make up.
//!
//! A *request* is a remote node in a batch, however often the batch has sampled it: that is a row that has to be there. A
//! *sampled edge* is one pick of it. In a window of `W` batches a node that is touched at all is requested at least once and
//! at most `W` times; so the `x` most frequent of the touched nodes, a share, have at most
//!
//! ```text
//! x W / (x W + 1 - x)          of all requests: W / (W + 9) for the top 10 %
//! ```
//!
//! whatever the graph ([`ceiling`]). Sampled edges have no such ceiling, and neither have the `x` most frequent out of *all*
//! remote nodes, of which a window may touch few.

use crate::batch::MiniBatch;
use crate::book::Rank;
use crate::rows::RowBook;

/// What one batch needs of other parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepUses {
    /// The remote nodes by the ids of their rows, each once.
    nodes: Vec<u32>,
    /// How many sampled edges lead to each.
    edges: Vec<u32>,
}

impl StepUses {
    /// The nodes of a batch whose rows `rank` does not own, and the picks of all hops that name them.
    pub fn of(batch: &MiniBatch, rows: &RowBook, rank: Rank) -> Self {
        let mut picks = vec![0u32; batch.nodes.len()];
        for source in batch.blocks.iter().flat_map(|block| &block.sources) {
            picks[*source as usize] += 1;
        }
        let own = rows.book().range(rank);
        let row_ids = batch.nodes.iter().map(|node| rows.row_id(*node));
        let (nodes, edges) = row_ids.zip(picks).filter(|(row, _)| !own.contains(row)).unzip();
        Self { nodes, edges }
    }
}

/// The most that the `share` most frequent of the nodes that a window of `window` batches touches can have of its requests.
pub fn ceiling(share: f64, window: u32) -> f64 {
    let most = share * f64::from(window);
    most / (most + 1.0 - share)
}

/// What a share of the nodes covers, summed over windows. The nodes are chosen with hindsight, anew for every window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cover {
    /// Requests of the most requested of the touched nodes.
    pub requests: u64,
    /// Sampled edges of the most sampled of the touched nodes.
    pub edges: u64,
    /// Requests of the most requested, where the share is of all remote nodes.
    pub requests_of_all: u64,
}

/// The locality of windows of some length, summed over windows, epochs and ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Locality {
    /// Batches per window as asked.
    pub window: u32,
    /// The longest window that there was: an epoch may be shorter.
    pub longest: u32,
    pub windows: u64,
    /// Nodes of each window, each once.
    pub touched: u64,
    /// Of these the ones in a single batch of their window.
    pub seen_once: u64,
    /// Remote nodes of the rank, once per window.
    pub remote: u64,
    pub requests: u64,
    pub edges: u64,
    /// The fewest of the touched nodes that have 85 % of the requests of their window.
    pub needed_for_85: u64,
    shares: Vec<f64>,
    covers: Vec<Cover>,
}

/// Counters of one window; all zero between two.
#[derive(Debug, Default)]
pub struct Scratch {
    requests: Vec<u32>,
    edges: Vec<u64>,
    seen: Vec<u32>,
}

impl Locality {
    /// Nothing so far. `shares` of the nodes are from 0 to 1.
    pub fn new(window: u32, shares: &[f64]) -> Self {
        Self {
            window: window.max(1),
            shares: shares.to_vec(),
            covers: vec![Cover::default(); shares.len()],
            ..Self::default()
        }
    }

    /// Adds the training steps of an epoch of one rank; windows do not go past it, and the last may be short.
    /// `remote_nodes` is how many nodes the rank does not own, of a graph of `nodes`.
    pub fn add_epoch(&mut self, steps: &[StepUses], remote_nodes: u32, nodes: u32, scratch: &mut Scratch) {
        scratch.requests.resize(nodes as usize, 0);
        scratch.edges.resize(nodes as usize, 0);
        for window in steps.chunks(self.window as usize) {
            self.add_window(window, remote_nodes, scratch);
        }
    }

    fn add_window(&mut self, steps: &[StepUses], remote_nodes: u32, scratch: &mut Scratch) {
        for step in steps {
            for (node, edges) in step.nodes.iter().zip(&step.edges) {
                let index = *node as usize;
                if scratch.requests[index] == 0 {
                    scratch.seen.push(*node);
                }
                scratch.requests[index] += 1;
                scratch.edges[index] += u64::from(*edges);
            }
        }
        let touched = scratch.seen.len();
        let mut requests = Vec::with_capacity(touched);
        let mut edges = Vec::with_capacity(touched);
        for node in scratch.seen.drain(..) {
            requests.push(u64::from(std::mem::take(&mut scratch.requests[node as usize])));
            edges.push(std::mem::take(&mut scratch.edges[node as usize]));
        }
        requests.sort_unstable_by(|a, b| b.cmp(a));
        edges.sort_unstable_by(|a, b| b.cmp(a));
        let whole: u64 = requests.iter().sum();
        self.windows += 1;
        self.longest = self.longest.max(steps.len() as u32);
        self.touched += touched as u64;
        self.seen_once += requests.iter().filter(|count| **count == 1).count() as u64;
        self.remote += u64::from(remote_nodes);
        self.requests += whole;
        self.edges += edges.iter().sum::<u64>();
        let mut sum = 0;
        let needed = requests.iter().take_while(|count| {
            let before = sum;
            sum += **count;
            before * 100 < whole * 85
        });
        self.needed_for_85 += needed.count() as u64;
        let first = |counts: &[u64], count: usize| counts.iter().take(count).sum::<u64>();
        for (share, cover) in self.shares.iter().zip(&mut self.covers) {
            // Rounded down, so that the ceiling holds for any number of nodes.
            let of_touched = (touched as f64 * share) as usize;
            cover.requests += first(&requests, of_touched);
            cover.edges += first(&edges, of_touched);
            cover.requests_of_all += first(&requests, (f64::from(remote_nodes) * share) as usize);
        }
    }

    /// The shares of the nodes, and what they cover.
    pub fn covers(&self) -> impl Iterator<Item = (f64, Cover)> {
        self.shares.iter().copied().zip(self.covers.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::batch::{Block, RemoteRows};
    use crate::book::PartitionBook;
    use crate::rng::Purpose;

    fn step(uses: &[(u32, u32)]) -> StepUses {
        let (nodes, edges) = uses.iter().copied().unzip();
        StepUses { nodes, edges }
    }

    fn locality(window: u32, shares: &[f64], steps: &[StepUses]) -> Locality {
        let mut locality = Locality::new(window, shares);
        locality.add_epoch(steps, 20, 30, &mut Scratch::default());
        locality
    }

    #[test]
    fn a_batch_has_its_remote_nodes_once_and_their_picks_of_all_hops() {
        let block = |sources: &[u32], source_count| Block {
            offsets: vec![0, sources.len() as u32],
            sources: sources.to_vec(),
            source_count,
        };
        let batch = MiniBatch {
            step: 0,
            purpose: Purpose::Train,
            nodes: vec![0, 7, 3],
            blocks: vec![block(&[1, 1], 2), block(&[1, 2, 0], 3)],
            remote: RemoteRows::default(),
        };
        let rows = RowBook::of_nodes(Arc::new(PartitionBook::new(vec![0, 5, 9]).unwrap()));
        assert_eq!(StepUses::of(&batch, &rows, 0), step(&[(7, 3)]));
        assert_eq!(StepUses::of(&batch, &rows, 1), step(&[(0, 1), (3, 1)]));
    }

    #[test]
    fn windows_are_counted_by_hand() {
        // Node 1 is in every batch, the others in one each; node 9 has most of the edges.
        let steps = [
            step(&[(1, 1), (2, 1), (3, 1)]),
            step(&[(1, 1), (9, 50)]),
            step(&[(1, 1), (4, 1), (5, 1)]),
        ];
        let found = locality(2, &[0.25, 0.5], &steps);
        assert_eq!(
            (found.windows, found.longest, found.touched, found.requests),
            (2, 2, 4 + 3, 5 + 3)
        );
        assert_eq!((found.seen_once, found.remote, found.edges), (3 + 3, 40, 54 + 3));
        let covers: Vec<_> = found.covers().collect();
        // A quarter of 4 nodes is one, of 3 none; a quarter of all 20 nodes is more than there are.
        assert_eq!(
            covers[0],
            (
                0.25,
                Cover {
                    requests: 2,
                    edges: 50,
                    requests_of_all: 5 + 3
                }
            )
        );
        assert_eq!(covers[1].1.requests, 3 + 1);
        // 85 % of 5 requests take all 4 nodes, of 3 all 3.
        assert_eq!(found.needed_for_85, 4 + 3);
        assert_eq!(locality(9, &[0.1], &steps).windows, 1);
    }

    #[test]
    fn the_ceiling_of_the_top_tenth_is_w_over_w_plus_nine() {
        for window in [1, 4, 16, 64] {
            let expected = f64::from(window) / (f64::from(window) + 9.0);
            assert!((ceiling(0.1, window) - expected).abs() < 1e-12);
        }
        assert_eq!((ceiling(1.0, 7), ceiling(0.0, 7)), (1.0, 0.0));
    }

    #[test]
    fn the_ceiling_is_reached_where_the_top_is_in_every_batch_and_the_rest_in_one() {
        let steps: Vec<_> = (0..16u32)
            .map(|batch| {
                let mut uses = vec![(0, 1)];
                uses.extend((1..10).filter(|node| node % 16 == batch).map(|node| (node, 1)));
                step(&uses)
            })
            .collect();
        let found = locality(16, &[0.1], &steps);
        let (_, cover) = found.covers().next().unwrap();
        assert_eq!((found.touched, cover.requests, found.requests), (10, 16, 25));
        assert!((cover.requests as f64 / found.requests as f64 - ceiling(0.1, 16)).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn no_share_of_the_touched_nodes_covers_more_than_the_ceiling(
            batches in prop::collection::vec(prop::collection::btree_map(0..30u32, 1..5u32, 0..12), 1..12),
            window in 1..8u32,
            share in 0.0..1.0f64,
        ) {
            let steps: Vec<_> = batches.iter().map(|uses| step(&uses.iter().map(|(node, edges)| (*node, *edges)).collect::<Vec<_>>())).collect();
            let found = locality(window, &[share, 1.0], &steps);
            let covers: Vec<_> = found.covers().map(|(_, cover)| cover).collect();
            let most = ceiling(share, found.longest) * found.requests as f64;
            prop_assert!(covers[0].requests as f64 <= most + 1e-9, "{} above {most}", covers[0].requests);
            prop_assert_eq!((covers[1].requests, covers[1].edges), (found.requests, found.edges));
            prop_assert!(found.needed_for_85 <= found.touched && found.seen_once <= found.touched);
        }
    }
}
