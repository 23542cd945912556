//! From feature rows to the input of the first layer: gathering, and the mean over each destination's picks.
//!
//! The kernels here are the only code that aggregates on the CPU. The loader calls them to pre-aggregate
//! ([`assemble_input`]) and the layers call them in training ([`segment_mean`] and its `backward`), so both ways give
//! the same bits: a mean is the sum of the picked rows in the order of the block, then one division.
//!
//! Every output row is written by one task, so the number of threads never shows in a result.

mod backward;
mod kernels;
mod stored;

pub use backward::{TransposedBlock, own_and_mean_backward, segment_mean_backward};
pub use stored::{StoredRow, StoredRows};

use rayon::prelude::*;

use crate::batch::Block;
use crate::layers::BatchInput;
use crate::row_type::RowType;

/// Output rows of one task: a few hundred kilobytes of picked rows, enough to hide the cost of a task.
const ROWS_PER_TASK: usize = 64;

/// Why rows cannot be made into a batch.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AssembleError {
    #[error("row {row} of the batch has {found} values, the features are {wanted} wide")]
    RowWidth { row: usize, wanted: usize, found: usize },
    #[error("row {row} of the batch came in {found} bytes, the features take {wanted} as {row_type}")]
    RowBytes {
        row: usize,
        row_type: RowType,
        wanted: usize,
        found: usize,
    },
    #[error("{what} has {found} values, {wanted} are needed")]
    Length {
        what: &'static str,
        wanted: usize,
        found: usize,
    },
    #[error("the block is damaged: {0}")]
    Block(String),
}

/// Feature rows by their index in a batch, wherever they lie in memory.
pub trait FeatureRows: Sync {
    /// Whether rows may have to be decoded.
    const DECODED: bool = false;

    fn count(&self) -> usize;

    /// Refuses the first row that does not have `width` values.
    fn check_width(&self, width: usize) -> Result<(), AssembleError>;

    /// The row at `index`, which is below [`count`](Self::count): where it lies, or decoded into `scratch`, which has
    /// its width if rows are [`DECODED`](Self::DECODED).
    fn row<'a>(&'a self, index: usize, scratch: &'a mut [f32]) -> &'a [f32];

    /// Copies the row at `index` into `out`, which has its width.
    fn copy_row(&self, index: usize, out: &mut [f32]);

    /// Where the row at `index` lies in memory, as it is.
    fn memory(&self, index: usize) -> &[u8];
}

/// One slice per row: what a loader has when rows come from a store, a cache and the network.
impl FeatureRows for [&[f32]] {
    fn count(&self) -> usize {
        self.len()
    }

    fn check_width(&self, width: usize) -> Result<(), AssembleError> {
        match self.iter().position(|row| row.len() != width) {
            Some(row) => Err(AssembleError::RowWidth {
                row,
                wanted: width,
                found: self[row].len(),
            }),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn row<'a>(&'a self, index: usize, _scratch: &'a mut [f32]) -> &'a [f32] {
        self[index]
    }

    fn copy_row(&self, index: usize, out: &mut [f32]) {
        out.copy_from_slice(self[index]);
    }

    #[inline(always)]
    fn memory(&self, index: usize) -> &[u8] {
        bytemuck::cast_slice(self[index])
    }
}

/// Rows in one row-major matrix, of which the columns `start .. start + width` are seen.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    values: &'a [f32],
    stride: usize,
    start: usize,
    width: usize,
}

impl<'a> Columns<'a> {
    /// All columns of a matrix with rows of `width` values.
    pub fn all(values: &'a [f32], width: usize) -> Self {
        Self {
            values,
            stride: width,
            start: 0,
            width,
        }
    }

    /// `width` columns from `start` on, of rows of `stride` values.
    fn part(values: &'a [f32], stride: usize, start: usize, width: usize) -> Self {
        Self {
            values,
            stride,
            start,
            width,
        }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &'a [f32] {
        let start = index * self.stride + self.start;
        &self.values[start..start + self.width]
    }
}

impl FeatureRows for Columns<'_> {
    fn count(&self) -> usize {
        self.values.len().checked_div(self.stride).unwrap_or(0)
    }

    fn check_width(&self, width: usize) -> Result<(), AssembleError> {
        require_length("a row of the matrix", width, self.width)
    }

    #[inline(always)]
    fn row<'a>(&'a self, index: usize, _scratch: &'a mut [f32]) -> &'a [f32] {
        self.at(index)
    }

    fn copy_row(&self, index: usize, out: &mut [f32]) {
        out.copy_from_slice(self.at(index));
    }

    #[inline(always)]
    fn memory(&self, index: usize) -> &[u8] {
        bytemuck::cast_slice(self.at(index))
    }
}

/// Says whether a block keeps what its type promises: ascending offsets that end at the picks, and every pick a source.
pub fn check_block(block: &Block) -> Result<(), AssembleError> {
    let damaged = |reason: String| Err(AssembleError::Block(reason));
    match (block.offsets.first(), block.offsets.last()) {
        (None, _) | (_, None) => return damaged("it has no offsets".into()),
        (Some(first), _) if *first != 0 => return damaged(format!("its first offset is {first} instead of 0")),
        (_, Some(last)) if *last as usize != block.sources.len() => {
            return damaged(format!(
                "its last offset is {last}, it has {} picks",
                block.sources.len()
            ));
        }
        _ => {}
    }
    if let Some(at) = block.offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return damaged(format!("the offsets of destination {at} descend"));
    }
    if block.destination_count() > block.source_count {
        return damaged(format!(
            "it has {} destinations but {} sources",
            block.destination_count(),
            block.source_count
        ));
    }
    match block.sources.iter().max() {
        Some(last) if *last >= block.source_count => {
            damaged(format!("it picks source {last} of {}", block.source_count))
        }
        _ => Ok(()),
    }
}

