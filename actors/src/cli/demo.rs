//! `greengnn demo`: the Debian package graph, four machines, and what each policy cost.

use std::path::{Path, PathBuf};

use greengnn_model::import::{ImportOptions, import_folder};
use greengnn_model::store::GraphStore;

use super::CliResult;
use super::output::{note, print};
use super::partition::{Method, cut};
use crate::config::TrainFlags;
use crate::launcher::{self, LocalRun};
use crate::lifetime::{Scratch, Unfinished};
use crate::report::summary::RunSummary;
use crate::report::table;
use crate::work::Work;

/// The example data set travels with the program, so that the demo needs nothing else.
const DATA: [(&str, &[u8]); 7] = [
    (
        "edges.csv.gz",
        include_bytes!("../../../examples/data/debian-packages/edges.csv.gz"),
    ),
    (
        "node-feat-csr.npz",
        include_bytes!("../../../examples/data/debian-packages/node-feat-csr.npz"),
    ),
    (
        "node-label.npy",
        include_bytes!("../../../examples/data/debian-packages/node-label.npy"),
    ),
    (
        "classes.json",
        include_bytes!("../../../examples/data/debian-packages/classes.json"),
    ),
    (
        "split/train.npy",
        include_bytes!("../../../examples/data/debian-packages/split/train.npy"),
    ),
    (
        "split/valid.npy",
        include_bytes!("../../../examples/data/debian-packages/split/valid.npy"),
    ),
    (
        "split/test.npy",
        include_bytes!("../../../examples/data/debian-packages/split/test.npy"),
    ),
];

/// What is compared: policies, and the budgets of those that have one.
const CELLS: [(&str, Option<&str>); 7] = [
    ("on-demand", None),
    ("window", Some("10%")),
    ("window", Some("25%")),
    ("bulk", Some("10%")),
    ("bulk", Some("25%")),
    ("bulk", Some("100%")),
    ("full", None),
];

#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Folder for the graph, the parts and the runs
    #[arg(long, value_name = "DIR", default_value = "greengnn-demo")]
    pub dir: PathBuf,
    /// Epochs of every run
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub epochs: u32,
    /// Parts and machine processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub machines: u16,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print the summaries as a JSON array on standard output
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: DemoArgs) -> CliResult {
    let parts = prepare(&args)?;
    let mut summaries = Vec::new();
    let mut last_report = PathBuf::new();
    for (index, (policy, budget)) in CELLS.iter().enumerate() {
        let label = match budget {
            Some(budget) => format!("{policy} at {budget} of the remote rows"),
            None => (*policy).to_owned(),
        };
        note(format_args!("[{}/{}] {label}", index + 1, CELLS.len()));
        let flags = TrainFlags {
            policy: Some((*policy).to_owned()),
            budget: Some(budget.unwrap_or("0%").to_owned()),
            epochs: Some(args.epochs),
            seed: Some(args.seed),
            ..TrainFlags::default()
        };
        let out = free_folder(&args.dir, &label.replace(' ', "-").replace('%', ""));
        let summary = launcher::train(LocalRun {
            work: Work::default(),
            config: flags.resolve()?,
            parts: parts.clone(),
            machines: u32::from(args.machines),
            out: Some(out.clone()),
            title: format!("Debian packages, {label}"),
            metrics_addr: None,
        })?;
        last_report = out.join("report.html");
        summaries.push(summary);
    }
    show(&args, &summaries, &last_report)
}

fn show(args: &DemoArgs, summaries: &[RunSummary], last_report: &Path) -> CliResult {
    if args.json {
        print(serde_json::to_string_pretty(summaries)?)?;
    } else {
        print(table::compare(summaries))?;
        print(format_args!(
            "every run has a folder under {}; a report: {}",
            args.dir.display(),
            last_report.display()
        ))?;
    }
    Ok(())
}

/// Imports and partitions the graph, or finds what an earlier demo left.
fn prepare(args: &DemoArgs) -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
    let graph = args.dir.join("graph");
    let parts = args.dir.join(format!("parts-{}", args.machines));
    if !graph.exists() {
        note(format_args!(
            "importing the Debian package graph into {}",
            graph.display()
        ));
        std::fs::create_dir_all(&args.dir)?;
        let _unfinished = Unfinished::target(&graph)?;
        let data = Scratch::new()?;
        std::fs::create_dir(data.path().join("split"))?;
        for (name, bytes) in DATA {
            std::fs::write(data.path().join(name), bytes)?;
        }
        import_folder(data.path(), &ImportOptions::default(), &graph)?;
    }
    GraphStore::open(&graph)?;
    if !parts.exists() {
        note(format_args!(
            "cutting it into {} parts in {}",
            args.machines,
            parts.display()
        ));
        let _unfinished = Unfinished::target(&parts)?;
        cut(&graph, args.machines, &Method::Metis, args.seed, &parts)?;
    }
    Ok(parts)
}

/// `runs/NAME`, or `runs/NAME-2` and so on if an earlier demo has been there.
fn free_folder(dir: &Path, name: &str) -> PathBuf {
    let runs = dir.join("runs");
    let first = runs.join(name);
    if !first.exists() {
        return first;
    }
    let later = (2u32..)
        .map(|number| runs.join(format!("{name}-{number}")))
        .find(|folder| !folder.exists());
    later.unwrap_or(first)
}
