//! Power over time: readings of every domain, thinned to what a plot can show.

use std::collections::BTreeMap;

use crate::report::plot::{MOST_SERIES, Pieces, Plot, PlotError, XAxis, trimmed};
use crate::report::records::EnergyPoint;
use greengnn_energy::quality::Quality;

/// A line has at most this many points.
const MOST_BINS: usize = 240;
/// Readings further apart than this many bins have a gap between them.
const GAP_BINS: usize = 4;

/// The plot, none without a reading, and the name of each of its lines with the quality of its readings.
pub fn plot(points: &[EnergyPoint]) -> Result<(Option<String>, Vec<String>), PlotError> {
    let lines = lines(points);
    if lines.is_empty() {
        return Ok((None, Vec::new()));
    }
    let plot = Plot {
        title: "Energy over time: power by domain",
        x_label: "seconds since the start",
        y_text: &|watts| format!("{} W", trimmed(watts)),
        y_max: None,
        x: XAxis::Values,
    };
    let pieces: Vec<_> = lines.iter().map(|line| line.pieces.clone()).collect();
    let svg = plot.lines(&pieces)?;
    let names = lines
        .into_iter()
        .map(|line| format!("{} ({})", line.name, line.quality))
        .collect();
    Ok((Some(svg), names))
}

#[derive(Debug)]
struct Line {
    name: String,
    /// The worst of its readings.
    quality: Quality,
    pieces: Pieces,
}

/// The mean power of a domain per bin of time.
struct Domain {
    kind: String,
    quality: Quality,
    bins: Vec<Option<f64>>,
}

/// One line per domain, or, where that would be too many, one per kind of domain, summed.
fn lines(points: &[EnergyPoint]) -> Vec<Line> {
    let mut readings: BTreeMap<(&str, &str), Vec<(&EnergyPoint, f64)>> = BTreeMap::new();
    for point in points {
        let watts = point
            .watts
            .filter(|watts| watts.is_finite() && point.at_s >= 0.0 && point.at_s.is_finite());
        if let Some(watts) = watts.filter(|_| point.quality != Quality::Unavailable) {
            readings
                .entry((&point.host, &point.domain))
                .or_default()
                .push((point, watts));
        }
    }
    let Some(most) = readings.values().map(Vec::len).max() else {
        return Vec::new();
    };
    let end_s = readings
        .values()
        .flatten()
        .map(|(point, _)| point.at_s)
        .fold(0.0, f64::max);
    // Two readings a bin, so that a reading that is a little late leaves none empty.
    let bins = (most / 2).clamp(1, MOST_BINS);
    let width_s = if end_s > 0.0 { end_s / bins as f64 } else { 1.0 };

    let hosts = readings
        .keys()
        .map(|(host, _)| host)
        .collect::<std::collections::BTreeSet<_>>()
        .len();
    let mut domains: BTreeMap<String, Domain> = BTreeMap::new();
    for ((host, domain), readings) in readings {
        let name = if hosts > 1 {
            format!("{host} {domain}")
        } else {
            domain.to_string()
        };
        domains.insert(name, binned(&readings, bins, width_s));
    }
    let summed = if domains.len() > MOST_SERIES {
        by_kind(domains)
    } else {
        domains
    };
    let line = |(name, domain): (String, Domain)| Line {
        name,
        quality: domain.quality,
        pieces: pieces(&domain.bins, width_s),
    };
    summed.into_iter().take(MOST_SERIES).map(line).collect()
}

fn binned(readings: &[(&EnergyPoint, f64)], bins: usize, width_s: f64) -> Domain {
    let mut sums = vec![(0.0, 0u32); bins];
    let mut quality = Quality::Measured;
    let mut kind = String::new();
    for (point, watts) in readings {
        let bin = ((point.at_s / width_s) as usize).min(bins - 1);
        sums[bin].0 += watts;
        sums[bin].1 += 1;
        quality = quality.max(point.quality);
        kind.clone_from(&point.kind);
    }
    let mean = |(sum, count)| (count > 0).then(|| sum / f64::from(count));
    Domain {
        kind,
        quality,
        bins: bridged(sums.into_iter().map(mean).collect()),
    }
}

/// Fills a bin that lies between two readings not too far apart with the earlier one.
fn bridged(mut bins: Vec<Option<f64>>) -> Vec<Option<f64>> {
    let mut last: Option<usize> = None;
    for index in 0..bins.len() {
        if bins[index].is_none() {
            continue;
        }
        if let Some(last) = last.filter(|last| index - last <= GAP_BINS) {
            let held = bins[last];
            bins[last + 1..index].fill(held);
        }
        last = Some(index);
    }
    bins
}

