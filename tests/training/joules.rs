//! Energy counters that a test advances, and the words where there are none.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Running, said, serial, text, tiny_parts, train_with};
use crate::small;

const ROOT: &str = "GREENGNN_RAPL_ROOT";
/// Where the counters start again, as on a server.
const RANGE_UJ: u64 = 262_143_328_850;
/// The counters move at this pace: 50 W and 10 W with the steps below. A meter takes them for counters once they have moved.
const TICK: Duration = Duration::from_millis(5);
const PACKAGE_STEP_UJ: u64 = 250_000;
const DRAM_STEP_UJ: u64 = 50_000;
/// What they move by where a test does not want much: enough to show that they live.
const TRICKLE_UJ: u64 = 10;

/// A powercap tree with one package and its memory, both about to wrap.
struct Counters {
    folder: tempfile::TempDir,
    /// Whether the steps are the large ones.
    strong: Arc<AtomicBool>,
    /// Microjoules of large steps, and of small ones, over both counters.
    written: Arc<[AtomicU64; 2]>,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl Counters {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("intel-rapl:0");
        let zones = [
            (package.clone(), "package-0", PACKAGE_STEP_UJ),
            (package.join("intel-rapl:0:0"), "dram", DRAM_STEP_UJ),
        ];
        let mut counters = Vec::new();
        for (path, name, step) in zones {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("name"), format!("{name}\n")).unwrap();
            fs::write(path.join("max_energy_range_uj"), format!("{RANGE_UJ}\n")).unwrap();
            let file = File::create(path.join("energy_uj")).unwrap();
            // Three large steps before the end.
            counters.push((file, RANGE_UJ - 3 * step, step));
        }
        for (file, value, _) in &counters {
            show(file, *value);
        }
        let strong = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = {
            let (strong, stop, written) = (Arc::clone(&strong), Arc::clone(&stop), Arc::clone(&written));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let large = strong.load(Ordering::Relaxed);
                    for (file, value, step) in &mut counters {
                        let step = if large { *step } else { TRICKLE_UJ };
                        *value = (*value + step) % RANGE_UJ;
                        // Before it shows, so that nobody can have read more than was written.
                        written[usize::from(!large)].fetch_add(step, Ordering::SeqCst);
                        show(file, *value);
                    }
                    std::thread::sleep(TICK);
                }
            })
        };
        Self {
            folder,
            strong,
            written,
            stop,
            writer: Some(writer),
        }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn set_strong(&self, strong: bool) {
        self.strong.store(strong, Ordering::SeqCst);
    }

    /// Joules of large and of small steps.
    fn written_j(&self) -> [f64; 2] {
        [0, 1].map(|kind| self.written[kind].load(Ordering::SeqCst) as f64 * 1e-6)
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.writer.take().map(JoinHandle::join);
        assert!(
            ended.is_none_or(|ended| ended.is_ok()),
            "the writer of the counters failed"
        );
    }
}

/// One write of constant length, so that a reader never meets half a number.
fn show(file: &File, value: u64) {
    file.write_all_at(format!("{value:012}\n").as_bytes(), 0).unwrap();
}

fn periods(summary: &Value) -> Vec<&Value> {
    let epochs = summary["epochs"].as_array().unwrap().iter();
    epochs.chain([&summary["setup"], &summary["evaluation"]]).collect()
}

