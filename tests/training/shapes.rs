//! Graphs that are cut badly, models of other depths, and labels that are not there.

use std::fs;
use std::path::{Path, PathBuf};

use greengnn_model::book::PartId;
use greengnn_model::import::{ImportOptions, import_folder};
use greengnn_model::npy::ArrayWriter;
use greengnn_model::partition::partition_graph;
use greengnn_model::store::{GraphStore, PartitionerRecord, PartsManifest};
use greengnn_model::synth::SynthSpec;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{fails, number, serial, text, tiny_parts, train_json};
use crate::small;

/// Trains under two policies and on one machine and on several: all must end with the same weights.
fn trains(parts: &Path, flags: &[&str]) -> Value {
    let ranks = PartsManifest::open(parts).unwrap().book.parts().to_string();
    let base = small(flags);
    let summary = train_json(parts, &[&base[..], &["--machines", "1"]].concat());
    for (policy, machines) in [("on-demand", ranks.as_str()), ("full", "2")] {
        let other = train_json(
            parts,
            &[&base[..], &["--policy", policy, "--machines", machines]].concat(),
        );
        assert_eq!(
            other["weights_sha256"], summary["weights_sha256"],
            "{policy} on {machines} machines with {flags:?}"
        );
    }
    assert_eq!(summary["epochs"].as_array().unwrap().len(), 2);
    summary
}

fn cut(graph: &Path, out: &Path, parts: PartId, part_of: impl Fn(u32) -> PartId) {
    let graph = GraphStore::open(graph).unwrap();
    let assignment: Vec<PartId> = (0..graph.manifest().nodes).map(part_of).collect();
    partition_graph(&graph, &assignment, parts, PartitionerRecord::default(), out).unwrap();
}

#[test]
fn parts_may_be_empty_without_seeds_or_of_very_different_sizes() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let (graph, parts) = (scratch.path().join("graph"), scratch.path().join("parts"));
    let spec = SynthSpec::tiny(400);
    spec.write(&graph).unwrap();
    let train = spec.graph().unwrap().train;
    // Part 1 is empty, part 2 has no seeds, part 3 has one batch where part 0 has many.
    cut(&graph, &parts, 4, |node| match train.binary_search(&node) {
        Ok(index) if index < 5 => 3,
        Err(_) if node % 2 == 0 => 2,
        _ => 0,
    });
    let manifest = PartsManifest::open(&parts).unwrap();
    let seeds: Vec<u32> = manifest.parts.iter().map(|part| part.train).collect();
    assert_eq!((manifest.parts[1].nodes, &seeds[1..]), (0, &[0, 0, 5][..]));
    let summary = trains(&parts, &["--verify"]);
    assert!(summary["test_accuracy"].as_f64().unwrap() > 0.25, "{summary}");
}

#[test]
fn there_may_be_fewer_nodes_than_parts() {
    let _serial = serial();
    let summary = trains(tiny_parts(3, 5), &[]);
    assert_eq!(number(&summary["ranks"]), 5);
}

#[test]
fn one_part_needs_no_other() {
    let _serial = serial();
    let summary = train_json(tiny_parts(300, 1), &small(&[]));
    assert_eq!(number(&summary["ranks"]), 1);
    assert_eq!(number(&summary["evaluation"]["feature_rows"]), 0);
}

#[test]
fn any_number_of_hops_and_any_fanout_trains() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    for fanouts in ["3", "4,3,2", "0,0", "4,0", "0,4", "1000,1000"] {
        let summary = trains(parts, &["--fanouts", fanouts]);
        let loss = summary["epochs"][1]["loss"].as_f64().unwrap();
        assert!(loss > 0.0 && loss.is_finite(), "{fanouts}: {loss}");
    }
}

#[test]
fn a_batch_may_be_larger_than_all_seeds_or_one_seed() {
    let _serial = serial();
    let one_step = trains(tiny_parts(600, 4), &["--batch-size", "100000"]);
    assert!(
        number(&one_step["epochs"][0]["feature_requests"]) <= 12,
        "one step: {one_step}"
    );
    trains(tiny_parts(40, 4), &["--batch-size", "1"]);
}

