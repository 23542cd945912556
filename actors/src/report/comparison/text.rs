//! The table on a terminal, in three parts: what Table II of the paper has, the changes against `on-demand`, and what
//! explains both.

use super::Comparison;
use super::changes::{CHANGED, Change};
use super::standings::{COLUMNS, LEGEND, Row, TABLE_II_COLUMNS, figure_text};
use crate::report::table::{alignment, render};
use crate::report::units;

/// The whole text.
pub fn table(comparison: &Comparison) -> String {
    let half = |columns: std::ops::Range<usize>| {
        let heads = COLUMNS[columns.clone()].iter().map(|column| column.head);
        let header: Vec<_> = KEYS.into_iter().chain(heads).collect();
        let rows: Vec<_> = comparison
            .table
            .iter()
            .map(|row| keys(row).into_iter().chain(figures(row, columns.clone())).collect())
            .collect();
        render(&header, &alignment(header.len(), &[1, 2]), &rows)
    };
    let mut text = format!("{}\n\n{}\n", headline(comparison), half(0..TABLE_II_COLUMNS));
    if let Some(changes) = changes(comparison) {
        text.push_str(&format!("{changes}\n"));
    }
    text.push_str(&format!("{}\n{LEGEND}\n", half(TABLE_II_COLUMNS..COLUMNS.len())));
    for note in &comparison.notes {
        text.push_str(&format!("{note}\n"));
    }
    text
}

/// The changes against `on-demand`, if there is one.
fn changes(comparison: &Comparison) -> Option<String> {
    let changed = comparison.table.iter().filter(|row| !row.changes.is_empty());
    let rows: Vec<_> = changed
        .map(|row| keys(row).into_iter().chain(change_texts(row)).collect())
        .collect();
    let header: Vec<_> = KEYS.into_iter().chain(change_heads()).collect();
    (!rows.is_empty()).then(|| {
        format!(
            "against on-demand, n.d.: not distinguishable\n{}",
            render(&header, &alignment(header.len(), &[1, 2]), &rows)
        )
    })
}

/// The heads of the columns whose changes are given.
pub fn change_heads() -> impl Iterator<Item = &'static str> {
    let head = |name| {
        COLUMNS
            .iter()
            .find(|column| column.name == name)
            .map_or(name, |column| column.head)
    };
    CHANGED.into_iter().map(head)
}

/// The changes of a row.
pub fn change_texts(row: &Row) -> impl Iterator<Item = String> {
    row.changes.iter().map(Change::text)
}

/// `debian-4: 6 combinations, 5 repeats each, seeds from 1, on cpu`.
pub fn headline(comparison: &Comparison) -> String {
    let device = comparison.cells.first().map_or("nothing", |run| &run.summary.device);
    format!(
        "{}: {}, {} each, seeds from {}, on {device}",
        comparison.dataset,
        units::plural(comparison.table.len() as u64, "combination"),
        units::plural(comparison.design.repeats.into(), "repeat"),
        comparison.design.seed,
    )
}

/// The heads of [`keys`].
pub const KEYS: [&str; 4] = ["batch", "policy", "budget", "window"];

/// What a row is of.
pub fn keys(row: &Row) -> [String; 4] {
    [
        row.batch_size.to_string(),
        row.policy.clone(),
        row.budget.map_or(units::NONE.to_owned(), |budget| budget.to_string()),
        row.window.map_or(units::NONE.to_owned(), |window| window.to_string()),
    ]
}

/// The figures of these columns.
pub fn figures(row: &Row, columns: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    let figures = row.figures[columns.clone()].iter().zip(&COLUMNS[columns]);
    figures.map(|(figure, column)| figure_text(figure, column.unit))
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;
    use super::*;

    #[test]
    fn all_parts_have_a_line_per_combination_and_every_joule_its_quality() {
        let comparison = comparison();
        let text = table(&comparison);
        let lines_of = |policy: &str| text.lines().filter(|line| line.contains(policy)).count();
        assert_eq!(
            (lines_of("on-demand"), lines_of("bulk")),
            (2 * 2 + 1, 3 * 2 * 2),
            "{text}"
        );
        assert!(
            text.starts_with("debian: 6 combinations, 3 repeats each, seeds from 7, on cpu\n"),
            "{text}"
        );
        let unqualified = text
            .lines()
            .filter(|line| line.contains(" J ") && !line.contains("estimated"));
        assert_eq!(unqualified.count(), 0, "{text}");
        assert!(text.contains(LEGEND));
    }
}
