//! The rows of a part in the run's row type, each encoded once.
//!
//! They are kept in a file without a name, mapped into memory: as large as the part in its row type, on disk, and in
//! the kernel's page cache as far as there is room. Parts larger than memory stay servable, and nothing is left behind.
//! A block of rows is encoded when the first of them is asked for, so that a run neither waits for all rows nor reads
//! those that nobody needs.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Once;

use greengnn_model::row_type::RowType;
use memmap2::{MmapOptions, MmapRaw};

use super::ShardData;

/// Bytes of a block of encoded rows, about.
const BLOCK_BYTES: usize = 8 << 10;

/// The encoded rows of one part.
pub(super) struct EncodedRows {
    row_type: RowType,
    row_bytes: usize,
    rows: usize,
    rows_per_block: usize,
    /// Per block whether its rows are encoded.
    blocks: Box<[Once]>,
    map: MmapRaw,
}

impl EncodedRows {
    /// Takes the room that all rows of `data` need below `folder`, and encodes none of them yet.
    ///
    /// # Errors
    /// The folder cannot be written or has too little room.
    pub fn new(data: &dyn ShardData, row_type: RowType, folder: &Path) -> io::Result<Self> {
        let (rows, row_bytes) = (data.rows() as usize, row_type.row_bytes(data.width()));
        let rows_per_block = (BLOCK_BYTES / row_bytes.max(1)).max(1);
        let file = tempfile::tempfile_in(folder)?;
        // A map of nothing cannot be made.
        reserve(&file, (rows * row_bytes).max(1))?;
        Ok(Self {
            row_type,
            row_bytes,
            rows,
            rows_per_block,
            blocks: (0..rows.div_ceil(rows_per_block)).map(|_| Once::new()).collect(),
            map: MmapOptions::new().map_raw(&file)?,
        })
    }

    /// Row `row` of `data`, which must be what the rows were made for.
    pub fn row(&self, row: u32, data: &dyn ShardData) -> &[u8] {
        let row = row as usize;
        let block = row / self.rows_per_block;
        self.blocks[block].call_once(|| self.encode_block(block, data));
        // SAFETY: the row is one of a block, hence within the map; its block has been written and is not written again.
        unsafe { std::slice::from_raw_parts(self.start(row), self.row_bytes) }
    }

    fn encode_block(&self, block: usize, data: &dyn ShardData) {
        let first = block * self.rows_per_block;
        for row in first..self.rows.min(first + self.rows_per_block) {
            // SAFETY: within the map; `Once` lets nobody else in, and nobody reads the block before this is done.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.start(row), self.row_bytes) };
            self.row_type.encode(data.row(row as u32), bytes);
        }
    }

    fn start(&self, row: usize) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(row * self.row_bytes)
    }
}

/// Makes `file` so long, with all blocks on disk reserved: a map of a file that finds no room ends the process when it
/// is written.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    loop {
        // SAFETY: the descriptor is open as long as `file` lives.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use greengnn_model::book::PartId;
    use greengnn_model::sampling::Topology;

    use super::super::MemoryShard;
    use super::*;

    /// Counts how often a row is read.
    struct Counted(MemoryShard, Vec<AtomicUsize>);

    impl ShardData for Counted {
        fn part(&self) -> PartId {
            self.0.part()
        }

        fn rows(&self) -> u32 {
            self.0.rows()
        }

        fn width(&self) -> usize {
            self.0.width()
        }

        fn row(&self, row: u32) -> &[f32] {
            self.1[row as usize].fetch_add(1, Ordering::Relaxed);
            self.0.row(row)
        }

        fn topology(&self) -> Topology<'_> {
            self.0.topology()
        }
    }

    fn counted(rows: usize, width: usize) -> Counted {
        let values = (0..rows * width).map(|place| (place as f32).sin()).collect();
        let reads = (0..rows).map(|_| AtomicUsize::new(0)).collect();
        Counted(MemoryShard::new(0, width, values).unwrap(), reads)
    }

    #[test]
    fn every_row_is_encoded_once_however_many_ask() {
        let folder = tempfile::tempdir().unwrap();
        let data = counted(1000, 33);
        for row_type in RowType::ALL {
            data.1.iter().for_each(|reads| reads.store(0, Ordering::Relaxed));
            let encoded = EncodedRows::new(&data, row_type, folder.path()).unwrap();
            std::thread::scope(|scope| {
                for shift in 0..4 {
                    let (encoded, data) = (&encoded, &data);
                    scope.spawn(move || {
                        for row in 0..1000u32 {
                            let row = (row * 7 + shift * 250) % 1000;
                            let mut wanted = vec![0; row_type.row_bytes(33)];
                            row_type.encode(data.0.row(row), &mut wanted);
                            assert_eq!(encoded.row(row, data), wanted);
                        }
                    });
                }
            });
            assert!(
                data.1.iter().all(|reads| reads.load(Ordering::Relaxed) == 1),
                "{row_type}"
            );
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn rows_that_nobody_asks_for_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data = counted(10_000, 64);
        let encoded = EncodedRows::new(&data, RowType::Int8, folder.path()).unwrap();
        encoded.row(9_999, &data);
        let read = data.1.iter().filter(|reads| reads.load(Ordering::Relaxed) > 0).count();
        assert!(
            read <= BLOCK_BYTES / RowType::Int8.row_bytes(64),
            "{read} rows were read"
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let data = counted(2, 3);
        assert!(EncodedRows::new(&data, RowType::F16, Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_part_without_rows_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let data = MemoryShard::new(0, 3, Vec::new()).unwrap();
        EncodedRows::new(&data, RowType::F16, folder.path()).unwrap();
    }
}
