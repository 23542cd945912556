use greengnn_energy::quality::Quality;

use super::*;
use crate::report::summary::tests::sample;

fn point(at_s: f64, domain: &str, watts: f64) -> EnergyPoint {
    EnergyPoint {
        at_s,
        host: "host".into(),
        domain: domain.into(),
        kind: "cpu".into(),
        watts: Some(watts),
        quality: Quality::Estimated,
    }
}

fn page(summary: &RunSummary, energy: &[EnergyPoint]) -> String {
    let report = Report {
        title: "cora <&> friends",
        summary,
        energy,
        config: "policy = \"bulk\"\n",
    };
    render(report).unwrap()
}

fn sample_page() -> String {
    let energy: Vec<_> = (0..40)
        .map(|tick| point(f64::from(tick) * 0.05, "package-0", 30.0))
        .collect();
    page(&sample(), &energy)
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let html = sample_page();
    for reference in [
        "http://", "https://", "src=", "href=", "url(", "@import", "<script", "<link",
    ] {
        assert!(!html.contains(reference), "{reference}");
    }
    assert!(html.starts_with("<!doctype html>"));
    assert!(html.trim_end().ends_with("</html>"));
}

#[test]
fn every_plot_is_there() {
    let html = sample_page();
    for title in [
        "Training loss",
        "Validation accuracy",
        "Energy over time: power by domain",
        "Share of time spent waiting",
        "Bytes per epoch",
        "Requests per epoch",
    ] {
        assert!(html.contains(&format!("<figcaption>{title}</figcaption>")), "{title}");
        assert!(html.contains(&format!("aria-label=\"{title}\"")), "{title}");
    }
    assert_eq!(html.matches("<svg").count(), 6);
    assert_eq!(html.matches("</svg>").count(), 6);
}

#[test]
fn every_estimated_joule_says_so() {
    let html = sample_page();
    assert!(html.contains("<td>300 J estimated</td>"));
    assert!(html.contains("<td>380 J estimated</td>"));
    assert!(html.contains("<b>380 J</b><span>energy of the whole run, estimated</span>"));
    assert!(html.contains("package-0 (estimated)"));
    assert!(html.contains("<b>Energy is estimated</b>"));
    assert!(html.contains("The machines draw 12 W idle (estimated, over 5.00 s)"));
}

#[test]
fn energy_that_is_not_known_is_said_to_be_unavailable_and_never_zero() {
    let mut summary = sample();
    for period in summary
        .epochs
        .iter_mut()
        .map(|epoch| &mut epoch.period)
        .chain([&mut summary.setup])
    {
        period.energy_j = None;
        period.energy_quality = Quality::Unavailable;
    }
    let html = page(&summary, &[]);
    assert!(html.contains("<b>unavailable</b><span>energy of the whole run</span>"));
    assert!(html.contains("Energy is unavailable: no domain gave a reading."));
    assert!(html.contains("<b>Energy is unavailable</b>"));
    assert!(!html.contains(">0 J") && !html.contains(" 0 J"));
    assert_eq!(html.matches("<svg").count(), 5);
}

#[test]
fn the_page_says_what_the_run_was_what_bound_it_and_whether_it_went_to_plan() {
    let mut summary = sample();
    summary.bound_by = "bound by bytes: <3".into();
    let html = page(&summary, &[]);
    assert!(html.contains("<h1>cora &lt;&amp;&gt; friends</h1>"));
    assert!(
        html.contains("bulk, window 16, budget 5,000 rows a rank, on cpu: 2 epochs, 4 ranks in 4 machines, seed 1.")
    );
    assert!(html.contains("Bound by bytes: &lt;3"));
    assert!(html.contains("Requests and rows counted where they were served equal those planned, in every epoch."));
    assert!(html.contains("policy = &quot;bulk&quot;"));
    assert!(!html.contains("verdict off\"><b>Planned"));

    summary.epochs[1].planned.feature_rows += 1;
    let html = page(&summary, &[]);
    assert!(html.contains("<div class=\"card verdict off\"><b>Planned"));
    assert!(html.contains("differ from those planned in epoch 2."));
}

#[test]
fn a_run_without_epochs_or_accuracy_has_a_page_too() {
    let mut summary = sample();
    summary.test_accuracy = None;
    for epoch in &mut summary.epochs {
        epoch.valid_accuracy = None;
        epoch.loss = f64::NAN;
    }
    assert!(page(&summary, &[]).contains("No validation was run."));
    summary.epochs.clear();
    let html = page(&summary, &[]);
    assert!(html.contains("No epoch was trained."));
    assert!(!html.contains("<svg"));
}
