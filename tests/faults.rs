//! What a run does when something goes wrong: signals, killed and hung processes, full disks, damaged parts.
//!
//! Whatever happens, every process ends in bounded time, one line says why, and nothing is left behind.

mod common;

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, debian_parts, said, serial, text, tiny_parts};
use greengnn::supervisor::DEAD_AFTER;
use libc::pid_t;
use tempfile::TempDir;

/// How long a run may take to end after a signal or a death that is seen at once; it takes about half a second.
const SOON: Duration = Duration::from_secs(15);

/// The folders of one test: temporary files and the run.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("tmp")).unwrap();
        std::fs::write(folder.path().join("cookie"), "a secret of this test alone\n").unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, arguments: &[&str], configure: impl FnOnce(&mut Command)) -> Running {
        Running::start_with(arguments, |command| {
            command.env("TMPDIR", self.path("tmp"));
            command.env("GREENGNN_COOKIE_FILE", self.path("cookie"));
            configure(command);
        })
    }

    /// A run that would last for hours.
    fn train(&self, parts: &Path) -> Running {
        let run = self.path("run");
        let arguments = [
            "train",
            text(parts),
            "--epochs",
            "100000",
            "--hidden",
            "16",
            "--out",
            text(&run),
        ];
        self.start(&arguments, |_| ())
    }

    /// As [`train`](Self::train), once all processes work.
    fn training(&self, parts: &Path) -> Running {
        let mut running = self.train(parts);
        running.stderr_line("epoch 2/");
        running
    }

    fn supervisor(&self, parts: &Path, flags: &[&str], configure: impl FnOnce(&mut Command)) -> (Running, String) {
        let run = self.path("run");
        let listen = ["--listen", "127.0.0.1:0", "--epochs", "100000", "--hidden", "16"];
        let mut arguments = vec!["supervisor", text(parts), "--out", text(&run)];
        arguments.extend(listen.iter().chain(flags));
        let mut running = self.start(&arguments, configure);
        let line = running.stderr_line("listening on ");
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split(';').next());
        (running, address.unwrap().to_owned())
    }

    fn machine(&self, parts: &Path, address: &str, name: &str, configure: impl FnOnce(&mut Command)) -> Running {
        let arguments = ["machine", "--join", address, "--parts", text(parts), "--name", name];
        self.start(&arguments, configure)
    }

    /// A supervisor and two machines by hand, at work.
    fn cluster(&self, parts: &Path) -> (Running, String, [Running; 2]) {
        let (mut supervisor, address) = self.supervisor(parts, &["--machines", "2"], |_| ());
        let machines = ["left", "right"].map(|name| self.machine(parts, &address, name, |_| ()));
        supervisor.stderr_line("epoch 2/");
        (supervisor, address, machines)
    }

    /// Checks that no temporary file is left.
    fn assert_clean(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path("tmp"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What a process complains about: errors, warnings and panics, without the causes of an error and without progress.
fn errors(output: &Output) -> Vec<String> {
    let complains = |line: &&str| {
        line.starts_with("error") || ["panicked", " WARN", " ERROR"].iter().any(|word| line.contains(word))
    };
    said(output).lines().filter(complains).map(str::to_owned).collect()
}

/// The one error line of a process that failed.
fn only_error(output: &Output) -> String {
    assert!(
        !output.status.success() && output.status.code() != Some(101),
        "{}",
        said(output)
    );
    assert!(output.stdout.is_empty(), "{:?}", output.stdout);
    let errors = errors(output);
    assert_eq!(errors.len(), 1, "{}", said(output));
    assert!(errors[0].starts_with("error: "), "{errors:?}");
    errors[0].clone()
}

/// Ends within `limit` of `since`; `finish` has checked that no process of the group is left.
fn ended(running: Running, since: Instant, limit: Duration) -> Output {
    let output = running.finish();
    assert!(since.elapsed() < limit, "{:?}: {}", since.elapsed(), said(&output));
    output
}

fn send(process: pid_t, signal: libc::c_int) {
    // SAFETY: sends a signal to a process that this test has started, or to its group.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0, "process {process} is gone");
}

/// The children of a launcher whose command lines contain `wanted`.
fn children(launcher: &Running, wanted: &str) -> Vec<pid_t> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<pid_t>().ok());
    let is_child = |id: &pid_t| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The fields after the name, which is in parentheses: state, then the parent.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        parent.is_some_and(|parent| parent == launcher.id().to_string())
    };
    let says = |id: &pid_t| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(wanted)
    };
    ids.filter(|id| is_child(id) && says(id)).collect()
}

