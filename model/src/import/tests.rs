use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::*;
use crate::npy::{ArrayWriter, Dtype, Element, Header};
use crate::rng::Purpose;
use crate::store::GraphStore;

mod refusals;

/// A data set in a temporary folder: six nodes, edges 0-1, 1-2, 2-0 (given as 0-2) and 3-4; node 5 is isolated.
struct DataSet {
    folder: tempfile::TempDir,
}

/// The members of an archive, without `.npy`.
type Members = BTreeMap<&'static str, Vec<u8>>;

const EDGES: [(u32, u32); 4] = [(0, 1), (1, 2), (0, 2), (3, 4)];

impl DataSet {
    fn new() -> Self {
        let data = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir_all(data.path("split")).unwrap();
        data.text("edges.csv", "0,1\n1,2\n0,2\n3,4\n");
        data.array(
            "node-feat.npy",
            &[6, 2],
            &[0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5],
        );
        data.array("node-label.npy", &[6], &[0i64, 1, 2, 0, -1, 1]);
        data.array("split/train.npy", &[2], &[3i64, 0]);
        data.array("split/valid.npy", &[1], &[1i64]);
        data.array("split/test.npy", &[1], &[2i64]);
        data
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("data").join(name)
    }

    fn text(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Replaces or adds an array.
    fn array<T: Element>(&self, name: &str, shape: &[usize], values: &[T]) {
        let path = self.path(name);
        if path.exists() {
            std::fs::remove_file(&path).unwrap();
        }
        let mut writer = ArrayWriter::create(&path, shape).unwrap();
        writer.write(values).unwrap();
        writer.finish().unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    /// Replaces dense features by an archive of these members.
    fn archive(&self, members: &Members, method: CompressionMethod) {
        if self.path("node-feat.npy").exists() {
            self.remove("node-feat.npy");
        }
        let file = std::fs::File::create(self.path("node-feat-csr.npz")).unwrap();
        let mut writer = ZipWriter::new(file);
        for (name, bytes) in members {
            let options = SimpleFileOptions::default().compression_method(method);
            writer.start_file(format!("{name}.npy"), options).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap();
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("graph")
    }

    fn import(&self, options: &ImportOptions) -> Result<GraphStore, ImportError> {
        if self.out().exists() {
            std::fs::remove_dir_all(self.out()).unwrap();
        }
        let manifest = import_folder(&self.path(""), options, &self.out())?;
        let graph = GraphStore::open(&self.out()).unwrap();
        graph.verify().unwrap();
        assert_eq!(graph.manifest(), &manifest);
        Ok(graph)
    }

    /// The message of a refused import, after making sure that nothing was left behind.
    fn refusal(&self, options: &ImportOptions) -> String {
        let error = self.import(options).unwrap_err();
        let left: Vec<_> = std::fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["data"], "after '{error}'");
        error.to_string()
    }
}

/// Bytes of a `.npy` member.
fn member<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = Header::new(T::DTYPE, &[values.len()]).encode();
    bytes.extend_from_slice(bytemuck::cast_slice(values));
    bytes
}

/// The member `format` as SciPy writes it.
fn format_member(format: &str) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00v\x00".to_vec();
    let text = format!(
        "{{'descr': '|S{}', 'fortran_order': False, 'shape': (), }}",
        format.len()
    );
    bytes.extend_from_slice(format!("{text:117}\n").as_bytes());
    bytes.extend_from_slice(format.as_bytes());
    bytes
}

/// The features of [`DataSet::new`] as a sparse matrix: row 0 has no entry in its first column.
fn sparse_members() -> Members {
    let values: Vec<f64> = (1..12).map(|index| f64::from(index) * 0.5).collect();
    BTreeMap::from([
        ("format", format_member("csr")),
        ("shape", member(&[6i64, 2])),
        ("indptr", member(&[0i32, 1, 3, 5, 7, 9, 11])),
        ("indices", member(&[1i32, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])),
        ("data", member(&values)),
    ])
}

fn rows(graph: &GraphStore) -> Vec<Vec<u32>> {
    let topology = graph.topology();
    (0..topology.rows()).map(|row| topology.row(row).to_vec()).collect()
}