/// Copies the first `count` rows one after the other into `out`, row-major `[count, width]`.
fn gather_rows<R: FeatureRows + ?Sized>(
    rows: &R,
    count: usize,
    width: usize,
    out: &mut [f32],
) -> Result<(), AssembleError> {
    rows.check_width(width)?;
    require_length("the gathered matrix", count * width, out.len())?;
    if count > rows.count() {
        return require_length("the table of rows", count, rows.count());
    }
    if width > 0 {
        out.par_chunks_mut(width * ROWS_PER_TASK)
            .enumerate()
            .for_each(|(chunk, out)| {
                for (row, out) in (chunk * ROWS_PER_TASK..).zip(out.chunks_exact_mut(width)) {
                    rows.copy_row(row, out);
                }
            });
    }
    Ok(())
}

/// The mean of every destination's picked rows, row-major `[destinations, width]`; zero without picks.
///
/// GraphSAGE's mean aggregator (Hamilton, Ying and Leskovec, NeurIPS 2017, section 3.3) over the sampled neighbours
/// alone; the destination's own row has a weight matrix of its own.
pub fn segment_mean<R: FeatureRows + ?Sized>(
    rows: &R,
    block: &Block,
    width: usize,
    out: &mut [f32],
) -> Result<(), AssembleError> {
    check_aggregation(rows, block, width, out.len(), width)?;
    if width > 0 {
        kernels::for_each_destination(block, width, out, |destinations, out| {
            kernels::mean_rows(rows, block, destinations, width, width, out);
        });
    }
    Ok(())
}

/// Per destination its own row and then the mean of its picks, row-major `[destinations, 2 * width]`.
pub fn own_and_mean<R: FeatureRows + ?Sized>(
    rows: &R,
    block: &Block,
    width: usize,
    out: &mut [f32],
) -> Result<(), AssembleError> {
    let stride = 2 * width;
    check_aggregation(rows, block, width, out.len(), stride)?;
    if width > 0 {
        kernels::for_each_destination(block, stride, out, |destinations, out| {
            for (destination, out) in destinations.clone().zip(out.chunks_exact_mut(stride)) {
                rows.copy_row(destination, &mut out[..width]);
            }
            kernels::mean_rows(rows, block, destinations, stride, width, &mut out[width..]);
        });
    }
    Ok(())
}

/// Buffers of batches that were trained, to be filled again.
#[derive(Debug, Default)]
pub struct InputBuffers {
    spare: Vec<Vec<f32>>,
}

impl InputBuffers {
    /// Spare buffers that are kept: the two halves of a pre-aggregated input, for two batches in flight.
    const KEPT: usize = 4;

    /// Takes back the buffers of an input that is no longer used.
    pub fn recycle(&mut self, input: BatchInput) {
        match input {
            BatchInput::Rows(rows) => self.keep(rows),
            BatchInput::PreAggregated { own, mean } => {
                self.keep(own);
                self.keep(mean);
            }
        }
    }

    fn keep(&mut self, buffer: Vec<f32>) {
        if self.spare.len() < Self::KEPT {
            self.spare.push(buffer);
        }
    }

    /// A buffer of `len` values, whatever they are; the largest spare one, so that it rarely has to grow.
    fn take(&mut self, len: usize) -> Vec<f32> {
        let largest = (0..self.spare.len()).max_by_key(|at| self.spare[*at].capacity());
        let mut buffer = largest.map(|at| self.spare.swap_remove(at)).unwrap_or_default();
        if buffer.capacity() < len {
            // Growing would copy values that nobody needs; room to spare serves the next batch, which is a little larger
            // as often as not.
            buffer = Vec::with_capacity(len + len / 8);
        }
        buffer.resize(len, 0.0);
        buffer
    }
}

/// Makes the input of the first layer from one row per node of the batch.
///
/// `last_block` is the block of the outermost hop, whose sources are all nodes of the batch. With `preaggregate` the
/// first layer's mean is taken here, straight from where the rows lie; otherwise the rows are gathered.
pub fn assemble_input<R: FeatureRows + ?Sized>(
    rows: &R,
    last_block: &Block,
    width: usize,
    preaggregate: bool,
    buffers: &mut InputBuffers,
) -> Result<BatchInput, AssembleError> {
    let count = rows.count();
    require_length("the batch", last_block.source_count as usize, count)?;
    rows.check_width(width)?;
    if !preaggregate {
        let mut gathered = buffers.take(count * width);
        gather_rows(rows, count, width, &mut gathered)?;
        return Ok(BatchInput::Rows(gathered));
    }
    let destinations = last_block.destination_count() as usize;
    if destinations > count {
        return Err(AssembleError::Block(format!(
            "it has {destinations} destinations but {count} sources"
        )));
    }
    let mut own = buffers.take(destinations * width);
    let mut mean = buffers.take(destinations * width);
    gather_rows(rows, destinations, width, &mut own)?;
    segment_mean(rows, last_block, width, &mut mean)?;
    Ok(BatchInput::PreAggregated { own, mean })
}

fn check_aggregation<R: FeatureRows + ?Sized>(
    rows: &R,
    block: &Block,
    width: usize,
    out: usize,
    stride: usize,
) -> Result<(), AssembleError> {
    check_block(block)?;
    if width > 0 {
        require_length("the table of rows", block.source_count as usize, rows.count())?;
    }
    require_length("the output", block.destination_count() as usize * stride, out)
}

fn require_length(what: &'static str, wanted: usize, found: usize) -> Result<(), AssembleError> {
    if wanted == found {
        Ok(())
    } else {
        Err(AssembleError::Length { what, wanted, found })
    }
}

#[cfg(test)]
pub(crate) mod tests;
