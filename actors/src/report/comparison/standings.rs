//! The table of a comparison: what every combination cost, and what in a column is best or cannot be told from it.
//!
//! Requests, rows, bytes, CPU seconds and joules are of the whole run, set-up and evaluation included, so that a cache
//! that is filled before training is not free. Only runs of one batch size are compared with each other: another batch
//! size is another training.

use greengnn_energy::device::{DeviceEnergy, Joules};
use greengnn_energy::quality::Quality;
use greengnn_model::policy::Budget;
use serde::{Deserialize, Serialize};

use super::changes::{self, Change};
use super::interval::Estimate;
use super::{Cell, CellRun};
use crate::report::units;

/// What a column's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Joules,
    Seconds,
    Count,
    Bytes,
    /// From 0 to 1, shown as a percentage.
    Share,
    /// From 0 to 1.
    Accuracy,
}

/// One column of the table.
pub struct Column {
    /// The name in files, which ends with the unit unless it is a count.
    pub name: &'static str,
    /// The name for people.
    pub head: &'static str,
    pub unit: Unit,
    pub more_is_better: bool,
    /// What no policy can beat, which is none's merit: nothing is said of who is best.
    pub is_bound: bool,
    value: fn(&CellRun) -> Reading,
}

/// A value of one run.
struct Reading {
    value: Option<f64>,
    /// Of an energy.
    quality: Option<Quality>,
}

const fn column(name: &'static str, head: &'static str, unit: Unit, value: fn(&CellRun) -> Reading) -> Column {
    Column {
        name,
        head,
        unit,
        more_is_better: matches!(unit, Unit::Share | Unit::Accuracy),
        is_bound: false,
        value,
    }
}

const fn bound(name: &'static str, head: &'static str, value: fn(&CellRun) -> Reading) -> Column {
    Column {
        is_bound: true,
        ..column(name, head, Unit::Count, value)
    }
}

/// The columns: first those of the paper's Table II (energy of the GPUs, of the processors, in all, and the time of an
/// epoch) with the energy of memory, which the paper does not have, then what explains them.
pub const COLUMNS: [Column; 17] = [
    column("gpu_j", "GPU", Unit::Joules, |run| device(devices(run).gpu)),
    column("cpu_j", "CPU", Unit::Joules, |run| device(devices(run).cpu)),
    column("dram_j", "memory", Unit::Joules, |run| device(devices(run).dram)),
    column("total_j", "total", Unit::Joules, |run| {
        let whole = run.summary.whole_run();
        energy(Joules {
            joules: whole.energy_j,
            quality: whole.energy_quality,
        })
    }),
    column("epoch_s", "epoch", Unit::Seconds, |run| {
        let epochs = run.summary.epochs.len() as f64;
        plain((epochs > 0.0).then(|| run.summary.training().wall_s / epochs))
    }),
    column("requests", "requests", Unit::Count, |run| {
        plain(Some(run.summary.whole_run().traffic.feature_requests as f64))
    }),
    column("deliveries", "deliveries", Unit::Count, |run| {
        plain(Some(run.summary.whole_run().traffic.deliveries as f64))
    }),
    column("rows", "rows", Unit::Count, |run| {
        plain(Some(run.summary.whole_run().traffic.feature_rows as f64))
    }),
    bound("fewest_rows", "MIN rows", |run| {
        plain(run.summary.row_bound.map(|bound| bound.fewest_rows as f64))
    }),
    bound("compulsory_rows", "compulsory", |run| {
        plain(run.summary.row_bound.map(|bound| bound.compulsory_rows as f64))
    }),
    column("row_bytes", "row bytes", Unit::Bytes, |run| {
        plain(Some(run.summary.whole_run().traffic.feature_bytes as f64))
    }),
    column("wire_bytes", "wire bytes", Unit::Bytes, |run| {
        plain(Some(run.summary.whole_run().wire_bytes as f64))
    }),
    column("hit_rate", "hit rate", Unit::Share, |run| {
        let whole = run.summary.whole_run();
        // What batches needed: what moved, and what did not have to.
        let needed = whole.cache_hit_rows as f64 + whole.traffic.feature_rows as f64;
        plain((needed > 0.0).then(|| whole.cache_hit_rows as f64 / needed))
    }),
    column("stall_s", "stall", Unit::Seconds, |run| {
        plain(Some(run.summary.training().stall_s))
    }),
    column("cpu_s", "CPU time", Unit::Seconds, |run| {
        plain(Some(run.summary.whole_run().cpu_s))
    }),
    column("peak_memory_bytes", "peak memory", Unit::Bytes, |run| {
        plain(Some(run.summary.peak_anon_bytes as f64))
    }),
    column("test_accuracy", "test acc.", Unit::Accuracy, |run| {
        plain(run.summary.test_accuracy)
    }),
];

