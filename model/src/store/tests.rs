use std::path::Path;

use super::*;
use crate::book::PartitionBook;
use crate::npy::FileRecord;
use crate::rng::Purpose;

/// Five nodes, two features, three classes; node 4 is isolated and unlabelled.
const INDPTR: [u64; 6] = [0, 2, 3, 5, 6, 6];
const INDICES: [u32; 6] = [1, 2, 0, 0, 3, 2];
const LABELS: [i64; 5] = [0, 1, 2, 0, -1];
const FEATURES: [f32; 10] = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5];

fn graph_manifest(files: Vec<FileRecord>) -> GraphManifest {
    GraphManifest {
        format: GraphManifest::FORMAT.to_owned(),
        version: GraphManifest::VERSION,
        feature_bits: Vec::new(),
        nodes: 5,
        edges: 6,
        features: 2,
        classes: 3,
        directed: false,
        labelled: 4,
        source: serde_json::json!({ "maker": "a test" }),
        files,
    }
}

fn write_arrays(writer: &mut FolderWriter) -> Vec<FileRecord> {
    vec![
        writer.whole_array("indptr.npy", &[6], &INDPTR).unwrap(),
        writer.whole_array("indices.npy", &[6], &INDICES).unwrap(),
        writer.whole_array("feat.npy", &[5, 2], &FEATURES).unwrap(),
        writer.whole_array("label.npy", &[5], &LABELS).unwrap(),
        writer.whole_array("train.npy", &[2], &[0u32, 3]).unwrap(),
        writer.whole_array("valid.npy", &[1], &[1u32]).unwrap(),
        writer.whole_array("test.npy", &[0], &[0u32; 0]).unwrap(),
    ]
}

fn write_graph(target: &Path) {
    let mut writer = FolderWriter::create(target).unwrap();
    let files = write_arrays(&mut writer);
    writer.finish(&graph_manifest(files)).unwrap();
}

/// The same graph in two parts, [0, 2) and [2, 5).
fn write_parts(target: &Path) -> String {
    let book = PartitionBook::new(vec![0, 2, 5]).unwrap();
    let mut writer = FolderWriter::create(target).unwrap();
    let mut hasher = GraphHasher::new(&book);
    let mut files = Vec::new();
    let splits: [[&[u32]; 3]; 2] = [[&[0], &[1], &[]], [&[1], &[], &[]]];
    for part in 0..2u16 {
        let range = book.range(part);
        let (first, end) = (range.start as usize, range.end as usize);
        let edges = INDPTR[first] as usize..INDPTR[end] as usize;
        let indptr: Vec<u64> = INDPTR[first..=end]
            .iter()
            .map(|offset| offset - INDPTR[first])
            .collect();
        let indices = &INDICES[edges];
        let rows = end - first;
        let name = |array: &str| format!("{}/{array}.npy", part_folder(part));
        let original: Vec<u32> = range.map(|node| 40 - node).collect();
        let [train, valid, test] = splits[usize::from(part)];
        files.extend([
            writer.whole_array(&name("indptr"), &[rows + 1], &indptr).unwrap(),
            writer.whole_array(&name("indices"), &[indices.len()], indices).unwrap(),
            writer.whole_array(&name("orig_id"), &[rows], &original).unwrap(),
            writer
                .whole_array(&name("feat"), &[rows, 2], &FEATURES[2 * first..2 * end])
                .unwrap(),
            writer
                .whole_array(&name("label"), &[rows], &LABELS[first..end])
                .unwrap(),
            writer.whole_array(&name("train"), &[train.len()], train).unwrap(),
            writer.whole_array(&name("valid"), &[valid.len()], valid).unwrap(),
            writer.whole_array(&name("test"), &[test.len()], test).unwrap(),
        ]);
        hasher.part(&indptr, indices, |purpose| match purpose {
            Purpose::Train | Purpose::Presample => train,
            Purpose::Valid => valid,
            Purpose::Test => test,
        });
    }
    let graph_hash = hasher.finish();
    let manifest = PartsManifest {
        format: PartsManifest::FORMAT.to_owned(),
        version: PartsManifest::VERSION,
        feature_bits: Vec::new(),
        nodes: 5,
        edges: 6,
        features: 2,
        classes: 3,
        book,
        row_bounds: None,
        parts: vec![
            PartSummary {
                nodes: 2,
                edges: 3,
                train: 1,
                valid: 1,
                test: 0,
                labelled: 2,
                halo: 1,
            },
            PartSummary {
                nodes: 3,
                edges: 3,
                train: 1,
                valid: 0,
                test: 0,
                labelled: 2,
                halo: 1,
            },
        ],
        partitioner: PartitionerRecord {
            method: "by hand".to_owned(),
            ..PartitionerRecord::default()
        },
        graph_hash: graph_hash.clone(),
        files,
    };
    writer.finish(&manifest).unwrap();
    graph_hash
}

