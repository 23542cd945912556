use greengnn_model::policy::ScoreKind;

use super::*;

#[test]
fn flags_override_the_file_and_the_file_overrides_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, "hidden = 16\nbatch-size = 50\nfanouts = [10, 5]\n").unwrap();
    let flags = TrainFlags {
        config: Some(path),
        batch_size: Some(7),
        ..TrainFlags::default()
    };
    let config = flags.resolve().unwrap();
    assert_eq!(
        (config.hidden, config.batch_size, config.fanouts.as_slice()),
        (16, 7, [10, 5].as_slice())
    );
    assert_eq!(config.lr, TrainConfig::default().lr);
}

#[test]
fn push_pull_moves_no_rows_and_takes_nothing_that_says_how_to_keep_them() {
    let push_pull = || TrainFlags {
        communication: Some(Communication::PushPull),
        ..TrainFlags::default()
    };
    let config = push_pull().resolve().unwrap();
    assert_eq!(
        (&*config.policy, &*config.budget, &*config.device),
        ("none", "0rows", "cpu")
    );
    let text = toml::to_string(&config).unwrap();
    let again: TrainConfig = toml::from_str(&text).unwrap();
    again.check().unwrap();
    assert_eq!(again, config);

    let refused = |flags: TrainFlags| flags.resolve().unwrap_err().to_string();
    let mut flags = push_pull();
    flags.policy = Some("bulk".into());
    let error = refused(flags);
    assert_eq!(
        error,
        "policy must be left out with push-pull, which moves no rows, found bulk"
    );
    let mut flags = push_pull();
    flags.budget = Some("5%".into());
    assert!(refused(flags).contains("budget must be left out"));
    let mut flags = push_pull();
    flags.delivery = Some(Delivery::Stream);
    assert!(refused(flags).contains("delivery must be left out"));
    let mut flags = push_pull();
    flags.device = Some("cuda:0".into());
    assert!(refused(flags).contains("device must be cpu"));
    let mut flags = push_pull();
    flags.preaggregate = Some(Preaggregate::Off);
    assert!(refused(flags).contains("preaggregate must be on or auto"));
    // Nor has a run that pulls rows no policy.
    let none = TrainConfig {
        policy: NO_POLICY.into(),
        ..TrainConfig::default()
    };
    assert!(none.check().unwrap_err().to_string().contains("none"));
}

#[test]
fn a_misspelt_key_and_a_bad_value_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, "hiden = 16\n").unwrap();
    let error = TrainConfig::from_file(&path).unwrap_err().to_string();
    assert!(error.contains("run.toml") && error.contains("hiden"), "{error}");
    let flags = TrainFlags {
        dropout: Some(1.0),
        ..TrainFlags::default()
    };
    assert_eq!(
        flags.resolve().unwrap_err().to_string(),
        "dropout must be at least 0 and below 1, found 1"
    );
}

#[test]
fn a_device_budget_is_for_policies_with_levels_and_parameters_have_bounds() {
    let resolve = |policy: &str, change: fn(&mut TrainFlags)| {
        let mut flags = TrainFlags {
            policy: Some(policy.to_owned()),
            ..TrainFlags::default()
        };
        change(&mut flags);
        flags.resolve().map_err(|error| error.to_string())
    };
    let device = |flags: &mut TrainFlags| flags.device_budget = Some("5%".to_owned());
    for policy in ["degree", "presample", "vip", "two-level"] {
        assert_eq!(resolve(policy, device).unwrap().device_budget.as_deref(), Some("5%"));
    }
    for policy in ["bulk", "window", "lru", "full", "on-demand"] {
        let error = resolve(policy, device).unwrap_err();
        assert!(
            error.contains(&format!("policy {policy} keeps no rows on the device")),
            "{error}"
        );
        assert!(resolve(policy, |flags| flags.device_budget = Some("0".to_owned())).is_ok());
    }
    let refused: [fn(&mut TrainFlags); 4] = [
        |flags| flags.presample_epochs = Some(0),
        |flags| flags.vip_weight = Some(f64::NAN),
        |flags| flags.network_cost = Some(-1.0),
        |flags| flags.device_budget = Some("5".to_owned()),
    ];
    for change in refused {
        assert!(resolve("two-level", change).is_err());
    }
    let config = resolve("vip", |flags| {
        flags.presample_epochs = Some(7);
        flags.vip_weight = Some(0.25);
    });
    let policy = config.unwrap().policy_parameters().policy("vip").unwrap();
    let corrected = ScoreKind::CorrectedVip {
        weight: 0.25,
        epochs: 7,
    };
    assert_eq!(policy.score_kind(), Some(corrected));
}

