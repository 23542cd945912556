//! The neighbours of one node: uniform over the positions of its row, without replacement.

use crate::book::NodeId;
use crate::rng::{CounterRng, mix_words};
use crate::sampling::Topology;

/// Rows up to this degree keep what was picked in a bitmap on the stack, which also yields it in order.
const BITMAP_DEGREE: u32 = 1024;
const BITMAP_WORDS: usize = (BITMAP_DEGREE / 64) as usize;
/// Up to this fanout the picks of a longer row are kept in a list on the stack.
const LIST_FANOUT: usize = 64;
/// Rows whose cells are asked for from memory before the first of them is read.
const ROWS_IN_FLIGHT: usize = 32;

/// Appends the picks of `node` to `out`, in the order of its row.
///
/// A pick is a *position* of the row, so an edge that the graph has twice can be picked twice. All positions are taken
/// where the row has no more than `fanout`, none where `fanout` is 0. The picks depend on `key` (the hop key of the
/// batch), on the global id `node` and on the length of the row alone: not on the thread, the part or what was drawn
/// before. Rows have at most `u32::MAX` neighbours; later ones would never be picked.
pub fn pick_neighbors(key: u64, node: NodeId, neighbors: &[NodeId], fanout: u32, out: &mut Vec<NodeId>) {
    let degree = u32::try_from(neighbors.len()).unwrap_or(u32::MAX);
    if degree <= fanout {
        out.extend_from_slice(neighbors);
        return;
    }
    pick_positions(key, node, degree, fanout, |position| {
        out.push(neighbors[position as usize]);
    });
}

/// Calls `emit` for `min(degree, fanout)` different positions below `degree`, ascending.
///
/// Floyd's algorithm F2 (Bentley and Floyd, "A sample of brilliance", CACM 30(9), 1987): for `last` from
/// `degree - fanout` to `degree - 1`, draw a position up to `last` and take it, or `last` itself where it was taken.
#[inline]
pub(crate) fn pick_positions(key: u64, node: NodeId, degree: u32, fanout: u32, mut emit: impl FnMut(u32)) {
    if degree <= fanout {
        (0..degree).for_each(emit);
        return;
    }
    if fanout == 0 {
        return;
    }
    let mut rng = CounterRng::new(mix_words(&[key, u64::from(node)]));
    if degree <= BITMAP_DEGREE {
        let mut taken = [0u64; BITMAP_WORDS];
        floyd_bitmap(&mut rng, degree, fanout, &mut taken);
        ones(&taken[..words_of(degree)], emit);
    } else if fanout as usize <= LIST_FANOUT {
        let mut list = [0u32; LIST_FANOUT];
        let picks = &mut list[..fanout as usize];
        floyd_list(&mut rng, degree, picks);
        picks.sort_unstable();
        picks.iter().for_each(|position| emit(*position));
    } else {
        let mut taken = vec![0u64; words_of(degree)];
        floyd_bitmap(&mut rng, degree, fanout, &mut taken);
        ones(&taken, emit);
    }
}

fn words_of(degree: u32) -> usize {
    degree.div_ceil(64) as usize
}

#[inline]
fn floyd_bitmap(rng: &mut CounterRng, degree: u32, fanout: u32, taken: &mut [u64]) {
    for last in degree - fanout..degree {
        let drawn = rng.below(last + 1);
        let free = taken[(drawn / 64) as usize] >> (drawn % 64) & 1 == 0;
        let position = if free { drawn } else { last };
        taken[(position / 64) as usize] |= 1 << (position % 64);
    }
}

/// The same draws as [`floyd_bitmap`], for `picks.len()` picks.
#[inline]
fn floyd_list(rng: &mut CounterRng, degree: u32, picks: &mut [u32]) {
    let first = degree - picks.len() as u32;
    for count in 0..picks.len() {
        let last = first + count as u32;
        let drawn = rng.below(last + 1);
        picks[count] = if picks[..count].contains(&drawn) { last } else { drawn };
    }
}

#[inline]
fn ones(words: &[u64], mut emit: impl FnMut(u32)) {
    for (index, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            emit(index as u32 * 64 + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
}

/// Number of picks of a local row.
#[inline]
pub(crate) fn pick_count(topology: Topology<'_>, row: u32, fanout: u32) -> u32 {
    let row = row as usize;
    (topology.offsets[row + 1] - topology.offsets[row]).min(u64::from(fanout)) as u32
}

/// Draws the picks of many rows and hands them over row by row, in the order of `rows`: `take` gets the place of the row
/// in `rows` and its picks.
///
/// The cells of [`ROWS_IN_FLIGHT`] rows are drawn and prefetched before they are read, because on a graph that is larger
/// than the caches nearly all time goes into waiting for them.
#[inline]
pub(crate) fn pick_rows(
    topology: Topology<'_>,
    key: u64,
    fanout: u32,
    rows: &[u32],
    mut take: impl FnMut(usize, Picks<'_>),
) {
    let mut cells = Vec::new();
    let mut ends = [0usize; ROWS_IN_FLIGHT];
    let mut ahead = rows.iter().skip(ROWS_IN_FLIGHT);
    for (chunk_index, chunk) in rows.chunks(ROWS_IN_FLIGHT).enumerate() {
        cells.clear();
        for (row, end) in chunk.iter().zip(&mut ends) {
            if let Some(next) = ahead.next() {
                prefetch(topology.offsets, u64::from(*next));
            }
            let start = topology.offsets[*row as usize];
            let length = topology.offsets[*row as usize + 1] - start;
            let degree = u32::try_from(length).unwrap_or(u32::MAX);
            pick_positions(key, topology.first + row, degree, fanout, |position| {
                let cell = start + u64::from(position);
                prefetch(topology.neighbors, cell);
                cells.push(cell);
            });
            *end = cells.len();
        }
        let mut start = 0;
        for (index, end) in ends[..chunk.len()].iter().enumerate() {
            let picks = Picks {
                cells: cells[start..*end].iter(),
                neighbors: topology.neighbors,
            };
            take(chunk_index * ROWS_IN_FLIGHT + index, picks);
            start = *end;
        }
    }
}

/// The picks of one row, in its order.
pub(crate) struct Picks<'a> {
    cells: std::slice::Iter<'a, u64>,
    neighbors: &'a [NodeId],
}

impl Iterator for Picks<'_> {
    type Item = NodeId;

    #[inline]
    fn next(&mut self) -> Option<NodeId> {
        self.cells.next().map(|cell| self.neighbors[*cell as usize])
    }
}

/// Asks for the cache line of `slice[index]`; a hint that changes no result, and nothing on CPUs other than x86-64.
#[inline]
pub(crate) fn prefetch<T>(slice: &[T], index: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(index as usize);
        // SAFETY: a prefetch reads nothing that the program can see and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}

#[cfg(test)]
mod tests;
