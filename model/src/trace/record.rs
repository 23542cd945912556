//! One mini-batch as bytes: a frame, the remote rows, and the rest of what the batch is.
//!
//! Nodes are written once, as sorted rows of their parts; a tag per node says which hop added it, and the order of the
//! batch follows from that, but for the seeds, whose order is written out. Blocks are degrees and local indices. Where rows
//! are owned apart from nodes the remote rows do not tell the nodes, which are then written out too.

use crate::batch::{Block, MiniBatch, OwnerRows, RemoteRows};
use crate::book::{NodeId, PartitionBook};
use crate::rng::Purpose;
use crate::trace::pack::{Malformed, Unpacker, pack, pack_ascending};
use crate::trace::{Problem, TraceHeader};

/// Bytes of the frame before the two sections.
pub(super) const FRAME_BYTES: usize = 28;

/// The head of a record. Everything after it is in the two sections, each with a checksum of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub step: u32,
    pub purpose: Purpose,
    pub remote_bytes: u32,
    pub structure_bytes: u32,
    remote_checksum: u32,
    structure_checksum: u32,
}

impl Frame {
    fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let words = [
            self.step,
            u32::from(self.purpose.code()),
            self.remote_bytes,
            self.structure_bytes,
            self.remote_checksum,
            self.structure_checksum,
        ];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&bytes[..FRAME_BYTES - 4]);
        bytes[FRAME_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the frame of `step`.
    pub fn decode(bytes: &[u8; FRAME_BYTES], step: u32) -> Result<Self, Problem> {
        let what = || format!("the frame of step {step}");
        let word = |index: usize| {
            let at = index * 4;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if word(6) != crc32c::crc32c(&bytes[..FRAME_BYTES - 4]) {
            return Err(Problem::Checksum { what: what() });
        }
        let purpose = u8::try_from(word(1)).ok().and_then(Purpose::from_code);
        match purpose {
            Some(purpose) if word(0) == step => Ok(Self {
                step,
                purpose,
                remote_bytes: word(2),
                structure_bytes: word(3),
                remote_checksum: word(4),
                structure_checksum: word(5),
            }),
            _ => Err(Problem::Malformed {
                what: what(),
                why: "it is the frame of something else",
            }),
        }
    }

    /// Checks and decodes the section with the remote rows.
    pub fn remote(&self, bytes: &[u8], book: &PartitionBook) -> Result<RemoteRows, Problem> {
        let what = || format!("the remote rows of step {}", self.step);
        if crc32c::crc32c(bytes) != self.remote_checksum {
            return Err(Problem::Checksum { what: what() });
        }
        decode_remote(bytes, book).map_err(|why| Problem::Malformed { what: what(), why })
    }

    /// Checks and decodes the section with everything else.
    pub fn batch(&self, bytes: &[u8], remote: RemoteRows, header: &TraceHeader) -> Result<MiniBatch, Problem> {
        let what = || format!("the blocks of step {}", self.step);
        if crc32c::crc32c(bytes) != self.structure_checksum {
            return Err(Problem::Checksum { what: what() });
        }
        let (nodes, blocks) =
            decode_structure(bytes, &remote, header).map_err(|why| Problem::Malformed { what: what(), why })?;
        Ok(MiniBatch {
            step: self.step,
            purpose: self.purpose,
            nodes,
            blocks,
            remote,
        })
    }
}

/// A batch as a record. Refuses what could not be decoded to the same batch again.
pub(super) fn encode(batch: &MiniBatch, header: &TraceHeader) -> Result<Vec<u8>, Problem> {
    encode_sections(batch, header).map_err(|why| Problem::BadBatch { step: batch.step, why })
}

fn encode_sections(batch: &MiniBatch, header: &TraceHeader) -> Result<Vec<u8>, Malformed> {
    if batch.purpose != header.spec.purpose_of(batch.step) {
        return Err("its purpose is not the one of its step");
    }
    let sizes = layer_sizes(batch, header.spec.fanouts.len())?;
    let sorted = sort_nodes(batch, &sizes, header.book.nodes())?;

    let mut bytes = vec![0; FRAME_BYTES];
    encode_remote(&batch.remote, &mut bytes)?;
    let remote_end = bytes.len();
    encode_nodes(batch, &sizes, &sorted, header, &mut bytes)?;
    for block in &batch.blocks {
        let degrees: Vec<u32> = block.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        bytes.extend((block.sources.len() as u32).to_le_bytes());
        pack(&degrees, &mut bytes);
        pack(&block.sources, &mut bytes);
    }

    let length = |count: usize| u32::try_from(count).map_err(|_| "a section has more than 4 GiB");
    let frame = Frame {
        step: batch.step,
        purpose: batch.purpose,
        remote_bytes: length(remote_end - FRAME_BYTES)?,
        structure_bytes: length(bytes.len() - remote_end)?,
        remote_checksum: crc32c::crc32c(&bytes[FRAME_BYTES..remote_end]),
        structure_checksum: crc32c::crc32c(&bytes[remote_end..]),
    };
    bytes[..FRAME_BYTES].copy_from_slice(&frame.encode());
    Ok(bytes)
}

/// Nodes of the batch before the first hop and after each, once the blocks have been found to be whole.
fn layer_sizes(batch: &MiniBatch, hops: usize) -> Result<Vec<u32>, Malformed> {
    if batch.blocks.len() != hops {
        return Err("it has another number of blocks than the trace has hops");
    }
    let mut sizes = vec![batch.seeds().len() as u32];
    for block in &batch.blocks {
        let destinations = sizes[sizes.len() - 1];
        let ends = (block.offsets.first(), block.offsets.last());
        if block.destination_count() != destinations
            || block.source_count < destinations
            || ends != (Some(&0), Some(&(block.sources.len() as u32)))
            || block.sources.len() > u32::MAX as usize
            || block.offsets.windows(2).any(|pair| pair[0] > pair[1])
            || block.sources.iter().any(|source| *source >= block.source_count)
        {
            return Err("a block does not fit to the one before it, or its offsets and sources do not fit together");
        }
        sizes.push(block.source_count);
    }
    if batch.nodes.len() != sizes[hops] as usize {
        return Err("its nodes are not as many as its blocks have");
    }
    Ok(sizes)
}

/// A node and its position in the batch.
type Placed = (NodeId, u32);

/// The nodes by ascending id, once they have been found to be different, in range, and ascending in every hop.
fn sort_nodes(batch: &MiniBatch, sizes: &[u32], nodes: u32) -> Result<Vec<Placed>, Malformed> {
    for pair in sizes.windows(2) {
        let added = &batch.nodes[pair[0] as usize..pair[1] as usize];
        if added.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err("the nodes that a hop added do not ascend");
        }
    }
    // The stable sort finds the ascending runs of the hops and merges them.
    let mut sorted: Vec<u64> = (0u64..)
        .zip(&batch.nodes)
        .map(|(local, node)| u64::from(*node) << 32 | local)
        .collect();
    sorted.sort();
    let sorted: Vec<Placed> = sorted
        .into_iter()
        .map(|both| ((both >> 32) as u32, both as u32))
        .collect();
    if sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("a node appears twice");
    }
    if sorted.last().is_some_and(|(node, _)| *node >= nodes) {
        return Err("a node is not one of the graph");
    }
    Ok(sorted)
}

