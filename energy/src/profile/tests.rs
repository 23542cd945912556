use super::*;

fn setting() -> ProbeSetting {
    ProbeSetting {
        fingerprint: Fingerprint::of_this_computer(Vec::new()),
        measured_at: 1.0,
        quality: Quality::Estimated,
        method: "CPU time at 3.7 W per core".to_owned(),
        idle_w: Some(Coefficient {
            value: 8.0,
            half_width: 0.5,
        }),
        placement: vec![vec![0, 1], vec![2]],
        checksums: false,
        row_bytes: 512,
        bytes_per_s: Some(1e9),
    }
}

/// Fetches that cost exactly what they should.
fn points(owner: PartId, request_j: f64, row_j: f64) -> Vec<ProbePoint> {
    let point = |rows: u32| ProbePoint {
        client: 0,
        owner,
        rows_per_request: rows,
        requests: 100,
        seconds: 100.0 * (1e-4 + 1e-7 * f64::from(rows)),
        net_j: 100.0 * (request_j + row_j * f64::from(rows)),
        net_cpu_s: 100.0 * 5e-5,
        client_cpu_s: 100.0 * 2e-5,
    };
    [1, 10, 100, 1000, 10_000].map(point).to_vec()
}

#[test]
fn coefficients_and_the_crossover_are_those_that_were_put_in() {
    let profile = Profile::fit(
        setting(),
        [points(1, 0.0965, 1e-4), points(2, 0.02, 1e-4)].concat(),
        Vec::new(),
    )
    .unwrap();
    assert!((profile.owners[0].crossover_rows().unwrap() - 965.0).abs() < 1e-6);
    assert!(profile.doubts().is_empty(), "{:?}", profile.doubts());
    let coefficients = profile.coefficients(4, 4, 0.01, 1.0);
    coefficients.check().unwrap();
    assert!((coefficients.owners[2].request_j - 0.02).abs() < 1e-9);
    assert!((coefficients.owners[1].row_s - 1e-7).abs() < 1e-12);
    // Owners that were not probed cost what the mean owner does.
    assert!((coefficients.owners[3].request_j - 0.05825).abs() < 1e-9);
    assert_eq!((coefficients.idle_w, coefficients.bytes_per_s), (2.0, 1e9));
    let text = profile.to_string();
    assert!(text.contains("estimated") && text.contains("965 rows"), "{text}");
}

#[test]
fn coefficients_that_are_lost_in_noise_are_doubted_and_never_negative() {
    let mut noisy = points(0, 1e-6, 1e-4);
    noisy[0].net_j = -1.0;
    let profile = Profile::fit(setting(), noisy, Vec::new()).unwrap();
    assert!(!profile.doubts().is_empty());
    assert!(profile.to_string().contains("not to be trusted"));
    profile.coefficients(1, 1, 0.0, 0.0).check().unwrap();
}

#[test]
fn too_little_is_no_profile() {
    assert!(matches!(
        Profile::fit(setting(), Vec::new(), Vec::new()),
        Err(ProfileError::Empty)
    ));
    let few = points(3, 1.0, 1.0)[..2].to_vec();
    let refused = Profile::fit(setting(), few, Vec::new()).unwrap_err().to_string();
    assert!(
        refused.contains("owner 3") && refused.contains("probe longer"),
        "{refused}"
    );
}

#[test]
fn a_profile_is_for_its_own_hardware_and_use_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let profile = Profile::fit(setting(), points(1, 0.1, 1e-4), Vec::new()).unwrap();
    profile.save(&path).unwrap();
    let here = setting().fingerprint;
    // Reading a number from JSON may lose its last bit.
    assert_eq!(Profile::read(&path).unwrap().to_string(), profile.to_string());
    assert!(profile.check_hardware(&here).is_ok());
    let placement = setting().placement;
    assert!(profile.check_use(&placement, false, 512).is_ok());
    for (other, what) in [
        (profile.check_use(&[vec![0, 1, 2]], false, 512), "ranks of the machines"),
        (profile.check_use(&placement, true, 512), "checksums"),
        (profile.check_use(&placement, false, 256), "bytes of a row"),
    ] {
        assert!(other.unwrap_err().to_string().contains(what), "{what}");
    }
    let elsewhere = Fingerprint {
        processors: vec!["Another".to_owned()],
        ..here
    };
    let refused = profile.check_hardware(&elsewhere).unwrap_err().to_string();
    assert!(
        refused.contains("processors:") && refused.contains("greengnn probe"),
        "{refused}"
    );
}

#[test]
fn a_pair_has_coefficients_of_its_own_only_where_it_can_be_told_apart() {
    let of = |client: Rank, owner: PartId, request_j: f64, noise: f64| {
        points(owner, request_j, 1e-4)
            .into_iter()
            .enumerate()
            .map(move |(index, point)| ProbePoint {
                client,
                net_j: point.net_j * if index % 2 == 0 { 1.0 + noise } else { 1.0 - noise },
                ..point
            })
    };
    let twice = |client, owner, request_j, noise| {
        of(client, owner, request_j, noise).chain(of(client, owner, request_j, -noise))
    };
    let equal: Vec<_> = twice(1, 0, 0.1, 0.02).chain(twice(2, 0, 0.1, 0.021)).collect();
    let profile = Profile::fit(setting(), equal, Vec::new()).unwrap();
    assert_eq!(profile.pairs.len(), 2);
    let owners = |profile: &Profile, rank| profile.coefficients_of(rank, 3, 3, 0.0, 0.0).owners;
    assert_eq!(owners(&profile, 1), owners(&profile, 2));
    let mixed: Vec<_> = twice(1, 0, 0.1, 0.001).chain(twice(2, 0, 0.2, 0.001)).collect();
    let profile = Profile::fit(setting(), mixed, Vec::new()).unwrap();
    let (one, other) = (owners(&profile, 1)[0], owners(&profile, 2)[0]);
    assert!(
        (other.request_j / one.request_j - 2.0).abs() < 0.05,
        "{one:?} {other:?}"
    );
}

#[test]
fn deliveries_are_priced_by_their_own_line() {
    let deliveries: Vec<_> = points(2, 0.01, 1e-4);
    let profile = Profile::fit(setting(), points(2, 0.1, 1e-4), deliveries).unwrap();
    let delivery = profile.coefficients(3, 3, 0.0, 0.0).delivery.unwrap();
    assert!((delivery.delivery_j - 0.01).abs() < 1e-9 && delivery.delivery_s > 0.0);
    assert!(profile.to_string().contains("a delivery of a stream"));
    let without = Profile::fit(setting(), points(2, 0.1, 1e-4), Vec::new()).unwrap();
    assert_eq!(without.coefficients(3, 3, 0.0, 0.0).delivery, None);
}
