//! `greengnn plan --explain` and `greengnn locality`: what is said before a run is what the run then does.

mod common;

use common::{fails, number, serial, succeeds, text, tiny_parts, train};
use serde_json::Value;

const SAMPLING: [&str; 6] = ["--epochs", "2", "--batch-size", "64", "--fanouts", "5,3"];
const CACHE: [&str; 4] = ["--budget", "10%", "--window", "4"];

#[test]
fn what_is_explained_is_what_a_run_then_moves() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let policies = [
        "on-demand",
        "degree",
        "presample",
        "lru",
        "epoch",
        "window",
        "bulk",
        "full",
    ];
    let names = policies.join(",");
    let arguments = [
        &["plan", text(parts), "--explain", "--json", "--policies", &names],
        &SAMPLING[..],
        &CACHE,
    ]
    .concat();
    let explained: Value = serde_json::from_str(&succeeds(&arguments)).unwrap();
    for (place, policy) in policies.iter().enumerate() {
        let prices = &explained["policies"][place];
        assert_eq!(prices["policy"], *policy);
        let flags = [
            &["--policy", policy, "--hidden", "8", "--machines", "1"],
            &SAMPLING[..],
            &CACHE,
        ]
        .concat();
        let run = train(parts, &flags).summary;
        for count in ["feature_requests", "deliveries", "feature_rows", "feature_bytes"] {
            assert_eq!(prices["setup"][count], run["setup"][count], "{policy}: {count}");
            assert_eq!(
                prices["evaluation"][count], run["evaluation"][count],
                "{policy}: {count}"
            );
            let epochs = run["epochs"].as_array().unwrap();
            let training: u64 = epochs.iter().map(|epoch| number(&epoch[count])).sum();
            assert_eq!(number(&prices["training"][count]), training, "{policy}: {count}");
        }
        let sampled = number(&explained["setup"]["sample_requests"]) + number(&prices["setup"]["sample_requests"]);
        assert_eq!(number(&run["setup"]["sample_requests"]), sampled, "{policy}");
        assert!(prices["over_min"].as_f64().unwrap() >= 1.0, "{prices}");
    }
    let rows = |place: usize| number(&explained["policies"][place]["whole"]["feature_rows"]);
    assert_eq!(rows(0), number(&explained["needed_rows"]));
    let curve = explained["curve"].as_array().unwrap();
    let fewest: Vec<_> = curve.iter().map(|point| number(&point["fewest_rows"])).collect();
    assert!(fewest.is_sorted_by(|a, b| a >= b), "{fewest:?}");
    assert_eq!(fewest.first(), explained["needed_rows"].as_u64().as_ref());
    assert_eq!(fewest.last(), explained["compulsory_rows"].as_u64().as_ref());
    let at_budget = curve.iter().find(|point| point["percent"] == 10).unwrap();
    assert_eq!(at_budget["fewest_rows"], explained["fewest_rows"]);
    // Up to a row a rank, 20 % is what 10 % and a tenth more are.
    let more = curve.iter().find(|point| point["percent"] == 20).unwrap();
    let saved = number(&at_budget["fewest_rows"]) - number(&more["fewest_rows"]);
    let said = number(&explained["more"][1]["saved_rows"]);
    // Each of the two tenths is rounded down.
    assert!(said <= saved && said * 100 >= saved * 95, "{said} {saved}");
    assert!(number(&explained["trace_bytes_peak"]) > 0);

    let said = succeeds(
        &[
            &["plan", text(parts), "--explain", "--policies", "bulk"],
            &SAMPLING[..],
            &CACHE,
        ]
        .concat(),
    );
    assert!(
        said.contains("what memory is worth") && said.contains("1 GiB more for every rank"),
        "{said}"
    );
}

#[test]
fn a_run_says_what_could_not_have_been_beaten() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let own = ["--policy", "bulk", "--hidden", "8", "--machines", "1", "--bound"];
    let run = train(parts, &[&own, &SAMPLING[..], &CACHE].concat());
    let explain = ["plan", text(parts), "--explain", "--json", "--policies", "bulk"];
    let explained: Value = serde_json::from_str(&succeeds(&[&explain, &SAMPLING[..], &CACHE].concat())).unwrap();
    let bound = &run.summary["row_bound"];
    for name in ["needed_rows", "compulsory_rows", "fewest_rows"] {
        assert_eq!(bound[name], explained[name], "{name}");
    }
    let written = std::fs::read(run.folder().join("summary.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), run.summary);
    let plain = train(parts, &[&own[..6], &SAMPLING[..], &CACHE].concat());
    assert!(plain.summary["row_bound"].is_null());
}

#[test]
fn flags_that_would_be_ignored_are_refused() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let error = fails(&["plan", text(parts), "--trace", "x.trace", "--batch-size", "7"]);
    assert!(error.contains("go with --explain"), "{error}");
    let error = fails(&["plan", text(parts), "--explain", "--policies", "bulky"]);
    assert!(error.contains("there is no policy \"bulky\""), "{error}");
    let output = common::greengnn(&["plan", text(parts), "--explain", "--budgets", "5%,10%"]);
    let error = common::said(&output);
    assert!(!output.status.success() && output.stdout.is_empty(), "{error}");
    assert!(error.contains("'--explain' cannot be used with '--budgets"), "{error}");
}

