//! Tables for a terminal: one run, and several side by side. Plain text, so that a file or a pipe gets the same.

use greengnn_model::row_type::RowType;

use super::clocks::ClockSummary;
use super::summary::{MeteredSummary, PeriodSummary, RunSummary};
use super::units;
use crate::config::Communication;

/// Where a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// The end of a run: what it was, what every part of it cost, and what bound it.
pub fn run(summary: &RunSummary) -> String {
    let header: Vec<_> = [""].into_iter().chain(PERIOD_COLUMNS).collect();
    let rows: Vec<Vec<String>> = parts(summary).into_iter().map(Into::into).collect();
    let mut text = format!("{}\n\n", headline(summary));
    text.push_str(&render(&header, &alignment(header.len(), &[0, 9]), &rows));
    text.push_str(&format!(
        "\ntest accuracy {}; total {}, set-up {}; held at most {} of {} rows in a rank's cache{}\n",
        units::accuracy(summary.test_accuracy),
        units::seconds(summary.total_s),
        units::seconds(summary.setup_s),
        units::count(summary.held_rows_peak),
        units::count(summary.budget_rows),
        on_device(summary),
    ));
    if let Some(note) = idle_note(summary) {
        text.push_str(&format!("{note}\n"));
    }
    text.push_str(&format!("{}\n{}\n", plan_note(summary), summary.bound_by));
    for line in summary.gpu_clocks.iter().flat_map(ClockSummary::lines) {
        text.push_str(&format!("{line}\n"));
    }
    if let Some(bound) = &summary.row_bound {
        text.push_str(&format!(
            "no policy that moves rows could have moved fewer than {} of the {} rows that batches needed at this budget, {} at any\n",
            units::count(bound.fewest_rows),
            units::count(bound.needed_rows),
            units::count(bound.compulsory_rows),
        ));
    }
    text
}

/// The parts of a run, one a line: the name and what it cost. The idle baseline comes first and is no part of the whole run,
/// which is last; presampling of the first epoch is a part of the set-up above it.
pub fn parts(summary: &RunSummary) -> Vec<[String; 10]> {
    let named = |name: &str, cells: [String; 9]| {
        let mut line = [const { String::new() }; 10];
        line[0] = name.to_owned();
        line[1..].clone_from_slice(&cells);
        line
    };
    let idle = summary.idle.iter().map(|idle| named("idle", metered_cells(idle)));
    let probing = summary
        .probing
        .iter()
        .map(|part| named("  probing", metered_cells(part)));
    let first_epoch = summary.presampling.first_epoch.iter();
    let presampling = first_epoch.map(|part| named("  presampling", metered_cells(part)));
    let after = [
        ("training", summary.training()),
        ("evaluation", summary.evaluation.clone()),
        ("whole run", summary.whole_run()),
    ];
    idle.chain([named("set-up", period_cells(&summary.setup))])
        .chain(probing)
        .chain(presampling)
        .chain(after.map(|(name, period)| named(name, period_cells(&period))))
        .collect()
}

/// What a time cost in which no steps are counted, in the columns of a period.
fn metered_cells(part: &MeteredSummary) -> [String; 9] {
    let mut cells = [const { String::new() }; 9].map(|_| units::NONE.to_owned());
    cells[0] = units::seconds(part.wall_s);
    cells[7] = units::seconds(part.cpu_s);
    cells[8] = units::energy(part.energy_j, part.energy_quality);
    cells
}

/// The idle power, and what training took above it, where idle power was measured.
pub fn idle_note(summary: &RunSummary) -> Option<String> {
    let idle = summary.idle.as_ref()?;
    let quality = idle.energy_quality;
    let Some(watts) = idle.watts() else {
        return Some("the idle power is unavailable".to_owned());
    };
    let training = summary.training();
    let above = match summary.above_idle_j(&training) {
        Some(joules) => format!(
            "of the {} of training, {} are above it",
            units::energy(training.energy_j, training.energy_quality),
            units::energy(Some(joules), quality),
        ),
        None => "it is of another quality than the energy of training, and not taken from it".to_owned(),
    };
    Some(format!(
        "the machines draw {} idle ({quality}, over {}); {above}",
        units::watts(watts),
        units::seconds(idle.wall_s),
    ))
}