fn child(launcher: &Running, wanted: &str) -> pid_t {
    let found = children(launcher, wanted);
    assert_eq!(found.len(), 1, "{wanted}");
    found[0]
}

/// The inodes of the sockets that listen on this computer.
fn listening_sockets() -> BTreeSet<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    // 0A is LISTEN.
    fields
        .filter(|fields| fields.get(3) == Some(&"0A"))
        .filter_map(|fields| Some((*fields.get(9)?).to_owned()))
        .collect()
}

/// Of these, the ones that a process holds.
fn held_sockets(process: pid_t, among: &BTreeSet<String>) -> BTreeSet<String> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let targets = files.filter_map(|file| Some(std::fs::read_link(file.path()).ok()?.to_string_lossy().into_owned()));
    let inodes = targets.filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
    inodes.filter(|inode| among.contains(inode)).collect()
}

/// What a run holds on the computer while it lasts.
struct Holdings {
    sockets: BTreeSet<String>,
}

impl Holdings {
    fn of(launcher: &Running) -> Self {
        let processes = children(launcher, "");
        assert_eq!(processes.len(), 5, "a supervisor and four machines");
        let listening = listening_sockets();
        for process in &processes {
            let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
            assert!(!maps.contains("/dev/shm"), "{maps}");
        }
        let sockets: BTreeSet<_> = processes
            .iter()
            .flat_map(|process| held_sockets(*process, &listening))
            .collect();
        assert!(sockets.len() >= 5, "every process listens: {sockets:?}");
        Self { sockets }
    }

    fn assert_gone(&self) {
        let left: Vec<_> = self.sockets.intersection(&listening_sockets()).cloned().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn signals_to_the_launcher_end_all_with_one_line() {
    let parts = debian_parts(4);
    let _serial = serial();
    // To the launcher alone; and as a terminal sends Ctrl-C, to all.
    for (signal, to_all) in [(libc::SIGINT, false), (libc::SIGTERM, false), (libc::SIGINT, true)] {
        let scene = Scene::new();
        let running = scene.training(parts);
        let holdings = Holdings::of(&running);
        let told = Instant::now();
        send(if to_all { -running.id() } else { running.id() }, signal);
        let output = ended(running, told, SOON);
        assert_eq!(only_error(&output), "error: the run was interrupted");
        assert!(
            said(&output).ends_with("error: the run was interrupted\n"),
            "{}",
            said(&output)
        );
        assert_eq!(output.status.code(), Some(1));
        holdings.assert_gone();
        scene.assert_clean();
    }
}

#[test]
fn a_signal_while_the_run_is_set_up_ends_it_too() {
    let parts = debian_parts(4);
    let _serial = serial();
    for milliseconds in [0, 20, 60, 150] {
        let scene = Scene::new();
        let running = scene.train(parts);
        std::thread::sleep(Duration::from_millis(milliseconds));
        let told = Instant::now();
        running.signal(libc::SIGTERM);
        let output = ended(running, told, SOON);
        assert!(!output.status.success(), "{}", said(&output));
        assert!(errors(&output).len() <= 1, "{}", said(&output));
        scene.assert_clean();
    }
}

#[test]
fn the_death_of_the_launcher_ends_all() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let running = scene.training(parts);
    let holdings = Holdings::of(&running);
    let killed = Instant::now();
    running.signal(libc::SIGKILL);
    let output = ended(running, killed, SOON);
    assert!(errors(&output).is_empty(), "{}", said(&output));
    holdings.assert_gone();
    scene.assert_clean();
}

#[test]
fn the_death_of_a_machine_is_named_with_its_cause() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let running = scene.training(parts);
    let holdings = Holdings::of(&running);
    let killed = Instant::now();
    send(child(&running, "machine-1"), libc::SIGKILL);
    let output = ended(running, killed, SOON);
    assert!(
        only_error(&output).contains("machine machine-1 is gone"),
        "{}",
        said(&output)
    );
    let cause = "  because machine-1 was ended by signal: 9 (SIGKILL)\n";
    assert!(said(&output).ends_with(cause), "{}", said(&output));
    holdings.assert_gone();
    scene.assert_clean();
}

#[test]
fn the_death_of_the_supervisor_is_named() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let running = scene.training(parts);
    let killed = Instant::now();
    send(child(&running, "supervisor"), libc::SIGKILL);
    let output = ended(running, killed, SOON);
    let error = only_error(&output);
    assert!(
        error.contains("the supervisor process") && error.contains("SIGKILL"),
        "{error}"
    );
    scene.assert_clean();
}

