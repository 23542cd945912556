//! What stands in a report about the run's energy: a banner that says how good the figures are and how they were obtained,
//! and the joules of every domain in every part of the run.

use std::collections::BTreeMap;
use std::fmt::Write;

use greengnn_energy::device::DomainJoules;
use greengnn_energy::domain::{DomainKey, DomainKind};
use greengnn_energy::quality::Quality;
use greengnn_energy::source::SourceReport;

use super::{cells_html, escape, nothing, table_html};
use crate::report::summary::{MeterSources, PeriodSummary, RunSummary};
use crate::report::units;

/// The quality of the run's energy, what it means, and what the meters read.
pub fn banner(summary: &RunSummary, whole: &PeriodSummary) -> String {
    let quality = whole.energy_j.map_or(Quality::Unavailable, |_| whole.energy_quality);
    let off = if quality > Quality::Integrated { " off" } else { "" };
    let mut html = format!(
        "<div class=\"card verdict{off}\" id=\"energy-quality\"><b>Energy is {quality}</b>{}",
        meaning(quality)
    );
    for host in &summary.meters {
        for source in &host.sources {
            let _ = write!(html, "<p class=\"soft\">{}</p>", escape(&method(source, host, summary)));
            for warning in &source.warnings {
                let _ = write!(html, "<p><b>Doubtful.</b> {}</p>", escape(&warning.to_string()));
            }
        }
    }
    html.push_str("</div>");
    html
}

/// What the quality of the run's energy means.
fn meaning(quality: Quality) -> &'static str {
    match quality {
        Quality::Measured => ": read from energy counters of the hardware.",
        Quality::Integrated => ": summed up from power readings of the hardware.",
        Quality::Virtual => ": a share that a hypervisor apportioned to this machine.",
        Quality::Estimated => {
            ": computed from CPU use by a model, since no counter could be read for at least a part of the run. CPU \
             seconds, bytes, requests and rows are exact."
        }
        Quality::Unavailable => {
            ": at least a part of the run has no figure, which does not mean that it is 0. CPU seconds, bytes, requests \
             and rows are exact."
        }
    }
}

/// What one source gave, or why it gave nothing; with its machine, where there are several.
fn method(source: &SourceReport, host: &MeterSources, summary: &RunSummary) -> String {
    let whose = match summary.meters.len() {
        0 | 1 => String::new(),
        _ => format!("{}: ", host.machine),
    };
    format!("{whose}{} {}: {}", source.source, source.quality, source.detail)
}

/// The joules of a domain in the parts of a run, by the part's place.
type Figures = BTreeMap<usize, String>;

/// A table with a line per domain and a column per part of the run.
pub fn domains(summary: &RunSummary, whole: &PeriodSummary) -> String {
    let training = summary.training();
    let idle = summary.idle.as_ref().map(|part| ("idle", &part.energy_by_domain));
    let probing = summary
        .probing
        .as_ref()
        .map(|part| ("of it probing", &part.energy_by_domain));
    let first_epoch = summary.presampling.first_epoch.as_ref();
    let presampling = first_epoch.map(|part| ("of it presampling", &part.energy_by_domain));
    let parts: Vec<(&str, &Vec<DomainJoules>)> = idle
        .into_iter()
        .chain([("set-up", &summary.setup.energy_by_domain)])
        .chain(probing)
        .chain(presampling)
        .chain([
            ("training", &training.energy_by_domain),
            ("evaluation", &summary.evaluation.energy_by_domain),
            ("whole run", &whole.energy_by_domain),
        ])
        .collect();
    let mut lines: BTreeMap<(bool, &DomainKey), (DomainKind, Figures)> = BTreeMap::new();
    for (place, (_, domains)) in parts.iter().enumerate() {
        for domain in *domains {
            let line = lines.entry((!domain.counted, &domain.key));
            let (_, figures) = line.or_insert_with(|| (domain.kind, Figures::new()));
            figures.insert(place, units::energy(domain.energy.joules, domain.energy.quality));
        }
    }
    if lines.is_empty() {
        return nothing("Energy is unavailable: no domain gave a reading.");
    }
    let hosts = || lines.keys().map(|(_, key)| &key.host);
    let several_hosts = hosts().any(|host| Some(host) != hosts().next());
    let any_shown = lines.keys().any(|(shown, _)| *shown);
    let rows = lines
        .iter()
        .fold(String::new(), |mut html, ((shown, key), (kind, figures))| {
            let mut name = key.domain.clone();
            if several_hosts {
                name = format!("{} {name}", key.host);
            }
            let kind = if *shown {
                format!("{}, not summed", kind.name())
            } else {
                kind.name().to_owned()
            };
            let figure = |place| figures.get(&place).cloned().unwrap_or_else(|| units::NONE.to_owned());
            let cells = [name, kind].into_iter().chain((0..parts.len()).map(figure));
            let _ = write!(html, "<tr>{}</tr>", cells_html("td", cells));
            html
        });
    let names = parts.iter().map(|(name, _)| *name);
    let mut html = table_html(["domain", "kind"].into_iter().chain(names), &rows);
    let mut say = |words: &str| html.push_str(&format!("<p class=\"soft\">{words}</p>"));
    if any_shown {
        say("Domains that are not summed lie inside others (cores, uncore) or around them (psys).");
    }
    say(&presampling_words(summary));
    html
}

