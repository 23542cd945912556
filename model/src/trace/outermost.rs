//! The outermost block of a batch as bytes: what another rank must know to compute the first layer of the batch.
//!
//! ```text
//! hops                       u8
//! seeds                      u32, then the seeds' ids packed
//! per hop: nodes it added    u32, then their ids packed as ascending numbers
//! picks                      u32, then the picks of every destination and their local sources, packed
//! ```
//!
//! Integers are little-endian; the packed lists are those of the trace's records, which keep the same order of nodes.

use crate::batch::{Block, MiniBatch};
use crate::book::NodeId;
use crate::trace::pack::{Malformed, Unpacker, pack, pack_ascending};

/// The input nodes of a batch and its outermost block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutermostBlock {
    /// All nodes of the batch, which are the sources of the block, the destinations first.
    pub nodes: Vec<NodeId>,
    pub block: Block,
}

/// Bytes that are no outermost block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the outermost block is malformed: {0}")]
pub struct OutermostError(&'static str);

impl OutermostBlock {
    /// The outermost block of `batch` in bytes.
    ///
    /// # Errors
    /// A batch that the sampler does not make.
    pub fn encode(batch: &MiniBatch) -> Result<Vec<u8>, OutermostError> {
        let mut sizes = vec![batch.seeds().len()];
        sizes.extend(batch.blocks.iter().map(|block| block.source_count as usize));
        let hops = u8::try_from(batch.blocks.len()).map_err(|_| OutermostError("it has more than 255 hops"))?;
        if sizes.windows(2).any(|pair| pair[0] > pair[1]) || sizes.last() != Some(&batch.nodes.len()) {
            return Err(OutermostError("its blocks do not fit to its nodes"));
        }
        let mut bytes = vec![hops];
        let length = |count: usize| (count as u32).to_le_bytes();
        bytes.extend(length(sizes[0]));
        pack(batch.seeds(), &mut bytes);
        for pair in sizes.windows(2) {
            let added = &batch.nodes[pair[0]..pair[1]];
            if added.windows(2).any(|pair| pair[0] >= pair[1]) {
                return Err(OutermostError("the nodes that a hop added do not ascend"));
            }
            bytes.extend(length(added.len()));
            pack_ascending(added, &mut bytes);
        }
        if let Some(outermost) = batch.blocks.last() {
            let counts: Vec<u32> = outermost.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
            bytes.extend(length(outermost.sources.len()));
            pack(&counts, &mut bytes);
            pack(&outermost.sources, &mut bytes);
        }
        Ok(bytes)
    }

    /// Reads what [`encode`](Self::encode) wrote, for a graph of `nodes` nodes. The block that comes back is whole: its
    /// nodes are in the graph, its offsets ascend and its picks are sources.
    ///
    /// # Errors
    /// Anything else, without a panic and without reserving more than a small multiple of the bytes.
    pub fn decode(bytes: &[u8], nodes: u32) -> Result<Self, OutermostError> {
        decode(bytes, nodes).map_err(OutermostError)
    }
}

fn decode(bytes: &[u8], graph_nodes: u32) -> Result<OutermostBlock, Malformed> {
    let mut unpacker = Unpacker::new(bytes);
    let hops = unpacker.take(1)?[0];
    let seeds = unpacker.u32()?;
    let mut nodes = unpacker.unpack(seeds as usize)?;
    if nodes.iter().any(|node| *node >= graph_nodes) {
        return Err("a seed is not a node of the graph");
    }
    let mut destinations = nodes.len();
    for _ in 0..hops {
        destinations = nodes.len();
        let added = unpacker.u32()?;
        nodes.extend(unpacker.unpack_ascending(added as usize, graph_nodes)?);
    }
    let source_count = u32::try_from(nodes.len()).map_err(|_| "it has more than 2^32 nodes")?;
    let mut block = Block {
        offsets: vec![0],
        sources: Vec::new(),
        source_count,
    };
    if hops > 0 {
        let picks = unpacker.u32()?;
        let counts = unpacker.unpack(destinations)?;
        block.offsets.reserve(counts.len());
        let mut end = 0u32;
        for count in counts {
            end = end
                .checked_add(count)
                .filter(|end| *end <= picks)
                .ok_or("its destinations have more picks than it has")?;
            block.offsets.push(end);
        }
        if end != picks {
            return Err("its destinations have fewer picks than it has");
        }
        block.sources = unpacker.unpack(picks as usize)?;
        if block.sources.iter().any(|source| *source >= source_count) {
            return Err("a pick is not one of its nodes");
        }
    }
    unpacker.end()?;
    Ok(OutermostBlock { nodes, block })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::RemoteRows;
    use crate::rng::{CounterRng, Purpose, shuffle};

    const NODES: u32 = 5_000;

    /// A batch as the sampler lays it out: shuffled seeds, then what each hop added, ascending.
    fn batch(seed: u64, seeds: usize, hops: usize, fanout: u32) -> MiniBatch {
        let mut all: Vec<u32> = (0..NODES).collect();
        shuffle(seed, &mut all);
        let mut left = all.into_iter();
        let mut rng = CounterRng::new(seed);
        let mut nodes: Vec<u32> = left.by_ref().take(seeds).collect();
        let mut blocks = Vec::new();
        for _ in 0..hops {
            let destinations = nodes.len();
            let mut added: Vec<u32> = left.by_ref().take(2 * destinations).collect();
            added.sort_unstable();
            nodes.extend(added);
            let mut block = Block {
                offsets: vec![0],
                sources: Vec::new(),
                source_count: nodes.len() as u32,
            };
            for _ in 0..destinations {
                for _ in 0..rng.below(fanout + 1) {
                    block.sources.push(rng.below(nodes.len() as u32));
                }
                block.offsets.push(block.sources.len() as u32);
            }
            blocks.push(block);
        }
        MiniBatch {
            step: 0,
            purpose: Purpose::Train,
            nodes,
            blocks,
            remote: RemoteRows::default(),
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_what_was_encoded(
            seed in any::<u64>(), seeds in 0usize..200, hops in 1usize..4, fanout in 0u32..12,
        ) {
            let batch = batch(seed, seeds, hops, fanout);
            let found = OutermostBlock::decode(&OutermostBlock::encode(&batch).unwrap(), NODES).unwrap();
            prop_assert_eq!(&found.nodes, &batch.nodes);
            prop_assert_eq!(Some(&found.block), batch.blocks.last());
        }

        #[test]
        fn damaged_bytes_are_refused_or_make_a_whole_block(
            seed in any::<u64>(), at in any::<prop::sample::Index>(), value in any::<u8>(), cut in any::<bool>(),
        ) {
            let mut bytes = OutermostBlock::encode(&batch(seed, 40, 2, 5)).unwrap();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] = value;
            }
            match OutermostBlock::decode(&bytes, NODES) {
                Ok(found) => {
                    prop_assert_eq!(crate::assemble::check_block(&found.block), Ok(()));
                    prop_assert_eq!(found.nodes.len(), found.block.source_count as usize);
                    prop_assert!(found.nodes.iter().all(|node| *node < NODES));
                }
                Err(error) => prop_assert!(error.to_string().contains("malformed")),
            }
        }
    }

    #[test]
    fn an_empty_batch_is_a_few_bytes() {
        let empty = batch(1, 0, 2, 3);
        let bytes = OutermostBlock::encode(&empty).unwrap();
        assert!(bytes.len() < 20, "{} bytes", bytes.len());
        let found = OutermostBlock::decode(&bytes, NODES).unwrap();
        assert_eq!((found.nodes.len(), found.block.destination_count()), (0, 0));
    }
}