/// The heads of [`period_cells`].
pub const PERIOD_COLUMNS: [&str; 9] = [
    "wall",
    "stall",
    "sync",
    "requests",
    "rows",
    "row bytes",
    "wire bytes",
    "CPU",
    "energy",
];

/// What a period cost, for people.
pub fn period_cells(period: &PeriodSummary) -> [String; 9] {
    [
        units::seconds(period.wall_s),
        units::seconds(period.stall_s),
        units::seconds(period.sync_s),
        units::count(period.traffic.feature_requests),
        units::count(period.traffic.feature_rows),
        units::bytes(period.traffic.feature_bytes),
        units::bytes(period.wire_bytes),
        units::seconds(period.cpu_s),
        units::energy(period.energy_j, period.energy_quality),
    ]
}

/// `bulk, window 16, budget 5,000 rows a rank, on cpu: 10 epochs, 4 ranks in 4 machines, seed 1`.
pub fn headline(summary: &RunSummary) -> String {
    let how = match summary.communication {
        Communication::Pull => format!(
            "{}, window {}, budget {} a rank",
            summary.policy,
            summary.window,
            rows_of_a_type(summary),
        ),
        Communication::PushPull => "push-pull".to_owned(),
    };
    format!(
        "{how}, on {}: {}, {} in {}, seed {}",
        summary.device,
        units::plural(summary.epochs.len() as u64, "epoch"),
        units::plural(summary.ranks.into(), "rank"),
        units::plural(summary.machines.into(), "machine"),
        summary.seed,
    )
}

/// `, and 1,000 on its device`, where rows are there.
fn on_device(summary: &RunSummary) -> String {
    match summary.device_rows {
        0 => String::new(),
        rows => format!(", and {} on its device", units::count(rows)),
    }
}

/// `5,000 rows`, or `5,000 int8 rows` where they are not as stored.
fn rows_of_a_type(summary: &RunSummary) -> String {
    match summary.row_type {
        RowType::F32 => units::plural(summary.budget_rows, "row"),
        row_type => units::plural(summary.budget_rows, &format!("{row_type} row")),
    }
}

/// Whether what was counted is what was planned.
pub fn plan_note(summary: &RunSummary) -> String {
    let off_plan = summary.epochs_off_plan();
    if summary.epochs.is_empty() {
        return "no epoch was trained".into();
    }
    if off_plan.is_empty() {
        return match summary.communication {
            Communication::Pull => {
                "requests and rows counted where they were served equal those planned, in every epoch".into()
            }
            Communication::PushPull => {
                let traffic = summary.training().traffic;
                format!(
                    "no rows moved in training; {} were pushed and {} pulled, counted at both ends as planned",
                    units::bytes(traffic.push_bytes),
                    units::bytes(traffic.pull_bytes),
                )
            }
        };
    }
    let epochs: Vec<_> = off_plan.iter().map(|epoch| (epoch + 1).to_string()).collect();
    format!(
        "requests or rows counted where they were served differ from those planned in {} {}",
        if epochs.len() == 1 { "epoch" } else { "epochs" },
        epochs.join(", "),
    )
}

