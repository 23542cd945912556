//! The energy of a GPU in a real run, whose driver answers what stands in a file that a test writes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Running, said, serial, text, tiny_parts, train_with};
use crate::small;

const DOMAIN: &str = "gpu/GPU-fake-0";
const WATTS: f64 = 100.0;
const TICK: Duration = Duration::from_millis(5);
/// A reading may be as old as this at each end of a period: the meter's pace of 50 ms, and as much for a meter or a writer
/// that is held up.
const EDGE_S: f64 = 0.1;

const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 3;
const DRIVER_NOT_LOADED: u32 = 9;

/// A GPU that draws [`WATTS`] all the time.
struct Gpu {
    folder: tempfile::TempDir,
    driver_status: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl Gpu {
    fn start(energy_status: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("readings")).unwrap();
        let driver_status = Arc::new(AtomicU32::new(SUCCESS));
        let stop = Arc::new(AtomicBool::new(false));
        let (driver, stopped, started) = (Arc::clone(&driver_status), Arc::clone(&stop), Instant::now());
        let write = move || {
            let driver = driver.load(Ordering::SeqCst);
            let energy_mj = (started.elapsed().as_secs_f64() * WATTS * 1e3) as u64;
            let power_mw = (WATTS * 1e3) as u64;
            // Of constant length, so that a reader never meets half a number.
            let line = format!("{driver:03} {energy_status:03} {energy_mj:012} {SUCCESS:03} {power_mw:09}\n");
            file.write_all_at(line.as_bytes(), 0).unwrap();
        };
        write();
        let writer = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                write();
            }
        });
        Self {
            folder,
            driver_status,
            stop,
            writer: Some(writer),
        }
    }

    fn configure(&self, command: &mut Command) {
        command
            .env("GREENGNN_NVML", library())
            .env("FAKE_NVML_READINGS", self.folder.path().join("readings"))
            .env("GREENGNN_RAPL_ROOT", Path::new("/no/such/tree"));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.writer.take().map(JoinHandle::join);
        assert!(
            ended.is_none_or(|ended| ended.is_ok()),
            "the writer of the readings failed"
        );
    }
}

/// The library as Cargo built it, beside this test.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    assert!(path.exists(), "{}: cargo builds it with the tests", path.display());
    path
}

/// The GPU among the domains of a part of a run.
fn of_gpu(part: &Value) -> &Value {
    let domains = part["energy_by_domain"].as_array().unwrap();
    let gpu = domains.iter().find(|domain| domain["domain"] == DOMAIN);
    gpu.unwrap_or_else(|| panic!("no GPU in {part}"))
}

/// Checks the joules of the part, which has one window, and their quality.
fn draws_its_watts(part: &Value, quality: &str) {
    let gpu = of_gpu(part);
    assert_eq!(gpu["quality"], quality, "{gpu}");
    let (joules, wall_s) = (gpu["joules"].as_f64().unwrap(), part["wall_s"].as_f64().unwrap());
    let bound = 2.0 * EDGE_S * WATTS;
    assert!(
        (joules - WATTS * wall_s).abs() <= bound,
        "{joules} J in {wall_s} s, {WATTS} W with {bound} J of edges"
    );
    assert_eq!(part["energy_by_device"]["gpu"]["joules"], gpu["joules"]);
    // The processors are estimated here, and a total is as good as its worst part.
    assert_eq!(part["energy_quality"], "estimated");
}

#[test]
fn a_counter_is_measured_and_power_alone_is_integrated() {
    let _serial = serial();
    for (energy_status, quality, how) in [
        (SUCCESS, "measured", "energy counter"),
        (NOT_SUPPORTED, "integrated", "integrated power"),
    ] {
        let gpu = Gpu::start(energy_status);
        let flags = small(&["--machines", "2", "--idle-baseline", "2"]);
        let run = train_with(tiny_parts(600, 2), &flags, |command| gpu.configure(command));
        for part in [&run.summary["idle"], &run.summary["setup"], &run.summary["epochs"][1]] {
            draws_its_watts(part, quality);
        }
        let report = std::fs::read_to_string(run.folder().join("report.html")).unwrap();
        assert!(
            report.contains(&format!("{DOMAIN} ({quality})")),
            "the key of the power plot"
        );
        assert!(report.contains(&format!("Fake GPU GPU-fake-0 ({how})")), "the banner");
    }
}

#[test]
fn a_driver_that_goes_away_leaves_a_gap_and_the_run_goes_on() {
    let _serial = serial();
    let gpu = Gpu::start(SUCCESS);
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let arguments = ["train", text(tiny_parts(600, 2)), "--json", "--out", text(&out)];
    let flags = small(&["--machines", "2", "--epochs", "400"]);
    let mut run = Running::start_with(&[&arguments[..], &flags].concat(), |command| gpu.configure(command));
    run.stderr_line("epoch 20/400");
    gpu.driver_status.store(DRIVER_NOT_LOADED, Ordering::SeqCst);
    let output = run.finish();
    assert!(output.status.success(), "{}", said(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let epochs = summary["epochs"].as_array().unwrap();
    assert_eq!(of_gpu(&epochs[5])["quality"], "measured");
    let last = &epochs[399];
    assert_eq!(
        (&of_gpu(last)["quality"], &of_gpu(last)["joules"]),
        (&"unavailable".into(), &Value::Null)
    );
    assert_eq!(
        (&last["energy_j"], &last["energy_quality"]),
        (&Value::Null, &"unavailable".into())
    );
    assert!(last["cpu_s"].as_f64().unwrap() > 0.0);
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("<b>Energy is unavailable</b>"));
}
