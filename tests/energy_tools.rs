//! `greengnn doctor` and `greengnn clocks`, the latter on a driver that is a file of numbers.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, serial};
use tempfile::TempDir;

const PASCAL: &str = "4";
const AMPERE: &str = "7";

/// A computer with a fake GPU whose clocks are kept in a file, and a folder for leases.
struct Computer {
    folder: TempDir,
    architecture: &'static str,
}

impl Computer {
    fn new(architecture: &'static str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            architecture,
        }
    }

    fn clocks(&self) -> PathBuf {
        self.folder.path().join("clocks")
    }

    fn leases(&self) -> PathBuf {
        self.folder.path().join("leases")
    }

    fn configure(&self, command: &mut Command) {
        command
            .env("GREENGNN_NVML", fake_nvml())
            .env("FAKE_NVML_CLOCKS", self.clocks())
            .env("FAKE_NVML_ARCHITECTURE", self.architecture)
            .env("GREENGNN_CLOCK_LEASES", self.leases());
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start_with(arguments, |command| self.configure(command))
    }

    /// What is set for the GPU: the locked clock, the memory clock and the graphics clock in MHz.
    fn set(&self) -> String {
        let text = std::fs::read_to_string(self.clocks()).unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    }

    fn wait_for(&self, wanted: &str) {
        wait_until(
            || self.set() == wanted,
            || format!("clocks are {} instead of {wanted}", self.set()),
        );
    }

    fn lease_files(&self) -> usize {
        std::fs::read_dir(self.leases()).map_or(0, Iterator::count)
    }

    fn has_no_lease(&self) {
        wait_until(|| self.lease_files() == 0, || "a lease is left".to_owned());
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{}", otherwise());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The library as Cargo built it, beside this test.
fn fake_nvml() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    assert!(path.exists(), "{}: cargo builds it with the tests", path.display());
    path
}

/// The processes whose command line names `wanted`.
fn processes_with(wanted: &Path) -> Vec<libc::pid_t> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &libc::pid_t| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(wanted.to_str().unwrap())
    })
    .collect()
}

#[test]
fn a_killed_process_s_clocks_are_restored() {
    let _serial = serial();
    for (architecture, lowered, before) in [
        (AMPERE, "544 715 1328", "0 715 1328"),
        (PASCAL, "0 715 544", "0 715 1328"),
    ] {
        let computer = Computer::new(architecture);
        let holder = computer.start(&["clocks", "hold", "--gpu", "GPU-fake-0"]);
        computer.wait_for(lowered);
        assert_eq!(computer.lease_files(), 1);
        holder.signal(libc::SIGKILL);
        computer.wait_for(before);
        computer.has_no_lease();
        wait_until(
            || processes_with(&computer.leases()).is_empty(),
            || "the guard is left".to_owned(),
        );
        drop(holder);
    }
}

#[test]
fn a_process_that_is_told_to_end_restores_its_clocks_itself() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let holder = computer.start(&["clocks", "hold"]);
    computer.wait_for("544 715 1328");
    holder.signal(libc::SIGTERM);
    let output = holder.finish();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(computer.set(), "0 715 1328");
    assert_eq!(computer.lease_files(), 0);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("GPU-fake-0: asked for 544 MHz, it runs at 544 MHz"),
        "{said}"
    );
}

#[test]
fn clocks_that_were_left_low_are_reset() {
    let _serial = serial();
    let computer = Computer::new(AMPERE);
    let holder = computer.start(&["clocks", "hold"]);
    computer.wait_for("544 715 1328");
    let [guard] = processes_with(&computer.leases())[..] else {
        panic!("there is one guard");
    };
    // SAFETY: the guard is a process of this test.
    assert_eq!(unsafe { libc::kill(guard, libc::SIGKILL) }, 0);
    holder.signal(libc::SIGKILL);
    drop(holder);
    assert_eq!((computer.set().as_str(), computer.lease_files()), ("544 715 1328", 1));
    let shown = computer.start(&["clocks", "show"]).finish();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("544 MHz") && shown.contains("which is no more"),
        "{shown}"
    );
    let reset = computer.start(&["clocks", "reset"]).finish();
    assert!(reset.status.success(), "{reset:?}");
    assert_eq!((computer.set().as_str(), computer.lease_files()), ("0 715 1328", 0));
}

#[test]
fn without_a_driver_there_are_no_clocks_and_the_reason_is_told() {
    let _serial = serial();
    let nowhere = |command: &mut Command| {
        command.env("GREENGNN_NVML", "/no/such/library.so");
    };
    let output = Running::start_with(&["clocks", "reset"], nowhere).finish();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("libnvidia-ml.so.1 is not there"),
        "{said}"
    );
}

#[test]
fn the_doctor_says_what_can_be_measured_and_ends_with_a_status() {
    let _serial = serial();
    let output = Running::start(&["doctor"]).finish();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("energy of a run here would be"), "{said}");
    assert!(
        said.contains("rapl") && said.contains("nvml") && said.contains("CPU fingerprint"),
        "{said}"
    );

    let unreachable = Running::start(&["doctor", "--reach", "127.0.0.1:1", "--json"]).finish();
    assert!(!unreachable.status.success());
    let diagnosis: serde_json::Value = serde_json::from_slice(&unreachable.stdout).unwrap();
    assert_eq!(diagnosis["reached"][0]["address"], "127.0.0.1:1");

    let quality = diagnosis["quality"].as_str().unwrap();
    if quality != "measured" {
        let output = Running::start(&["doctor", "--require", "measured"]).finish();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains(&format!("energy would be {quality}, measured is required")),
            "{said}"
        );
    }
}
