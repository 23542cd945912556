//! Figure 1 of the paper: what the energy of training goes into.
//!
//! No counter says what a joule was for. The energy of training is shared out by what the ranks did meanwhile, so every
//! piece is an estimate, however the energy itself was obtained. Rows that move in the background while a rank computes are
//! in the piece of computing; where energy is not known, the time itself is shown.

use super::super::standings::Row;
use super::super::steps::StepTimes;
use super::super::{CellRun, Comparison};
use super::{blocks, label};
use crate::report::html::figure;
use crate::report::plot::{Bar, BarChart, PlotError};
use crate::report::units;

const PIECES: [&str; 5] = [
    "waiting for data",
    "forward",
    "backward",
    "optimizer",
    "gradients: exchange and waiting",
];

/// One figure per batch size.
pub fn figures(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    for (batch_size, block) in blocks(comparison) {
        let rows: Vec<_> = block.iter().map(|row| (row, runs_of(comparison, row))).collect();
        if rows.iter().any(|(_, runs)| shares(runs).is_none()) {
            continue;
        }
        let joules: Option<Vec<f64>> = rows.iter().map(|(_, runs)| training_joules(runs)).collect();
        let what = match joules {
            Some(_) => "energy of training, shared out by the time of its steps (estimated)",
            None => "time of training (its energy is not known)",
        };
        let title = format!("As Figure 1: {what}, batch size {batch_size}");
        let bars: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(place, (row, runs))| {
                let shares = shares(runs).unwrap_or_default();
                let whole = joules.as_ref().map_or(100.0, |joules| joules[place]);
                Bar {
                    label: label(comparison, row),
                    pieces: shares.iter().map(|share| share * whole).collect(),
                    half_width: None,
                    note: format!("data {:.0} %", shares[0] * 100.0),
                }
            })
            .collect();
        let in_joules = |value: f64| units::joules(value);
        let in_percent = |value: f64| format!("{value:.0} %");
        let chart = BarChart {
            title: &title,
            x_label: if joules.is_some() {
                "energy of training"
            } else {
                "time of the ranks"
            },
            x_text: if joules.is_some() { &in_joules } else { &in_percent },
            mark: None,
        };
        html.push_str(&figure(&title, &PIECES, &chart.draw(&bars)?));
    }
    Ok(html)
}

fn runs_of<'a>(comparison: &'a Comparison, row: &Row) -> Vec<&'a CellRun> {
    let is_of = |run: &&CellRun| {
        let cell = &run.cell;
        (cell.batch_size, &cell.policy, cell.budget, cell.window)
            == (row.batch_size, &row.policy, row.budget, row.window)
    };
    comparison.cells.iter().filter(is_of).collect()
}

/// The shares of [`PIECES`] in the time of all steps; none without a step.
fn shares(runs: &[&CellRun]) -> Option<[f64; 5]> {
    let sum = |of: fn(&StepTimes) -> f64| runs.iter().map(|run| of(&run.step_times)).sum::<f64>();
    let whole = sum(StepTimes::elapsed_s);
    let pieces = [
        sum(|times| times.stall_s),
        sum(|times| times.forward_s),
        sum(|times| times.backward_s),
        sum(|times| times.optimizer_s),
        sum(|times| times.sync_s),
    ];
    (whole > 0.0).then(|| pieces.map(|piece| piece / whole))
}

/// Mean energy of the training steps of a run.
fn training_joules(runs: &[&CellRun]) -> Option<f64> {
    let joules: Vec<f64> = runs
        .iter()
        .map(|run| run.summary.training().energy_j)
        .collect::<Option<_>>()?;
    (!joules.is_empty()).then(|| joules.iter().sum::<f64>() / joules.len() as f64)
}
