//! `greengnn import`.

use super::CliResult;

#[derive(Debug, clap::Args)]
pub struct ImportArgs {}

pub fn run(_args: ImportArgs) -> CliResult {
    Ok(())
}
