//! `greengnn compare` on a tiny graph: equal weights, one table, and nothing run twice.

mod common;

use std::path::Path;
use std::time::SystemTime;

use common::{fails, number, serial, succeeds, text, tiny_parts};
use serde_json::Value;

const RUNS: usize = 2 * 2;

fn arguments<'a>(parts: &'a Path, out: &'a Path, seed: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["compare", text(parts), "--out", text(out), "--seed", seed, "--json"];
    arguments.extend([
        "--policies",
        "on-demand,bulk",
        "--budgets",
        "25%",
        "--batch-sizes",
        "64",
    ]);
    arguments.extend(["--epochs", "1", "--repeats", "2", "--fanouts", "5,3", "--hidden", "8"]);
    arguments.extend(["--machines", "1", "--device", "cpu"]);
    arguments
}

fn runs(out: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(out.join("runs")).unwrap();
    let mut runs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    runs.sort();
    runs
}

fn finished_at(run: &Path) -> SystemTime {
    let summary = std::fs::metadata(run.join("summary.json")).unwrap();
    summary.modified().unwrap()
}

#[test]
fn policies_are_compared_and_an_interrupted_comparison_goes_on() {
    let _serial = serial();
    let parts = tiny_parts(1_000, 2);
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("comparison");
    let first: Value = serde_json::from_str(&succeeds(&arguments(parts, &out, "1"))).unwrap();

    let cells = first["cells"].as_array().unwrap();
    assert_eq!(cells.len(), RUNS);
    for cell in cells {
        assert_eq!(cell["policy"], cell["cell"]["policy"]);
        assert_eq!(number(&cell["seed"]), 1 + number(&cell["cell"]["repeat"]));
        let twin = |other: &&Value| other["seed"] == cell["seed"] && other["policy"] != cell["policy"];
        let twin = cells.iter().find(twin).unwrap();
        assert_eq!(cell["weights_sha256"], twin["weights_sha256"]);
    }
    let table = first["table"].as_array().unwrap();
    let rows = |line: &Value| {
        let figures = line["figures"].as_array().unwrap();
        let rows = figures.iter().find(|figure| figure["name"] == "rows").unwrap();
        rows["estimate"]["mean"].as_f64().unwrap()
    };
    assert_eq!(
        (&table[0]["policy"], &table[1]["policy"]),
        (&"on-demand".into(), &"bulk".into())
    );
    assert!(rows(&table[1]) < rows(&table[0]), "{table:?}");

    for cell in cells {
        let bound = &cell["row_bound"];
        let moved: u64 = ["setup", "evaluation"]
            .iter()
            .map(|period| number(&cell[period]["feature_rows"]))
            .sum();
        let moved = moved + number(&cell["epochs"][0]["feature_rows"]);
        // Without a cache every row that is needed moves; with one, no fewer than the bound.
        if cell["policy"] == "on-demand" {
            assert_eq!(moved, number(&bound["needed_rows"]), "{cell}");
        }
        assert!(moved >= number(&bound["fewest_rows"]), "{cell}");
        assert!(
            number(&bound["fewest_rows"]) >= number(&bound["compulsory_rows"]),
            "{cell}"
        );
        assert!(cell["step_times"]["forward_s"].as_f64().unwrap() > 0.0);
        let period = &cell["epochs"][0];
        assert_eq!(
            period["energy_by_device"]["cpu"]["joules"].is_null(),
            period["energy_j"].is_null(),
            "{period}"
        );
    }
    assert!(table[0]["changes"].as_array().unwrap().is_empty());
    let change = &table[1]["changes"].as_array().unwrap()[5];
    assert_eq!(change["name"], "rows");
    assert!(change["percent"].as_f64().unwrap() < 0.0, "{change}");

    let csv = std::fs::read_to_string(out.join("comparison.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + table.len());
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert_eq!(page.matches("<a href=\"runs/").count(), RUNS);
    assert!(page.contains("As Figure 1: ") && page.contains("As Figure 2: "));

    // As if it had been interrupted while the first of these ran.
    let folders = runs(&out);
    let before: Vec<_> = folders.iter().map(|run| finished_at(run)).collect();
    std::fs::remove_file(folders[0].join("summary.json")).unwrap();
    std::fs::remove_file(out.join("comparison.json")).unwrap();
    let second: Value = serde_json::from_str(&succeeds(&arguments(parts, &out, "1"))).unwrap();
    assert_eq!(runs(&out), folders);
    let after: Vec<_> = folders.iter().map(|run| finished_at(run)).collect();
    assert!(
        after[0] > before[0] && after[1..] == before[1..],
        "{before:?} {after:?}"
    );
    assert!(out.join("comparison.json").is_file());
    let counts = |comparison: &Value| -> Vec<Value> {
        let cells = comparison["cells"].as_array().unwrap().iter();
        cells.map(|cell| cell["epochs"][0]["feature_rows"].clone()).collect()
    };
    assert_eq!(counts(&second), counts(&first));

    let refused = fails(&arguments(parts, &out, "2"));
    assert!(
        refused.contains("holds another comparison, which differs in design.seed"),
        "{refused}"
    );
    assert_eq!(runs(&out), folders);
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_runs() {
    let _serial = serial();
    let parts = tiny_parts(1_000, 2);
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("comparison");
    for (flag, value, said) in [
        ("--policies", "bulk,bulk", "policies names bulk twice"),
        ("--policies", "bulky", "there is no policy \"bulky\""),
        ("--batch-sizes", "0", "batch-size must be at least 1"),
        ("--repeats", "0", "repeats must be at least 1"),
        ("--windows", "4,4", "windows names 4 twice"),
        ("--keep-trace", "traces", "keep them with `train`"),
        ("--communication", "push-pull", "push-pull is no policy"),
        ("--policies", "bulk,push-pull", "`train --communication push-pull`"),
    ] {
        let error = fails(&["compare", text(parts), "--out", text(&out), flag, value]);
        assert!(error.contains(said), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn windows_are_compared_for_the_policies_that_use_them() {
    let _serial = serial();
    let parts = tiny_parts(1_000, 2);
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("comparison");
    let mut arguments = vec![
        "compare",
        text(parts),
        "--out",
        text(&out),
        "--json",
        "--no-bounds",
        "--policy",
        "window",
    ];
    arguments.extend([
        "--budget",
        "25%",
        "--batch-size",
        "32",
        "--windows",
        "1,4",
        "--repeats",
        "1",
        "--epochs",
        "1",
    ]);
    arguments.extend([
        "--fanouts",
        "5,3",
        "--hidden",
        "8",
        "--machines",
        "1",
        "--device",
        "cpu",
    ]);
    let comparison: Value = serde_json::from_str(&succeeds(&arguments)).unwrap();
    let cells = comparison["cells"].as_array().unwrap();
    let windows: Vec<_> = cells
        .iter()
        .map(|cell| (number(&cell["cell"]["window"]), number(&cell["window"])))
        .collect();
    assert_eq!(windows, [(1, 1), (4, 4)]);
    assert_eq!(cells[0]["weights_sha256"], cells[1]["weights_sha256"]);
    assert!(cells.iter().all(|cell| cell["row_bound"].is_null()));
    let rows = |cell: &Value| number(&cell["epochs"][0]["feature_rows"]);
    assert_ne!(rows(&cells[0]), rows(&cells[1]), "{cells:?}");
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(
        page.contains("window 25% W=4") && page.contains("As Figure 6: "),
        "{page}"
    );
}
