//! `greengnn synth`.

use super::CliResult;

#[derive(Debug, clap::Args)]
pub struct SynthArgs {}

pub fn run(_args: SynthArgs) -> CliResult {
    Ok(())
}
