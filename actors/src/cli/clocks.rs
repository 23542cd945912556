//! `greengnn clocks`.

use std::io::{stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use greengnn_energy::clocks::{
    ClockControl, ClockError, ClockLease, ClockSettings, GuardProgram, LeaseFolder, LeaseOptions, Repaired, guard,
};
use greengnn_energy::nvml::NvmlReader;

use super::output::{note, print};
use super::{AlreadyReported, CliResult, seconds};
use crate::lifetime::{catch_interruption, interrupted};

/// The hidden subcommand of the guard.
pub const GUARD_SUBCOMMAND: &str = "clock-guard";

/// How often `hold` looks whether it is over.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub struct ClocksArgs {
    #[command(subcommand)]
    pub command: ClocksCommand,
}

#[derive(Debug, clap::Subcommand)]
pub enum ClocksCommand {
    /// Show the clocks of all GPUs and who holds them down.
    Show,
    /// Restore the clocks that processes which are no more have left low, and undo every setting of the other GPUs.
    Reset {
        /// GPUs of processes that still run as well.
        #[arg(long)]
        force: bool,
    },
    /// Lower the clocks until Ctrl-C, for an hour at most, as `train --lower-clocks` does until its first step.
    Hold {
        /// GPUs by UUID [default: all]
        #[arg(long, value_name = "UUID")]
        gpu: Vec<String>,
        /// End by itself after so many seconds [default: 3600]
        #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
        within: Option<Duration>,
        /// Lower them although other processes compute on the GPU.
        #[arg(long)]
        shared: bool,
    },
}

/// Arguments of the guard.
#[derive(Debug, clap::Args)]
pub struct GuardArgs {
    /// The lease's file.
    pub lease: PathBuf,
}

/// The running program as a guard.
///
/// # Errors
/// The program's file cannot be found.
pub fn guard_program() -> std::io::Result<GuardProgram> {
    Ok(GuardProgram {
        program: std::env::current_exe()?,
        arguments: vec![GUARD_SUBCOMMAND.to_owned()],
    })
}

pub fn run(args: ClocksArgs) -> CliResult {
    let folder = LeaseFolder::default_of_system();
    let mut control = NvmlReader::load().map_err(ClockError::NoGpu)?;
    match args.command {
        ClocksCommand::Show => show(&folder, &mut control),
        ClocksCommand::Reset { force } => reset(&folder, &mut control, force),
        ClocksCommand::Hold { gpu, within, shared } => hold(folder, control, gpu, within, shared),
    }
}

/// Restores the clocks of a process that ends without doing so itself.
pub fn run_guard(args: &GuardArgs) -> CliResult {
    let mut control = NvmlReader::load().map_err(ClockError::NoGpu)?;
    match guard::run(&args.lease, stdin(), stdout(), &mut control)? {
        Some(repaired) => tell(&repaired),
        None => Ok(()),
    }
}

fn show(folder: &LeaseFolder, control: &mut NvmlReader) -> CliResult {
    let leases = folder.leases()?;
    for uuid in control.uuids().map_err(ClockError::NoGpu)? {
        let observed = match control.observed_mhz(&uuid) {
            Ok(megahertz) => format!("{megahertz} MHz"),
            Err(error) => error.to_string(),
        };
        let set = match control.settings(&uuid) {
            Ok(ClockSettings::Locked) => "can be locked".to_owned(),
            Ok(ClockSettings::Application { graphics_mhz, .. }) => format!("application clock {graphics_mhz} MHz"),
            Err(error) => error.to_string(),
        };
        let holders = leases
            .iter()
            .filter(|(_, lease)| lease.gpus.iter().any(|gpu| gpu.uuid == uuid));
        let held: String = holders
            .map(|(_, lease)| match lease.is_alive() {
                true => format!(", held down by process {}", lease.pid),
                false => format!(
                    ", left low by process {}, which is no more: greengnn clocks reset",
                    lease.pid
                ),
            })
            .collect();
        print(format_args!("{uuid}: {observed}, {set}{held}"))?;
    }
    Ok(())
}

fn reset(folder: &LeaseFolder, control: &mut NvmlReader, force: bool) -> CliResult {
    let mut failed = false;
    let mut done = Vec::new();
    for (path, lease) in folder.leases()? {
        if lease.is_alive() && !force {
            note(format_args!(
                "process {} still runs and holds its GPUs down; --force restores them anyway",
                lease.pid
            ));
            done.extend(lease.gpus.iter().map(|gpu| gpu.uuid.clone()));
            continue;
        }
        let repaired = lease.restore(&path, control);
        failed |= tell(&repaired).is_err();
        done.extend(lease.gpus.into_iter().map(|gpu| gpu.uuid));
    }
    for uuid in control.uuids().map_err(ClockError::NoGpu)? {
        if done.contains(&uuid) {
            continue;
        }
        match control.reset(&uuid) {
            Ok(()) => print(format_args!("{uuid}: reset"))?,
            Err(source) => {
                failed = true;
                note(ClockError::Gpu { uuid, source });
            }
        }
    }
    if failed { Err(Box::new(AlreadyReported)) } else { Ok(()) }
}

/// Says what was restored and what was not.
fn tell(repaired: &Repaired) -> CliResult {
    for uuid in &repaired.restored {
        print(format_args!("{uuid}: restored what process {} had left", repaired.pid))?;
    }
    repaired.failed.iter().for_each(note);
    if repaired.failed.is_empty() {
        Ok(())
    } else {
        Err(Box::new(AlreadyReported))
    }
}

fn hold(
    folder: LeaseFolder,
    mut control: NvmlReader,
    gpus: Vec<String>,
    within: Option<Duration>,
    shared: bool,
) -> CliResult {
    catch_interruption()?;
    for repaired in folder.repair(&mut control)? {
        tell(&repaired)?;
    }
    let uuids = if gpus.is_empty() {
        control.uuids().map_err(ClockError::NoGpu)?
    } else {
        gpus
    };
    let mut options = LeaseOptions::new(folder, guard_program()?);
    options.allow_shared = shared;
    if let Some(within) = within {
        options.most = options.most.max(within + options.time_to_live);
    }
    let mut lease = ClockLease::take(Box::new(control), &uuids, &options)?;
    let observed = lease.observed_mhz();
    for (uuid, requested) in lease.requested_mhz() {
        let runs_at = observed.iter().find(|(observed, _)| observed == uuid);
        let runs_at = runs_at.map_or_else(String::new, |(_, megahertz)| format!(", it runs at {megahertz} MHz"));
        print(format_args!("{uuid}: asked for {requested} MHz{runs_at}"))?;
    }
    let most = within.unwrap_or(options.most);
    let until = Instant::now() + most;
    while !interrupted() && Instant::now() < until {
        std::thread::sleep(POLL);
    }
    lease.give_back()?;
    Ok(())
}
