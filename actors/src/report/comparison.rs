//! Several policies side by side: the same training, run again and again in random order, and what can be told apart.
//!
//! 1. [`design`]: the cells, which are all combinations of policy, budget, window, batch size and repeat, and their order.
//! 2. [`folder`]: the folder of a comparison, in which it goes on after an interruption; [`carry_out`] runs what is
//!    missing and checks that all policies have trained the same weights.
//! 3. [`steps`]: where the time of a run went. [`bounds`]: the fewest rows that it could have moved.
//! 4. [`interval`]: means with 95 % intervals. [`standings`]: the table, and what in a column is best or cannot be told
//!    from it. [`changes`]: the differences from `on-demand`.
//! 5. [`text`], [`csv`] and [`page`]: the table for people and for scripts. [`Comparison`] is the file with everything.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::summary::RunSummary;

pub mod bounds;
pub mod changes;
pub mod csv;
pub mod design;
pub mod folder;
pub mod interval;
pub mod page;
mod plots;
pub mod standings;
pub mod steps;
pub mod text;

pub use design::{Cell, Design};
pub use folder::ComparisonFolder;

use folder::FolderError;
use standings::{MixedQuality, Row};
use steps::StepTimes;

/// Version of the layout of `comparison.json`. It grows when a name changes its meaning, not when one is added.
pub const COMPARISON_VERSION: u32 = 1;

/// A finished run: its summary, the cell that it belongs to, and where its time went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellRun {
    pub cell: Cell,
    pub step_times: StepTimes,
    #[serde(flatten)]
    pub summary: RunSummary,
}

/// `comparison.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub version: u32,
    /// What was trained on.
    pub dataset: String,
    pub design: Design,
    /// Rows that cost as much energy as the initiation of a request, as they were given.
    pub crossover_rows: f64,
    /// One object per run, in the order of the table.
    pub cells: Vec<CellRun>,
    /// One object per line of the table.
    pub table: Vec<Row>,
    /// What keeps figures from being compared.
    pub notes: Vec<String>,
}

impl Comparison {
    /// `cells` in any order. Energies of different quality are not compared.
    pub fn new(dataset: String, design: Design, cells: Vec<CellRun>, crossover_rows: f64) -> Self {
        Self::with(dataset, design, cells, crossover_rows, MixedQuality::Refused)
    }

    /// The same, in which energies of different quality may be compared.
    pub fn with(
        dataset: String,
        design: Design,
        mut cells: Vec<CellRun>,
        crossover_rows: f64,
        mixed: MixedQuality,
    ) -> Self {
        let order = design.cells();
        cells.sort_by_key(|run| order.iter().position(|cell| *cell == run.cell));
        let standings::Standings { rows, notes } = standings::of(&cells, mixed);
        Self {
            version: COMPARISON_VERSION,
            dataset,
            design,
            crossover_rows,
            cells,
            table: rows,
            notes,
        }
    }
}

/// Why a comparison did not come to its end. What has finished stays, and the same command goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum CarryOutError<E: std::error::Error + 'static> {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Run(E),
    #[error(
        "two runs have trained different weights, though all policies must train the same: {first} has {first_hash}, \
         {second} has {second_hash}; their figures cannot be compared"
    )]
    DifferentWeights {
        first: Box<Cell>,
        first_hash: String,
        second: Box<Cell>,
        second_hash: String,
    },
    #[error(
        "two runs were made on different computers, whose times and energies cannot be compared: {first} on \
         {first_computer}, {second} on {second_computer}; start afresh in another folder"
    )]
    DifferentComputers {
        first: Box<Cell>,
        first_computer: String,
        second: Box<Cell>,
        second_computer: String,
    },
}

/// What [`carry_out`] is about to do.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    pub cell: &'a Cell,
    /// Place of the cell in the order, from 1, and the number of cells.
    pub number: usize,
    pub of: usize,
}

/// Runs every cell that has no result yet, in the order of the design, each into a folder of its own that `run` makes.
/// Runs that can no longer be compared end it at once: hours spent on the rest would be spent for nothing.
pub fn carry_out<E: std::error::Error + 'static>(
    design: &Design,
    folder: &ComparisonFolder,
    mut run: impl FnMut(Turn<'_>, &Path) -> Result<RunSummary, E>,
) -> Result<Vec<CellRun>, CarryOutError<E>> {
    let order = design.order();
    let mut runs: Vec<CellRun> = Vec::with_capacity(order.len());
    for cell in &order {
        if let Some(finished) = folder.finished(cell)? {
            check_against(&runs, &finished)?;
            runs.push(finished);
        }
    }
    for (index, cell) in order.iter().enumerate() {
        if runs.iter().any(|finished| finished.cell == *cell) {
            continue;
        }
        folder.clear(cell)?;
        let turn = Turn {
            cell,
            number: index + 1,
            of: order.len(),
        };
        let summary = run(turn, &folder.run_folder(cell)).map_err(CarryOutError::Run)?;
        let finished = folder.with_steps(cell, summary)?;
        check_against(&runs, &finished)?;
        runs.push(finished);
    }
    Ok(runs)
}

/// Refuses a run that cannot stand beside the others.
fn check_against<E: std::error::Error + 'static>(runs: &[CellRun], new: &CellRun) -> Result<(), CarryOutError<E>> {
    let computer = |run: &CellRun| format!("{} ({})", run.summary.device, run.summary.cpu_fingerprint);
    if let Some(first) = runs.first().filter(|first| computer(first) != computer(new)) {
        return Err(CarryOutError::DifferentComputers {
            first: Box::new(first.cell.clone()),
            first_computer: computer(first),
            second: Box::new(new.cell.clone()),
            second_computer: computer(new),
        });
    }
    let same_training = |run: &&CellRun| run.cell.seed == new.cell.seed && run.cell.batch_size == new.cell.batch_size;
    match runs.iter().find(same_training) {
        Some(first) if first.summary.weights_sha256 != new.summary.weights_sha256 => {
            Err(CarryOutError::DifferentWeights {
                first: Box::new(first.cell.clone()),
                first_hash: first.summary.weights_sha256.clone(),
                second: Box::new(new.cell.clone()),
                second_hash: new.summary.weights_sha256.clone(),
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
