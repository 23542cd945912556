//! What the whole-system tests share: the program with a time limit, graphs, and what a run leaves.
#![allow(dead_code, reason = "every test binary uses its own share of this module")]

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use greengnn_model::synth::SynthSpec;
use serde_json::Value;
use tempfile::TempDir;

pub mod gpu;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_greengnn");
/// Far longer than any run of these tests takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long the rest of a process group may take to be gone after the process that led it.
const SETTLE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// Held by a test while it has processes, so that tests of one binary do not flood the computer.
pub fn serial() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program that runs in a process group of its own. Dropping it kills the whole group.
pub struct Running {
    what: String,
    child: Child,
    status: Option<ExitStatus>,
    stdout: Capture,
    stderr: Capture,
}

impl Running {
    /// Starts `greengnn` with these arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |_| ())
    }

    /// Starts `greengnn` after `configure` has set its environment or folder.
    pub fn start_with(arguments: &[&str], configure: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        configure(&mut command);
        command.process_group(0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            what: format!("greengnn {}", arguments.join(" ")),
            stdout: Capture::of(child.stdout.take().unwrap()),
            stderr: Capture::of(child.stderr.take().unwrap()),
            child,
            status: None,
        }
    }

    /// The process id, which is also the id of its group.
    pub fn id(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    /// Sends a signal to the process alone, not to its group.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so its process id is still its own.
        assert_eq!(unsafe { libc::kill(self.id(), signal) }, 0, "{} is gone", self.what);
    }

    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
        }
        self.status.is_some()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits for a line on standard error that contains `wanted`, and returns it.
    pub fn stderr_line(&mut self, wanted: &str) -> String {
        let started = Instant::now();
        loop {
            let ended = self.has_ended();
            let said = self.stderr.text();
            // The last line may still be in the writing.
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            if let Some(line) = whole.lines().find(|line| line.contains(wanted)) {
                return line.to_owned();
            }
            let patient = started.elapsed() < PATIENCE && !(ended && self.stderr.is_whole());
            assert!(patient, "{}: no line with '{wanted}' in\n{said}", self.what);
            std::thread::sleep(POLL);
        }
    }

    /// Waits for the end, and checks that no process of the group outlives it.
    pub fn finish(mut self) -> Output {
        let started = Instant::now();
        while !self.has_ended() {
            if started.elapsed() > PATIENCE {
                panic!("{} ran past {PATIENCE:?}:\n{}", self.what, self.stderr.text());
            }
            std::thread::sleep(POLL);
        }
        let settling = Instant::now();
        while !(self.group_is_gone() && self.stdout.is_whole() && self.stderr.is_whole()) {
            if settling.elapsed() > SETTLE {
                panic!("{} left processes behind:\n{}", self.what, self.stderr.text());
            }
            std::thread::sleep(POLL);
        }
        Output {
            status: self.status.unwrap(),
            stdout: self.stdout.bytes(),
            stderr: self.stderr.bytes(),
        }
    }

    fn group_is_gone(&self) -> bool {
        // SAFETY: signal 0 only asks whether the group has members.
        unsafe { libc::kill(-self.id(), 0) == -1 }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() || !self.group_is_gone() {
            // SAFETY: the group's id is taken while its leader is not waited for or a member is left.
            unsafe { libc::kill(-self.id(), libc::SIGKILL) };
        }
        let _ = self.child.wait();
    }
}

/// What a process writes to one pipe, read as it comes so that the process never waits.
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Capture {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(count @ 1..) = pipe.read(&mut piece) {
                sink.lock().unwrap().extend_from_slice(&piece[..count]);
            }
        });
        Self { bytes, reader }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn is_whole(&self) -> bool {
        self.reader.is_finished()
    }
}

/// Runs `greengnn` to its end, bounded in time, and checks that it leaves no process behind.
pub fn greengnn(arguments: &[&str]) -> Output {
    Running::start(arguments).finish()
}

