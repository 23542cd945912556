//! How often the parts need the rows.

use rayon::prelude::*;

use super::Problem;
use crate::book::{NodeId, PartId};
use crate::policy::vip;
use crate::policy::vip::VipError;

/// The shape of the batches of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchShape {
    /// Seeds per batch.
    pub batch_size: u32,
    /// Neighbours per hop, from the seeds outwards.
    pub fanouts: Vec<u32>,
}

/// In how many batches of a training epoch each part needs each row, `F_p(v)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Per part and node.
    uses: Vec<Vec<f64>>,
}

impl Demand {
    /// Demand with these uses per part and node; as many for every part.
    pub fn new(uses: Vec<Vec<f64>>) -> Self {
        Self { uses }
    }

    pub fn parts(&self) -> PartId {
        self.uses.len() as PartId
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.uses.first().map_or(0, Vec::len)
    }

    /// `F_part(node)`.
    #[inline]
    pub fn uses(&self, part: PartId, node: NodeId) -> f64 {
        self.uses[usize::from(part)][node as usize]
    }

    /// Remote rows of an epoch if the row of node `v` belongs to the part `owners[v]`: the sum of all uses by others.
    pub fn remote_rows(&self, owners: &[PartId]) -> f64 {
        let remote = |node: usize| {
            let parts = self.uses.iter().enumerate();
            let others = parts.filter(|(part, _)| *part != usize::from(owners[node]));
            others.map(|(_, uses)| uses[node]).sum::<f64>()
        };
        (0..self.nodes()).map(remote).sum()
    }

    /// The mean of this and of what was counted, with equal weights.
    pub fn mean_with(&self, counted: &Self) -> Self {
        let mean = |(one, other): (&Vec<f64>, &Vec<f64>)| {
            let pairs = one.iter().zip(other);
            pairs.map(|(one, other)| (one + other) / 2.0).collect()
        };
        Self::new(self.uses.iter().zip(&counted.uses).map(mean).collect())
    }
}

impl Problem<'_> {
    /// The seeds of every part, ascending.
    pub(super) fn seeds(&self, assignment: &[PartId]) -> Vec<Vec<NodeId>> {
        let mut seeds = vec![Vec::new(); usize::from(self.parts)];
        for node in self.train {
            seeds[usize::from(assignment[*node as usize])].push(*node);
        }
        seeds
    }

    /// Estimates the demand of every part that trains the seeds that `assignment` gives it.
    ///
    /// `F_p(v)` is the sum, over the batches of part `p`, of the probability that a batch of that size has `v`. All batches
    /// but the last are full; the last has what is left.
    ///
    /// # Errors
    /// See [`VipError`].
    pub fn demand(&self, assignment: &[PartId]) -> Result<Demand, VipError> {
        let batch_size = self.shape.batch_size;
        let of_part = |seeds: &Vec<NodeId>| {
            if batch_size == 0 {
                return Err(VipError::BatchSize);
            }
            let full = seeds.len() as u32 / batch_size;
            let rest = seeds.len() as u32 % batch_size;
            let mut uses = vec![0f64; self.graph.rows() as usize];
            for (batches, size) in [(full, batch_size), (u32::from(rest > 0), rest)] {
                if batches > 0 {
                    let inclusion = vip(&[self.graph], seeds, size, &self.shape.fanouts)?;
                    let batches = f64::from(batches);
                    (uses.iter_mut().zip(inclusion)).for_each(|(uses, inclusion)| *uses += batches * inclusion);
                }
            }
            Ok(uses)
        };
        let seeds = self.seeds(assignment);
        let uses = seeds.par_iter().map(of_part).collect::<Result<_, _>>()?;
        Ok(Demand::new(uses))
    }
}