fn by_kind(domains: BTreeMap<String, Domain>) -> BTreeMap<String, Domain> {
    let mut kinds: BTreeMap<String, (usize, Domain)> = BTreeMap::new();
    for domain in domains.into_values() {
        match kinds.get_mut(&domain.kind) {
            None => {
                kinds.insert(domain.kind.clone(), (1, domain));
            }
            Some((count, sum)) => {
                *count += 1;
                sum.quality = sum.quality.max(domain.quality);
                for (sum, part) in sum.bins.iter_mut().zip(domain.bins) {
                    if let Some(part) = part {
                        *sum = Some(sum.unwrap_or(0.0) + part);
                    }
                }
            }
        }
    }
    let named = kinds
        .into_iter()
        .map(|(kind, (count, sum))| (format!("{kind}, {count} domains"), sum));
    named.collect()
}

/// The points in the middle of their bins; an empty bin ends a piece.
fn pieces(bins: &[Option<f64>], width_s: f64) -> Pieces {
    let points: Vec<_> = bins
        .iter()
        .enumerate()
        .map(|(bin, watts)| watts.map(|watts| ((bin as f64 + 0.5) * width_s, watts)))
        .collect();
    let parts = points.split(Option::is_none).filter(|part| !part.is_empty());
    parts.map(|part| part.iter().flatten().copied().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_s: f64, host: &str, domain: &str, kind: &str, watts: Option<f64>) -> EnergyPoint {
        EnergyPoint {
            at_s,
            host: host.into(),
            domain: domain.into(),
            kind: kind.into(),
            watts,
            quality: Quality::Measured,
        }
    }

    #[test]
    fn a_line_per_domain_with_the_mean_of_each_bin() {
        let points: Vec<_> = (0..1_000)
            .flat_map(|tick| {
                let at_s = f64::from(tick) * 0.05;
                [
                    point(at_s, "a", "package-0", "cpu", Some(40.0)),
                    point(at_s, "a", "dram-0", "dram", Some(5.0)),
                ]
            })
            .collect();
        let lines = lines(&points);
        assert_eq!(
            lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>(),
            ["dram-0", "package-0"]
        );
        for (line, watts) in lines.iter().zip([5.0, 40.0]) {
            assert_eq!(line.pieces.len(), 1);
            assert_eq!(line.pieces[0].len(), MOST_BINS);
            assert!(line.pieces[0].iter().all(|point| (point.1 - watts).abs() < 1e-9));
        }
    }

    #[test]
    fn many_domains_are_summed_by_kind_and_the_worst_quality_wins() {
        let mut points = Vec::new();
        for tick in 0..100 {
            for host in 0..4 {
                let at_s = f64::from(tick) * 0.05;
                let host = format!("host-{host}");
                points.push(point(at_s, &host, "package-0", "cpu", Some(10.0)));
                points.push(point(at_s, &host, "gpu-0", "gpu", Some(100.0)));
            }
        }
        points[0].quality = Quality::Estimated;
        let lines = lines(&points);
        let names: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.quality)).collect();
        assert_eq!(
            names,
            [
                ("cpu, 4 domains", Quality::Estimated),
                ("gpu, 4 domains", Quality::Measured)
            ]
        );
        assert!(lines[0].pieces[0].iter().all(|point| (point.1 - 40.0).abs() < 1e-9));
        assert!(lines[1].pieces[0].iter().all(|point| (point.1 - 400.0).abs() < 1e-9));
    }

    #[test]
    fn a_silence_is_a_gap_and_a_late_reading_is_not() {
        let ticks = (0..200).filter(|tick| !(80..120).contains(tick) && tick % 9 != 0);
        let points: Vec<_> = ticks
            .map(|tick| point(f64::from(tick), "a", "package-0", "cpu", Some(1.0)))
            .collect();
        assert_eq!(lines(&points)[0].pieces.len(), 2);
    }

    #[test]
    fn domains_of_several_hosts_are_told_apart() {
        let points = [
            point(0.0, "a", "x", "cpu", Some(1.0)),
            point(0.0, "b", "x", "cpu", Some(2.0)),
        ];
        let names: Vec<_> = lines(&points).into_iter().map(|line| line.name).collect();
        assert_eq!(names, ["a x", "b x"]);
    }

    #[test]
    fn what_could_not_be_read_is_not_drawn_as_zero() {
        let mut unavailable = point(0.0, "a", "gpu-0", "gpu", Some(0.0));
        unavailable.quality = Quality::Unavailable;
        let points = [point(0.0, "a", "package-0", "cpu", None), unavailable];
        assert!(lines(&points).is_empty());
        let (svg, names) = plot(&points).unwrap();
        assert!(svg.is_none() && names.is_empty());
    }
}