#[test]
fn a_small_data_set_becomes_a_graph() {
    let data = DataSet::new();
    let graph = data.import(&ImportOptions::default()).unwrap();
    assert_eq!(
        rows(&graph),
        [vec![1, 2], vec![0, 2], vec![0, 1], vec![4], vec![3], vec![]]
    );
    assert_eq!(graph.feature_row(5), [5.0, 5.5]);
    assert_eq!(graph.labels(), [0, 1, 2, 0, -1, 1]);
    assert_eq!(graph.split(Purpose::Train), [0, 3]);
    assert_eq!(graph.split(Purpose::Valid), [1]);
    assert_eq!(graph.split(Purpose::Test), [2]);
    let manifest = graph.manifest();
    assert_eq!((manifest.nodes, manifest.edges, manifest.features), (6, 8, 2));
    assert_eq!((manifest.classes, manifest.labelled, manifest.directed), (3, 5, false));
    let record = ImportRecord::of(manifest).unwrap();
    assert_eq!((record.edges_given, record.isolated), (4, 1));
    assert_eq!((record.self_loops, record.duplicates), (0, 0));
    assert_eq!((record.train, record.valid, record.test), (2, 1, 1));
    assert_eq!(record.features.svd, None);
}

#[test]
fn every_form_of_the_edges_gives_the_same_graph() {
    let expected = rows(&DataSet::new().import(&ImportOptions::default()).unwrap());
    let texts = [
        "source,target\n0,1\n1,2\n0,2\n3,4\n",
        "# from\tto\n0\t1\n1\t2\n\n0\t2\n# more\n3\t4",
        "0 1\r\n1  2\r\n 0 2 \r\n3 4\r\n",
        "0, 1\n1, 2\n0, 2\n3, 4\n",
    ];
    for text in texts {
        let data = DataSet::new();
        data.text("edges.csv", text);
        assert_eq!(
            rows(&data.import(&ImportOptions::default()).unwrap()),
            expected,
            "{text}"
        );
    }

    // Two gzip members, one behind the other, as parallel compressors write them.
    let data = DataSet::new();
    data.remove("edges.csv");
    let mut packed = Vec::new();
    for text in ["0,1\n1,", "2\n0,2\n3,4\n"] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        packed.extend(encoder.finish().unwrap());
    }
    std::fs::write(data.path("edges.csv.gz"), packed).unwrap();
    assert_eq!(rows(&data.import(&ImportOptions::default()).unwrap()), expected);

    let flat: Vec<u32> = EDGES
        .iter()
        .map(|edge| edge.0)
        .chain(EDGES.iter().map(|edge| edge.1))
        .collect();
    let forms: [&dyn Fn(&DataSet); 4] = [
        &|data| data.array("edge_index.npy", &[2, 4], &flat),
        &|data| {
            data.array(
                "edge_index.npy",
                &[2, 4],
                &flat.iter().map(|id| i64::from(*id)).collect::<Vec<_>>(),
            )
        },
        &|data| {
            data.array(
                "edge_index.npy",
                &[2, 4],
                &flat.iter().map(|id| f64::from(*id)).collect::<Vec<_>>(),
            )
        },
        &|data| {
            data.array("indptr.npy", &[7], &[0i32, 2, 3, 3, 4, 4, 4]);
            data.array("indices.npy", &[4], &[1i32, 2, 2, 4]);
        },
    ];
    for form in forms {
        let data = DataSet::new();
        data.remove("edges.csv");
        form(&data);
        assert_eq!(rows(&data.import(&ImportOptions::default()).unwrap()), expected);
    }
}

#[test]
fn a_directed_edge_makes_its_source_an_in_neighbour() {
    let data = DataSet::new();
    let options = ImportOptions {
        directed: true,
        ..ImportOptions::default()
    };
    let graph = data.import(&options).unwrap();
    assert_eq!(rows(&graph), [vec![], vec![0], vec![0, 1], vec![], vec![3], vec![]]);
    assert!(graph.manifest().directed);
    // Nodes 0 and 3 have no in-edge, but they are not isolated.
    assert_eq!(ImportRecord::of(graph.manifest()).unwrap().isolated, 1);
}

