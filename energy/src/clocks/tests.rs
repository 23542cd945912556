use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::nvml::fake::FakeNvml;

const PASCAL: u32 = 4;
const AMPERE: u32 = 7;
const NO_PERMISSION: u32 = 4;

/// A guard that is a shell: it says that it is ready and waits for the end of its input.
pub(super) fn waiting_guard() -> GuardProgram {
    shell("echo ready; cat > /dev/null")
}

pub(super) fn shell(script: &str) -> GuardProgram {
    GuardProgram {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
    }
}

pub(super) fn options(folder: &Path, guard: GuardProgram) -> LeaseOptions {
    LeaseOptions::new(LeaseFolder::at(folder), guard)
}

fn one_gpu() -> Vec<String> {
    vec!["GPU-fake-0".to_owned()]
}

/// Clocks in memory, of which every change is written down.
#[derive(Clone, Default)]
pub(super) struct Clocks(Arc<Mutex<Vec<String>>>);

impl Clocks {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    pub(super) fn log(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

const BEFORE: ClockSettings = ClockSettings::Application {
    memory_mhz: 715,
    graphics_mhz: 1189,
};

impl ClockControl for Clocks {
    fn uuids(&mut self) -> Result<Vec<String>, GpuError> {
        Ok(vec!["a".to_owned(), "b".to_owned()])
    }

    fn settings(&mut self, _uuid: &str) -> Result<ClockSettings, GpuError> {
        Ok(BEFORE)
    }

    fn other_processes(&mut self, _uuid: &str) -> Result<Vec<u32>, GpuError> {
        Ok(Vec::new())
    }

    fn lower(&mut self, uuid: &str, _before: ClockSettings) -> Result<u32, GpuError> {
        if uuid == "broken" {
            return Err(GpuError::Lost);
        }
        self.note(format!("lower {uuid}"));
        Ok(544)
    }

    fn restore(&mut self, uuid: &str, before: ClockSettings) -> Result<(), GpuError> {
        assert_eq!(before, BEFORE);
        if uuid == "gone" {
            return Err(GpuError::Lost);
        }
        self.note(format!("restore {uuid}"));
        Ok(())
    }

    fn reset(&mut self, uuid: &str) -> Result<(), GpuError> {
        self.note(format!("reset {uuid}"));
        Ok(())
    }

    fn observed_mhz(&mut self, _uuid: &str) -> Result<u32, GpuError> {
        Ok(544)
    }
}

pub(super) fn names(uuids: &[&str]) -> Vec<String> {
    uuids.iter().map(|uuid| (*uuid).to_owned()).collect()
}

#[test]
fn a_gpu_before_volta_gets_its_application_clocks_back() {
    let (fake, folder) = (FakeNvml::new(), tempfile::tempdir().unwrap());
    (fake.set_clocks)(PASCAL, 0, 0);
    let mut control = fake.reader();
    let before = control.settings("GPU-fake-0").unwrap();
    assert_eq!(
        before,
        ClockSettings::Application {
            memory_mhz: 715,
            graphics_mhz: 1328
        }
    );
    let options = options(folder.path(), waiting_guard());
    let mut lease = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options).unwrap();
    assert_eq!(lease.requested_mhz(), [("GPU-fake-0".to_owned(), 544)]);
    assert_eq!(lease.observed_mhz(), [("GPU-fake-0".to_owned(), 544)]);
    let leases = options.folder.leases().unwrap();
    assert_eq!(leases[0].1.gpus[0].before, before);
    assert!(leases[0].1.is_alive());
    lease.give_back().unwrap();
    assert_eq!(control.observed_mhz("GPU-fake-0"), Ok(1328));
    assert!(options.folder.leases().unwrap().is_empty());
}

#[test]
fn a_newer_gpu_is_locked_and_released() {
    let (fake, folder) = (FakeNvml::new(), tempfile::tempdir().unwrap());
    (fake.set_clocks)(AMPERE, 0, 0);
    let mut control = fake.reader();
    let options = options(folder.path(), waiting_guard());
    let lease = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options).unwrap();
    assert_eq!(control.observed_mhz("GPU-fake-0"), Ok(544));
    let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = lease;
        panic!("in the middle of presampling");
    }));
    assert!(panicking.is_err());
    assert_eq!(control.observed_mhz("GPU-fake-0"), Ok(1328));
    assert!(options.folder.leases().unwrap().is_empty());
}

#[test]
fn without_the_right_to_set_clocks_nothing_changes_and_the_remedy_is_named() {
    let (fake, folder) = (FakeNvml::new(), tempfile::tempdir().unwrap());
    (fake.set_clocks)(AMPERE, NO_PERMISSION, 0);
    let options = options(folder.path(), waiting_guard());
    let refused = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("--cap-add=SYS_ADMIN"), "{refused}");
    assert_eq!(fake.reader().observed_mhz("GPU-fake-0"), Ok(1328));
}