#[test]
fn a_hung_machine_is_dead() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let running = scene.training(parts);
    let holdings = Holdings::of(&running);
    let stopped = Instant::now();
    send(child(&running, "machine-2"), libc::SIGSTOP);
    let output = ended(running, stopped, 3 * DEAD_AFTER + SOON);
    let error = only_error(&output);
    assert!(
        error.contains("machine machine-2 is gone: it has not answered for"),
        "{error}"
    );
    holdings.assert_gone();
    scene.assert_clean();
}

#[test]
fn a_hung_supervisor_is_dead() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let running = scene.training(parts);
    let stopped = Instant::now();
    send(child(&running, "supervisor"), libc::SIGSTOP);
    // Machines are patient with the one that they cannot do without.
    let output = ended(running, stopped, 6 * DEAD_AFTER + SOON);
    let error = only_error(&output);
    assert!(error.contains("the supervisor process does not respond"), "{error}");
    scene.assert_clean();
}

#[test]
fn by_hand_the_death_of_the_supervisor_ends_the_machines() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let (supervisor, address, machines) = scene.cluster(parts);
    let killed = Instant::now();
    supervisor.signal(libc::SIGKILL);
    ended(supervisor, killed, SOON);
    for machine in machines {
        let output = ended(machine, killed, SOON);
        let error = only_error(&output);
        assert!(
            error.contains(&format!("the supervisor at {address} is gone")),
            "{error}"
        );
    }
    scene.assert_clean();
    assert!(std::net::TcpStream::connect(&address).is_err());
}

#[test]
fn by_hand_the_death_of_a_machine_ends_the_run_everywhere() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let (supervisor, _, [left, right]) = scene.cluster(parts);
    let killed = Instant::now();
    left.signal(libc::SIGKILL);
    ended(left, killed, SOON);
    let output = ended(supervisor, killed, SOON);
    assert!(
        only_error(&output).contains("machine left is gone"),
        "{}",
        said(&output)
    );
    let output = ended(right, killed, SOON);
    assert!(said(&output).contains("left"), "{}", said(&output));
    assert!(
        !output.status.success() && !said(&output).contains("panicked"),
        "{}",
        said(&output)
    );
}

#[test]
fn by_hand_a_signal_to_one_process_ends_the_run_everywhere() {
    let parts = debian_parts(4);
    let _serial = serial();
    let scene = Scene::new();
    let (supervisor, _, machines) = scene.cluster(parts);
    let told = Instant::now();
    supervisor.signal(libc::SIGINT);
    assert_eq!(
        only_error(&ended(supervisor, told, SOON)),
        "error: the run was interrupted"
    );
    for machine in machines {
        let error = only_error(&ended(machine, told, SOON));
        assert_eq!(error, "error: the supervisor ended the run: the run was interrupted");
    }
    scene.assert_clean();

    let scene = Scene::new();
    let (supervisor, _, [left, right]) = scene.cluster(parts);
    let told = Instant::now();
    right.signal(libc::SIGTERM);
    assert_eq!(
        only_error(&ended(right, told, SOON)),
        "error: this machine was interrupted"
    );
    let error = only_error(&ended(supervisor, told, SOON));
    assert_eq!(error, "error: machine right failed: this machine was interrupted");
    let output = ended(left, told, SOON);
    assert!(
        !output.status.success() && said(&output).contains("right"),
        "{}",
        said(&output)
    );
    scene.assert_clean();
}

#[test]
fn a_signal_ends_who_waits_for_the_others() {
    let scene = Scene::new();
    let parts = tiny_parts(60, 2);
    let _serial = serial();
    let (supervisor, address) = scene.supervisor(parts, &["--machines", "2"], |_| ());
    let told = Instant::now();
    supervisor.signal(libc::SIGTERM);
    assert_eq!(
        only_error(&ended(supervisor, told, SOON)),
        "error: the run was interrupted"
    );

    // Nobody listens there any more.
    let machine = scene.machine(parts, &address, "alone", |_| ());
    let started = Instant::now();
    while std::fs::read_dir(scene.path("tmp")).unwrap().next().is_none() {
        assert!(started.elapsed() < PATIENCE, "the machine makes its folder");
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = Instant::now();
    machine.signal(libc::SIGTERM);
    assert_eq!(
        only_error(&ended(machine, told, SOON)),
        "error: this machine was interrupted"
    );
    scene.assert_clean();
}

#[test]
fn a_run_folder_with_something_in_it_is_left_alone() {
    let scene = Scene::new();
    let parts = tiny_parts(60, 2);
    let (run, note) = (scene.path("run"), scene.path("run/note"));
    std::fs::create_dir(&run).unwrap();
    std::fs::write(&note, "mine").unwrap();
    let _serial = serial();
    let error = only_error(&scene.train(parts).finish());
    assert!(error.contains("run is not empty; choose another with --out"), "{error}");
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "mine");

    // A file where a folder has to be, whoever asks.
    let below = note.join("run");
    let output = scene
        .start(&["train", text(parts), "--out", text(&below)], |_| ())
        .finish();
    assert!(only_error(&output).contains("note/run"), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "mine");
    scene.assert_clean();
}