/// What is known of presampling, which a meter cannot tell from the training beside which it runs.
fn presampling_words(summary: &RunSummary) -> String {
    let mut words = "Presampling has joules of its own only for the first epoch, which is sampled before training. The other \
                     epochs are sampled beside training, where no meter can tell the two apart, and their joules are in \
                     those of training."
        .to_owned();
    if summary.presampling.cpu_s > 0.0 {
        let _ = write!(
            words,
            " Presampling of all epochs took {} of CPU time on its own threads, of {} in all.",
            units::seconds(summary.presampling.cpu_s),
            units::seconds(summary.whole_run().cpu_s)
        );
    }
    words
}

#[cfg(test)]
mod tests {
    use greengnn_energy::source::SourceWarning;

    use super::*;
    use crate::report::summary::tests::sample;

    #[test]
    fn the_banner_names_the_quality_the_method_and_every_doubt() {
        let mut summary = sample();
        let text = banner(&summary, &summary.whole_run());
        assert!(
            text.contains("<b>Energy is estimated</b>: computed from CPU use by a model"),
            "{text}"
        );
        assert!(text.contains("verdict off"));
        assert!(
            text.contains("estimate estimated: from the use of 2 hardware threads"),
            "{text}"
        );
        assert!(text.contains("rapl unavailable: no powercap zone"), "{text}");

        summary.meters[0].sources[0].warnings = vec![SourceWarning::SocketStandsStill {
            domain: "package-<1>".into(),
        }];
        let mut other = summary.meters[0].clone();
        other.machine = "machine-2".into();
        summary.meters.push(other);
        let text = banner(&summary, &summary.whole_run());
        assert!(text.contains("machine-2: rapl unavailable"), "{text}");
        assert!(text.contains("package-&lt;1&gt;: its counter never moves"), "{text}");

        for epoch in &mut summary.epochs {
            epoch.period.energy_quality = Quality::Measured;
        }
        let text = banner(&summary, &summary.whole_run());
        assert!(
            text.contains("<b>Energy is measured</b>: read from energy counters"),
            "{text}"
        );
        assert!(!text.contains("verdict off"));
        summary.setup.energy_j = None;
        assert!(banner(&summary, &summary.whole_run()).contains("<b>Energy is unavailable</b>"));
    }

    #[test]
    fn every_domain_has_a_line_with_each_part_of_the_run() {
        let summary = sample();
        let html = domains(&summary, &summary.whole_run());
        let header: String = [
            "domain",
            "kind",
            "idle",
            "set-up",
            "of it presampling",
            "training",
            "evaluation",
            "whole run",
        ]
        .map(|name| format!("<th>{name}</th>"))
        .concat();
        assert!(html.contains(&header), "{html}");
        let line: String = [
            "package-0",
            "package",
            "60 J estimated",
            "50 J measured",
            "40 J measured",
            "300 J estimated",
            "30 J measured",
            "380 J estimated",
        ]
        .map(|cell| format!("<td>{cell}</td>"))
        .concat();
        assert!(html.contains(&line), "{html}");
        assert!(html.contains("<td>psys</td><td>psys, not summed</td>"), "{html}");
        assert!(html.contains("875 ms of CPU time"), "{html}");
    }

    #[test]
    fn a_domain_without_a_figure_is_unavailable_and_one_that_was_not_there_is_neither() {
        let mut summary = sample();
        summary.setup.energy_by_domain[0].energy = Default::default();
        summary.evaluation.energy_by_domain.clear();
        let html = domains(&summary, &summary.whole_run());
        assert!(html.contains("<td>unavailable</td><td>40 J measured</td>"), "{html}");
        assert!(html.contains("<td>300 J estimated</td><td>-</td>"), "{html}");
        assert!(!html.contains(">0 J"), "{html}");
    }
}
