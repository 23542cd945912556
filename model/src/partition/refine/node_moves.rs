//! Gives nodes to other parts: with their edges, their rows, and the seeds among them.
//!
//! A node that is no seed takes its row along and changes nothing else of the demand, so its move from `a` to `b` wins
//! `F_b(v) - F_a(v)` exactly. A seed also takes along what its batch draws around it: every part's demand follows the
//! seeds it trains. What a batch of part `p` needs more because of a seed is estimated by walking the expected picks outwards,
//! `r(v)` being the probability that row `v` is remote for `p` and not in the batch anyway:
//!
//! ```text
//! G_L(u) = r(u)
//! G_j(u) = r(u) + sum over j < i <= L of (product over j < m < i of (1 - w_m(u))) w_i(u) sum over x in row(u) of G_i(x)
//! ```
//!
//! for a node first seen at hop `j` of `L`, with the probabilities `w` of [`vip`](crate::policy::vip()); the ways that lead back
//! to the seed itself are taken off. A sweep lists all
//! moves that win, makes those that the balance allows by falling win, and estimates the demand anew. Moves of neighbours
//! disturb each other, so a sweep that does not win as a whole is made again with its better half.

use rayon::prelude::*;

use super::{Demand, Problem, RefineError, capacity};
use crate::book::{NodeId, PartId};
use crate::partition::BALANCE_LIMIT;

/// Sweeps at most; a sweep that wins less than [`LEAST_WIN`] of all remote rows is the last.
const SWEEPS: usize = 16;
const LEAST_WIN: f64 = 0.001;
/// How often a sweep is halved before refinement ends.
const HALVINGS: usize = 5;
/// Rounds over the moves that the balance has forbidden so far, since every move makes room somewhere.
const ROUNDS: usize = 4;

/// What one sweep did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sweep {
    pub moved_nodes: u32,
    /// Expected remote rows of an epoch afterwards.
    pub remote_rows: f64,
}

/// Moves nodes in sweeps, as long as the expected remote rows fall. Returns the assignment, its demand, and the sweeps.
pub(super) fn move_nodes(
    problem: &Problem<'_>,
    assignment: &[PartId],
    demand: Demand,
) -> Result<(Vec<PartId>, Demand, Vec<Sweep>), RefineError> {
    let mut best = (assignment.to_vec(), demand);
    let mut remote_rows = best.1.remote_rows(&best.0);
    let mut sweeps = Vec::new();
    let limits = Loads::of(problem, assignment).capacities();
    while sweeps.len() < SWEEPS {
        let (assignment, demand) = &best;
        let candidates = wins(problem, assignment, demand);
        let mut loads = Loads::of(problem, assignment);
        let mut moved = assignment.clone();
        let mut moves = make_moves(problem, candidates, &limits, &mut loads, &mut moved);
        let mut accepted = None;
        for _ in 0..=HALVINGS {
            if moves.is_empty() {
                break;
            }
            let moved_demand = problem.demand(&moved)?;
            let moved_rows = moved_demand.remote_rows(&moved);
            if moved_rows < remote_rows {
                accepted = Some((moved_demand, moved_rows));
                break;
            }
            moves.truncate(moves.len() / 2);
            moves = remake_moves(problem, assignment, &moves, &limits, &mut moved);
        }
        let Some((moved_demand, moved_rows)) = accepted else {
            break;
        };
        let won = remote_rows - moved_rows;
        sweeps.push(Sweep {
            moved_nodes: moves.len() as u32,
            remote_rows: moved_rows,
        });
        best = (moved, moved_demand);
        let enough = LEAST_WIN * remote_rows;
        remote_rows = moved_rows;
        if won < enough {
            break;
        }
    }
    Ok((best.0, best.1, sweeps))
}

/// A move that would win.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub win: f64,
    pub node: NodeId,
    pub to: PartId,
}

/// All moves of one node that would win, if all other nodes stayed where they are.
pub(super) fn wins(problem: &Problem<'_>, assignment: &[PartId], demand: &Demand) -> Vec<Candidate> {
    SeedCosts::new(problem, assignment, demand).wins(problem, assignment, demand)
}

/// Makes the candidates that the balance allows, by falling win, each node once. Returns them in the order in which they
/// were made.
fn make_moves(
    problem: &Problem<'_>,
    mut candidates: Vec<Candidate>,
    limits: &[Load],
    loads: &mut Loads,
    assignment: &mut [PartId],
) -> Vec<Candidate> {
    candidates.par_sort_unstable_by(|one, other| {
        let falling = other.win.total_cmp(&one.win);
        falling.then(one.node.cmp(&other.node)).then(one.to.cmp(&other.to))
    });
    let mut made = Vec::new();
    let mut done = vec![false; assignment.len()];
    for _ in 0..ROUNDS {
        let before = made.len();
        candidates.retain(|candidate| {
            let node = candidate.node as usize;
            if done[node] {
                return false;
            }
            if !loads.make(problem, limits, candidate, assignment) {
                return true;
            }
            done[node] = true;
            made.push(*candidate);
            false
        });
        if made.len() == before {
            break;
        }
    }
    made
}

