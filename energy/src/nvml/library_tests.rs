//! The real `nvml-wrapper` on a library that a test controls (the crate `greengnn-fake-nvml`).

use std::path::Path;

use super::fake::FakeNvml;
use super::*;
use crate::clock::ManualClock;
use crate::source::SourceWarning;

const SUCCESS: u32 = 0;
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const DRIVER_NOT_LOADED: u32 = 9;
const GPU_IS_LOST: u32 = 15;
const UNKNOWN: u32 = 999;

/// Samples at a time and gives per state (quality, joules, gap, live).
fn step(gpus: &mut Gpus, clock: &ManualClock, at_s: f64) -> Vec<(Quality, f64, f64, bool)> {
    clock.set(at_s);
    gpus.sample(clock, true);
    let mut states = Vec::new();
    gpus.states(at_s, &mut states);
    states
        .into_iter()
        .map(|state| (state.quality, state.joules, state.gap_s, state.live))
        .collect()
}

#[test]
fn a_reader_and_its_gpus_may_move_to_the_meter_s_thread() {
    fn may_be_sent<T: Send>() {}
    fn may_be_shared<T: Send + Sync>() {}
    may_be_sent::<NvmlReader>();
    may_be_sent::<Gpus>();
    may_be_shared::<crate::meter::Meter>();
    let fake = FakeNvml::new();
    fake.answers(0, 5, 7);
    let mut reader = fake.reader();
    let on_another_thread = std::thread::spawn(move || reader.energy_mj("GPU-fake-0"));
    assert_eq!(on_another_thread.join().unwrap(), Ok(5));
}

#[test]
fn counter_and_power_of_a_volta_gpu_stand_side_by_side() {
    let fake = FakeNvml::new();
    fake.answers(0, 1_000, 120_000);
    let mut gpus = fake.gpus();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    for tick in 1..=400_u32 {
        // 120 W in steps of 50 ms.
        fake.answers(0, 1_000 + u64::from(tick) * 6_000, 120_000);
        step(&mut gpus, &clock, f64::from(tick) * 0.05);
    }
    let states = step(&mut gpus, &clock, 20.0);
    assert_eq!(states[0], (Quality::Measured, 2400.0, 0.0, true));
    assert_eq!(states[1].0, Quality::Integrated);
    assert!((states[1].1 - 2400.0).abs() < 1e-6);
    let report = gpus.report();
    assert_eq!((report.quality, report.warnings), (Quality::Measured, vec![]));
    assert!(report.detail.contains("Fake GPU GPU-fake-0 (energy counter)"));
}

#[test]
fn a_counter_that_its_power_contradicts_is_a_warning() {
    let fake = FakeNvml::new();
    fake.answers(0, 0, 100_000);
    let mut gpus = fake.gpus();
    let clock = ManualClock::default();
    for second in 0..=20_u32 {
        // The counter has 60 W, the sensor 100 W.
        fake.answers(0, u64::from(second) * 60_000, 100_000);
        step(&mut gpus, &clock, f64::from(second));
    }
    let warnings = gpus.report().warnings;
    let expected = SourceWarning::CounterAndPowerDiffer {
        domain: "gpu/GPU-fake-0".to_owned(),
        counter_j: 1200.0,
        power_j: 2000.0,
    };
    assert_eq!(warnings, [expected]);
    let text = warnings[0].to_string();
    assert!(text.contains("1200 J") && text.contains("2000 J"), "{text}");
}

#[test]
fn a_p100_without_a_counter_is_integrated() {
    let fake = FakeNvml::new();
    (fake.set_gpu)(0, NOT_SUPPORTED, 0, SUCCESS, 30_000, 0);
    let mut gpus = fake.gpus();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    let states = step(&mut gpus, &clock, 1.0);
    assert_eq!(states, [(Quality::Integrated, 30.0, 0.0, true)]);
    assert_eq!(gpus.report().quality, Quality::Integrated);
}