#[test]
fn a_gpu_on_which_others_compute_is_left_alone() {
    let (fake, folder) = (FakeNvml::new(), tempfile::tempdir().unwrap());
    (fake.set_clocks)(AMPERE, 0, 4242);
    let mut options = options(folder.path(), waiting_guard());
    let refused = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("process 4242 computes on it too"), "{refused}");
    assert_eq!(fake.reader().observed_mhz("GPU-fake-0"), Ok(1328));
    options.allow_shared = true;
    let lease = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options).unwrap();
    assert_eq!(fake.reader().observed_mhz("GPU-fake-0"), Ok(544));
    drop(lease);
    assert_eq!(fake.reader().observed_mhz("GPU-fake-0"), Ok(1328));
}

#[test]
fn both_kinds_of_clocks_are_reset() {
    let fake = FakeNvml::new();
    for architecture in [PASCAL, AMPERE] {
        (fake.set_clocks)(architecture, 0, 0);
        let mut control = fake.reader();
        let before = control.settings("GPU-fake-0").unwrap();
        control.lower("GPU-fake-0", before).unwrap();
        assert_eq!(control.observed_mhz("GPU-fake-0"), Ok(544));
        control.reset("GPU-fake-0").unwrap();
        assert_eq!(control.observed_mhz("GPU-fake-0"), Ok(1328));
    }
    (fake.set_clocks)(AMPERE, NO_PERMISSION, 0);
    assert_eq!(fake.reader().reset("GPU-fake-0"), Err(GpuError::NoPermission));
}

#[test]
fn companions_may_compute_on_the_gpu_and_others_may_not() {
    let (fake, folder) = (FakeNvml::new(), tempfile::tempdir().unwrap());
    (fake.set_clocks)(AMPERE, 0, 4242);
    let mut options = options(folder.path(), waiting_guard());
    options.companions = vec![17, 4242];
    let lease = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options).unwrap();
    assert_eq!(fake.reader().observed_mhz("GPU-fake-0"), Ok(544));
    drop(lease);
    options.companions = vec![17];
    let refused = ClockLease::take(Box::new(fake.reader()), &one_gpu(), &options).err();
    assert!(matches!(refused, Some(ClockError::Shared { process: 4242, .. })));
}

#[test]
fn a_gpu_that_is_held_down_is_not_leased_twice() {
    let (clocks, folder) = (Clocks::default(), tempfile::tempdir().unwrap());
    let mut options = options(folder.path(), waiting_guard());
    options.companions = vec![std::process::id()];
    let lease = ClockLease::take(Box::new(clocks.clone()), &names(&["a"]), &options).unwrap();
    let refused = ClockLease::arm(Box::new(clocks.clone()), &names(&["b", "a"]), &options).err();
    let own = std::process::id();
    assert!(
        matches!(refused, Some(ClockError::Held { ref uuid, process }) if uuid == "a" && process == own),
        "{refused:?}"
    );
    lease.give_back().unwrap();
    assert_eq!(clocks.log(), ["lower a", "restore a"]);
    drop(ClockLease::take(Box::new(clocks.clone()), &names(&["a"]), &options).unwrap());
}

