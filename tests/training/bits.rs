//! One configuration gives one set of weights and one trace, whatever carries them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{debian_parts, serial, text, tiny_parts, train, train_json, train_with};
use crate::{POLICIES, small};

fn small_weights(flags: &[&str]) -> String {
    weights(tiny_parts(600, 4), &small(flags))
}

fn weights(parts: &Path, flags: &[&str]) -> String {
    let summary = train_json(parts, flags);
    summary["weights_sha256"].as_str().unwrap().to_owned()
}

#[test]
fn every_policy_number_of_machines_and_of_threads_gives_the_same_weights() {
    let _serial = serial();
    let mut found = BTreeMap::new();
    for policy in POLICIES {
        for machines in ["1", "4"] {
            for threads in ["1", "2"] {
                let flags = ["--policy", policy, "--machines", machines, "--threads", threads];
                found.insert(flags.join(" "), small_weights(&flags));
            }
        }
    }
    all_the_same(&found);
}

#[test]
fn every_policy_gives_the_same_weights_on_the_debian_graph() {
    let _serial = serial();
    let parts = debian_parts(4);
    let base = ["--epochs", "2", "--batch-size", "1000", "--hidden", "128"];
    let cells = [
        ("on-demand", "4", "1"),
        ("window", "4", "2"),
        ("bulk", "1", "2"),
        ("bulk", "4", "1"),
        ("full", "1", "1"),
        ("vip", "4", "1"),
        ("two-level", "4", "1"),
    ];
    let mut found = BTreeMap::new();
    for (policy, machines, threads) in cells {
        let flags = ["--policy", policy, "--machines", machines, "--threads", threads];
        found.insert(flags.join(" "), weights(parts, &[&base[..], &flags].concat()));
    }
    all_the_same(&found);
}

#[test]
fn windows_budgets_and_the_way_to_aggregate_change_no_bit() {
    let _serial = serial();
    let mut found = BTreeMap::new();
    let mut add = |flags: &[&str]| {
        let flags = [flags, &["--machines", "1"]].concat();
        found.insert(flags.join(" "), small_weights(&flags));
    };
    for policy in ["window", "bulk"] {
        for window in ["1", "3", "16"] {
            add(&["--policy", policy, "--window", window]);
        }
        for budget in ["0", "1row", "10%", "100%", "4KiB"] {
            add(&["--policy", policy, "--budget", budget]);
        }
    }
    for policy in POLICIES {
        add(&["--policy", policy, "--ahead", "0"]);
        add(&["--policy", policy, "--verify", "--budget", "10%"]);
    }
    for preaggregate in ["on", "off", "auto"] {
        add(&["--preaggregate", preaggregate]);
    }
    all_the_same(&found);
}

/// Another order of the seeds is another training, but one that policies, machines and threads do not touch either.
#[test]
fn proximity_order_gives_other_weights_and_the_same_ones_everywhere() {
    let _serial = serial();
    let mut found = BTreeMap::new();
    for policy in POLICIES {
        for (machines, threads) in [("1", "2"), ("4", "1")] {
            let flags = ["--batch-order", "proximity:3", "--policy", policy];
            let placed = ["--machines", machines, "--threads", threads];
            let flags = [&flags[..], &placed].concat();
            found.insert(flags.join(" "), small_weights(&flags));
        }
    }
    all_the_same(&found);
    let ordered = found.values().next().unwrap().clone();
    let flags = |order| ["--machines", "1", "--batch-order", order];
    assert_ne!(ordered, small_weights(&flags("random")));
    assert_ne!(ordered, small_weights(&flags("proximity:4")));
    assert_eq!(small_weights(&flags("random")), small_weights(&["--machines", "1"]));
}

#[test]
fn another_seed_gives_other_weights() {
    let _serial = serial();
    let seeded = |seed| small_weights(&["--machines", "1", "--seed", seed]);
    let one = seeded("1");
    assert_ne!(one, seeded("2"));
    assert_eq!(one, seeded("1"));
}

#[test]
fn a_replayed_trace_is_one_file_and_gives_the_same_weights_under_every_policy() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    let mut found = BTreeMap::new();
    for policy in POLICIES {
        for machines in ["1", "4"] {
            let traces = tempfile::tempdir().unwrap();
            let flags = ["--epochs", "3", "--resample", "never", "--policy", policy];
            let keep = ["--machines", machines, "--keep-trace", text(traces.path())];
            let run = train(parts, &small(&[&flags[..], &keep].concat()));
            found.insert(format!("{policy} {machines}"), run.weights().to_owned());
            let epochs: Vec<_> = trace_files(traces.path())
                .into_keys()
                .filter(|name| name.starts_with("epoch-"))
                .collect();
            let first = [0, 1, 2, 3].map(|rank| format!("epoch-0/rank-{rank}.trace"));
            assert_eq!(epochs, first, "{policy} {machines}");
        }
    }
    all_the_same(&found);
    let fresh = small_weights(&["--epochs", "3", "--machines", "1"]);
    assert_ne!(Some(&fresh), found.values().next());
}

#[test]
fn the_trace_is_the_same_files_on_any_machines_and_threads() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    let mut first: Option<BTreeMap<String, Vec<u8>>> = None;
    for machines in ["1", "4"] {
        for threads in ["1", "2"] {
            let traces = tempfile::tempdir().unwrap();
            let flags = ["--machines", machines, "--threads", threads];
            let keep = ["--keep-trace", text(traces.path())];
            train_json(parts, &small(&[&flags[..], &keep].concat()));
            let files = trace_files(traces.path());
            // Two epochs and the evaluation, of four ranks.
            assert_eq!(files.len(), 12, "{:?}", files.keys());
            match &first {
                None => first = Some(files),
                Some(first) => {
                    assert!(first.keys().eq(files.keys()), "{flags:?}");
                    for (name, bytes) in &files {
                        assert!(first[name] == *bytes, "{name} differs with {flags:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_trace_that_nobody_keeps_is_deleted() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let run = train_with(tiny_parts(600, 4), &small(&[]), |command| {
        command.env("TMPDIR", scratch.path());
    });
    let left: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(left.is_empty(), "{left:?} is left by a run that said\n{}", run.stderr);
}

fn all_the_same(found: &BTreeMap<String, String>) {
    let mut distinct: Vec<_> = found.values().collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 1, "{found:#?}");
    assert_eq!(distinct[0].len(), 64, "{found:#?}");
}

/// All files of a trace folder by their names below it.
fn trace_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let below = entry.unwrap().path();
        for file in fs::read_dir(&below).unwrap() {
            let file = file.unwrap().path();
            let name = text(file.strip_prefix(folder).unwrap()).to_owned();
            files.insert(name, fs::read(&file).unwrap());
        }
    }
    files
}
