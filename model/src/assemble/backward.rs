//! The gradient of the mean with respect to the rows that were averaged.
//!
//! Destinations scatter their gradient to the sources that they picked. Turned round, each source sums over the
//! destinations that picked it: no two tasks write one row, so there are no atomics and the order of a sum is fixed.

use rayon::prelude::*;

use super::{AssembleError, Columns, ROWS_PER_TASK, check_block, kernels, require_length};
use crate::batch::Block;

/// A block by its sources: who picked each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposedBlock {
    /// `sources + 1` offsets into `destinations`.
    offsets: Vec<u32>,
    /// Per source the destinations that picked it, ascending; a destination that picked it twice is there twice.
    destinations: Vec<u32>,
    /// One over the number of picks, per destination of the block; 0 without picks.
    weights: Vec<f32>,
}

impl TransposedBlock {
    /// Transposes by a counting sort, which is stable.
    pub fn new(block: &Block) -> Result<Self, AssembleError> {
        check_block(block)?;
        let sources = block.source_count as usize;
        let mut offsets = vec![0u32; sources + 1];
        for source in &block.sources {
            offsets[*source as usize + 1] += 1;
        }
        for source in 0..sources {
            offsets[source + 1] += offsets[source];
        }
        let mut next = offsets[..sources].to_vec();
        let mut destinations = vec![0u32; block.sources.len()];
        let mut weights = Vec::with_capacity(block.destination_count() as usize);
        for (destination, range) in block.offsets.windows(2).enumerate() {
            for source in &block.sources[range[0] as usize..range[1] as usize] {
                let place = &mut next[*source as usize];
                destinations[*place as usize] = destination as u32;
                *place += 1;
            }
            let picks = range[1] - range[0];
            weights.push(if picks == 0 { 0.0 } else { 1.0 / picks as f32 });
        }
        Ok(Self {
            offsets,
            destinations,
            weights,
        })
    }

    /// `sources + 1` offsets into [`destinations`](Self::destinations).
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// Per source the destinations that picked it.
    pub fn destinations(&self) -> &[u32] {
        &self.destinations
    }

    /// One over the number of picks, per destination; 0 without picks.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    pub fn source_count(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn destination_count(&self) -> usize {
        self.weights.len()
    }
}

/// The gradient of [`segment_mean`](super::segment_mean): from `[destinations, width]` to `out`, `[sources, width]`.
pub fn segment_mean_backward(
    gradient: &[f32],
    block: &TransposedBlock,
    width: usize,
    out: &mut [f32],
) -> Result<(), AssembleError> {
    require_length("the gradient", block.destination_count() * width, gradient.len())?;
    scatter(Columns::all(gradient, width), None, block, width, out)
}

/// The gradient of [`own_and_mean`](super::own_and_mean): from `[destinations, 2 * width]` to `out`, `[sources, width]`.
pub fn own_and_mean_backward(
    gradient: &[f32],
    block: &TransposedBlock,
    width: usize,
    out: &mut [f32],
) -> Result<(), AssembleError> {
    let stride = 2 * width;
    require_length("the gradient", block.destination_count() * stride, gradient.len())?;
    let own = Columns::part(gradient, stride, 0, width);
    let mean = Columns::part(gradient, stride, width, width);
    scatter(mean, Some(own), block, width, out)
}

fn scatter(
    mean: Columns<'_>,
    own: Option<Columns<'_>>,
    block: &TransposedBlock,
    width: usize,
    out: &mut [f32],
) -> Result<(), AssembleError> {
    use super::FeatureRows;

    require_length("the output", block.source_count() * width, out.len())?;
    if width == 0 {
        return Ok(());
    }
    out.par_chunks_mut(width * ROWS_PER_TASK)
        .enumerate()
        .for_each(|(chunk, out)| {
            for (at, out) in out.chunks_exact_mut(width).enumerate() {
                let source = chunk * ROWS_PER_TASK + at;
                let picked_by = block.offsets[source] as usize..block.offsets[source + 1] as usize;
                let own = own
                    .as_ref()
                    .filter(|own| source < own.count())
                    .map(|own| own.at(source));
                kernels::weighted_rows(&mean, &block.destinations[picked_by], &block.weights, own, out);
            }
        });
    Ok(())
}
