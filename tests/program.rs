//! The command line as a user meets it: help, refusals, what commands leave, and the demo.

mod common;

use std::path::Path;
use std::process::{ExitStatus, Output};
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, debian, fails, greengnn, said, serial, succeeds, text, tiny_parts};
use serde_json::Value;

/// The flags of `train` that scripts may count on.
const STABLE_FLAGS: [&str; 20] = [
    "--config",
    "--policy",
    "--window",
    "--budget",
    "--epochs",
    "--batch-size",
    "--fanouts",
    "--hidden",
    "--lr",
    "--dropout",
    "--seed",
    "--machines",
    "--threads",
    "--device",
    "--resample",
    "--preaggregate",
    "--ahead",
    "--out",
    "--json",
    "--metrics-addr",
];

/// The names in a folder, hidden ones too.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// An error as users should see it: at most `lines` lines on standard error, the first of which says `error:`, nothing
/// on standard output, and no success.
fn refused(arguments: &[&str], lines: usize) -> String {
    let output = greengnn(arguments);
    let said = said(&output);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    assert!(output.stdout.is_empty(), "{arguments:?}: {:?}", output.stdout);
    assert!(said.starts_with("error: "), "{arguments:?}: {said}");
    let count = said.lines().filter(|line| !line.is_empty()).count();
    assert!(count <= lines, "{arguments:?}: {said}");
    said
}

#[test]
fn help_shows_every_stable_flag_and_no_hidden_subcommand() {
    let help = succeeds(&["train", "--help"]);
    for flag in STABLE_FLAGS {
        assert!(
            help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")),
            "{flag}: {help}"
        );
    }
    let supervisor = succeeds(&["supervisor", "--help"]);
    for flag in STABLE_FLAGS.iter().chain(&["--listen"]) {
        assert!(supervisor.contains(flag), "{flag}: {supervisor}");
    }
    let expected: [(&str, &[&str]); 5] = [
        ("machine", &["--join", "--parts", "--name", "--listen"]),
        ("import", &["--out", "--svd", "--directed", "--classes"]),
        ("synth", &["--out", "--seed", "small"]),
        ("partition", &["--parts", "--out", "--method", "--seed"]),
        ("demo", &["--epochs", "--json"]),
    ];
    for (command, flags) in expected {
        let help = succeeds(&[command, "--help"]);
        for flag in flags {
            assert!(help.contains(flag), "{command} {flag}: {help}");
        }
        assert!(!help.contains("--parent"), "{help}");
    }
    let help = succeeds(&["--help"]);
    for command in ["import", "synth", "partition", "train", "supervisor", "machine", "demo"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!help.contains("metis-child"), "{help}");
    for hidden in ["--parent", "--resolved", "--announce"] {
        assert!(!supervisor.contains(hidden), "{supervisor}");
    }
}

#[test]
fn bad_values_are_named_before_any_process_starts() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let parts = text(tiny_parts(60, 2));
    let cases: [(&str, &str, &[&str]); 17] = [
        (
            "--policy",
            "belady",
            &["policy", "\"belady\"", "on-demand, degree,", "window, bulk, full"],
        ),
        ("--budget", "12x", &["budget", "\"12x\"", "MiB"]),
        ("--budget", "101%", &["budget", "\"101%\"", "100%"]),
        ("--window", "0", &["window", "at least 1", "found 0"]),
        ("--epochs", "0", &["epochs", "at least 1", "found 0"]),
        ("--batch-size", "0", &["batch-size", "found 0"]),
        ("--hidden", "0", &["hidden", "found 0"]),
        ("--dropout", "1", &["dropout", "below 1", "found 1"]),
        ("--lr", "-1", &["lr", "positive", "found -1"]),
        ("--ahead", "2", &["ahead", "0 or 1", "found 2"]),
        ("--threads", "0", &["threads", "found 0"]),
        ("--machines", "0", &["machines", "found 0"]),
        ("--machines", "3", &["machines", "at most 2", "found 3"]),
        ("--device", "foo", &["device", "`foo`", "cuda:N"]),
        ("--deadline-s", "1e300", &["deadline-s", "1,000,000"]),
        ("--config", "nowhere.toml", &["nowhere.toml", "cannot be read"]),
        ("--lr", "much", &["--lr", "'much'"]),
    ];
    for (flag, value, words) in cases {
        let value = format!("{flag}={value}");
        // One line of ours; the parser of the command line adds a hint.
        let said = refused(&["train", parts, "--out", text(&out), &value], 2);
        for word in words {
            assert!(said.contains(word), "{value}: {word} is not in {said}");
        }
        // A supervisor would have made the run folder.
        assert!(
            !said.contains("joined") && names(folder.path()).is_empty(),
            "{value}: {said}"
        );
    }
    let misspelt = folder.path().join("run.toml");
    std::fs::write(&misspelt, "hiden = 3\n").unwrap();
    let said = refused(&["train", parts, "--config", text(&misspelt)], 6);
    assert!(said.contains("hiden") && said.contains("run.toml"), "{said}");
}

