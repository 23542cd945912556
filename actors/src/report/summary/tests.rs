use greengnn_energy::device::Joules;
use greengnn_energy::domain::{DomainKey, DomainKind};
use serde_json::Value;

use super::*;

/// One package, and a platform around it that draws twice as much.
fn domains(energy_j: Option<f64>, quality: Quality) -> Vec<DomainJoules> {
    let domain = |name: &str, kind: DomainKind, scale: f64| DomainJoules {
        key: DomainKey::new("host", name),
        kind,
        counted: kind.counts_in_total(),
        energy: Joules {
            joules: energy_j.map(|joules| joules * scale),
            quality,
        },
    };
    vec![
        domain("package-0", DomainKind::Package, 1.0),
        domain("psys", DomainKind::Psys, 2.0),
    ]
}

/// A run of two epochs whose figures are all different, so that a mix-up shows.
pub(crate) fn sample() -> RunSummary {
    let period = |scale: u64, quality, energy_j| PeriodSummary {
        wall_s: scale as f64,
        stall_s: scale as f64 * 0.25,
        sync_s: scale as f64 * 0.125,
        traffic: Traffic {
            feature_requests: 10 * scale,
            deliveries: 11 * scale,
            sample_requests: 12 * scale,
            feature_rows: 1_300 * scale,
            feature_bytes: 1_300 * 512 * scale,
            push_bytes: 0,
            pull_bytes: 0,
        },
        levels: LevelCounts {
            device_hit_rows: 600 * scale,
            host_hit_rows: 500 * scale,
            direct_rows: 300 * scale,
            device_own_rows: 200 * scale,
            host_own_rows: 100 * scale,
            upload_bytes: 80_000 * scale,
        },
        wire_bytes: 700_000 * scale,
        cache_hit_rows: 400 * scale as i64,
        cpu_s: scale as f64 * 1.5,
        energy_j,
        energy_quality: quality,
        energy_by_device: DeviceEnergy {
            cpu: Some(Joules {
                joules: energy_j,
                quality,
            }),
            ..DeviceEnergy::default()
        },
        energy_by_domain: domains(energy_j, quality),
    };
    let metered = |wall_s, cpu_s, joules, quality| MeteredSummary {
        wall_s,
        cpu_s,
        energy_j: Some(joules),
        energy_quality: quality,
        energy_by_device: DeviceEnergy::default(),
        energy_by_domain: domains(Some(joules), quality),
    };
    let epoch = |epoch: u32, loss, period: PeriodSummary| EpochSummary {
        epoch,
        loss,
        valid_accuracy: Some(0.5 + f64::from(epoch) / 10.0),
        window: 16,
        delivery: Delivery::Stream,
        planned: Planned::from(&period.traffic),
        period,
    };
    RunSummary {
        version: SUMMARY_VERSION,
        communication: Communication::Pull,
        policy: "bulk".into(),
        delivery: Delivery::Stream,
        window: 16,
        is_window_chosen: false,
        row_type: RowType::F32,
        budget_rows: 5_000,
        held_rows_peak: 4_321,
        device_budget_rows: 2_000,
        device_rows: 1_234,
        ranks: 4,
        machines: 4,
        device: "cpu".into(),
        cpu_fingerprint: "x86_64 avx2 32K/1M/32M".into(),
        seed: 1,
        idle: Some(metered(5.0, 0.125, 60.0, Quality::Estimated)),
        probing: None,
        presampling: PresamplingSummary {
            cpu_s: 0.875,
            first_epoch: Some(metered(0.75, 0.5, 40.0, Quality::Measured)),
        },
        epochs: vec![
            epoch(0, 2.5, period(4, Quality::Estimated, Some(200.0))),
            epoch(1, 1.25, period(2, Quality::Measured, Some(100.0))),
        ],
        setup: period(1, Quality::Measured, Some(50.0)),
        evaluation: period(3, Quality::Measured, Some(30.0)),
        test_accuracy: Some(0.625),
        weights_sha256: "ab".repeat(32),
        peak_rss_bytes: 3 << 30,
        peak_anon_bytes: 1 << 30,
        setup_s: 1.5,
        total_s: 12.5,
        bound_by: "bound by compute".into(),
        row_bound: None,
        meters: vec![MeterSources {
            host: "host".into(),
            machine: "machine-0".into(),
            sources: vec![
                SourceReport::new("estimate", Quality::Estimated, "from the use of 2 hardware threads"),
                SourceReport::new("rapl", Quality::Unavailable, "no powercap zone"),
            ],
        }],
        gpu_clocks: None,
    }
}