#[test]
fn a_run_folder_without_leave_to_write_is_an_error() {
    use std::os::unix::fs::PermissionsExt;

    let scene = Scene::new();
    let locked = scene.path("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o500)).unwrap();
    if std::fs::write(locked.join("probe"), "").is_ok() {
        eprintln!("skipped: permissions do not bind this user");
        return;
    }
    let _serial = serial();
    let run = locked.join("run");
    let output = scene
        .start(&["train", text(tiny_parts(60, 2)), "--out", text(&run)], |_| ())
        .finish();
    assert!(only_error(&output).contains("locked/run"), "{}", said(&output));
}

/// Lets no file of the process grow beyond this, which is what a full disk looks like without being one.
fn limit_files(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    let apply = move || {
        // SAFETY: both calls are safe between fork and exec; the limit is a plain value that outlives the call.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        }
    };
    // SAFETY: the closure makes system calls and nothing else.
    unsafe { command.pre_exec(apply) };
}

#[test]
fn a_full_disk_under_the_run_folder_ends_the_run() {
    let scene = Scene::new();
    let parts = tiny_parts(60, 2);
    let _serial = serial();
    let (supervisor, address) = scene.supervisor(parts, &["--machines", "1"], |command| limit_files(command, 8_192));
    let machine = scene.machine(parts, &address, "one", |_| ());
    let output = supervisor.finish();
    let error = only_error(&output);
    assert!(
        error.contains("run/metrics.jsonl") || error.contains("run/energy.jsonl"),
        "{error}"
    );
    assert!(said(&output).contains("File too large"), "{}", said(&output));
    let error = only_error(&machine.finish());
    assert!(error.contains("the supervisor ended the run: "), "{error}");
    scene.assert_clean();
}

#[test]
fn a_full_disk_under_the_traces_ends_the_run() {
    let scene = Scene::new();
    let parts = debian_parts(4);
    let _serial = serial();
    let (supervisor, address) = scene.supervisor(parts, &["--machines", "2"], |_| ());
    let roomy = scene.machine(parts, &address, "roomy", |_| ());
    let full = scene.machine(parts, &address, "full", |command| limit_files(command, 16_384));
    let error = only_error(&full.finish());
    assert!(error.contains(".trace cannot be written"), "{error}");
    let error = only_error(&supervisor.finish());
    assert!(
        error.contains("machine full failed") && error.contains(".trace"),
        "{error}"
    );
    let output = roomy.finish();
    assert!(
        !output.status.success() && !said(&output).contains("panicked"),
        "{}",
        said(&output)
    );
    scene.assert_clean();
}

/// A copy of a parts folder, to damage.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, target) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn damaged_parts_are_named() {
    let scene = Scene::new();
    let parts = scene.path("parts");
    copy(tiny_parts(60, 2), &parts);
    let _serial = serial();
    // A run that all machines have joined has a folder.
    let refused = |joined: bool| {
        let error = only_error(&scene.train(&parts).finish());
        let run = scene.path("run");
        assert_eq!(run.exists(), joined, "{error}");
        if joined {
            std::fs::remove_dir_all(run).unwrap();
        }
        scene.assert_clean();
        error
    };
    let features = parts.join("part-1/feat.npy");
    let whole = std::fs::read(&features).unwrap();
    std::fs::write(&features, &whole[..whole.len() - 4]).unwrap();
    let error = refused(true);
    assert!(error.contains("part-1/feat.npy"), "{error}");
    std::fs::write(&features, &whole).unwrap();

    // A neighbour that does not exist.
    let indices = parts.join("part-0/indices.npy");
    let whole = std::fs::read(&indices).unwrap();
    let mut wrong = whole.clone();
    let end = wrong.len();
    wrong[end - 4..].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(&indices, &wrong).unwrap();
    let error = refused(true);
    assert!(error.contains("the graph names neighbour 4294967295"), "{error}");
    std::fs::write(&indices, &whole).unwrap();

    std::fs::remove_dir_all(parts.join("part-1")).unwrap();
    let error = refused(false);
    assert!(error.contains("part 1") || error.contains("part-1"), "{error}");
}
