use proptest::prelude::*;

use super::*;
use crate::book::PartitionBook;

/// Frequencies that fall; small whole numbers, so that sums are exact and ties are frequent.
fn falling(rows: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0..6u8, 0..=rows).prop_map(|mut rows| {
        rows.sort_unstable_by(|one, other| other.cmp(one));
        rows.into_iter().map(f64::from).collect()
    })
}

/// What `k` remote rows on the device save, from the definition.
fn saved(remote: &[f64], local: &[f64], sizes: Sizes, network_cost: f64, k: u32) -> f64 {
    let sum = |rows: &[f64], count: u32| rows.iter().take(count as usize).sum::<f64>();
    sum(remote, k) + network_cost * sum(remote, k + sizes.host_rows) + sum(local, sizes.device_rows - k)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_other_split_saves_more(
        remote in falling(14),
        local in falling(14),
        device_rows in 0..18u32,
        host_rows in 0..18u32,
        network_cost in 0..5u8,
    ) {
        let sizes = Sizes { device_rows, host_rows };
        let network_cost = f64::from(network_cost);
        let found = remote_on_device(&remote, &local, sizes, network_cost);
        let most = device_rows.min(remote.len() as u32);
        prop_assert!(found <= most);
        let saved = |k| saved(&remote, &local, sizes, network_cost, k);
        for k in 0..=most {
            // The largest of the best.
            prop_assert!(if k > found { saved(k) < saved(found) } else { saved(k) <= saved(found) }, "{found}, not {k}");
        }
    }
}

#[test]
fn extreme_sizes_need_no_more_than_what_is_there() {
    let most = Sizes {
        device_rows: u32::MAX,
        host_rows: u32::MAX,
    };
    assert_eq!(remote_on_device(&[3.0, 1.0], &[2.0], most, 10.0), 2);
    assert_eq!(remote_on_device(&[], &[2.0], most, 10.0), 0);
    let none = Sizes {
        device_rows: 0,
        host_rows: 5,
    };
    assert_eq!(remote_on_device(&[3.0], &[2.0], none, 10.0), 0);
}

fn fill(scores: &[f64], budget_rows: u32, device_rows: u32) -> Fill {
    // Rank 1 owns the nodes 2 to 4.
    let book = PartitionBook::new(vec![0, 2, 5, 8]).unwrap();
    let input = FillInput {
        book: &book,
        rank: 1,
        budget_rows,
        device_rows,
        scores: Some(scores),
    };
    let policy = TwoLevel {
        network_cost: 1.0,
        ..TwoLevel::default()
    };
    policy.fill_scored(input).unwrap()
}

#[test]
fn the_most_frequent_rows_of_both_kinds_share_the_device() {
    // Remote: node 6 with 9, 0 with 5, 7 with 2, 1 and 5 with 1. Own: node 3 with 8, 4 with 7, 2 with nothing.
    let scores = [5.0, 1.0, 0.0, 8.0, 7.0, 1.0, 9.0, 2.0];
    let fill = fill(&scores, 5, 3);
    // A second remote row would gain 5 for node 0 and 1 for node 1, which then fits the host, and lose node 4 with 7.
    let device = DeviceRows {
        slots: 1,
        own: vec![1, 2],
    };
    assert_eq!(fill.device, device);
    let slot_of = |owner, row| {
        let held = fill
            .state
            .held
            .iter()
            .find(|held| (held.owner, held.row) == (owner, row));
        held.map(|held| held.slot)
    };
    assert_eq!(slot_of(2, 1), Some(0), "node 6 is in the device's slot");
    assert_eq!((slot_of(0, 0), slot_of(2, 2)), (Some(1), Some(2)));
    assert_eq!(fill.state.held.len(), 3);
    let asked: Vec<_> = fill
        .requests
        .iter()
        .map(|request| (request.owner, request.rows.clone()))
        .collect();
    assert_eq!(asked, [(0, vec![0]), (2, vec![1, 2])]);
}

#[test]
fn an_own_row_that_nobody_needs_is_not_put_on_the_device() {
    let fill = fill(&[1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0], 8, 8);
    assert_eq!(fill.device.own, [2]);
    assert_eq!((fill.device.slots, fill.state.held.len()), (5, 5));
}
