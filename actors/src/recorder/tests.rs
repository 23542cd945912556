use std::collections::BTreeMap;

use greengnn_energy::domain::{DomainKey, DomainKind};
use greengnn_energy::quality::Quality;
use greengnn_energy::snapshot::{DomainEnergy, EnergyReading};

use super::*;
use crate::protocol::PeriodReading;
use crate::shard::Served as ServedCounts;

const TRAINING: Period = Period {
    epoch: 0,
    phase: Phase::Training,
};

fn reading(phase: Phase) -> PeriodReading {
    PeriodReading {
        phase,
        wire_bytes: 10,
        metered: metered(2.0, 0.0),
    }
}

/// A window of that length and, if that is not 0, of so many joules.
fn metered(seconds: f64, joules: f64) -> Metered {
    let package = DomainEnergy {
        key: DomainKey::new("host", "package-0"),
        kind: DomainKind::Package,
        joules: Some(joules),
        quality: Quality::Measured,
        gaps: 0,
        gap_s: 0.0,
    };
    Metered {
        started_unix_s: 100.0,
        ended_unix_s: 100.0 + seconds,
        energy: EnergyReading {
            host: "host".to_owned(),
            domains: Some(package).filter(|_| joules > 0.0).into_iter().collect(),
            duration_s: seconds,
            cpu_s: 1.5,
        },
    }
}

/// A report of one machine with one rank, which asked another owner for `rows` rows in one request.
fn report(machine: &str, rank: Rank, rows: u64) -> EpochReport {
    let traffic = Traffic {
        feature_requests: 1,
        deliveries: 1,
        feature_rows: rows,
        ..Traffic::default()
    };
    let planned = Planned {
        feature_requests: 1,
        feature_rows: rows,
        deliveries: 1,
        ..Planned::default()
    };
    EpochReport {
        machine: machine.to_owned(),
        epoch: Some(0),
        periods: vec![reading(Phase::Training), reading(Phase::Evaluation)],
        idle: None,
        probing: None,
        presampling: None,
        ranks: vec![RankReport {
            rank,
            loss_sum: 30.0,
            labelled: 20,
            valid: Some((3, 4)),
            stall_s: BTreeMap::from([(Phase::Training, f64::from(rank))]),
            traffic: BTreeMap::from([(Phase::Training, traffic)]),
            planned: BTreeMap::from([(Phase::Training, planned)]),
            needed_rows: BTreeMap::from([(Phase::Training, rows + 2)]),
            levels: BTreeMap::from([(
                Phase::Training,
                LevelCounts {
                    device_hit_rows: 2,
                    direct_rows: rows,
                    ..LevelCounts::default()
                },
            )]),
            device_rows: 3,
            device_budget_rows: 4,
            held_rows_peak: 5,
            budget_rows: 6,
            ..RankReport::default()
        }],
        served: Vec::new(),
    }
}

fn serve(report: &mut EpochReport, rank: Rank, feature_rows: u64) {
    let counts = ServedCounts {
        feature_requests: 1,
        deliveries: 1,
        feature_rows,
        sample_requests: 2,
        ..ServedCounts::default()
    };
    report.served.push(crate::protocol::Served {
        rank,
        period: TRAINING,
        counts,
    });
}

/// Rank 0 asks machine b for 7 rows, rank 1 asks machine a for 9.
fn two_machines() -> [EpochReport; 2] {
    let (mut a, mut b) = (report("a", 0, 7), report("b", 1, 9));
    serve(&mut b, 0, 7);
    serve(&mut a, 1, 9);
    [a, b]
}

fn record(reports: [EpochReport; 2]) -> Result<Progressed, RecordError> {
    let mut recorder = Recorder::new(2);
    let [first, second] = reports;
    assert!(matches!(recorder.add(first)?, Progressed::Waiting));
    recorder.add(second)
}

#[test]
fn an_epoch_is_complete_when_all_machines_have_reported_it() {
    let Ok(Progressed::Epoch(completed)) = record(two_machines()) else {
        panic!("the epoch is not complete")
    };
    let summary = &completed.summary;
    assert_eq!((summary.loss, summary.valid_accuracy), (1.5, Some(0.75)));
    assert_eq!(summary.period.traffic.feature_rows, 16);
    assert_eq!(summary.period.traffic.sample_requests, 4);
    assert_eq!(summary.period.cache_hit_rows, 4);
    assert_eq!(
        (summary.period.wall_s, summary.period.cpu_s, summary.period.wire_bytes),
        (2.0, 3.0, 20)
    );
    assert_eq!(summary.period.stall_s, 0.5);
    assert_eq!(
        summary.planned,
        Planned {
            feature_requests: 2,
            feature_rows: 16,
            deliveries: 2,
            ..Planned::default()
        }
    );
    assert_eq!(completed.ranks.len(), 4);
}

