use std::fs::{create_dir_all, write};

use tempfile::TempDir;

use super::*;
use crate::clock::ManualClock;

/// A `/proc` with `threads` CPUs, and a mount point for control groups, that a test fills.
struct Host {
    folder: TempDir,
    threads: usize,
}

impl Host {
    fn new(threads: usize) -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            threads,
        };
        create_dir_all(host.path("proc/self")).unwrap();
        create_dir_all(host.path("cgroup")).unwrap();
        host.busy(0);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Busy ticks so far, in user and system mode and in interrupts; idle, iowait and steal move too, and must not
    /// count.
    fn busy(&self, ticks: u64) {
        let (system, irq) = (ticks / 2, ticks / 10);
        let user = ticks - system - irq;
        let (idle, iowait, steal) = (900_000 + 3 * ticks, 70_000 + 2 * ticks, 80_000 + ticks);
        let mut stat = format!("cpu  {user} 0 {system} {idle} {iowait} 0 {irq} {steal} 0 0\n");
        for cpu in 0..self.threads {
            stat += &format!("cpu{cpu} 0 0 0 0 0 0 0 0 0 0\n");
        }
        write(self.path("proc/stat"), stat + "intr 5\nbtime 1\n").unwrap();
    }

    fn group(&self, file: &str, content: &str) {
        let path = self.path("cgroup").join(file);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, content).unwrap();
    }

    fn open(&self) -> Result<CpuEstimate, EstimateUnavailable> {
        let power = CpuPower {
            idle_w: 1.0,
            full_w: 11.0,
        };
        CpuEstimate::open_at(&self.path("proc"), &self.path("cgroup"), Some(power))
    }
}

fn state(estimate: &CpuEstimate, now_s: f64) -> DomainState {
    let mut states = Vec::new();
    estimate.states(now_s, &mut states);
    assert_eq!(states.len(), 1);
    states.remove(0)
}

#[test]
fn a_host_is_estimated_from_the_use_of_all_its_threads() {
    let host = Host::new(4);
    let mut estimate = host.open().unwrap();
    let clock = ManualClock::default();
    let ticks_per_s = ticks_per_second();
    estimate.sample(&clock, true);
    assert!(!state(&estimate, 0.0).live);

    // Half busy for 10 s: 4 threads * (1 + 10 * 0.7) W.
    host.busy((20.0 * ticks_per_s) as u64);
    clock.set(10.0);
    estimate.sample(&clock, false);
    let half = state(&estimate, 10.0);
    assert!((half.joules - 320.0).abs() < 1e-6, "{}", half.joules);
    assert_eq!(
        (half.quality, half.kind, half.domain.as_str()),
        (Quality::Estimated, DomainKind::Estimate, "cpu-estimate")
    );
    assert!(half.live && half.gap_s == 0.0);

    // Idle for 10 s more: 4 W.
    clock.set(20.0);
    estimate.sample(&clock, false);
    assert!((state(&estimate, 20.0).joules - 360.0).abs() < 1e-6);
}

#[test]
fn a_short_window_is_read_when_it_is_asked_for() {
    let host = Host::new(1);
    let mut estimate = host.open().unwrap();
    let clock = ManualClock::default();
    estimate.sample(&clock, true);
    clock.set(0.1);
    estimate.sample(&clock, false);
    assert_eq!(state(&estimate, 0.1).joules, 0.0, "too short to be read unasked");
    estimate.sample(&clock, true);
    assert!((state(&estimate, 0.1).joules - 0.1).abs() < 1e-9);
    clock.set(0.3);
    estimate.sample(&clock, false);
    assert!(
        (state(&estimate, 0.3).joules - 0.3).abs() < 1e-9,
        "the short interval is not counted twice"
    );
}

