//! Figure 9 of the paper: energy against the time of an epoch, and the line of those that nothing beats in both.

use super::super::Comparison;
use super::super::standings::Row;
use super::{Series, blocks, in_figures, not_drawn, one_quality};
use crate::report::plot::{Plot, PlotError, XAxis};
use crate::report::units;

/// One point per combination, for every batch size.
pub fn figures(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    for (batch_size, block) in blocks(comparison) {
        let title = format!("As Figure 9: energy against epoch time, batch size {batch_size}");
        let Some(quality) = one_quality(block, "total_j") else {
            html.push_str(&not_drawn(&title));
            continue;
        };
        let points: Vec<_> = block.iter().filter_map(point).collect();
        let series: Vec<Series> = block
            .chunk_by(|a, b| a.policy == b.policy)
            .map(|rows| {
                let points = rows.iter().filter_map(point).map(|point| vec![point]);
                (rows[0].policy.clone(), points.collect())
            })
            .collect();
        let front = ("not beaten in both by any policy".to_owned(), vec![front(&points)]);
        let title = format!("{title} (energy {quality})");
        let plot = Plot {
            title: &title,
            x_label: "mean time of an epoch, s",
            y_text: &|joules| units::joules(joules),
            y_max: None,
            x: XAxis::Values,
        };
        html.push_str(&in_figures(&plot, &title, &series, &[front])?);
    }
    Ok(html)
}

fn point(row: &Row) -> Option<(f64, f64)> {
    row.mean("epoch_s").zip(row.mean("total_j"))
}

/// The points that no other is at most equal to in both coordinates, from left to right.
pub fn front(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
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
