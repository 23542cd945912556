//! A batch while it grows: one hop after the other, each a block.

use std::ops::Range;

use crate::batch::{Block, MiniBatch, OwnerRows, RemoteRows};
use crate::book::{NodeId, PartId, PartitionBook, Rank};
use crate::rng::Purpose;
use crate::sampling::node_set::NodeSet;
use crate::sampling::pick::{pick_count, pick_rows};
use crate::sampling::{NeighborQuery, NeighborReply, Topology};

/// Why a hop cannot become a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    #[error(
        "part {owner} answered {rows} rows with {counts} counts, the largest {largest}, and {neighbors} neighbours at \
         fanout {fanout}"
    )]
    BadReply {
        owner: PartId,
        rows: usize,
        counts: usize,
        largest: u32,
        neighbors: usize,
        fanout: u32,
    },
    #[error("the graph names neighbour {node}, but it has {nodes} nodes")]
    NeighborOutOfRange { node: NodeId, nodes: u32 },
    #[error("one hop of the batch has {picks} picks, more than a block can hold; take a smaller batch")]
    TooManyPicks { picks: u64 },
}

/// The nodes of one remote owner that a batch has reached: a range of its sorted nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frontier {
    pub owner: PartId,
    members: Range<usize>,
}

/// One hop of one batch, and what the rank knows of the graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop<'a> {
    pub book: &'a PartitionBook,
    pub rank: Rank,
    pub topology: Topology<'a>,
    pub key: u64,
    pub fanout: u32,
}

/// A batch of which some hops are done.
#[derive(Debug)]
pub(crate) struct GrowingBatch {
    /// In the order of the batch: seeds, then what each hop added.
    nodes: Vec<NodeId>,
    /// The same nodes, ascending.
    sorted: Vec<NodeId>,
    /// Position in `nodes` of each entry of `sorted`.
    locals: Vec<u32>,
    blocks: Vec<Block>,
}

impl GrowingBatch {
    /// `seeds` are different nodes in any order.
    pub fn new(seeds: Vec<NodeId>) -> Self {
        let mut locals: Vec<u32> = (0..seeds.len() as u32).collect();
        locals.sort_unstable_by_key(|local| seeds[*local as usize]);
        Self {
            sorted: locals.iter().map(|local| seeds[*local as usize]).collect(),
            locals,
            nodes: seeds,
            blocks: Vec::new(),
        }
    }

    /// What has to be asked of other parts before the next hop, by ascending owner.
    pub fn frontiers(&self, book: &PartitionBook, rank: Rank) -> Vec<Frontier> {
        (0..book.parts())
            .filter(|owner| *owner != rank)
            .map(|owner| Frontier {
                owner,
                members: self.members(book, owner),
            })
            .filter(|frontier| !frontier.members.is_empty())
            .collect()
    }

    pub fn query(&self, book: &PartitionBook, frontier: &Frontier, key: u64, fanout: u32) -> NeighborQuery {
        NeighborQuery {
            key,
            fanout,
            rows: self.rows(book, frontier.owner, frontier.members.clone()),
        }
    }

    /// Adds the block of one hop. `remote` has the answer for every frontier, in its order. `set` is empty before and
    /// after.
    pub fn expand(
        &mut self,
        hop: Hop<'_>,
        remote: &[(Frontier, NeighborReply)],
        set: &mut NodeSet,
    ) -> Result<(), ExpandError> {
        let done = self.draw(hop, remote, set);
        set.clear();
        self.blocks.push(done?);
        Ok(())
    }

