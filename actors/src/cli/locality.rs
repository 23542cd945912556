//! `greengnn locality`: how often remote nodes repeat in a window of batches, and whether a few of them cover the need.
//!
//! The claim that windows rest on is that in 16 batches the 10 % of remote nodes that are requested most cover more than
//! 85 % of the requests (the GreenGNN paper, section I, of Reddit). This checks it on any graph, in every reading of it, and
//! beside the ceiling that no graph can pass ([`ceiling`]).

use std::path::PathBuf;

use greengnn_model::locality::{Locality, Scratch, StepUses, ceiling};
use greengnn_model::rng::Purpose;
use greengnn_model::sampling::StepCounts;
use serde::Serialize;

use super::CliResult;
use super::explain::SamplingArgs;
use super::output::print;
use crate::config::{Resample, TrainConfig};
use crate::offline::{OfflineError, OfflineParts};
use crate::report::table::{alignment, render};
use crate::report::units;
use crate::wiring::step_counts;

/// Window and share of the paper's claim, and what they are said to cover.
const CLAIM: (u32, f64, f64) = (16, 10.0, 0.85);

#[derive(Debug, clap::Args)]
#[command(mut_arg("epochs", |arg| arg.help("Epochs to look at, whatever a file says of those of a run [default: 1]")))]
pub struct LocalityArgs {
    /// Folder that `greengnn partition` wrote, with all parts
    pub parts: PathBuf,
    /// Batches per window
    #[arg(long, value_delimiter = ',', value_name = "W,W,..", action = clap::ArgAction::Set,
          default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u32).range(1..))]
    pub windows: Vec<u32>,
    /// Shares of the nodes, in percent, of which it is said what they cover
    #[arg(long, value_delimiter = ',', value_name = "X,X,..", action = clap::ArgAction::Set,
          default_value = "1,5,10,25,50", value_parser = percent)]
    pub top: Vec<f64>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Print the figures as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 100.0 => Ok(value),
        _ => Err("expected a percentage above 0 and up to 100".to_owned()),
    }
}

/// What the locality of a graph is, over all ranks and epochs.
#[derive(Debug, Serialize)]
struct Report {
    ranks: u16,
    epochs: u32,
    batch_size: u32,
    fanouts: Vec<u32>,
    /// Training steps of an epoch.
    steps: u32,
    windows: Vec<Window>,
}

/// Shares are from 0 to 1, and none where there is nothing.
#[derive(Debug, Serialize)]
struct Window {
    window: u32,
    /// The longest that there was: an epoch may be shorter than a window.
    longest: u32,
    windows: u64,
    /// How often a touched node is requested in a window, at most once per batch.
    requests_per_touched: Option<f64>,
    /// Share of the remote nodes that a window touches.
    touched_share: Option<f64>,
    /// Share of the touched nodes that are in one batch only.
    seen_once_share: Option<f64>,
    /// Share of the touched nodes that it takes for 85 % of the requests.
    needed_for_85_share: Option<f64>,
    top: Vec<Top>,
}

#[derive(Debug, Serialize)]
struct Top {
    percent: f64,
    /// Share of the requests that the most requested of the touched nodes have.
    requests: Option<f64>,
    /// The most that they could have on any graph.
    ceiling: f64,
    /// The most that they could have where nodes are requested as often as here.
    ceiling_here: Option<f64>,
    /// Share of the sampled edges that the most sampled of the touched nodes have.
    edges: Option<f64>,
    /// Share of the requests that the most requested have, where the percentage is of all remote nodes.
    requests_of_all: Option<f64>,
}

pub fn run(args: &LocalityArgs) -> CliResult {
    let config = TrainConfig {
        epochs: args.sampling.epochs.unwrap_or(1),
        ..args.sampling.flags().resolve()?
    };
    let parts = OfflineParts::open(&args.parts)?;
    let report = measure(args, &config, &parts)?;
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        describe(&report)
    };
    print(text)?;
    Ok(())
}

