//! `greengnn plan` prices trace files alone, and its prices are what a run then moves.

mod common;

use std::path::Path;

use common::{number, serial, succeeds, text, tiny_parts, train};
use serde_json::Value;

const EPOCHS: u64 = 2;

/// What the runs of these tests have in common.
const FLAGS: [&str; 10] = [
    "--epochs",
    "2",
    "--batch-size",
    "64",
    "--fanouts",
    "5,3",
    "--hidden",
    "8",
    "--machines",
    "1",
];

/// The prices of one rank's training epochs under a policy.
fn price(parts: &Path, traces: &Path, rank: u64, policy: &str) -> Value {
    let files: Vec<_> = (0..EPOCHS)
        .map(|epoch| traces.join(format!("epoch-{epoch}/rank-{rank}.trace")))
        .collect();
    let mut arguments = vec![
        "plan",
        text(parts),
        "--policy",
        policy,
        "--budget",
        "10%",
        "--window",
        "4",
        "--json",
    ];
    for file in &files {
        arguments.extend(["--trace", text(file)]);
    }
    serde_json::from_str(&succeeds(&arguments)).unwrap()
}

#[test]
fn prices_are_what_a_run_moves_and_never_below_the_bound() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let folder = tempfile::tempdir().unwrap();
    let traces_of = |policy: &str| folder.path().join(policy);
    // Evaluation has a trace file of its own. Without a cache it changes nothing; of a cache that looks back only it comes
    // after the first epoch.
    for (policy, epochs) in [("on-demand", 2), ("lru", 1), ("lfu", 1), ("fifo", 1)] {
        let traces = traces_of(policy);
        let run = train(
            parts,
            &[
                &FLAGS[..],
                &[
                    "--policy",
                    policy,
                    "--budget",
                    "10%",
                    "--window",
                    "4",
                    "--keep-trace",
                    text(&traces),
                ],
            ]
            .concat(),
        );
        for line in run.metrics("rank").iter().filter(|line| line["phase"] == "training") {
            if number(&line["epoch"]) >= epochs {
                continue;
            }
            let prices = price(parts, &traces, number(&line["rank"]), policy);
            let epoch = &prices["epochs"][number(&line["epoch"]) as usize]["training"];
            for count in ["feature_requests", "feature_rows"] {
                assert_eq!(epoch[count], line["served"][count], "{policy}: {line} {prices}");
            }
        }
    }
    for policy in ["on-demand", "lru", "lfu", "fifo", "epoch", "window", "bulk"] {
        let prices = price(parts, &traces_of("lru"), 0, policy);
        let of = |name: &str| number(&prices[name]);
        assert!(of("feature_rows") >= of("fewest_rows"), "{policy}: {prices}");
        assert!(
            of("fewest_rows") >= of("compulsory_rows") && of("needed_rows") >= of("feature_rows"),
            "{prices}"
        );
        assert!(of("held_rows_peak") <= of("budget_rows"), "{policy}: {prices}");
    }
}

#[test]
fn all_policies_are_priced_on_the_same_traces() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    train(
        parts,
        &[&FLAGS[..], &["--policy", "on-demand", "--keep-trace", text(&traces)]].concat(),
    );
    let table = ["plan", text(parts), "--traces", text(&traces), "--budgets", "10%,100%"];
    let prices: Value = serde_json::from_str(&succeeds(&[&table[..], &["--json"]].concat())).unwrap();
    assert_eq!((number(&prices["ranks"]), number(&prices["epochs"])), (4, EPOCHS));
    for budget in prices["budgets"].as_array().unwrap() {
        let lines = budget["policies"].as_array().unwrap();
        let line = |name: &str| lines.iter().find(|line| line["policy"] == name).unwrap();
        let rows = |name: &str| number(&line(name)["rows"]);
        assert_eq!(rows("on-demand"), number(&prices["needed_rows"]));
        // Two epochs are all that a plan of the first sees, so that nothing is lost to the horizon.
        for fewest in ["bulk, streamed", "bulk, fewest rows"] {
            assert_eq!(rows(fewest), number(&budget["fewest_rows"]), "{budget}");
        }
        let cost = |name: &str| rows(name) + 965 * number(&line(name)["requests"]);
        for other in ["on-demand", "lru", "window", "bulk, fewest rows"] {
            assert!(cost("bulk") <= cost(other), "{other}: {budget}");
        }
        // Streams ask every owner at most once an epoch.
        assert!(
            number(&line("bulk, streamed")["requests"]) <= 4 * 3 * EPOCHS,
            "{budget}"
        );
        // `full` holds every row, whatever the budget.
        for line in lines.iter().filter(|line| line["policy"] != "full") {
            assert!(
                number(&line["rows"]) >= number(&budget["fewest_rows"]),
                "{line} {budget}"
            );
        }
        // The best rows of these very traces are the best that a static policy can hold.
        let hits = |name: &str| line(name)["hit_rate"].as_f64().unwrap();
        for other in ["degree", "presample", "vip"] {
            assert!(hits("best static rows") >= hits(other) - 1e-9, "{other}: {budget}");
        }
    }
    // For people, one Markdown table per budget.
    let shown = succeeds(&[&table[..], &["--policies", "window,bulk"]].concat());
    assert_eq!(shown.matches("| bulk |").count(), 2, "{shown}");
}

#[test]
fn a_trace_of_another_graph_is_refused() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    train(
        parts,
        &[
            "--epochs",
            "1",
            "--batch-size",
            "64",
            "--machines",
            "1",
            "--keep-trace",
            text(&traces),
        ],
    );
    let file = traces.join("epoch-0/rank-1.trace");
    let error = common::fails(&["plan", text(tiny_parts(1_000, 4)), "--trace", text(&file)]);
    assert!(error.contains("rank-1.trace is of another graph"), "{error}");
}

#[test]
fn traces_of_two_runs_are_neither_kept_nor_priced_together() {
    let _serial = serial();
    let parts = tiny_parts(200, 2);
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["1", "2"].map(|seed| {
        let traces = folder.path().join(seed);
        train(
            parts,
            &[&FLAGS[..], &["--seed", seed, "--keep-trace", text(&traces)]].concat(),
        );
        traces
    });
    let out = folder.path().join("run");
    let again = ["train", text(parts), "--out", text(&out), "--keep-trace", text(&first)];
    let error = common::fails(&again);
    assert!(error.contains("is of another run"), "{error}");
    assert!(!out.exists(), "the run had begun");

    let file = |traces: &Path, epoch: u32| traces.join(format!("epoch-{epoch}/rank-1.trace"));
    let (one, other) = (file(&first, 0), file(&second, 1));
    let error = common::fails(&["plan", text(parts), "--trace", text(&one), "--trace", text(&other)]);
    let said = "the seed is 1 in the one and 2 in the other";
    for words in [text(&one), text(&other), said] {
        assert!(error.contains(words), "{words}: {error}");
    }
    let table = ["plan", text(parts), "--traces", text(&first)];
    let replaced = file(&first, 1);
    std::fs::copy(&other, &replaced).unwrap();
    let error = common::fails(&table);
    for words in [text(&first.join("epoch-0/rank-0.trace")), text(&replaced), said] {
        assert!(error.contains(words), "{words}: {error}");
    }
    // A rank that has fewer epochs than another.
    std::fs::remove_file(&replaced).unwrap();
    let error = common::fails(&table);
    assert!(error.contains("1 epochs for rank 1, and of 2 for rank 0"), "{error}");
}
