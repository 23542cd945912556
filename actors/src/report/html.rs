//! The result of a run as one page that needs nothing else: no script, no font, no picture from elsewhere.

use std::fmt::Write;

use super::clocks::ClockSummary;
use super::plot::{self, Plot, PlotError, XAxis};
use super::records::EnergyPoint;
use super::summary::{EpochSummary, PeriodSummary, RunSummary};
use super::{table, units};

mod energy;
mod power;

const STYLE: &str = include_str!("html/style.css");

/// What a report is made of.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What was trained on, such as the name of the graph.
    pub title: &'a str,
    pub summary: &'a RunSummary,
    /// The energy timeline, in the order of time.
    pub energy: &'a [EnergyPoint],
    /// The resolved configuration, as it stands in `config.toml`.
    pub config: &'a str,
}

/// Writes the page.
pub fn render(report: Report<'_>) -> Result<String, PlotError> {
    let summary = report.summary;
    let training = summary.training();
    let whole = summary.whole_run();
    let off_plan = if summary.epochs_off_plan().is_empty() {
        ""
    } else {
        " off"
    };
    let body = format!(
        r#"<p class="soft">GraphSAGE trained by GreenGNN: {headline}.</p>
<section class="tiles">{tiles}</section>
<div class="card verdict"><b>What bound the run.</b> {bound}.</div>
<div class="card verdict{off_plan}"><b>Planned and counted.</b> {plan}.</div>
{banner}
<h2>Epochs</h2>
<section class="plots">{plots}</section>
<h2>What it cost</h2>
{totals}
<h2>Energy by domain</h2>
{domains}
<details><summary>Every epoch</summary>{epochs}</details>
<details><summary>Configuration</summary><pre class="card">{config}</pre></details>
<details><summary>Where it ran, and what came out</summary>{origin}</details>"#,
        headline = escape(&table::headline(summary)),
        tiles = tiles(summary, &training, &whole),
        bound = unbroken(&escape(&capitalised(&summary.bound_by))),
        plan = escape(&capitalised(&table::plan_note(summary))),
        plots = plots(report)?,
        totals = totals(summary),
        banner = energy::banner(summary, &whole),
        domains = energy::domains(summary, &whole),
        epochs = epoch_table(&summary.epochs),
        config = escape(report.config),
        origin = origin(summary),
    );
    Ok(page(report.title, &body))
}

/// A page of that title around `body`, which is HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    let theme = plot::theme_css();
    format!(
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
{body}
</main>
</body>
</html>
"#
    )
}