fn measure(args: &LocalityArgs, config: &TrainConfig, parts: &OfflineParts) -> Result<Report, OfflineError> {
    let shares: Vec<f64> = args.top.iter().map(|percent| percent / 100.0).collect();
    let mut localities: Vec<_> = args
        .windows
        .iter()
        .map(|window| Locality::new(*window, &shares))
        .collect();
    let book = parts.row_book();
    let steps = step_counts(parts.manifest(), config.batch_size).train;
    let training = StepCounts {
        train: steps,
        ..StepCounts::default()
    };
    let mut scratch = Scratch::default();
    // An epoch that is replayed is the same epoch.
    let epochs = match config.resample {
        Resample::Epoch => config.epochs,
        Resample::Never => 1,
    };
    for rank in parts.ranks() {
        for epoch in 0..epochs {
            let mut uses = Vec::with_capacity(steps as usize);
            parts.sample(&config.epoch_spec(rank, epoch, Purpose::Train, training), |batch| {
                uses.push(StepUses::of(batch, parts.row_map(), rank));
                Ok(())
            })?;
            for locality in &mut localities {
                locality.add_epoch(&uses, book.remote_nodes(rank), book.nodes(), &mut scratch);
            }
        }
    }
    Ok(Report {
        ranks: book.parts(),
        epochs,
        batch_size: config.batch_size,
        fanouts: config.fanouts.clone(),
        steps,
        windows: localities.iter().map(window).collect(),
    })
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn window(locality: &Locality) -> Window {
    let mean = ratio(locality.requests, locality.touched);
    let top = |(share, cover): (f64, greengnn_model::locality::Cover)| Top {
        percent: share * 100.0,
        requests: ratio(cover.requests, locality.requests),
        ceiling: ceiling(share, locality.longest),
        ceiling_here: mean.map(|mean| (share * f64::from(locality.longest) / mean).min(1.0)),
        edges: ratio(cover.edges, locality.edges),
        requests_of_all: ratio(cover.requests_of_all, locality.requests),
    };
    Window {
        window: locality.window,
        longest: locality.longest,
        windows: locality.windows,
        requests_per_touched: mean,
        touched_share: ratio(locality.touched, locality.remote),
        seen_once_share: ratio(locality.seen_once, locality.touched),
        needed_for_85_share: ratio(locality.needed_for_85, locality.touched),
        top: locality.covers().map(top).collect(),
    }
}

fn describe(report: &Report) -> String {
    let fanouts: Vec<_> = report.fanouts.iter().map(u32::to_string).collect();
    let header = [
        "W",
        "requests per node",
        "in one batch",
        "touched of all",
        "nodes for 85 %",
    ];
    let rows: Vec<_> = report
        .windows
        .iter()
        .map(|window| {
            vec![
                name(window),
                window
                    .requests_per_touched
                    .map_or(units::NONE.to_owned(), |mean| format!("{mean:.2}")),
                units::percent(window.seen_once_share),
                units::percent(window.touched_share),
                units::percent(window.needed_for_85_share),
            ]
        })
        .collect();
    let mut text = format!(
        "{} of {} in {} training steps each, batch size {}, fanouts {}\n\n\
         remote nodes in a window of W batches\n{}\n\
         what the top x % cover: of the requests of a window, and of its sampled edges\n{}\n",
        units::plural(report.epochs.into(), "epoch"),
        units::plural(report.ranks.into(), "rank"),
        units::count(report.steps.into()),
        units::count(report.batch_size.into()),
        fanouts.join(","),
        render(&header, &alignment(header.len(), &[]), &rows),
        tops(report),
    );
    if let Some(verdict) = verdict(report) {
        text.push_str(&format!("{verdict}\n"));
    }
    text.push_str(
        "requests: a node counts once in every batch that needs it; edges: as often as it was sampled; the top is chosen with \
         hindsight, anew for every window\nW*: longer than an epoch, so that the window is the epoch",
    );
    text
}

/// The length of the window, with a mark where there was none so long.
fn name(window: &Window) -> String {
    let mark = if window.longest < window.window { "*" } else { "" };
    format!("{}{mark}", window.window)
}

fn tops(report: &Report) -> String {
    let header = [
        "W",
        "top",
        "requests",
        "ceiling",
        "ceiling here",
        "edges",
        "requests, top of all",
    ];
    let rows: Vec<_> = report
        .windows
        .iter()
        .flat_map(|window| {
            window.top.iter().map(|top| {
                vec![
                    name(window),
                    format!("{} %", top.percent),
                    units::percent(top.requests),
                    units::percent(Some(top.ceiling)),
                    units::percent(top.ceiling_here),
                    units::percent(top.edges),
                    units::percent(top.requests_of_all),
                ]
            })
        })
        .collect();
    render(&header, &alignment(header.len(), &[]), &rows)
}

/// What becomes of the paper's claim, if its window and share were asked for.
fn verdict(report: &Report) -> Option<String> {
    let (window, percent, claimed) = CLAIM;
    let found = report.windows.iter().find(|found| found.window == window)?;
    let top = found.top.iter().find(|top| (top.percent - percent).abs() < 1e-9)?;
    let holds = top.requests.is_some_and(|share| share > claimed);
    Some(format!(
        "the claim that the top {percent} % of the nodes in {window} batches cover more than {:.0} % of the requests {} here: \
         they cover {} of the requests, {} of the sampled edges; the top {percent} % of all remote nodes cover {}. No graph \
         lets them cover more than {} of the requests in a window of {}.",
        claimed * 100.0,
        if holds { "holds" } else { "does not hold" },
        units::percent(top.requests),
        units::percent(top.edges),
        units::percent(top.requests_of_all),
        units::percent(Some(top.ceiling)),
        found.longest,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(requests: f64, longest: u32) -> Window {
        Window {
            window: 16,
            longest,
            windows: 1,
            requests_per_touched: Some(2.0),
            touched_share: Some(0.5),
            seen_once_share: Some(0.25),
            needed_for_85_share: Some(0.7),
            top: vec![Top {
                percent: 10.0,
                requests: Some(requests),
                ceiling: ceiling(0.1, longest),
                ceiling_here: Some(0.8),
                edges: Some(0.4),
                requests_of_all: Some(0.6),
            }],
        }
    }

    fn report(window: Window) -> Report {
        Report {
            ranks: 4,
            epochs: 1,
            batch_size: 1000,
            fanouts: vec![25, 10],
            steps: 10,
            windows: vec![window],
        }
    }

    #[test]
    fn the_claim_is_judged_and_the_ceiling_stands_beside_it() {
        let said = verdict(&report(top(0.2, 16))).unwrap();
        assert!(
            said.contains("does not hold here: they cover 20.0 %") && said.contains("more than 64.0 %"),
            "{said}"
        );
        assert!(verdict(&report(top(0.9, 16))).unwrap().contains(" holds here"));
        let mut other = report(top(0.2, 16));
        other.windows[0].window = 8;
        assert_eq!(verdict(&other), None);
    }

    #[test]
    fn a_window_that_an_epoch_cannot_fill_is_marked() {
        let text = describe(&report(top(0.2, 10)));
        assert!(text.contains("16*") && text.contains("52.6 %"), "{text}");
        assert!(!describe(&report(top(0.2, 16))).contains("16*"));
    }

    #[test]
    fn percentages_are_above_none_and_up_to_all() {
        assert_eq!((percent("10"), percent("100")), (Ok(10.0), Ok(100.0)));
        assert!(["0", "-1", "101", "x", "NaN"].iter().all(|text| percent(text).is_err()));
    }
}
