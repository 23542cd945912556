//! GreenGNN inside another program: the supervisor and two machines as tasks of one Tokio runtime.
//!
//!     cargo run --release --example embed
//!
//! An application that has a runtime, an actor system and a metrics recorder of its own needs no process of ours: it
//! calls `supervisor::run` where it leads a run, and `machine::run` where it trains. Here both are in one process, over
//! loopback, on a small synthetic graph; on several computers only the addresses and the folders differ.
//!
//! CPU seconds and memory are read per process, so two machines in one process both report all of it; traffic, accuracy
//! and weights are those of separate processes. Give each process one machine where CPU seconds matter.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use greengnn::config::TrainConfig;
use greengnn::control::random_cookie;
use greengnn::machine::{self, MachineOptions};
use greengnn::report::table;
use greengnn::supervisor::{self, SupervisorOptions};
use greengnn::work::Work;
use greengnn_energy::meter::{Meter, MeterConfig};
use greengnn_model::synth::SynthSpec;
use tokio::sync::oneshot;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let parts = folder.path().join("parts");
    SynthSpec::tiny(5_000).write_parts(&parts, 4)?;

    let config = TrainConfig {
        epochs: 5,
        batch_size: 100,
        hidden: 32,
        lr: 0.01,
        machines: Some(2),
        threads: Some(1),
        ..TrainConfig::default()
    };
    config.check()?;
    // The secret that lets processes join; they get it on a way that the application trusts.
    let cookie = random_cookie()?;

    let (tell_address, address) = oneshot::channel();
    let leader = tokio::spawn(supervisor::run(
        SupervisorOptions {
            config,
            work: Work::default(),
            parts: parts.clone(),
            listen: "127.0.0.1:0".to_owned(),
            cookie: cookie.clone(),
            join_within: Duration::from_secs(30),
            run_folder: None,
            title: "embedded".to_owned(),
            quiet: false,
        },
        |address| {
            // Nobody listens any more only if this program is ending.
            let _ = tell_address.send(address);
        },
        // What would end the run early: a signal, a message, a deadline. Here nothing does.
        std::future::pending(),
    ));
    let address = address.await?.to_string();

    let machines = ["left", "right"].map(|name| {
        let options = member(name, &address, &parts, &cookie, folder.path());
        tokio::spawn(machine::run(options, std::future::pending()))
    });
    let summary = leader.await??.summary()?;
    for machine in machines {
        machine.await??;
    }

    println!("{}", table::run(&summary));
    println!("weights {}", summary.weights_sha256);
    Ok(())
}

/// A machine of this process. Its name is unique in the cluster; that it finds all parts in one folder is a convenience
/// of this example: it needs the manifest and the parts that it is to train.
fn member(name: &str, supervisor: &str, parts: &Path, cookie: &str, scratch: &Path) -> MachineOptions {
    MachineOptions {
        name: name.to_owned(),
        join: supervisor.to_owned(),
        parts: PathBuf::from(parts),
        listen: None,
        cookie: cookie.to_owned(),
        work_folder: scratch.join(name),
        meter: Arc::new(Meter::start(MeterConfig::from_env())),
        join_within: Duration::from_secs(30),
    }
}