/// Text as HTML shows it, in an element or a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Keeps percent signs with their numbers.
fn unbroken(text: &str) -> String {
    text.replace(" %", "\u{a0}%")
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn tiles(summary: &RunSummary, training: &PeriodSummary, whole: &PeriodSummary) -> String {
    let (energy, quality) = energy_parts(whole);
    let rows = units::plural(whole.traffic.feature_rows, "row");
    let tiles = [
        (units::accuracy(summary.test_accuracy), "test accuracy".to_string()),
        (energy, format!("energy of the whole run{quality}")),
        (
            units::seconds(summary.total_s),
            format!("in all, {} of it set-up", units::seconds(summary.setup_s)),
        ),
        (
            units::bytes(whole.traffic.feature_bytes),
            format!("of feature rows moved, {rows}"),
        ),
        (
            units::count(whole.traffic.feature_requests),
            "requests for feature rows".to_string(),
        ),
        (
            units::percent(training.stall_share()),
            "of training time waiting for batches".to_string(),
        ),
    ];
    tiles.into_iter().fold(String::new(), |mut html, (value, what)| {
        let _ = write!(
            html,
            "<div class=\"card tile\"><b>{}</b><span>{}</span></div>",
            escape(&value),
            escape(&what)
        );
        html
    })
}

/// The figure, and its quality after a comma; or that there is none.
fn energy_parts(period: &PeriodSummary) -> (String, String) {
    let text = units::energy(period.energy_j, period.energy_quality);
    match text.rsplit_once(' ') {
        Some((figure, quality)) => (figure.into(), format!(", {quality}")),
        None => (text, String::new()),
    }
}

fn plots(report: Report<'_>) -> Result<String, PlotError> {
    let epochs = &report.summary.epochs;
    let numbers: Vec<u32> = epochs.iter().map(EpochSummary::number).collect();
    let values = |value: &dyn Fn(&EpochSummary) -> f64| -> Vec<f64> { epochs.iter().map(value).collect() };
    let line = |value: &dyn Fn(&EpochSummary) -> f64| -> plot::Pieces {
        vec![
            epochs
                .iter()
                .map(|epoch| (f64::from(epoch.number()), value(epoch)))
                .collect(),
        ]
    };
    let plot = |title, y_text, y_max| Plot {
        title,
        x_label: "epoch",
        y_text,
        y_max,
        x: XAxis::Epochs,
    };
    let most_bytes = epochs
        .iter()
        .map(|epoch| epoch.period.traffic.feature_bytes.max(epoch.period.wire_bytes))
        .max();
    let (unit_bytes, unit) = units::byte_unit(most_bytes.unwrap_or(0));
    let in_unit = |value: f64| format!("{} {unit}", plot::trimmed(value));
    let in_counts = |value: f64| units::count(value as u64);
    let in_percent = |value: f64| format!("{value:.0} %");
    let percent = |share: Option<f64>| share.map_or(f64::NAN, |share| share * 100.0);

    let loss = plot("Training loss", &plot::trimmed, None).lines(&[line(&|epoch| epoch.loss)])?;
    let accuracy = if epochs.iter().any(|epoch| epoch.valid_accuracy.is_some()) {
        let accuracies = line(&|epoch| epoch.valid_accuracy.unwrap_or(f64::NAN));
        plot("Validation accuracy", &plot::trimmed, Some(1.0)).lines(&[accuracies])?
    } else {
        nothing("No validation was run.")
    };
    let bytes = plot("Bytes per epoch", &in_unit, None).bars(
        &numbers,
        &[
            values(&|epoch| epoch.period.traffic.feature_bytes as f64 / unit_bytes),
            values(&|epoch| epoch.period.wire_bytes as f64 / unit_bytes),
        ],
    )?;
    let requests = plot("Requests per epoch", &in_counts, None).bars(
        &numbers,
        &[
            values(&|epoch| epoch.period.traffic.feature_requests as f64),
            values(&|epoch| epoch.period.traffic.sample_requests as f64),
        ],
    )?;
    let waiting = plot("Share of time spent waiting", &in_percent, Some(100.0)).stacked_bars(
        &numbers,
        &[
            values(&|epoch| percent(epoch.period.stall_share())),
            values(&|epoch| percent(epoch.period.sync_share())),
        ],
    )?;
    let (power, domains) = power::plot(report.energy)?;
    let domains: Vec<_> = domains.iter().map(String::as_str).collect();
    let power = power.unwrap_or_else(|| nothing("Energy is unavailable: no domain gave a reading."));

    let if_any = |svg: String| {
        if epochs.is_empty() {
            nothing("No epoch was trained.")
        } else {
            svg
        }
    };
    let figures = [
        figure("Training loss", &[], &if_any(loss)),
        figure("Validation accuracy", &[], &if_any(accuracy)),
        figure("Energy over time: power by domain", &domains, &power),
        figure(
            "Share of time spent waiting",
            &["stall: for a batch", "sync: for gradients"],
            &if_any(waiting),
        ),
        figure(
            "Bytes per epoch",
            &["feature rows", "on the wire, all traffic"],
            &if_any(bytes),
        ),
        figure(
            "Requests per epoch",
            &["for feature rows", "for sampled neighbours"],
            &if_any(requests),
        ),
    ];
    Ok(figures.concat())
}

/// A plot with its title and, for more than one series or a series that must be named, the key of its colours.
pub(super) fn figure(title: &str, key: &[&str], content: &str) -> String {
    let key = key.iter().enumerate().fold(String::new(), |mut html, (index, name)| {
        let _ = write!(
            html,
            "<span><i class=\"{}\"></i>{}</span>",
            plot::swatch(index),
            escape(name)
        );
        html
    });
    let title = escape(title);
    format!("<figure class=\"card\"><figcaption>{title}</figcaption><div class=\"key\">{key}</div>{content}</figure>\n")
}

pub(super) fn nothing(text: &str) -> String {
    format!("<p class=\"none\">{}</p>", escape(text))
}

fn totals(summary: &RunSummary) -> String {
    let rows = table::parts(summary).into_iter().map(|cells| {
        let cells = cells.map(|cell| cell.replace("  ", "\u{a0}\u{a0}"));
        format!("<tr>{}</tr>", cells_html("td", cells.into_iter()))
    });
    let table = table_html([""].into_iter().chain(table::PERIOD_COLUMNS), &rows.collect::<String>());
    let note = table::idle_note(summary).map_or_else(String::new, |note| {
        format!("<p class=\"soft\">{}.</p>", escape(&capitalised(&note)))
    });
    format!("<div class=\"totals\">{table}</div>{note}")
}

fn epoch_table(epochs: &[EpochSummary]) -> String {
    let rows = epochs.iter().fold(String::new(), |mut html, epoch| {
        let own = [
            epoch.number().to_string(),
            units::loss(epoch.loss),
            units::accuracy(epoch.valid_accuracy),
        ];
        let planned = [
            units::count(epoch.planned.feature_requests),
            units::count(epoch.planned.feature_rows),
            units::signed_count(epoch.period.cache_hit_rows),
        ];
        let cells = own.into_iter().chain(table::period_cells(&epoch.period)).chain(planned);
        let _ = write!(html, "<tr>{}</tr>", cells_html("td", cells));
        html
    });
    let own = ["epoch", "loss", "valid"].into_iter();
    let planned = ["planned requests", "planned rows", "cache hit rows"];
    table_html(own.chain(table::PERIOD_COLUMNS).chain(planned), &rows)
}

pub(super) fn table_html<'a>(header: impl Iterator<Item = &'a str>, rows: &str) -> String {
    let header = cells_html("th", header.map(String::from));
    format!("<div class=\"card scroll\"><table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>")
}

