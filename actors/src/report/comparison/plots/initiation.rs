//! Figure 2 of the paper: what of a request's energy is its initiation, and what its payload, over its size.
//!
//! The sizes of requests are counted. The energy is not measured here: it is that of the paper's model, in which a request
//! costs as much as `crossover` rows before it has carried one, so that of a request of `x` rows the initiation is
//! `crossover / (crossover + x)`. The paper has measured 965 rows on its cluster.

use super::super::Comparison;
use super::{Series, in_figures};
use crate::report::plot::{Plot, PlotError, XAxis};

/// Points on each of the two curves.
const CURVE_POINTS: usize = 160;

/// The two curves, and every combination where its mean request lies.
pub fn figures(comparison: &Comparison) -> Result<String, PlotError> {
    let crossover = comparison.crossover_rows;
    let title = format!(
        "As Figure 2: initiation against payload of a request (estimated: sizes are counted, the crossover of {crossover} \
         rows is given)"
    );
    let share = |rows: f64| 100.0 * crossover / (crossover + rows);
    let mut series: Vec<Series> = Vec::new();
    let (mut least, mut most) = (crossover / 100.0, crossover * 100.0);
    for row in &comparison.table {
        let size = row
            .mean("rows")
            .zip(row.mean("requests"))
            .map(|(rows, requests)| rows / requests);
        let Some(size) = size.filter(|size| size.is_finite() && *size > 0.0) else {
            continue;
        };
        (least, most) = (least.min(size), most.max(size));
        match series.iter_mut().find(|(name, _)| *name == row.policy) {
            Some((_, points)) => points.push(vec![(size, share(size))]),
            None => series.push((row.policy.clone(), vec![vec![(size, share(size))]])),
        }
    }
    if series.is_empty() {
        return Ok(String::new());
    }
    let sizes = (0..CURVE_POINTS).map(|point| least * (most / least).powf(point as f64 / (CURVE_POINTS - 1) as f64));
    let sizes: Vec<f64> = sizes.collect();
    let curves = [
        (
            "initiation".to_owned(),
            vec![sizes.iter().map(|size| (*size, share(*size))).collect()],
        ),
        (
            "payload".to_owned(),
            vec![sizes.iter().map(|size| (*size, 100.0 - share(*size))).collect()],
        ),
    ];
    let plot = Plot {
        title: &title,
        x_label: "rows of a request",
        y_text: &|percent| format!("{percent:.0} %"),
        y_max: Some(100.0),
        x: XAxis::Powers(10.0),
    };
    in_figures(&plot, &title, &series, &curves)
}
