//! The program `greengnn`.

use std::process::ExitCode;

use clap::Parser;
use greengnn::causes::new_causes;
use greengnn::cli::Cli;
use greengnn::cli::output::note;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,ractor_cluster=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // Words that nobody reads are no reason to end.
        .log_internal_errors(false)
        .init();
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

/// Prints an error and its causes. One without words was printed by another process.
fn report(error: &(dyn std::error::Error + 'static)) {
    let words = error.to_string();
    if !words.is_empty() {
        note(format_args!("error: {words}"));
    }
    for cause in new_causes(error) {
        note(format_args!("  because {cause}"));
    }
}
