//! The edges: a degree-corrected block model, drawn one edge at a time by number.
//!
//! Every node has a weight and lies in one community. An edge picks its first end by weight among all nodes, and its
//! second end by weight among the nodes of the same community, or with probability `1 - inside` among all nodes. The
//! expected degree of a node is proportional to its weight (Karrer and Newman, Physical Review E 83, 016107, 2011).
//! Self-loops and edges that exist already are thrown away and drawn again, so the heaviest nodes end a little below it.

use rayon::prelude::*;

use super::{SynthError, SynthSpec};
use crate::book::NodeId;
use crate::rng::{CounterRng, mix_words, shuffle};

/// The words that keep the draws of different things apart.
mod domain {
    pub const COMMUNITY_SIZE: u64 = 1;
    pub const COMMUNITY: u64 = 2;
    pub const WEIGHT: u64 = 3;
    pub const LABELLING: u64 = 4;
    pub const EDGE: u64 = 5;
    pub const SURPLUS: u64 = 6;
}

/// The sizes of communities follow a Pareto law with this shape.
const COMMUNITY_SHAPE: f64 = 2.5;
/// How often missing edges are drawn anew before the graph is called too dense.
const ROUNDS: u32 = 200;
/// What stands for a self-loop until it is thrown away. No edge has this key: ids are below 2^32 - 1.
const NO_EDGE: u64 = u64::MAX;

/// Nodes in building order, grouped by community, with what a weighted draw needs.
pub(super) struct BlockModel {
    seed: u64,
    inside: f64,
    /// Community `c` holds the positions `bounds[c] .. bounds[c + 1]`.
    bounds: Vec<u32>,
    community: Vec<u16>,
    /// Sum of the weights before every position, and the total at the end.
    cumulative: Vec<f64>,
    /// For every bucket of equal weight the position at which it starts: where a search for a weight begins.
    guide: Vec<u32>,
    /// The id that the node at a position has in the graph, which hides the communities.
    pub(super) id: Vec<NodeId>,
}

impl BlockModel {
    pub(super) fn new(spec: &SynthSpec) -> Self {
        let bounds = community_bounds(spec);
        let community = (0u16..)
            .zip(bounds.windows(2))
            .flat_map(|(community, pair)| std::iter::repeat_n(community, (pair[1] - pair[0]) as usize))
            .collect();
        let cumulative = cumulative_weights(spec);
        let guide = guide_table(&cumulative);
        let mut id: Vec<NodeId> = (0..spec.nodes).collect();
        shuffle(mix_words(&[spec.seed, domain::LABELLING]), &mut id);
        Self {
            seed: spec.seed,
            inside: spec.inside,
            bounds,
            community,
            cumulative,
            guide,
            id,
        }
    }

    /// The community of every node by its id in the graph.
    pub(super) fn community_by_id(&self) -> Vec<u16> {
        let mut communities = vec![0; self.id.len()];
        for (id, community) in self.id.iter().zip(&self.community) {
            communities[*id as usize] = *community;
        }
        communities
    }

    /// Exactly `edges` distinct undirected edges as sorted keys `smaller id * 2^32 + larger id`.
    ///
    /// # Errors
    /// [`SynthError::TooDense`] when the model does not give that many in a bounded number of rounds.
    pub(super) fn edges(&self, edges: u64) -> Result<Vec<u64>, SynthError> {
        let wanted = usize::try_from(edges).map_err(|_| SynthError::TooDense {
            wanted: edges,
            found: 0,
        })?;
        let mut keys: Vec<u64> = Vec::with_capacity(draws_for(wanted));
        let mut drawn = 0u64;
        for _ in 0..ROUNDS {
            if keys.len() >= wanted {
                break;
            }
            let draws = draws_for(wanted - keys.len());
            let mut fresh: Vec<u64> = Vec::with_capacity(draws);
            (0..draws)
                .into_par_iter()
                .map(|number| self.draw(drawn + number as u64))
                .collect_into_vec(&mut fresh);
            drawn += draws as u64;
            fresh.par_sort_unstable();
            fresh.dedup();
            if fresh.last() == Some(&NO_EDGE) {
                fresh.pop();
            }
            merge_new(&mut keys, fresh);
        }
        if keys.len() < wanted {
            return Err(SynthError::TooDense {
                wanted: edges,
                found: keys.len() as u64,
            });
        }
        keep_exactly(&mut keys, wanted, mix_words(&[self.seed, domain::SURPLUS]));
        Ok(keys)
    }

