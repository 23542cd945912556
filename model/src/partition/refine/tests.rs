use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::partition::{Relabelling, hash_assignment, partition_graph_and_rows};
use crate::store::{PartStore, PartitionerRecord};
use crate::synth::{SynthGraph, SynthSpec};

fn shape(batch_size: u32, fanouts: &[u32]) -> BatchShape {
    BatchShape {
        batch_size,
        fanouts: fanouts.to_vec(),
    }
}

fn problem<'a>(graph: &'a SynthGraph, parts: PartId, shape: &'a BatchShape) -> Problem<'a> {
    Problem {
        graph: graph.topology(),
        train: &graph.train,
        parts,
        shape,
    }
}

fn count(owners: &[PartId], part: PartId) -> u64 {
    owners.iter().filter(|owner| **owner == part).count() as u64
}

/// The fewest remote rows over all ways to place the rows within the capacities.
fn fewest_remote_rows(demand: &Demand, owners: &[PartId], capacities: &[u64]) -> f64 {
    let parts = usize::from(demand.parts());
    let mut fewest = f64::INFINITY;
    for code in 0..parts.pow(owners.len() as u32) {
        let placed: Vec<PartId> = (0..owners.len() as u32)
            .map(|node| (code / parts.pow(node) % parts) as PartId)
            .collect();
        let fits = (0..demand.parts()).all(|part| count(&placed, part) <= capacities[usize::from(part)]);
        if fits {
            fewest = fewest.min(demand.remote_rows(&placed));
        }
    }
    fewest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_placement_of_rows_within_the_capacities_is_better(
        rows in prop::collection::vec((0u16..3, [0u8..6, 0u8..6, 0u8..6]), 1..8),
        limit in 1.0f64..1.6,
    ) {
        let owners: Vec<PartId> = rows.iter().map(|(owner, _)| *owner).collect();
        let uses = (0..3).map(|part| rows.iter().map(|(_, uses)| f64::from(uses[part])).collect()).collect();
        let demand = Demand::new(uses);
        let capacities: Vec<u64> =
            (0..3).map(|part| capacity(count(&owners, part), owners.len() as u64, 3, limit)).collect();
        let placed = place_rows(&demand, &owners, limit);
        for part in 0..3 {
            prop_assert!(count(&placed, part) <= capacities[usize::from(part)]);
        }
        prop_assert_eq!(demand.remote_rows(&placed), fewest_remote_rows(&demand, &owners, &capacities));
    }

    #[test]
    fn many_parts_with_little_room_end_within_their_capacities(
        owners in prop::collection::vec(0u16..9, 1..300),
        key: u64,
    ) {
        // Everybody wants the rows of part 0 most, so nearly all rows are too many there.
        let mut rng = crate::rng::CounterRng::new(key);
        let mut uses: Vec<Vec<f64>> = (0..9).map(|_| owners.iter().map(|_| f64::from(rng.below(100))).collect()).collect();
        uses[0].iter_mut().for_each(|uses| *uses += 60.0);
        let demand = Demand::new(uses);
        let placed = place_rows(&demand, &owners, BALANCE_LIMIT);
        for part in 0..9 {
            let most = capacity(count(&owners, part), owners.len() as u64, 9, BALANCE_LIMIT);
            prop_assert!(count(&placed, part) <= most);
        }
        prop_assert!(demand.remote_rows(&placed) <= demand.remote_rows(&owners));
        prop_assert_eq!(&placed, &place_rows(&demand, &owners, BALANCE_LIMIT));
    }
}

#[test]
fn a_row_that_nobody_needs_more_stays() {
    let demand = Demand::new(vec![vec![1.0, 0.0, 2.0], vec![1.0, 0.0, 3.0]]);
    assert_eq!(place_rows(&demand, &[0, 1, 1], 2.0), [0, 1, 1]);
    assert_eq!(place_rows(&demand, &[1, 0, 0], 2.0), [1, 0, 1]);
}

/// Loads of nodes, train seeds and edges per part.
fn loads(graph: &SynthGraph, assignment: &[PartId], parts: PartId) -> Vec<[u64; 3]> {
    let mut loads = vec![[0; 3]; usize::from(parts)];
    for (node, part) in (0..).zip(assignment) {
        let load = &mut loads[usize::from(*part)];
        load[0] += 1;
        load[1] += u64::from(graph.train.binary_search(&node).is_ok());
        load[2] += graph.topology().row(node).len() as u64;
    }
    loads
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn node_moves_keep_the_balance_and_lower_what_is_expected(
        nodes in 1u32..400,
        parts in 1u16..6,
        seed in 0u64..100,
        batch_size in 1u32..200,
        fanouts in prop::collection::vec(0u32..6, 1..4),
    ) {
        let graph = SynthSpec { seed, ..SynthSpec::tiny(nodes) }.graph().unwrap();
        let shape = shape(batch_size, &fanouts);
        let problem = problem(&graph, parts, &shape);
        let before = hash_assignment(nodes, parts, seed);
        let demand = problem.demand(&before).unwrap();
        let expected = demand.remote_rows(&before);
        let (after, demand, sweeps) = node_moves::move_nodes(&problem, &before, demand).unwrap();

        let (old, new) = (loads(&graph, &before, parts), loads(&graph, &after, parts));
        for load in 0..3 {
            let total: u64 = old.iter().map(|loads| loads[load]).sum();
            for part in 0..usize::from(parts) {
                let most = capacity(old[part][load], total, parts.into(), BALANCE_LIMIT);
                prop_assert!(new[part][load] <= most, "load {load} of part {part}: {old:?} {new:?}");
            }
        }
        let mut last = expected;
        for sweep in &sweeps {
            prop_assert!(sweep.remote_rows < last);
            last = sweep.remote_rows;
        }
        // What is returned belongs together, and was estimated anew.
        prop_assert_eq!(&demand, &problem.demand(&after).unwrap());
        prop_assert_eq!(demand.remote_rows(&after), last);
        prop_assert_eq!(after == before, sweeps.is_empty());
    }
}