/// The total of a run in which large steps were written while it trained, and those steps.
fn measured_run(machines: &str) -> (f64, [f64; 2]) {
    let counters = Counters::start();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let mut run = Running::start_with(
        &[
            &[
                "train",
                text(tiny_parts(600, 4)),
                "--json",
                "--out",
                text(&out),
                "--machines",
                machines,
            ][..],
            &small(&["--epochs", "300"]),
        ]
        .concat(),
        |command| {
            command.env(ROOT, counters.root());
        },
    );
    // Every machine has read its counters when the first epoch is over, and a long time is left after the thirtieth.
    run.stderr_line("epoch 1/300");
    counters.set_strong(true);
    run.stderr_line("epoch 30/300");
    while counters.written_j()[0] < 10.0 * 1e-6 * PACKAGE_STEP_UJ as f64 {
        std::thread::sleep(TICK);
    }
    counters.set_strong(false);
    assert!(!run.has_ended(), "the run was too short for this test");
    let output = run.finish();
    assert!(output.status.success(), "{}", said(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    for period in periods(&summary) {
        assert_eq!(period["energy_quality"], "measured", "{period}");
    }
    let total = periods(&summary)
        .iter()
        .map(|period| period["energy_j"].as_f64().unwrap())
        .sum();
    let points = fs::read_to_string(out.join("energy.jsonl")).unwrap();
    assert!(points.contains("\"package-0\"") && points.contains("\"package-0/dram\""));
    (total, counters.written_j())
}

#[test]
fn the_total_of_a_run_is_what_the_counters_moved_by() {
    let _serial = serial();
    let (total, [large, small]) = measured_run("1");
    assert!(
        total >= large - 1e-6,
        "{total} J of {large} J and at most {small} J more"
    );
    assert!(
        total <= large + small + 1e-6,
        "{total} J of {large} J and at most {small} J more"
    );
}

#[test]
fn machines_of_one_host_count_its_counters_once() {
    let _serial = serial();
    let (total, [large, small]) = measured_run("4");
    assert!(
        total >= large - 1e-6,
        "{total} J of {large} J and at most {small} J more"
    );
    assert!(
        total <= large + small + 1e-6,
        "{total} J of {large} J and at most {small} J more"
    );
}

#[test]
fn without_counters_every_joule_is_called_an_estimate() {
    let _serial = serial();
    let nothing = tempfile::tempdir().unwrap();
    let run = train_with(tiny_parts(600, 4), &small(&[]), |command| {
        command.env(ROOT, nothing.path().join("nothing"));
    });
    for period in periods(&run.summary) {
        let quality = period["energy_quality"].as_str().unwrap();
        assert!(["estimated", "unavailable"].contains(&quality), "{period}");
    }
    let report = fs::read_to_string(run.folder().join("report.html")).unwrap();
    // The words between the tags; a figure's quality stands behind it or in the next words.
    let words: Vec<&str> = report
        .split('<')
        .filter_map(|piece| piece.split_once('>'))
        .map(|(_, words)| words.trim())
        .filter(|words| !words.is_empty())
        .collect();
    let named = |words: &str| words.contains("estimated") || words.contains("unavailable");
    let joules: Vec<usize> = (0..words.len()).filter(|index| has_joules(words[*index])).collect();
    for index in joules {
        let after = words.get(index + 1).copied().unwrap_or_default();
        assert!(named(words[index]) || named(after), "{} | {after}", words[index]);
    }
    assert!(words.iter().any(|words| named(words)));
    for line in run.stderr.lines().filter(|line| has_joules(line)) {
        assert!(named(line), "{line}");
    }
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let table = Running::start_with(
        &[
            &["train", text(tiny_parts(600, 4)), "--out", text(&out)][..],
            &small(&[]),
        ]
        .concat(),
        |command| {
            command.env(ROOT, nothing.path().join("nothing"));
        },
    )
    .finish();
    let table = String::from_utf8(table.stdout).unwrap();
    let rows: Vec<_> = table.lines().filter(|line| has_joules(line)).collect();
    assert!(rows.iter().all(|line| named(line)), "{table}");
    assert!(table.lines().any(named), "{table}");
}

/// Whether the text has a number of joules: `812 J`, `1.23 kJ`.
fn has_joules(text: &str) -> bool {
    let words: Vec<&str> = text
        .split(|letter: char| letter.is_whitespace() || letter == ',')
        .collect();
    words.windows(2).any(|pair| {
        ["J", "kJ", "mJ", "MJ"].contains(&pair[1]) && pair[0].starts_with(|letter: char| letter.is_ascii_digit())
    })
}
