//! Memory for feature rows that requests fill while assemblies read: the cache arena and the assembly buffers.
//!
//! Rows stay encoded as they came, so that a budget in bytes holds as many rows as the row type allows.
//!
//! A row is written by one request and read by the assemblies after it. Who may touch which row when is decided by the
//! plan, which the policies' conformance suite checks for every policy: a slot is written between the gap at which its
//! request leaves and the step that needs it, and read from that step until its release. The arena turns that promise
//! into plain loads and stores.

use std::cell::UnsafeCell;

/// Fills rows without content. Every value of such a row decodes to NaN, whatever the row type, and no encoder makes
/// such a row of finite features.
const POISON: u8 = 0xFF;

/// A fixed number of encoded rows.
pub struct RowArena {
    /// Words, so that rows of f32 values can be read where they lie.
    words: Box<[UnsafeCell<u32>]>,
    rows: usize,
    row_bytes: usize,
}

// SAFETY: rows are plain memory without interior references; the callers of `write` and `row` promise not to race.
unsafe impl Sync for RowArena {}

impl RowArena {
    /// An arena of `rows` rows of `row_bytes`, zeroed. Pages are touched when rows are first written.
    pub fn new(rows: usize, row_bytes: usize) -> Self {
        let words = (rows * row_bytes).div_ceil(size_of::<u32>());
        let zeroed: Box<[u32]> = vec![0; words].into_boxed_slice();
        // SAFETY: `UnsafeCell<u32>` has the layout of `u32`.
        let words = unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [UnsafeCell<u32>]) };
        Self { words, rows, row_bytes }
    }

    /// An arena for a run: zeroed, or with every row poisoned where plans are to be verified.
    pub fn for_run(rows: usize, row_bytes: usize, verify: bool) -> Self {
        let arena = Self::new(rows, row_bytes);
        if verify {
            for row in 0..rows {
                // SAFETY: nobody else has the arena yet.
                unsafe { arena.poison(row as u32) };
            }
        }
        arena
    }

    /// Whether a row holds what [`poison`](Self::poison) leaves: it was read before it came or after it was freed.
    pub fn is_poisoned(row: &[u8]) -> bool {
        !row.is_empty() && row.iter().all(|byte| *byte == POISON)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The first byte of row `row`, which the arena has.
    fn start(&self, row: u32) -> *mut u8 {
        assert!(
            (row as usize) < self.rows,
            "row {row} of an arena of {} rows",
            self.rows
        );
        // The pointer is to all words, not to one of them, so that it may reach every row.
        let words = self.words.as_ptr() as *mut u8;
        words.wrapping_add(row as usize * self.row_bytes)
    }

    /// Copies the encoded row `source` into row `row`.
    ///
    /// # Safety
    /// Nobody reads or writes the row at the same time: the plan gives the row to the calling request or step.
    pub unsafe fn write(&self, row: u32, source: &[u8]) {
        let target = self.start(row);
        assert_eq!(
            source.len(),
            self.row_bytes,
            "a row of this arena has {} bytes",
            self.row_bytes
        );
        // SAFETY: `target` is in bounds and, by the caller's promise, not aliased; `source` is another row.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, self.row_bytes) }
    }

    /// The bytes of row `row`.
    ///
    /// # Safety
    /// Nobody writes the row while the slice lives: it has landed and is not yet released.
    pub unsafe fn row(&self, row: u32) -> &[u8] {
        let start = self.start(row);
        // SAFETY: in bounds, initialised, and by the caller's promise not written meanwhile.
        unsafe { std::slice::from_raw_parts(start, self.row_bytes) }
    }

    /// Marks a freed row, so that a plan that reads it shows at once.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    pub unsafe fn poison(&self, row: u32) {
        let start = self.start(row);
        // SAFETY: in bounds, and the caller's promise.
        unsafe { std::ptr::write_bytes(start, POISON, self.row_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use greengnn_model::row_type::RowType;

    use super::*;

    #[test]
    fn rows_written_are_rows_read() {
        // Five bytes a row: neither the rows nor the arena are whole words.
        let arena = RowArena::new(3, 5);
        assert_eq!(arena.rows(), 3);
        // SAFETY: one thread.
        unsafe {
            arena.write(2, b"hello");
            assert_eq!(arena.row(2), b"hello");
            assert_eq!(arena.row(1), [0; 5]);
            arena.poison(1);
            assert!(RowArena::is_poisoned(arena.row(1)) && !RowArena::is_poisoned(arena.row(2)));
            assert!(!RowArena::is_poisoned(arena.row(0)));
            assert!(RowArena::is_poisoned(RowArena::for_run(1, 5, true).row(0)));
        }
    }

    #[test]
    fn rows_of_whole_words_can_be_read_as_values_where_they_lie() {
        let arena = RowArena::new(2, 8);
        // SAFETY: one thread.
        let row = unsafe {
            arena.write(1, bytemuck::cast_slice(&[1.0f32, -2.0]));
            arena.row(1)
        };
        assert_eq!(bytemuck::try_cast_slice::<u8, f32>(row), Ok(&[1.0, -2.0][..]));
    }

    #[test]
    fn a_poisoned_row_is_none_that_features_make_and_decodes_to_nan_in_every_row_type() {
        for row_type in RowType::ALL {
            let arena = RowArena::for_run(1, row_type.row_bytes(3), true);
            // SAFETY: one thread.
            unsafe {
                let mut row = [0.0; 3];
                row_type.decode(arena.row(0), &mut row);
                assert!(row.iter().all(|value| value.is_nan()), "{row_type}: {row:?}");
                for value in [0.0, -1.0, -1e-30, f32::MIN, f32::MAX] {
                    let mut bytes = vec![0; row_type.row_bytes(3)];
                    row_type.encode(&[value; 3], &mut bytes);
                    arena.write(0, &bytes);
                    assert!(!RowArena::is_poisoned(arena.row(0)), "{row_type}: {value}");
                }
            }
        }
    }

    #[test]
    fn an_empty_arena_has_no_rows() {
        assert_eq!(RowArena::new(0, 8).rows(), 0);
        assert_eq!(RowArena::new(0, 0).rows(), 0);
    }
}