/// A ring with chords in a neutral folder, imported and cut by hash, with labels from `label`.
fn labelled_parts(scratch: &TempDir, name: &str, label: impl Fn(usize) -> i64) -> PathBuf {
    const NODES: usize = 240;
    let folder = scratch.path().join(name);
    fs::create_dir_all(folder.join("data/split")).unwrap();
    let data = folder.join("data");
    let edges: String = (0..NODES)
        .flat_map(|node| [1, 7].map(|far| format!("{node},{}\n", (node + far) % NODES)))
        .collect();
    fs::write(data.join("edges.csv"), edges).unwrap();
    let features: Vec<f32> = (0..NODES * 2).map(|value| (value % 4) as f32).collect();
    let array = |path: &str, values: &[i64]| {
        let mut writer = ArrayWriter::create(&data.join(path), &[values.len()]).unwrap();
        writer.write(values).unwrap();
        writer.finish().unwrap();
    };
    let mut writer = ArrayWriter::create(&data.join("node-feat.npy"), &[NODES, 2]).unwrap();
    writer.write(&features).unwrap();
    writer.finish().unwrap();
    array("node-label.npy", &(0..NODES).map(label).collect::<Vec<_>>());
    let split = |part: usize| -> Vec<i64> { (0..NODES as i64).filter(|node| *node as usize % 3 == part).collect() };
    for (part, name) in ["train", "valid", "test"].into_iter().enumerate() {
        array(&format!("split/{name}.npy"), &split(part));
    }
    let options = ImportOptions {
        classes: Some(2),
        ..ImportOptions::default()
    };
    import_folder(&data, &options, &folder.join("graph")).unwrap();
    cut(&folder.join("graph"), &folder.join("parts"), 4, |node| {
        (node % 4) as PartId
    });
    folder.join("parts")
}

#[test]
fn unlabelled_nodes_are_in_the_graph_and_out_of_the_loss() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let class = |node: usize| ((node / 2) % 2) as i64;
    // Ranks 0 and 2 lose all their labels, so some steps have none at all on these ranks.
    let some = labelled_parts(&scratch, "some", |node| if node % 2 == 0 { -1 } else { class(node) });
    let summary = trains(&some, &[]);
    assert!(summary["test_accuracy"].is_f64(), "{summary}");
    assert!(summary["epochs"][0]["loss"].as_f64().unwrap() > 0.0);
}

#[test]
fn without_any_label_nothing_is_learnt_and_nothing_is_claimed() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let none = labelled_parts(&scratch, "none", |_| -1);
    let summary = trains(&none, &[]);
    assert!(summary["test_accuracy"].is_null(), "{summary}");
    assert!(summary["epochs"][0]["valid_accuracy"].is_null());
    // No step has made an optimizer step, so more epochs change nothing.
    let longer = train_json(&none, &small(&["--epochs", "4"]));
    assert_eq!(longer["weights_sha256"], summary["weights_sha256"]);
}

#[test]
fn what_cannot_be_trained_is_refused_in_words() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let refused = |flags: &[&str], wanted: &str| {
        let said = fails(&[&["train", text(parts), "--out", text(&out)], flags].concat());
        assert!(said.starts_with("error: "), "{flags:?}: {said}");
        assert!(said.contains(wanted), "{flags:?} without '{wanted}': {said}");
        assert!(!out.join("summary.json").exists());
    };
    refused(&["--machines", "5"], "at most 4, the number of parts");
    refused(&["--policy", "psychic"], "psychic");
    refused(&["--budget", "ten"], "ten");
    refused(&["--dropout", "1"], "dropout must be");
    refused(&["--device", "cuda:0"], "cuda");
    let nowhere = scratch.path().join("nowhere");
    let said = fails(&["train", text(&nowhere), "--out", text(&out)]);
    assert!(said.contains("nowhere"), "{said}");
}
