//! The rows of a batch where the remote ones are still encoded: decoded when they are read, a few at a time, into
//! memory that stays in the processor's nearest cache.

use super::{AssembleError, FeatureRows};
use crate::row_type::RowType;

/// A feature row as a loader has it.
#[derive(Clone, Copy, Debug)]
pub enum StoredRow<'a> {
    /// A row of the rank's own part, exact.
    Own(&'a [f32]),
    /// A remote row as it came.
    Remote(&'a [u8]),
}

/// Rows of which the remote ones have a row type.
#[derive(Clone, Copy, Debug)]
pub struct StoredRows<'a> {
    pub rows: &'a [StoredRow<'a>],
    pub row_type: RowType,
}

impl FeatureRows for StoredRows<'_> {
    const DECODED: bool = true;

    fn count(&self) -> usize {
        self.rows.len()
    }

    fn check_width(&self, width: usize) -> Result<(), AssembleError> {
        let bytes = self.row_type.row_bytes(width);
        let wrong = self.rows.iter().enumerate().find_map(|(row, stored)| match *stored {
            StoredRow::Own(values) if values.len() != width => Some(AssembleError::RowWidth {
                row,
                wanted: width,
                found: values.len(),
            }),
            StoredRow::Remote(encoded) if encoded.len() != bytes => Some(AssembleError::RowBytes {
                row,
                row_type: self.row_type,
                wanted: bytes,
                found: encoded.len(),
            }),
            _ => None,
        });
        wrong.map_or(Ok(()), Err)
    }

    #[inline(always)]
    fn row<'a>(&'a self, index: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        match self.rows[index] {
            StoredRow::Own(values) => values,
            StoredRow::Remote(bytes) => {
                self.row_type.decode(bytes, scratch);
                scratch
            }
        }
    }

    fn copy_row(&self, index: usize, out: &mut [f32]) {
        match self.rows[index] {
            StoredRow::Own(values) => out.copy_from_slice(values),
            StoredRow::Remote(bytes) => self.row_type.decode(bytes, out),
        }
    }

    #[inline(always)]
    fn memory(&self, index: usize) -> &[u8] {
        match self.rows[index] {
            StoredRow::Own(values) => bytemuck::cast_slice(values),
            StoredRow::Remote(bytes) => bytes,
        }
    }
}
