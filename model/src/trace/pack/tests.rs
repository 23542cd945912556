use proptest::prelude::*;

use super::*;

/// Decodes as `docs/trace-format.md` describes it, bit by bit and without the library.
fn unpack_by_the_book(bytes: &[u8], count: usize) -> (Vec<u32>, usize) {
    let (mut values, mut at) = (Vec::new(), 0);
    while values.len() < count {
        let width = usize::from(bytes[at]);
        at += 1;
        if count - values.len() >= 128 {
            let block = &bytes[at..at + 16 * width];
            for index in 0..128 {
                // Value `index` is the `index / 4`-th of lane `index % 4`.
                let value = (0..width).map(|bit| {
                    let (word, shift) = ((index / 4 * width + bit) / 32, (index / 4 * width + bit) % 32);
                    let byte = word * 16 + index % 4 * 4 + shift / 8;
                    u32::from(block[byte] >> (shift % 8) & 1) << bit
                });
                values.push(value.sum());
            }
            at += 16 * width;
        } else {
            let rest = count - values.len();
            for index in 0..rest {
                let value = (0..width).map(|bit| {
                    let position = index * width + bit;
                    u32::from(bytes[at + position / 8] >> (position % 8) & 1) << bit
                });
                values.push(value.sum());
            }
            at += (rest * width).div_ceil(8);
        }
    }
    (values, at)
}

fn lists() -> impl Strategy<Value = Vec<u32>> {
    (0u32..=32).prop_flat_map(|width| {
        let most = ((1u64 << width) - 1) as u32;
        prop::collection::vec(0..=most, 0..400)
    })
}

fn ascending() -> impl Strategy<Value = Vec<u32>> {
    (1u32..4_000_000, 0usize..500).prop_flat_map(|(gap, count)| {
        prop::collection::vec(0..gap, count).prop_map(|gaps| {
            gaps.iter()
                .scan(0u32, |next, gap| {
                    let value = *next + gap;
                    *next = value + 1;
                    Some(value)
                })
                .collect()
        })
    })
}

proptest! {
    #[test]
    fn lists_come_back_also_for_an_independent_reader(values in lists(), ascending in ascending()) {
        let mut bytes = Vec::new();
        pack(&values, &mut bytes);
        let first = bytes.len();
        pack_ascending(&ascending, &mut bytes);

        let (by_the_book, used) = unpack_by_the_book(&bytes, values.len());
        prop_assert_eq!(&by_the_book, &values);
        prop_assert_eq!(used, first);
        let (gaps, used) = unpack_by_the_book(&bytes[first..], ascending.len());
        prop_assert_eq!(first + used, bytes.len());
        let mut next = 0;
        for (gap, value) in gaps.iter().zip(&ascending) {
            prop_assert_eq!(next + gap, *value);
            next = value + 1;
        }

        let mut reader = Unpacker::new(&bytes);
        prop_assert_eq!(reader.unpack(values.len()).unwrap(), values);
        prop_assert_eq!(reader.unpack_ascending(ascending.len(), u32::MAX).unwrap(), ascending);
        prop_assert!(reader.end().is_ok());
    }

    #[test]
    fn damaged_bytes_are_an_error_or_other_values_but_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0usize..100_000) {
        let decoded = Unpacker::new(&bytes).unpack(count);
        prop_assert!(decoded.is_err() || decoded.is_ok_and(|values| values.len() == count));
        if let Ok(values) = Unpacker::new(&bytes).unpack_ascending(count, 1_000) {
            prop_assert!(values.len() == count && values.iter().all(|value| *value < 1_000));
        }
    }
}

#[test]
fn extreme_rows_fit() {
    let rows = [0, 1, u32::MAX - 1];
    let mut bytes = Vec::new();
    pack_ascending(&rows, &mut bytes);
    assert_eq!(Unpacker::new(&bytes).unpack_ascending(3, u32::MAX).unwrap(), rows);
    assert!(Unpacker::new(&bytes).unpack_ascending(3, u32::MAX - 1).is_err());
}

#[test]
fn a_run_of_rows_takes_one_byte_a_block() {
    let rows: Vec<u32> = (0..256).collect();
    let mut bytes = Vec::new();
    pack_ascending(&rows, &mut bytes);
    assert_eq!(bytes, [0, 0]);
}
