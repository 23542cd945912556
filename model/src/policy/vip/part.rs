//! One part's share of an estimate.

use super::super::scores::UnknownNeighbor;
use super::{either, pick_probability};
use crate::sampling::Topology;

/// What one part knows of the estimate for one rank: probabilities of the part's own nodes, `hops + 2` numbers per node.
#[derive(Clone, Debug)]
pub struct PartEstimate {
    start: Vec<f64>,
    seen: Vec<f64>,
    /// Per hop so far the probabilities to be seen first at that hop; hop 0 are the seeds.
    first_seen: Vec<Vec<f64>>,
}

impl PartEstimate {
    /// Hop 0 of a part of `rows` nodes: `seeds` are rows of the part that a batch has with `probability`. Seeds that the
    /// part does not have are left out.
    pub fn new(rows: u32, seeds: &[u32], probability: f64) -> Self {
        let mut start = vec![0f64; rows as usize];
        for seed in seeds {
            if let Some(place) = start.get_mut(*seed as usize) {
                *place = probability;
            }
        }
        Self {
            seen: start.clone(),
            first_seen: vec![start.clone()],
            start,
        }
    }

    /// The probabilities of the seeds, from which every hop is added up anew.
    pub fn start(&self) -> &[f64] {
        &self.start
    }

    /// Raises `picked`, one probability per node of the graph, by what the part's rows pick up to hop `fanouts.len()`,
    /// with one fanout per hop. `part` has the rows of the part's nodes.
    ///
    /// # Errors
    /// [`UnknownNeighbor`].
    pub fn picked(&self, part: &Topology<'_>, fanouts: &[u32], picked: &mut [f64]) -> Result<(), UnknownNeighbor> {
        for row in 0..part.rows().min(self.start.len() as u32) {
            self.pick(part, row, fanouts, picked)?;
        }
        Ok(())
    }

    /// Ends a hop: `seen` are the probabilities of the part's nodes, made of [`start`](Self::start) and of what the rows of
    /// all parts have [`picked`](Self::picked), in the order of the parts, with [`either`].
    pub fn advance(&mut self, seen: Vec<f64>) {
        // Probabilities grow from hop to hop; a difference below zero is rounding.
        let grown = seen.iter().zip(&self.seen).map(|(next, seen)| (next - seen).max(0.0));
        self.first_seen.push(grown.collect());
        self.seen = seen;
    }

    /// The probabilities of the part's nodes after the last hop.
    pub fn into_seen(self) -> Vec<f64> {
        self.seen
    }

    /// Lets one row pick.
    fn pick(
        &self,
        part: &Topology<'_>,
        row: u32,
        fanouts: &[u32],
        probabilities: &mut [f64],
    ) -> Result<(), UnknownNeighbor> {
        let node = part.first + row;
        let arrivals = || self.first_seen.iter().map(|first_seen| first_seen[row as usize]);
        if arrivals().all(|arrival| arrival == 0.0) {
            return Ok(());
        }
        let neighbors = part.row(row);
        let picked = |positions| {
            let mut missed = 1.0;
            let mut picked: f64 = 0.0;
            for (arrival, fanout) in arrivals().zip(fanouts).rev() {
                missed *= 1.0 - pick_probability(neighbors.len(), *fanout, positions);
                picked += arrival * (1.0 - missed);
            }
            // The arrivals of a node that surely comes may add up to a little more than 1.
            picked.min(1.0)
        };
        let picked_once = picked(1);
        for same in neighbors.chunk_by(|one, other| one == other) {
            let neighbor = same[0];
            let nodes = probabilities.len() as u32;
            let probability =
                probabilities
                    .get_mut(neighbor as usize)
                    .ok_or(UnknownNeighbor { node, neighbor, nodes })?;
            if neighbor != node {
                let picked = if same.len() == 1 {
                    picked_once
                } else {
                    picked(same.len())
                };
                *probability = either(*probability, picked);
            }
        }
        Ok(())
    }
}