/// How many of [`COLUMNS`] are those of Table II.
pub const TABLE_II_COLUMNS: usize = 5;

fn devices(run: &CellRun) -> DeviceEnergy {
    run.summary.whole_run().energy_by_device
}

/// A device that took no part has no energy, which is not the same as one whose energy is not known.
fn device(joules: Option<Joules>) -> Reading {
    joules.map_or_else(|| plain(None), energy)
}

fn plain(value: Option<f64>) -> Reading {
    Reading { value, quality: None }
}

fn energy(joules: Joules) -> Reading {
    let known = joules.joules.filter(|_| joules.quality != Quality::Unavailable);
    Reading {
        value: known,
        quality: Some(known.map_or(Quality::Unavailable, |_| joules.quality)),
    }
}

/// What one line of the table is of.
fn key(cell: &Cell) -> (u32, &str, Option<Budget>, Option<u32>) {
    (cell.batch_size, &cell.policy, cell.budget, cell.window)
}

/// How a figure stands beside the others of its column and batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The best mean, or equal to it.
    Best,
    /// Its interval overlaps that of the best.
    NotDistinguishable,
    Behind,
    /// Nothing can be said: see the notes.
    NotCompared,
}

/// One figure of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The name of its column.
    pub name: String,
    /// None if a repeat has no value, or if energies of different quality would have to be averaged and this was not asked
    /// for.
    pub estimate: Option<Estimate>,
    /// Of an energy: the worst of the repeats. None if there is no such energy, as of a GPU that took no part.
    pub quality: Option<Quality>,
    pub standing: Standing,
}

/// One line of the table: the repeats of one combination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub batch_size: u32,
    pub policy: String,
    pub budget: Option<Budget>,
    pub window: Option<u32>,
    /// The most remote rows that a rank was allowed to keep.
    pub budget_rows: u64,
    pub repeats: u32,
    /// One per column, in the order of [`COLUMNS`].
    pub figures: Vec<Figure>,
    /// Against `on-demand`; empty where there is none to hold it against.
    pub changes: Vec<Change>,
}

impl Row {
    /// `bulk 25%`, and `bulk 25% W=4` where there are several windows.
    pub fn label(&self, windows: usize) -> String {
        let mut label = self.policy.clone();
        if let Some(budget) = &self.budget {
            label.push_str(&format!(" {budget}"));
        }
        if let Some(window) = self.window.filter(|_| windows > 1) {
            label.push_str(&format!(" W={window}"));
        }
        label
    }

    /// The figure of the column of that name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// The mean in that column.
    pub fn mean(&self, name: &str) -> Option<f64> {
        Some(self.figure(name)?.estimate?.mean)
    }
}

/// The table and what must be said below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Standings {
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
}

/// Whether energies of different quality are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixedQuality {
    /// They are not, and it is said.
    Refused,
    /// They are, as was asked for, and it is said. A mean has the worst quality of its runs.
    Allowed,
}

/// Makes the table. Runs of one combination must stand next to each other.
pub fn of(runs: &[CellRun], mixed: MixedQuality) -> Standings {
    let same = |a: &CellRun, b: &CellRun| key(&a.cell) == key(&b.cell);
    let mut rows: Vec<Row> = runs.chunk_by(same).map(|runs| row(runs, mixed)).collect();
    let mut notes = Vec::new();
    if rows.iter().any(|row| row.repeats < 2) {
        notes.push("a single run has no interval, so nothing is compared; ask for at least 2 repeats".to_owned());
    }
    for block in rows.chunk_by_mut(|a, b| a.batch_size == b.batch_size) {
        for (index, column) in COLUMNS.iter().enumerate().filter(|(_, column)| !column.is_bound) {
            if let Some(note) = compare(block, index, column, mixed) {
                notes.push(note);
            }
        }
    }
    changes::add_changes(&mut rows, mixed);
    Standings { rows, notes }
}

fn row(runs: &[CellRun], mixed: MixedQuality) -> Row {
    let cell = &runs[0].cell;
    Row {
        batch_size: cell.batch_size,
        policy: cell.policy.clone(),
        budget: cell.budget,
        window: cell.window,
        budget_rows: runs.iter().map(|run| run.summary.budget_rows).max().unwrap_or(0),
        repeats: runs.len() as u32,
        figures: COLUMNS.iter().map(|column| figure(column, runs, mixed)).collect(),
        changes: Vec::new(),
    }
}