pub(super) fn cells_html(tag: &str, cells: impl Iterator<Item = String>) -> String {
    cells.fold(String::new(), |mut html, cell| {
        let _ = write!(html, "<{tag}>{}</{tag}>", escape(&cell));
        html
    })
}

fn origin(summary: &RunSummary) -> String {
    let facts = [
        ("device", summary.device.clone()),
        ("CPU fingerprint", summary.cpu_fingerprint.clone()),
        ("SHA-256 of the weights", summary.weights_sha256.clone()),
        (
            "peak memory, memory maps included",
            units::bytes(summary.peak_rss_bytes),
        ),
        ("peak memory, anonymous", units::bytes(summary.peak_anon_bytes)),
        (
            "cache of a rank",
            format!(
                "held at most {} of {} {} rows",
                units::count(summary.held_rows_peak),
                units::count(summary.budget_rows),
                summary.row_type
            ),
        ),
    ];
    let clocks = summary.gpu_clocks.iter().flat_map(ClockSummary::lines);
    let facts = facts.into_iter().chain(clocks.map(|line| ("clocks", line)));
    let rows = facts.fold(String::new(), |mut html, (name, value)| {
        let _ = write!(html, "<tr><td>{name}</td><td><code>{}</code></td></tr>", escape(&value));
        html
    });
    format!("<div class=\"card scroll\"><table><tbody>{rows}</tbody></table></div>")
}

#[cfg(test)]
mod tests;