fn encode_remote(remote: &RemoteRows, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let owners = u16::try_from(remote.owners.len()).map_err(|_| "its remote rows have too many owners")?;
    out.extend(owners.to_le_bytes());
    for OwnerRows { owner, rows } in &remote.owners {
        if rows.is_empty() || rows.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err("its remote rows do not ascend");
        }
        out.extend(owner.to_le_bytes());
        out.extend((rows.len() as u32).to_le_bytes());
        pack_ascending(rows, out);
    }
    Ok(())
}

fn decode_remote(bytes: &[u8], book: &PartitionBook) -> Result<RemoteRows, Malformed> {
    let mut bytes = Unpacker::new(bytes);
    let count = bytes.u16()?;
    let mut owners: Vec<OwnerRows> = Vec::new();
    for _ in 0..count {
        let owner = bytes.u16()?;
        let after_last = owners.last().is_none_or(|last| last.owner < owner);
        if owner >= book.parts() || !after_last {
            return Err("its owners do not ascend or are unknown");
        }
        let rows = bytes.u32()? as usize;
        let rows = bytes.unpack_ascending(rows, book.part_nodes(owner))?;
        owners.push(OwnerRows { owner, rows });
    }
    bytes.end()?;
    Ok(RemoteRows { owners })
}

/// Writes what the remote rows do not tell of the nodes, which hop added each, and the order of the seeds.
fn encode_nodes(
    batch: &MiniBatch,
    sizes: &[u32],
    sorted: &[Placed],
    header: &TraceHeader,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    if header.rows.is_some() {
        let nodes: Vec<NodeId> = sorted.iter().map(|(node, _)| *node).collect();
        if batch.remote.len() > nodes.len() {
            return Err("it has more remote rows than nodes");
        }
        out.extend((nodes.len() as u32).to_le_bytes());
        pack_ascending(&nodes, out);
    } else {
        encode_own_rows(batch, sorted, header, out)?;
    }

    let layer = |local: u32| sizes.iter().filter(|size| **size <= local).count() as u32;
    let layers: Vec<u32> = sorted.iter().map(|(_, local)| layer(*local)).collect();
    pack(&layers, out);

    let mut order = vec![0; sizes[0] as usize];
    let seeds = sorted.iter().filter(|(_, local)| *local < sizes[0]);
    for (place, (_, local)) in (0..).zip(seeds) {
        order[*local as usize] = place;
    }
    pack(&order, out);
    Ok(())
}