#[test]
fn a_gpu_is_refused_at_once_where_there_is_none() {
    use greengnn_model::layers::{Device, DeviceChoice};

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    // Far above the number of GPUs of any computer.
    assert!(Device::probe(DeviceChoice::Cuda(Some(4_000)), 0).is_err());
    let arguments = [
        "train",
        text(tiny_parts(60, 2)),
        "--out",
        text(&out),
        "--device",
        "cuda:4000",
    ];
    let said = refused(&arguments, 1);
    assert!(said.contains("the device cuda:4000 cannot be used"), "{said}");
    assert!(!out.exists());
    #[cfg(not(feature = "cuda"))]
    assert!(said.contains("built without the feature `cuda`"), "{said}");
}

#[test]
fn a_supervisor_refuses_what_train_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let parts = text(tiny_parts(60, 2));
    for (flag, word) in [
        ("--policy=belady", "belady"),
        ("--budget=12x", "12x"),
        ("--device=foo", "foo"),
        ("--machines=3", "at most 2"),
        ("--join-within=nan", "--join-within"),
    ] {
        let arguments = [
            "supervisor",
            parts,
            "--listen",
            "127.0.0.1:0",
            "--out",
            text(&out),
            flag,
        ];
        let said = refused(&arguments, 2);
        assert!(said.contains(word), "{said}");
    }
    assert!(!out.exists());
}

#[test]
fn folders_that_are_not_parts_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, out) = (folder.path().join("graph"), folder.path().join("run"));
    greengnn_model::synth::SynthSpec::tiny(20).write(&graph).unwrap();
    let said = refused(&["train", text(&graph), "--out", text(&out)], 1);
    assert!(
        said.contains("greengnn-parts") && said.contains("graph/manifest.json"),
        "{said}"
    );
    let said = refused(&["train", text(&folder.path().join("missing")), "--out", text(&out)], 2);
    assert!(said.contains("missing/manifest.json"), "{said}");
    let said = refused(
        &[
            "partition",
            text(tiny_parts(60, 2)),
            "--parts",
            "2",
            "--out",
            text(&out),
        ],
        1,
    );
    assert!(said.contains("greengnn-graph"), "{said}");
    assert!(!out.exists());
}