fn figure(column: &Column, runs: &[CellRun], mixed: MixedQuality) -> Figure {
    let readings: Vec<_> = runs.iter().map(column.value).collect();
    let values: Option<Vec<f64>> = readings.iter().map(|reading| reading.value).collect();
    let may_be_averaged =
        mixed == MixedQuality::Allowed || readings.iter().all(|reading| reading.quality == readings[0].quality);
    Figure {
        name: column.name.to_owned(),
        estimate: values
            .filter(|_| may_be_averaged)
            .and_then(|values| Estimate::of(&values)),
        quality: readings.iter().filter_map(|reading| reading.quality).max(),
        standing: Standing::NotCompared,
    }
}

/// Says of every figure of a column how it stands, or why none is compared.
fn compare(block: &mut [Row], index: usize, column: &Column, mixed: MixedQuality) -> Option<String> {
    let figures = || block.iter().map(|row| &row.figures[index]);
    if block.len() < 2 || figures().all(|figure| figure.estimate.is_none()) {
        return None;
    }
    let first_quality = figures().next().and_then(|figure| figure.quality);
    let is_mixed = column.unit == Unit::Joules && figures().any(|figure| figure.quality != first_quality);
    if is_mixed && mixed == MixedQuality::Refused {
        return Some(format!(
            "{} energy at batch size {}: the figures have different quality and are not compared",
            column.head, block[0].batch_size
        ));
    }
    let estimates: Vec<_> = figures().map_while(|figure| figure.estimate).collect();
    if estimates.len() < block.len() {
        return Some(format!(
            "{} at batch size {}: not every run has a figure, so none are compared",
            column.head, block[0].batch_size
        ));
    }
    let sign = if column.more_is_better { -1.0 } else { 1.0 };
    let best =
        (0..estimates.len()).min_by(|&a, &b| (sign * estimates[a].mean).total_cmp(&(sign * estimates[b].mean)))?;
    for (place, row) in block.iter_mut().enumerate() {
        row.figures[index].standing = match estimates[place].overlaps(&estimates[best]) {
            None => Standing::NotCompared,
            Some(_) if estimates[place].mean == estimates[best].mean => Standing::Best,
            Some(true) => Standing::NotDistinguishable,
            Some(false) => Standing::Behind,
        };
    }
    // One line without an interval is a reason to say nothing of the others either.
    if block
        .iter()
        .any(|row| row.figures[index].standing == Standing::NotCompared)
    {
        block
            .iter_mut()
            .for_each(|row| row.figures[index].standing = Standing::NotCompared);
    }
    is_mixed.then(|| {
        format!(
            "{} energy at batch size {}: figures of different quality are compared, as was asked for",
            column.head, block[0].batch_size
        )
    })
}

/// `1.23 kJ ± 40 J estimated *`: the mean, half its interval, the quality of an energy, and the mark of its standing.
pub fn figure_text(figure: &Figure, unit: Unit) -> String {
    let Some(estimate) = figure.estimate else {
        return match figure.quality {
            None => units::NONE.to_owned(),
            Some(Quality::Unavailable) => Quality::Unavailable.to_string(),
            Some(_) => "of mixed quality".to_owned(),
        };
    };
    let value = |value: f64| match unit {
        Unit::Joules => units::joules(value),
        Unit::Seconds => units::seconds(value),
        Unit::Count => units::count(value.round() as u64),
        Unit::Bytes => units::bytes(value.round() as u64),
        Unit::Share => units::percent(Some(value)),
        Unit::Accuracy => units::accuracy(Some(value)),
    };
    let mut text = value(estimate.mean);
    if let Some(half_width) = estimate.half_width {
        text.push_str(&format!(" ± {}", value(half_width)));
    }
    if let Some(quality) = figure.quality {
        text.push_str(&format!(" {quality}"));
    }
    match figure.standing {
        Standing::Best => text.push_str(" *"),
        Standing::NotDistinguishable => text.push_str(" ="),
        Standing::Behind | Standing::NotCompared => {}
    }
    text
}

/// What the marks mean, and what the figures are of.
pub const LEGEND: &str = "mean ± half of the 95 % interval over repeats (Student's t); * best of its batch size, = not distinguishable from it: \
     their intervals overlap\nMIN rows: the fewest that any policy which moves rows could have moved at that budget, its memory empty at the \
     start; compulsory: what must come once at any budget\nenergy, requests, rows, bytes, hit rate and CPU time: whole run, set-up and evaluation \
     included; stall: training, mean over ranks; epoch: mean over epochs; peak memory: anonymous, summed over processes";

#[cfg(test)]
mod tests;
