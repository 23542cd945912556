//! Remote rows in fewer bits: what they cost, what they change, and what they do not.

use greengnn_model::row_type::RowType;
use greengnn_model::store::PartsManifest;
use serde_json::Value;

use crate::common::{TrainRun, debian_parts, fails, number, serial, text, tiny_parts, train};
use crate::small;

/// Summaries of all periods of a run.
fn periods(run: &TrainRun) -> Vec<&Value> {
    let epochs = run.summary["epochs"].as_array().unwrap();
    epochs
        .iter()
        .chain([&run.summary["setup"], &run.summary["evaluation"]])
        .collect()
}

#[test]
fn every_row_type_trains_the_debian_graph_alike_and_moves_the_bytes_it_says() {
    let _serial = serial();
    let parts = debian_parts(4);
    let width = PartsManifest::open(parts).unwrap().features;
    let mut exact = None;
    for row_type in RowType::ALL {
        let cells = [
            ("bulk", "4", "windowed"),
            ("on-demand", "1", "windowed"),
            ("window", "4", "windowed"),
            ("bulk", "4", "stream"),
        ];
        let runs = cells.map(|(policy, machines, delivery)| {
            let flags = ["--epochs", "5", "--policy", policy, "--machines", machines, "--verify"];
            let carried = ["--delivery", delivery, "--row-type", row_type.name()];
            train(parts, &[&flags[..], &carried].concat())
        });
        for (run, (policy, machines, delivery)) in runs.iter().zip(cells) {
            assert_eq!(
                run.weights(),
                runs[0].weights(),
                "{row_type} under {policy}, {delivery}, on {machines}"
            );
            assert_eq!(run.summary["row_type"], row_type.name());
            for period in periods(run) {
                let (rows, bytes) = (number(&period["feature_rows"]), number(&period["feature_bytes"]));
                assert_eq!(
                    bytes,
                    rows * row_type.row_bytes(width) as u64,
                    "{row_type} under {policy}"
                );
                // Beside rows there are ids, samples and gradients on the wire.
                let wire = number(&period["wire_bytes"]);
                assert!(machines == "1" || wire >= bytes, "{row_type}: {wire} of {bytes} bytes");
            }
            let accuracy = run.summary["test_accuracy"].as_f64().unwrap();
            let exact = *exact.get_or_insert(accuracy);
            assert!(
                (accuracy - exact).abs() < 0.02,
                "{row_type}: {accuracy}, exact rows {exact}"
            );
        }
    }
}

#[test]
fn fewer_bits_put_fewer_bytes_on_the_wire_and_another_result_in_the_weights() {
    let _serial = serial();
    let parts = debian_parts(4);
    let run = |row_type: &str| {
        let flags = ["--epochs", "1", "--policy", "on-demand", "--row-type", row_type];
        let run = train(parts, &flags);
        let epoch = &run.summary["epochs"][0];
        let figures = ["feature_rows", "feature_bytes", "wire_bytes"].map(|name| number(&epoch[name]));
        (figures, run.weights().to_owned())
    };
    let ([rows, exact_bytes, exact_wire], exact_weights) = run("f32");
    for row_type in ["f16", "bf16", "int8"] {
        let ([found, bytes, wire], weights) = run(row_type);
        assert_eq!(found, rows, "{row_type}");
        // Ids, samples and gradients are the same; heads of frames are fewer.
        let saved = exact_bytes - bytes;
        let less = exact_wire - wire;
        assert!(
            less >= saved && less - saved < saved / 100,
            "{row_type}: {saved} of rows, {less} on the wire"
        );
        assert_ne!(weights, exact_weights, "{row_type}");
    }
}

#[test]
fn a_budget_in_bytes_holds_as_many_rows_as_the_row_type_allows() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let width = PartsManifest::open(parts).unwrap().features;
    for row_type in RowType::ALL {
        let budget = |text: &str| {
            let flags = ["--budget", text, "--row-type", row_type.name(), "--epochs", "1"];
            let run = train(parts, &small(&flags));
            number(&run.summary["budget_rows"])
        };
        // Below the remote rows of a rank for every type.
        let rows = 10_000 / row_type.row_bytes(width) as u64;
        assert_eq!(budget("10KB"), rows, "{row_type}");
        assert_eq!(budget("100rows"), 100, "{row_type}");
    }
}

#[test]
fn every_policy_and_way_to_aggregate_gives_the_same_weights_for_int8() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    let mut first = None;
    for policy in crate::POLICIES {
        for preaggregate in ["on", "off"] {
            let flags = [
                "--policy",
                policy,
                "--preaggregate",
                preaggregate,
                "--row-type",
                "int8",
                "--verify",
            ];
            let run = train(
                parts,
                &small(&[&flags[..], &["--machines", "1", "--budget", "2KiB"]].concat()),
            );
            let weights = run.weights().to_owned();
            assert_eq!(
                *first.get_or_insert(weights.clone()),
                weights,
                "{policy}, {preaggregate}"
            );
        }
    }
}

#[test]
fn a_row_type_that_there_is_not_is_refused_with_those_that_there_are() {
    let parts = tiny_parts(600, 4);
    let said = crate::common::greengnn(&["train", text(parts), "--row-type", "fp8"]);
    assert!(!said.status.success());
    let said = crate::common::said(&said);
    assert!(
        said.contains("fp8") && said.contains("write f32, f16, bf16 or int8"),
        "{said}"
    );
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.toml");
    std::fs::write(&config, "row-type = \"int4\"\n").unwrap();
    let said = fails(&["train", text(parts), "--config", text(&config)]);
    assert!(said.contains("int4") && said.contains("int8"), "{said}");
}