/// Replaces a piece of a manifest's text.
fn edit_manifest(folder: &Path, from: &str, to: &str) {
    let path = folder.join(MANIFEST);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
}

/// Overwrites bytes at the end of a file.
fn overwrite_tail(path: &Path, tail: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let start = bytes.len() - tail.len();
    bytes[start..].copy_from_slice(tail);
    std::fs::write(path, bytes).unwrap();
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_graph_folder_reads_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("graph");
    write_graph(&target);
    let graph = GraphStore::open(&target).unwrap();
    graph.verify().unwrap();
    assert_eq!(graph.manifest(), &graph_manifest(graph.manifest().files.clone()));
    let topology = graph.topology();
    assert_eq!((topology.first, topology.rows()), (0, 5));
    assert_eq!(topology.row(0), [1, 2]);
    assert_eq!(topology.row(2), [0, 3]);
    assert!(topology.row(4).is_empty());
    assert_eq!(graph.features(), FEATURES);
    assert_eq!(graph.feature_row(3), [3.0, 3.5]);
    assert_eq!(graph.labels(), LABELS);
    assert_eq!(graph.split(Purpose::Train), [0, 3]);
    assert_eq!(graph.split(Purpose::Presample), [0, 3]);
    assert_eq!(graph.split(Purpose::Valid), [1]);
    assert!(graph.split(Purpose::Test).is_empty());
    assert_eq!(entries(folder.path()), ["graph"]);
}

#[test]
fn a_part_opens_without_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("parts");
    let hash = write_parts(&target);
    assert_eq!(PartsManifest::held_parts(&target).unwrap(), [0, 1]);
    std::fs::remove_dir_all(target.join("part-0")).unwrap();
    assert_eq!(PartsManifest::held_parts(&target).unwrap(), [1]);

    let part = PartStore::open(&target, 1).unwrap();
    part.verify().unwrap();
    assert_eq!(part.part(), 1);
    assert_eq!(part.manifest().graph_hash, hash);
    assert_eq!(part.summary().edges, 3);
    let topology = part.topology();
    assert_eq!((topology.first, topology.rows()), (2, 3));
    assert_eq!(topology.row(0), [0, 3]);
    assert_eq!(topology.row(1), [2]);
    assert_eq!(part.features(), &FEATURES[4..]);
    assert_eq!(part.feature_row(2), [4.0, 4.5]);
    assert_eq!(part.labels(), [2, 0, -1]);
    assert_eq!(part.split(Purpose::Train), [1]);
    assert_eq!(part.original_ids(), [38, 37, 36]);

    for (missing, held) in [(0, "it holds part 1"), (7, "does not hold part 7")] {
        let error = PartStore::open(&target, missing).unwrap_err().to_string();
        assert!(error.contains(held), "{error}");
    }
}

#[test]
fn the_graph_hash_covers_bounds_structure_and_splits() {
    let hash = |bounds: Vec<u32>, offsets: [u64; 3], neighbors: [u32; 2], train: &[u32]| {
        let mut hasher = GraphHasher::new(&PartitionBook::new(bounds).unwrap());
        hasher.part(&offsets, &neighbors, |purpose| match purpose {
            Purpose::Train => train,
            _ => &[],
        });
        hasher.finish()
    };
    let base = hash(vec![0, 2], [0, 1, 2], [1, 0], &[0]);
    assert_eq!(base.len(), 64);
    assert_eq!(base, hash(vec![0, 2], [0, 1, 2], [1, 0], &[0]));
    for other in [
        hash(vec![0, 2, 2], [0, 1, 2], [1, 0], &[0]),
        hash(vec![0, 2], [0, 2, 2], [1, 0], &[0]),
        hash(vec![0, 2], [0, 1, 2], [1, 1], &[0]),
        hash(vec![0, 2], [0, 1, 2], [1, 0], &[1]),
    ] {
        assert_ne!(base, other);
    }
}

