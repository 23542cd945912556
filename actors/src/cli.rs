//! The command line: one module per subcommand, each with its arguments and a `run` function.

use clap::{Parser, Subcommand};

pub mod import;
pub mod partition;
pub mod synth;

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
            Command::MetisChild(args) => Ok(crate::metis_child::run_child(&args)?),
        }
    }
}