#[test]
fn under_one_lease_clocks_are_lowered_and_raised_again_while_its_guard_watches() {
    let (clocks, folder) = (Clocks::default(), tempfile::tempdir().unwrap());
    let ready_then_gone = shell("echo ready; head -c 1 > /dev/null");
    let options = options(folder.path(), ready_then_gone);
    let mut lease = ClockLease::arm(Box::new(clocks.clone()), &names(&["a"]), &options).unwrap();
    assert!(clocks.log().is_empty() && lease.requested_mhz().is_empty());
    let until = Instant::now() + Duration::from_secs(30);
    while lease.has_guard() {
        assert!(Instant::now() < until, "the guard reads a heartbeat and ends");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(matches!(lease.lower(), Err(ClockError::GuardGone)));
    drop(lease);
    assert!(clocks.log().is_empty(), "there was nothing to restore");

    let options = self::options(folder.path(), waiting_guard());
    let mut lease = ClockLease::arm(Box::new(clocks.clone()), &names(&["a"]), &options).unwrap();
    for _ in 0..2 {
        lease.lower().unwrap();
        assert_eq!(lease.requested_mhz(), [("a".to_owned(), 544)]);
        lease.raise().unwrap();
        assert!(lease.requested_mhz().is_empty());
    }
    assert_eq!(options.folder.leases().unwrap().len(), 1);
    lease.give_back().unwrap();
    assert_eq!(clocks.log(), ["lower a", "restore a"].repeat(2));
}

#[test]
fn what_was_lowered_before_an_error_is_restored() {
    let (clocks, folder) = (Clocks::default(), tempfile::tempdir().unwrap());
    let options = options(folder.path(), waiting_guard());
    let refused = ClockLease::take(Box::new(clocks.clone()), &names(&["a", "broken", "b"]), &options);
    assert!(matches!(refused, Err(ClockError::Gpu { ref uuid, .. }) if uuid == "broken"));
    assert_eq!(clocks.log(), ["lower a", "restore a", "restore broken"]);
    assert!(options.folder.leases().unwrap().is_empty());
}

#[test]
fn no_clock_is_lowered_without_a_guard() {
    let (clocks, folder) = (Clocks::default(), tempfile::tempdir().unwrap());
    let missing = GuardProgram {
        program: "/no/such/program".into(),
        arguments: Vec::new(),
    };
    let talking = shell("echo libnvidia-ml is missing");
    let ending = shell("exit 1");
    for (guard, said) in [
        (missing, "/no/such/program"),
        (talking, "is missing"),
        (ending, "ended at once"),
    ] {
        let options = options(folder.path(), guard);
        let refused = ClockLease::take(Box::new(clocks.clone()), &names(&["a"]), &options)
            .err()
            .unwrap();
        assert!(refused.to_string().contains(said), "{refused}");
        assert!(options.folder.leases().unwrap().is_empty());
    }
    assert!(clocks.log().is_empty());
}

#[test]
fn clocks_that_cannot_be_restored_keep_their_lease() {
    let (clocks, folder) = (Clocks::default(), tempfile::tempdir().unwrap());
    let options = options(folder.path(), waiting_guard());
    let lease = ClockLease::take(Box::new(clocks.clone()), &names(&["gone", "a"]), &options).unwrap();
    let failed = lease.give_back().unwrap_err().to_string();
    assert!(failed.contains("GPU gone"), "{failed}");
    assert_eq!(options.folder.leases().unwrap().len(), 1);
    // The process lives, so that the lease is not abandoned.
    assert!(options.folder.repair(&mut clocks.clone()).unwrap().is_empty());
}

/// A lease of this process in a file, as the guard finds it.
fn lease_file(folder: &Path, time_to_live_s: f64, most_s: f64) -> std::path::PathBuf {
    let gpus = vec![LeasedGpu {
        uuid: "a".to_owned(),
        before: BEFORE,
    }];
    let path = folder.join("lease.json");
    LeaseRecord::of_this_process(time_to_live_s, most_s, gpus)
        .write(&path)
        .unwrap();
    path
}

/// Runs a guard; `life` is what the process that it guards does.
fn guarded(time_to_live_s: f64, most_s: f64, life: impl FnOnce(UnixStream) + Send + 'static) -> (Vec<String>, bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = lease_file(folder.path(), time_to_live_s, most_s);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let process = std::thread::spawn(move || life(ours));
    let clocks = Clocks::default();
    let repaired = guard::run(&path, theirs, std::io::sink(), &mut clocks.clone()).unwrap();
    process.join().unwrap();
    assert_eq!(repaired.is_some(), !path.exists());
    (clocks.log(), repaired.is_some())
}

#[test]
fn the_guard_restores_when_the_process_ends_without_a_farewell() {
    let dies = |mut pipe: UnixStream| pipe.write_all(&[guard::HEARTBEAT]).unwrap();
    assert_eq!(guarded(60.0, 60.0, dies), (vec!["restore a".to_owned()], true));
}

#[test]
fn the_guard_has_nothing_to_do_after_a_farewell() {
    let ends = |mut pipe: UnixStream| pipe.write_all(&[guard::HEARTBEAT, guard::FAREWELL]).unwrap();
    assert_eq!(guarded(60.0, 60.0, ends), (Vec::new(), false));
}

#[test]
fn the_guard_restores_when_the_process_hangs_or_takes_too_long() {
    let hangs = |pipe: UnixStream| {
        let mut pipe = pipe;
        pipe.write_all(&[guard::HEARTBEAT]).unwrap();
        std::thread::sleep(Duration::from_millis(600));
    };
    assert_eq!(guarded(0.1, 60.0, hangs), (vec!["restore a".to_owned()], true));
    let beats_for_ever = |mut pipe: UnixStream| {
        let until = Instant::now() + Duration::from_secs(20);
        while pipe.write_all(&[guard::HEARTBEAT]).is_ok() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    assert_eq!(guarded(60.0, 0.2, beats_for_ever), (vec!["restore a".to_owned()], true));
}

#[test]
fn a_lease_of_a_process_that_is_no_more_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let path = lease_file(folder.path(), 10.0, 10.0);
    let mut record = LeaseRecord::read(&path).unwrap();
    let leases = LeaseFolder::at(folder.path());
    let clocks = Clocks::default();
    assert!(leases.repair(&mut clocks.clone()).unwrap().is_empty());
    // Another process has that id now.
    record.pid_started += 1;
    record.write(&path).unwrap();
    let repaired = leases.repair(&mut clocks.clone()).unwrap();
    assert_eq!(repaired[0].restored, ["a"]);
    assert_eq!(clocks.log(), ["restore a"]);
    assert!(!path.exists());
    assert!(
        LeaseFolder::at(folder.path().join("none"))
            .repair(&mut clocks.clone())
            .unwrap()
            .is_empty()
    );
}