#[test]
fn strangers_are_refused_in_a_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            "\"greengnn-graph\"",
            "\"greengnn-parts\"",
            "is of format 'greengnn-parts', expected 'greengnn-graph'",
        ),
        (
            "\"version\": 1",
            "\"version\": 2",
            "is of version 2, this program reads version 1",
        ),
        (
            "\"feature_bits\": []",
            "\"feature_bits\": [\"f16\"]",
            "needs features that this program does not have: f16",
        ),
        ("\"nodes\": 5", "\"nodes\": \"five\"", "is not a manifest: invalid type"),
        ("\"labelled\": 4", "\"labelled\": 6", "6 of 5 nodes are labelled"),
        (
            "\"indptr.npy\"",
            "\"../indptr.npy\"",
            "'../indptr.npy' lies outside the folder",
        ),
        ("\"indptr.npy\"", "\"/indptr.npy\"", "lies outside the folder"),
        ("\"indptr.npy\"", "\"offsets.npy\"", "does not list indptr.npy"),
        (
            "\"nodes\": 5",
            "\"nodes\": 4294967295",
            "has shape [6], expected [4294967296]",
        ),
        ("\"edges\": 6", "\"edges\": 7", "has shape [6], expected [7]"),
    ];
    for (index, (from, to, reason)) in cases.into_iter().enumerate() {
        let target = folder.path().join(format!("graph-{index}"));
        write_graph(&target);
        edit_manifest(&target, from, to);
        let error = GraphStore::open(&target).unwrap_err().to_string();
        assert!(error.contains(reason), "expected '{reason}' in '{error}'");
    }
    let error = GraphStore::open(&folder.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("manifest.json does not exist"), "{error}");
}

#[test]
fn parts_that_contradict_their_book_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            "\"nodes\": 5",
            "\"nodes\": 6",
            "the partition book has 5 nodes, the graph 6",
        ),
        (
            "\"nodes\": 2",
            "\"nodes\": 3",
            "part 0 is said to have 3 nodes, the partition book gives it 2",
        ),
        (
            "\"edges\": 6",
            "\"edges\": 5",
            "the edges of the parts do not add up to 5",
        ),
    ];
    for (index, (from, to, reason)) in cases.into_iter().enumerate() {
        let target = folder.path().join(format!("parts-{index}"));
        write_parts(&target);
        edit_manifest(&target, from, to);
        let error = PartStore::open(&target, 0).unwrap_err().to_string();
        assert!(error.contains(reason), "expected '{reason}' in '{error}'");
    }
}

#[test]
fn damage_is_found_when_a_folder_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = |name: &str, damage: &dyn Fn(&Path)| {
        let target = folder.path().join(name);
        write_graph(&target);
        damage(&target);
        GraphStore::open(&target).unwrap_err().to_string()
    };
    let error = damaged("missing", &|target| {
        std::fs::remove_file(target.join("feat.npy")).unwrap()
    });
    assert!(
        error.starts_with("cannot open") && error.contains("feat.npy"),
        "{error}"
    );
    let error = damaged("short", &|target| {
        let file = std::fs::File::options()
            .write(true)
            .open(target.join("indices.npy"))
            .unwrap();
        file.set_len(150).unwrap();
    });
    assert!(
        error.contains("indices.npy") && error.contains("150 bytes long, the manifest says 152"),
        "{error}"
    );
    let error = damaged("last", &|target| {
        overwrite_tail(&target.join("indptr.npy"), &7u64.to_le_bytes())
    });
    assert!(error.contains("go from 0 to 7, expected from 0 to 6"), "{error}");
    let error = damaged("order", &|target| {
        let tail: Vec<u8> = [9u64, 6].iter().flat_map(|offset| offset.to_le_bytes()).collect();
        overwrite_tail(&target.join("indptr.npy"), &tail);
    });
    assert!(error.contains("row 4: its offsets decrease from 9 to 6"), "{error}");
    let error = damaged("split", &|target| {
        overwrite_tail(&target.join("train.npy"), &5u32.to_le_bytes())
    });
    assert!(
        error.contains("train.npy") && error.contains("it names row 5, there are 5"),
        "{error}"
    );
    let error = damaged("unsorted", &|target| {
        overwrite_tail(&target.join("train.npy"), &0u32.to_le_bytes())
    });
    assert!(error.contains("value 1 (0) does not ascend from 0"), "{error}");
}

