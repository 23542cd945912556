use proptest::prelude::*;

use super::*;
use crate::simulator::rank_windows;

const WINDOWS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

fn here() -> Fingerprint {
    Fingerprint::of_this_computer(Vec::new())
}

fn cost(mean: f64) -> Option<MeasuredCost> {
    Some(MeasuredCost { mean, half_width: 0.0 })
}

/// A setting whose energies are `physical`, and that were measured as `measured`. Stalls are `stalls`.
fn setting(physical: &[f64], stalls: &[f64], measured: &[Option<f64>]) -> Setting {
    let candidates = WINDOWS.iter().enumerate().map(|(index, window)| Candidate {
        window: *window,
        physical_j: physical[index],
        features: [f64::from(*window), 0.0, stalls[index], 1.0],
        measured: measured[index].and_then(cost),
    });
    Setting {
        name: "graph/1000".to_owned(),
        steps: 100,
        candidates: candidates.collect(),
    }
}

/// The simulator misses that a stall costs energy.
fn with_hidden_stalls() -> Setting {
    let physical = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
    let stalls = [0.0, 0.0, 0.0, 1.0, 2.0, 5.0, 9.0];
    let measured: Vec<Option<f64>> = physical
        .iter()
        .zip(stalls)
        .map(|(joules, stall)| Some(joules + stall))
        .collect();
    setting(&physical, &stalls, &measured)
}

#[test]
fn what_the_simulator_lacks_is_learnt_and_used() {
    let setting = with_hidden_stalls();
    let calibration = Calibration::learn(
        std::slice::from_ref(&setting),
        CalibrationOptions::default(),
        here(),
        Mode::Plan,
    )
    .unwrap();
    assert!(calibration.is_used, "{calibration:?}");
    assert!(calibration.leave_one_out.learnt_wrong < calibration.leave_one_out.analytic_wrong);
    assert!(calibration.beta[2] > 0.0);
    let scores = calibration.score(&setting).unwrap();
    let best = scores.iter().copied().fold(f64::INFINITY, f64::min);
    let measured_best = 5.0;
    let pick = scores.iter().position(|score| *score == best).unwrap();
    assert!(
        setting.candidates[pick].measured.unwrap().mean <= measured_best * 1.001,
        "{scores:?}"
    );
}

#[test]
fn weights_that_do_no_better_are_not_used() {
    let physical = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
    let setting = setting(&physical, &[0.0; 7], &physical.map(Some));
    let calibration = Calibration::learn(
        std::slice::from_ref(&setting),
        CalibrationOptions::default(),
        here(),
        Mode::Plan,
    )
    .unwrap();
    assert!(!calibration.is_used);
    assert_eq!(calibration.leave_one_out.analytic_wrong, 0);
    let scores = calibration.score(&setting).unwrap();
    assert!(scores.windows(2).all(|pair| pair[0] > pair[1]), "{scores:?}");
}

#[test]
fn windows_that_cannot_be_told_apart_say_nothing() {
    let mut setting = setting(&[3.0; 7], &[0.0; 7], &[None; 7]);
    let overlapping = |mean| Some(MeasuredCost { mean, half_width: 0.3 });
    setting.candidates[0].measured = overlapping(1.0);
    setting.candidates[1].measured = overlapping(1.5);
    let none = Calibration::learn(
        std::slice::from_ref(&setting),
        CalibrationOptions::default(),
        here(),
        Mode::Plan,
    );
    assert!(matches!(none, Err(CalibrationError::NothingToLearn)), "{none:?}");
    // Windows of one program are one, whatever was measured.
    setting.steps = 1;
    setting.candidates[1].measured = overlapping(9.0);
    let none = Calibration::learn(&[setting], CalibrationOptions::default(), here(), Mode::Plan);
    assert!(matches!(none, Err(CalibrationError::NothingToLearn)), "{none:?}");
}

#[test]
fn a_bias_of_a_window_is_learnt_only_when_asked_for() {
    let setting = with_hidden_stalls();
    let options = CalibrationOptions {
        window_ridge: Some(0.1),
        ..CalibrationOptions::default()
    };
    let biased = Calibration::learn(std::slice::from_ref(&setting), options, here(), Mode::Plan).unwrap();
    assert_eq!(biased.gamma.keys().copied().collect::<Vec<_>>(), WINDOWS);
    let plain = Calibration::learn(&[setting], CalibrationOptions::default(), here(), Mode::Plan).unwrap();
    assert!(plain.gamma.is_empty());
}

