//! Two levels of memory: rows that stay on the device.

use serde_json::Value;

use crate::common::{TrainRun, fails, number, serial, text, tiny_parts, train};
use crate::small;

const STATIC: [&str; 4] = ["degree", "presample", "vip", "two-level"];

fn run(policy: &str, flags: &[&str]) -> TrainRun {
    let machines: &[&str] = if flags.contains(&"--machines") {
        &[]
    } else {
        &["--machines", "1"]
    };
    let base = ["--policy", policy, "--budget", "30%"];
    train(tiny_parts(2_000, 4), &small(&[&base, machines, flags].concat()))
}

/// Device hits, host hits and direct rows of training; and own rows on the device and on the host.
fn levels(epoch: &Value) -> ([u64; 3], [u64; 2]) {
    let of = |name: &str| number(&epoch[name]);
    (
        [of("device_hit_rows"), of("host_hit_rows"), of("direct_rows")],
        [of("device_own_rows"), of("host_own_rows")],
    )
}

#[test]
fn a_device_cache_changes_where_rows_are_read_and_no_bit() {
    let _serial = serial();
    let mut weights = Vec::new();
    for policy in STATIC {
        let without = run(policy, &["--device-budget", "0", "--preaggregate", "off"]);
        for flags in [
            &["--device-budget", "10%"][..],
            &["--device-budget", "1row"],
            // The whole budget.
            &["--device-budget", "30%", "--verify", "--preaggregate", "off"],
            &["--device-budget", "30%", "--preaggregate", "on", "--machines", "4"],
        ] {
            let with = run(policy, flags);
            weights.push(with.weights().to_owned());
            let summary = &with.summary;
            assert!(
                number(&summary["device_rows"]) <= number(&summary["device_budget_rows"]),
                "{summary}"
            );
            assert!(
                number(&summary["device_budget_rows"]) <= number(&summary["budget_rows"]),
                "{summary}"
            );
            assert!(
                number(&summary["held_rows_peak"]) <= number(&summary["budget_rows"]),
                "{summary}"
            );
            assert!(number(&summary["device_rows"]) > 0, "{policy} {flags:?}");
            // Every row on the device is 16 features of 4 bytes, uploaded once at set-up, on each of four ranks.
            let uploaded = number(&summary["setup"]["upload_bytes"]);
            assert!(
                uploaded > 0 && uploaded <= 4 * number(&summary["device_rows"]) * row_bytes(&with),
                "{summary}"
            );
            let epochs = |run: &TrainRun| run.summary["epochs"].as_array().unwrap().clone();
            for (epoch, before) in epochs(&with).iter().zip(epochs(&without)) {
                let ([device, host, direct], [device_own, host_own]) = levels(epoch);
                let ([_, held, missed], [nothing, own]) = levels(&before);
                assert!(device + device_own > 0, "{policy} {flags:?}: {epoch}");
                assert_eq!(nothing, 0);
                assert_eq!(device_own + host_own, own);
                assert!(device_own == 0 || policy == "two-level", "{epoch}");
                assert_eq!(device + host + direct, held + missed, "{policy} {flags:?}");
                if policy != "two-level" {
                    // Levels split what is held; they do not change it.
                    assert_eq!(direct, missed, "{policy} {flags:?}");
                    assert_eq!(epoch["feature_rows"], before["feature_rows"]);
                }
                let bytes = (host + direct + host_own) * row_bytes(&with);
                assert_eq!(number(&epoch["upload_bytes"]), bytes, "{policy} {flags:?}");
                assert_eq!(
                    number(&before["upload_bytes"]),
                    (held + missed + own) * row_bytes(&with)
                );
            }
        }
        weights.push(without.weights().to_owned());
    }
    weights.dedup();
    assert_eq!(weights.len(), 1, "{weights:?}");
}

/// Bytes of a feature row, from what moved.
fn row_bytes(run: &TrainRun) -> u64 {
    let setup = &run.summary["setup"];
    number(&setup["feature_bytes"]) / number(&setup["feature_rows"])
}

#[test]
fn rows_in_fewer_bits_are_on_the_device_as_they_are_decoded() {
    let _serial = serial();
    let short = ["--row-type", "int8", "--verify"];
    let on_demand = run("on-demand", &short);
    for device_budget in ["0", "10%"] {
        let with = run("two-level", &[&short[..], &["--device-budget", device_budget]].concat());
        assert_eq!(with.weights(), on_demand.weights(), "{device_budget}");
    }
}

#[test]
fn an_estimate_that_counts_correct_holds_other_rows() {
    let _serial = serial();
    let moved = |flags: &[&str]| {
        let run = run("vip", flags);
        run.summary["epochs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|epoch| number(&epoch["feature_rows"]))
            .sum::<u64>()
    };
    let (estimate, half) = (moved(&[]), moved(&["--vip-weight", "0.5", "--presample-epochs", "4"]));
    let counts = moved(&["--vip-weight", "0", "--presample-epochs", "4"]);
    let presample = run("presample", &["--presample-epochs", "4"]);
    let of_presample: u64 = presample.summary["epochs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|epoch| number(&epoch["feature_rows"]))
        .sum();
    assert_eq!(counts, of_presample, "without the estimate only the counts are left");
    assert!(half != estimate && half != counts, "{estimate} {half} {counts}");
}

#[test]
fn a_policy_without_levels_refuses_a_device_budget() {
    let error = fails(&[
        "train",
        text(tiny_parts(600, 4)),
        "--policy",
        "bulk",
        "--device-budget",
        "5%",
    ]);
    assert!(error.contains("policy bulk keeps no rows on the device"), "{error}");
}
