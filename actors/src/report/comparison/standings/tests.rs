use super::super::tests::runs;
use super::*;

fn row_of<'a>(standings: &'a Standings, batch_size: u32, label: &str) -> &'a Row {
    let found = |row: &&Row| row.batch_size == batch_size && row.label(1) == label;
    standings.rows.iter().find(found).unwrap()
}

fn standing(standings: &Standings, batch_size: u32, label: &str, column: &str) -> Standing {
    row_of(standings, batch_size, label).figure(column).unwrap().standing
}

#[test]
fn lines_are_means_over_repeats_in_the_order_of_the_cells() {
    let standings = of(&runs(), MixedQuality::Refused);
    let labels: Vec<_> = standings
        .rows
        .iter()
        .map(|row| (row.batch_size, row.label(1)))
        .collect();
    let of_batch = |batch| ["on-demand", "bulk 5%", "bulk 64MiB"].map(|label| (batch, label.to_owned()));
    assert_eq!(labels, [of_batch(500), of_batch(1000)].concat());
    assert!(standings.rows.iter().all(|row| row.repeats == 3));
    // 1,000, 1,001 and 1,002 in the first epoch, 2,600, 1,300 and 3,900 in the other periods.
    assert_eq!(row_of(&standings, 500, "on-demand").mean("rows"), Some(8_801.0));
    assert_eq!(standings.notes, Vec::<String>::new());
}

#[test]
fn the_best_is_marked_and_what_overlaps_it_is_not_told_from_it() {
    let mut runs = runs();
    for run in &mut runs {
        // On-demand far behind, the two budgets of bulk within their spread.
        let budget = run
            .cell
            .budget
            .map_or(9.0, |budget| if budget.to_string() == "5%" { 1.0 } else { 1.01 });
        run.summary.epochs[0].period.wall_s = budget + 0.02 * f64::from(run.cell.repeat);
        run.summary.test_accuracy = Some(if run.cell.budget.is_some() { 0.5 } else { 0.75 });
    }
    let standings = of(&runs, MixedQuality::Refused);
    for batch in [500, 1000] {
        assert_eq!(standing(&standings, batch, "bulk 5%", "epoch_s"), Standing::Best);
        assert_eq!(
            standing(&standings, batch, "bulk 64MiB", "epoch_s"),
            Standing::NotDistinguishable
        );
        assert_eq!(standing(&standings, batch, "on-demand", "epoch_s"), Standing::Behind);
        assert_eq!(
            standing(&standings, batch, "on-demand", "test_accuracy"),
            Standing::Best
        );
        assert_eq!(
            standing(&standings, batch, "bulk 5%", "test_accuracy"),
            Standing::Behind
        );
    }
}

#[test]
fn energies_of_different_quality_are_not_compared_and_it_is_said() {
    let mut runs = runs();
    for run in runs
        .iter_mut()
        .filter(|run| run.cell.batch_size == 500 && run.cell.policy == "on-demand")
    {
        run.summary.epochs[0].period.energy_quality = Quality::Measured;
    }
    let standings = of(&runs, MixedQuality::Refused);
    for label in ["on-demand", "bulk 5%", "bulk 64MiB"] {
        assert_eq!(standing(&standings, 500, label, "total_j"), Standing::NotCompared);
        assert_ne!(standing(&standings, 1000, label, "total_j"), Standing::NotCompared);
    }
    assert_eq!(
        standings.notes,
        ["total energy at batch size 500: the figures have different quality and are not compared"]
    );
}

#[test]
fn energies_of_different_quality_are_compared_when_asked_for_and_it_is_said() {
    let mut runs = runs();
    for (index, run) in runs.iter_mut().enumerate() {
        if run.cell.batch_size == 500 && run.cell.policy == "on-demand" {
            run.summary.epochs[0].period.energy_quality = Quality::Measured;
        } else if index % 2 == 0 {
            run.summary.setup.energy_quality = Quality::Integrated;
        }
    }
    let standings = of(&runs, MixedQuality::Allowed);
    for label in ["on-demand", "bulk 5%", "bulk 64MiB"] {
        assert_ne!(standing(&standings, 500, label, "total_j"), Standing::NotCompared);
    }
    assert_eq!(
        standings.notes,
        ["total energy at batch size 500: figures of different quality are compared, as was asked for"]
    );
    let row = row_of(&standings, 500, "bulk 5%");
    let figure = row.figure("total_j").unwrap();
    assert!(
        figure_text(figure, Unit::Joules).contains("estimated"),
        "the worst of its runs"
    );
    let change = row.changes.iter().find(|change| change.name == "total_j").unwrap();
    assert!(change.percent.is_some());
    let refused = of(&runs, MixedQuality::Refused);
    let row = row_of(&refused, 500, "bulk 5%");
    assert!(
        row.changes
            .iter()
            .any(|change| change.name == "total_j" && change.percent.is_none())
    );
}

#[test]
fn repeats_of_different_quality_have_no_mean() {
    let mut runs = runs();
    runs[0].summary.epochs[0].period.energy_quality = Quality::Measured;
    let standings = of(&runs, MixedQuality::Refused);
    let figure = row_of(&standings, 500, "on-demand").figure("total_j").unwrap();
    assert_eq!((figure.estimate, figure.quality), (None, Some(Quality::Estimated)));
    assert_eq!(figure_text(figure, Unit::Joules), "of mixed quality");
    assert_eq!(standing(&standings, 500, "bulk 5%", "total_j"), Standing::NotCompared);
}

#[test]
fn an_energy_that_is_not_known_is_not_zero() {
    let mut runs = runs();
    runs[1].summary.setup.energy_j = None;
    runs[1].summary.setup.energy_quality = Quality::Unavailable;
    let standings = of(&runs, MixedQuality::Refused);
    let figure = row_of(&standings, 500, "on-demand").figure("total_j").unwrap();
    assert_eq!(figure_text(figure, Unit::Joules), "unavailable");
    assert!(standings.notes.iter().any(|note| note.contains("total energy")));
}

#[test]
fn a_single_run_is_compared_with_nothing() {
    let single: Vec<_> = runs().into_iter().filter(|run| run.cell.repeat == 0).collect();
    let standings = of(&single, MixedQuality::Refused);
    let mut figures = standings.rows.iter().flat_map(|row| &row.figures);
    assert!(figures.all(|figure| figure.standing == Standing::NotCompared));
    assert!(standings.notes[0].contains("at least 2 repeats"));
}

#[test]
fn figures_are_written_with_interval_quality_and_mark() {
    let figure = |standing, quality| Figure {
        name: "x".into(),
        estimate: Estimate::of(&[1000.0, 1002.0]),
        quality,
        standing,
    };
    assert_eq!(figure_text(&figure(Standing::Best, None), Unit::Count), "1,001 ± 13 *");
    assert_eq!(
        figure_text(
            &figure(Standing::NotDistinguishable, Some(Quality::Measured)),
            Unit::Joules
        ),
        "1.00 kJ ± 12.7 J measured ="
    );
    assert_eq!(
        figure_text(&figure(Standing::Behind, None), Unit::Seconds),
        "16 min 41 s ± 12.7 s"
    );
}

#[test]
fn column_names_differ_and_begin_with_those_of_table_two() {
    let names: Vec<_> = COLUMNS.iter().map(|column| column.name).collect();
    assert_eq!(
        names[..TABLE_II_COLUMNS],
        ["gpu_j", "cpu_j", "dram_j", "total_j", "epoch_s"]
    );
    assert_eq!(
        names.iter().collect::<std::collections::HashSet<_>>().len(),
        names.len()
    );
}
