//! The plots of a comparison: counterparts of the paper's figures, in its order, and what explains them.
//!
//! | here | figure of the paper |
//! |---|---|
//! | [`breakdown`] | 1: what the energy of training goes into |
//! | [`initiation`] | 2: initiation against payload of a request |
//! | [`windows`] | 6: energy over the window |
//! | [`bars`] | 7, 8 and 10: energy in all and by device, and the speed-up |
//! | [`pareto`] | 9: energy against the time of an epoch |
//! | [`sweeps`] | 11: reductions over batch sizes; and rows and requests over budgets, which the paper does not have |
//!
//! A figure has at most as many series as there are colours; more make further figures.

use greengnn_energy::quality::Quality;

use super::Comparison;
use super::changes::BASELINE;
use super::standings::Row;
use crate::report::html::{escape, figure, nothing};
use crate::report::plot::{MOST_SERIES, Pieces, Plot, PlotError};

mod bars;
mod breakdown;
mod initiation;
mod pareto;
mod sweeps;
mod windows;

/// A named series.
type Series = (String, Pieces);

/// All plots, as HTML with headings.
pub fn sections(comparison: &Comparison) -> Result<String, PlotError> {
    let sections = [
        (
            "Where the energy goes",
            [breakdown::figures(comparison)?, initiation::figures(comparison)?].concat(),
        ),
        ("Windows", windows::figures(comparison)?),
        ("Energy", bars::energies(comparison)?),
        (
            "Energy and time",
            [pareto::figures(comparison)?, bars::speed_ups(comparison)?].concat(),
        ),
        ("Batch sizes", sweeps::over_batch_sizes(comparison)?),
        ("Rows, requests and memory", sweeps::over_budgets(comparison)?),
    ];
    let drawn = sections.iter().filter(|(_, figures)| !figures.is_empty());
    Ok(drawn
        .map(|(title, figures)| {
            format!(
                "<h2>{}</h2>\n<section class=\"plots\">{figures}</section>\n",
                escape(title)
            )
        })
        .collect())
}

/// The rows of each batch size.
fn blocks(comparison: &Comparison) -> impl Iterator<Item = (u32, &[Row])> {
    let blocks = comparison.table.chunk_by(|a, b| a.batch_size == b.batch_size);
    blocks.map(|rows| (rows[0].batch_size, rows))
}

fn baseline(block: &[Row]) -> Option<&Row> {
    block.iter().find(|row| row.policy == BASELINE)
}

fn label(comparison: &Comparison, row: &Row) -> String {
    row.label(comparison.design.windows.len())
}

/// The quality of these figures, if they are all known and of one and the same.
fn one_quality<'a>(rows: impl IntoIterator<Item = &'a Row>, name: &str) -> Option<Quality> {
    let mut rows = rows.into_iter();
    let quality = |row: &Row| row.mean(name).and(row.figure(name)?.quality);
    let first = quality(rows.next()?)?;
    rows.all(|row| quality(row) == Some(first)).then_some(first)
}

/// In place of a figure of energies that cannot stand beside each other.
fn not_drawn(title: &str) -> String {
    let why = "Energies that are unavailable or of different quality are not drawn beside each other.";
    figure(title, &[], &nothing(why))
}

/// A line with a dot at every point.
fn line(points: Vec<(f64, f64)>) -> Pieces {
    let dots: Vec<_> = points.iter().map(|point| vec![*point]).collect();
    [vec![points], dots].concat()
}

/// As few figures as colours allow, as even as can be, with one scale of the y axis for all; the series of `all` are in
/// every one of them.
fn in_figures(plot: &Plot<'_>, title: &str, series: &[Series], all: &[Series]) -> Result<String, PlotError> {
    let points = series.iter().chain(all).flat_map(|(_, pieces)| pieces).flatten();
    let highest = points.map(|point| point.1).fold(0.0, f64::max);
    let plot = Plot {
        y_max: plot.y_max.or((highest > 0.0).then_some(highest * 1.06)),
        ..*plot
    };
    let room = MOST_SERIES - all.len();
    let figures = series.len().div_ceil(room).max(1);
    let some = series.chunks(series.len().div_ceil(figures).max(1));
    some.map(|some| drawn(&plot, title, &[some, all].concat())).collect()
}

fn drawn(plot: &Plot<'_>, title: &str, series: &[Series]) -> Result<String, PlotError> {
    let names: Vec<_> = series.iter().map(|(name, _)| name.as_str()).collect();
    let pieces: Vec<_> = series.iter().map(|(_, pieces)| pieces.clone()).collect();
    Ok(figure(title, &names, &plot.lines(&pieces)?))
}

#[cfg(test)]
mod tests;
