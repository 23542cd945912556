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
//! edges, without logarithms, so the result is the same bits everywhere.

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
/// It takes time in proportion to hops times edges, and memory of 8 bytes per node and hop.
///
/// # Errors
/// See [`VipError`].
pub fn vip(parts: &[Topology<'_>], seeds: &[NodeId], batch_size: u32, fanouts: &[u32]) -> Result<Vec<f64>, VipError> {
    let nodes = count_nodes(parts)?;
    if batch_size == 0 {
        return Err(VipError::BatchSize);
    }
    let seed_probability = (f64::from(batch_size) / seeds.len().max(1) as f64).min(1.0);
    let mut start = vec![0f64; nodes as usize];
    for seed in seeds {
        let probability = start.get_mut(*seed as usize);
        *probability.ok_or(VipError::UnknownSeed { seed: *seed, nodes })? = seed_probability;
    }
    // Per hop the probabilities to be seen first at that hop.
    let mut first_seen = vec![start.clone()];
    let mut seen = start.clone();
    for hop in 1..=fanouts.len() {
        let mut next = start.clone();
        for part in parts {
            for row in 0..part.rows() {
                expand(part, row, &first_seen, &fanouts[..hop], &mut next)?;
            }
        }
        // Probabilities grow from hop to hop; a difference below zero is rounding.
        let grown = next.iter().zip(&seen).map(|(next, seen)| (next - seen).max(0.0));
        first_seen.push(grown.collect());
        seen = next;
    }
    Ok(seen)
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

/// Lets one row pick, with one fanout per hop: raises the probabilities of its neighbours in `seen`. `first_seen[j]` has
/// the probabilities that a node is first seen at hop `j`.
fn expand(
    part: &Topology<'_>,
    row: u32,
    first_seen: &[Vec<f64>],
    fanouts: &[u32],
    seen: &mut [f64],
) -> Result<(), UnknownNeighbor> {
    let node = part.first + row;
    let arrivals = || first_seen.iter().map(|first_seen| first_seen[node as usize]);
    if arrivals().all(|arrival| arrival == 0.0) {
        return Ok(());
    }
    let neighbors = part.row(row);
    let picked = |positions| {
        let mut missed = 1.0;
        let mut picked = 0.0;
        for (arrival, fanout) in arrivals().zip(fanouts).rev() {
            missed *= 1.0 - pick_probability(neighbors.len(), *fanout, positions);
            picked += arrival * (1.0 - missed);
        }
        picked
    };
    let picked_once = picked(1);
    for same in neighbors.chunk_by(|one, other| one == other) {
        let neighbor = same[0];
        let nodes = seen.len() as u32;
        let probability = seen
            .get_mut(neighbor as usize)
            .ok_or(UnknownNeighbor { node, neighbor, nodes })?;
        if neighbor != node {
            let picked = if same.len() == 1 {
                picked_once
            } else {
                picked(same.len())
            };
            *probability += picked * (1.0 - *probability);
        }
    }
    Ok(())
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
