//! Figure 11 of the paper: what is saved against `on-demand` over batch sizes. And what the paper does not have: rows and
//! requests over the memory that they may use, beside the fewest rows that could have moved.

use super::super::Comparison;
use super::super::standings::Row;
use super::{Series, blocks, in_figures, label, line};
use crate::report::plot::{Plot, PlotError, XAxis, trimmed};
use crate::report::units;

/// The reductions of energy, time, rows and requests, a line per combination; nothing for a single batch size, of which
/// the bars have it all.
pub fn over_batch_sizes(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    if comparison.design.batch_sizes.len() < 2 {
        return Ok(html);
    }
    for (name, what) in [
        ("total_j", "energy"),
        ("gpu_j", "GPU energy"),
        ("epoch_s", "epoch time"),
        ("rows", "feature rows moved"),
        ("requests", "requests for feature rows"),
    ] {
        html.push_str(&reductions(comparison, name, what)?);
    }
    Ok(html)
}

fn reductions(comparison: &Comparison, name: &str, what: &str) -> Result<String, PlotError> {
    let mut series: Vec<Series> = Vec::new();
    for row in &comparison.table {
        let change = row.changes.iter().find(|change| change.name == name);
        let Some(percent) = change.and_then(|change| change.percent) else {
            continue;
        };
        let (label, point) = (label(comparison, row), (f64::from(row.batch_size), -percent));
        match series.iter_mut().find(|(known, _)| *known == label) {
            Some((_, pieces)) => pieces[0].push(point),
            None => series.push((label, vec![vec![point]])),
        }
    }
    if series.is_empty() {
        return Ok(String::new());
    }
    for (_, pieces) in &mut series {
        let mut points = pieces.concat();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        *pieces = line(points);
    }
    let title = format!("As Figure 11: reduction of {what} against on-demand, over batch sizes");
    let plot = Plot {
        title: &title,
        x_label: "batch size",
        y_text: &|percent| format!("{} %", trimmed(percent)),
        y_max: None,
        x: XAxis::Values,
    };
    in_figures(&plot, &title, &series, &[])
}

/// Rows and requests over the remote rows that a rank may keep, a line per policy.
pub fn over_budgets(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    for (batch_size, block) in blocks(comparison) {
        let fewest = points(block.iter(), "fewest_rows");
        let fewest = (!fewest.is_empty()).then(|| ("MIN: the fewest rows at the budget".to_owned(), line(fewest)));
        let fewest: Vec<_> = fewest.into_iter().collect();
        for (name, what, all) in [
            ("rows", "Feature rows moved", &fewest[..]),
            ("requests", "Requests for feature rows", &[]),
        ] {
            let title = format!("{what} over budgets, batch size {batch_size}");
            let same = |a: &Row, b: &Row| (&a.policy, a.window) == (&b.policy, b.window);
            // Budgets stand between the windows of a policy.
            let mut rows: Vec<_> = block.iter().collect();
            rows.sort_by_key(|row| block.iter().position(|first| same(first, row)));
            let series: Vec<Series> = rows
                .chunk_by(|a, b| same(a, b))
                .map(|rows| {
                    (
                        series_name(comparison, rows[0]),
                        line(points(rows.iter().copied(), name)),
                    )
                })
                .collect();
            let plot = Plot {
                title: &title,
                x_label: "remote rows that a rank may keep",
                y_text: &|count| units::count(count.round() as u64),
                y_max: None,
                x: XAxis::Values,
            };
            html.push_str(&in_figures(&plot, &title, &series, all)?);
        }
    }
    Ok(html)
}

/// The policy, and its window where there are several.
fn series_name(comparison: &Comparison, row: &Row) -> String {
    match row.window.filter(|_| comparison.design.windows.len() > 1) {
        Some(window) => format!("{} W={window}", row.policy),
        None => row.policy.clone(),
    }
}

/// The column over the budget in rows, ascending, each budget once.
fn points<'a>(rows: impl Iterator<Item = &'a Row>, name: &str) -> Vec<(f64, f64)> {
    let mut points: Vec<_> = rows
        .filter_map(|row| Some((row.budget_rows as f64, row.mean(name)?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    points
}