#[test]
fn a_run_is_explained_as_its_file_says_unless_flags_say_otherwise() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let sampling = "epochs = 2\nbatch-size = 64\nfanouts = [5, 3]\n";
    let cache = "policy = \"two-level\"\nbudget = \"10%\"\ndevice-budget = \"4%\"\nwindow = 4\nrow-type = \"f16\"\n";
    let scores = "vip-weight = 0.5\npresample-epochs = 3\nnetwork-cost = 2.0\nhidden = 8\nmachines = 1\n";
    std::fs::write(&file, [sampling, cache, scores].concat()).unwrap();
    let from_file = ["--config", text(&file)];
    let explain = |flags: &[&str]| -> Value {
        let explain = [
            "plan",
            text(parts),
            "--explain",
            "--json",
            "--policies",
            "two-level,window",
        ];
        serde_json::from_str(&succeeds(&[&explain, &from_file[..], flags].concat())).unwrap()
    };
    let explained = explain(&[]);
    assert_eq!(explained["budget"], "10%");
    for (place, flags) in [&[][..], &["--policy", "window", "--device-budget", "0"]]
        .iter()
        .enumerate()
    {
        let run = train(parts, &[&from_file, *flags].concat()).summary;
        let prices = &explained["policies"][place];
        for count in ["feature_requests", "feature_rows", "feature_bytes"] {
            assert_eq!(prices["setup"][count], run["setup"][count], "{flags:?}: {count}");
            let epochs = run["epochs"].as_array().unwrap();
            let training: u64 = epochs.iter().map(|epoch| number(&epoch[count])).sum();
            assert_eq!(number(&prices["training"][count]), training, "{flags:?}: {count}");
        }
        let sampled = number(&explained["setup"]["sample_requests"]) + number(&prices["setup"]["sample_requests"]);
        assert_eq!(number(&run["setup"]["sample_requests"]), sampled, "{flags:?}");
    }
    let overridden = explain(&["--budget", "20%", "--window", "2"]);
    assert_eq!(
        (&overridden["budget"], &overridden["window"]),
        (&"20%".into(), &2.into())
    );
}

#[test]
fn one_trace_says_too_little_for_policies_that_rank_rows() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    for (policy, scores) in [
        ("degree", "out-degrees"),
        ("presample", "presampled epochs"),
        ("vip", "probability"),
    ] {
        let error = fails(&["plan", text(parts), "--trace", "x.trace", "--policy", policy]);
        for words in [policy, scores, "--traces", "--explain"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}

#[test]
fn the_help_of_locality_says_its_own_number_of_epochs() {
    let help = succeeds(&["locality", "--help"]);
    assert!(
        help.contains("[default: 1]") && !help.contains("[default: 10]"),
        "{help}"
    );
}

#[test]
fn locality_is_below_its_ceiling_and_a_window_of_one_batch_repeats_nothing() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let flags = ["--batch-size", "64", "--fanouts", "5,3", "--windows", "1,4,16"];
    let found: Value =
        serde_json::from_str(&succeeds(&[&["locality", text(parts), "--json"], &flags[..]].concat())).unwrap();
    let windows = found["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 3);
    assert_eq!(
        (&windows[0]["requests_per_touched"], &windows[0]["seen_once_share"]),
        (&1.0.into(), &1.0.into())
    );
    let share = |value: &Value| value.as_f64().unwrap();
    for window in windows {
        for top in window["top"].as_array().unwrap() {
            assert!(share(&top["requests"]) <= share(&top["ceiling"]) + 1e-12, "{window}");
            assert!(
                share(&top["requests"]) <= share(&top["ceiling_here"]) + 1e-12,
                "{window}"
            );
            assert!(share(&top["edges"]) <= 1.0 && share(&top["requests_of_all"]) <= 1.0);
        }
        let longest = number(&window["longest"]) as f64;
        let tenth = &window["top"][2];
        assert_eq!(tenth["percent"], 10.0);
        assert!((share(&tenth["ceiling"]) - longest / (longest + 9.0)).abs() < 1e-12);
    }
    let means: Vec<_> = windows
        .iter()
        .map(|window| share(&window["requests_per_touched"]))
        .collect();
    assert!(means.is_sorted(), "{means:?}");
    let said = succeeds(&[&["locality", text(parts)], &flags[..]].concat());
    assert!(
        said.contains("the claim that the top 10 %") && said.contains("No graph"),
        "{said}"
    );
}