#[test]
fn the_win_of_a_node_that_is_no_seed_is_the_change_of_the_objective() {
    let graph = SynthSpec::tiny(300).graph().unwrap();
    let shape = shape(20, &[4, 3]);
    let problem = problem(&graph, 3, &shape);
    let before = hash_assignment(300, 3, 1);
    let demand = problem.demand(&before).unwrap();
    let expected = demand.remote_rows(&before);
    let mut found = 0;
    for candidate in node_moves::wins(&problem, &before, &demand) {
        if graph.train.binary_search(&candidate.node).is_ok() {
            continue;
        }
        let mut after = before.clone();
        after[candidate.node as usize] = candidate.to;
        let new_demand = problem.demand(&after).unwrap();
        assert_eq!(new_demand, demand, "who is no seed changes no demand");
        let win = expected - new_demand.remote_rows(&after);
        assert!(
            (win - candidate.win).abs() < 1e-9 * expected,
            "{candidate:?} wins {win}"
        );
        found += 1;
    }
    assert!(found > 20, "{found}");
}

#[test]
fn the_win_of_seeds_is_near_the_change_of_the_objective() {
    let spec = SynthSpec {
        edges: 6_000,
        ..SynthSpec::tiny(2_000)
    };
    let graph = spec.graph().unwrap();
    let shape = shape(50, &[4, 3]);
    let problem = problem(&graph, 2, &shape);
    let before = hash_assignment(2_000, 2, 1);
    let demand = problem.demand(&before).unwrap();
    let expected = demand.remote_rows(&before);
    let mut wins = node_moves::wins(&problem, &before, &demand);
    wins.retain(|candidate| graph.train.binary_search(&candidate.node).is_ok());
    wins.sort_by(|one, other| other.win.total_cmp(&one.win));
    let best = |to: PartId| wins.iter().filter(move |candidate| candidate.to == to).take(20);
    // In pairs, so that the number of batches, which the estimate takes as given, stays what it is.
    let (mut estimated, mut real) = (0.0, 0.0);
    for (one, other) in best(0).zip(best(1)) {
        let mut after = before.clone();
        after[one.node as usize] = one.to;
        after[other.node as usize] = other.to;
        let win = expected - problem.demand(&after).unwrap().remote_rows(&after);
        assert!(win > 0.0, "{one:?} and {other:?} win {win}");
        estimated += one.win + other.win;
        real += win;
    }
    // The estimate counts rows twice that two ways lead to, most of all for the part that does not own them.
    assert!((estimated / real - 1.0).abs() < 0.35, "{estimated} for {real}");
}

#[test]
fn the_ways_back_to_a_seed_are_counted() {
    // An edge 0 - 1 in both directions, and an edge by which 2 names 0.
    let graph = Topology {
        first: 0,
        offsets: &[0, 1, 2, 3],
        neighbors: &[1, 0, 0],
    };
    let returns = |fanouts: &[u32], seed| {
        let shape = shape(1, fanouts);
        let problem = Problem {
            graph,
            train: &[],
            parts: 1,
            shape: &shape,
        };
        node_moves::expected_returns(&problem, seed)
    };
    assert_eq!(returns(&[1], 0), 0.0, "one hop leads away only");
    assert_eq!(returns(&[1, 1], 0), 1.0);
    assert_eq!(returns(&[1, 0, 1, 1], 1), 1.0, "once there, it stays in the batch");
    assert_eq!(returns(&[1, 1], 2), 0.0, "0 does not name 2");
}

#[test]
fn what_is_expected_is_what_the_sampler_draws() {
    let graph = SynthSpec::tiny(2_000).graph().unwrap();
    let shape = shape(100, &[5, 3]);
    let problem = problem(&graph, 4, &shape);
    let assignment = hash_assignment(2_000, 4, 1);
    let expected = problem.demand(&assignment).unwrap().remote_rows(&assignment);
    let counted = presampled_rows(&problem, &assignment, &[&assignment], 1).unwrap()[0] as f64;
    assert!((expected / counted - 1.0).abs() < 0.05, "{expected} for {counted}");
    // Counts of the same epochs are nearer to each other than the estimate is to them, and add up.
    let mean = presampled_demand(&problem, &assignment, 1, 0..8).unwrap();
    let counted_again = mean.remote_rows(&assignment);
    assert!(
        (counted_again / counted - 1.0).abs() < 0.02,
        "{counted_again} for {counted}"
    );
    let seeds: f64 = graph
        .train
        .iter()
        .map(|node| mean.uses(assignment[*node as usize], *node))
        .sum();
    assert!(seeds >= graph.train.len() as f64, "every seed is used once an epoch");
}

