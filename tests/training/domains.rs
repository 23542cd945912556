//! The energy of every domain in every period of a real run, against counters that a test advances: two sockets whose
//! indices are not their numbers, memory, cores, a platform zone, a socket that shows a second time through memory, and
//! counters that wrap while the run lasts.
//!
//! The writer of the counters keeps a log, so that what they moved by between any two times is known. A reading of the meter
//! sees the last write before it. So a period's figure lies between what was written in the period less, and plus, what was
//! written within [`EDGE_S`] of its two ends: that time is for a reader that is held up between reading a counter and
//! looking at the clock.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::common::{TrainRun, serial, tiny_parts, train_with};
use crate::small;

/// Where the counters start again: those of packages, and those of memory, on a server.
const PACKAGE_RANGE_UJ: u64 = 262_143_328_850;
const DRAM_RANGE_UJ: u64 = 65_712_999_613;

/// How long a reader may be held up.
const EDGE_S: f64 = 0.1;

/// The counters are written at this pace.
const TICK: Duration = Duration::from_millis(5);

/// The power changes at this pace, so that two periods of one length have different energies.
const LEVEL_LASTS_S: f64 = 0.3;
/// The powers, as multiples of a zone's own.
const LEVELS: [f64; 5] = [1.0, 3.0, 0.5, 2.0, 0.25];

struct Zone {
    folder: &'static str,
    name: &'static str,
    /// The meter's name of it; none for a twin that must not be read.
    domain: Option<&'static str>,
    watts: f64,
    range_uj: u64,
    /// Joules until it wraps.
    wraps_after_j: u64,
}

const fn zone(folder: &'static str, name: &'static str, domain: &'static str, watts: f64, wraps_after_j: u64) -> Zone {
    Zone {
        folder,
        name,
        domain: Some(domain),
        watts,
        range_uj: PACKAGE_RANGE_UJ,
        wraps_after_j,
    }
}

const ZONES: [Zone; 7] = [
    zone("intel-rapl/intel-rapl:0", "package-1", "package-1", 30.0, 60),
    zone(
        "intel-rapl/intel-rapl:0/intel-rapl:0:0",
        "core",
        "package-1/core",
        20.0,
        30,
    ),
    Zone {
        range_uj: DRAM_RANGE_UJ,
        ..zone(
            "intel-rapl/intel-rapl:0/intel-rapl:0:1",
            "dram",
            "package-1/dram",
            4.0,
            8,
        )
    },
    zone("intel-rapl/intel-rapl:1", "package-0", "package-0", 50.0, 90),
    Zone {
        range_uj: DRAM_RANGE_UJ,
        ..zone(
            "intel-rapl/intel-rapl:1/intel-rapl:1:0",
            "dram",
            "package-0/dram",
            6.0,
            10,
        )
    },
    zone("intel-rapl/intel-rapl:2", "psys", "psys", 120.0, 200),
    Zone {
        domain: None,
        ..zone("intel-rapl-mmio/intel-rapl-mmio:0", "package-0", "", 700.0, 500)
    },
];

/// The domains that make the total.
const COUNTED: [&str; 4] = ["package-0", "package-0/dram", "package-1", "package-1/dram"];

/// What the counters had moved by, in joules, at a write.
struct Write {
    began_unix_s: f64,
    ended_unix_s: f64,
    joules: [f64; ZONES.len()],
}

/// A powercap tree and the thread that advances it.
struct Counters {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    writer: JoinHandle<Vec<Write>>,
}

impl Counters {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<File> = ZONES
            .iter()
            .map(|zone| {
                let path = folder.path().join(zone.folder);
                fs::create_dir_all(&path).unwrap();
                fs::write(path.join("name"), format!("{}\n", zone.name)).unwrap();
                fs::write(path.join("max_energy_range_uj"), format!("{}\n", zone.range_uj)).unwrap();
                let file = File::create(path.join("energy_uj")).unwrap();
                show(&file, zone, 0.0);
                file
            })
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let writer = std::thread::spawn(move || advance(&files, &stopped));
        Self { folder, stop, writer }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn finish(self) -> Truth {
        self.stop.store(true, Ordering::Relaxed);
        Truth(self.writer.join().unwrap())
    }
}

fn advance(files: &[File], stop: &AtomicBool) -> Vec<Write> {
    let mut log = Vec::new();
    let mut joules = [0.0; ZONES.len()];
    let started = Instant::now();
    let mut before_s = 0.0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        let now_s = started.elapsed().as_secs_f64();
        let level = LEVELS[(now_s / LEVEL_LASTS_S) as usize % LEVELS.len()];
        let began_unix_s = unix_s();
        for ((zone, file), joules) in ZONES.iter().zip(files).zip(&mut joules) {
            // Whole microjoules, as the counters have them.
            *joules = ((*joules + zone.watts * level * (now_s - before_s)) * 1e6).round() * 1e-6;
            show(file, zone, *joules);
        }
        log.push(Write {
            began_unix_s,
            ended_unix_s: unix_s(),
            joules,
        });
        before_s = now_s;
    }
    log
}

