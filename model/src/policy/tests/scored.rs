//! Static policies by score, and the bound that holds for every policy.

use super::*;
use crate::policy::bound::RunUses;
use crate::policy::conformance::check_scored;
use crate::policy::scored::StaticByScore;
use crate::policy::scores::{degree_scores, out_degrees, presample_counts};
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
fn scores_that_are_missing_are_refused() {
    let drawn = Drawn::new(PartitionBook::new(vec![0, 1, 3]).unwrap(), 0, 1, 1, Vec::new());
    let policy = StaticByScore { kind: ScoreKind::Vip };
    let fill = |scores: Option<&[f64]>| {
        policy.fill_scored(FillInput {
            book: &drawn.case.book,
            rank: 0,
            budget_rows: 1,
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
