//! `greengnn plan` prices trace files alone, and its prices are what a run then moves.

mod common;

use std::path::Path;

use common::{number, serial, succeeds, text, tiny_parts, train};
use serde_json::Value;

const EPOCHS: u64 = 2;

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
    let traces = folder.path().join("traces");
    let flags = [
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
    // Evaluation has a trace file of its own. Without a cache it changes nothing; of a cache that looks back only it comes
    // after the first epoch.
    for (policy, epochs) in [("on-demand", 2), ("lru", 1), ("lfu", 1), ("fifo", 1)] {
        let run = train(
            parts,
            &[
                &flags[..],
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
        let prices = price(parts, &traces, 0, policy);
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
