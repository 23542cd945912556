use std::fs::{create_dir_all, write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::*;
use crate::clock::ManualClock;
use crate::counter::Accumulated;
use crate::domain::DomainKind;
use crate::snapshot::DomainState;

const RANGE: u64 = 262_143_328_850;

/// A powercap tree of one socket with memory, cores, a platform zone and a twin in memory.
struct Socket(tempfile::TempDir);

impl Socket {
    const PACKAGE: &str = "intel-rapl/intel-rapl:0";
    const DRAM: &str = "intel-rapl/intel-rapl:0/intel-rapl:0:1";

    fn new() -> Self {
        let socket = Self(tempfile::tempdir().unwrap());
        for (zone, name) in [
            (Self::PACKAGE, "package-0"),
            ("intel-rapl/intel-rapl:0/intel-rapl:0:0", "core"),
            (Self::DRAM, "dram"),
            ("intel-rapl/intel-rapl:1", "psys"),
            ("intel-rapl-mmio/intel-rapl-mmio:0", "package-0"),
        ] {
            create_dir_all(socket.root().join(zone)).unwrap();
            write(socket.root().join(zone).join("name"), format!("{name}\n")).unwrap();
            write(
                socket.root().join(zone).join("max_energy_range_uj"),
                format!("{RANGE}\n"),
            )
            .unwrap();
            socket.set(zone, 1_000_000);
        }
        socket
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn set(&self, zone: &str, energy_uj: u64) {
        write(self.root().join(zone).join("energy_uj"), format!("{energy_uj}\n")).unwrap();
    }

    fn config(&self) -> MeterConfig {
        MeterConfig {
            rapl_root: Some(self.root().to_owned()),
            gpus: GpuChoice::Off,
            ..MeterConfig::default()
        }
    }
}

/// A source whose joules a test sets.
#[derive(Clone, Default)]
struct Dial {
    joules: Arc<AtomicU64>,
    hangs: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
}

impl Source for Dial {
    fn sample(&mut self, _clock: &dyn Clock, _fresh: bool) {
        self.reads.fetch_add(1, Ordering::SeqCst);
        while self.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn states(&self, _now_s: f64, into: &mut Vec<DomainState>) {
        let joules = self.joules.load(Ordering::SeqCst) as f64;
        let so_far = Accumulated {
            joules,
            gap_s: 0.0,
            gaps: 0,
            live: true,
        };
        into.push(DomainState::new(
            "package-0",
            DomainKind::Package,
            Quality::Measured,
            so_far,
        ));
    }

    fn report(&self) -> SourceReport {
        SourceReport::new("dial", Quality::Measured, "a test turns it")
    }
}

fn start_with_dial(dial: &Dial, clock: Arc<dyn Clock>) -> Meter {
    let source: Box<dyn Source> = Box::new(dial.clone());
    let config = MeterConfig {
        host: Some("host".to_owned()),
        ..MeterConfig::default()
    };
    Meter::start_with(&config, clock, move || (vec![source], Vec::new()))
}

fn sampler(clock: &Arc<ManualClock>) -> Sampler {
    let start = EnergySnapshot {
        host: "host".to_owned(),
        started_s: clock.now_s(),
        at_s: clock.now_s(),
        process: ProcessUse::default(),
        domains: Vec::new(),
        ticks: TickStats::default(),
    };
    Sampler::new(start, clock.clone(), 0.05, vec![Box::new(Dial::default())], Vec::new())
}

#[test]
fn the_total_is_what_was_written_over_a_wrap_and_it_is_measured() {
    let socket = Socket::new();
    socket.set(Socket::PACKAGE, RANGE - 2_000_000);
    let meter = Meter::start(socket.config());
    let before = meter.snapshot();
    for step in 1..=6 {
        socket.set(Socket::PACKAGE, (RANGE - 2_000_000 + step * 700_000) % RANGE);
        socket.set(Socket::DRAM, 1_000_000 + step * 100_000);
        socket.set("intel-rapl/intel-rapl:1", 1_000_000 + step * 9_000_000);
        socket.set("intel-rapl-mmio/intel-rapl-mmio:0", 1_000_000 + step * 700_000);
        std::thread::sleep(Duration::from_millis(20));
    }
    let reading = meter.snapshot().since(&before);
    let total = reading.total();
    assert_eq!(total.quality, Quality::Measured);
    assert!((total.joules.unwrap() - (4.2 + 0.6)).abs() < 1e-9, "{total:?}");
    let psys = reading
        .domains
        .iter()
        .find(|energy| energy.kind == DomainKind::Psys)
        .unwrap();
    assert!(
        (psys.joules.unwrap() - 54.0).abs() < 1e-9,
        "it is shown, and not in the total"
    );
    assert_eq!(total.counted.len(), 2);
}

#[test]
fn several_processes_on_a_host_count_its_energy_once() {
    let socket = Socket::new();
    let meters: Vec<Meter> = (0..4).map(|_| Meter::start(socket.config())).collect();
    let before: Vec<_> = meters.iter().map(Meter::snapshot).collect();
    socket.set(Socket::PACKAGE, 6_000_000);
    let readings: Vec<_> = meters
        .iter()
        .zip(&before)
        .map(|(meter, before)| meter.snapshot().since(before))
        .collect();
    let total = crate::snapshot::combine(&readings);
    assert_eq!((total.joules, total.quality), (Some(5.0), Quality::Measured));
}

#[test]
fn without_counters_the_figure_is_an_estimate_and_the_reason_is_told() {
    let nowhere = tempfile::tempdir().unwrap();
    let config = MeterConfig {
        rapl_root: Some(nowhere.path().join("none")),
        gpus: GpuChoice::Off,
        cpu_power: Some(CpuPower {
            idle_w: 10.0,
            full_w: 10.0,
        }),
        ..MeterConfig::default()
    };
    let meter = Meter::start(config);
    let before = meter.snapshot();
    std::thread::sleep(Duration::from_millis(300));
    let reading = meter.snapshot().since(&before);
    let total = reading.total();
    assert_eq!(total.quality, Quality::Estimated);
    let watts = total.joules.unwrap() / reading.duration_s;
    let threads = watts / 10.0;
    assert!(threads > 0.0 && (total.counted[0].key.domain.starts_with(crate::estimate::HOST_DOMAIN)));
    let reports = meter.reports();
    let report = |source: &str| reports.iter().find(|report| report.source == source).unwrap();
    assert!(report("rapl").detail.contains("GREENGNN_RAPL_ROOT"), "{reports:?}");
    assert!(report("estimate").detail.contains("estimated"));
    assert!(crate::format_joules(total.joules, total.quality).ends_with("(estimated)"));
}

#[test]
fn a_snapshot_reads_now_even_if_no_tick_is_near() {
    let dial = Dial::default();
    let clock = Arc::new(ManualClock::default());
    let meter = start_with_dial(&dial, clock.clone());
    let before = meter.snapshot();
    dial.joules.store(7, Ordering::SeqCst);
    clock.set(0.001);
    let reading = meter.snapshot().since(&before);
    assert_eq!((reading.total().joules, reading.duration_s), (Some(7.0), 0.001));
}

#[test]
fn hardware_that_hangs_holds_nobody_up() {
    let dial = Dial::default();
    let meter = start_with_dial(&dial, Arc::new(BootClock));
    dial.joules.store(5, Ordering::SeqCst);
    let seen = meter.snapshot();
    dial.joules.store(9, Ordering::SeqCst);
    dial.hangs.store(true, Ordering::SeqCst);
    let asked = Instant::now();
    let stale = meter.snapshot();
    assert!(
        asked.elapsed() >= ANSWER_WITHIN,
        "it waits for a fresh reading, for so long"
    );
    assert_eq!(stale.domains[0].joules, seen.domains[0].joules);
    assert!(
        stale.at_s <= BootClock.now_s() - ANSWER_WITHIN.as_secs_f64(),
        "and says how old the figures are"
    );
    // The end is bounded too, or this test would not end.
    drop(meter);
    dial.hangs.store(false, Ordering::SeqCst);
}

#[test]
fn the_thread_ends_with_the_meter() {
    let dial = Dial::default();
    let meter = start_with_dial(&dial, Arc::new(BootClock));
    drop(meter);
    let reads = dial.reads.load(Ordering::SeqCst);
    assert!(reads > 0);
    assert_eq!(
        Arc::strong_count(&dial.reads),
        1,
        "the thread has given its sources back"
    );
}

#[test]
fn a_source_that_panics_takes_the_figures_and_nothing_else() {
    struct Broken;
    impl Source for Broken {
        fn sample(&mut self, _clock: &dyn Clock, _fresh: bool) {
            std::panic::resume_unwind(Box::new("broken"));
        }
        fn states(&self, _now_s: f64, _into: &mut Vec<DomainState>) {}
        fn report(&self) -> SourceReport {
            SourceReport::new("broken", Quality::Unavailable, "")
        }
    }
    let config = MeterConfig::default();
    let meter = Meter::start_with(&config, Arc::new(BootClock), || (vec![Box::new(Broken)], Vec::new()));
    let before = meter.snapshot();
    let total = meter.snapshot().since(&before).total();
    assert_eq!((total.joules, total.quality), (None, Quality::Unavailable));
    assert!(meter.drain_timeline().is_empty());
}

#[test]
fn the_timeline_has_the_last_part_of_a_run() {
    let dial = Dial::default();
    let clock = Arc::new(ManualClock::default());
    let meter = start_with_dial(&dial, clock.clone());
    assert!(meter.drain_timeline().is_empty());
    dial.joules.store(30, Ordering::SeqCst);
    clock.set(0.5);
    let points = meter.drain_timeline();
    assert_eq!(points.len(), 1);
    assert_eq!(
        (points[0].watts, points[0].quality, points[0].kind),
        (60.0, Quality::Measured, DomainKind::Package)
    );
    assert!(meter.drain_timeline().is_empty());
}

#[test]
fn ticks_keep_an_absolute_schedule_and_missed_ones_are_counted() {
    let clock = Arc::new(ManualClock::default());
    let mut sampler = sampler(&clock);
    assert!((sampler.until_next_tick().as_secs_f64() - 0.05).abs() < 1e-9);
    // 10 ms late: the next is due 40 ms later, not 50.
    clock.set(0.06);
    assert_eq!(sampler.until_next_tick(), Duration::ZERO);
    sampler.tick();
    assert!((sampler.until_next_tick().as_secs_f64() - 0.04).abs() < 1e-9);
    // The computer slept for three periods and more.
    clock.set(0.27);
    sampler.tick();
    assert!((sampler.until_next_tick().as_secs_f64() - 0.03).abs() < 1e-9);
    let ticks = sampler.snapshot().ticks;
    assert_eq!((ticks.ticks, ticks.missed), (2, 3));
    assert!((ticks.longest_period_s - 0.21).abs() < 1e-9 && (ticks.mean_period_s - 0.135).abs() < 1e-9);
}

#[test]
fn a_snapshot_has_what_the_process_used() {
    let meter = start_with_dial(&Dial::default(), Arc::new(BootClock));
    let process = meter.snapshot().process;
    assert!(process.cpu_s > 0.0 && process.peak_rss_bytes >= process.peak_anon_bytes && process.peak_anon_bytes > 0);
}

#[test]
fn this_computer_can_be_metered_and_every_figure_says_how() {
    let meter = Meter::start(MeterConfig::from_env());
    let before = meter.snapshot();
    std::thread::sleep(Duration::from_millis(400));
    let after = meter.snapshot();
    let reading = after.since(&before);
    assert!(after.ticks.ticks > 0 && reading.duration_s >= 0.4);
    for energy in &reading.domains {
        assert_eq!(
            energy.joules.is_none(),
            energy.quality == Quality::Unavailable,
            "{energy:?}"
        );
    }
    let reports = meter.reports();
    for source in ["rapl", "nvml", "estimate"] {
        let report = reports.iter().find(|report| report.source == source).unwrap();
        assert!(!report.detail.is_empty());
        eprintln!("{source}: {}: {}", report.quality, report.detail);
    }
}