const RUN_NAMES: &[&str] = &[
    "version",
    "communication",
    "policy",
    "window",
    "is_window_chosen",
    "row_type",
    "budget_rows",
    "held_rows_peak",
    "device_budget_rows",
    "device_rows",
    "ranks",
    "machines",
    "device",
    "cpu_fingerprint",
    "seed",
    "idle",
    "probing",
    "presampling",
    "meters",
    "epochs",
    "setup",
    "evaluation",
    "test_accuracy",
    "weights_sha256",
    "peak_rss_bytes",
    "peak_anon_bytes",
    "setup_s",
    "total_s",
];

const PERIOD_NAMES: &[&str] = &[
    "wall_s",
    "stall_s",
    "sync_s",
    "feature_requests",
    "deliveries",
    "sample_requests",
    "feature_rows",
    "feature_bytes",
    "push_bytes",
    "pull_bytes",
    "device_hit_rows",
    "host_hit_rows",
    "direct_rows",
    "device_own_rows",
    "host_own_rows",
    "upload_bytes",
    "wire_bytes",
    "cache_hit_rows",
    "cpu_s",
    "energy_j",
    "energy_quality",
    "energy_by_device",
    "energy_by_domain",
];

fn has_names(value: &Value, names: &[&str]) {
    let object = value.as_object().unwrap();
    for name in names {
        assert!(object.contains_key(*name), "{name} is not in {value}");
    }
}

#[test]
fn every_stable_name_is_at_its_place() {
    let json: Value = serde_json::from_str(&sample().to_json().unwrap()).unwrap();
    has_names(&json, RUN_NAMES);
    for epoch in json["epochs"].as_array().unwrap() {
        has_names(epoch, &["epoch", "loss", "valid_accuracy", "planned"]);
        has_names(epoch, PERIOD_NAMES);
        has_names(
            &epoch["planned"],
            &["feature_requests", "feature_rows", "push_bytes", "pull_bytes"],
        );
    }
    has_names(&json["setup"], PERIOD_NAMES);
    has_names(&json["evaluation"], PERIOD_NAMES);
    assert_eq!(json["epochs"][0]["feature_rows"], 5_200);
    assert_eq!(json["epochs"][0]["planned"]["feature_rows"], 5_200);
    assert_eq!(json["epochs"][1]["energy_quality"], "measured");
}

#[test]
fn a_summary_survives_json() {
    let summary = sample();
    assert_eq!(RunSummary::from_json(&summary.to_json().unwrap()).unwrap(), summary);
}

#[test]
fn names_that_are_not_known_are_ignored_and_newer_layouts_refused() {
    let mut json: Value = serde_json::from_str(&sample().to_json().unwrap()).unwrap();
    json["something_new"] = 1.into();
    json["epochs"][0]["something_new"] = 1.into();
    assert_eq!(RunSummary::from_json(&json.to_string()).unwrap(), sample());
    // Summaries of before push-pull.
    let old = json.as_object_mut().unwrap();
    old.remove("communication");
    json["epochs"][0]["planned"]
        .as_object_mut()
        .unwrap()
        .remove("push_bytes");
    assert_eq!(RunSummary::from_json(&json.to_string()).unwrap(), sample());

    let newer = format!("{{\"version\": {}}}", SUMMARY_VERSION + 1);
    let error = RunSummary::from_json(&newer).unwrap_err();
    assert!(
        matches!(error, SummaryError::Version { found } if found == SUMMARY_VERSION + 1),
        "{error}"
    );
    assert!(matches!(RunSummary::from_json("{").unwrap_err(), SummaryError::Json(_)));
}

