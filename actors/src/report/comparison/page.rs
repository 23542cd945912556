//! A comparison as one page that needs nothing else; it links to the reports of its runs, which lie beside it.

use std::fmt::Write;

use super::standings::{COLUMNS, LEGEND};
use super::{Comparison, plots, text};
use crate::report::html::{cells_html, escape, page, table_html};
use crate::report::plot::PlotError;
use crate::report::units;

/// Writes the page.
pub fn render(comparison: &Comparison) -> Result<String, PlotError> {
    let body = format!(
        r#"<p class="soft">{headline}.</p>
<h2>What every policy cost</h2>
{table}
{changes}
{notes}
{plots}<details><summary>Every run</summary>{runs}</details>"#,
        headline = escape(&text::headline(comparison)),
        table = table(comparison),
        changes = changes(comparison),
        notes = notes(comparison),
        plots = plots::sections(comparison)?,
        runs = runs(comparison),
    );
    Ok(page(&format!("{}: policies compared", comparison.dataset), &body))
}

fn table(comparison: &Comparison) -> String {
    let heads = COLUMNS.iter().map(|column| column.head);
    let rows = comparison.table.iter().fold(String::new(), |mut html, row| {
        let cells = text::keys(row).into_iter().chain(text::figures(row, 0..COLUMNS.len()));
        let _ = write!(html, "<tr>{}</tr>", cells_html("td", cells));
        html
    });
    table_html(text::KEYS.into_iter().chain(heads), &rows)
}

/// The changes against `on-demand`, if it is among the policies.
fn changes(comparison: &Comparison) -> String {
    let changed = comparison.table.iter().filter(|row| !row.changes.is_empty());
    let rows = changed.fold(String::new(), |mut html, row| {
        let cells = text::keys(row).into_iter().chain(text::change_texts(row));
        let _ = write!(html, "<tr>{}</tr>", cells_html("td", cells));
        html
    });
    if rows.is_empty() {
        return rows;
    }
    let table = table_html(text::KEYS.into_iter().chain(text::change_heads()), &rows);
    format!("<p class=\"soft\">Against on-demand; n.d.: not distinguishable.</p>\n{table}")
}

fn notes(comparison: &Comparison) -> String {
    let lines = LEGEND.lines().chain(comparison.notes.iter().map(String::as_str));
    lines
        .map(|line| format!("<p class=\"soft\">{}.</p>\n", escape(line)))
        .collect()
}

fn runs(comparison: &Comparison) -> String {
    let rows = comparison.cells.iter().fold(String::new(), |mut html, run| {
        let folder = escape(&run.cell.folder_name());
        let whole = run.summary.whole_run();
        let figures = [
            units::count(whole.traffic.feature_requests),
            units::count(whole.traffic.feature_rows),
            units::energy(whole.energy_j, whole.energy_quality),
            units::seconds(run.summary.total_s),
            units::accuracy(run.summary.test_accuracy),
        ];
        let _ = write!(
            html,
            "<tr><td><a href=\"runs/{folder}/report.html\">{}</a></td>{}</tr>",
            escape(&run.cell.to_string()),
            cells_html("td", figures.into_iter())
        );
        html
    });
    let header = ["run", "requests", "rows", "energy", "total time", "test acc."];
    table_html(header.into_iter(), &rows)
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;
    use super::*;

    #[test]
    fn the_page_has_the_table_and_a_link_per_run_and_loads_nothing() {
        let mut comparison = comparison();
        comparison.dataset = "<script>".into();
        let html = render(&comparison).unwrap();
        assert_eq!(html.matches("<a href=\"runs/").count(), comparison.cells.len());
        assert!(!html.contains("<script") && !html.contains("http"), "{html}");
        let table = html.split("</table>").next().unwrap();
        assert_eq!(table.matches("<tr>").count(), 1 + comparison.table.len());
    }
}
