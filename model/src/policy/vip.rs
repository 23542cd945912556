//! Vertex inclusion probabilities: how likely a batch of a rank needs each node, from the graph alone.
//!
//! SALIENT++ (Kaler et al., MLSys 2023, section 3) starts from `p_0(v) = B / |T|` for the seeds `T` of the rank and batches
//! of `B`, lets a node that is expanded at hop `h` pick a given one of its `d(v)` neighbours with probability
//! `w_h(v) = min(1, f_h / d(v))`, and takes all these events for independent. There a hop expands only the nodes that the
//! hop before has picked. Our sampler, as DGL's, expands *all* nodes seen so far at every hop, each time with new draws. So
//! here `a_j(v)` is the probability that `v` is first seen at hop `j` (`a_0 = p_0`), from when on it picks at every hop:
//!
//! ```text
//! q_h(v) = sum over j < h of a_j(v) (1 - product over j < i <= h of (1 - w_i(v)))   v has picked a given neighbour by hop h
//! c_h(u) = 1 - (1 - p_0(u)) product over v, u in row(v), v != u of (1 - q_h(v))     u has been seen by hop h
//! a_h(u) = c_h(u) - c_{h-1}(u)
//! ```
//!
//! and the probability of `u` is `c_L(u)`. Multiplying the hops' probabilities instead, as if a node that is expanded twice
//! had been reached twice, counts a neighbour of a row that is taken whole once per hop. A neighbour that a row lists `m`
//! times is picked with probability `1 - product over k < m of (1 - f / (d - k))`. What is still taken for independent is
//! what is not: seeds of one batch, and the paths from a node back to itself. On a graph whose edges all lead away from
//! one seed per node the result is exact.
//!
//! Edges are walked from each `v` to the in-neighbours that it lists, which are those that it can pick, so directed
//! graphs are right; a seed without neighbours keeps its `p_0`. The factors are applied one by one in the order of the
//! edges of a part, then those of the parts in their order, without logarithms, so the result is the same bits everywhere.
//!
//! No rank has the whole graph, but every owner has the rows of its own nodes: [`PartEstimate`] is one part's share of the
//! work, hop by hop, and [`vip()`] is all of them in one place. Parts that exchange what their rows pick get the same bits.

mod part;

pub use part::PartEstimate;

use super::scores::UnknownNeighbor;
use crate::book::NodeId;
use crate::sampling::Topology;

/// Why there are no inclusion probabilities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VipError {
    #[error("the batch size must be at least 1")]
    BatchSize,
    #[error("seed {seed} is not a node of the graph, which has {nodes} nodes")]
    UnknownSeed { seed: NodeId, nodes: u32 },
    #[error(transparent)]
    UnknownNeighbor(#[from] UnknownNeighbor),
    #[error("node {first} is the first of part {part} of the topology, not node {wanted}; give all parts in order")]
    Hole { part: usize, first: NodeId, wanted: NodeId },
}

/// Per node the probability that a batch of `batch_size` of `seeds` has it: with the seeds of one rank, which are distinct,
/// what that rank needs. Times the number of batches it is how often an epoch needs the node.
///
/// `parts` are the rows of all nodes in order, as one topology or as several. `fanouts` are in hop order from the seeds.
/// It takes time in proportion to hops times edges, and memory of 8 bytes per node and hop and a few more per node.
///
/// # Errors
/// See [`VipError`].
pub fn vip(parts: &[Topology<'_>], seeds: &[NodeId], batch_size: u32, fanouts: &[u32]) -> Result<Vec<f64>, VipError> {
    let nodes = count_nodes(parts)?;
    if batch_size == 0 {
        return Err(VipError::BatchSize);
    }
    if let Some(seed) = seeds.iter().find(|seed| **seed >= nodes) {
        return Err(VipError::UnknownSeed { seed: *seed, nodes });
    }
    let probability = seed_probability(seeds.len(), batch_size);
    let mut estimates: Vec<PartEstimate> = parts
        .iter()
        .map(|part| {
            let end = part.first + part.rows();
            let own = seeds.iter().filter(|seed| (part.first..end).contains(seed));
            let own: Vec<u32> = own.map(|seed| seed - part.first).collect();
            PartEstimate::new(part.rows(), &own, probability)
        })
        .collect();
    for hop in 1..=fanouts.len() {
        let mut next: Vec<f64> = estimates
            .iter()
            .flat_map(|estimate| estimate.start())
            .copied()
            .collect();
        for (part, estimate) in parts.iter().zip(&estimates) {
            let mut picked = vec![0f64; nodes as usize];
            estimate.picked(part, &fanouts[..hop], &mut picked)?;
            next.iter_mut()
                .zip(picked)
                .for_each(|(next, picked)| *next = either(*next, picked));
        }
        let mut rest = &next[..];
        for estimate in &mut estimates {
            let (own, others) = rest.split_at(estimate.start().len());
            estimate.advance(own.to_vec());
            rest = others;
        }
    }
    Ok(estimates.into_iter().flat_map(PartEstimate::into_seen).collect())
}

/// The probability that a seed is in a batch: `B / |T|`, and never more than 1.
pub fn seed_probability(seeds: usize, batch_size: u32) -> f64 {
    (f64::from(batch_size) / seeds.max(1) as f64).min(1.0)
}

/// The probability of either of two independent events. With an impossible one it is the other's, to the bit.
pub fn either(one: f64, other: f64) -> f64 {
    one + other * (1.0 - one)
}

fn count_nodes(parts: &[Topology<'_>]) -> Result<u32, VipError> {
    let mut wanted: u32 = 0;
    for (part, topology) in parts.iter().enumerate() {
        if topology.first != wanted {
            return Err(VipError::Hole {
                part,
                first: topology.first,
                wanted,
            });
        }
        wanted = wanted.saturating_add(topology.rows());
    }
    Ok(wanted)
}

/// The probability that at least one of `positions` is among `fanout` positions of a row of `degree`, drawn without
/// replacement.
fn pick_probability(degree: usize, fanout: u32, positions: usize) -> f64 {
    let fanout = fanout as usize;
    let missed = |drawn: usize| (degree - drawn).saturating_sub(fanout) as f64 / (degree - drawn) as f64;
    1.0 - (0..positions.min(degree)).map(missed).product::<f64>()
}

#[cfg(test)]
mod tests;
