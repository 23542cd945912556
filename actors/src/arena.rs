//! Memory for feature rows that requests fill while assemblies read: the cache arena and the assembly buffers.
//!
//! A row is written by one request and read by the assemblies after it. Who may touch which row when is decided by the
//! plan, which the policies' conformance suite checks for every policy: a slot is written between the gap at which its
//! request leaves and the step that needs it, and read from that step until its release. The arena turns that promise
//! into plain loads and stores.

use std::cell::UnsafeCell;

/// The bits of the NaN that marks rows without content.
const POISON: u32 = 0x7FC0_DEAD;

/// A fixed number of rows of f32 values.
pub struct RowArena {
    values: Box<[UnsafeCell<f32>]>,
    width: usize,
}

// SAFETY: rows are plain memory without interior references; the callers of `write` and `row` promise not to race.
unsafe impl Sync for RowArena {}

impl RowArena {
    /// An arena of `rows` rows of `width` values, zeroed. Pages are touched when rows are first written.
    pub fn new(rows: usize, width: usize) -> Self {
        let zeroed: Box<[f32]> = vec![0.0; rows * width].into_boxed_slice();
        // SAFETY: `UnsafeCell<f32>` has the layout of `f32`.
        let values = unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [UnsafeCell<f32>]) };
        Self { values, width }
    }

    /// An arena for a run: zeroed, or with every row poisoned where plans are to be verified.
    pub fn for_run(rows: usize, width: usize, verify: bool) -> Self {
        let arena = Self::new(rows, width);
        if verify {
            for row in 0..rows {
                // SAFETY: nobody else has the arena yet.
                unsafe { arena.poison(row as u32) };
            }
        }
        arena
    }

    /// Whether a row holds what [`poison`](Self::poison) leaves: it was read before it came or after it was freed.
    pub fn is_poisoned(row: &[f32]) -> bool {
        row.iter().any(|value| value.to_bits() == POISON)
    }

    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// All values, row by row.
    pub fn into_values(self) -> Vec<f32> {
        self.values.into_iter().map(UnsafeCell::into_inner).collect()
    }

    /// Copies `source` into row `row`.
    ///
    /// # Safety
    /// Nobody reads or writes the row at the same time: the plan gives the row to the calling request or step.
    pub unsafe fn write(&self, row: u32, source: &[f32]) {
        let start = row as usize * self.width;
        let target = &self.values[start..start + self.width];
        assert_eq!(
            source.len(),
            self.width,
            "a row of this arena has {} values",
            self.width
        );
        // SAFETY: `target` is in bounds and, by the caller's promise, not aliased; `source` is another allocation.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr() as *mut f32, self.width) }
    }

    /// The values of row `row`.
    ///
    /// # Safety
    /// Nobody writes the row while the slice lives: its request has been answered and it is not yet released.
    pub unsafe fn row(&self, row: u32) -> &[f32] {
        let start = row as usize * self.width;
        let values = &self.values[start..start + self.width];
        // SAFETY: in bounds, initialised, and by the caller's promise not written meanwhile.
        unsafe { std::slice::from_raw_parts(values.as_ptr() as *const f32, self.width) }
    }

    /// Fills a freed row with a NaN that no feature has, so that a plan that reads it shows at once.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub unsafe fn poison(&self, row: u32) {
        let nan = vec![f32::from_bits(POISON); self.width];
        // SAFETY: the caller's promise.
        unsafe { self.write(row, &nan) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_written_are_rows_read() {
        let arena = RowArena::new(3, 2);
        assert_eq!(arena.rows(), 3);
        // SAFETY: one thread.
        unsafe {
            arena.write(2, &[1.0, 2.0]);
            assert_eq!(arena.row(2), [1.0, 2.0]);
            assert_eq!(arena.row(1), [0.0, 0.0]);
            let other = RowArena::new(2, 2);
            other.write(1, &[1.0, 2.0]);
            assert_eq!(other.into_values(), [0.0, 0.0, 1.0, 2.0]);
            arena.poison(2);
            assert!(RowArena::is_poisoned(arena.row(2)) && !RowArena::is_poisoned(arena.row(1)));
            assert!(RowArena::is_poisoned(RowArena::for_run(1, 2, true).row(0)));
        }
    }

    #[test]
    fn an_empty_arena_has_no_rows() {
        assert_eq!(RowArena::new(0, 8).rows(), 0);
        assert_eq!(RowArena::new(0, 0).rows(), 0);
    }
}
