use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::*;
use crate::clock::ManualClock;

/// What a GPU answers.
#[derive(Clone)]
struct Answer {
    energy_mj: Result<u64, GpuError>,
    power_mw: Result<u32, GpuError>,
}

/// GPUs whose answers a test sets.
#[derive(Clone, Default)]
struct Fake {
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    broken: Option<GpuError>,
}

impl Fake {
    fn set(&self, uuid: &str, energy_mj: Result<u64, GpuError>, power_mw: Result<u32, GpuError>) {
        self.answers
            .lock()
            .unwrap()
            .insert(uuid.to_owned(), Answer { energy_mj, power_mw });
    }

    fn answer(&self, uuid: &str) -> Answer {
        self.answers.lock().unwrap()[uuid].clone()
    }
}

impl GpuReader for Fake {
    fn gpus(&mut self) -> Result<Vec<GpuInfo>, GpuError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let info = |uuid: &String| GpuInfo {
            uuid: uuid.clone(),
            name: "Fake".to_owned(),
            split: uuid.ends_with("mig"),
        };
        Ok(self.answers.lock().unwrap().keys().map(info).collect())
    }

    fn energy_mj(&mut self, uuid: &str) -> Result<u64, GpuError> {
        self.answer(uuid).energy_mj
    }

    fn power_mw(&mut self, uuid: &str) -> Result<u32, GpuError> {
        self.answer(uuid).power_mw
    }
}

/// Samples once, and gives the states as (domain, quality, joules, gap, live).
fn step(gpus: &mut Gpus, clock: &ManualClock, at_s: f64) -> Vec<(String, Quality, f64, f64, bool)> {
    clock.set(at_s);
    gpus.sample(clock, true);
    let mut states = Vec::new();
    gpus.states(at_s, &mut states);
    states
        .into_iter()
        .map(|state| (state.domain, state.quality, state.joules, state.gap_s, state.live))
        .collect()
}

#[test]
fn a_gpu_with_a_counter_is_measured_and_its_power_is_kept_beside() {
    let fake = Fake::default();
    fake.set("GPU-a", Ok(7_000), Ok(100_000));
    let mut gpus = Gpus::open(Box::new(fake.clone())).unwrap();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    fake.set("GPU-a", Ok(57_000), Ok(100_000));
    let states = step(&mut gpus, &clock, 0.5);
    let domain = || "gpu/GPU-a".to_owned();
    let expected = [
        (domain(), Quality::Measured, 50.0, 0.0, true),
        (domain(), Quality::Integrated, 50.0, 0.0, true),
    ];
    assert_eq!(states, expected);
    assert_eq!(gpus.report().quality, Quality::Measured);
}

#[test]
fn a_gpu_without_a_counter_is_integrated() {
    let fake = Fake::default();
    fake.set("GPU-p100", Err(GpuError::NotSupported), Ok(30_000));
    let mut gpus = Gpus::open(Box::new(fake.clone())).unwrap();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    fake.set("GPU-p100", Err(GpuError::NotSupported), Ok(50_000));
    let states = step(&mut gpus, &clock, 0.1);
    assert_eq!(states.len(), 1);
    assert_eq!(states[0].1, Quality::Integrated);
    assert!((states[0].2 - 4.0).abs() < 1e-9);
    assert_eq!(gpus.report().quality, Quality::Integrated);
}

#[test]
fn a_gpu_that_has_no_reading_is_unavailable_and_spares_the_others() {
    let fake = Fake::default();
    fake.set("GPU-a", Ok(0), Ok(10_000));
    fake.set("GPU-dumb", Err(GpuError::NotSupported), Err(GpuError::NotSupported));
    let mut gpus = Gpus::open(Box::new(fake.clone())).unwrap();
    let states = step(&mut gpus, &ManualClock::default(), 0.0);
    assert_eq!(
        states.last().unwrap(),
        &("gpu/GPU-dumb".to_owned(), Quality::Unavailable, 0.0, 0.0, false)
    );
    assert_eq!(states.len(), 3);
    assert_eq!(gpus.report().quality, Quality::Unavailable);
    assert!(gpus.report().detail.contains("neither energy nor power"));
}

