//! The plots of a comparison. A figure has at most as many series as there are colours; more make further figures.

use super::Comparison;
use super::standings::Row;
use crate::report::html::{figure, nothing};
use crate::report::plot::{self, MOST_SERIES, Pieces, Plot, PlotError};
use crate::report::units;

/// A named series.
type Series = (String, Pieces);

/// All figures, as HTML.
pub fn figures(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    for block in comparison.table.chunk_by(|a, b| a.batch_size == b.batch_size) {
        html.push_str(&energy_against_time(block)?);
        for (name, what) in [
            ("rows", "Feature rows moved"),
            ("requests", "Requests for feature rows"),
        ] {
            html.push_str(&over_budgets(block, name, what)?);
        }
    }
    for (name, what) in [
        ("total_j", "Energy"),
        ("epoch_s", "Time of an epoch"),
        ("rows", "Feature rows moved"),
        ("requests", "Requests for feature rows"),
    ] {
        html.push_str(&against_on_demand(&comparison.table, name, what)?);
    }
    Ok(html)
}

/// Energy against the time of an epoch, one point per combination, and the line of those that nothing beats in both.
fn energy_against_time(block: &[Row]) -> Result<String, PlotError> {
    let title = format!("Energy against epoch time, batch size {}", batch_size(block));
    let Some(quality) = one_quality(block) else {
        let why = "Energies that are unavailable or of different quality are not drawn beside each other.";
        return Ok(figure(&title, &[], &nothing(why)));
    };
    let point = |row: &Row| row.mean("epoch_s").zip(row.mean("total_j"));
    let points: Vec<_> = block.iter().filter_map(point).collect();
    let series: Vec<Series> = block
        .chunk_by(|a, b| a.policy == b.policy)
        .map(|rows| {
            (
                rows[0].policy.clone(),
                rows.iter().filter_map(point).map(|point| vec![point]).collect(),
            )
        })
        .collect();
    let plot = Plot {
        title: &title,
        x_label: "mean time of an epoch, s",
        y_text: &|joules| units::joules(joules),
        y_max: None,
        by_epoch: false,
    };
    let mut html = String::new();
    // One colour is the front's, which belongs to all combinations.
    for some in series.chunks(MOST_SERIES - 1) {
        let front = (
            "not beaten in both by any policy".to_owned(),
            vec![pareto_front(&points)],
        );
        let some: Vec<_> = some.iter().cloned().chain([front]).collect();
        html.push_str(&drawn(&plot, &format!("{title} (energy {quality})"), &some)?);
    }
    Ok(html)
}

/// The points that no other is at most equal to in both coordinates, from left to right.
fn pareto_front(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut front: Vec<(f64, f64)> = Vec::new();
    for point in sorted {
        if front.last().is_none_or(|last| point.1 < last.1) {
            front.push(point);
        }
    }
    front
}

/// A count over the remote rows that a rank may keep, a line per policy.
fn over_budgets(block: &[Row], name: &str, what: &str) -> Result<String, PlotError> {
    let title = format!("{what} over budgets, batch size {}", batch_size(block));
    let series = block.chunk_by(|a, b| a.policy == b.policy).map(|rows| {
        let point = |row: &Row| Some((row.budget_rows as f64, row.mean(name)?));
        (rows[0].policy.clone(), line(rows.iter().filter_map(point).collect()))
    });
    let series: Vec<Series> = series.collect();
    let plot = Plot {
        title: &title,
        x_label: "remote rows that a rank may keep",
        y_text: &|count| units::count(count.round() as u64),
        y_max: None,
        by_epoch: false,
    };
    in_figures(&plot, &title, &series)
}

/// A column as a share of that of `on-demand`, over batch sizes; a line per policy and budget.
fn against_on_demand(table: &[Row], name: &str, what: &str) -> Result<String, PlotError> {
    let title = format!("{what} against on-demand, over batch sizes");
    let is_base = |row: &&Row| row.policy == "on-demand";
    let mut series: Vec<Series> = Vec::new();
    for row in table.iter().filter(|row| !is_base(row)) {
        let base = table
            .iter()
            .filter(is_base)
            .find(|base| base.batch_size == row.batch_size);
        let Some(base) = base.filter(|base| quality(base, name) == quality(row, name)) else {
            continue;
        };
        let Some((mean, base)) = row.mean(name).zip(base.mean(name)).filter(|(_, base)| *base > 0.0) else {
            continue;
        };
        let point = (f64::from(row.batch_size), mean / base * 100.0);
        match series.iter_mut().find(|(label, _)| *label == row.label()) {
            Some((_, pieces)) => pieces[0].push(point),
            None => series.push((row.label(), vec![vec![point]])),
        }
    }
    for (_, pieces) in &mut series {
        let mut points = pieces.concat();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        *pieces = line(points);
    }
    let plot = Plot {
        title: &title,
        x_label: "batch size",
        y_text: &|percent| format!("{} %", plot::trimmed(percent)),
        y_max: None,
        by_epoch: false,
    };
    in_figures(&plot, &title, &series)
}

