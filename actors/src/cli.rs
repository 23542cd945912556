//! The command line: one module per subcommand, each with its arguments and a `run` function.

use clap::{Parser, Subcommand};

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
pub enum Command {}

impl Cli {
    pub fn run(self) -> CliResult {
        match self.command {}
    }
}