#[test]
fn verify_finds_a_flipped_bit_and_values_out_of_range() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("flipped");
    write_graph(&target);
    overwrite_tail(&target.join("feat.npy"), &4.75f32.to_le_bytes());
    let error = GraphStore::open(&target).unwrap().verify().unwrap_err().to_string();
    assert!(error.contains("feat.npy is damaged: its CRC-32C is"), "{error}");

    // Files that agree with their checksums may still hold nonsense.
    let nonsense = |name: &str, indices: [u32; 6], labels: [i64; 5], last_feature: f32| {
        let target = folder.path().join(name);
        let mut writer = FolderWriter::create(&target).unwrap();
        let mut files = write_arrays(&mut writer);
        for path in ["indices.npy", "label.npy", "feat.npy"] {
            std::fs::remove_file(writer.path().join(path)).unwrap();
        }
        let mut features = FEATURES;
        features[9] = last_feature;
        files[1] = writer.whole_array("indices.npy", &[6], &indices).unwrap();
        files[2] = writer.whole_array("feat.npy", &[5, 2], &features).unwrap();
        files[3] = writer.whole_array("label.npy", &[5], &labels).unwrap();
        writer.finish(&graph_manifest(files)).unwrap();
        GraphStore::open(&target).unwrap().verify().unwrap_err().to_string()
    };
    let error = nonsense("node", [1, 2, 0, 5, 3, 2], LABELS, 0.0);
    assert!(error.contains("value 3 is node 5, the graph has 5"), "{error}");
    let error = nonsense("label", INDICES, [0, 3, 1, 1, 1], 0.0);
    assert!(error.contains("row 1 has label 3, the graph has 3 classes"), "{error}");
    let error = nonsense("feature", INDICES, LABELS, f32::NAN);
    assert!(
        error.contains("feat.npy") && error.contains("row 4 holds NaN"),
        "{error}"
    );
}

#[test]
fn an_unfinished_folder_leaves_nothing_and_an_existing_one_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("graph");
    let mut writer = FolderWriter::create(&target).unwrap();
    write_arrays(&mut writer);
    assert_eq!(entries(folder.path()).len(), 1);
    drop(writer);
    assert!(entries(folder.path()).is_empty());

    std::fs::write(&target, "mine").unwrap();
    let error = FolderWriter::create(&target).unwrap_err().to_string();
    assert!(error.contains("graph exists already"), "{error}");
    std::fs::remove_file(&target).unwrap();

    // It appears while the folder is written.
    let mut writer = FolderWriter::create(&target).unwrap();
    let files = write_arrays(&mut writer);
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("note"), "mine").unwrap();
    let error = writer.finish(&graph_manifest(files)).unwrap_err().to_string();
    assert!(error.contains("graph exists already"), "{error}");
    assert_eq!(entries(folder.path()), ["graph"]);
    assert_eq!(entries(&target), ["note"]);
}

#[test]
fn a_manifest_must_list_exactly_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("graph");
    let mut writer = FolderWriter::create(&target).unwrap();
    let mut files = write_arrays(&mut writer);
    files.pop();
    let error = writer.finish(&graph_manifest(files)).unwrap_err().to_string();
    assert!(error.contains("test.npy was written and not listed"), "{error}");
    assert!(entries(folder.path()).is_empty());
}

#[test]
fn others_may_read_a_finished_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    let target = folder.path().join("graph");
    write_graph(&target);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&target), mode(&plain));
}
