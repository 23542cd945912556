//! Rows of which some stay on the device: a batch brings the others, and says where each of its rows is.

use super::{AssembleError, FeatureRows, InputBuffers, gather_rows, require_length};
use crate::layers::BatchInput;

/// The rows of a batch in two tables, `[rows, width]` each: what is resident, and what came with the batch.
#[derive(Clone, Copy, Debug)]
pub struct ResidentRows<'a> {
    resident: &'a [f32],
    uploaded: &'a [f32],
    places: &'a [u32],
    width: usize,
}

impl<'a> ResidentRows<'a> {
    /// `places` names one row per node of the batch, as in [`BatchInput::Resident`].
    ///
    /// # Errors
    /// Tables that are no whole rows, or a place in neither.
    pub fn new(
        resident: &'a [f32],
        uploaded: &'a [f32],
        places: &'a [u32],
        width: usize,
    ) -> Result<Self, AssembleError> {
        check_places(resident.len(), uploaded.len(), places, width)?;
        Ok(Self {
            resident,
            uploaded,
            places,
            width,
        })
    }

    /// Copies the first `count` rows into `out`, `[count, width]`.
    ///
    /// # Errors
    /// Another length, or more rows than there are.
    pub fn gather(&self, count: usize, out: &mut [f32]) -> Result<(), AssembleError> {
        gather_rows(self, count, self.width, out)
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &[f32] {
        let start = self.places[index] as usize * self.width;
        match start.checked_sub(self.resident.len()) {
            None => &self.resident[start..start + self.width],
            Some(start) => &self.uploaded[start..start + self.width],
        }
    }
}

impl FeatureRows for ResidentRows<'_> {
    fn count(&self) -> usize {
        self.places.len()
    }

    fn check_width(&self, width: usize) -> Result<(), AssembleError> {
        require_length("a row of the tables", width, self.width)
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

/// Says whether every place is a row of one of two tables of so many values.
///
/// # Errors
/// Tables that are no whole rows, or a place in neither.
pub fn check_places(resident: usize, uploaded: usize, places: &[u32], width: usize) -> Result<(), AssembleError> {
    if width == 0 {
        return require_length("the tables of rows without columns", 0, resident + uploaded);
    }
    for (what, values) in [("the resident rows", resident), ("the uploaded rows", uploaded)] {
        require_length(what, values / width * width, values)?;
    }
    let rows = (resident + uploaded) / width;
    match places.iter().position(|place| *place as usize >= rows) {
        None => Ok(()),
        Some(row) => Err(AssembleError::Place {
            row,
            place: places[row],
            rows,
        }),
    }
}

/// Makes the input of a batch of which some rows are on the device: copies or decodes `rows`, which are the others.
///
/// # Errors
/// A row of another width.
pub fn assemble_resident<R: FeatureRows + ?Sized>(
    rows: &R,
    places: Vec<u32>,
    width: usize,
    buffers: &mut InputBuffers,
) -> Result<BatchInput, AssembleError> {
    rows.check_width(width)?;
    let mut uploaded = buffers.take(rows.count() * width);
    gather_rows(rows, rows.count(), width, &mut uploaded)?;
    Ok(BatchInput::Resident { uploaded, places })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::assemble::tests::{random_block, random_values};
    use crate::assemble::{Columns, segment_mean};
    use crate::rng::CounterRng;

    proptest! {
        #[test]
        fn rows_in_two_tables_are_gathered_and_averaged_as_rows_in_one(
            seed in any::<u64>(), destinations in 0..90u32, more in 0..60u32, width in 0usize..20,
        ) {
            let sources = destinations + more;
            let block = random_block(seed, destinations, sources, 4);
            let all = random_values(seed, sources as usize * width);
            let row = |index: usize| &all[index * width..(index + 1) * width];
            let mut rng = CounterRng::new(seed);
            let on_device: Vec<bool> = (0..sources).map(|_| rng.below(2) == 0).collect();
            let resident_count = on_device.iter().filter(|resident| **resident).count();
            let (mut resident, mut count, mut others, mut places) = (Vec::new(), 0, Vec::new(), Vec::new());
            for (index, on_device) in on_device.iter().enumerate() {
                if *on_device {
                    resident.extend_from_slice(row(index));
                    places.push(count);
                    count += 1;
                } else {
                    places.push((resident_count + others.len()) as u32);
                    others.push(row(index));
                }
            }
            if width == 0 {
                places.fill(0);
            }
            let input = assemble_resident(&others[..], places, width, &mut InputBuffers::default()).unwrap();
            let BatchInput::Resident { uploaded, places } = input else { panic!("another input") };
            prop_assert_eq!(uploaded.len(), others.len() * width);
            let rows = ResidentRows::new(&resident, &uploaded, &places, width).unwrap();
            let values = destinations as usize * width;
            let mut own = vec![f32::NAN; values];
            rows.gather(destinations as usize, &mut own).unwrap();
            prop_assert_eq!(bits(&own), bits(&all[..values]));
            let (mut found, mut expected) = (vec![0.0; values], vec![0.0; values]);
            segment_mean(&rows, &block, width, &mut found).unwrap();
            segment_mean(&Columns::all(&all, width), &block, width, &mut expected).unwrap();
            prop_assert_eq!(bits(&found), bits(&expected));
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn a_place_in_neither_table_is_named() {
        let error = ResidentRows::new(&[1.0, 2.0], &[3.0, 4.0], &[0, 1, 2], 2).unwrap_err();
        let expected = AssembleError::Place {
            row: 2,
            place: 2,
            rows: 2,
        };
        assert_eq!(error, expected);
        assert!(ResidentRows::new(&[1.0], &[], &[], 2).is_err());
    }
}
