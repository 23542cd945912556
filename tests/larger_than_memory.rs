//! Features that memory cannot hold: they are cut, served and trained on from where they lie.
//!
//! The kernel refuses every process here more anonymous memory than a fraction of the features (`RLIMIT_DATA`). The feature
//! files are sparse, so they take no room on the disk until somebody writes rows.
#![cfg(target_os = "linux")]

mod common;

use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Running, number, said, text, train_with};
use greengnn_model::book::PartId;
use greengnn_model::npy::{Dtype, Header};
use greengnn_model::partition::partition_graph;
use greengnn_model::store::{FolderWriter, GraphManifest, GraphStore, Manifest, PartStore, PartitionerRecord};
use serde_json::Value;

const NODES: u32 = 8192;
const MIB: u64 = 1 << 20;

#[test]
fn parts_are_written_without_holding_features() {
    const WIDTH: usize = 8192;
    const LIMIT: u64 = 96 * MIB;
    /// A node, and a value in its features, which are zeros otherwise.
    const MARKED: (u32, f32) = (5000, 7.0);

    let folder = tempfile::tempdir().unwrap();
    let (graph, out) = (folder.path().join("graph"), folder.path().join("parts"));
    write_ring(&graph);
    let features = widen(&graph, &["feat.npy"], WIDTH);
    assert!(features > 2 * LIMIT);
    mark(&graph.join("feat.npy"), WIDTH, MARKED);

    let arguments = [
        "partition",
        text(&graph),
        "--parts",
        "2",
        "--method",
        "stream",
        "--out",
        text(&out),
    ];
    let output = Running::start_with(&arguments, |command| {
        limit_memory(command, LIMIT);
        // Every thread has a stack, which counts.
        command.env("RAYON_NUM_THREADS", "1");
    });
    let output = output.finish();
    assert!(output.status.success(), "{}", said(&output));
    let parts = [0, 1].map(|part| PartStore::open(&out, part).unwrap());
    let marked = parts.iter().find_map(|part| {
        let row = part.original_ids().iter().position(|node| *node == MARKED.0)?;
        Some(part.feature_row(row as u32))
    });
    let marked = marked.unwrap();
    assert_eq!((marked.len(), marked[0], marked[1]), (WIDTH, MARKED.1, 0.0));
    assert_eq!(parts.map(|part| part.summary().nodes).iter().sum::<u32>(), NODES);
}

#[test]
fn machines_train_on_features_that_they_could_not_hold() {
    /// Half a mebibyte per row, 2 GiB per part.
    const WIDTH: usize = 131_072;
    const LIMIT: u64 = 768 * MIB;

    let folder = tempfile::tempdir().unwrap();
    let (graph, parts) = (folder.path().join("graph"), folder.path().join("parts"));
    write_ring(&graph);
    // Neighbours are always in the other part.
    let assignment: Vec<PartId> = (0..NODES).map(|node| (node % 2) as PartId).collect();
    let store = GraphStore::open(&graph).unwrap();
    partition_graph(&store, &assignment, 2, PartitionerRecord::default(), &parts).unwrap();
    let features = widen(&parts, &["part-0/feat.npy", "part-1/feat.npy"], WIDTH);
    assert!(
        features / 2 > 2 * LIMIT,
        "one part is far beyond the limit of its machine"
    );

    let flags = [
        ["--epochs", "1"],
        ["--batch-size", "8"],
        ["--fanouts", "2,2"],
        ["--hidden", "4"],
        ["--budget", "8rows"],
        ["--threads", "1"],
        ["--machines", "2"],
        ["--device", "cpu"],
    ];
    let run = train_with(&parts, flags.as_flattened(), |command| limit_memory(command, LIMIT));
    assert!(
        number(&run.summary["epochs"][0]["feature_rows"]) > 0,
        "rows came from the other machine"
    );
    let peak = number(&run.summary["peak_anon_bytes"]);
    assert!(
        peak < features / 8,
        "{peak} bytes of anonymous memory, for {features} of features"
    );
}

/// Lets the process and its children have at most `bytes` of private writable memory each.
fn limit_memory(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let set = move || {
        // SAFETY: the call reads the struct and touches nothing else.
        match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only one system call is made, which is safe to call there.
    unsafe { command.pre_exec(set) };
}

/// A graph folder: a ring with one feature per node, 32 train seeds and 8 of the other splits each.
fn write_ring(out: &Path) {
    let mut folder = FolderWriter::create(out).unwrap();
    let rows = NODES as usize;
    let offsets: Vec<u64> = (0..=u64::from(NODES)).map(|row| 2 * row).collect();
    let neighbors: Vec<u32> = (0..NODES)
        .flat_map(|node| {
            let mut row = [(node + NODES - 1) % NODES, (node + 1) % NODES];
            row.sort_unstable();
            row
        })
        .collect();
    let labels: Vec<i64> = (0..i64::from(NODES)).map(|node| node / 2 % 2).collect();
    let nodes = |range: std::ops::Range<u32>| range.collect::<Vec<u32>>();
    let (train, valid, test) = (nodes(0..32), nodes(4000..4008), nodes(6000..6008));
    let files = vec![
        folder.whole_array("indptr.npy", &[rows + 1], &offsets).unwrap(),
        folder.whole_array("indices.npy", &[2 * rows], &neighbors).unwrap(),
        folder.whole_array("feat.npy", &[rows, 1], &vec![0f32; rows]).unwrap(),
        folder.whole_array("label.npy", &[rows], &labels).unwrap(),
        folder.whole_array("train.npy", &[train.len()], &train).unwrap(),
        folder.whole_array("valid.npy", &[valid.len()], &valid).unwrap(),
        folder.whole_array("test.npy", &[test.len()], &test).unwrap(),
    ];
    let manifest = GraphManifest {
        format: GraphManifest::FORMAT.to_owned(),
        version: GraphManifest::VERSION,
        feature_bits: Vec::new(),
        nodes: NODES,
        edges: 2 * u64::from(NODES),
        features: 1,
        classes: 2,
        directed: false,
        labelled: u64::from(NODES),
        source: Value::Null,
        files,
    };
    folder.finish(&manifest).unwrap();
}

/// Replaces feature files by sparse ones of zeros with `width` columns, in the manifest too. Returns their bytes.
fn widen(folder: &Path, names: &[&str], width: usize) -> u64 {
    let manifest = folder.join("manifest.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    json["features"] = width.into();
    let mut total = 0;
    for name in names {
        let path = folder.join(name);
        let narrow = Header::read(&mut BufReader::new(File::open(&path).unwrap()), &path).unwrap();
        let wide = Header::new(Dtype::F32, &[narrow.shape[0], width]);
        let bytes = wide.file_length().unwrap();
        fs::remove_file(&path).unwrap();
        let mut file = File::create_new(&path).unwrap();
        file.write_all(&wide.encode()).unwrap();
        file.set_len(bytes).unwrap();
        let records = json["files"].as_array_mut().unwrap();
        let record = records.iter_mut().find(|record| record["path"] == *name).unwrap();
        record["bytes"] = bytes.into();
        total += bytes;
    }
    fs::write(&manifest, serde_json::to_vec(&json).unwrap()).unwrap();
    total
}

/// Writes the first feature of a node.
fn mark(path: &Path, width: usize, (node, value): (u32, f32)) {
    let header = Header::read(&mut BufReader::new(File::open(path).unwrap()), path).unwrap();
    let place = header.data_start as u64 + u64::from(node) * width as u64 * 4;
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&value.to_le_bytes(), place).unwrap();
}
