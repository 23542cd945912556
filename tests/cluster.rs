//! A cluster as a person makes it: one `greengnn supervisor` and several `greengnn machine`, each started by hand and each
//! with a folder that holds its own part and nothing else.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use common::{PATIENCE, Running, debian_parts, said, serial, text, tiny_parts, train_json};
use greengnn_model::synth::SynthSpec;
use serde_json::Value;
use tempfile::TempDir;

const SMALL: [&str; 8] = [
    "--epochs",
    "2",
    "--batch-size",
    "20",
    "--fanouts",
    "5,3",
    "--hidden",
    "16",
];

/// Folders of the supervisor and of machines, a cookie, and the processes that use them.
struct Cluster {
    scratch: TempDir,
    parts: PathBuf,
}

impl Cluster {
    fn new(parts: &Path) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("cookie"), "a secret of this test alone\n").unwrap();
        Self {
            scratch,
            parts: parts.to_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A folder with the manifest and these parts only.
    fn folder(&self, name: &str, parts: &[u16]) -> PathBuf {
        let folder = self.path(name);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(self.parts.join("manifest.json"), folder.join("manifest.json")).unwrap();
        for part in parts {
            let name = format!("part-{part}");
            fs::create_dir(folder.join(&name)).unwrap();
            for file in fs::read_dir(self.parts.join(&name)).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), folder.join(&name).join(file.file_name())).unwrap();
            }
        }
        folder
    }

    fn start(&self, cookie: &str, arguments: &[&str]) -> Running {
        Running::start_with(arguments, |command| {
            command
                .env_remove("GREENGNN_COOKIE")
                .env("GREENGNN_COOKIE_FILE", self.path(cookie));
        })
    }

    /// A supervisor whose folder holds only the manifest, and the address that it says it listens on.
    fn supervisor(&self, listen: &str, flags: &[&str]) -> (Running, String) {
        let folder = self.folder("supervisor", &[]);
        let out = self.path("run");
        let fixed = [
            "supervisor",
            text(&folder),
            "--listen",
            listen,
            "--json",
            "--out",
            text(&out),
        ];
        let mut supervisor = self.start("cookie", &[&fixed[..], flags].concat());
        let line = supervisor.stderr_line("listening on ");
        let (_, rest) = line.split_once("listening on ").unwrap();
        let address = rest.split(';').next().unwrap();
        (supervisor, address.to_owned())
    }

    fn machine(&self, address: &str, name: &str, folder: &Path) -> Running {
        self.start(
            "cookie",
            &["machine", "--join", address, "--name", name, "--parts", text(folder)],
        )
    }
}

/// The process must end by itself, with an error that it states.
fn failed(process: Running) -> String {
    let output = process.finish();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().any(|line| line.starts_with("error: ")), "{said}");
    said
}

fn succeeded(process: Running) -> Output {
    let output = process.finish();
    assert!(output.status.success(), "{}", said(&output));
    output
}

/// Four machines with a part each, joined at `listen`, reach the weights of one process with all parts.
fn reaches_the_weights_of_one_machine(parts: &Path, listen: &str, flags: &[&str]) {
    let cluster = Cluster::new(parts);
    let (supervisor, address) = cluster.supervisor(listen, flags);
    let machines: Vec<_> = (0..4)
        .map(|part| {
            let folder = cluster.folder(&format!("machine-{part}"), &[part]);
            cluster.machine(&address, &format!("m{part}"), &folder)
        })
        .collect();
    let output = succeeded(supervisor);
    machines.into_iter().for_each(|machine| {
        succeeded(machine);
    });
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["machines"], 4);
    let alone = train_json(parts, &[flags, &["--machines", "1"]].concat());
    assert_eq!(summary["weights_sha256"], alone["weights_sha256"]);
    assert_eq!(summary["test_accuracy"], alone["test_accuracy"]);
    assert!(cluster.path("run/report.html").is_file());
}

#[test]
fn machines_with_their_own_part_reach_the_weights_of_one_over_ipv4() {
    let _serial = serial();
    reaches_the_weights_of_one_machine(debian_parts(4), "127.0.0.1:0", &["--epochs", "2"]);
}

