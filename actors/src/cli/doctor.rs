//! `greengnn doctor`.

use greengnn_energy::Quality;

use super::output::{note, print};
use super::{AlreadyReported, CliResult};
use crate::doctor::diagnose;

#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Addresses (host:port) that this computer should reach, such as the supervisor's.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub reach: Vec<String>,
    /// End with a failure unless energy would be of this quality or better: measured, integrated, virtual or estimated.
    #[arg(long, value_name = "QUALITY", default_value = "estimated", value_parser = quality)]
    pub require: Quality,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn quality(text: &str) -> Result<Quality, String> {
    [
        Quality::Measured,
        Quality::Integrated,
        Quality::Virtual,
        Quality::Estimated,
    ]
    .into_iter()
    .find(|quality| quality.to_string() == text)
    .ok_or_else(|| "expected measured, integrated, virtual or estimated".to_owned())
}

pub fn run(args: DoctorArgs) -> CliResult {
    let diagnosis = diagnose(&args.reach);
    if args.json {
        print(serde_json::to_string_pretty(&diagnosis)?)?;
    } else {
        print(diagnosis.to_string().trim_end())?;
    }
    if diagnosis.is_well(args.require) {
        return Ok(());
    }
    if diagnosis.quality > args.require {
        note(format_args!(
            "energy would be {}, {} is required",
            diagnosis.quality, args.require
        ));
    }
    Err(Box::new(AlreadyReported))
}