fn refined(graph: &GraphStore, moves: Moves, presampled_epochs: u32) -> Refined {
    let assignment = hash_assignment(graph.manifest().nodes, 4, 1);
    let spec = RefineSpec {
        moves,
        shape: shape(100, &[5, 3]),
        seed: 1,
        presampled_epochs,
    };
    refine(graph, &assignment, 4, &spec).unwrap()
}

fn graph_store(folder: &Path) -> GraphStore {
    SynthSpec::tiny(2_000).write(&folder.join("graph")).unwrap();
    GraphStore::open(&folder.join("graph")).unwrap()
}

#[test]
fn refinement_is_the_same_at_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let graph = graph_store(folder.path());
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| refined(&graph, Moves::Both, 1))
    };
    let one = with_threads(1);
    assert!(one == with_threads(3), "one and three threads");
    assert!(
        one.record.moved_nodes > 0 && one.record.moved_rows > 0,
        "{:?}",
        one.record
    );
}

#[test]
fn every_kind_of_moves_lowers_what_is_expected_and_what_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let graph = graph_store(folder.path());
    let before = hash_assignment(2_000, 4, 1);
    for moves in [Moves::Rows, Moves::Seeds, Moves::Both] {
        let Refined {
            assignment,
            row_owners,
            record,
        } = refined(&graph, moves, 0);
        assert!(record.expected_rows_after < record.expected_rows_before, "{record:?}");
        assert!(
            record.presampled_rows_after < record.presampled_rows_before,
            "{record:?}"
        );
        assert_eq!(row_owners.is_some(), moves != Moves::Seeds);
        assert_eq!(assignment == before, moves == Moves::Rows);
        assert_eq!(record.moved_nodes == 0, moves == Moves::Rows);
        let owners = row_owners.unwrap_or(assignment);
        for part in 0..4 {
            let most = capacity(count(&before, part), 2_000, 4, BALANCE_LIMIT);
            assert!(count(&owners, part) <= most, "part {part}: {record:?}");
        }
    }
}

#[test]
fn what_cannot_be_refined_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let graph = graph_store(folder.path());
    let spec = |shape| RefineSpec {
        moves: Moves::Rows,
        shape,
        seed: 1,
        presampled_epochs: 0,
    };
    let assignment = vec![0; 2_000];
    let refuse = |assignment: &[PartId], shape| refine(&graph, assignment, 2, &spec(shape)).unwrap_err().to_string();
    assert!(refuse(&assignment, shape(0, &[2])).contains("batch size"));
    assert!(refuse(&assignment, shape(10, &[])).contains("at least one fanout"));
    assert!(
        refuse(&assignment[1..], shape(10, &[2])).contains("1999"),
        "an assignment of another graph"
    );
    assert!(
        refuse(&vec![2; 2_000], shape(10, &[2])).contains("2 parts"),
        "a part that there is not"
    );
}

#[test]
fn a_folder_with_moved_rows_holds_every_row_where_its_map_says() {
    let folder = tempfile::tempdir().unwrap();
    let graph = graph_store(folder.path());
    let assignment = hash_assignment(2_000, 4, 1);
    let owners = refined(&graph, Moves::Rows, 0).row_owners.unwrap();
    let out = folder.path().join("parts");
    let record = PartitionerRecord::default();
    let manifest = partition_graph_and_rows(&graph, &assignment, &owners, 4, record.clone(), &out).unwrap();
    let plain_out = folder.path().join("plain");
    let plain = crate::partition::partition_graph(&graph, &assignment, 4, record, &plain_out).unwrap();
    assert_eq!((&manifest.book, &manifest.parts), (&plain.book, &plain.parts));
    assert_ne!(manifest.graph_hash, plain.graph_hash);

    let rows = crate::rows::RowBook::open(&out, &manifest).unwrap();
    let stores: Vec<PartStore> = (0..4).map(|part| PartStore::open(&out, part).unwrap()).collect();
    let relabelling = Relabelling::new(&assignment, 4).unwrap();
    for (global, original) in (0..).zip(&relabelling.original) {
        let home = rows.home(global);
        assert_eq!(home.owner, owners[*original as usize]);
        let store = &stores[usize::from(home.owner)];
        assert_eq!(store.feature_row(home.row), graph.feature_row(*original));
    }
    for store in &stores {
        store.verify().unwrap();
        assert_eq!(u64::from(store.feature_rows()), count(&owners, store.part()));
        let plain = PartStore::open(&plain_out, store.part()).unwrap();
        assert_eq!(store.labels(), plain.labels());
        assert_eq!(store.topology().neighbors, plain.topology().neighbors);
    }
}