#[test]
fn figures_that_are_not_numbers_are_refused_by_name() {
    let mut setting = with_hidden_stalls();
    setting.candidates[3].features[2] = f64::NAN;
    let refused = Calibration::learn(&[setting], CalibrationOptions::default(), here(), Mode::Plan).unwrap_err();
    assert!(
        refused.to_string().starts_with("graph/1000, window 8: stall_s is NaN"),
        "{refused}"
    );
}

#[test]
fn a_calibration_is_for_its_own_hardware_and_mode_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calibration.json");
    let calibration = Calibration::learn(
        &[with_hidden_stalls()],
        CalibrationOptions::default(),
        here(),
        Mode::Plan,
    )
    .unwrap();
    calibration.save(&path).unwrap();
    assert_eq!(Calibration::read(&path).unwrap(), calibration);
    let elsewhere = Fingerprint {
        cores: here().cores + 1,
        ..here()
    };
    let refused = calibration.check(&elsewhere, Mode::Plan).unwrap_err().to_string();
    assert!(refused.contains("other hardware (cores:"), "{refused}");
    assert!(calibration.check(&here(), Mode::Plan).is_ok());
    assert!(matches!(
        calibration.check(&here(), Mode::Paper),
        Err(CalibrationError::OtherMode)
    ));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"format_version\": 2", "\"format_version\": 9")).unwrap();
    assert!(matches!(
        Calibration::read(&path),
        Err(CalibrationError::OtherFormat { found: 9 })
    ));
}

fn order(scores: &[f64]) -> Vec<u32> {
    let costs: Vec<(u32, f64)> = WINDOWS.iter().copied().zip(scores.iter().copied()).collect();
    let groups = rank_windows(&costs, 100).unwrap();
    groups.into_iter().flat_map(|group| group.windows).collect()
}

proptest! {
    #[test]
    fn without_weights_the_order_is_the_analytic_one_in_any_unit(
        physical in prop::collection::vec(1.0f64..1e6, 7),
        stalls in prop::collection::vec(0.0f64..10.0, 7),
        unit in prop::sample::select(vec![1e-3, 1.0, 1e3, 1e6]),
    ) {
        let mut calibration =
            Calibration::learn(&[with_hidden_stalls()], CalibrationOptions::default(), here(), Mode::Plan).unwrap();
        let scaled: Vec<f64> = physical.iter().map(|joules| joules * unit).collect();
        let scores = calibration.score(&setting(&scaled, &stalls, &[None; 7])).unwrap();
        // With weights as well: what was learnt has no unit.
        prop_assert_eq!(order(&scores), order(&calibration.score(&setting(&physical, &stalls, &[None; 7])).unwrap()));
        calibration.beta = [0.0; FEATURES];
        let analytic = calibration.score(&setting(&physical, &stalls, &[None; 7])).unwrap();
        prop_assert_eq!(order(&analytic), order(&physical));
    }

    #[test]
    fn training_never_makes_the_loss_worse_than_no_weights(
        offsets in prop::collection::vec(-3.0f64..3.0, 1..20),
        along in prop::collection::vec(-2.0f64..2.0, 80),
    ) {
        let pairs: Vec<Pair> = offsets.iter().enumerate().map(|(index, offset)| Pair {
            better: 1,
            worse: 2,
            offset: *offset,
            z: std::array::from_fn(|feature| along[index * FEATURES + feature]),
        }).collect();
        let weights = fit(&pairs, &[], CalibrationOptions::default());
        let loss = |margin: f64| (-margin).exp().ln_1p();
        let before: f64 = pairs.iter().map(|pair| loss(pair.offset)).sum();
        let after: f64 = pairs.iter().map(|pair| loss(weights.margin(pair, &[]))).sum();
        prop_assert!(after <= before + 1e-9);
        prop_assert!(weights.beta.iter().all(|weight| weight.is_finite()));
    }
}