/// A line with a dot at every point.
fn line(points: Vec<(f64, f64)>) -> Pieces {
    let dots: Vec<_> = points.iter().map(|point| vec![*point]).collect();
    [vec![points], dots].concat()
}

/// As few figures as colours allow, as even as can be, with one scale of the y axis for all.
fn in_figures(plot: &Plot<'_>, title: &str, series: &[Series]) -> Result<String, PlotError> {
    let points = series.iter().flat_map(|(_, pieces)| pieces).flatten();
    let highest = points.map(|point| point.1).fold(0.0, f64::max);
    let plot = Plot {
        y_max: (highest > 0.0).then_some(highest * 1.06),
        ..*plot
    };
    let figures = series.len().div_ceil(MOST_SERIES).max(1);
    let some = series.chunks(series.len().div_ceil(figures).max(1));
    some.map(|some| drawn(&plot, title, some)).collect()
}

fn drawn(plot: &Plot<'_>, title: &str, series: &[Series]) -> Result<String, PlotError> {
    let names: Vec<_> = series.iter().map(|(name, _)| name.as_str()).collect();
    let pieces: Vec<_> = series.iter().map(|(_, pieces)| pieces.clone()).collect();
    Ok(figure(title, &names, &plot.lines(&pieces)?))
}

fn batch_size(block: &[Row]) -> u32 {
    block.first().map_or(0, |row| row.batch_size)
}

fn quality(row: &Row, name: &str) -> Option<greengnn_energy::quality::Quality> {
    row.figure(name)?.quality
}

/// The quality of all energies of the block, if they have one and the same.
fn one_quality(block: &[Row]) -> Option<greengnn_energy::quality::Quality> {
    let first = quality(block.first()?, "total_j")?;
    let same = |row: &Row| quality(row, "total_j") == Some(first) && row.mean("total_j").is_some();
    block.iter().all(same).then_some(first)
}

#[cfg(test)]
mod tests {
    use greengnn_energy::quality::Quality;

    use super::super::tests::{comparison, comparison_of, runs};
    use super::*;

    #[test]
    fn the_front_is_what_nothing_beats() {
        let points = [(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (4.0, 1.0), (1.0, 6.0)];
        assert_eq!(pareto_front(&points), [(1.0, 5.0), (2.0, 3.0), (3.0, 1.0)]);
        assert!(pareto_front(&[]).is_empty());
    }

    #[test]
    fn energies_of_one_quality_are_drawn_and_mixed_ones_are_not() {
        let html = figures(&comparison()).unwrap();
        assert!(html.contains("batch size 500 (energy estimated)") && !html.contains("are not drawn"));
        assert!(
            html.contains("Rows") || html.contains("Feature rows moved against on-demand"),
            "{html}"
        );
        let mut runs = runs();
        for run in runs.iter_mut().filter(|run| run.cell.policy == "on-demand") {
            run.summary.epochs[0].period.energy_quality = Quality::Measured;
        }
        let html = figures(&comparison_of(runs)).unwrap();
        assert_eq!(html.matches("are not drawn").count(), 2);
        assert!(!html.contains("Energy against on-demand"), "{html}");
    }

    #[test]
    fn more_policies_than_colours_make_more_figures() {
        let series: Vec<Series> = (0..=MOST_SERIES)
            .map(|index| (format!("policy-{index}"), line(vec![(1.0, 1.0)])))
            .collect();
        let plot = Plot {
            title: "t",
            x_label: "x",
            y_text: &plot::trimmed,
            y_max: None,
            by_epoch: false,
        };
        let html = in_figures(&plot, "t", &series).unwrap();
        assert_eq!(html.matches("<figure").count(), 2);
        assert!((0..=MOST_SERIES).all(|index| html.contains(&format!("policy-{index}"))));
    }
}