/// Starts again from `assignment` and makes these moves alone, as far as the balance allows them without the others.
fn remake_moves(
    problem: &Problem<'_>,
    assignment: &[PartId],
    moves: &[Candidate],
    limits: &[Load],
    moved: &mut Vec<PartId>,
) -> Vec<Candidate> {
    moved.clear();
    moved.extend_from_slice(assignment);
    let mut loads = Loads::of(problem, assignment);
    make_moves(problem, moves.to_vec(), limits, &mut loads, moved)
}

/// What a part carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    nodes: u64,
    seeds: u64,
    edges: u64,
}

/// The loads of all parts, and which nodes are seeds.
#[derive(Debug)]
struct Loads {
    parts: Vec<Load>,
    is_seed: Vec<bool>,
}

impl Loads {
    fn of(problem: &Problem<'_>, assignment: &[PartId]) -> Self {
        let mut is_seed = vec![false; assignment.len()];
        problem.train.iter().for_each(|node| is_seed[*node as usize] = true);
        let mut loads = Self {
            parts: vec![Load::default(); usize::from(problem.parts)],
            is_seed,
        };
        for (node, part) in (0..).zip(assignment) {
            let load = loads.load_of(problem, node);
            loads.parts[usize::from(*part)].add(load);
        }
        loads
    }

    fn load_of(&self, problem: &Problem<'_>, node: NodeId) -> Load {
        Load {
            nodes: 1,
            seeds: u64::from(self.is_seed[node as usize]),
            edges: problem.graph.row(node).len() as u64,
        }
    }

    /// The most that each part may carry.
    fn capacities(&self) -> Vec<Load> {
        let mut total = Load::default();
        self.parts.iter().for_each(|load| total.add(*load));
        let most = |own, total| capacity(own, total, self.parts.len(), BALANCE_LIMIT);
        self.parts
            .iter()
            .map(|own| Load {
                nodes: most(own.nodes, total.nodes),
                seeds: most(own.seeds, total.seeds),
                edges: most(own.edges, total.edges),
            })
            .collect()
    }

    /// Makes a move unless it takes a part over its limits.
    fn make(
        &mut self,
        problem: &Problem<'_>,
        limits: &[Load],
        candidate: &Candidate,
        assignment: &mut [PartId],
    ) -> bool {
        let load = self.load_of(problem, candidate.node);
        let to = usize::from(candidate.to);
        let mut after = self.parts[to];
        after.add(load);
        let limit = limits[to];
        if after.nodes > limit.nodes || after.seeds > limit.seeds || after.edges > limit.edges {
            return false;
        }
        let part = &mut assignment[candidate.node as usize];
        self.parts[usize::from(*part)].take(load);
        self.parts[to] = after;
        *part = candidate.to;
        true
    }
}

impl Load {
    fn add(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.seeds += other.seeds;
        self.edges += other.edges;
    }

    fn take(&mut self, other: Self) {
        self.nodes -= other.nodes;
        self.seeds -= other.seeds;
        self.edges -= other.edges;
    }
}

/// What seeds cost the parts that train them.
struct SeedCosts {
    /// Per part and train seed, in the order of the seeds: remote rows that its neighbourhood costs a batch, `G_0(s) - r(s)`.
    neighborhoods: Vec<Vec<f64>>,
    /// Per part the probability that a seed of it is in a given batch, and the number of batches.
    seed_probability: Vec<f64>,
    batches: Vec<f64>,
}

impl SeedCosts {
    fn new(problem: &Problem<'_>, assignment: &[PartId], demand: &Demand) -> Self {
        let counts: Vec<f64> = problem
            .seeds(assignment)
            .iter()
            .map(|seeds| seeds.len() as f64)
            .collect();
        let size = f64::from(problem.shape.batch_size);
        let batches: Vec<f64> = counts.iter().map(|seeds| (seeds / size).ceil()).collect();
        let returns: Vec<f64> = (problem.train.par_iter())
            .map(|seed| expected_returns(problem, *seed))
            .collect();
        let neighborhoods = (0..problem.parts)
            .into_par_iter()
            .map(|part| neighborhood_costs(problem, assignment, demand, &returns, part, batches[usize::from(part)]))
            .collect();
        Self {
            neighborhoods,
            // In the mean over batches, of which the last may be short.
            seed_probability: batches.iter().map(|batches| 1.0 / batches.max(1.0)).collect(),
            batches,
        }
    }

