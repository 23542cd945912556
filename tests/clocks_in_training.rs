//! GPU clocks in a training run, on a driver that is a file of numbers: low until the first step, and what they were before
//! whatever becomes of the run.

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Instant;

use common::gpu::{AMPERE, Computer, PASCAL, processes_with, wait_until};
use common::{PATIENCE, Running, said, serial, text, tiny_parts};
use serde_json::Value;
use tempfile::TempDir;

const GPU: &str = "--lower-clocks=GPU-fake-0";

/// What is set for the GPU: the locked clock, the memory clock and the graphics clock in MHz.
const BEFORE: &str = "0 715 1328";
const LOCKED_LOW: &str = "544 715 1328";

/// NVML's status for who may not set clocks.
const NO_PERMISSION: &str = "4";

/// Epochs that are sampled before training: a set-up of seconds, many times what a lease takes, and one that no test waits for.
const SOME: &str = "150";
const MANY: &str = "1000";

/// A run of two machines, whose ranks train on the CPU while the clocks of a GPU are lowered.
struct Run {
    running: Running,
    folder: TempDir,
}

impl Run {
    fn start(computer: &Computer, presampled: &str, lower: &[&str], status: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let mut arguments = vec!["train", text(parts()), "--json", "--out", text(&out)];
        arguments.extend([
            "--device",
            "cpu",
            "--epochs",
            "2",
            "--hidden",
            "8",
            "--batch-size",
            "20",
        ]);
        arguments.extend(["--policy", "presample", "--presample-epochs", presampled]);
        arguments.extend(lower);
        let configure = |command: &mut std::process::Command| {
            computer.configure(command);
            if let Some(status) = status {
                command.env("FAKE_NVML_SET_STATUS", status);
            }
        };
        Self {
            running: Running::start_with(&arguments, configure),
            folder,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    /// The lines of `metrics.jsonl` of one kind that are there so far.
    fn metrics(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file("metrics.jsonl")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|line: &Value| line["kind"] == kind).collect()
    }

    fn finish(self) -> (Output, TempDir) {
        (self.running.finish(), self.folder)
    }
}

fn parts() -> &'static Path {
    tiny_parts(20_000, 2)
}

/// The process that holds the clocks down, which its lease is named after.
fn holder(computer: &Computer) -> libc::pid_t {
    let leases: Vec<PathBuf> = std::fs::read_dir(computer.leases())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [lease] = &leases[..] else {
        panic!("there is one lease, not {leases:?}");
    };
    lease.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

fn kill(process: libc::pid_t) {
    // SAFETY: it is a process of this test.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
}

fn nothing_is_left(computer: &Computer) {
    computer.wait_for(BEFORE);
    computer.has_no_lease();
    wait_until(
        || processes_with(&computer.leases()).is_empty(),
        || "a guard is left".to_owned(),
    );
}

#[test]
fn clocks_are_low_until_the_first_step_and_the_run_tells_of_them() {
    let _serial = serial();
    for (architecture, low) in [(AMPERE, LOCKED_LOW), (PASCAL, "0 715 544")] {
        let computer = Computer::new(architecture);
        let mut run = Run::start(&computer, SOME, &[GPU], None);
        computer.wait_for(low);
        assert!(run.metrics("step").is_empty(), "clocks are low in the set-up");
        let started = Instant::now();
        while run.metrics("step").is_empty() {
            assert!(started.elapsed() < PATIENCE && !run.running.has_ended());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(computer.set(), BEFORE, "clocks are back when a rank has trained");

        let folder = run.folder;
        let output = run.running.finish();
        assert!(output.status.success(), "{}", said(&output));
        assert!(!said(&output).contains("clocks"), "{}", said(&output));
        nothing_is_left(&computer);
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let clocks = &summary["gpu_clocks"];
        assert_eq!(clocks["not_lowered"], serde_json::json!([]));
        let lowered = clocks["lowered"].as_array().unwrap();
        assert_eq!(
            lowered.len(),
            1,
            "one of the two machines lowers the GPU that both have: {clocks}"
        );
        let gpu = &lowered[0];
        assert_eq!(
            (&gpu["gpu"], &gpu["times"], &gpu["requested_mhz"], &gpu["observed_mhz"]),
            (&"GPU-fake-0".into(), &1.into(), &544.into(), &544.into())
        );
        assert!(gpu["lowered_s"].as_f64().unwrap() > 0.0, "{gpu}");

        let metrics = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
        let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let looks: Vec<Value> = lines.filter(|line| line["kind"] == "clock").collect();
        let clock = |look: &Value| (look["requested_mhz"].clone(), look["observed_mhz"].clone());
        assert_eq!(clock(&looks[0]), (544.into(), 544.into()));
        assert_eq!(clock(looks.last().unwrap()), (Value::Null, 1328.into()));
        let report = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
        assert!(report.contains("GPU clocks lowered for "), "the report tells of it");
    }
}

#[test]
fn a_machine_that_is_killed_while_it_samples_ahead_leaves_no_clock_low() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let run = Run::start(&computer, MANY, &[GPU], None);
    computer.wait_for(LOCKED_LOW);
    kill(holder(&computer));
    nothing_is_left(&computer);
    let (output, _folder) = run.finish();
    assert!(!output.status.success());
    assert_eq!(computer.set(), BEFORE);
}

#[test]
fn a_run_that_fails_while_it_samples_ahead_restores_clocks() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let run = Run::start(&computer, MANY, &[GPU], None);
    computer.wait_for(LOCKED_LOW);
    let holder = holder(&computer);
    let machines = processes_with(parts()).into_iter().filter(|process| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"machine")
    });
    let others: Vec<libc::pid_t> = machines.filter(|process| *process != holder).collect();
    assert_eq!(others.len(), 1, "there are two machines");
    kill(others[0]);
    let (output, _folder) = run.finish();
    assert!(!output.status.success());
    assert!(said(&output).contains("is gone"), "{}", said(&output));
    nothing_is_left(&computer);
}

