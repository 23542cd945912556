//! An explanation for people.

use super::{Counts, Explanation, SampledPhase};
use crate::report::table::{Align, alignment, render};
use crate::report::units;

/// The whole text.
pub fn explanation(explained: &Explanation) -> String {
    let fanouts: Vec<_> = explained.fanouts.iter().map(u32::to_string).collect();
    format!(
        "{} of {} in {} training steps each, batch size {}, fanouts {}, window {}\n\
         budget {}: {} rows a rank, {}\n\n\
         what sampling takes\n{}\n{} of trace files at the same time, at most\n\n\
         what every policy moves and keeps, in all ranks\n{}\n\
         whole run: no policy that moves rows can move fewer than {} rows at this budget, {} at any; without a cache it is {}\n\n\
         what memory is worth: the fewest rows over the memory of a rank\n{}\n{}",
        units::plural(explained.epochs.into(), "epoch"),
        units::plural(explained.ranks.into(), "rank"),
        units::count(explained.steps.into()),
        units::count(explained.batch_size.into()),
        fanouts.join(","),
        explained.window,
        explained.budget,
        units::count(explained.budget_rows.into()),
        units::bytes(u64::from(explained.budget_rows) * explained.row_bytes),
        sampling(explained),
        units::bytes(explained.trace_bytes_peak),
        policies(explained),
        units::count(explained.fewest_rows),
        units::count(explained.compulsory_rows),
        units::count(explained.needed_rows),
        curve(explained),
        more(explained),
    )
}

fn table(header: &[&str], words: usize, rows: &[Vec<String>]) -> String {
    let words: Vec<_> = (0..words).collect();
    let alignment: Vec<Align> = alignment(header.len(), &words);
    render(header, &alignment, rows)
}

fn sampling(explained: &Explanation) -> String {
    let row = |name: &str, phase: &SampledPhase| {
        vec![
            name.to_owned(),
            units::count(phase.sample_requests),
            units::bytes(phase.trace_bytes),
            units::count(phase.largest_batch.into()),
        ]
    };
    let rows = [
        row("set-up: the first epoch", &explained.setup),
        row("training: the epochs after it", &explained.training),
        row("evaluation", &explained.evaluation),
    ];
    table(
        &["phase", "sample requests", "trace files", "nodes of the largest batch"],
        1,
        &rows,
    )
}

fn policies(explained: &Explanation) -> String {
    let header = [
        "policy",
        "phase",
        "requests",
        "deliveries",
        "rows",
        "row bytes",
        "over MIN",
        "cache",
        "buffers",
    ];
    let mut rows = Vec::new();
    for prices in &explained.policies {
        let phases: [(&str, &Counts); 4] = [
            ("set-up", &prices.setup),
            ("training", &prices.training),
            ("evaluation", &prices.evaluation),
            ("whole run", &prices.whole),
        ];
        for (name, counts) in phases {
            let whole = name == "whole run";
            let of_whole = |text: String| if whole { text } else { String::new() };
            rows.push(vec![
                prices.policy.clone(),
                name.to_owned(),
                units::count(counts.feature_requests),
                units::count(counts.deliveries),
                units::count(counts.feature_rows),
                units::bytes(counts.feature_bytes),
                of_whole(
                    prices
                        .over_min
                        .map_or(units::NONE.to_owned(), |over| format!("{over:.3}")),
                ),
                of_whole(units::bytes(prices.cache_bytes)),
                of_whole(units::bytes(prices.buffer_bytes)),
            ]);
        }
    }
    table(&header, 2, &rows)
}

fn curve(explained: &Explanation) -> String {
    let rows: Vec<_> = explained
        .curve
        .iter()
        .map(|point| {
            vec![
                format!("{} %", point.percent),
                units::count(point.budget_rows.into()),
                units::bytes(point.budget_bytes),
                units::count(point.fewest_rows),
                units::bytes(point.fewest_bytes),
            ]
        })
        .collect();
    table(
        &[
            "budget",
            "rows of a rank",
            "memory of a rank",
            "fewest rows",
            "of bytes",
        ],
        0,
        &rows,
    )
}

fn more(explained: &Explanation) -> String {
    let lines = explained.more.iter().map(|more| {
        let share =
            units::percent((explained.fewest_rows > 0).then(|| more.saved_rows as f64 / explained.fewest_rows as f64));
        format!(
            "{} more for every rank ({} rows in all) would save at best {} rows, {}: {share} of what has to move now",
            more.what,
            units::count(more.budget_rows.into()),
            units::count(more.saved_rows),
            units::bytes(more.saved_bytes),
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}
