//! `greengnn supervisor`: the process that machines join.

use std::path::PathBuf;
use std::time::Duration;

use greengnn_model::store::PartsManifest;

use super::CliResult;
use super::train::OutputFlags;
use crate::config::{TrainConfig, TrainFlags};
use crate::control::cookie_from_environment;
use crate::lifetime;
use crate::report::table;
use crate::supervisor::{self, SupervisorOptions};
use crate::telemetry;

#[derive(Debug, clap::Args)]
pub struct SupervisorArgs {
    /// Folder with the manifest.json that `greengnn partition` wrote; the parts may be elsewhere
    pub dir: PathBuf,
    /// Address to listen on; machines join it with `greengnn machine --join`
    #[arg(long, value_name = "ADDR")]
    pub listen: String,
    /// The longest wait until all machines have joined, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub join_within: f64,
    #[command(flatten)]
    pub flags: TrainFlags,
    #[command(flatten)]
    pub output: OutputFlags,
    /// Print the address that is listened on as the first line of standard output
    #[arg(long, hide = true)]
    pub announce: bool,
    /// What the run is called in its report
    #[arg(long, hide = true)]
    pub title: Option<String>,
    /// The whole configuration as JSON, from a launcher that has resolved it
    #[arg(long, hide = true)]
    pub resolved: Option<String>,
    /// Process id of the launcher, with which this process ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

pub fn run(args: SupervisorArgs) -> CliResult {
    if let Some(parent) = args.parent {
        lifetime::end_with_parent(parent)?;
    }
    let config = match &args.resolved {
        Some(text) => {
            let mut config: TrainConfig = serde_json::from_str(text)?;
            config.machines = args.flags.machines.or(config.machines);
            config
        }
        None => args.flags.resolve()?,
    };
    let out = args.output.folder();
    let options = SupervisorOptions {
        config,
        manifest: PartsManifest::open(&args.dir)?,
        listen: args.listen,
        cookie: cookie_from_environment()?,
        join_within: Duration::from_secs_f64(args.join_within.clamp(1.0, 1e6)),
        run_folder: Some(out.clone()),
        title: args.title.unwrap_or_else(|| super::train::title(&args.dir)),
        quiet: false,
    };
    let (announce, launched) = (args.announce, args.parent.is_some());
    let runtime = super::runtime()?;
    let summary = runtime.block_on(async {
        if let Some(address) = &args.output.metrics_addr {
            let address = crate::control::resolve(address).await?;
            let serving = telemetry::serve(address)?;
            eprintln!("metrics: http://{serving}/metrics");
        }
        let listening = move |address: std::net::SocketAddr| {
            if announce {
                println!("{address}");
            }
            if !launched {
                eprintln!("listening on {address}; waiting for machines to join");
            }
        };
        let summary = supervisor::run(options, listening, lifetime::told_to_end()).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(summary)
    })?;
    if args.output.json {
        println!("{}", summary.to_json()?);
    } else {
        println!("{}", table::run(&summary));
        println!("report: {}", out.join("report.html").display());
    }
    Ok(())
}
