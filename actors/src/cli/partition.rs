//! `greengnn partition`.

use super::CliResult;

#[derive(Debug, clap::Args)]
pub struct PartitionArgs {}

pub fn run(_args: PartitionArgs) -> CliResult {
    Ok(())
}
