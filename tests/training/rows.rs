//! Feature rows that are owned apart from their nodes: who owns them changes what moves, and no weight.

use std::path::Path;

use greengnn_model::store::PartsManifest;

use crate::common::{debian_graph, debian_parts, fails, number, serial, succeeds, text, train};

/// Rows that an epoch moves, and the weights, of a run whose counts agree with what was planned and served.
fn one_epoch(parts: &Path, flags: &[&str]) -> (u64, String) {
    let base = [
        "--epochs",
        "1",
        "--batch-size",
        "1000",
        "--hidden",
        "16",
        "--threads",
        "1",
    ];
    let run = train(parts, &[&base[..], flags].concat());
    for line in run.metrics("rank") {
        assert_eq!(
            line["planned"]["feature_rows"], line["counted"]["feature_rows"],
            "{line}"
        );
        assert_eq!(
            line["planned"]["feature_rows"], line["served"]["feature_rows"],
            "{line}"
        );
    }
    let rows = number(&run.summary["epochs"][0]["feature_rows"]);
    (rows, run.summary["weights_sha256"].as_str().unwrap().to_owned())
}

#[test]
fn moved_rows_change_what_moves_as_foretold_and_no_weight() {
    let _serial = serial();
    let folder = tempfile::tempdir().unwrap();
    let moved = folder.path().join("moved");
    let plain = debian_parts(4);
    let graph = text(debian_graph());
    succeeds(&[
        "partition",
        graph,
        "--parts",
        "4",
        "--out",
        text(&moved),
        "--refine",
        "rows",
    ]);
    let manifest = PartsManifest::open(&moved).unwrap();
    let record = manifest.partitioner.refinement.clone().unwrap();
    assert_eq!(manifest.book, PartsManifest::open(plain).unwrap().book);
    assert!(record.moved_rows > 1_000, "{record:?}");
    assert!(record.balance_rows < 1.0501, "{record:?}");
    assert!(record.expected_rows_after < record.expected_rows_before, "{record:?}");

    let traces = folder.path().join("traces");
    let on_demand = ["--policy", "on-demand"];
    let keep = ["--keep-trace", text(&traces), "--verify"];
    let (rows_before, weights) = one_epoch(plain, &on_demand);
    let (rows_after, same) = one_epoch(&moved, &[&on_demand[..], &keep].concat());
    assert_eq!(weights, same, "on-demand");
    // Without a cache a run moves what was presampled when the graph was cut.
    assert_eq!(rows_before, record.presampled_rows_before);
    assert_eq!(rows_after, record.presampled_rows_after);
    assert!(rows_after < rows_before, "{rows_after} of {rows_before}");

    // The traces alone tell the same.
    let mut priced = 0;
    for rank in 0..4 {
        let trace = traces.join(format!("epoch-0/rank-{rank}.trace"));
        let prices = succeeds(&[
            "plan",
            text(&moved),
            "--trace",
            text(&trace),
            "--policy",
            "on-demand",
            "--json",
        ]);
        let prices: serde_json::Value = serde_json::from_str(&prices).unwrap();
        priced += number(&prices["epochs"][0]["training"]["feature_rows"]);
    }
    assert_eq!(priced, rows_after);

    // Scores of nodes reach the rows that were moved, and so does what stays on the device.
    let policies = [
        ("bulk", "4"),
        ("degree", "2"),
        ("presample", "1"),
        ("vip", "4"),
        ("two-level", "2"),
    ];
    for (policy, machines) in policies {
        let flags = [
            "--policy",
            policy,
            "--machines",
            machines,
            "--budget",
            "25%",
            "--verify",
        ];
        let (rows, same) = one_epoch(&moved, &flags);
        assert_eq!(weights, same, "{policy} on {machines} machines");
        assert!(rows < rows_after, "{policy}: {rows} of {rows_after}");
    }

    let refused = fails(&["train", text(&moved), "--communication", "push-pull"]);
    assert!(refused.contains("own rows apart from their nodes"), "{refused}");
}
