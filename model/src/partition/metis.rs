//! METIS: multilevel k-way partitioning under several balance constraints (Karypis and Kumar, SC 1998).
//!
//! METIS is C code that ends the process when it fails, so programs should call [`metis_assignment`] in a child process.

use std::sync::{Mutex, PoisonError};

use metis::Graph;
use metis::option::Seed;

use super::adjacency::Adjacency;
use super::balanced::balanced_assignment;
use super::{BALANCE_LIMIT, NodeLoads, PartitionError};
use crate::book::PartId;
use crate::rng::mix_words;

/// METIS draws from `rand` of the C library and catches signals, which are both one for the whole process: two runs at a
/// time would change each other's results.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Work, in entries of the adjacency, that may be spent on trying further seeds.
const TRIAL_WORK: usize = 5_000_000;
/// The most seeds that are tried.
const MOST_TRIALS: usize = 8;
/// A balance this far above the limit counts as met: METIS works in 32-bit floats and whole nodes.
const BALANCE_SLACK: f64 = 0.002;
/// Below this many nodes per part there is nothing to coarsen, and METIS leaves parts empty.
const FEWEST_NODES_PER_PART: usize = 4;

/// Cuts `adjacency` into `parts`, so that nodes, train seeds and in-edges are each within [`BALANCE_LIMIT`] of their mean.
///
/// A load that is nowhere present is no constraint; one that whole nodes cannot balance so well is constrained as well
/// as they can. A small graph is cut with several seeds, and the best result taken: the fewest cut edges among those in
/// balance, or else the best balanced. The result depends only on
/// the arguments (and on the C library, whose `rand` METIS uses). Graphs without edges and graphs with
/// fewer than four nodes per part are only balanced, without METIS.
///
/// # Errors
/// [`PartitionError::Metis`] when METIS says that it failed.
pub fn metis_assignment(
    adjacency: &Adjacency,
    loads: &NodeLoads,
    parts: PartId,
    seed: u64,
) -> Result<Vec<PartId>, PartitionError> {
    let nodes = adjacency.nodes();
    let part_count = usize::from(parts);
    if nodes < FEWEST_NODES_PER_PART * part_count || adjacency.neighbors.is_empty() || part_count < 2 {
        return Ok(balanced_assignment(loads, parts));
    }
    let constraints = Constraints::new(loads, part_count);
    let trials = (TRIAL_WORK / adjacency.neighbors.len()).clamp(1, MOST_TRIALS);
    let mut best: Option<Trial> = None;
    for number in 0..trials {
        let trial = constraints.cut(adjacency, part_count, mix_words(&[seed, number as u64]))?;
        if best.as_ref().is_none_or(|best| trial.beats(best)) {
            best = Some(trial);
        }
    }
    let parts_of_nodes = best.map(|trial| trial.assignment).unwrap_or_default();
    Ok(parts_of_nodes.into_iter().map(|part| part as PartId).collect())
}

/// What METIS has to balance.
struct Constraints {
    count: usize,
    /// `count` weights per node.
    weights: Vec<i32>,
    /// How far the largest part may lie above the mean, per constraint.
    limits: Vec<f32>,
}

impl Constraints {
    fn new(loads: &NodeLoads, parts: usize) -> Self {
        let columns: Vec<&[i32]> = [&loads.nodes, &loads.seeds, &loads.edges]
            .into_iter()
            .map(Vec::as_slice)
            .filter(|column| column.iter().any(|weight| *weight > 0))
            .collect();
        let limits = columns
            .iter()
            .map(|column| reachable_limit(column, parts) as f32)
            .collect();
        let nodes = loads.nodes.len();
        let mut weights = Vec::with_capacity(nodes * columns.len());
        for node in 0..nodes {
            weights.extend(columns.iter().map(|column| column[node]));
        }
        Self {
            count: columns.len(),
            weights,
            limits,
        }
    }

    fn cut(&self, adjacency: &Adjacency, parts: usize, seed: u64) -> Result<Trial, PartitionError> {
        let mut assignment = vec![0i32; adjacency.nodes()];
        let mut graph = Graph::new(
            self.count as i32,
            parts as i32,
            &adjacency.offsets,
            &adjacency.neighbors,
        )
        .map_err(|error| PartitionError::Metis(error.to_string()))?
        .set_vwgt(&self.weights)
        .set_ubvec(&self.limits)
        .set_option(Seed((seed >> 33) as i32));
        if let Some(weights) = &adjacency.weights {
            graph = graph.set_adjwgt(weights);
        }
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = graph
            .part_kway(&mut assignment)
            .map_err(|error| PartitionError::Metis(error.to_string()))?;
        drop(alone);
        if let Some(part) = assignment.iter().find(|part| **part < 0 || **part >= parts as i32) {
            return Err(PartitionError::Metis(format!("it returned part {part} of {parts}")));
        }
        let excess = self.excess(&assignment, parts);
        Ok(Trial {
            assignment,
            cut,
            excess,
        })
    }

    /// How far the worst constraint lies above its limit; 0 when all are met.
    fn excess(&self, assignment: &[i32], parts: usize) -> f64 {
        let mut sums = vec![0i64; parts * self.count];
        for (node, part) in assignment.iter().enumerate() {
            for constraint in 0..self.count {
                sums[*part as usize * self.count + constraint] +=
                    i64::from(self.weights[node * self.count + constraint]);
            }
        }
        (0..self.count)
            .map(|constraint| {
                let column = || sums.iter().skip(constraint).step_by(self.count);
                let mean = column().sum::<i64>() as f64 / parts as f64;
                let largest = column().max().copied().unwrap_or(0) as f64;
                (largest / mean - f64::from(self.limits[constraint]) - BALANCE_SLACK).max(0.0)
            })
            .fold(0.0, f64::max)
    }
}

/// The limit for one load: [`BALANCE_LIMIT`], or more when no placing of whole nodes reaches it.
fn reachable_limit(column: &[i32], parts: usize) -> f64 {
    let total: i64 = column.iter().map(|weight| i64::from(*weight)).sum();
    let largest = i64::from(column.iter().copied().max().unwrap_or(0));
    let mean = total as f64 / parts as f64;
    let at_least = (mean.ceil() as i64).max(largest);
    BALANCE_LIMIT.max(at_least as f64 / mean)
}

/// One result of METIS.
struct Trial {
    assignment: Vec<i32>,
    cut: i32,
    excess: f64,
}

impl Trial {
    fn beats(&self, other: &Trial) -> bool {
        (self.excess, self.cut) < (other.excess, other.cut)
    }
}