#[test]
fn machines_with_their_own_part_reach_the_weights_of_one_over_ipv6() {
    let _serial = serial();
    reaches_the_weights_of_one_machine(debian_parts(4), "[::1]:0", &["--epochs", "2"]);
}

#[test]
fn a_host_name_and_machines_that_wait_for_the_supervisor_work() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    // A port that was free a moment ago; the machines come first and wait.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("localhost:{port}");
    let machines: Vec<_> = [[0, 1], [2, 3]]
        .iter()
        .map(|parts| {
            let name = format!("m{}", parts[0]);
            let folder = cluster.folder(&name, parts);
            cluster.machine(&address, &name, &folder)
        })
        .collect();
    let flags = [&SMALL[..], &["--machines", "2"]].concat();
    let (supervisor, _) = cluster.supervisor(&format!("127.0.0.1:{port}"), &flags);
    let output = succeeded(supervisor);
    machines.into_iter().for_each(|machine| {
        succeeded(machine);
    });
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alone = train_json(tiny_parts(600, 4), &[&SMALL[..], &["--machines", "1"]].concat());
    assert_eq!(summary["weights_sha256"], alone["weights_sha256"]);
}

#[test]
fn a_wrong_cookie_lets_nobody_in() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    fs::write(cluster.path("other"), "another secret of this test\n").unwrap();
    let (supervisor, address) = cluster.supervisor("127.0.0.1:0", &["--join-within", "4"]);
    let folder = cluster.folder("machine", &[0, 1, 2, 3]);
    let stranger = cluster.start(
        "other",
        &[
            "machine",
            "--join",
            &address,
            "--parts",
            text(&folder),
            "--join-within",
            "2",
        ],
    );
    assert!(failed(stranger).contains("cookie"));
    let said = failed(supervisor);
    assert!(said.contains("0 of 4 machines had joined"), "{said}");
    assert!(said.contains("missing parts: 0, 1, 2, 3"), "{said}");
    assert!(!cluster.path("run").exists(), "a run without machines has no folder");
}

#[test]
fn a_machine_without_cookie_or_parts_or_supervisor_says_so() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    let folder = cluster.folder("machine", &[0]);
    let join = ["machine", "--join", "127.0.0.1:1", "--join-within", "1"];
    let arguments = [&join[..], &["--parts", text(&folder)]].concat();
    let said = failed(cluster.start("no-such-cookie", &arguments));
    assert!(said.contains("no-such-cookie"), "{said}");
    let said = failed(cluster.start("cookie", &arguments));
    assert!(said.contains("127.0.0.1:1"), "{said}");
    let unknown = ["machine", "--join", "supervisor.invalid:1", "--join-within", "1"];
    let said = failed(cluster.start("cookie", &[&unknown[..], &["--parts", text(&folder)]].concat()));
    assert_eq!(
        said.matches("supervisor.invalid:1 is not known yet").count(),
        1,
        "{said}"
    );
    let malformed = ["machine", "--join", "nonsense", "--parts", text(&folder)];
    let output = cluster.start("cookie", &malformed).finish();
    let refusal = common::said(&output);
    assert!(
        !output.status.success() && refusal.contains("nonsense has no port"),
        "{refusal}"
    );
    let empty = cluster.folder("empty", &[]);
    let said = failed(cluster.start("cookie", &[&join[..], &["--parts", text(&empty)]].concat()));
    assert!(said.contains("holds no part"), "{said}");
    let nowhere = cluster.path("nowhere");
    let said = failed(cluster.start("cookie", &[&join[..], &["--parts", text(&nowhere)]].concat()));
    assert!(said.contains("nowhere"), "{said}");
}

#[test]
fn a_machine_with_another_graph_is_refused_and_the_run_goes_on() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    let other = cluster.path("other");
    SynthSpec {
        seed: 2,
        ..SynthSpec::tiny(600)
    }
    .write_parts(&other, 4)
    .unwrap();
    let (mut supervisor, address) = cluster.supervisor("127.0.0.1:0", &[&SMALL[..], &["--machines", "1"]].concat());
    let said = failed(cluster.machine(&address, "stranger", &other));
    assert!(
        said.contains("refused this machine") && said.contains("manifest.json"),
        "{said}"
    );
    supervisor.stderr_line("refused machine stranger");
    let folder = cluster.folder("machine", &[0, 1, 2, 3]);
    succeeded(cluster.machine(&address, "m0", &folder));
    succeeded(supervisor);
}