#[test]
fn self_loops_and_duplicates_are_kept_or_dropped_and_counted() {
    use Treatment::{Drop, Keep};
    let data = DataSet::new();
    // 0-1 three times, once the other way round; a self-loop of 2 twice, one of 5, which stays isolated.
    data.text("edges.csv", "0,1\n1,0\n0,1\n2,2\n2,2\n5,5\n2,3\n");
    type Case = (Treatment, Treatment, bool, [&'static [u32]; 6], u64);
    let cases: [Case; 6] = [
        (Keep, Drop, false, [&[1], &[0], &[2, 3], &[2], &[], &[5]], 3),
        (Drop, Drop, false, [&[1], &[0], &[3], &[2], &[], &[]], 2),
        (
            Keep,
            Keep,
            false,
            [&[1, 1, 1], &[0, 0, 0], &[2, 2, 3], &[2], &[], &[5]],
            3,
        ),
        (Drop, Keep, false, [&[1, 1, 1], &[0, 0, 0], &[3], &[2], &[], &[]], 2),
        (Keep, Drop, true, [&[1], &[0], &[2], &[2], &[], &[5]], 2),
        (Keep, Keep, true, [&[1], &[0, 0], &[2, 2], &[2], &[], &[5]], 2),
    ];
    for (self_loops, duplicates, directed, expected, repeated) in cases {
        let options = ImportOptions {
            self_loops,
            duplicates,
            directed,
            ..ImportOptions::default()
        };
        let graph = data.import(&options).unwrap();
        assert_eq!(rows(&graph), expected, "{options:?}");
        let record = ImportRecord::of(graph.manifest()).unwrap();
        assert_eq!((record.edges_given, record.self_loops), (7, 3), "{options:?}");
        assert_eq!(record.duplicates, repeated, "{options:?}");
        assert_eq!(record.isolated, 2, "{options:?}");
    }
}

#[test]
fn floats_nan_and_a_column_of_labels_are_read() {
    let data = DataSet::new();
    data.array("node-label.npy", &[6, 1], &[0f32, f32::NAN, 2.0, -1.0, 1.0, 0.0]);
    let options = ImportOptions {
        classes: Some(7),
        ..ImportOptions::default()
    };
    let graph = data.import(&options).unwrap();
    assert_eq!(graph.labels(), [0, -1, 2, -1, 1, 0]);
    assert_eq!((graph.manifest().classes, graph.manifest().labelled), (7, 4));

    // Nobody has a label: there is nothing to learn, but it is a graph.
    data.array("node-label.npy", &[6], &[f32::NAN; 6]);
    let graph = data.import(&ImportOptions::default()).unwrap();
    assert_eq!((graph.manifest().classes, graph.manifest().labelled), (0, 0));
}

#[test]
fn an_existing_graph_is_kept() {
    let data = DataSet::new();
    std::fs::write(data.out(), "mine").unwrap();
    let error = import_folder(&data.path(""), &ImportOptions::default(), &data.out())
        .unwrap_err()
        .to_string();
    assert!(error.contains("graph exists already"), "{error}");
    assert_eq!(std::fs::read_to_string(data.out()).unwrap(), "mine");
}

#[test]
fn sparse_features_no_wider_than_asked_for_are_written_out() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let data = DataSet::new();
        let dense = data.import(&ImportOptions::default()).unwrap().features().to_vec();
        data.archive(&sparse_members(), method);
        let graph = data.import(&ImportOptions::default()).unwrap();
        assert_eq!(graph.features(), dense);
        assert_eq!(ImportRecord::of(graph.manifest()).unwrap().features.svd, None);
    }
}