#[test]
fn a_diverged_loss_is_null_and_comes_back_as_nan() {
    let mut summary = sample();
    summary.epochs[1].loss = f64::NAN;
    let text = summary.to_json().unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert!(json["epochs"][1]["loss"].is_null());
    assert!(RunSummary::from_json(&text).unwrap().epochs[1].loss.is_nan());
}

#[test]
fn every_domain_has_a_figure_of_every_part_of_the_run() {
    let json: Value = serde_json::from_str(&sample().to_json().unwrap()).unwrap();
    for part in [&json["idle"], &json["presampling"]["first_epoch"], &json["setup"]] {
        let domain = &part["energy_by_domain"][1];
        has_names(domain, &["host", "domain", "kind", "counted", "joules", "quality"]);
        assert_eq!((&domain["domain"], &domain["counted"]), (&"psys".into(), &false.into()));
    }
    let whole = sample().whole_run();
    let joules: Vec<_> = whole
        .energy_by_domain
        .iter()
        .map(|domain| domain.energy.joules)
        .collect();
    assert_eq!(joules, [whole.energy_j, whole.energy_j.map(|joules| 2.0 * joules)]);
    // What was written before there were domains.
    let mut old = json;
    old["setup"].as_object_mut().unwrap().remove("energy_by_domain");
    for name in ["idle", "presampling", "meters"] {
        old.as_object_mut().unwrap().remove(name);
    }
    let old = RunSummary::from_json(&old.to_string()).unwrap();
    assert_eq!((old.idle, old.presampling), (None, PresamplingSummary::default()));
}

#[test]
fn a_total_adds_up_and_takes_the_worst_quality() {
    let summary = sample();
    let training = summary.training();
    assert_eq!(training.traffic.feature_rows, 7_800);
    assert_eq!(
        (training.energy_j, training.energy_quality),
        (Some(300.0), Quality::Estimated)
    );
    assert_eq!(training.stall_share(), Some(0.25));

    let whole = summary.whole_run();
    assert_eq!((whole.wall_s, whole.cpu_s, whole.cache_hit_rows), (10.0, 15.0, 4_000));
    assert_eq!(
        (whole.energy_j, whole.energy_quality),
        (Some(380.0), Quality::Estimated)
    );
}

#[test]
fn a_total_with_an_unavailable_part_is_unavailable() {
    let mut summary = sample();
    summary.setup.energy_j = None;
    summary.setup.energy_quality = Quality::Unavailable;
    let whole = summary.whole_run();
    assert_eq!((whole.energy_j, whole.energy_quality), (None, Quality::Unavailable));
    assert_eq!(summary.training().energy_j, Some(300.0));
}

#[test]
fn a_period_in_which_nothing_happened_does_not_spoil_a_total() {
    let mut summary = sample();
    summary.evaluation = PeriodSummary::default();
    assert_eq!(summary.whole_run().energy_j, Some(350.0));
    assert_eq!(PeriodSummary::sum([]), PeriodSummary::default());
    assert_eq!(PeriodSummary::default().stall_share(), None);
}

#[test]
fn an_epoch_off_its_plan_is_named() {
    let mut summary = sample();
    assert_eq!(summary.epochs_off_plan(), Vec::<u32>::new());
    summary.epochs[1].planned.feature_rows += 1;
    assert_eq!(summary.epochs_off_plan(), vec![1]);
    summary.epochs[0].period.traffic.pull_bytes += 1;
    assert_eq!(summary.epochs_off_plan(), vec![0, 1]);
}

#[test]
fn a_summary_from_before_there_were_streams_counts_a_delivery_per_request() {
    let mut json: Value = serde_json::from_str(&sample().to_json().unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("delivery");
    json["epochs"][0]["planned"]
        .as_object_mut()
        .unwrap()
        .remove("deliveries");
    let read = RunSummary::from_json(&json.to_string()).unwrap();
    assert_eq!(read.delivery, Delivery::Windowed);
    assert_eq!(
        read.epochs[0].planned.deliveries,
        read.epochs[0].planned.feature_requests
    );
}
