use super::super::tests::{comparison, comparison_of, runs};
use super::super::{Comparison, RowBound};
use super::*;
use crate::report::plot::{XAxis, trimmed};

/// A comparison in which every figure has something to show.
fn full() -> Comparison {
    let mut runs = runs();
    for run in &mut runs {
        run.step_times.stall_s = if run.cell.budget.is_none() { 3.0 } else { 1.0 };
        run.step_times.forward_s = 1.0;
        run.bound = Some(RowBound {
            needed_rows: 9_000,
            compulsory_rows: 1_000,
            fewest_rows: run.cell.budget.map_or(9_000, |_| 4_000),
        });
    }
    comparison_of(runs)
}

fn with_windows() -> Comparison {
    let mut comparison = full();
    comparison.design.windows = vec![4, 16];
    let mut more = comparison.cells.clone();
    more.retain(|run| run.cell.window.is_some());
    more.iter_mut().for_each(|run| run.cell.window = Some(4));
    let cells = [comparison.cells, more].concat();
    Comparison::new(comparison.dataset, comparison.design, cells, comparison.crossover_rows)
}

#[test]
fn every_figure_of_the_papers_evaluation_has_its_counterpart() {
    let html = sections(&with_windows()).unwrap();
    for number in [1, 2, 6, 7, 8, 9, 10, 11] {
        assert!(html.contains(&format!("As Figure {number}: ")), "{number}");
    }
    assert!(!html.contains("<script") && !html.contains("http"), "nothing is loaded");
    let one_window = sections(&full()).unwrap();
    assert!(!one_window.contains("As Figure 6: ") && one_window.contains("As Figure 7: "));
}

#[test]
fn every_energy_that_is_drawn_has_its_quality_and_mixed_ones_are_not_drawn() {
    let html = sections(&full()).unwrap();
    for figure in [
        "As Figure 7: energy of a run, batch size 500",
        "As Figure 9: energy against epoch time, batch size 500",
    ] {
        assert!(html.contains(&format!("{figure} (energy estimated)")), "{figure}");
    }
    assert!(html.contains("CPU estimated") && html.contains("no GPU was metered"));
    assert!(!html.contains("are not drawn"));
    let mut runs = runs();
    for run in runs.iter_mut().filter(|run| run.cell.policy == "on-demand") {
        run.summary.epochs[0].period.energy_quality = Quality::Measured;
    }
    let html = sections(&comparison_of(runs)).unwrap();
    assert_eq!(
        html.matches("are not drawn").count(),
        2 * 2,
        "figures 7 and 9 of both batch sizes"
    );
    assert!(!html.contains("As Figure 11: reduction of energy"), "{html}");
}

#[test]
fn where_the_energy_goes_is_told_by_the_time_of_steps() {
    let html = sections(&full()).unwrap();
    assert!(html.contains("data 75 %") && html.contains("data 50 %"), "{html}");
    // Without a step there is nothing to tell.
    assert!(!sections(&comparison()).unwrap().contains("As Figure 1: "));
}

#[test]
fn the_bound_is_drawn_beside_the_rows() {
    let bound = "MIN: the fewest rows at the budget";
    assert_eq!(
        sections(&full()).unwrap().matches(bound).count(),
        2,
        "one per batch size"
    );
    assert!(!sections(&comparison()).unwrap().contains(bound));
}

#[test]
fn the_front_is_what_nothing_beats() {
    let points = [(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (4.0, 1.0), (1.0, 6.0)];
    assert_eq!(pareto::front(&points), [(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)]);
    assert!(pareto::front(&[]).is_empty());
}

#[test]
fn more_policies_than_colours_make_more_figures() {
    let series: Vec<Series> = (0..=MOST_SERIES)
        .map(|index| (format!("policy-{index}"), line(vec![(1.0, 1.0)])))
        .collect();
    let plot = Plot {
        title: "t",
        x_label: "x",
        y_text: &trimmed,
        y_max: None,
        x: XAxis::Values,
    };
    let html = in_figures(&plot, "t", &series, &[]).unwrap();
    assert_eq!(html.matches("<figure").count(), 2);
    assert!((0..=MOST_SERIES).all(|index| html.contains(&format!("policy-{index}"))));
    let front = [("front".to_owned(), line(vec![(1.0, 1.0)]))];
    let html = in_figures(&plot, "t", &series, &front).unwrap();
    assert_eq!(
        (html.matches("<figure").count(), html.matches("</i>front").count()),
        (2, 2)
    );
}