/// One write of constant length, so that a reader never meets half a number.
fn show(file: &File, zone: &Zone, joules: f64) {
    let start_uj = zone.range_uj - zone.wraps_after_j * 1_000_000;
    let value = (start_uj + (joules * 1e6).round() as u64) % zone.range_uj;
    file.write_all_at(format!("{value:012}\n").as_bytes(), 0).unwrap();
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// What was written, and when.
struct Truth(Vec<Write>);

impl Truth {
    /// The least and the most that a zone's counter can have shown to have moved by at a time.
    fn at(&self, zone: usize, unix_s: f64) -> [f64; 2] {
        let last = |index: usize| index.checked_sub(1).map_or(0.0, |index| self.0[index].joules[zone]);
        let surely = self.0.partition_point(|write| write.ended_unix_s <= unix_s - EDGE_S);
        let perhaps = self.0.partition_point(|write| write.began_unix_s <= unix_s + EDGE_S);
        [last(surely), last(perhaps)]
    }

    /// The least and the most that a reading can give of the time between two.
    fn between(&self, zone: usize, from: f64, to: f64) -> [f64; 2] {
        let ([from_least, from_most], [to_least, to_most]) = (self.at(zone, from), self.at(zone, to));
        [to_least - from_most, to_most - from_least]
    }

    fn holds(&self, joules: f64, [least, most]: [f64; 2], what: &str) {
        assert!(
            (least - 1e-5..=most + 1e-5).contains(&joules),
            "{what}: {joules} J are not within {least} and {most} J"
        );
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The joules of a domain among those of `part`, which must be measured.
fn of_domain(part: &Value, domain: &str) -> f64 {
    let domains = part["energy_by_domain"].as_array().unwrap();
    let found: Vec<&Value> = domains.iter().filter(|entry| entry["domain"] == domain).collect();
    let [entry] = found[..] else {
        panic!("{domain} is there {} times in {part}", found.len());
    };
    assert_eq!(entry["quality"], "measured", "{entry}");
    assert_eq!(entry["counted"], COUNTED.contains(&domain), "{entry}");
    number(&entry["joules"])
}

/// The joules of a domain in a line of the meter.
fn read_of(line: &Value, domain: &str) -> f64 {
    let domains = line["domains"].as_array().unwrap();
    let entry = domains.iter().find(|entry| entry["domain"] == domain).unwrap();
    number(&entry["joules"])
}

/// The meter's lines of one kind of period.
fn of_period<'a>(lines: &'a [Value], period: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["period"] == period)
}

/// The start and end of a line of the meter.
fn ends(line: &Value) -> [f64; 2] {
    [number(&line["started_unix_s"]), number(&line["ended_unix_s"])]
}

#[test]
fn every_period_has_what_its_counters_moved_by() {
    let _serial = serial();
    let counters = Counters::start();
    let flags = small(&[
        "--epochs",
        "3",
        "--batch-size",
        "200",
        "--fanouts",
        "15,10",
        "--machines",
        "2",
        "--idle-baseline",
        "2",
    ]);
    let run = train_with(tiny_parts(20_000, 2), &flags, |command| {
        command.env("GREENGNN_RAPL_ROOT", counters.root());
        command.env("GREENGNN_NVML", "/no/such/library.so");
    });
    let truth = counters.finish();

    // Machines of one host read the same counters. For their joules stand those that the first machine has read, and for
    // idle power and presampling the longest reading.
    let lines = run.metrics("meter");
    let of_first = |period: &str| -> Vec<[f64; 2]> {
        let of_first = of_period(&lines, period).filter(|line| line["machine"] == "machine-0");
        of_first.map(ends).collect()
    };
    let longest = |period: &str| -> Option<[f64; 2]> {
        let length = |line: &&Value| number(&line["wall_s"]);
        of_period(&lines, period)
            .max_by(|a, b| length(a).total_cmp(&length(b)))
            .map(ends)
    };
    let (Some(idle), Some(presampling)) = (longest("idle"), longest("presampling")) else {
        panic!("{lines:?}");
    };
    let (idle_of_first, setup) = (of_first("idle")[0], of_first("setup")[0]);
    let (training, evaluation) = (of_first("training"), of_first("evaluation"));
    assert_eq!((training.len(), evaluation.len()), (3, 3));
    assert!(setup[0] < idle_of_first[0] && idle_of_first[1] < setup[1] && presampling[0] > idle[0]);

    let summary = &run.summary;
    for (index, zone) in ZONES.iter().enumerate() {
        let Some(domain) = zone.domain else { continue };
        let check = |part: &Value, windows: &[[f64; 2]], without: Option<[f64; 2]>, what: &str| {
            let mut bounds = [0.0, 0.0];
            for [from, to] in windows {
                let [least, most] = truth.between(index, *from, *to);
                bounds = [bounds[0] + least, bounds[1] + most];
            }
            if let Some([from, to]) = without {
                let [least, most] = truth.between(index, from, to);
                bounds = [bounds[0] - most, bounds[1] - least];
            }
            truth.holds(of_domain(part, domain), bounds, &format!("{what} of {domain}"));
        };
        check(&summary["idle"], &[idle], None, "idle");
        check(&summary["setup"], &[setup], Some(idle_of_first), "set-up");
        check(
            &summary["presampling"]["first_epoch"],
            &[presampling],
            None,
            "presampling",
        );
        check(&summary["evaluation"], &evaluation, None, "evaluation");
        for (epoch, window) in summary["epochs"].as_array().unwrap().iter().zip(&training) {
            check(epoch, &[*window], None, "training");
        }

        // All of it is one time without a hole, so that only its two ends are uncertain; but for the idle time, which another
        // machine may have read.
        let parts = summary["epochs"].as_array().unwrap().iter();
        let parts = parts.chain([&summary["setup"], &summary["evaluation"]]);
        let own_idle = of_period(&lines, "idle")
            .find(|line| line["machine"] == "machine-0")
            .unwrap();
        let sum = parts.map(|part| of_domain(part, domain)).sum::<f64>() + read_of(own_idle, domain);
        let whole = [setup[0], evaluation[2][1]];
        truth.holds(
            sum,
            truth.between(index, whole[0], whole[1]),
            &format!("all of {domain}"),
        );

        let wraps_at_j = zone.wraps_after_j as f64;
        let [moved_before, moved_after] = [truth.at(index, whole[0])[1], truth.at(index, whole[1])[0]];
        assert!(
            moved_before < wraps_at_j && wraps_at_j < moved_after,
            "{domain} wraps after {wraps_at_j} J, and the run lasts from {moved_before} to {moved_after} J"
        );
    }
    totals_are_the_sums_of_packages_and_memory(&run);
    the_report_shows_it(&run);
}

fn totals_are_the_sums_of_packages_and_memory(run: &TrainRun) {
    let summary = &run.summary;
    let epochs = summary["epochs"].as_array().unwrap().iter();
    let parts = [
        &summary["idle"],
        &summary["setup"],
        &summary["presampling"]["first_epoch"],
        &summary["evaluation"],
    ];
    for part in epochs.chain(parts) {
        let sum = |domains: &[&str]| domains.iter().map(|domain| of_domain(part, domain)).sum::<f64>();
        let device = |name: &str| number(&part["energy_by_device"][name]["joules"]);
        assert_eq!(part["energy_quality"], "measured", "{part}");
        assert!((number(&part["energy_j"]) - sum(&COUNTED)).abs() < 1e-6, "{part}");
        assert!(
            (device("cpu") - sum(&["package-0", "package-1"])).abs() < 1e-6,
            "{part}"
        );
        assert!((device("dram") - sum(&["package-0/dram", "package-1/dram"])).abs() < 1e-6);
    }
    let idle_s = number(&summary["idle"]["wall_s"]);
    assert!((2.0..10.0).contains(&idle_s), "{idle_s} s idle");
    assert!(number(&summary["presampling"]["cpu_s"]) > 0.0);
}

fn the_report_shows_it(run: &TrainRun) {
    let report = fs::read_to_string(run.folder().join("report.html")).unwrap();
    assert!(report.contains("id=\"energy-quality\"><b>Energy is measured</b>"));
    assert!(report.contains("rapl measured: counters of package-0, package-0/dram, package-1, package-1/core,"));
    assert!(report.contains("nvml unavailable: the library libnvidia-ml.so.1 is not there"));
    // Power by domain, with its quality in the key.
    for domain in ZONES.iter().filter_map(|zone| zone.domain) {
        assert!(report.contains(&format!("{domain} (measured)")), "{domain}");
    }
    // Joules by domain and part of the run.
    let parts = [
        "idle",
        "set-up",
        "of it presampling",
        "training",
        "evaluation",
        "whole run",
    ];
    let header = parts.map(|part| format!("<th>{part}</th>")).concat();
    assert!(report.contains(&header));
    for domain in COUNTED {
        let line = report
            .split("<tr>")
            .find(|line| line.starts_with(&format!("<td>{domain}</td>")));
        assert_eq!(
            line.unwrap().matches("J measured</td>").count(),
            parts.len(),
            "{line:?}"
        );
    }
    assert!(report.contains("<td>psys</td><td>psys, not summed</td>"));
    assert!(report.contains("The machines draw ") && report.contains("no meter can tell the two apart"));
}
