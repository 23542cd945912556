//! Figures 7, 8 and 10 of the paper: energy in all, energy by device, and the speed-up of an epoch.

use super::super::Comparison;
use super::super::changes::Change;
use super::super::standings::Row;
use super::{baseline, blocks, label, not_drawn, one_quality};
use crate::report::html::figure;
use crate::report::plot::{Bar, BarChart, PlotError};
use crate::report::units;

const DEVICES: [(&str, &str); 3] = [("gpu_j", "GPU"), ("cpu_j", "CPU"), ("dram_j", "memory")];

/// Figures 7 and 8.
pub fn energies(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    for (batch_size, block) in blocks(comparison) {
        html.push_str(&totals(comparison, batch_size, block)?);
        html.push_str(&by_device(comparison, batch_size, block)?);
    }
    Ok(html)
}

/// Energy of a run with its interval, and how it differs from that of `on-demand`.
fn totals(comparison: &Comparison, batch_size: u32, block: &[Row]) -> Result<String, PlotError> {
    let title = format!("As Figure 7: energy of a run, batch size {batch_size}");
    let Some(quality) = one_quality(block, "total_j") else {
        return Ok(not_drawn(&title));
    };
    let bars: Vec<_> = block
        .iter()
        .map(|row| Bar {
            label: label(comparison, row),
            pieces: row.mean("total_j").into_iter().collect(),
            half_width: half_width(row, "total_j"),
            note: change(row, "total_j").map_or_else(String::new, Change::text),
        })
        .collect();
    let title = format!("{title} (energy {quality})");
    let chart = BarChart {
        title: &title,
        x_label: "energy with its 95 % interval; line: on-demand",
        x_text: &|joules| units::joules(joules),
        mark: baseline(block).and_then(|row| row.mean("total_j")),
    };
    Ok(figure(&title, &[], &chart.draw(&bars)?))
}

/// Energy of GPUs, processors and memory, next to each other; and how that of the GPUs differs from that under `on-demand`.
fn by_device(comparison: &Comparison, batch_size: u32, block: &[Row]) -> Result<String, PlotError> {
    let metered: Vec<_> = DEVICES
        .into_iter()
        .filter(|(name, _)| {
            block
                .iter()
                .any(|row| row.figure(name).is_some_and(|figure| figure.quality.is_some()))
        })
        .collect();
    let has_gpu = metered.iter().any(|(name, _)| *name == "gpu_j");
    let no_gpu = if has_gpu { "" } else { "; no GPU was metered" };
    let title = format!("As Figure 8: energy by device, batch size {batch_size}{no_gpu}");
    let qualities: Option<Vec<_>> = metered
        .iter()
        .map(|(name, device)| Some(format!("{device} {}", one_quality(block, name)?)))
        .collect();
    let Some(qualities) = qualities.filter(|qualities| !qualities.is_empty()) else {
        return Ok(not_drawn(&title));
    };
    let bars: Vec<_> = block
        .iter()
        .map(|row| Bar {
            label: label(comparison, row),
            pieces: metered
                .iter()
                .map(|(name, _)| row.mean(name).unwrap_or(f64::NAN))
                .collect(),
            half_width: None,
            note: change(row, "gpu_j")
                .filter(|_| has_gpu)
                .map_or_else(String::new, Change::text),
        })
        .collect();
    let chart = BarChart {
        title: &title,
        x_label: "energy",
        x_text: &|joules| units::joules(joules),
        mark: None,
    };
    let key: Vec<_> = qualities.iter().map(String::as_str).collect();
    Ok(figure(&title, &key, &chart.draw(&bars)?))
}

/// Figure 10: how many times as fast as under `on-demand` an epoch is.
pub fn speed_ups(comparison: &Comparison) -> Result<String, PlotError> {
    let mut html = String::new();
    for (batch_size, block) in blocks(comparison) {
        let Some(base) = baseline(block).and_then(|row| row.mean("epoch_s")) else {
            continue;
        };
        let title = format!("As Figure 10: speed-up of an epoch against on-demand, batch size {batch_size}");
        let bar = |row: &Row| {
            let factor = base / row.mean("epoch_s").filter(|own| *own > 0.0)?;
            let told_apart = change(row, "epoch_s").is_none_or(|change| change.distinguishable != Some(false));
            let mark = if told_apart { "" } else { " n.d." };
            Some(Bar {
                label: label(comparison, row),
                pieces: vec![factor],
                half_width: None,
                note: format!("{factor:.2}x{mark}"),
            })
        };
        let bars: Vec<_> = block.iter().filter_map(bar).collect();
        let chart = BarChart {
            title: &title,
            x_label: "times as fast as on-demand; n.d.: not distinguishable",
            x_text: &|factor| format!("{factor:.1}x"),
            mark: Some(1.0),
        };
        html.push_str(&figure(&title, &[], &chart.draw(&bars)?));
    }
    Ok(html)
}

fn half_width(row: &Row, name: &str) -> Option<f64> {
    row.figure(name)?.estimate?.half_width
}

fn change<'a>(row: &'a Row, name: &str) -> Option<&'a Change> {
    row.changes.iter().find(|change| change.name == name)
}
