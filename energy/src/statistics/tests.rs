use proptest::prelude::*;

use super::*;

fn figures(quality: Quality, joules: &[f64]) -> Vec<Figure> {
    joules.iter().map(|&joules| Figure { joules, quality }).collect()
}

fn sample(quality: Quality, joules: &[f64]) -> Sample {
    Sample::new(&figures(quality, joules)).unwrap()
}

fn measured(joules: &[f64]) -> Sample {
    sample(Quality::Measured, joules)
}

#[test]
fn a_mean_has_the_interval_of_student() {
    let mean = measured(&[10.0, 12.0, 14.0, 16.0, 18.0]).mean();
    // The standard deviation is sqrt(10), of the mean sqrt(2), times 2.776445.
    assert_eq!((mean.runs, mean.mean_j), (5, 14.0));
    assert!((mean.half_width_j.unwrap() - 2.776_445_105_2 * 2_f64.sqrt()).abs() < 1e-9);
    assert_eq!(mean.to_string(), "14.0 ± 3.9 J (5 runs, 95 %)");
}

#[test]
fn one_run_has_no_interval_and_distinguishes_nothing() {
    let one = measured(&[10.0]);
    assert_eq!(one.mean().half_width_j, None);
    assert_eq!(one.mean().to_string(), "10.0 J (one run, no interval)");
    let saving = saving(&one, &measured(&[1.0, 1.1])).unwrap();
    assert_eq!(
        (saving.verdict, saving.half_width_j),
        (Verdict::NotDistinguishable, None)
    );
    assert_eq!(
        saving.to_string(),
        "not distinguishable (too few runs for an interval; measured)"
    );
}

#[test]
fn a_saving_beyond_the_interval_is_one() {
    let (dear, cheap) = (measured(&[100.0, 102.0, 98.0]), measured(&[50.0, 51.0, 49.0]));
    let less = saving(&dear, &cheap).unwrap();
    assert_eq!((less.verdict, less.saved_j, less.share), (Verdict::Saves, 50.0, 0.5));
    // Variances 4 and 1 over 3 runs each: 2.94 degrees of freedom.
    let half = less.half_width_j.unwrap();
    assert!((half - 3.23 * (5.0_f64 / 3.0).sqrt()).abs() < 0.05, "{half}");
    let more = saving(&cheap, &dear).unwrap();
    assert_eq!((more.verdict, more.share), (Verdict::Costs, -1.0));
    assert!(
        less.to_string()
            .starts_with("50.0 % less energy (50.0 ± 4.2 J, 95 %; measured)"),
        "{less}"
    );
    assert!(more.to_string().starts_with("100.0 % more energy"), "{more}");
}

#[test]
fn a_difference_inside_the_interval_is_none() {
    let saving = saving(&measured(&[100.0, 110.0, 90.0]), &measured(&[95.0, 104.0, 86.0])).unwrap();
    assert_eq!(saving.verdict, Verdict::NotDistinguishable);
    assert!(saving.to_string().starts_with("not distinguishable"));
}

#[test]
fn runs_that_are_all_the_same_differ_by_nothing_or_surely() {
    let same = saving(&measured(&[5.0, 5.0]), &measured(&[5.0, 5.0])).unwrap();
    assert_eq!(
        (same.verdict, same.half_width_j),
        (Verdict::NotDistinguishable, Some(0.0))
    );
    let less = saving(&measured(&[5.0, 5.0]), &measured(&[4.0, 4.0])).unwrap();
    assert_eq!(less.verdict, Verdict::Saves);
}

