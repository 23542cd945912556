use std::time::Instant;

use greengnn_energy::clocks::ClockSettings;
use greengnn_energy::nvml::GpuError;

use super::*;

/// Longer than any of this takes on a loaded computer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A GPU whose clocks are a list of what was done to them.
#[derive(Clone, Default)]
struct Gpu(Arc<Mutex<Vec<&'static str>>>);

impl Gpu {
    fn log(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }

    fn wait_for(&self, log: &[&str]) {
        let until = Instant::now() + PATIENCE;
        while self.log() != log {
            assert!(Instant::now() < until, "{:?} instead of {log:?}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl ClockControl for Gpu {
    fn uuids(&mut self) -> Result<Vec<String>, GpuError> {
        Ok(vec!["GPU-a".to_owned()])
    }

    fn settings(&mut self, _uuid: &str) -> Result<ClockSettings, GpuError> {
        Ok(ClockSettings::Locked)
    }

    fn other_processes(&mut self, _uuid: &str) -> Result<Vec<u32>, GpuError> {
        Ok(Vec::new())
    }

    fn lower(&mut self, _uuid: &str, _before: ClockSettings) -> Result<u32, GpuError> {
        self.0.lock().unwrap().push("lower");
        Ok(210)
    }

    fn restore(&mut self, _uuid: &str, _before: ClockSettings) -> Result<(), GpuError> {
        self.0.lock().unwrap().push("restore");
        Ok(())
    }

    fn reset(&mut self, _uuid: &str) -> Result<(), GpuError> {
        Err(GpuError::NotSupported)
    }

    fn observed_mhz(&mut self, _uuid: &str) -> Result<u32, GpuError> {
        Ok(210)
    }
}

/// Clocks of a machine with so many ranks, whose guard is a shell.
fn machine(ranks: Rank, while_waiting: bool) -> (Gpu, Arc<GpuClocks>, tempfile::TempDir) {
    let (gpu, folder) = (Gpu::default(), tempfile::tempdir().unwrap());
    let control = gpu.clone();
    let open: OpenClocks = Box::new(move || Ok((Box::new(control.clone()), vec!["GPU-a".to_owned()])));
    let guard = GuardProgram {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), "echo ready; cat > /dev/null".to_owned()],
    };
    let options = LeaseOptions::new(LeaseFolder::at(folder.path()), guard);
    let keeper = ClockKeeper::start(open, options, while_waiting, |_| ()).unwrap();
    (
        gpu,
        Arc::new(GpuClocks::kept_by(keeper, (0..ranks).collect(), while_waiting)),
        folder,
    )
}

#[test]
fn clocks_are_low_until_the_last_rank_is_set_up() {
    let (gpu, clocks, folder) = machine(2, false);
    gpu.wait_for(&["lower"]);
    clocks.rank_trains(1);
    clocks.rank_trains(1);
    assert_eq!(gpu.log(), ["lower"]);
    // Waits do not count unless they were asked for.
    drop(clocks.rank_waits());
    assert_eq!(gpu.log(), ["lower"]);
    clocks.rank_is_set_up(0);
    assert_eq!(gpu.log(), ["lower", "restore"]);
    clocks.rank_trains(0);
    drop((clocks.rank_waits(), clocks.rank_waits()));
    clocks.end();
    assert_eq!(gpu.log(), ["lower", "restore"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_run_that_fails_in_its_set_up_restores_clocks() {
    let (gpu, clocks, folder) = machine(3, false);
    gpu.wait_for(&["lower"]);
    clocks.rank_trains(0);
    clocks.end();
    assert_eq!(gpu.log(), ["lower", "restore"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // Ranks that have not heard of it yet do no harm.
    (1..3).for_each(|rank| clocks.rank_trains(rank));
    drop(clocks.rank_waits());
    assert_eq!(gpu.log(), ["lower", "restore"]);
}

#[test]
fn in_training_clocks_are_low_while_all_ranks_wait_and_have_waited_for_long() {
    let (gpu, clocks, _folder) = machine(2, true);
    gpu.wait_for(&["lower"]);
    (0..2).for_each(|rank| clocks.rank_is_set_up(rank));
    let before = ["lower", "restore"];
    assert_eq!(gpu.log(), before);
    // Waits before the first step, of which probes are a part, are none of training.
    let early = (clocks.rank_waits(), clocks.rank_waits());
    std::thread::sleep(2 * LOWERED_AFTER);
    drop(early);
    assert_eq!(gpu.log(), before);

    (0..2).for_each(|rank| clocks.rank_trains(rank));
    let one = clocks.rank_waits();
    std::thread::sleep(2 * LOWERED_AFTER);
    assert_eq!(gpu.log(), before, "the other rank computes");
    let other = clocks.rank_waits();
    gpu.wait_for(&["lower", "restore", "lower"]);
    drop(other);
    assert_eq!(gpu.log(), ["lower", "restore", "lower", "restore"]);
    drop(one);
    clocks.end();
    assert_eq!(gpu.log(), ["lower", "restore", "lower", "restore"]);
}