#[test]
fn a_gpu_that_is_lost_is_a_gap_and_its_return_a_reset() {
    let fake = Fake::default();
    fake.set("GPU-a", Ok(0), Ok(100_000));
    let mut gpus = Gpus::open(Box::new(fake.clone())).unwrap();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    fake.set("GPU-a", Ok(100_000), Ok(100_000));
    step(&mut gpus, &clock, 1.0);
    fake.set("GPU-a", Err(GpuError::Lost), Err(GpuError::Lost));
    let lost = step(&mut gpus, &clock, 4.0);
    assert!(
        lost.iter()
            .all(|(_, _, joules, gap_s, _)| *joules == 100.0 && *gap_s == 3.0),
        "{lost:?}"
    );
    fake.set("GPU-a", Ok(5_000), Ok(100_000));
    let early = step(&mut gpus, &clock, 5.0);
    assert!(
        early
            .iter()
            .all(|(_, _, joules, gap_s, _)| *joules == 100.0 && *gap_s == 4.0),
        "asked too early: {early:?}"
    );
    let back = step(&mut gpus, &clock, 9.0);
    assert!(
        back.iter()
            .all(|(_, _, joules, gap_s, _)| *joules == 100.0 && *gap_s == 8.0),
        "{back:?}"
    );
    fake.set("GPU-a", Ok(105_000), Ok(100_000));
    let on = step(&mut gpus, &clock, 10.0);
    assert!(
        on.iter()
            .all(|(_, _, joules, gap_s, _)| *joules == 200.0 && *gap_s == 8.0),
        "{on:?}"
    );
}

#[test]
fn a_power_of_zero_is_no_reading() {
    let fake = Fake::default();
    fake.set("GPU-a", Err(GpuError::NotSupported), Ok(10_000));
    let mut gpus = Gpus::open(Box::new(fake.clone())).unwrap();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    step(&mut gpus, &clock, 1.0);
    fake.set("GPU-a", Err(GpuError::NotSupported), Ok(0));
    let states = step(&mut gpus, &clock, 2.0);
    assert_eq!((states[0].2, states[0].3), (10.0, 1.0));
}

#[test]
fn a_counter_that_stands_still_leaves_the_figure_to_the_power() {
    let fake = Fake::default();
    fake.set("GPU-a", Ok(0), Ok(10_000));
    let mut gpus = Gpus::open(Box::new(fake.clone())).unwrap();
    let clock = ManualClock::default();
    for tick in 0..100 {
        step(&mut gpus, &clock, f64::from(tick) * 0.05);
    }
    let states = step(&mut gpus, &clock, 5.0);
    assert_eq!((states[0].1, states[0].4), (Quality::Measured, false));
    assert_eq!((states[1].1, states[1].4), (Quality::Integrated, true));
    assert!((states[1].2 - 50.0).abs() < 1e-6);
}

#[test]
fn a_split_gpu_is_metered_as_a_board_and_says_so() {
    let fake = Fake::default();
    fake.set("GPU-mig", Ok(0), Ok(10_000));
    let gpus = Gpus::open(Box::new(fake)).unwrap();
    assert!(gpus.report().detail.contains("whole board"));
}

#[test]
fn without_gpus_there_is_a_reason() {
    let none = Gpus::open(Box::new(Fake::default())).unwrap();
    assert_eq!(none.report().quality, Quality::Unavailable);
    let broken = Fake {
        broken: Some(GpuError::NoLibrary),
        ..Fake::default()
    };
    assert_eq!(Gpus::open(Box::new(broken)).err(), Some(GpuError::NoLibrary));
}

#[test]
fn every_error_of_the_library_has_a_kind() {
    let kind = |error: NvmlError| GpuError::from(error);
    assert_eq!(kind(NvmlError::NotSupported), GpuError::NotSupported);
    assert_eq!(
        kind(NvmlError::FailedToLoadSymbol("x".to_owned())),
        GpuError::NotSupported
    );
    assert_eq!(kind(NvmlError::GpuLost), GpuError::Lost);
    assert_eq!(kind(NvmlError::NoPermission), GpuError::NoPermission);
    assert!(matches!(kind(NvmlError::Unknown), GpuError::NoDriver(_)));
    assert!(matches!(kind(NvmlError::UnexpectedVariant(9)), GpuError::Other(_)));
}

#[test]
fn the_real_library_is_used_where_there_is_one() {
    match NvmlReader::load() {
        Ok(mut reader) => {
            let gpus = reader.gpus().unwrap();
            assert!(gpus.iter().all(|gpu| gpu.uuid.starts_with("GPU-")), "{gpus:?}");
            assert!(reader.energy_mj("GPU-no-such-uuid").is_err());
        }
        Err(error) => {
            eprintln!("no GPU to test with: {error}");
            assert!(
                matches!(
                    error,
                    GpuError::NoLibrary | GpuError::NoDriver(_) | GpuError::NoPermission
                ),
                "{error:?}"
            );
        }
    }
}