#[test]
fn idle_and_presampling_stand_apart_and_a_host_s_joules_are_counted_once() {
    let set_up = |machine: &str, rank| EpochReport {
        epoch: None,
        periods: vec![PeriodReading {
            phase: Phase::Setup,
            wire_bytes: 0,
            metered: metered(5.0, 50.0),
        }],
        idle: Some(metered(2.0, 20.0)),
        // The second machine's ranks take longer.
        presampling: Some(metered(2.0 + f64::from(rank), 30.0 + f64::from(rank))),
        ranks: vec![RankReport {
            rank,
            ..RankReport::default()
        }],
        ..report(machine, rank, 0)
    };
    let mut recorder = Recorder::new(2);
    assert!(matches!(recorder.add(set_up("a", 0)), Ok(Progressed::Waiting)));
    assert!(matches!(recorder.add(set_up("b", 1)), Ok(Progressed::SetUp)));
    let (idle, presampling) = (recorder.idle().unwrap(), recorder.presampling());
    assert_eq!((idle.energy_j, idle.watts(), idle.cpu_s), (Some(20.0), Some(10.0), 3.0));
    let first_epoch = presampling.first_epoch.unwrap();
    assert_eq!((first_epoch.energy_j, first_epoch.wall_s), (Some(31.0), 3.0));
    assert_eq!(recorder.totals().0.energy_j, Some(50.0));

    let [mut a, mut b] = two_machines();
    (a.ranks[0].presample_cpu_s, b.ranks[0].presample_cpu_s) = (0.5, 0.25);
    recorder.add(a).unwrap();
    recorder.add(b).unwrap();
    assert_eq!(recorder.presampling().cpu_s, 0.75);
}

#[test]
fn a_row_that_was_served_and_not_planned_fails_the_run() {
    let [a, mut b] = two_machines();
    b.served[0].counts.feature_rows += 1;
    let error = record([a, b]).unwrap_err();
    let wanted = RecordError::CountsDiffer {
        epoch: 0,
        rank: 0,
        phase: Phase::Training,
        what: "feature rows",
        planned: 7,
        counted: 7,
        served: 8,
    };
    assert_eq!(error, wanted);
}

#[test]
fn ranks_that_diverge_and_ranks_over_their_budget_fail_the_run() {
    let [a, mut b] = two_machines();
    b.ranks[0].loss_sum = 30.5;
    assert_eq!(
        record([a, b]).unwrap_err(),
        RecordError::RanksDiffer {
            epoch: 0,
            first: 0,
            rank: 1
        }
    );

    let [mut a, b] = two_machines();
    a.ranks[0].held_rows_peak = 7;
    assert_eq!(
        record([a, b]).unwrap_err(),
        RecordError::OverBudget {
            rank: 0,
            held: 7,
            budget: 6
        }
    );
}

#[test]
fn devices_over_their_budget_and_rows_of_no_level_fail_the_run() {
    let [mut a, b] = two_machines();
    a.ranks[0].device_rows = 5;
    let over = RecordError::OverDeviceBudget {
        rank: 0,
        held: 5,
        budget: 4,
    };
    assert_eq!(record([a, b]).unwrap_err(), over);

    let [a, mut b] = two_machines();
    if let Some(levels) = b.ranks[0].levels.get_mut(&Phase::Training) {
        levels.host_hit_rows += 1;
    }
    let differ = RecordError::LevelsDiffer {
        epoch: 0,
        rank: 1,
        phase: Phase::Training,
        needed: 11,
        found: 12,
    };
    assert_eq!(record([a, b]).unwrap_err(), differ);
}

#[test]
fn machines_that_end_with_other_weights_are_named() {
    let finished = |machine: &str, weights: &str| FinishedReport {
        machine: machine.to_owned(),
        device: "cpu".to_owned(),
        weights_sha256: weights.to_owned(),
        peak_rss_bytes: 0,
        peak_anon_bytes: 0,
        meters: Vec::new(),
    };
    assert_eq!(agreed_weights(&[finished("a", "x"), finished("b", "x")]).unwrap(), "x");
    let error = agreed_weights(&[finished("a", "x"), finished("b", "y")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "machine b ended with weights y, machine a with x: the ranks have diverged"
    );
}

#[test]
fn a_delivery_that_was_planned_and_not_served_fails_the_run() {
    let [a, mut b] = two_machines();
    b.served[0].counts.deliveries = 0;
    let error = record([a, b]).unwrap_err();
    assert!(
        matches!(
            error,
            RecordError::CountsDiffer {
                what: "deliveries",
                served: 0,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_fill_that_was_not_served_as_planned_fails_the_run() {
    let mut filled = report("a", 0, 7);
    filled.epoch = None;
    filled.ranks[0].planned = BTreeMap::from([(
        Phase::Setup,
        Planned {
            feature_requests: 1,
            feature_rows: 7,
            deliveries: 1,
            ..Planned::default()
        },
    )]);
    filled.ranks[0].traffic = BTreeMap::from([(
        Phase::Setup,
        Traffic {
            feature_requests: 1,
            feature_rows: 7,
            ..Traffic::default()
        },
    )]);
    let error = Recorder::new(1).add(filled).unwrap_err();
    let wanted = RecordError::CountsDiffer {
        epoch: 0,
        rank: 0,
        phase: Phase::Setup,
        what: "feature requests",
        planned: 1,
        counted: 1,
        served: 0,
    };
    assert_eq!(error, wanted);
}
