//! `greengnn doctor` on every kind of computer that a folder can stand for: each case is told from the others, with what to
//! do about it, and ends with a status for scripts.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Running, said, serial, text};
use serde_json::Value;
use tempfile::TempDir;

const ROOT: &str = "GREENGNN_RAPL_ROOT";

/// A user without rights of its own.
const NOBODY: u32 = 65_534;

/// A folder that stands for a powercap tree.
fn tree(sockets: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for socket in 0..sockets {
        let zone = folder.path().join(format!("intel-rapl:{socket}"));
        fs::create_dir(&zone).unwrap();
        fs::write(zone.join("name"), format!("package-{socket}\n")).unwrap();
        fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
        fs::write(zone.join("energy_uj"), "0000000000\n").unwrap();
    }
    folder
}

/// What the doctor says as JSON, and whether it ended well.
fn doctor_with(flags: &[&str], configure: impl FnOnce(&mut Command)) -> (Value, bool) {
    let arguments = [&["doctor", "--json"][..], flags].concat();
    let output = Running::start_with(&arguments, configure).finish();
    let diagnosis = serde_json::from_slice(&output.stdout);
    let diagnosis = diagnosis.unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    (diagnosis, output.status.success())
}

fn doctor(root: &Path, flags: &[&str]) -> (Value, bool) {
    doctor_with(flags, |command| {
        command.env(ROOT, root);
    })
}

/// What one source says of itself: its quality and its sentence.
fn source<'a>(diagnosis: &'a Value, name: &str) -> (&'a str, &'a str) {
    let sources = diagnosis["sources"].as_array().unwrap();
    let source = sources.iter().find(|source| source["source"] == name).unwrap();
    (source["quality"].as_str().unwrap(), source["detail"].as_str().unwrap())
}

fn says(diagnosis: &Value, name: &str, words: &[&str]) {
    let (quality, detail) = source(diagnosis, name);
    assert_eq!(quality, "unavailable", "{detail}");
    for word in words {
        assert!(detail.contains(word), "no {word} in {detail}");
    }
}

#[test]
fn counters_that_move_are_measured_and_scripts_may_rely_on_it() {
    let _serial = serial();
    let folder = tree(1);
    let energy = fs::File::options()
        .write(true)
        .open(folder.path().join("intel-rapl:0/energy_uj"))
        .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writer = std::thread::spawn(move || {
        let mut energy_uj = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            energy_uj += 100_000;
            std::os::unix::fs::FileExt::write_all_at(&energy, format!("{energy_uj:010}\n").as_bytes(), 0).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let (diagnosis, well) = doctor_with(&["--require", "measured"], |command| {
        command
            .env(ROOT, folder.path())
            .env("GREENGNN_NVML", "/no/such/library.so");
    });
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(well && diagnosis["quality"] == "measured", "{diagnosis}");
    let (quality, detail) = source(&diagnosis, "rapl");
    assert_eq!(quality, "measured");
    assert!(detail.contains("counters of package-0"), "{detail}");
    says(&diagnosis, "nvml", &["libnvidia-ml.so.1 is not there", "--gpus all"]);
}

#[test]
fn counters_that_stand_still_measure_nothing() {
    let _serial = serial();
    let folder = tree(2);
    let (diagnosis, well) = doctor(folder.path(), &["--require", "measured"]);
    assert!(!well && diagnosis["quality"] == "estimated", "{diagnosis}");
    says(&diagnosis, "rapl", &["never move", "run on the host"]);
}

#[test]
fn a_tree_that_is_absent_and_a_link_that_leads_nowhere_are_told_apart() {
    let _serial = serial();
    let folder = tempfile::tempdir().unwrap();
    let (diagnosis, well) = doctor(folder.path(), &[]);
    assert!(well, "an estimate is enough: {diagnosis}");
    says(&diagnosis, "rapl", &["no powercap zone", "intel_rapl_msr", ROOT]);

    let target = "../../devices/virtual/powercap/intel-rapl/intel-rapl:0";
    symlink(target, folder.path().join("intel-rapl:0")).unwrap();
    let (diagnosis, _) = doctor(folder.path(), &[]);
    says(
        &diagnosis,
        "rapl",
        &["leads to", target, "mount /sys/devices/virtual/powercap"],
    );
}

#[test]
fn counters_that_only_root_may_read_are_denied_to_others() {
    let _serial = serial();
    let folder = tree(1);
    let energy = folder.path().join("intel-rapl:0/energy_uj");
    // As all kernels since 5.10 have it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&energy, fs::Permissions::from_mode(0o000)).unwrap();
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut command = Command::new(env!("CARGO_BIN_EXE_greengnn"));
    command.args(["doctor", "--json"]).env(ROOT, folder.path());
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
            eprintln!("skipped: another user may not run the program where it lies");
            return;
        }
    };
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    says(
        &diagnosis,
        "rapl",
        &[text(&energy), "permission denied", "CAP_DAC_READ_SEARCH", "udev rule"],
    );
    let lacking = diagnosis["system"]["missing_capabilities"].as_array().unwrap();
    assert!(
        lacking.iter().any(|entry| entry[0] == "CAP_DAC_READ_SEARCH"),
        "{lacking:?}"
    );
}

/// Docker mounts an empty file system over the tree.
#[test]
fn a_tree_that_a_container_hides_is_called_hidden() {
    let _serial = serial();
    let folder = tempfile::tempdir().unwrap();
    let powercap = folder.path().join("powercap");
    fs::create_dir(&powercap).unwrap();
    let script = "mount -t tmpfs none \"$1\" || exit 77; exec \"$2\" doctor --json";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([text(&powercap), env!("CARGO_BIN_EXE_greengnn")])
        .env(ROOT, &powercap)
        .output();
    let output = match output {
        Ok(output) if !output.stdout.is_empty() => output,
        other => {
            eprintln!("skipped: this user may not mount: {other:?}");
            return;
        }
    };
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    says(
        &diagnosis,
        "rapl",
        &["is hidden by the container", "mount /sys/devices/virtual/powercap"],
    );
}

#[test]
fn a_gpu_is_named_with_its_way_of_being_metered() {
    let _serial = serial();
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    let (diagnosis, _) = doctor_with(&[], |command| {
        command.env("GREENGNN_NVML", &library);
    });
    let (quality, detail) = source(&diagnosis, "nvml");
    assert_eq!(quality, "measured");
    assert!(detail.contains("Fake GPU GPU-fake-0 (energy counter)"), "{detail}");
    assert_eq!(diagnosis["gpus"][0]["uuid"], "GPU-fake-0");
}
