//! Static policies by score, and the bound that holds for every policy.

use super::*;
use crate::plan::{HeldRow, Level};
use crate::policy::bound::RunUses;
use crate::policy::conformance::{check_levels, check_scored};
use crate::policy::scored::StaticByScore;
use crate::policy::scores::{corrected, count_batch, degree_scores, out_degrees, presample_counts};
use crate::policy::two_level::TwoLevel;
use crate::sampling::Topology;

const KINDS: [ScoreKind; 3] = [ScoreKind::Degree, ScoreKind::Presample { epochs: 2 }, ScoreKind::Vip];

fn run_scored(policy: &dyn Policy, drawn: &Drawn, scores: &[f64]) -> RunTally {
    check_scored(policy, &drawn.case, Some(scores)).unwrap()
}

/// A case and scores, among them equal ones, for more nodes than it has.
fn with_scores() -> impl Strategy<Value = (Drawn, Vec<f64>)> {
    let score = (-2..=5i8).prop_map(|score| f64::from(score) / 4.0);
    (drawn(12, 9, 3), prop::collection::vec(score, 20)).prop_map(|(drawn, mut scores)| {
        scores.truncate(drawn.case.book.nodes() as usize);
        (drawn, scores)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_scored_policy_holds_the_best_rows_and_asks_for_the_others((drawn, scores) in with_scores()) {
        let case = &drawn.case;
        let own = case.book.range(case.rank);
        let mut best: Vec<NodeId> = (0..case.book.nodes()).filter(|node| !own.contains(node)).collect();
        best.sort_by(|one, other| scores[*other as usize].total_cmp(&scores[*one as usize]).then(one.cmp(other)));
        best.truncate(case.asked_rows as usize);
        for kind in KINDS {
            let tally = run_scored(&StaticByScore { kind }, &drawn, &scores);
            prop_assert_eq!(tally.setup.feature_rows, best.len() as u64);
            prop_assert_eq!(tally.setup.feature_requests, drawn.owners(&best).len() as u64);
            for (epoch, steps) in tally.epochs.iter().zip(drawn.planned()) {
                let misses: Vec<Vec<NodeId>> = steps
                    .iter()
                    .map(|(_, nodes)| nodes.iter().filter(|node| !best.contains(node)).copied().collect())
                    .collect();
                let rows: usize = misses.iter().map(Vec::len).sum();
                let requests: usize = misses.iter().map(|nodes| drawn.owners(nodes).len()).sum();
                prop_assert_eq!((epoch.feature_rows(), epoch.feature_requests()), (rows as u64, requests as u64));
            }
        }
    }

    #[test]
    fn levels_change_where_the_best_rows_are_and_no_row_that_moves(
        (drawn, scores) in with_scores(),
        device_rows in 0..14u32,
    ) {
        for kind in KINDS {
            let policy = StaticByScore { kind };
            let both = check_levels(&policy, &drawn.case, Some(&scores), Some(device_rows)).unwrap();
            prop_assert_eq!(&both, &run_scored(&policy, &drawn, &scores));
            let budget_rows = policy.budget_rows(&drawn.case.book, drawn.case.rank, drawn.case.asked_rows);
            let fill = policy.fill_scored(FillInput {
                book: &drawn.case.book,
                rank: drawn.case.rank,
                budget_rows,
                device_rows: policy.device_rows(budget_rows, Some(device_rows)),
                scores: Some(&scores),
            }).unwrap();
            prop_assert_eq!(fill.device.slots, device_rows.min(budget_rows));
            // The device has the first of the ranking: no row on the host is better than one of it.
            let node = |held: &HeldRow| drawn.case.book.range(held.owner).start + held.row;
            let rank_of = |held: &HeldRow| (-scores[node(held) as usize], node(held));
            let (device, host): (Vec<HeldRow>, Vec<HeldRow>) =
                fill.state.held.iter().partition(|held| fill.device.level(held.slot) == Level::Device);
            let better = device.iter().all(|one| host.iter().all(|other| rank_of(one) < rank_of(other)));
            prop_assert!(better, "{:?} {:?}", device, host);
        }
    }

    #[test]
    fn two_levels_hold_the_best_remote_rows_within_the_budget(
        (drawn, scores) in with_scores(),
        device_rows in prop::option::of(0..14u32),
        network_cost in 0..4u8,
    ) {
        let policy = TwoLevel { network_cost: f64::from(network_cost), ..TwoLevel::default() };
        let scores: Vec<f64> = scores.iter().map(|score| score.max(0.0)).collect();
        let tally = check_levels(&policy, &drawn.case, Some(&scores), device_rows).unwrap();
        // Whatever the device takes for own rows, what is held is a prefix of the ranking.
        let held = tally.setup.feature_rows as u32;
        let case = Case { asked_rows: held, ..drawn.case.clone() };
        let plain = check_scored(&StaticByScore { kind: ScoreKind::Vip }, &case, Some(&scores)).unwrap();
        prop_assert_eq!(plain.epochs, tally.epochs);
        prop_assert!(held <= tally.budget_rows);
        if device_rows == Some(0) {
            prop_assert_eq!(held, tally.budget_rows);
        }
    }

    #[test]
    fn no_policy_moves_fewer_rows_than_the_bound((drawn, scores) in with_scores(), share in 0..=100u32, lead in any::<bool>()) {
        let case = &drawn.case;
        let uses = RunUses::new(case.epochs.iter().map(|trace| &**trace), case.from_step, &case.book, case.rank).unwrap();
        let mut policies: Vec<Arc<dyn Policy>> = POLICY_NAMES.iter().map(|name| policy_by_name(name).unwrap()).collect();
        policies.push(Arc::new(bulk(share, lead)));
        policies.push(Arc::new(searching(share)));
        policies.extend(KINDS.map(|kind| Arc::new(StaticByScore { kind }) as Arc<dyn Policy>));
        for policy in policies {
            let tally = run_scored(&*policy, &drawn, &scores);
            prop_assert!(tally.feature_rows() >= uses.fewest_rows(tally.budget_rows), "{}", policy.name());
            prop_assert!(tally.feature_rows() >= uses.compulsory_rows(), "{}", policy.name());
        }
    }

    #[test]
    fn presample_counts_are_the_batches_that_need_a_row(drawn in drawn(12, 9, 3)) {
        let case = &drawn.case;
        let counts = presample_counts(case.epochs.iter().map(|trace| &**trace), &case.book, case.rank).unwrap();
        let mut expected = vec![0.0; case.book.nodes() as usize];
        let uses = drawn.epochs.iter().flatten().flat_map(|(_, nodes)| nodes);
        uses.for_each(|node| expected[*node as usize] += 1.0);
        prop_assert_eq!(counts, expected);
    }
}

#[test]
fn counts_of_own_rows_and_an_estimate_make_a_corrected_score() {
    let mut counts = vec![0.0; 4];
    count_batch(&[3, 0], &mut counts);
    count_batch(&[3, 9], &mut counts);
    assert_eq!(counts, [1.0, 0.0, 0.0, 2.0]);
    // Of 10 batches an epoch, with counts of 2 epochs.
    let estimate = [0.5, 0.25, 0.0, 1.0];
    assert_eq!(corrected(&estimate, 10, &counts, 2, 1.0), [5.0, 2.5, 0.0, 10.0]);
    assert_eq!(corrected(&estimate, 10, &counts, 2, 0.0), [0.5, 0.0, 0.0, 1.0]);
    assert_eq!(corrected(&estimate, 10, &counts, 2, 0.5), [2.75, 1.25, 0.0, 5.5]);
}

#[test]
fn scores_that_are_missing_are_refused() {
    let drawn = Drawn::new(PartitionBook::new(vec![0, 1, 3]).unwrap(), 0, 1, 1, Vec::new());
    let policy = StaticByScore { kind: ScoreKind::Vip };
    let fill = |scores: Option<&[f64]>| {
        policy.fill_scored(FillInput {
            book: &drawn.case.book,
            rank: 0,
            budget_rows: 1,
            device_rows: 0,
            scores,
        })
    };
    assert_eq!(fill(None), Err(FillError::NoScores { policy: "vip" }));
    let count = FillError::ScoreCount {
        policy: "vip",
        scores: 2,
        nodes: 3,
    };
    assert_eq!(fill(Some(&[1.0; 2])), Err(count));
    let not_a_number = FillError::NotANumber { policy: "vip", node: 2 };
    assert_eq!(fill(Some(&[1.0, 1.0, f64::NAN])), Err(not_a_number));
    let held = fill(Some(&[9.0, 1.0, 2.0])).unwrap().state.held;
    assert_eq!(
        held.iter().map(|row| (row.owner, row.row)).collect::<Vec<_>>(),
        [(1, 1)]
    );
}

#[test]
fn degrees_are_those_of_neighbour_lists_and_add_up_over_parts() {
    // Node 0 lists 1 and 1, node 1 nobody, node 2 lists 0 and 1.
    let (offsets, neighbors) = ([0, 2, 2, 4], [1, 1, 0, 1]);
    let part = |first: u32, end: u32| Topology {
        first,
        offsets: &offsets[first as usize..=end as usize],
        neighbors: &neighbors,
    };
    let whole = out_degrees([part(0, 3)], 3).unwrap();
    assert_eq!(whole, [1, 3, 0]);
    let parts = [part(0, 1), part(1, 3)].map(|part| out_degrees([part], 3).unwrap());
    let sum: Vec<u32> = parts[0].iter().zip(&parts[1]).map(|(one, other)| one + other).collect();
    assert_eq!(sum, whole);
    assert_eq!(degree_scores(&whole), [1.0, 3.0, 0.0]);
    let unknown = out_degrees([part(0, 3)], 1).unwrap_err();
    assert_eq!((unknown.node, unknown.neighbor), (0, 1));
}