    /// Edge number `number`, or [`NO_EDGE`] when both ends are one node.
    fn draw(&self, number: u64) -> u64 {
        let mut rng = CounterRng::new(mix_words(&[self.seed, domain::EDGE, number]));
        let all = 0..self.id.len() as u32;
        let first = self.pick(&mut rng, all.clone());
        let range = if rng.unit_f64() < self.inside {
            let community = usize::from(self.community[first as usize]);
            self.bounds[community]..self.bounds[community + 1]
        } else {
            all
        };
        let second = self.pick(&mut rng, range);
        if first == second {
            return NO_EDGE;
        }
        edge_key(self.id[first as usize], self.id[second as usize])
    }

    /// A position in `range`, which is not empty, by weight.
    ///
    /// Inversion with a guide table (Chen and Asau, AIIE Transactions 6, 1974): constant time on average.
    fn pick(&self, rng: &mut CounterRng, range: std::ops::Range<u32>) -> u32 {
        let total = self.cumulative[self.id.len()];
        let low = self.cumulative[range.start as usize];
        let high = self.cumulative[range.end as usize];
        let target = low + rng.unit_f64() * (high - low);
        let bucket = (target / total * self.guide.len() as f64) as usize;
        let start = self.guide[bucket.min(self.guide.len() - 1)];
        let mut position = start.clamp(range.start, range.end - 1);
        while position > range.start && self.cumulative[position as usize] > target {
            position -= 1;
        }
        while position + 1 < range.end && self.cumulative[position as usize + 1] <= target {
            position += 1;
        }
        position
    }
}

pub(super) fn edge_key(one: NodeId, other: NodeId) -> u64 {
    (u64::from(one.min(other)) << 32) | u64::from(one.max(other))
}

/// The two ends of a key, the smaller id first.
pub(super) fn edge_ends(key: u64) -> (NodeId, NodeId) {
    ((key >> 32) as u32, key as u32)
}

/// How many draws are made for `missing` edges: some give an edge that exists.
fn draws_for(missing: usize) -> usize {
    missing + missing / 100 * 15 + 1_000
}

/// A draw from a Pareto law on [1, infinity) with survival `x^-shape`.
fn pareto(rng: &mut CounterRng, shape: f64) -> f64 {
    (1.0 - rng.unit_f64()).powf(-1.0 / shape)
}

fn community_bounds(spec: &SynthSpec) -> Vec<u32> {
    let communities = spec.communities();
    let mut rng = CounterRng::new(mix_words(&[spec.seed, domain::COMMUNITY_SIZE]));
    let mut sums: Vec<f64> = Vec::with_capacity(communities);
    let mut total = 0.0;
    for _ in 0..communities {
        total += pareto(&mut rng, COMMUNITY_SHAPE);
        sums.push(total);
    }
    let mut sizes = vec![0u32; communities];
    let mut rng = CounterRng::new(mix_words(&[spec.seed, domain::COMMUNITY]));
    for _ in 0..spec.nodes {
        let target = rng.unit_f64() * total;
        let community = sums.partition_point(|sum| *sum <= target).min(communities - 1);
        sizes[community] += 1;
    }
    let mut bounds = vec![0];
    bounds.extend(sizes.iter().scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    }));
    bounds
}

/// Weights by a Pareto law whose density falls with power `exponent`, cut off at `2 sqrt(nodes)`.
fn cumulative_weights(spec: &SynthSpec) -> Vec<f64> {
    let cut_off = 2.0 * f64::from(spec.nodes).sqrt();
    let mut rng = CounterRng::new(mix_words(&[spec.seed, domain::WEIGHT]));
    let mut sums = Vec::with_capacity(spec.nodes as usize + 1);
    let mut total = 0.0;
    sums.push(total);
    for _ in 0..spec.nodes {
        total += pareto(&mut rng, spec.exponent - 1.0).min(cut_off);
        sums.push(total);
    }
    sums
}