#[test]
fn pairs_see_what_a_drift_hides() {
    // The machine warms up: every run takes 10 J more than the one before, and the candidate always 2 J less.
    let baseline = measured(&[100.0, 110.0, 120.0, 130.0, 140.0]);
    let candidate = measured(&[98.0, 107.9, 118.1, 128.0, 138.0]);
    assert_eq!(
        saving(&baseline, &candidate).unwrap().verdict,
        Verdict::NotDistinguishable
    );
    let paired = paired_saving(&baseline, &candidate).unwrap();
    assert_eq!(paired.verdict, Verdict::Saves);
    assert!((paired.saved_j - 2.0).abs() < 1e-9 && paired.half_width_j.unwrap() < 0.2);
    assert_eq!(
        paired_saving(&baseline, &measured(&[1.0])),
        Err(StatisticsError::Unpaired {
            baseline: 5,
            candidate: 1
        })
    );
}

#[test]
fn qualities_that_differ_are_compared_only_when_asked_for_by_name() {
    let (measured, estimated) = (
        measured(&[100.0, 101.0, 99.0]),
        sample(Quality::Estimated, &[50.0, 51.0, 49.0]),
    );
    let refused = StatisticsError::DifferentQuality {
        baseline: Quality::Measured,
        candidate: Quality::Estimated,
    };
    assert_eq!(saving(&measured, &estimated), Err(refused));
    assert_eq!(paired_saving(&measured, &estimated), Err(refused));
    let text = refused.to_string();
    assert!(
        text.contains("measured") && text.contains("estimated") && text.contains("mixed quality"),
        "{text}"
    );
    let asked_for = saving_of_mixed_quality(&measured, &estimated).unwrap();
    assert_eq!(asked_for.verdict, Verdict::Saves);
    assert!(
        asked_for.to_string().ends_with("estimated against measured)"),
        "{asked_for}"
    );
}

#[test]
fn a_sample_takes_its_worst_quality_only_when_asked_for_by_name() {
    let mut mixed = figures(Quality::Measured, &[1.0, 2.0]);
    mixed.extend(figures(Quality::Integrated, &[3.0]));
    assert_eq!(
        Sample::new(&mixed),
        Err(StatisticsError::MixedSample {
            best: Quality::Measured,
            worst: Quality::Integrated
        })
    );
    let asked_for = Sample::of_mixed_quality(&mixed).unwrap();
    assert_eq!(
        (asked_for.quality(), asked_for.mean().mean_j),
        (Quality::Integrated, 2.0)
    );
}

#[test]
fn what_is_no_energy_is_an_error() {
    assert_eq!(Sample::new(&[]), Err(StatisticsError::NoFigure));
    let unavailable = figures(Quality::Unavailable, &[0.0]);
    assert_eq!(Sample::new(&unavailable), Err(StatisticsError::Unavailable));
    assert_eq!(
        Sample::of_mixed_quality(&unavailable),
        Err(StatisticsError::Unavailable)
    );
    let infinite = figures(Quality::Measured, &[f64::INFINITY]);
    assert!(matches!(Sample::new(&infinite), Err(StatisticsError::NotFinite { .. })));
    let nothing = measured(&[0.0, 0.0]);
    assert_eq!(
        saving(&nothing, &measured(&[1.0])),
        Err(StatisticsError::NoBaseline { mean_j: 0.0 })
    );
}

proptest! {
    /// Nothing panics, and the verdict is that of the interval.
    #[test]
    fn a_verdict_follows_from_its_interval(
        baseline in prop::collection::vec(0.1..1e6_f64, 1..8),
        candidate in prop::collection::vec(0.1..1e6_f64, 1..8),
    ) {
        let saving = saving(&measured(&baseline), &measured(&candidate)).unwrap();
        let distinguished = saving.half_width_j.is_some_and(|half| saving.saved_j.abs() > half);
        prop_assert_eq!(saving.verdict != Verdict::NotDistinguishable, distinguished);
        if distinguished {
            prop_assert_eq!(saving.verdict == Verdict::Saves, saving.saved_j > 0.0);
        }
        prop_assert_eq!(saving.half_width_j.is_none(), baseline.len() < 2 || candidate.len() < 2);
    }
}
