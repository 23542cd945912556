use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn a_scratch_takes_rows_of_any_number_and_keeps_no_more_than_one_answer() {
    let mut scratch = Scratch::new(8);
    for _ in 0..3 {
        scratch.accept(0, &[1; 4]);
        scratch.accept(1, &[2; 4]);
        assert_eq!(scratch.bytes, [1, 1, 1, 1, 2, 2, 2, 2]);
    }
}

proptest! {
    #[test]
    fn rows_that_are_asked_for_ascend_and_are_the_owners(key: u64, of in 1u32..5000, count in 1u32..6000) {
        let rows = sorted_sample(key, of, count);
        prop_assert_eq!(rows.len() as u32, count.min(of));
        prop_assert!(rows.is_sorted_by(|a, b| a < b));
        prop_assert!(rows.iter().all(|row| *row < of));
        prop_assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
    }
}