#[test]
fn wider_sparse_features_are_reduced() {
    let data = DataSet::new();
    data.archive(&sparse_members(), CompressionMethod::Deflated);
    let options = ImportOptions {
        svd: 1,
        ..ImportOptions::default()
    };
    let graph = data.import(&options).unwrap();
    assert_eq!((graph.manifest().features, graph.features().len()), (1, 6));
    let mean: f32 = graph.features().iter().map(|value| value * value).sum::<f32>() / 6.0;
    assert!((mean - 1.0).abs() < 1e-5, "{mean}");
    let record = ImportRecord::of(graph.manifest()).unwrap();
    assert_eq!(record.features.given_columns, 2);
    assert!(record.features.svd.unwrap().explained > 0.9);

    let none = ImportOptions {
        svd: 0,
        ..ImportOptions::default()
    };
    let error = import_folder(&data.path(""), &none, &data.folder.path().join("none")).unwrap_err();
    assert!(error.to_string().contains("cannot reduce features to 0 columns"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_are_what_a_plain_set_of_edges_says(
        edges in prop::collection::vec((0u32..6, 0u32..6), 0..40),
        directed in any::<bool>(),
        drop_loops in any::<bool>(),
        drop_duplicates in any::<bool>(),
    ) {
        let data = DataSet::new();
        let text: String = edges.iter().map(|(from, to)| format!("{from},{to}\n")).collect();
        data.text("edges.csv", &text);
        let treatment = |dropped| if dropped { Treatment::Drop } else { Treatment::Keep };
        let options = ImportOptions {
            directed,
            self_loops: treatment(drop_loops),
            duplicates: treatment(drop_duplicates),
            ..ImportOptions::default()
        };
        let graph = data.import(&options).unwrap();

        let mut expected = vec![Vec::new(); 6];
        let mut seen = BTreeSet::new();
        let mut repeated = 0;
        for &(from, to) in &edges {
            if from == to && drop_loops {
                continue;
            }
            let name = if directed { (from, to) } else { (from.min(to), from.max(to)) };
            let is_new = seen.insert(name);
            repeated += u64::from(!is_new);
            if is_new || !drop_duplicates {
                expected[to as usize].push(from);
                if !directed && from != to {
                    expected[from as usize].push(to);
                }
            }
        }
        expected.iter_mut().for_each(|row| row.sort_unstable());
        prop_assert_eq!(rows(&graph), expected);
        prop_assert_eq!(ImportRecord::of(graph.manifest()).unwrap().duplicates, repeated);
    }
}

#[test]
fn long_rows_are_sorted_by_several_threads_alike() {
    // A hub with 60,000 neighbours, given in descending order, and a ring.
    let nodes = 60_001u32;
    let data = DataSet::new();
    data.remove("edges.csv");
    let sources: Vec<u32> = (1..nodes).rev().chain(1..nodes).collect();
    let destinations: Vec<u32> = (1..nodes)
        .map(|_| 0)
        .chain((1..nodes).map(|node| node % (nodes - 1) + 1))
        .collect();
    let flat = [sources, destinations].concat();
    data.array("edge_index.npy", &[2, flat.len() / 2], &flat);
    data.array("node-feat.npy", &[nodes as usize, 1], &vec![1.0f32; nodes as usize]);
    data.array("node-label.npy", &[nodes as usize], &vec![0u8; nodes as usize]);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let graph = pool.install(|| data.import(&ImportOptions::default())).unwrap();
        assert_eq!(graph.topology().row(0), (1..nodes).collect::<Vec<_>>());
        assert_eq!(graph.topology().row(7), [0, 6, 8]);
        std::fs::read(data.out().join("indices.npy")).unwrap()
    };
    assert_eq!(run(1), run(4));
}

#[test]
fn the_debian_example_is_imported() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/debian-packages");
    let target = tempfile::tempdir().unwrap();
    let out = target.path().join("graph");
    let manifest = import_folder(&folder, &ImportOptions::default(), &out).unwrap();
    assert_eq!((manifest.nodes, manifest.edges), (63_436, 634_356));
    assert_eq!(
        (manifest.classes, manifest.labelled, manifest.features),
        (50, 63_081, 128)
    );
    let record = ImportRecord::of(&manifest).unwrap();
    assert_eq!(record.edges_given, 321_812);
    assert_eq!(record.edges_given - record.duplicates, 317_178);
    assert_eq!((record.isolated, record.self_loops), (1_859, 0));
    assert_eq!((record.train, record.valid, record.test), (31_755, 11_986, 19_340));
    // An exact decomposition explains 0.28013 of the squares (SciPy's svds).
    let svd = record.features.svd.unwrap();
    assert!(svd.explained > 0.2755 && svd.explained < 0.28014, "{}", svd.explained);
    let graph = GraphStore::open(&out).unwrap();
    graph.verify().unwrap();
    let widest = (0..manifest.nodes).map(|node| graph.topology().row(node).len()).max();
    assert_eq!(widest, Some(21_814));
}

#[test]
fn cora_is_imported_where_it_is_at_hand() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/cora");
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    let target = tempfile::tempdir().unwrap();
    let manifest = import_folder(&folder, &ImportOptions::default(), &target.path().join("graph")).unwrap();
    assert_eq!((manifest.nodes, manifest.edges), (2_708, 10_556));
    assert_eq!((manifest.classes, manifest.features), (7, 128));
}
