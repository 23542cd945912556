//! Figure 6 of the paper: energy over the window, beside that of `on-demand`.

use super::super::Comparison;
use super::super::standings::Row;
use super::{Series, baseline, blocks, in_figures, line, not_drawn, one_quality};
use crate::report::plot::{Plot, PlotError, XAxis};
use crate::report::units;

const DEVICES: [(&str, &str); 3] = [("total_j", "energy"), ("gpu_j", "GPU energy"), ("cpu_j", "CPU energy")];

/// Energy in all and by device for every batch size; nothing unless there are several windows.
pub fn figures(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    if comparison.design.windows.len() < 2 {
        return Ok(html);
    }
    for (batch_size, block) in blocks(comparison) {
        for (name, what) in DEVICES {
            let windowed = || block.iter().filter(|row| row.window.is_some());
            if windowed().all(|row| row.figure(name).is_none_or(|figure| figure.quality.is_none())) {
                continue;
            }
            let title = format!("As Figure 6: {what} over the window, batch size {batch_size}");
            let Some(quality) = one_quality(windowed().chain(baseline(block)), name) else {
                html.push_str(&not_drawn(&title));
                continue;
            };
            html.push_str(&over_windows(block, name, &format!("{title} (energy {quality})"))?);
        }
    }
    Ok(html)
}

fn over_windows(block: &[Row], name: &str, title: &str) -> Result<String, PlotError> {
    let mut series: Vec<Series> = Vec::new();
    let mut widths: Vec<f64> = Vec::new();
    for row in block {
        let Some((window, joules)) = row.window.map(f64::from).zip(row.mean(name)) else {
            continue;
        };
        widths.push(window);
        // The window is the axis, so that it is not in the name.
        let label = row.label(1);
        match series.iter_mut().find(|(known, _)| *known == label) {
            Some((_, pieces)) => pieces[0].push((window, joules)),
            None => series.push((label, vec![vec![(window, joules)]])),
        }
    }
    for (_, pieces) in &mut series {
        let mut points = pieces.concat();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        *pieces = line(points);
    }
    let ends = widths
        .iter()
        .copied()
        .reduce(f64::min)
        .zip(widths.iter().copied().reduce(f64::max));
    let level = baseline(block).and_then(|row| row.mean(name)).zip(ends);
    let level: Vec<Series> = level
        .map(|(joules, (least, most))| ("on-demand".to_owned(), vec![vec![(least, joules), (most, joules)]]))
        .into_iter()
        .collect();
    let plot = Plot {
        title,
        x_label: "steps per window",
        y_text: &|joules| units::joules(joules),
        y_max: None,
        x: XAxis::Powers(2.0),
    };
    in_figures(&plot, title, &series, &level)
}