#[test]
fn a_run_that_is_interrupted_restores_clocks() {
    let _serial = serial();
    let computer = Computer::new(PASCAL);
    let run = Run::start(&computer, MANY, &[GPU], None);
    computer.wait_for("0 715 544");
    run.running.signal(libc::SIGTERM);
    let (output, _folder) = run.finish();
    assert!(!output.status.success());
    nothing_is_left(&computer);
}

#[test]
fn what_cannot_be_lowered_is_warned_of_once_and_the_run_goes_on() {
    let _serial = serial();
    for (lower, status, reason) in [
        (GPU, Some(NO_PERMISSION), "--cap-add=SYS_ADMIN"),
        (
            "--lower-clocks=GPU-of-another-computer",
            None,
            "no GPU is on this computer; it has GPU-fake-0",
        ),
        ("--lower-clocks", None, "this machine trains on no GPU"),
    ] {
        let computer = Computer::new(AMPERE);
        let (output, folder) = Run::start(&computer, SOME, &[lower], status).finish();
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        let warnings = said.lines().filter(|line| line.contains("clocks")).count();
        assert!(warnings == 1 && said.contains(reason), "{said}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let clocks = &summary["gpu_clocks"];
        assert_eq!(clocks["lowered"], serde_json::json!([]));
        assert!(
            clocks["not_lowered"][0]["reason"].as_str().unwrap().contains(reason),
            "{clocks}"
        );
        let report = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
        assert!(report.contains("GPU clocks not lowered on machine-"), "{reason}");
        assert!(computer.set().is_empty() || computer.set() == BEFORE);
        nothing_is_leased(&computer);
    }
}

fn nothing_is_leased(computer: &Computer) {
    computer.has_no_lease();
    assert!(processes_with(&computer.leases()).is_empty());
}

#[test]
fn a_machine_that_starts_restores_what_a_dead_process_left_low() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let hold = computer.start(&["clocks", "hold"]);
    computer.wait_for(LOCKED_LOW);
    let [guard] = processes_with(&computer.leases())[..] else {
        panic!("there is one guard");
    };
    kill(guard);
    hold.signal(libc::SIGKILL);
    drop(hold);
    assert_eq!((computer.set().as_str(), computer.lease_files()), (LOCKED_LOW, 1));
    let (output, _folder) = Run::start(&computer, "1", &[], None).finish();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let lines = said
        .lines()
        .filter(|line| line.contains("restored the clocks of GPU-fake-0"));
    assert_eq!(lines.count(), 1, "{said}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        summary["gpu_clocks"],
        Value::Null,
        "this run was not asked to lower any"
    );
    nothing_is_left(&computer);
}

#[test]
fn while_ranks_wait_clocks_are_lowered_under_one_lease() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let waiting = [GPU, "--lower-clocks-while-waiting", "--machines", "1"];
    let (output, _folder) = Run::start(&computer, SOME, &waiting, None).finish();
    assert!(output.status.success(), "{}", said(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let gpu = &summary["gpu_clocks"]["lowered"][0];
    assert!(
        gpu["times"].as_u64().unwrap() >= 1 && gpu["observed_mhz"] == 544,
        "{gpu}"
    );
    nothing_is_left(&computer);
}
