//! A computer whose GPU is a file of numbers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{PATIENCE, Running};

pub const PASCAL: &str = "4";
pub const AMPERE: &str = "7";

/// A computer with a fake GPU whose clocks are kept in a file, and a folder for leases.
pub struct Computer {
    folder: TempDir,
    architecture: &'static str,
}

impl Computer {
    pub fn new(architecture: &'static str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            architecture,
        }
    }

    pub fn clocks(&self) -> PathBuf {
        self.folder.path().join("clocks")
    }

    pub fn leases(&self) -> PathBuf {
        self.folder.path().join("leases")
    }

    pub fn configure(&self, command: &mut Command) {
        command
            .env("GREENGNN_NVML", fake_nvml())
            .env("FAKE_NVML_CLOCKS", self.clocks())
            .env("FAKE_NVML_ARCHITECTURE", self.architecture)
            .env("GREENGNN_CLOCK_LEASES", self.leases());
    }

    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::start_with(arguments, |command| self.configure(command))
    }

    /// What is set for the GPU: the locked clock, the memory clock and the graphics clock in MHz.
    pub fn set(&self) -> String {
        let text = std::fs::read_to_string(self.clocks()).unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    }

    pub fn wait_for(&self, wanted: &str) {
        wait_until(
            || self.set() == wanted,
            || format!("clocks are {} instead of {wanted}", self.set()),
        );
    }

    pub fn lease_files(&self) -> usize {
        std::fs::read_dir(self.leases()).map_or(0, Iterator::count)
    }

    pub fn has_no_lease(&self) {
        wait_until(|| self.lease_files() == 0, || "a lease is left".to_owned());
    }
}

pub fn wait_until(mut is_so: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
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
pub fn processes_with(wanted: &Path) -> Vec<libc::pid_t> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &libc::pid_t| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(wanted.to_str().unwrap())
    })
    .collect()
}
