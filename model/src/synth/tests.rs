use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn neighbor_pairs(graph: &SynthGraph) -> BTreeSet<(NodeId, NodeId)> {
    let topology = graph.topology();
    (0..topology.rows())
        .flat_map(|node| topology.row(node).iter().map(move |other| (node, *other)))
        .collect()
}

#[test]
fn small_is_like_the_graph_that_it_stands_for() {
    let spec = SynthSpec::preset("small", 1).unwrap();
    let graph = spec.graph().unwrap();
    let statistics = graph.statistics();
    // The generator that the presets come from: mean 100, median 59, 99th percentile 718, largest 3001, same label 0.62.
    assert_eq!(statistics.mean_degree, 100.0);
    assert!((53..=65).contains(&statistics.median_degree), "{statistics:?}");
    assert!((600..=850).contains(&statistics.p99_degree), "{statistics:?}");
    assert!((2_000..=4_500).contains(&statistics.largest_degree), "{statistics:?}");
    assert!((statistics.same_label_edges - 0.62).abs() < 0.06, "{statistics:?}");
    assert_eq!(
        [graph.train.len(), graph.valid.len(), graph.test.len()],
        [13_200, 2_000, 4_800]
    );
    let classes: BTreeSet<i64> = graph.labels.iter().copied().collect();
    assert!(classes.into_iter().eq(0..16));
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let spec = SynthSpec {
        edges: 30_000,
        ..SynthSpec::tiny(3_000)
    };
    let folder = tempfile::tempdir().unwrap();
    let written = [1, 3].map(|threads| {
        let out = folder.path().join(format!("threads-{threads}"));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| spec.write(&out)).unwrap()
    });
    assert_eq!(written[0], written[1], "sizes and checksums of all files are equal");
    let other = SynthSpec { seed: 2, ..spec }
        .write(&folder.path().join("other"))
        .unwrap();
    assert_ne!(written[0].files, other.files);
}

#[test]
fn what_is_written_is_what_was_made() {
    let spec = SynthSpec::tiny(500);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graph");
    let manifest = spec.write(&out).unwrap();
    let graph = spec.graph().unwrap();
    let store = GraphStore::open(&out).unwrap();
    store.verify().unwrap();
    assert_eq!(store.manifest(), &manifest);
    assert_eq!(store.topology().offsets, graph.offsets);
    assert_eq!(store.topology().neighbors, graph.neighbors);
    assert_eq!(store.labels(), graph.labels);
    for purpose in [Purpose::Train, Purpose::Valid, Purpose::Test] {
        assert_eq!(store.split(purpose), graph.split(purpose));
    }
    assert_eq!(store.features(), spec.feature_rows(&graph.labels));
}

#[test]
fn features_are_told_apart_by_class_in_the_mean() {
    let spec = SynthSpec {
        features: 16,
        ..SynthSpec::tiny(4_000)
    };
    let labels = spec.graph().unwrap().labels;
    let values = spec.feature_rows(&labels);
    let mut means = vec![[0.0f64; 16]; 4];
    let mut counts = [0.0f64; 4];
    for (row, label) in values.chunks_exact(16).zip(&labels) {
        counts[*label as usize] += 1.0;
        for (mean, value) in means[*label as usize].iter_mut().zip(row) {
            *mean += f64::from(*value);
        }
    }
    for (mean, count) in means.iter_mut().zip(counts) {
        mean.iter_mut().for_each(|value| *value /= count);
    }
    let distance = (0..16)
        .map(|column| (means[0][column] - means[1][column]).powi(2))
        .sum::<f64>();
    // Two independent centroids of 16 standard normal values are 32 apart in expectation; noise adds 16 * 2 / 1000.
    assert!(distance > 8.0, "squared distance {distance}");
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |spec: SynthSpec| match spec.graph() {
        Err(SynthError::BadSpec { what }) => what,
        other => panic!("{other:?}"),
    };
    assert!(
        refused(SynthSpec {
            nodes: 0,
            ..SynthSpec::tiny(1)
        })
        .contains("0 nodes")
    );
    assert!(
        refused(SynthSpec {
            edges: 11,
            ..SynthSpec::tiny(5)
        })
        .contains("11 edges")
    );
    assert!(
        refused(SynthSpec {
            classes: 0,
            ..SynthSpec::tiny(5)
        })
        .contains("0 classes")
    );
    assert!(
        refused(SynthSpec {
            train: 0.9,
            ..SynthSpec::tiny(5)
        })
        .contains("splits")
    );
    assert!(
        refused(SynthSpec {
            exponent: 1.0,
            ..SynthSpec::tiny(5)
        })
        .contains("exponent")
    );
    assert!(matches!(
        SynthSpec::preset("huge", 1),
        Err(SynthError::UnknownPreset { name }) if name == "huge"
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn graphs_are_simple_symmetric_and_of_the_size_that_was_asked_for(
        nodes in 1u32..120,
        density in 0.0f64..0.5,
        classes in 1u16..6,
        seed: u64,
    ) {
        let pairs = u64::from(nodes) * u64::from(nodes - 1) / 2;
        let spec = SynthSpec {
            edges: (pairs as f64 * density) as u64,
            classes,
            seed,
            ..SynthSpec::tiny(nodes)
        };
        let graph = spec.graph().unwrap();
        let pairs = neighbor_pairs(&graph);
        prop_assert_eq!(pairs.len() as u64, 2 * spec.edges, "no edge twice");
        prop_assert_eq!(graph.neighbors.len(), pairs.len());
        for (one, other) in &pairs {
            prop_assert!(one != other, "no self-loop");
            prop_assert!(pairs.contains(&(*other, *one)), "both directions");
        }
        for node in 0..nodes {
            prop_assert!(graph.topology().row(node).is_sorted());
        }
        let mut split: Vec<NodeId> = [&graph.train[..], &graph.valid, &graph.test].concat();
        split.sort_unstable();
        prop_assert!(split.into_iter().eq(0..nodes), "every node is in one split");
        prop_assert!(graph.labels.iter().all(|label| (0..i64::from(classes)).contains(label)));
    }
}