#[test]
fn a_function_that_the_library_lacks_is_a_reading_that_the_gpu_has_not() {
    let fake = FakeNvml::without(&["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetMigMode"]);
    fake.answers(0, 0, 30_000);
    let mut reader = fake.reader();
    assert_eq!(reader.energy_mj("GPU-fake-0"), Err(GpuError::NotSupported));
    assert_eq!(reader.power_mw("GPU-fake-0"), Ok(30_000));
    assert!(reader.gpus().is_ok_and(|gpus| !gpus[0].split));

    let neither = FakeNvml::without(&["nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"]);
    let mut gpus = neither.gpus();
    let states = step(&mut gpus, &ManualClock::default(), 0.0);
    assert_eq!(states, [(Quality::Unavailable, 0.0, 0.0, false)]);
}

#[test]
fn a_library_that_cannot_be_closed_or_is_none_is_no_panic() {
    let fake = FakeNvml::without(&["nvmlShutdown"]);
    assert!(matches!(
        NvmlReader::load_from(&fake.path).err(),
        Some(GpuError::NoDriver(why)) if why.contains("nvmlShutdown")
    ));
    let fake = FakeNvml::without(&["nvmlInit_v2"]);
    assert!(NvmlReader::load_from(&fake.path).is_err());
    let nothing = NvmlReader::load_from(Path::new("/no/such/libnvidia-ml.so.1"));
    assert_eq!(nothing.err(), Some(GpuError::NoLibrary));
}

#[test]
fn a_driver_that_is_not_loaded_or_forbidden_says_so() {
    let fake = FakeNvml::new();
    (fake.set_driver)(1, DRIVER_NOT_LOADED);
    assert!(matches!(
        NvmlReader::load_from(&fake.path).err(),
        Some(GpuError::NoDriver(_))
    ));
    (fake.set_driver)(1, NO_PERMISSION);
    assert_eq!(NvmlReader::load_from(&fake.path).err(), Some(GpuError::NoPermission));
}

#[test]
fn a_gpu_lost_in_a_run_is_a_gap_and_spares_the_other() {
    let fake = FakeNvml::new();
    (fake.set_driver)(2, SUCCESS);
    fake.answers(0, 0, 50_000);
    fake.answers(1, 0, 100_000);
    let mut gpus = fake.gpus();
    let clock = ManualClock::default();
    step(&mut gpus, &clock, 0.0);
    fake.answers(0, 50_000, 50_000);
    fake.answers(1, 100_000, 100_000);
    step(&mut gpus, &clock, 1.0);
    fake.fails(0, GPU_IS_LOST, GPU_IS_LOST);
    fake.answers(1, 200_000, 100_000);
    let states = step(&mut gpus, &clock, 2.0);
    let expected = [
        (Quality::Measured, 50.0, 1.0, true),
        (Quality::Integrated, 50.0, 1.0, true),
        (Quality::Measured, 200.0, 0.0, true),
        (Quality::Integrated, 200.0, 0.0, true),
    ];
    assert_eq!(states, expected);
}

#[test]
fn a_driver_that_goes_away_is_closed_and_asked_again_later() {
    let fake = FakeNvml::new();
    fake.answers(0, 10, 20);
    let mut reader = fake.reader();
    reader.retry_after = Duration::from_millis(20);
    assert_eq!(reader.energy_mj("GPU-fake-0"), Ok(10));
    (fake.set_driver)(1, UNKNOWN);
    assert!(matches!(reader.energy_mj("GPU-fake-0"), Err(GpuError::NoDriver(_))));
    assert!(reader.nvml.is_none());
    (fake.set_driver)(1, SUCCESS);
    assert_eq!(reader.energy_mj("GPU-fake-0"), Err(GpuError::Lost), "asked too early");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(reader.energy_mj("GPU-fake-0"), Ok(10));
}

#[test]
fn one_gpu_s_unknown_error_keeps_the_driver() {
    let fake = FakeNvml::new();
    fake.fails(0, UNKNOWN, SUCCESS);
    let mut reader = fake.reader();
    assert!(matches!(reader.energy_mj("GPU-fake-0"), Err(GpuError::NoDriver(_))));
    assert!(reader.nvml.is_some());
}

#[test]
fn of_a_split_gpu_the_board_is_metered() {
    let fake = FakeNvml::new();
    (fake.set_gpu)(0, SUCCESS, 0, SUCCESS, 10_000, 1);
    let gpus = fake.gpus();
    assert!(gpus.gpus[0].info.split);
    assert!(gpus.report().detail.contains("whole board of a split GPU"));
}