#[test]
fn whose_clocks_are_lowered_is_checked_and_off_by_default() {
    assert_eq!(TrainFlags::default().resolve().unwrap().lower_clocks, None);
    let resolve = |text: &str, waiting| {
        let flags = TrainFlags {
            lower_clocks: Some(text.parse().unwrap()),
            lower_clocks_while_waiting: waiting,
            ..TrainFlags::default()
        };
        flags.resolve().unwrap()
    };
    assert_eq!(resolve("auto", false).lower_clocks, Some(LowerClocks::Auto));
    let named = resolve("GPU-1b,GPU-2c", true);
    assert_eq!(
        named.lower_clocks,
        Some(LowerClocks::Named(vec!["GPU-1b".to_owned(), "GPU-2c".to_owned()]))
    );
    let text = toml::to_string(&named).unwrap();
    assert!(text.contains("lower-clocks = \"GPU-1b,GPU-2c\""), "{text}");
    assert_eq!(toml::from_str::<TrainConfig>(&text).unwrap(), named);

    let waiting = TrainFlags {
        lower_clocks_while_waiting: true,
        ..TrainFlags::default()
    };
    let error = waiting.resolve().unwrap_err().to_string();
    assert!(error.contains("together with lower-clocks"), "{error}");
    for (text, said) in [
        ("", "`auto` or UUIDs"),
        ("0", "`auto` or UUIDs"),
        ("GPU-1,,", "`auto` or UUIDs"),
        ("MIG-1", "split GPU"),
    ] {
        let error = text.parse::<LowerClocks>().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_resolved_configuration_reads_back_as_it_was() {
    let config = TrainConfig {
        threads: Some(2),
        batch_order: SeedOrder::Proximity { sequences: 7 },
        ..TrainConfig::default()
    };
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<TrainConfig>(&text).unwrap(), config);
}

/// The manifest of a small graph in two parts of 30 nodes.
fn manifest() -> PartsManifest {
    let folder = tempfile::tempdir().unwrap();
    let parts = folder.path().join("parts");
    greengnn_model::synth::SynthSpec::tiny(60)
        .write_parts(&parts, 2)
        .unwrap();
    PartsManifest::open(&parts).unwrap()
}

#[test]
fn without_a_train_seed_there_is_nothing_to_train() {
    let (config, mut manifest) = (TrainConfig::default(), manifest());
    manifest.parts[0].train = 0;
    config.check_against(&manifest).unwrap();
    manifest.parts[1].train = 0;
    let error = config.check_against(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("parts 0 to 1 has a node in the split `train`"),
        "{error}"
    );
}

#[test]
fn the_device_budget_is_a_part_of_the_budget() {
    let manifest = manifest();
    let check = |budget: &str, device: &str, row_type| {
        let config = TrainConfig {
            policy: "degree".to_owned(),
            budget: budget.to_owned(),
            device_budget: Some(device.to_owned()),
            row_type,
            ..TrainConfig::default()
        };
        config.check_against(&manifest).map_err(|error| error.to_string())
    };
    let row_bytes = |rows: usize| format!("{}B", rows * RowType::F32.row_bytes(manifest.features));
    check("20%", "20%", RowType::F32).unwrap();
    check("6rows", &row_bytes(6), RowType::F32).unwrap();
    for (budget, device) in [("20%", "25%"), ("6rows", "7rows"), ("20%", &row_bytes(7))] {
        let error = check(budget, device, RowType::F32).unwrap_err();
        let said = format!(
            "the device budget of {device} is 7 rows of rank 0, and the budget of {budget}, of which it is a part, is 6"
        );
        assert!(error.starts_with(&said), "{error}");
    }
    // The same bytes hold more rows where they are encoded, and those of the device are not.
    check(&row_bytes(6), &row_bytes(7), RowType::F16).unwrap();
}

#[test]
fn what_is_not_as_by_default_is_written_as_flags() {
    let config = TrainConfig {
        fanouts: vec![5, 5],
        batch_size: 60,
        delivery: Some(Delivery::Stream),
        verify: true,
        ..TrainConfig::default()
    };
    let flags: Vec<String> = config
        .other_than_default()
        .into_iter()
        .map(|(name, value)| format!("--{name}{value}"))
        .collect();
    assert_eq!(
        flags,
        ["--batch-size 60", "--delivery stream", "--fanouts 5,5", "--verify"]
    );
    assert!(TrainConfig::default().other_than_default().is_empty());
}
