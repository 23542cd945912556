//! What a run prints, and what it leaves in its folder.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::common::{fails, serial, succeeds, text, tiny_parts, train, train_json};
use crate::small;

/// The stable names of a period, in `setup`, `evaluation` and every one of `epochs`.
const PERIOD: [&str; 12] = [
    "wall_s",
    "stall_s",
    "sync_s",
    "feature_requests",
    "deliveries",
    "sample_requests",
    "feature_rows",
    "feature_bytes",
    "wire_bytes",
    "cache_hit_rows",
    "cpu_s",
    "energy_quality",
];

fn has_numbers(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value[name].is_number(), "{name} in {value}");
    }
}

#[test]
fn the_summary_has_every_stable_name_at_its_place() {
    let _serial = serial();
    let run = train(tiny_parts(600, 4), &small(&[]));
    let summary = &run.summary;
    let names = [
        "version",
        "window",
        "budget_rows",
        "held_rows_peak",
        "ranks",
        "machines",
        "seed",
        "test_accuracy",
        "peak_rss_bytes",
        "peak_anon_bytes",
        "setup_s",
        "total_s",
    ];
    has_numbers(summary, &names);
    for name in ["policy", "device", "cpu_fingerprint", "weights_sha256"] {
        assert!(
            summary[name].as_str().is_some_and(|text| !text.is_empty()),
            "{name} in {summary}"
        );
    }
    let epochs = summary["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 2);
    for (number, epoch) in epochs.iter().enumerate() {
        assert_eq!(epoch["epoch"], number);
        has_numbers(epoch, &["loss", "valid_accuracy"]);
        has_numbers(&epoch["planned"], &["feature_requests", "feature_rows"]);
    }
    for period in epochs.iter().chain([&summary["setup"], &summary["evaluation"]]) {
        has_numbers(period, &PERIOD[..11]);
        let quality = period["energy_quality"].as_str().unwrap();
        let joules = period.get("energy_j").unwrap();
        // A figure that is not known is null, never 0.
        assert_eq!(joules.is_null(), quality == "unavailable", "{period}");
    }
    assert_eq!(
        (&summary["policy"], &summary["window"], &summary["seed"]),
        (&"bulk".into(), &2.into(), &1.into())
    );
    assert_eq!((&summary["ranks"], &summary["machines"]), (&4.into(), &4.into()));
}

#[test]
fn the_run_folder_holds_everything_and_its_configuration_repeats_the_run() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    let flags = ["--policy", "window", "--lr", "0.01", "--dropout", "0.25", "--seed", "9"];
    let run = train(parts, &small(&flags));
    let folder = run.folder();
    let names: BTreeSet<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected = [
        "config.toml",
        "energy.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "summary.json",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());

    let written: Value = serde_json::from_slice(&fs::read(folder.join("summary.json")).unwrap()).unwrap();
    assert_eq!(written, run.summary, "--json prints summary.json");
    let again = train_json(parts, &["--config", text(&folder.join("config.toml"))]);
    assert_eq!(again["weights_sha256"], run.summary["weights_sha256"]);
    assert_eq!(again["seed"], 9);
    let other = train_json(parts, &["--config", text(&folder.join("config.toml")), "--seed", "10"]);
    assert_ne!(
        other["weights_sha256"], run.summary["weights_sha256"],
        "a flag overrides the file"
    );

    // Steps are the same in number on every rank.
    let steps = run.metrics("step");
    let of_rank = |rank: u32| steps.iter().filter(|step| step["rank"] == rank).count();
    assert!(of_rank(0) > 2 && (1..4).all(|rank| of_rank(rank) == of_rank(0)));
    assert_eq!(run.metrics("epoch").len(), 2);
    for line in fs::read_to_string(folder.join("energy.jsonl")).unwrap().lines() {
        let point: Value = serde_json::from_str(line).unwrap();
        assert!(point["domain"].is_string() && point["quality"].is_string(), "{point}");
    }
    let report = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(report.starts_with("<!doctype html>") && report.contains("<svg"));
    for reference in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!report.contains(reference), "the page loads {reference}");
    }
}

#[test]
fn the_model_file_holds_the_weights_of_the_hash() {
    let _serial = serial();
    let run = train(tiny_parts(600, 4), &small(&[]));
    let bytes = fs::read(run.folder().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    use sha2::Digest;
    let hash = tensors
        .iter()
        .fold(sha2::Sha256::new(), |hash, (_, tensor)| {
            hash.chain_update(tensor.data())
        })
        .finalize();
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, run.weights());
}

#[test]
fn a_person_sees_a_table_and_what_bound_the_run() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let said = succeeds(
        &[
            &["train", text(tiny_parts(600, 4)), "--out", text(&out)][..],
            &small(&[]),
        ]
        .concat(),
    );
    for wanted in [
        "training",
        "evaluation",
        "whole run",
        "test accuracy",
        "report.html",
        "bound by",
    ] {
        assert!(said.contains(wanted), "no '{wanted}' in\n{said}");
    }
}

#[test]
fn no_run_overwrites_another() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let arguments = [
        &["train", text(tiny_parts(600, 4)), "--out", text(&out)][..],
        &small(&[]),
    ]
    .concat();
    succeeds(&arguments);
    let before = fs::read(out.join("summary.json")).unwrap();
    let said = fails(&arguments);
    assert!(said.contains(text(&out)), "{said}");
    assert_eq!(fs::read(out.join("summary.json")).unwrap(), before);
}