#[test]
fn the_papers_settings_are_a_configuration() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/paper.toml");
    let config = greengnn::config::TrainConfig::from_file(&file).unwrap();
    config.check().unwrap();
    assert_eq!((config.hidden, config.policy.as_str()), (16, "window"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let _serial = serial();
    // Flags override the file.
    let arguments = [
        "train",
        text(tiny_parts(60, 2)),
        "--config",
        text(&file),
        "--epochs",
        "1",
        "--out",
        text(&out),
    ];
    let shown = succeeds(&arguments);
    assert!(shown.contains("report: "), "{shown}");
    let written = std::fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(
        written.contains("hidden = 16") && written.contains("epochs = 1\n"),
        "{written}"
    );
}

#[test]
fn with_json_standard_output_is_the_summary_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let _serial = serial();
    let output = greengnn(&[
        "train",
        text(tiny_parts(60, 2)),
        "--epochs",
        "1",
        "--policy",
        "full",
        "--budget",
        "5%",
        "--json",
        "--out",
        text(&out),
    ]);
    assert!(output.status.success(), "{}", said(&output));
    // Once, by the process that was given the flag.
    let warning = "warning: --budget changes nothing with policy full\n";
    assert_eq!(said(&output).matches("warning").count(), 1, "{}", said(&output));
    assert!(said(&output).starts_with(warning), "{}", said(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(out.join("summary.json")).unwrap()).unwrap();
    assert_eq!(printed, written);
    assert!(said(&output).contains("epoch 1/1"), "{}", said(&output));
}

#[test]
fn a_reader_who_has_read_enough_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| text(&folder.path().join(name)).to_owned();
    let (graph, parts, out) = (place("graph"), place("parts"), place("run"));
    greengnn_model::synth::SynthSpec::tiny(60)
        .write(Path::new(&graph))
        .unwrap();
    let _serial = serial();
    let works: [&[&str]; 6] = [
        &["partition", &graph, "--parts", "2", "--method", "hash", "--out", &parts],
        &["locality", &parts],
        &["plan", &parts, "--explain", "--json", "--epochs", "1"],
        &["train", &parts, "--epochs", "1", "--out", &out],
        &["--help"],
        &["doctor", "--json", "--require", "estimated"],
    ];
    let doctor = greengnn(works[5]).status;
    for arguments in works {
        let closed = || {
            let (_, writer) = std::io::pipe().unwrap();
            writer
        };
        let mut command = std::process::Command::new(common::PROGRAM);
        let output = command.args(arguments).stdout(closed()).output().unwrap();
        let wanted = if arguments[0] == "doctor" {
            doctor
        } else {
            ExitStatus::default()
        };
        assert_eq!(output.status, wanted, "{arguments:?}: {}", said(&output));
        for words in ["panicked", "Broken pipe"] {
            assert!(!said(&output).contains(words), "{arguments:?}: {}", said(&output));
        }
        // Nor is it one on standard error.
        let status = command.stdout(closed()).stderr(closed()).status().unwrap();
        let refused = ["partition", "train"].contains(&arguments[0]);
        assert_eq!(
            status.code(),
            if refused { Some(1) } else { wanted.code() },
            "{arguments:?}"
        );
    }
    assert!(Path::new(&out).join("summary.json").is_file());
}

#[test]
fn without_an_out_folder_runs_are_numbered() {
    let folder = tempfile::tempdir().unwrap();
    let parts = tiny_parts(60, 2);
    let _serial = serial();
    for run in ["1", "2"] {
        let started = Running::start_with(&["train", text(parts), "--epochs", "1"], |command| {
            command.current_dir(folder.path());
        });
        let output = started.finish();
        assert!(output.status.success(), "{}", said(&output));
        assert!(folder.path().join("runs").join(run).join("summary.json").is_file());
    }
}

#[test]
fn commands_that_are_refused_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (target, empty) = (text(&target), text(&empty));
    let missing = text(folder.path()).to_owned() + "/missing";
    let refusals: [&[&str]; 6] = [
        &["import", &missing, "--out", target],
        &["import", empty, "--out", target],
        &["synth", "enormous", "--out", target],
        &["partition", &missing, "--parts", "2", "--out", target],
        &["partition", &missing, "--parts", "0", "--out", target],
        &[
            "partition",
            &missing,
            "--parts",
            "2",
            "--method",
            "kahip",
            "--out",
            target,
        ],
    ];
    for arguments in refusals {
        refused(arguments, 4);
        assert_eq!(names(folder.path()), ["empty"], "{arguments:?}");
    }
    // An existing target is refused and left as it is.
    for arguments in [
        ["synth", "small", "--out", empty].as_slice(),
        &["import", text(&debian()), "--out", empty],
    ] {
        let said = refused(arguments, 2);
        assert!(said.contains("empty"), "{said}");
        assert_eq!(names(folder.path()), ["empty"]);
        assert!(names(Path::new(empty)).is_empty());
    }
}

#[test]
fn import_synth_and_partition_say_what_they_made() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, small, parts) = (
        folder.path().join("graph"),
        folder.path().join("small"),
        folder.path().join("parts"),
    );
    let shown = succeeds(&["import", text(&debian()), "--out", text(&graph), "--svd", "4"]);
    assert!(shown.contains("63436") && shown.contains("4 columns"), "{shown}");
    let shown = succeeds(&["synth", "small", "--out", text(&small)]);
    assert!(shown.contains("20000 nodes"), "{shown}");
    let shown = succeeds(&[
        "partition",
        text(&small),
        "--parts",
        "2",
        "--method",
        "hash",
        "--out",
        text(&parts),
    ]);
    assert!(shown.contains("2 parts by hash"), "{shown}");
    assert_eq!(names(folder.path()), ["graph", "parts", "small"]);
}