/// Several runs side by side, one a line, in the order given. Requests, rows, bytes, CPU seconds and joules are of the
/// whole run, set-up and evaluation included, so that a cache that is filled before training is not free; stall is that
/// of training; the epoch time is the mean. The memory that a policy was allowed and what it held stand beside.
pub fn compare(runs: &[RunSummary]) -> String {
    let header = [
        "policy",
        "budget rows",
        "held rows",
        "requests",
        "rows",
        "row bytes",
        "wire bytes",
        "stall",
        "CPU",
        "energy",
        "epoch",
        "test acc.",
    ];
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            let whole = run.whole_run();
            let training = run.training();
            vec![
                run.policy.clone(),
                units::count(run.budget_rows),
                units::count(run.held_rows_peak),
                units::count(whole.traffic.feature_requests),
                units::count(whole.traffic.feature_rows),
                units::bytes(whole.traffic.feature_bytes),
                units::bytes(whole.wire_bytes),
                units::seconds(training.stall_s),
                units::seconds(whole.cpu_s),
                units::energy(whole.energy_j, whole.energy_quality),
                mean_epoch(run, &training),
                units::accuracy(run.test_accuracy),
            ]
        })
        .collect();
    let mut text = render(&header, &alignment(header.len(), &[0, 9]), &rows);
    text.push_str(
        "\nrequests, rows, bytes, CPU and energy: whole run, set-up and evaluation included; stall: training, mean over \
         ranks\nbudget and held rows: remote rows that one rank may keep, and the most that one kept\n",
    );
    if differing_qualities(runs) {
        text.push_str("energy figures of different quality cannot be compared with each other\n");
    }
    text
}

fn mean_epoch(run: &RunSummary, training: &PeriodSummary) -> String {
    match run.epochs.len() {
        0 => units::NONE.into(),
        epochs => units::seconds(training.wall_s / epochs as f64),
    }
}

fn differing_qualities(runs: &[RunSummary]) -> bool {
    let mut qualities = runs.iter().map(|run| run.whole_run().energy_quality);
    let first = qualities.next();
    qualities.any(|quality| Some(quality) != first)
}

/// Right, but for the columns that hold words.
pub(crate) fn alignment(columns: usize, words: &[usize]) -> Vec<Align> {
    let align = |column| {
        if words.contains(&column) {
            Align::Left
        } else {
            Align::Right
        }
    };
    (0..columns).map(align).collect()
}