/// Writes the rank's own rows, which are the nodes of the batch that its remote rows leave out.
fn encode_own_rows(
    batch: &MiniBatch,
    sorted: &[Placed],
    header: &TraceHeader,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let own = header.book.range(header.spec.rank);
    let from = sorted.partition_point(|(node, _)| *node < own.start);
    let to = sorted.partition_point(|(node, _)| *node < own.end);
    let remote = sorted[..from]
        .iter()
        .chain(&sorted[to..])
        .map(|(node, _)| header.book.row_home(*node));
    if !remote.map(|home| (home.owner, home.row)).eq(batch.remote.iter()) {
        return Err("its remote rows are not those of its nodes");
    }
    let own_rows: Vec<u32> = sorted[from..to].iter().map(|(node, _)| node - own.start).collect();
    out.extend((own_rows.len() as u32).to_le_bytes());
    pack_ascending(&own_rows, out);
    Ok(())
}

fn decode_structure(
    bytes: &[u8],
    remote: &RemoteRows,
    header: &TraceHeader,
) -> Result<(Vec<NodeId>, Vec<Block>), Malformed> {
    let (book, rank, hops) = (&header.book, header.spec.rank, header.spec.fanouts.len());
    let mut bytes = Unpacker::new(bytes);
    let count = bytes.u32()? as usize;
    let sorted = if header.rows.is_some() {
        bytes.unpack_ascending(count, book.nodes())?
    } else {
        let own_rows = bytes.unpack_ascending(count, book.part_nodes(rank))?;
        merge_parts(remote, &own_rows, header)?
    };
    let layers = bytes.unpack(sorted.len())?;

    let mut sizes = vec![0u32; hops + 1];
    for layer in &layers {
        *sizes
            .get_mut(*layer as usize)
            .ok_or("a node was added by a hop that does not exist")? += 1;
    }
    let mut end = 0;
    for size in &mut sizes {
        end += *size;
        *size = end;
    }
    let seed_count = sizes[0] as usize;
    let order = bytes.unpack(seed_count)?;

    // Where the next node of each hop goes. The seeds are collected first, for they have an order of their own.
    let mut next: Vec<u32> = std::iter::once(0).chain(sizes.iter().copied()).collect();
    let mut nodes = vec![0; sorted.len()];
    for (node, layer) in sorted.iter().zip(&layers) {
        let place = &mut next[*layer as usize];
        nodes[*place as usize] = *node;
        *place += 1;
    }
    let seeds = nodes[..seed_count].to_vec();
    let mut seen = vec![false; seed_count];
    for (node, place) in nodes.iter_mut().zip(&order) {
        match seen.get_mut(*place as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err("the order of the seeds is not a permutation"),
        }
        *node = seeds[*place as usize];
    }

    let blocks = sizes
        .windows(2)
        .map(|pair| decode_block(&mut bytes, pair[0], pair[1]))
        .collect::<Result<_, _>>()?;
    bytes.end()?;
    Ok((nodes, blocks))
}

/// All nodes of the batch by ascending id: the rank's own between those of the parts before and after it.
fn merge_parts(remote: &RemoteRows, own_rows: &[u32], header: &TraceHeader) -> Result<Vec<NodeId>, Malformed> {
    let rank = header.spec.rank;
    let mut sorted = Vec::with_capacity(remote.len() + own_rows.len());
    let mut add = |part, rows: &[u32]| {
        let first = header.book.range(part).start;
        sorted.extend(rows.iter().map(|row| first + row));
    };
    let after = remote.owners.partition_point(|owned| owned.owner < rank);
    for owned in &remote.owners[..after] {
        add(owned.owner, &owned.rows);
    }
    add(rank, own_rows);
    for owned in &remote.owners[after..] {
        if owned.owner == rank {
            return Err("its remote rows name the rank's own part");
        }
        add(owned.owner, &owned.rows);
    }
    Ok(sorted)
}

fn decode_block(bytes: &mut Unpacker<'_>, destinations: u32, source_count: u32) -> Result<Block, Malformed> {
    let edges = bytes.u32()?;
    let degrees = bytes.unpack(destinations as usize)?;
    let mut offsets = Vec::with_capacity(degrees.len() + 1);
    offsets.push(0);
    let mut end = 0u32;
    for degree in degrees {
        end = end.checked_add(degree).ok_or("its degrees do not add up")?;
        offsets.push(end);
    }
    if end != edges {
        return Err("its degrees do not add up");
    }
    let sources = bytes.unpack(edges as usize)?;
    if sources.iter().any(|source| *source >= source_count) {
        return Err("a pick names a source that does not exist");
    }
    Ok(Block {
        offsets,
        sources,
        source_count,
    })
}