    fn wins(&self, problem: &Problem<'_>, assignment: &[PartId], demand: &Demand) -> Vec<Candidate> {
        let mut places: Vec<Option<u32>> = vec![None; assignment.len()];
        for (place, node) in (0..).zip(problem.train) {
            places[*node as usize] = Some(place);
        }
        let of_node = |node: usize| {
            let from = assignment[node];
            let place = places[node];
            let kept = self.kept_uses(demand, from, node as NodeId, place.is_some());
            let cost =
                move |part: PartId| place.map_or(0.0, |place| self.neighborhoods[usize::from(part)][place as usize]);
            (0..problem.parts).filter(move |to| *to != from).filter_map(move |to| {
                let win = demand.uses(to, node as NodeId) - kept + cost(from) - cost(to);
                (win > 0.0).then_some(Candidate {
                    win,
                    node: node as NodeId,
                    to,
                })
            })
        };
        (0..assignment.len()).into_par_iter().flat_map_iter(of_node).collect()
    }

    /// How often `part` goes on to need a node that leaves it: a seed takes its own use along.
    fn kept_uses(&self, demand: &Demand, part: PartId, node: NodeId, is_seed: bool) -> f64 {
        let uses = demand.uses(part, node);
        let index = usize::from(part);
        let seed_probability = self.seed_probability[index];
        if !is_seed {
            return uses;
        }
        if seed_probability >= 1.0 {
            return 0.0;
        }
        // uses = batches (1 - (1 - p0)(1 - x)), where x is the probability to be drawn as a neighbour.
        let batches = self.batches[index].max(1.0);
        let inclusion = uses / batches;
        (batches * (inclusion - seed_probability) / (1.0 - seed_probability)).clamp(0.0, uses)
    }
}

/// Per train seed, `G_0(s) - r(s)` for the batches of `part`, less the expected ways back to the seed itself.
fn neighborhood_costs(
    problem: &Problem<'_>,
    assignment: &[PartId],
    demand: &Demand,
    returns: &[f64],
    part: PartId,
    batches: f64,
) -> Vec<f64> {
    let graph = problem.graph;
    let nodes = assignment.len();
    let fanouts = &problem.shape.fanouts;
    let remote: Vec<f64> = (0..nodes)
        .map(|node| {
            if assignment[node] == part {
                return 0.0;
            }
            (1.0 - demand.uses(part, node as NodeId) / batches.max(1.0)).max(0.0)
        })
        .collect();
    // `sums[i - 1]` has, per node, the sum of G_i over its row, for i from 1 on; filled from the last hop inwards.
    let mut sums: Vec<Vec<f64>> = vec![Vec::new(); fanouts.len()];
    let mut costs = remote.clone();
    for hop in (0..fanouts.len()).rev() {
        // `costs` has G_{hop + 1}.
        sums[hop] = (0..graph.rows())
            .map(|node| graph.row(node).iter().map(|neighbor| costs[*neighbor as usize]).sum())
            .collect();
        for node in 0..nodes {
            let degree = graph.row(node as u32).len();
            let mut not_yet = 1.0;
            let mut cost = remote[node];
            for (fanout, sums) in fanouts[hop..].iter().zip(&sums[hop..]) {
                let picks = (f64::from(*fanout) / degree.max(1) as f64).min(1.0);
                cost += not_yet * picks * sums[node];
                not_yet *= 1.0 - picks;
            }
            costs[node] = cost;
        }
    }
    (problem.train.iter().zip(returns))
        .map(|(seed, returns)| {
            let seed = *seed as usize;
            costs[seed] - (1.0 + returns) * remote[seed]
        })
        .collect()
}

/// How often the picks of a seed's neighbours are expected to lead back to it, which needs no row but is in `G_0`.
pub(super) fn expected_returns(problem: &Problem<'_>, seed: NodeId) -> f64 {
    let graph = problem.graph;
    let fanouts = &problem.shape.fanouts;
    let row = graph.row(seed);
    let mut not_yet = 1.0;
    let mut returns = 0.0;
    for (hop, fanout) in fanouts.iter().enumerate() {
        let picks = (f64::from(*fanout) / row.len().max(1) as f64).min(1.0);
        for neighbor in row.iter().filter(|neighbor| **neighbor != seed) {
            let back = graph.row(*neighbor);
            if back.contains(&seed) {
                let missed = |fanout: &u32| 1.0 - (f64::from(*fanout) / back.len() as f64).min(1.0);
                let comes_back = 1.0 - fanouts[hop + 1..].iter().map(missed).product::<f64>();
                returns += not_yet * picks * comes_back;
            }
        }
        not_yet *= 1.0 - picks;
    }
    returns
}
