//! Probes, choices and runs that choose: real processes on loopback.

mod common;

use std::path::Path;

use common::{fails, greengnn, number, said, serial, succeeds, text, tiny_parts, train, train_json};
use serde_json::Value;
use tempfile::TempDir;

/// The shortest probe there is.
const SHORT_PROBE: [&str; 6] = [
    "--probe-sizes",
    "1,64",
    "--probe-repeats",
    "5",
    "--probe-seconds",
    "0.01",
];

/// What makes a run of the tiny graph have several steps.
const STEPS: [&str; 4] = ["--batch-size", "60", "--fanouts", "5,5"];

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A run that is over soon, of what was measured there.
fn short_run(tuning: &Path) -> Vec<&str> {
    let flags = ["--epochs", "1", "--budget", "20%", "--tuning", text(tuning)];
    [&flags[..], &STEPS].concat()
}

/// A folder with a profile of the tiny graph's machines.
fn probed(parts: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.json");
    let flags = ["probe", text(parts), "--out", text(&profile)];
    succeeds(&[&flags[..], &SHORT_PROBE].concat());
    folder
}

#[test]
fn a_probe_measures_every_owner_over_the_lanes_and_says_how() {
    let _alone = serial();
    let parts = tiny_parts(2000, 3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let said = succeeds(&[&["probe", text(parts), "--out", text(&path)][..], &SHORT_PROBE].concat());
    let profile = json(&path);
    let quality = profile["quality"].as_str().unwrap();
    assert!(said.contains(&format!("joules are {quality} (")), "{said}");
    let owners: Vec<u64> = profile["owners"]
        .as_array()
        .unwrap()
        .iter()
        .map(|owner| number(&owner["owner"]))
        .collect();
    assert_eq!(owners, [0, 1, 2]);
    let points = profile["points"].as_array().unwrap();
    assert_eq!(points.len(), 3 * 2 * 5);
    for point in points {
        assert!(
            number(&point["requests"]) > 0 && point["seconds"].as_f64().unwrap() > 0.0,
            "{point}"
        );
        assert_ne!(point["client"], point["owner"]);
    }
    assert!(!profile["delivery"].is_null() && profile["bytes_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_cannot_be_probed_is_refused_in_words() {
    let _alone = serial();
    let parts = tiny_parts(2000, 3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let refused = |flags: &[&str]| fails(&[&["probe", text(parts), "--out", text(&path)], flags].concat());
    assert!(refused(&["--probe-repeats", "2"]).contains("5 to 1000"));
    assert!(refused(&["--probe-sizes", "1000000,2000000"]).contains("fewer than two of the sizes"));
    let long = refused(&["--probe-seconds", "60", "--deadline-s", "1"]);
    assert!(long.contains("raise --deadline-s"), "{long}");
    assert!(!path.exists());
}

#[test]
fn a_run_that_chooses_its_windows_learns_the_same_to_the_bit() {
    let _alone = serial();
    let parts = tiny_parts(2000, 3);
    let tuning = probed(parts);
    for policy in ["window", "bulk"] {
        let common = [&["--policy", policy, "--epochs", "4", "--budget", "20%"][..], &STEPS].concat();
        let fixed = train(parts, &[&common[..], &["--window", "4"]].concat());
        let chosen = train(
            parts,
            &[&common[..], &["--window", "auto", "--tuning", text(tuning.path())]].concat(),
        );
        assert_eq!(chosen.weights(), fixed.weights(), "{policy}");
        let choice = json(&chosen.folder().join("choice.json"));
        let windows: Vec<u64> = [1, 2, 4, 8, 16, 32, 64].to_vec();
        let epochs = chosen.summary["epochs"].as_array().unwrap();
        assert!(
            epochs.iter().all(|epoch| windows.contains(&number(&epoch["window"]))),
            "{epochs:?}"
        );
        assert_eq!(choice["quality"], json(&tuning.path().join("profile.json"))["quality"]);
        assert_eq!(chosen.summary["is_window_chosen"], true);
        assert_eq!(fixed.summary["is_window_chosen"], false);
        // The profile was known, so nothing was probed: the run moved what its plans say and no more.
        assert_eq!(number(&chosen.summary["setup"]["feature_requests"]), 0);
    }
}

#[test]
fn a_run_without_a_profile_probes_first_and_counts_it_as_set_up() {
    let _alone = serial();
    let parts = tiny_parts(2000, 2);
    let empty = tempfile::tempdir().unwrap();
    let flags = ["--window", "auto", "--epochs", "1", "--tuning", text(empty.path())];
    let run = train(parts, &[&flags[..], &STEPS, &SHORT_PROBE].concat());
    assert!(number(&run.summary["setup"]["feature_requests"]) > 0);
    assert!(run.folder().join("choice.json").exists());
    let probing = &run.summary["probing"];
    assert!(probing["wall_s"].as_f64().unwrap() > 0.0);
    assert_eq!(
        json(&run.folder().join("profile.json"))["owners"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_choice_predicts_exactly_what_its_candidates_move() {
    let _alone = serial();
    let parts = tiny_parts(2000, 3);
    let tuning = probed(parts);
    let run = [&["--epochs", "2", "--budget", "20%"][..], &STEPS].concat();
    let flags = [
        "tune",
        text(parts),
        "--policies",
        "window,lru,bulk",
        "--windows",
        "1,4",
        "--json",
    ];
    let said = succeeds(&[&flags[..], &run, &["--tuning", text(tuning.path())]].concat());
    let choice: Value = serde_json::from_str(&said).unwrap();
    let predictions = choice["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), (3 + 1) * 2);
    let mut compared = 0;
    for prediction in predictions {
        let (policy, delivery) = (
            prediction["policy"].as_str().unwrap(),
            prediction["delivery"].as_str().unwrap(),
        );
        if policy == "bulk" && delivery == "windowed" {
            // It plans with the measured crossover, which only a run that chooses does too.
            continue;
        }
        let window = number(&prediction["window"]).to_string();
        let candidate = ["--policy", policy, "--delivery", delivery, "--window", &window];
        let summary = train_json(parts, &[&candidate[..], &run].concat());
        for (counted, predicted) in [
            ("feature_requests", "requests"),
            ("feature_rows", "rows"),
            ("deliveries", "deliveries"),
        ] {
            let of = |period: &Value| number(&period[counted]);
            let ran: u64 =
                summary["epochs"].as_array().unwrap().iter().map(of).sum::<u64>() + of(&summary["evaluation"]);
            let plan = &prediction["plan"];
            let sum = number(&plan[format!("rebuild_{predicted}")]) + number(&plan[format!("miss_{predicted}")]);
            assert_eq!(ran, sum, "{policy}, {delivery}, window {window}: {counted}");
        }
        compared += 1;
    }
    assert_eq!(compared, 2 + 2 + 2);
    assert_eq!(json(&tuning.path().join("choice.json")), choice);
}

#[test]
fn an_evaluation_runs_every_program_and_stands_beside_the_best_constant_order() {
    let _alone = serial();
    let parts = tiny_parts(2000, 2);
    let tuning = probed(parts);
    let flags = [
        "tune",
        text(parts),
        "--evaluate",
        "--policies",
        "window,bulk",
        "--windows",
        "1,4,64",
        "--repeats",
        "2",
    ];
    let run = short_run(tuning.path());
    let said = succeeds(&[&flags[..], &run].concat());
    for wanted in [
        "window (windowed), by CPU seconds per epoch",
        "by joules per epoch (estimated)",
        "measured",
        "simulated",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let evaluated = json(&tuning.path().join("evaluation.json"));
    let settings = evaluated.as_array().unwrap();
    assert_eq!(settings.len(), 2);
    for setting in settings {
        for window in setting["windows"].as_array().unwrap() {
            let runs = window["runs"].as_array().unwrap();
            assert_eq!(runs.len(), 2);
            assert!(
                runs.iter()
                    .all(|run| run["cpu_s"].as_f64().unwrap() > 0.0 && run["quality"].is_string())
            );
        }
    }
}

#[test]
fn a_calibration_is_kept_and_says_whether_it_is_of_use() {
    let _alone = serial();
    let parts = tiny_parts(2000, 2);
    let tuning = probed(parts);
    let stale = tuning.path().join("calibration.json");
    std::fs::write(&stale, "{}").unwrap();
    let flags = [
        "tune",
        text(parts),
        "--policies",
        "window",
        "--calibrate",
        "1,2,4",
        "--repeats",
        "2",
    ];
    let run = short_run(tuning.path());
    // What is no calibration is refused and not passed over.
    let refused = fails(&[&flags[..], &run].concat());
    assert!(refused.contains("calibration.json"), "{refused}");
    std::fs::remove_file(&stale).unwrap();
    let output = greengnn(&[&flags[..], &run].concat());
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    // Windows of a tiny graph may cost the same; then there is nothing to learn, and that is said.
    assert_eq!(stale.exists(), said.contains("pairs of windows"), "{said}");
    assert!(said.contains("calibration: "), "{said}");
}

/// Runs of every kind that choose, each beside one that does not.
#[test]
fn what_is_learnt_does_not_depend_on_the_choice_in_any_kind_of_run() {
    let _alone = serial();
    let parts = tiny_parts(2000, 3);
    let tuning = probed(parts);
    let common = [&["--epochs", "3", "--budget", "20%"][..], &STEPS].concat();
    let kinds: [&[&str]; 6] = [
        &["--resample", "never", "--ahead", "0"],
        &["--row-type", "int8"],
        &["--verify"],
        &["--machines", "1"],
        &["--delivery", "stream"],
        &["--policy", "window", "--preaggregate", "off"],
    ];
    for kind in kinds {
        let fixed = train(parts, &[&common[..], kind].concat());
        let auto = ["--window", "auto", "--tuning", text(tuning.path())];
        let chosen = train(parts, &[&common[..], kind, &auto, &SHORT_PROBE].concat());
        assert_eq!(chosen.weights(), fixed.weights(), "{kind:?}");
        assert!(chosen.folder().join("choice.json").exists(), "{kind:?}");
    }
}

#[test]
fn a_graph_in_one_part_has_nothing_to_choose_and_trains() {
    let _alone = serial();
    let parts = tiny_parts(2000, 1);
    let run = train(parts, &[&["--window", "auto", "--epochs", "1"][..], &STEPS].concat());
    assert_eq!(run.summary["epochs"].as_array().unwrap().len(), 1);
    let refused = fails(&["tune", text(parts)]);
    assert!(refused.contains("one part"), "{refused}");
}

#[test]
fn what_cannot_be_tuned_is_refused_in_words() {
    let _alone = serial();
    let parts = tiny_parts(2000, 2);
    let tune = |flags: &[&str]| fails(&[&["tune", text(parts)], flags].concat());
    assert!(tune(&["--policies", "vip"]).contains("vip"));
    assert!(tune(&["--communication", "push-pull"]).contains("push-pull moves no rows"));
    assert!(tune(&["--calibrate", "1,4"]).contains("at least three windows"));
    assert!(tune(&["--calibrate", "1,3,4"]).contains("not one of the candidates"));
    assert!(tune(&["--windows", "4,4"]).contains("twice"));
    let auto = fails(&["train", text(parts), "--policy", "lru", "--window", "auto"]);
    assert!(auto.contains("lru has no windows"), "{auto}");
}