#[test]
fn the_part_that_nobody_brought_is_named() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    // Somebody does not come.
    let (supervisor, address) = cluster.supervisor("127.0.0.1:0", &["--join-within", "4"]);
    let machines: Vec<_> = [0, 1, 3]
        .iter()
        .map(|part| {
            let folder = cluster.folder(&format!("machine-{part}"), &[*part]);
            cluster.machine(&address, &format!("m{part}"), &folder)
        })
        .collect();
    let said = failed(supervisor);
    assert!(said.contains("3 of 4 machines had joined; missing parts: 2"), "{said}");
    for machine in machines {
        assert!(failed(machine).contains("missing parts: 2"));
    }
}

#[test]
fn a_part_that_no_machine_holds_ends_the_run_when_all_have_come() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    let (supervisor, address) = cluster.supervisor("127.0.0.1:0", &["--machines", "2"]);
    let first = cluster.machine(&address, "m0", &cluster.folder("first", &[0, 1]));
    let second = cluster.machine(&address, "m1", &cluster.folder("second", &[1, 3]));
    let said = failed(supervisor);
    assert!(said.contains("no machine holds part 2"), "{said}");
    for machine in [first, second] {
        assert!(failed(machine).contains("no machine holds part 2"));
    }
}

#[test]
fn a_second_machine_of_one_name_is_refused_and_the_first_goes_on() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    let (mut supervisor, address) = cluster.supervisor("127.0.0.1:0", &[&SMALL[..], &["--machines", "2"]].concat());
    let first = cluster.machine(&address, "twin", &cluster.folder("first", &[0, 1]));
    supervisor.stderr_line("machine twin joined");
    let folder = cluster.folder("second", &[2, 3]);
    let said = failed(cluster.machine(&address, "twin", &folder));
    assert!(said.contains("name"), "{said}");
    let second = cluster.machine(&address, "other", &folder);
    for process in [supervisor, first, second] {
        succeeded(process);
    }
}

#[test]
fn more_machines_than_parts_are_refused_before_anybody_waits() {
    let _serial = serial();
    let cluster = Cluster::new(tiny_parts(600, 4));
    let folder = cluster.folder("supervisor", &[]);
    let out = cluster.path("run");
    let fixed = [
        "supervisor",
        text(&folder),
        "--listen",
        "127.0.0.1:0",
        "--out",
        text(&out),
    ];
    let said = failed(cluster.start("cookie", &[&fixed[..], &["--machines", "5"]].concat()));
    assert!(said.contains("at most 4, the number of parts"), "{said}");
    assert!(!said.contains("listening"), "{said}");
}

#[test]
fn metrics_are_served_while_the_run_lasts() {
    let _serial = serial();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("run");
    let mut run = Running::start(
        &[
            &[
                "train",
                text(tiny_parts(600, 4)),
                "--metrics-addr",
                "127.0.0.1:0",
                "--out",
                text(&out),
            ],
            &SMALL[2..],
            &["--epochs", "10000"],
        ]
        .concat(),
    );
    let line = run.stderr_line("metrics: http://");
    let address = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics");
    let started = Instant::now();
    let names = ["greengnn_steps_total", "greengnn_feature_rows_total", "greengnn_epoch"];
    loop {
        let page = scrape(address);
        if names.iter().all(|name| page.contains(name)) {
            assert!(page.contains("rank=\"3\""), "{page}");
            break;
        }
        assert!(
            started.elapsed() < PATIENCE && !run.has_ended(),
            "{page}\n{}",
            run.stderr()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // It ends when it is told to, and everything that it started with it.
    run.signal(libc::SIGTERM);
    let output = run.finish();
    assert!(!output.status.success());
    assert!(TcpStream::connect(address).is_err(), "the port is still open");
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
