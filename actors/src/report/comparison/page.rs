//! A comparison as one page that needs nothing else; it links to the reports of its runs, which lie beside it.

use std::fmt::Write;

use super::standings::{COLUMNS, LEGEND};
use super::{Comparison, plots, text};
use crate::report::html::{STYLE, cells_html, escape, table_html};
use crate::report::plot::{self, PlotError};
use crate::report::units;

/// Writes the page.
pub fn render(comparison: &Comparison) -> Result<String, PlotError> {
    let title = escape(&format!("{}: policies compared", comparison.dataset));
    Ok(format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title} - GreenGNN</title>
<style>
{STYLE}{theme}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="soft">{headline}.</p>
<h2>What every policy cost</h2>
{table}
{notes}
<h2>Plots</h2>
<section class="plots">{plots}</section>
<details><summary>Every run</summary>{runs}</details>
</main>
</body>
</html>
"#,
        theme = plot::theme_css(),
        headline = escape(&text::headline(comparison)),
        table = table(comparison),
        notes = notes(comparison),
        plots = plots::figures(comparison)?,
        runs = runs(comparison),
    ))
}

fn table(comparison: &Comparison) -> String {
    let heads = COLUMNS.iter().map(|column| column.head);
    let rows = comparison.table.iter().fold(String::new(), |mut html, row| {
        let cells = text::keys(row).into_iter().chain(text::figures(row, 0..COLUMNS.len()));
        let _ = write!(html, "<tr>{}</tr>", cells_html("td", cells));
        html
    });
    table_html(["batch", "policy", "budget"].into_iter().chain(heads), &rows)
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
