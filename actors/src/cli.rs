//! The command line: one module per subcommand, each with its arguments and a `run` function.

use std::time::Duration;

use clap::{Parser, Subcommand};

pub mod clocks;
pub mod compare;
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod import;
pub mod locality;
pub mod machine;
pub mod output;
pub mod partition;
pub mod plan;
pub mod probe;
pub mod supervisor;
pub mod synth;
pub mod train;
pub mod tune;

/// What a subcommand ends with. The message is printed as it is, with its causes.
pub type CliResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Distributed training of graph neural networks that spends the least energy and time.
#[derive(Debug, Parser)]
#[command(name = "greengnn", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read a data set into a graph folder.
    Import(import::ImportArgs),
    /// Make a synthetic graph with planted classes.
    Synth(synth::SynthArgs),
    /// Cut a graph folder into parts.
    Partition(partition::PartitionArgs),
    /// Train on this computer, with one process per machine.
    Train(Box<train::TrainArgs>),
    /// Choose policy, budget and window for a run, from what requests and rows cost here.
    Tune(Box<tune::TuneArgs>),
    /// Train under several policies again and again, and tell what differs.
    Compare(Box<compare::CompareArgs>),
    /// Say what a policy would move, from trace files alone, or what a run would cost, before it is made.
    Plan(plan::PlanArgs),
    /// Measure what requests and rows cost between the machines of a run on this computer.
    Probe(Box<probe::ProbeArgs>),
    /// Say how often remote nodes repeat in a window of batches, and what share of the need the most frequent make up.
    Locality(locality::LocalityArgs),
    /// Wait for machines to join from other computers, and lead their run.
    Supervisor(Box<supervisor::SupervisorArgs>),
    /// Join a supervisor and train the parts that this computer holds.
    Machine(machine::MachineArgs),
    /// Train the Debian package graph under four policies and compare what each cost.
    Demo(demo::DemoArgs),
    /// Say what this computer can measure, why not more, and whom it can reach.
    Doctor(doctor::DoctorArgs),
    /// Show, lower or restore the clocks of this computer's GPUs.
    Clocks(clocks::ClocksArgs),
    /// Restore GPU clocks when the process that lowered them is gone; it starts this for itself.
    #[command(name = clocks::GUARD_SUBCOMMAND, hide = true)]
    ClockGuard(clocks::GuardArgs),
    /// Run METIS and write the part of every node; `partition` starts this for itself.
    #[command(name = crate::metis_child::SUBCOMMAND, hide = true)]
    MetisChild(crate::metis_child::MetisChildArgs),
}

impl Cli {
    pub fn run(self) -> CliResult {
        match self.command {
            Command::Import(args) => import::run(args),
            Command::Synth(args) => synth::run(args),
            Command::Partition(args) => partition::run(args),
            Command::Train(args) => train::run(*args),
            Command::Tune(args) => tune::run(*args),
            Command::Compare(args) => compare::run(*args),
            Command::Plan(args) => plan::run(args),
            Command::Probe(args) => probe::run(*args),
            Command::Locality(args) => locality::run(&args),
            Command::Supervisor(args) => supervisor::run(*args),
            Command::Machine(args) => machine::run(args),
            Command::Demo(args) => demo::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Clocks(args) => clocks::run(args),
            Command::ClockGuard(args) => clocks::run_guard(&args),
            Command::MetisChild(args) => Ok(crate::metis_child::run_child(&args)?),
        }
    }
}

/// An error that another process has printed already. Says nothing, and still ends with a failure.
#[derive(Debug, thiserror::Error)]
#[error("")]
pub struct AlreadyReported;

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (1.0..=1e6).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 1 to 1,000,000".to_owned()),
    }
}

/// The runtime of a supervisor or machine process. Compute has threads of its own, so two are enough for messages.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    /// Two flags of one name and the like; clap looks for them only in builds for debugging.
    #[test]
    fn the_command_line_is_sound() {
        let mut names = std::collections::BTreeSet::new();
        let command = Cli::command();
        for subcommand in command.get_subcommands() {
            names.clear();
            for argument in subcommand.get_arguments() {
                assert!(
                    names.insert(argument.get_id().to_string()),
                    "{} has --{} twice",
                    subcommand.get_name(),
                    argument.get_id()
                );
            }
        }
    }
}