    fn draw(
        &mut self,
        hop: Hop<'_>,
        remote: &[(Frontier, NeighborReply)],
        set: &mut NodeSet,
    ) -> Result<Block, ExpandError> {
        let Hop {
            book,
            rank,
            topology,
            key,
            fanout,
        } = hop;
        for (frontier, reply) in remote {
            check_reply(frontier, reply, fanout)?;
        }
        // The rank's own nodes go by ascending id, which is the order of its topology in memory.
        let own = self.members(book, rank);
        let own_rows = self.rows(book, rank, own.clone());
        let own_locals = &self.locals[own];

        let mut offsets = vec![0u32; self.nodes.len() + 1];
        for (row, destination) in own_rows.iter().zip(own_locals) {
            offsets[*destination as usize + 1] = pick_count(topology, *row, fanout);
        }
        for (frontier, reply) in remote {
            for (count, destination) in reply.counts.iter().zip(&self.locals[frontier.members.clone()]) {
                offsets[*destination as usize + 1] = *count;
            }
        }
        let picks: u64 = offsets.iter().map(|count| u64::from(*count)).sum();
        if picks > u64::from(u32::MAX) {
            return Err(ExpandError::TooManyPicks { picks });
        }
        let mut end = 0;
        for offset in &mut offsets {
            end += *offset;
            *offset = end;
        }

        // Picks are global ids first; they become local indices once the new nodes are numbered.
        let mut sources = vec![0u32; picks as usize];
        self.sorted.iter().for_each(|node| set.insert(*node));
        pick_rows(topology, key, fanout, &own_rows, |place, picks| {
            let start = offsets[own_locals[place] as usize] as usize;
            for (source, node) in sources[start..].iter_mut().zip(picks) {
                *source = node;
                set.insert(node);
            }
        });
        for (frontier, reply) in remote {
            let mut rest = &reply.neighbors[..];
            for (count, destination) in reply.counts.iter().zip(&self.locals[frontier.members.clone()]) {
                let (picks, after) = rest.split_at(*count as usize);
                let start = offsets[*destination as usize] as usize;
                sources[start..start + picks.len()].copy_from_slice(picks);
                picks.iter().for_each(|node| set.insert(*node));
                rest = after;
            }
        }
        if let Some(node) = set.stranger() {
            let nodes = book.nodes();
            return Err(ExpandError::NeighborOutOfRange { node, nodes });
        }
        self.add_nodes(set);
        for source in &mut sources {
            *source = self.locals[set.rank(*source) as usize];
        }
        Ok(Block {
            offsets,
            sources,
            source_count: self.nodes.len() as u32,
        })
    }

    pub fn finish(self, step: u32, purpose: Purpose, book: &PartitionBook, rank: Rank) -> MiniBatch {
        let owners = self
            .frontiers(book, rank)
            .into_iter()
            .map(|frontier| OwnerRows {
                owner: frontier.owner,
                rows: self.rows(book, frontier.owner, frontier.members),
            })
            .collect();
        MiniBatch {
            step,
            purpose,
            nodes: self.nodes,
            blocks: self.blocks,
            remote: RemoteRows { owners },
        }
    }

    /// Numbers the members of `set`, which has all nodes of the batch: those that are new follow the known ones.
    fn add_nodes(&mut self, set: &mut NodeSet) {
        let known = std::mem::take(&mut self.sorted);
        let known_locals = std::mem::take(&mut self.locals);
        let nodes = &mut self.nodes;
        let (mut sorted, mut locals) = (Vec::with_capacity(known.len() * 2), Vec::with_capacity(known.len() * 2));
        let mut next_known = 0;
        set.number(|node| {
            if known.get(next_known) == Some(&node) {
                locals.push(known_locals[next_known]);
                next_known += 1;
            } else {
                locals.push(nodes.len() as u32);
                nodes.push(node);
            }
            sorted.push(node);
        });
        self.sorted = sorted;
        self.locals = locals;
    }

    /// The range of `sorted` that `part` owns.
    fn members(&self, book: &PartitionBook, part: PartId) -> Range<usize> {
        let Range { start, end } = book.range(part);
        self.sorted.partition_point(|node| *node < start)..self.sorted.partition_point(|node| *node < end)
    }

    fn rows(&self, book: &PartitionBook, part: PartId, members: Range<usize>) -> Vec<u32> {
        let first = book.range(part).start;
        self.sorted[members].iter().map(|node| node - first).collect()
    }
}

fn check_reply(frontier: &Frontier, reply: &NeighborReply, fanout: u32) -> Result<(), ExpandError> {
    let largest = reply.counts.iter().copied().max().unwrap_or(0);
    let sum: u64 = reply.counts.iter().map(|count| u64::from(*count)).sum();
    let fits = reply.counts.len() == frontier.members.len() && largest <= fanout && sum == reply.neighbors.len() as u64;
    if fits {
        return Ok(());
    }
    Err(ExpandError::BadReply {
        owner: frontier.owner,
        rows: frontier.members.len(),
        counts: reply.counts.len(),
        largest,
        neighbors: reply.neighbors.len(),
        fanout,
    })
}
