use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use super::super::tests::{Clocks, names, options, shell, waiting_guard};
use super::*;
use crate::clocks::GuardProgram;

/// Longer than any of this takes on a loaded computer.
const PATIENCE: Duration = Duration::from_secs(60);

struct Kept {
    clocks: Clocks,
    keeper: ClockKeeper,
    news: Receiver<ClockNews>,
    folder: tempfile::TempDir,
}

impl Kept {
    fn with(guard: GuardProgram, gpus: &'static [&'static str], keep_lease: bool) -> Self {
        Self::under(|folder| options(folder, guard), gpus, keep_lease)
    }

    fn under(options: impl FnOnce(&Path) -> LeaseOptions, gpus: &'static [&'static str], keep_lease: bool) -> Self {
        let (clocks, folder) = (Clocks::default(), tempfile::tempdir().unwrap());
        let (sender, news) = channel();
        let control = clocks.clone();
        let open: OpenClocks = Box::new(move || Ok((Box::new(control.clone()), names(gpus))));
        let tell = move |news| sender.send(news).unwrap();
        let keeper = ClockKeeper::start(open, options(folder.path()), keep_lease, tell).unwrap();
        Self {
            clocks,
            keeper,
            news,
            folder,
        }
    }

    fn wait_for(&self, log: &[&str]) {
        let until = Instant::now() + PATIENCE;
        while self.clocks.log() != log {
            assert!(Instant::now() < until, "{:?} instead of {log:?}", self.clocks.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn leases(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

/// The clocks that were asked for and observed, GPU by GPU.
fn seen<'a>(news: &'a ClockNews) -> Vec<(&'a str, Option<u32>, Option<u32>)> {
    match news {
        ClockNews::Seen(points) => {
            let of = |point: &'a ClockPoint| (point.gpu.as_str(), point.requested_mhz, point.observed_mhz);
            points.iter().map(of).collect()
        }
        other => panic!("{other:?} is no look at clocks"),
    }
}

#[test]
fn clocks_are_low_until_they_are_wanted_back_and_every_look_is_told() {
    let kept = Kept::with(waiting_guard(), &["a", "b"], false);
    kept.keeper.lower_after(Duration::ZERO);
    kept.wait_for(&["lower a", "lower b"]);
    assert_eq!(
        seen(&kept.news.recv_timeout(PATIENCE).unwrap()),
        [("a", Some(544), Some(544)), ("b", Some(544), Some(544))]
    );
    kept.keeper.restore();
    // Restored when the call returns, not some time later.
    assert_eq!(kept.clocks.log(), ["lower a", "lower b", "restore a", "restore b"]);
    drop(kept.keeper);
    let last = kept.news.iter().last().unwrap();
    assert_eq!(seen(&last), [("a", None, Some(544)), ("b", None, Some(544))]);
    assert_eq!(std::fs::read_dir(kept.folder.path()).unwrap().count(), 0);
}

#[test]
fn a_wait_that_is_short_lowers_nothing() {
    let kept = Kept::with(waiting_guard(), &["a"], true);
    for _ in 0..100 {
        kept.keeper.lower_after(PATIENCE);
        kept.keeper.restore();
    }
    drop(kept.keeper);
    assert!(kept.clocks.log().is_empty());
    assert!(kept.news.iter().next().is_none());
}

#[test]
fn with_a_lease_that_is_kept_clocks_are_lowered_again() {
    let kept = Kept::with(waiting_guard(), &["a"], true);
    for round in 1..=3 {
        kept.keeper.lower_after(Duration::from_millis(1));
        let log = ["lower a", "restore a"].repeat(round);
        kept.wait_for(&log[..2 * round - 1]);
        kept.keeper.restore();
        assert_eq!(kept.clocks.log(), log);
        assert_eq!(kept.leases(), 1, "the guard still watches");
    }
    let folder = kept.folder;
    drop(kept.keeper);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn clocks_that_a_guard_has_restored_are_told_as_restored() {
    // The lease's file is the guard's last argument.
    let ends_when_told = shell("echo ready; until [ -e \"$0.end\" ]; do sleep 0.01; done");
    let kept = Kept::with(ends_when_told, &["a"], false);
    kept.keeper.lower_after(Duration::ZERO);
    assert_eq!(
        seen(&kept.news.recv_timeout(PATIENCE).unwrap()),
        [("a", Some(544), Some(544))]
    );
    let lease = std::fs::read_dir(kept.folder.path()).unwrap().next().unwrap();
    let lease = lease.unwrap().path().into_os_string().into_string().unwrap();
    std::fs::write(format!("{lease}.end"), "").unwrap();
    let last = std::iter::from_fn(|| kept.news.recv_timeout(PATIENCE).ok())
        .find(|news| seen(news)[0].1.is_none())
        .unwrap();
    assert_eq!(seen(&last), [("a", None, Some(544))]);
    kept.keeper.restore();
    assert_eq!(kept.clocks.log(), ["lower a", "restore a"]);
}

#[test]
fn a_keeper_that_is_dropped_restores() {
    let kept = Kept::with(waiting_guard(), &["a"], false);
    kept.keeper.lower_after(Duration::ZERO);
    kept.wait_for(&["lower a"]);
    drop(kept.keeper);
    assert_eq!(kept.clocks.log()[..2], ["lower a", "restore a"]);
    assert_eq!(std::fs::read_dir(kept.folder.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_lowered_is_told_once_and_keeps_nobody_waiting() {
    for (guard, gpus, said) in [
        (waiting_guard(), &["a", "broken"] as &[&str], "GPU broken"),
        (shell("exit 1"), &["a"], "ended at once"),
    ] {
        let kept = Kept::with(guard, gpus, false);
        kept.keeper.lower_after(Duration::ZERO);
        let news = kept.news.recv_timeout(PATIENCE).unwrap();
        assert!(
            matches!(&news, ClockNews::NotLowered { reason } if reason.contains(said)),
            "{news:?}"
        );
        kept.keeper.restore();
        kept.keeper.lower_after(Duration::ZERO);
        kept.keeper.restore();
        let log = kept.clocks.log();
        let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
        assert!(count("lower") <= count("restore"), "{log:?}");
        drop(kept.keeper);
        assert!(kept.news.iter().next().is_none());
    }
}

#[test]
fn a_gpu_that_a_companion_holds_down_is_left_to_it() {
    let (holder, companions) = (Clocks::default(), vec![std::process::id()]);
    let mut held = None;
    let kept = Kept::under(
        |folder| {
            let mut options = options(folder, waiting_guard());
            options.companions = companions;
            let lease = ClockLease::take(Box::new(holder.clone()), &names(&["a"]), &options);
            // The lease of this process is in the way of another one, which has a file of the same name: as if it were
            // that of another process.
            std::fs::rename(
                options.folder.file_of(std::process::id()),
                folder.join("companion.json"),
            )
            .unwrap();
            held = Some(lease.unwrap());
            options
        },
        &["a", "b"],
        false,
    );
    kept.keeper.lower_after(Duration::ZERO);
    kept.wait_for(&["lower b"]);
    let news = kept.news.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        news,
        ClockNews::LoweredBy {
            process: std::process::id()
        }
    );
    kept.keeper.restore();
    assert_eq!(kept.clocks.log(), ["lower b", "restore b"]);
    assert_eq!(holder.log(), ["lower a"]);
    drop(held);
    assert_eq!(holder.log(), ["lower a", "restore a"]);
}
