//! What the sampler really draws, before a partition is written.

use std::convert::Infallible;
use std::ops::Range;

use super::{Demand, Problem, RefineError};
use crate::book::{NodeId, PartId};
use crate::partition::Relabelling;
use crate::rng::Purpose;
use crate::sampling::{EpochSpec, InMemoryOwners, SeedOrder, SeedRows, StepCounts, Topology, presample, steps};

/// The remote rows of the first training epoch of a run with this `seed`, summed over parts and batches, for each of several
/// choices of who owns the rows. They are what the policy `on-demand` moves in that epoch.
///
/// # Errors
/// See [`RefineError`].
pub fn presampled_rows(
    problem: &Problem<'_>,
    assignment: &[PartId],
    owners: &[&[PartId]],
    seed: u64,
) -> Result<Vec<u64>, RefineError> {
    let mut counts = vec![0u64; owners.len()];
    let graph = RelabelledGraph::new(problem, assignment)?;
    graph.presample(problem, seed, Purpose::Train, 0, |rank, nodes| {
        for (count, owners) in counts.iter_mut().zip(owners) {
            *count += nodes.iter().filter(|node| owners[**node as usize] != rank).count() as u64;
        }
    })?;
    Ok(counts)
}

/// The mean demand of `epochs` that are drawn to be counted and never trained.
///
/// # Errors
/// See [`RefineError`].
pub fn presampled_demand(
    problem: &Problem<'_>,
    assignment: &[PartId],
    seed: u64,
    epochs: Range<u32>,
) -> Result<Demand, RefineError> {
    let mut uses = vec![vec![0f64; assignment.len()]; usize::from(problem.parts)];
    let one = 1.0 / f64::from(epochs.len().max(1) as u32);
    let graph = RelabelledGraph::new(problem, assignment)?;
    for epoch in epochs {
        graph.presample(problem, seed, Purpose::Presample, epoch, |rank, nodes| {
            let uses = &mut uses[usize::from(rank)];
            nodes.iter().for_each(|node| uses[*node as usize] += one);
        })?;
    }
    Ok(Demand::new(uses))
}

/// A whole graph under the ids that its nodes have once it is cut, on which their draws depend.
struct RelabelledGraph {
    relabelling: Relabelling,
    offsets: Vec<u64>,
    neighbors: Vec<NodeId>,
    /// Per part its train seeds, as local rows, ascending.
    seeds: Vec<Vec<u32>>,
}

impl RelabelledGraph {
    fn new(problem: &Problem<'_>, assignment: &[PartId]) -> Result<Self, RefineError> {
        let relabelling = Relabelling::new(assignment, problem.parts)?;
        let mut offsets = Vec::with_capacity(assignment.len() + 1);
        offsets.push(0);
        let mut neighbors = Vec::with_capacity(problem.graph.neighbors.len());
        for node in &relabelling.original {
            let start = neighbors.len();
            let row = problem.graph.row(*node).iter();
            neighbors.extend(row.map(|neighbor| relabelling.global[*neighbor as usize]));
            neighbors[start..].sort_unstable();
            offsets.push(neighbors.len() as u64);
        }
        let mut seeds = vec![Vec::new(); usize::from(problem.parts)];
        for node in problem.train {
            let home = relabelling.book.row_home(relabelling.global[*node as usize]);
            seeds[usize::from(home.owner)].push(home.row);
        }
        seeds.iter_mut().for_each(|seeds| seeds.sort_unstable());
        Ok(Self {
            relabelling,
            offsets,
            neighbors,
            seeds,
        })
    }

    fn topology(&self, part: PartId) -> Topology<'_> {
        let range = self.relabelling.book.range(part);
        Topology {
            first: range.start,
            offsets: &self.offsets[range.start as usize..=range.end as usize],
            neighbors: &self.neighbors,
        }
    }

    /// Draws the training steps of one epoch of every part, and shows the nodes of each batch under their original ids.
    fn presample(
        &self,
        problem: &Problem<'_>,
        seed: u64,
        training: Purpose,
        epoch: u32,
        mut visit: impl FnMut(PartId, &[NodeId]),
    ) -> Result<(), RefineError> {
        let book = &self.relabelling.book;
        let counts: Vec<u32> = self.seeds.iter().map(|seeds| seeds.len() as u32).collect();
        let topologies: Vec<Topology<'_>> = (0..problem.parts).map(|part| self.topology(part)).collect();
        for rank in 0..problem.parts {
            let spec = EpochSpec {
                order: SeedOrder::Random,
                seed,
                epoch,
                rank,
                batch_size: problem.shape.batch_size,
                fanouts: problem.shape.fanouts.clone(),
                training,
                steps: StepCounts {
                    train: steps(&counts, problem.shape.batch_size),
                    ..StepCounts::default()
                },
            };
            let seeds = SeedRows {
                train: &self.seeds[usize::from(rank)],
                ..SeedRows::default()
            };
            let mut owners = InMemoryOwners::new(topologies.clone());
            let sampled = presample(&spec, seeds, book, self.topology(rank), &mut owners, |mut batch| {
                for node in &mut batch.nodes {
                    *node = self.relabelling.original[*node as usize];
                }
                visit(rank, &batch.nodes);
                Ok::<(), Infallible>(())
            });
            sampled.map_err(Box::new)?;
        }
        Ok(())
    }
}