#[test]
fn the_tightest_quota_of_version_2_rules() {
    let host = Host::new(8);
    write(host.path("proc/self/cgroup"), "0::/outer/inner\n").unwrap();
    host.group("cgroup.controllers", "cpu memory\n");
    host.group("outer/cpu.max", "200000 100000\n");
    host.group("outer/cpu.stat", "usage_usec 1000000\nuser_usec 5\n");
    host.group("outer/inner/cpu.max", "max 100000\n");
    host.group("outer/inner/cpu.stat", "usage_usec 7\n");
    let mut estimate = host.open().unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(host.path("cgroup/outer")).unwrap());
    assert_eq!(estimate.domain(), format!("cpu-estimate/{inode}"));

    let clock = ManualClock::default();
    estimate.sample(&clock, true);
    host.group("outer/cpu.stat", "usage_usec 21000000\nuser_usec 5\n");
    clock.set(10.0);
    estimate.sample(&clock, true);
    assert!(
        (state(&estimate, 10.0).joules - 220.0).abs() < 1e-6,
        "2 threads busy all the time at 11 W"
    );
    assert!(estimate.report().detail.contains("CPU quota"));
}

#[test]
fn a_quota_of_version_1_rules_and_its_accounting_is_found() {
    let host = Host::new(8);
    write(
        host.path("proc/self/cgroup"),
        "3:cpuacct:/job\n2:cpu:/job\n1:name=systemd:/x\n0::/\n",
    )
    .unwrap();
    host.group("cpu/job/cpu.cfs_quota_us", "150000\n");
    host.group("cpu/job/cpu.cfs_period_us", "100000\n");
    host.group("cpuacct/job/cpuacct.usage", "3000000000\n");
    let estimate = host.open().unwrap();
    assert_eq!(estimate.threads, 1.5);
    assert_eq!(estimate.time.busy_s(), Some(3.0));
}

#[test]
fn in_a_container_the_group_is_the_mount_point() {
    for path in ["/docker/0123", "/../../elsewhere"] {
        let host = Host::new(8);
        write(host.path("proc/self/cgroup"), format!("0::{path}\n")).unwrap();
        host.group("cgroup.controllers", "cpu\n");
        host.group("cpu.max", "50000 100000\n");
        host.group("cpu.stat", "usage_usec 0\n");
        assert_eq!(host.open().unwrap().threads, 0.5, "{path}");
    }
}

#[test]
fn without_a_quota_that_binds_the_whole_host_is_estimated() {
    let host = Host::new(2);
    write(host.path("proc/self/cgroup"), "0::/\n").unwrap();
    host.group("cgroup.controllers", "cpu\n");
    for quota in ["max 100000\n", "400000 100000\n", "0 0\n", "nonsense\n", ""] {
        host.group("cpu.max", quota);
        assert_eq!(host.open().unwrap().domain(), HOST_DOMAIN, "{quota:?}");
    }
}

#[test]
fn use_that_cannot_be_read_is_a_gap_until_it_can() {
    let host = Host::new(1);
    let mut estimate = host.open().unwrap();
    let clock = ManualClock::default();
    estimate.sample(&clock, true);
    clock.set(1.0);
    estimate.sample(&clock, true);
    write(host.path("proc/stat"), "").unwrap();
    clock.set(3.0);
    estimate.sample(&clock, true);
    let open = state(&estimate, 3.0);
    assert_eq!((open.joules, open.gap_s), (1.0, 2.0));
    host.busy(0);
    clock.set(4.0);
    estimate.sample(&clock, true);
    let closed = state(&estimate, 4.0);
    assert_eq!((closed.joules, closed.gap_s), (4.0, 0.0));
}

#[test]
fn no_proc_is_an_error_that_says_so() {
    let host = Host::new(1);
    std::fs::remove_file(host.path("proc/stat")).unwrap();
    let text = host.open().unwrap_err().to_string();
    assert!(text.contains("proc/stat") && text.contains("mount /proc"), "{text}");
    write(host.path("proc/stat"), "intr 5\n").unwrap();
    assert!(host.open().unwrap_err().to_string().contains("no CPU lines"));
}

#[test]
fn this_computer_can_be_estimated() {
    let mut estimate = CpuEstimate::open(None).unwrap();
    let clock = crate::clock::BootClock;
    estimate.sample(&clock, true);
    while !state(&estimate, clock.now_s()).live {
        estimate.sample(&clock, true);
    }
    assert!(state(&estimate, clock.now_s()).joules > 0.0);
    assert!(estimate.report().detail.contains("estimated"));
}