fn guide_table(cumulative: &[f64]) -> Vec<u32> {
    let nodes = cumulative.len() - 1;
    let width = cumulative[nodes] / nodes as f64;
    let mut position = 0;
    (0..nodes)
        .map(|bucket| {
            let start = bucket as f64 * width;
            while position + 1 < nodes && cumulative[position + 1] <= start {
                position += 1;
            }
            position as u32
        })
        .collect()
}

/// Adds what `fresh` has and `keys` lacks; both are sorted without repetition, and `keys` stays so.
fn merge_new(keys: &mut Vec<u64>, mut fresh: Vec<u64>) {
    let mut known = keys.iter().peekable();
    fresh.retain(|key| {
        while known.next_if(|old| **old < *key).is_some() {}
        known.peek() != Some(&key)
    });
    let mut old = keys.len();
    let mut place = old + fresh.len();
    keys.resize(place, 0);
    // From the back, so that no old key is overwritten before it has moved.
    while let Some(key) = fresh.last().copied() {
        place -= 1;
        if old > 0 && keys[old - 1] > key {
            old -= 1;
            keys[place] = keys[old];
        } else {
            keys[place] = key;
            fresh.pop();
        }
    }
}

/// Keeps `wanted` keys, every subset with equal probability (selection sampling: Knuth, TAOCP 2, 3.4.2, algorithm S).
fn keep_exactly(keys: &mut Vec<u64>, wanted: usize, key: u64) {
    if keys.len() == wanted {
        return;
    }
    let mut rng = CounterRng::new(key);
    let mut left = keys.len();
    let mut missing = wanted;
    keys.retain(|_| {
        let keep = rng.unit_f64() * (left as f64) < missing as f64;
        left -= 1;
        missing -= usize::from(keep);
        keep
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn picks_follow_the_weights_inside_the_range_only() {
        let spec = SynthSpec {
            nodes: 400,
            ..SynthSpec::tiny(400)
        };
        let model = BlockModel::new(&spec);
        let range = 100..200u32;
        let mut rng = CounterRng::new(3);
        let mut counts = vec![0u32; 400];
        let draws = 200_000;
        for _ in 0..draws {
            counts[model.pick(&mut rng, range.clone()) as usize] += 1;
        }
        let mass = model.cumulative[200] - model.cumulative[100];
        let mut chi = 0.0;
        for (position, count) in counts.iter().enumerate() {
            if !(100..200).contains(&position) {
                assert_eq!(*count, 0, "position {position} lies outside the range");
                continue;
            }
            let share = (model.cumulative[position + 1] - model.cumulative[position]) / mass;
            let expected = share * f64::from(draws);
            chi += (f64::from(*count) - expected).powi(2) / expected;
        }
        // 99 degrees of freedom: 149 is the 0.1 % point.
        assert!(chi < 149.0, "chi-squared {chi}");
    }

    #[test]
    fn a_graph_that_cannot_be_that_dense_is_refused() {
        let spec = SynthSpec::tiny(4);
        let refused = BlockModel::new(&spec).edges(7);
        assert!(matches!(
            refused,
            Err(SynthError::TooDense { wanted: 7, found }) if found <= 6
        ));
    }

    proptest! {
        #[test]
        fn merging_gives_the_sorted_union(
            one in prop::collection::btree_set(0u64..60, 0..40),
            other in prop::collection::btree_set(0u64..60, 0..40),
        ) {
            let mut keys: Vec<u64> = one.iter().copied().collect();
            merge_new(&mut keys, other.iter().copied().collect());
            let union: Vec<u64> = one.union(&other).copied().collect();
            prop_assert_eq!(keys, union);
        }

        #[test]
        fn exactly_as_many_keys_stay_as_are_wanted(count in 0usize..200, share in 0.0f64..=1.0, key: u64) {
            let wanted = (count as f64 * share) as usize;
            let mut keys: Vec<u64> = (0..count as u64).collect();
            keep_exactly(&mut keys, wanted, key);
            prop_assert_eq!(keys.len(), wanted);
            prop_assert!(keys.is_sorted());
        }
    }
}
