//! The rows that the device keeps: where a batch finds them there.

use greengnn_model::plan::{DeviceRows, Level};

const NOT_THERE: u32 = u32::MAX;

/// The places of the device's rows: remote ones by their slots, then the rank's own by their rows.
pub struct Residency {
    rows: DeviceRows,
    /// Per own row its place on the device; empty if no own row is there.
    own: Vec<u32>,
}

impl Residency {
    /// `own_rows` is the number of rows of the rank's part.
    pub fn new(rows: DeviceRows, own_rows: u32) -> Self {
        let mut own = Vec::new();
        if !rows.own.is_empty() {
            own.resize(own_rows as usize, NOT_THERE);
            for (place, row) in (rows.slots..).zip(&rows.own) {
                if let Some(known) = own.get_mut(*row as usize) {
                    *known = place;
                }
            }
        }
        Self { rows, own }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows on the device.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Where the device has the row of a slot.
    pub fn of_slot(&self, slot: u32) -> Option<u32> {
        (self.rows.level(slot) == Level::Device).then_some(slot)
    }

    /// Where the device has a row of the rank's part.
    pub fn of_own(&self, row: u32) -> Option<u32> {
        self.own.get(row as usize).copied().filter(|place| *place != NOT_THERE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_rows_follow_the_slots() {
        let residency = Residency::new(
            DeviceRows {
                slots: 2,
                own: vec![1, 4],
            },
            5,
        );
        assert_eq!(residency.len(), 4);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|row| residency.of_own(row)),
            [None, Some(2), None, None, Some(3)]
        );
        assert_eq!([0, 1, 2].map(|slot| residency.of_slot(slot)), [Some(0), Some(1), None]);
        let nothing = Residency::new(DeviceRows::default(), 5);
        assert!(nothing.is_empty() && nothing.of_own(0).is_none() && nothing.of_slot(0).is_none());
    }
}