/// Columns as wide as their widest cell, two spaces apart, a rule under the header, no space at the end of a line.
pub(crate) fn render(header: &[&str], alignment: &[Align], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells
            .zip(&widths)
            .zip(alignment)
            .map(|((cell, &width), align)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let mut lines = vec![line(&mut header.iter().copied())];
    lines.push("-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len().saturating_sub(1))));
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use greengnn_energy::quality::Quality;

    use super::super::summary::tests::sample;
    use super::*;

    #[test]
    fn the_end_of_a_run() {
        let expected = "\
bulk, window 16, budget 5,000 rows a rank, on cpu: 2 epochs, 4 ranks in 4 machines, seed 1

                 wall   stall    sync  requests    rows  row bytes  wire bytes     CPU  energy
----------------------------------------------------------------------------------------------------
idle           5.00 s       -       -         -       -          -           -  125 ms  60 J estimated
set-up         1.00 s  250 ms  125 ms        10   1,300    650 KiB     684 KiB  1.50 s  50 J measured
  presampling  750 ms       -       -         -       -          -           -  500 ms  40 J measured
training       6.00 s  1.50 s  750 ms        60   7,800   3.81 MiB    4.01 MiB  9.00 s  300 J estimated
evaluation     3.00 s  750 ms  375 ms        30   3,900   1.90 MiB    2.00 MiB  4.50 s  30 J measured
whole run      10.0 s  2.50 s  1.25 s       100  13,000   6.35 MiB    6.68 MiB  15.0 s  380 J estimated

test accuracy 0.625; total 12.5 s, set-up 1.50 s; held at most 4,321 of 5,000 rows in a rank's cache, and 1,234 on its device
the machines draw 12 W idle (estimated, over 5.00 s); of the 300 J estimated of training, 228 J estimated are above it
requests and rows counted where they were served equal those planned, in every epoch
bound by compute
";
        let text = run(&sample());
        assert_eq!(without_rules(&text), without_rules(expected), "\n{text}");
    }

    /// The length of the rule under a header is the table's width; it says nothing of its own.
    fn without_rules(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !line.starts_with("---")).collect()
    }

    #[test]
    fn runs_side_by_side_are_aligned_and_keep_their_order() {
        let mut other = sample();
        other.policy = "on-demand".into();
        other.budget_rows = 0;
        other.held_rows_peak = 0;
        let text = compare(&[other, sample()]);
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("policy     budget rows  held rows  requests"),
            "{text}"
        );
        assert!(
            lines[2].starts_with("on-demand            0          0       100"),
            "{text}"
        );
        assert!(
            lines[3].starts_with("bulk             5,000      4,321       100"),
            "{text}"
        );
        assert!(lines[3].ends_with("3.00 s      0.625"), "{text}");
        assert_eq!(
            lines[0].chars().count(),
            lines[1].chars().count(),
            "the rule is as wide as the table\n{text}"
        );
        assert!(!text.contains('\u{1b}'), "no colour");
    }

    #[test]
    fn every_joule_has_its_quality_and_mixed_ones_a_warning() {
        let mut unknown = sample();
        unknown.setup.energy_j = None;
        unknown.setup.energy_quality = Quality::Unavailable;
        let text = compare(&[sample(), unknown.clone()]);
        assert!(text.contains("380 J estimated"), "{text}");
        assert!(text.contains("unavailable"), "{text}");
        assert!(text.contains("different quality"), "{text}");
        assert!(!compare(&[sample(), sample()]).contains("different quality"));
        let text = run(&unknown);
        assert!(
            text.lines()
                .any(|line| line.starts_with("whole run") && line.ends_with("unavailable")),
            "{text}"
        );
        assert!(!text.contains(" 0 J"), "{text}");
    }

    #[test]
    fn idle_power_is_taken_only_from_energy_of_its_own_quality() {
        let mut summary = sample();
        if let Some(idle) = &mut summary.idle {
            idle.energy_quality = Quality::Measured;
        }
        let note = idle_note(&summary).unwrap();
        assert!(note.contains("another quality") && !note.contains("above"), "{note}");
        assert_eq!(summary.above_idle_j(&summary.training()), None);
        if let Some(idle) = &mut summary.idle {
            (idle.energy_j, idle.energy_quality) = (None, Quality::Unavailable);
        }
        assert_eq!(idle_note(&summary).unwrap(), "the idle power is unavailable");
        summary.idle = None;
        assert_eq!(idle_note(&summary), None);
        assert!(!run(&summary).contains("idle"));
    }

    #[test]
    fn a_run_off_its_plan_says_so() {
        let mut summary = sample();
        summary.epochs[0].planned.feature_requests += 1;
        assert!(run(&summary).contains("differ from those planned in epoch 1\n"));
        summary.epochs[1].planned.feature_requests += 1;
        assert!(plan_note(&summary).ends_with("in epochs 1, 2"));
    }

    #[test]
    fn a_run_in_push_pull_names_no_cache() {
        let mut summary = sample();
        summary.communication = Communication::PushPull;
        summary.epochs[0].period.traffic.push_bytes = 3 << 20;
        summary.epochs[0].planned.push_bytes = 3 << 20;
        let text = run(&summary);
        assert!(text.starts_with("push-pull, on cpu: 2 epochs"), "{text}");
        assert!(text.contains("no rows moved in training; "), "{text}");
    }

    #[test]
    fn a_run_without_an_epoch_has_a_table_too() {
        let mut summary = sample();
        summary.epochs.clear();
        assert!(run(&summary).contains("no epoch was trained"));
        assert!(
            compare(&[summary])
                .lines()
                .nth(2)
                .is_some_and(|line| line.ends_with("-      0.625"))
        );
        assert!(compare(&[]).starts_with("policy"));
    }
}