/// Runs `greengnn`, which must succeed, and returns its standard output.
pub fn succeeds(arguments: &[&str]) -> String {
    let output = greengnn(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `greengnn`, which must end by itself with an error, and returns its standard error.
pub fn fails(arguments: &[&str]) -> String {
    let output = greengnn(arguments);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    said
}

/// Standard error as text.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The Debian package graph as it ships.
pub fn debian() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/debian-packages")
}

/// The Debian package graph, imported as `demo` does; made once per test binary.
pub fn debian_graph() -> &'static Path {
    made_once_inside("debian", |graph| {
        succeeds(&["import", text(&debian()), "--out", text(graph)]);
    })
}

/// [`debian_graph`] cut by METIS; made once per test binary.
pub fn debian_parts(parts: u16) -> &'static Path {
    made_once(&format!("debian-{parts}"), |out| {
        succeeds(&[
            "partition",
            text(debian_graph()),
            "--parts",
            &parts.to_string(),
            "--out",
            text(out),
        ]);
    })
}

/// [`SynthSpec::tiny`] cut by hash; made once per test binary.
pub fn tiny_parts(nodes: u32, parts: u16) -> &'static Path {
    made_once(&format!("tiny-{nodes}-{parts}"), |out| {
        SynthSpec::tiny(nodes).write_parts(out, parts).unwrap();
    })
}

type Made = BTreeMap<String, &'static Path>;

/// A folder that `make` writes the first time it is asked for, below a folder that goes when the test binary ends.
fn made_once(name: &str, make: impl FnOnce(&Path)) -> &'static Path {
    static MADE: Mutex<Made> = Mutex::new(BTreeMap::new());
    make_in(&MADE, name, make)
}

/// As [`made_once`], for what is needed while that makes something.
fn made_once_inside(name: &str, make: impl FnOnce(&Path)) -> &'static Path {
    static MADE: Mutex<Made> = Mutex::new(BTreeMap::new());
    make_in(&MADE, name, make)
}

fn make_in(made: &Mutex<Made>, name: &str, make: impl FnOnce(&Path)) -> &'static Path {
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = made.get(name) {
        return path;
    }
    let path = shared_folder().join(name);
    make(&path);
    let path: &'static Path = Box::leak(path.into_boxed_path());
    made.insert(name.to_owned(), path);
    path
}

fn shared_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(folder) = FOLDER.get() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
    FOLDER.get_or_init(|| {
        // Statics are not dropped, so the folder is removed when the process ends.
        // SAFETY: the function only removes a folder, and a static that it reads outlives every handler.
        unsafe { libc::atexit(remove) };
        tempfile::Builder::new()
            .prefix("greengnn-tests-")
            .tempdir()
            .unwrap()
            .keep()
    })
}

/// A run that ended well: what it printed, and its folder for as long as this lives.
pub struct TrainRun {
    /// `--json`'s standard output, which is one JSON value and nothing else.
    pub summary: Value,
    pub stderr: String,
    scratch: TempDir,
}

impl TrainRun {
    pub fn folder(&self) -> PathBuf {
        self.scratch.path().join("run")
    }

    pub fn weights(&self) -> &str {
        self.summary["weights_sha256"].as_str().unwrap()
    }

    /// The lines of `metrics.jsonl` of one kind.
    pub fn metrics(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder().join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.filter(|line: &Value| line["kind"] == kind).collect()
    }
}

/// `greengnn train PARTS --json` with these flags; it must succeed.
pub fn train(parts: &Path, flags: &[&str]) -> TrainRun {
    train_with(parts, flags, |_| ())
}

/// As [`train`], after `configure` has set the environment.
pub fn train_with(parts: &Path, flags: &[&str], configure: impl FnOnce(&mut Command)) -> TrainRun {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let mut arguments = vec!["train", text(parts), "--json", "--out", text(&out)];
    arguments.extend_from_slice(flags);
    let output = Running::start_with(&arguments, configure).finish();
    let stderr = said(&output);
    assert!(output.status.success(), "{flags:?}: {stderr}");
    TrainRun {
        summary: serde_json::from_slice(&output.stdout).unwrap(),
        stderr,
        scratch,
    }
}

/// The summary of `greengnn train PARTS` with these flags; it must succeed.
pub fn train_json(parts: &Path, flags: &[&str]) -> Value {
    train(parts, flags).summary
}

/// A counter of a summary.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}
