//! The best owners of rows, whoever owns their nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Demand, capacity};
use crate::book::{NodeId, PartId};

/// Gives every row to a part so that the expected remote rows are the fewest that are possible, if no part may have more
/// than `limit` times the mean number of rows, or than it has now.
///
/// `owners` are the owners now; a row that is needed equally by several parts stays where it is if that is one of them.
/// Remote rows are all uses less those by owners, so this is the assignment of rows to parts of limited capacity with the
/// largest sum of `F_owner(v)`: a transport problem. Every row first goes to whoever needs it most; then, one by one, each
/// row too many leaves its part along the cheapest chain of moves that ends in a part with room. Such *successive shortest
/// paths* keep the assignment optimal for the rows placed so far (Ahuja, Magnanti and Orlin, Network Flows, 9.7), so the
/// result is optimal, not only locally. The chains take time in proportion to parts squared (rarely cubed) per row too
/// many, of which there are few, because parts need mostly what they hold; memory is 16 bytes per row and pair of parts
/// that are joined by a possible move, and nothing where no part is over its capacity.
pub fn place_rows(demand: &Demand, owners: &[PartId], limit: f64) -> Vec<PartId> {
    let parts = demand.parts();
    let mut held = vec![0u64; usize::from(parts)];
    owners.iter().for_each(|owner| held[usize::from(*owner)] += 1);
    let total = owners.len() as u64;
    let capacities = held
        .iter()
        .map(|held| capacity(*held, total, usize::from(parts), limit))
        .collect();

    let favourites: Vec<PartId> = (0..)
        .zip(owners)
        .map(|(node, owner)| {
            let mut best = *owner;
            for part in 0..parts {
                if demand.uses(part, node) > demand.uses(best, node) {
                    best = part;
                }
            }
            best
        })
        .collect();
    let mut placement = Placement::new(demand, favourites, capacities);
    placement.shed();
    placement.owners
}

/// Rows and their owners on the way to a placement within the capacities.
struct Placement<'a> {
    demand: &'a Demand,
    owners: Vec<PartId>,
    held: Vec<u64>,
    capacities: Vec<u64>,
    /// Per pair of parts `from * parts + to` the rows of `from` by what their move to `to` loses, the least on top. Rows
    /// that have left `from` are thrown away when they come to the top.
    moves: Vec<BinaryHeap<Reverse<Move>>>,
}

/// A row and what is lost when it is moved.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Move {
    loss: f64,
    node: NodeId,
}

impl Eq for Move {}

impl PartialOrd for Move {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Move {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.loss.total_cmp(&other.loss).then(self.node.cmp(&other.node))
    }
}

impl<'a> Placement<'a> {
    fn new(demand: &'a Demand, owners: Vec<PartId>, capacities: Vec<u64>) -> Self {
        let mut held = vec![0u64; capacities.len()];
        owners.iter().for_each(|owner| held[usize::from(*owner)] += 1);
        Self {
            demand,
            owners,
            held,
            capacities,
            moves: Vec::new(),
        }
    }

    fn parts(&self) -> usize {
        self.held.len()
    }

    /// Brings every part down to its capacity. The capacities have room for all rows together.
    fn shed(&mut self) {
        let over =
            |placement: &Self| (0..placement.parts()).find(|part| placement.held[*part] > placement.capacities[*part]);
        if over(self).is_none() {
            return;
        }
        self.list_moves();
        while let Some(from) = over(self) {
            let Some(chain) = self.cheapest_chain(from) else { return };
            for (from, to, node) in chain {
                self.owners[node as usize] = to as PartId;
                self.held[from] -= 1;
                self.held[to] += 1;
                self.list_moves_of(node, to);
            }
        }
    }

    fn list_moves(&mut self) {
        let parts = self.parts();
        let mut lists = vec![Vec::new(); parts * parts];
        for (node, from) in (0..).zip(&self.owners) {
            for to in (0..parts).filter(|to| *to != usize::from(*from)) {
                lists[usize::from(*from) * parts + to].push(Reverse(self.move_of(node, usize::from(*from), to)));
            }
        }
        self.moves = lists.into_iter().map(BinaryHeap::from).collect();
    }

    fn list_moves_of(&mut self, node: NodeId, from: usize) {
        let parts = self.parts();
        for to in (0..parts).filter(|to| *to != from) {
            let entry = self.move_of(node, from, to);
            self.moves[from * parts + to].push(Reverse(entry));
        }
    }

    fn move_of(&self, node: NodeId, from: usize, to: usize) -> Move {
        let loss = self.demand.uses(from as PartId, node) - self.demand.uses(to as PartId, node);
        Move { loss, node }
    }

    /// The row of `from` whose move to `to` loses least.
    fn cheapest_move(&mut self, from: usize, to: usize) -> Option<Move> {
        let parts = self.parts();
        let heap = &mut self.moves[from * parts + to];
        while let Some(Reverse(entry)) = heap.peek().copied() {
            if usize::from(self.owners[entry.node as usize]) == from {
                return Some(entry);
            }
            heap.pop();
        }
        None
    }

    /// The moves, one after the other, that take one row out of `start` and lose least: to a part with room, through others
    /// that give one row on. By Bellman and Ford, since a move may win something back.
    fn cheapest_chain(&mut self, start: usize) -> Option<Vec<(usize, usize, NodeId)>> {
        let parts = self.parts();
        let mut edges = Vec::with_capacity(parts * parts);
        for from in 0..parts {
            for to in (0..parts).filter(|to| *to != from) {
                if let Some(entry) = self.cheapest_move(from, to) {
                    edges.push((from, to, entry));
                }
            }
        }
        let mut lost = vec![f64::INFINITY; parts];
        let mut came_by: Vec<Option<(usize, NodeId)>> = vec![None; parts];
        lost[start] = 0.0;
        // A shortest chain visits no part twice, so fewer rounds than parts suffice; rounding must not make a circle.
        for _ in 1..parts {
            let before = lost.clone();
            for (from, to, entry) in &edges {
                let through = before[*from] + entry.loss;
                if *to != start && through < lost[*to] && !is_on_the_way(&came_by, start, *from, *to) {
                    lost[*to] = through;
                    came_by[*to] = Some((*from, entry.node));
                }
            }
            if lost == before {
                break;
            }
        }
        let has_room = |part: &usize| self.held[*part] < self.capacities[*part] && lost[*part].is_finite();
        let end = (0..parts)
            .filter(has_room)
            .min_by(|one, other| lost[*one].total_cmp(&lost[*other]))?;
        let mut chain = Vec::new();
        let mut part = end;
        while let Some((from, node)) = came_by[part] {
            chain.push((from, part, node));
            part = from;
        }
        chain.reverse();
        Some(chain)
    }
}

/// Whether the chain from `start` to `part` goes through `other`.
fn is_on_the_way(came_by: &[Option<(usize, NodeId)>], start: usize, part: usize, other: usize) -> bool {
    let mut at = part;
    while at != start {
        if at == other {
            return true;
        }
        match came_by[at] {
            Some((from, _)) => at = from,
            None => return false,
        }
    }
    false
}