/// Starts a command that writes into `folder`, interrupts it once it has begun to, and returns what it said.
fn interrupted(folder: &Path, arguments: &[&str], signal: libc::c_int) -> Output {
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut running = Running::start_with(arguments, |command| {
        command.env("TMPDIR", &temporary);
    });
    let started = Instant::now();
    let begun = |names: &[String]| names.iter().any(|name| name.starts_with('.'));
    while !begun(&names(folder)) && names(&temporary).is_empty() {
        assert!(
            !running.has_ended() && started.elapsed() < PATIENCE,
            "{}",
            running.stderr()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    running.signal(signal);
    running.finish()
}

#[test]
fn signals_leave_no_half_written_graph() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("graph");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let output = interrupted(folder.path(), &["synth", "reddit-like", "--out", text(&out)], signal);
        assert_eq!(output.status.code(), Some(130));
        assert_eq!(said(&output), "error: interrupted\n");
        assert_eq!(names(folder.path()), ["tmp"]);
    }
}

#[test]
fn signals_leave_no_half_written_parts_and_no_metis() {
    let inputs = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (graph, out) = (inputs.path().join("graph"), folder.path().join("parts"));
    succeeds(&["synth", "small", "--out", text(&graph)]);
    let arguments = ["partition", text(&graph), "--parts", "8", "--out", text(&out)];
    // METIS runs when its folder for the result is there; `finish` sees that its process is gone.
    let output = interrupted(folder.path(), &arguments, libc::SIGINT);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(said(&output), "error: interrupted\n");
    assert_eq!(names(folder.path()), ["tmp"]);
    assert!(names(&folder.path().join("tmp")).is_empty());
}

#[test]
fn the_demo_prints_an_array_and_works_again_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("demo");
    let temporary = folder.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let _serial = serial();
    let demo = || {
        Running::start_with(&["demo", "--epochs", "1", "--json", "--dir", text(&dir)], |command| {
            command.env("TMPDIR", &temporary);
        })
    };
    let run = || {
        let output = demo().finish();
        assert!(output.status.success(), "{}", said(&output));
        let summaries: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let policies: Vec<_> = summaries
            .iter()
            .map(|summary| summary["policy"].as_str().unwrap().to_owned())
            .collect();
        for policy in ["on-demand", "window", "bulk", "full"] {
            assert!(policies.iter().any(|found| found == policy), "{policies:?}");
        }
        let weights: Vec<_> = summaries
            .iter()
            .map(|summary| summary["weights_sha256"].clone())
            .collect();
        assert!(weights.iter().all(|hash| *hash == weights[0]), "{weights:?}");
        (policies.len(), weights[0].clone())
    };
    let (cells, weights) = run();
    assert_eq!((cells, weights), run());
    assert_eq!(names(&dir.join("runs")).len(), 2 * cells);

    // Ctrl-C in the middle: one line, no process, nothing temporary.
    let mut interrupted = demo();
    interrupted.stderr_line("[2/");
    interrupted.stderr_line("joined");
    interrupted.signal(libc::SIGINT);
    let output = interrupted.finish();
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = said(&output);
    assert!(said.ends_with("error: the run was interrupted\n"), "{said}");
    assert_eq!(said.matches("error").count(), 1, "{said}");
    assert!(names(&temporary).is_empty(), "{:?}", names(&temporary));
}

#[test]
fn a_demo_that_cannot_be_is_refused() {
    for arguments in [["demo", "--epochs=0"], ["demo", "--machines=0"]] {
        let said = refused(&arguments, 2);
        let flag = arguments[1].trim_end_matches("=0");
        assert!(said.contains(flag) && said.contains("'0'"), "{said}");
    }
    let said = fails(&["machine", "--join", "127.0.0.1:1", "--parts", "/nowhere"]);
    assert!(said.contains("GREENGNN_COOKIE_FILE"), "{said}");
}
