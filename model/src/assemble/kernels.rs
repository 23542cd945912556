//! The inner loops over feature rows. Plain loops that the compiler turns into vector code, compiled once more for AVX2.
//!
//! Only additions, multiplications and divisions of single lanes are used, never fused, so that every instruction set
//! gives the same bits.

use std::ops::Range;

use rayon::prelude::*;

use super::{FeatureRows, ROWS_PER_TASK};
use crate::batch::Block;

/// Picks whose rows are added in one pass over the output row.
const GROUP: usize = 4;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Lines of a row that are asked for ahead of their use.
const LINES: usize = 8;

/// Compiles a kernel twice, for the baseline of the target and for AVX2, and calls what the processor has.
macro_rules! multiversion {
    (
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident<$row:ident: FeatureRows + ?Sized>($($argument:ident: $kind:ty),* $(,)?)
        as $body:ident
    ) => {
        $(#[$doc])*
        $visibility fn $name<$row: FeatureRows + ?Sized>($($argument: $kind),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with_avx2<$row: FeatureRows + ?Sized>($($argument: $kind),*) {
                    $body($($argument),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has AVX2, which is all that the function asks for.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            $body($($argument),*)
        }
    };
}

/// Calls `task` for runs of destinations, with their rows of `out`, in parallel.
pub(super) fn for_each_destination(
    block: &Block,
    stride: usize,
    out: &mut [f32],
    task: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let destinations = block.destination_count() as usize;
    out.par_chunks_mut(stride * ROWS_PER_TASK)
        .enumerate()
        .for_each(|(chunk, out)| {
            let first = chunk * ROWS_PER_TASK;
            task(first..(first + ROWS_PER_TASK).min(destinations), out);
        });
}

multiversion! {
    /// The means of some destinations: destination `i` of the run is written to `out[i * stride ..][.. width]`.
    pub(super) fn mean_rows<R: FeatureRows + ?Sized>(
        rows: &R,
        block: &Block,
        destinations: Range<usize>,
        stride: usize,
        width: usize,
        out: &mut [f32],
    ) as mean_rows_body
}

#[inline(always)]
fn mean_rows_body<R: FeatureRows + ?Sized>(
    rows: &R,
    block: &Block,
    destinations: Range<usize>,
    stride: usize,
    width: usize,
    out: &mut [f32],
) {
    let mut scratch = std::array::from_fn(|_| decoding_scratch(rows, width));
    for (at, destination) in destinations.enumerate() {
        let out = &mut out[at * stride..at * stride + width];
        let start = block.offsets[destination] as usize;
        let end = block.offsets[destination + 1] as usize;
        if start == end {
            out.fill(0.0);
            continue;
        }
        sum_picks(rows, &block.sources, start..end, &mut scratch, out);
        let count = (end - start) as f32;
        for value in out {
            *value /= count;
        }
    }
}

/// Memory that a row is decoded into; none where rows are read where they lie.
#[inline(always)]
fn decoding_scratch<R: FeatureRows + ?Sized>(_rows: &R, width: usize) -> Vec<f32> {
    if R::DECODED { vec![0.0; width] } else { Vec::new() }
}

/// `out` = the sum of the rows `sources[picks]`, added one after the other.
#[inline(always)]
fn sum_picks<R: FeatureRows + ?Sized>(
    rows: &R,
    sources: &[u32],
    picks: Range<usize>,
    scratch: &mut [Vec<f32>; GROUP],
    out: &mut [f32],
) {
    let [scratch_1, scratch_2, scratch_3, scratch_4] = scratch;
    let width = out.len();
    let mut at = picks.start;
    prefetch_rows(rows, sources, at + 1, GROUP);
    out.copy_from_slice(&rows.row(sources[at] as usize, scratch_1)[..width]);
    at += 1;
    while at + GROUP <= picks.end {
        // Also past the end of this destination: the next one starts there.
        prefetch_rows(rows, sources, at + GROUP, GROUP);
        let first = &rows.row(sources[at] as usize, scratch_1)[..width];
        let second = &rows.row(sources[at + 1] as usize, scratch_2)[..width];
        let third = &rows.row(sources[at + 2] as usize, scratch_3)[..width];
        let fourth = &rows.row(sources[at + 3] as usize, scratch_4)[..width];
        for column in 0..width {
            out[column] = (((out[column] + first[column]) + second[column]) + third[column]) + fourth[column];
        }
        at += GROUP;
    }
    prefetch_rows(rows, sources, picks.end, 1);
    while at < picks.end {
        let row = &rows.row(sources[at] as usize, scratch_1)[..width];
        for column in 0..width {
            out[column] += row[column];
        }
        at += 1;
    }
}

multiversion! {
    /// `out` = `own` (or zero) plus the rows of some destinations, each times its weight, one after the other.
    pub(super) fn weighted_rows<R: FeatureRows + ?Sized>(
        rows: &R,
        destinations: &[u32],
        weights: &[f32],
        own: Option<&[f32]>,
        out: &mut [f32],
    ) as weighted_rows_body
}

#[inline(always)]
fn weighted_rows_body<R: FeatureRows + ?Sized>(
    rows: &R,
    destinations: &[u32],
    weights: &[f32],
    own: Option<&[f32]>,
    out: &mut [f32],
) {
    match own {
        Some(own) => out.copy_from_slice(own),
        None => out.fill(0.0),
    }
    let width = out.len();
    let mut scratch = decoding_scratch(rows, width);
    for (at, destination) in destinations.iter().enumerate() {
        prefetch_rows(rows, destinations, at + 1, 1);
        let row = &rows.row(*destination as usize, &mut scratch)[..width];
        let weight = weights[*destination as usize];
        for column in 0..width {
            out[column] += row[column] * weight;
        }
    }
}

/// Asks for the first lines of some rows ahead of their use; the hardware follows a row that is being read by itself.
#[inline(always)]
fn prefetch_rows<R: FeatureRows + ?Sized>(rows: &R, indices: &[u32], from: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let until = (from + count).min(indices.len());
        for index in indices.get(from..until).unwrap_or_default() {
            let row = rows.memory(*index as usize);
            for line in 0..row.len().div_ceil(LINE).min(LINES) {
                let address = row.as_ptr().wrapping_byte_add(line * LINE);
                // SAFETY: a prefetch reads nothing and never faults, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (rows, indices, from, count, LINE, LINES);
}
