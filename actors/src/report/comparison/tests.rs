use std::cell::RefCell;
use std::fs;

use serde_json::json;

use super::design::tests::design;
use super::*;
use crate::report::summary::tests::sample;

/// What a run of the cell could come to: `on-demand` moves the most rows.
fn summary_of(cell: &Cell) -> RunSummary {
    let mut summary = sample();
    summary.policy = cell.policy.clone();
    summary.seed = cell.seed;
    summary.weights_sha256 = format!("{}-{}", cell.batch_size, cell.seed);
    summary.budget_rows = cell.budget.map_or(0, |budget| budget.rows(512, 10_000).into());
    summary.epochs[0].period.traffic.feature_rows = match &cell.budget {
        None => 1000 + u64::from(cell.repeat),
        Some(_) => 500,
    };
    summary
}

/// A run per cell of [`design`].
pub(crate) fn runs() -> Vec<CellRun> {
    let run = |cell: Cell| {
        let summary = summary_of(&cell);
        CellRun {
            cell,
            step_times: StepTimes::default(),
            bound: None,
            summary,
        }
    };
    design().cells().into_iter().map(run).collect()
}

pub(crate) fn comparison_of(runs: Vec<CellRun>) -> Comparison {
    Comparison::new("debian".into(), design(), runs, 965.0)
}

pub(crate) fn comparison() -> Comparison {
    comparison_of(runs())
}

#[derive(Debug, thiserror::Error)]
#[error("the power went out")]
struct PowerCut;

/// Writes what a finished run leaves.
fn leave(folder: &Path, summary: &RunSummary) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("metrics.jsonl"), "").unwrap();
    fs::write(folder.join("summary.json"), summary.to_json().unwrap()).unwrap();
}

#[test]
fn json_reads_back_as_it_was_whatever_the_order_of_the_runs() {
    let comparison = comparison();
    let mut reversed = runs();
    reversed.reverse();
    assert_eq!(comparison_of(reversed), comparison);
    let text = serde_json::to_string_pretty(&comparison).unwrap();
    assert_eq!(serde_json::from_str::<Comparison>(&text).unwrap(), comparison);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cell = &json["cells"][17];
    assert_eq!(
        cell["cell"],
        json!({"policy": "bulk", "budget": "64MiB", "window": 16, "batch_size": 1000, "repeat": 2, "seed": 9})
    );
    // Beside its cell, it is a summary like any other.
    let summary = RunSummary::from_json(&cell.to_string()).unwrap();
    assert_eq!(summary, comparison.cells[17].summary);
}

#[test]
fn what_has_finished_is_not_run_again_and_what_was_cut_short_is() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("comparison");
    let design = design();
    let ran = RefCell::new(Vec::new());
    let run = |turn: Turn<'_>, folder: &Path| -> Result<RunSummary, PowerCut> {
        assert!(!folder.exists(), "a run starts in a folder of its own");
        let mut ran = ran.borrow_mut();
        if ran.len() == 5 && !path.join("cut").exists() {
            fs::write(path.join("cut"), "").unwrap();
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("metrics.jsonl"), "half a li").unwrap();
            return Err(PowerCut);
        }
        ran.push(turn.cell.clone());
        let summary = summary_of(turn.cell);
        leave(folder, &summary);
        Ok(summary)
    };
    let folder = ComparisonFolder::open(&path, &design).unwrap();
    let error = carry_out(&design, &folder, run).unwrap_err();
    assert!(matches!(error, CarryOutError::Run(PowerCut)), "{error}");
    assert_eq!(*ran.borrow(), design.order()[..5]);
    drop(folder);

    let folder = ComparisonFolder::open(&path, &design).unwrap();
    let runs = carry_out(&design, &folder, run).unwrap();
    assert_eq!(*ran.borrow(), design.order(), "every cell once, in order");
    assert_eq!(runs.len(), design.cells().len());
    let again = carry_out(&design, &folder, run).unwrap();
    assert_eq!(ran.borrow().len(), design.cells().len(), "nothing is left to run");
    assert_eq!(comparison_of(again), comparison_of(runs));
}

#[test]
fn turns_are_numbered_in_the_order_of_all_cells() {
    let scratch = tempfile::tempdir().unwrap();
    let design = design();
    let folder = ComparisonFolder::open(scratch.path(), &design).unwrap();
    leave(&folder.run_folder(&design.order()[0]), &summary_of(&design.order()[0]));
    let mut numbers = Vec::new();
    carry_out(&design, &folder, |turn, folder| {
        numbers.push((turn.number, turn.of));
        let summary = summary_of(turn.cell);
        leave(folder, &summary);
        Ok::<_, PowerCut>(summary)
    })
    .unwrap();
    assert_eq!(numbers, (2..=18).map(|number| (number, 18)).collect::<Vec<_>>());
}

#[test]
fn different_weights_of_one_training_end_it_and_both_cells_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let design = design();
    let folder = ComparisonFolder::open(scratch.path(), &design).unwrap();
    let error = carry_out(&design, &folder, |turn, folder| {
        let mut summary = summary_of(turn.cell);
        if turn.cell.budget.is_none() {
            summary.weights_sha256.push('x');
        }
        leave(folder, &summary);
        Ok::<_, PowerCut>(summary)
    })
    .unwrap_err();
    let CarryOutError::DifferentWeights { first, second, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((first.batch_size, first.seed), (second.batch_size, second.seed));
    assert_ne!(first.policy, second.policy);
    let said = error.to_string();
    assert!(
        said.contains(&first.to_string()) && said.contains(&second.to_string()),
        "{said}"
    );
}

#[test]
fn runs_of_another_computer_or_another_cell_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let design = design();
    let order = design.order();
    let folder = ComparisonFolder::open(scratch.path(), &design).unwrap();
    let mut elsewhere = summary_of(&order[0]);
    elsewhere.cpu_fingerprint = "aarch64 neon".into();
    leave(&folder.run_folder(&order[0]), &elsewhere);
    leave(&folder.run_folder(&order[1]), &summary_of(&order[1]));
    let never = |_: Turn<'_>, _: &Path| -> Result<RunSummary, PowerCut> { panic!("nothing is to be run") };
    let error = carry_out(&design, &folder, never).unwrap_err();
    assert!(matches!(error, CarryOutError::DifferentComputers { .. }), "{error}");
    let other = order.iter().find(|cell| cell.seed != order[0].seed).unwrap();
    leave(&folder.run_folder(&order[0]), &summary_of(other));
    let error = carry_out(&design, &folder, never).unwrap_err().to_string();
    assert!(error.contains("is not the summary of"), "{error}");
    fs::write(folder.run_folder(&order[0]).join("summary.json"), "{").unwrap();
    let error = carry_out(&design, &folder, never).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}
