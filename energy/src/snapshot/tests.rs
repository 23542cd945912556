use proptest::prelude::*;

use super::*;

fn state(domain: &str, kind: DomainKind, quality: Quality, joules: f64) -> DomainState {
    DomainState::new(
        domain,
        kind,
        quality,
        Accumulated {
            joules,
            gap_s: 0.0,
            gaps: 0,
            live: true,
        },
    )
}

fn snapshot(at_s: f64, domains: Vec<DomainState>) -> EnergySnapshot {
    let process = ProcessUse {
        cpu_s: at_s * 2.0,
        ..ProcessUse::default()
    };
    EnergySnapshot {
        host: "host".to_owned(),
        started_s: 1.0,
        at_s,
        process,
        domains,
        ticks: TickStats::default(),
    }
}

fn keys(energies: &[DomainEnergy]) -> Vec<DomainKey> {
    energies.iter().map(|energy| energy.key.clone()).collect()
}

fn package(joules: f64) -> DomainState {
    state("package-0", DomainKind::Package, Quality::Measured, joules)
}

fn with_gap(mut state: DomainState, gap_s: f64) -> DomainState {
    state.gap_s = gap_s;
    state.gaps = 1;
    state
}

/// The energy of the only domain in a window of 100 s.
fn only(before: DomainState, after: DomainState) -> DomainEnergy {
    let reading = snapshot(110.0, vec![after]).since(&snapshot(10.0, vec![before]));
    assert_eq!(reading.domains.len(), 1);
    reading.domains[0].clone()
}

fn energy(host: &str, domain: &str, kind: DomainKind, joules: Option<f64>, quality: Quality) -> DomainEnergy {
    DomainEnergy {
        key: DomainKey::new(host, domain),
        kind,
        joules,
        quality,
        gaps: 0,
        gap_s: 0.0,
    }
}

fn measured(host: &str, domain: &str, kind: DomainKind, joules: f64) -> DomainEnergy {
    energy(host, domain, kind, Some(joules), Quality::Measured)
}

fn lost(host: &str, domain: &str, kind: DomainKind) -> DomainEnergy {
    energy(host, domain, kind, None, Quality::Unavailable)
}

fn estimate(host: &str, domain: &str, joules: f64) -> DomainEnergy {
    energy(host, domain, DomainKind::Estimate, Some(joules), Quality::Estimated)
}

fn reading(host: &str, domains: Vec<DomainEnergy>) -> EnergyReading {
    EnergyReading {
        host: host.to_owned(),
        domains,
        duration_s: 10.0,
        cpu_s: 3.0,
    }
}

fn names(total: &EnergyTotal) -> Vec<&str> {
    total.counted.iter().map(|energy| energy.key.domain.as_str()).collect()
}

#[test]
fn a_window_is_the_difference_of_two_snapshots() {
    let reading = snapshot(15.0, vec![package(250.0)]).since(&snapshot(5.0, vec![package(100.0)]));
    assert_eq!((reading.duration_s, reading.cpu_s), (10.0, 20.0));
    assert_eq!(
        reading.domains,
        [measured("host", "package-0", DomainKind::Package, 150.0)]
    );
    let total = reading.total();
    assert_eq!((total.joules, total.quality), (Some(150.0), Quality::Measured));
}

#[test]
fn a_short_gap_is_bridged_as_an_estimate() {
    let energy = only(package(0.0), with_gap(package(9_600.0), 4.0));
    assert_eq!((energy.joules, energy.quality), (Some(10_000.0), Quality::Estimated));
    assert_eq!((energy.gaps, energy.gap_s), (1, 4.0));
}

#[test]
fn a_long_gap_leaves_no_figure() {
    let energy = only(package(0.0), with_gap(package(9_000.0), 10.0));
    assert_eq!(
        (energy.joules, energy.quality, energy.gap_s),
        (None, Quality::Unavailable, 10.0)
    );
}

#[test]
fn joules_that_reach_back_before_the_window_are_scaled_to_it() {
    // The gap was open for 3 s at the first snapshot, and the counter has made it good by the second: 103 s of energy.
    let energy = only(with_gap(package(0.0), 3.0), package(1_030.0));
    assert_eq!(energy.quality, Quality::Estimated);
    assert!((energy.joules.unwrap() - 1_000.0).abs() < 1e-9);
    assert_eq!((energy.gaps, energy.gap_s), (0, 0.0));
}

#[test]
fn a_domain_that_never_moved_is_not_there() {
    let mut frozen = state("package-0/dram", DomainKind::Dram, Quality::Measured, 0.0);
    frozen.live = false;
    let reading = snapshot(2.0, vec![package(9.0), frozen.clone()]).since(&snapshot(1.0, vec![package(1.0), frozen]));
    assert_eq!(reading.domains.len(), 1);
    assert_eq!(reading.total().joules, Some(8.0));
}

#[test]
fn a_socket_that_stands_still_beside_one_that_moves_leaves_the_sum_to_the_estimate() {
    let mut still = state("package-1", DomainKind::Package, Quality::Measured, 0.0);
    still.live = false;
    let guess = |joules| state("cpu-estimate", DomainKind::Estimate, Quality::Estimated, joules);
    let window = |extra: [Option<DomainState>; 2]| {
        let [before, after] = [(1.0, 1.0), (2.0, 9.0)].map(|(at_s, joules)| {
            let domains = [Some(package(joules)), Some(still.clone())].into_iter().flatten();
            (at_s, domains.collect::<Vec<_>>())
        });
        let [guess_before, guess_after] = extra;
        let earlier = snapshot(before.0, before.1.into_iter().chain(guess_before).collect());
        snapshot(after.0, after.1.into_iter().chain(guess_after).collect()).since(&earlier)
    };
    let with_guess = window([Some(guess(0.0)), Some(guess(20.0))]).total();
    assert_eq!(
        (with_guess.joules, with_guess.quality),
        (Some(20.0), Quality::Estimated)
    );
    let alone = window([None, None]).total();
    assert_eq!((alone.joules, alone.quality), (None, Quality::Unavailable));
    assert_eq!(keys(&alone.missing), [DomainKey::new("host", "package-1")]);
}

#[test]
fn what_is_skipped_is_in_neither_the_energy_nor_the_time() {
    let dram = |joules| state("package-0/dram", DomainKind::Dram, Quality::Measured, joules);
    let at = |at_s, joules| snapshot(at_s, vec![package(joules), dram(joules / 10.0)]);
    let (start, from, to, end) = (at(10.0, 100.0), at(12.0, 120.0), at(17.0, 400.0), at(20.0, 450.0));
    let skipped = to.since(&from);
    let rest = end.since(&start.skipping(&from, &to));
    assert_eq!((rest.duration_s, rest.cpu_s), (5.0, 10.0));
    assert_eq!(rest.total().joules, Some(77.0));
    let whole = end.since(&start);
    assert_eq!(whole.duration_s, rest.duration_s + skipped.duration_s);
    assert_eq!(
        whole.total().joules,
        rest.total()
            .joules
            .zip(skipped.total().joules)
            .map(|(rest, skipped)| rest + skipped)
    );

    // A gap belongs to where it was.
    let with_hole = |at_s, joules| snapshot(at_s, vec![with_gap(package(joules), 5.0)]);
    let rest = with_hole(20.0, 450.0).since(&at(10.0, 100.0).skipping(&at(12.0, 120.0), &with_hole(17.0, 120.0)));
    assert_eq!((rest.domains[0].joules, rest.domains[0].gap_s), (Some(350.0), 0.0));
}

#[test]
fn a_domain_that_starts_to_move_counts_from_the_first_reading() {
    let mut still = package(0.0);
    still.live = false;
    let energy = only(still, package(5.0));
    assert_eq!((energy.joules, energy.quality), (Some(5.0), Quality::Measured));
}

#[test]
fn of_a_gpus_counter_and_power_the_better_one_counts() {
    let counter = |joules| state("gpu/a", DomainKind::Gpu, Quality::Measured, joules);
    let power = |joules| state("gpu/a", DomainKind::Gpu, Quality::Integrated, joules);
    let before = || snapshot(10.0, vec![counter(0.0), power(0.0)]);
    let good = snapshot(110.0, vec![counter(100.0), power(95.0)]).since(&before());
    assert_eq!(good.domains, [measured("host", "gpu/a", DomainKind::Gpu, 100.0)]);

    let reset = snapshot(110.0, vec![with_gap(counter(40.0), 60.0), power(95.0)]).since(&before());
    assert_eq!(
        reset.domains,
        [energy(
            "host",
            "gpu/a",
            DomainKind::Gpu,
            Some(95.0),
            Quality::Integrated
        )]
    );
}

#[test]
fn a_gpu_without_any_reading_leaves_the_total_open() {
    let mut dumb = state("gpu/a", DomainKind::Gpu, Quality::Unavailable, 0.0);
    dumb.live = false;
    let reading = snapshot(2.0, vec![package(9.0), dumb.clone()]).since(&snapshot(1.0, vec![package(1.0), dumb]));
    let total = reading.total();
    assert_eq!((total.joules, total.quality), (None, Quality::Unavailable));
    assert_eq!(keys(&total.missing), [DomainKey::new("host", "gpu/a")]);
    assert_eq!(names(&total), ["package-0"]);
}

#[test]
fn snapshots_of_different_meters_have_no_figure_in_common() {
    let before = snapshot(10.0, vec![package(0.0)]);
    let after = snapshot(20.0, vec![package(100.0)]);
    let restarted = EnergySnapshot {
        started_s: 2.0,
        ..before.clone()
    };
    let elsewhere = EnergySnapshot {
        host: "other".to_owned(),
        ..before.clone()
    };
    for (later, earlier) in [(&after, &restarted), (&after, &elsewhere), (&before, &after)] {
        let reading = later.since(earlier);
        assert_eq!(reading.domains[0].joules, None);
        assert!(reading.duration_s >= 0.0);
        assert_eq!(reading.cpu_s, later.process.cpu_s);
    }
    assert_eq!(after.since(&after).domains[0].joules, Some(0.0));
}

#[test]
fn machines_on_one_host_count_a_domain_once() {
    // Windows of different machines overlap: only those of one add up over time.
    let machine = |joules| reading("a", vec![measured("a", "package-0", DomainKind::Package, joules)]);
    let total = combine(&[machine(100.0), machine(101.0), machine(99.0), machine(100.5)]);
    assert_eq!((total.joules, total.quality), (Some(100.0), Quality::Measured));
    assert_eq!((total.cpu_s, total.duration_s), (12.0, 10.0));
    let two_hosts = combine(&[
        machine(100.0),
        reading("b", vec![measured("b", "package-0", DomainKind::Package, 7.0)]),
    ]);
    assert_eq!(two_hosts.joules, Some(107.0));
}

#[test]
fn a_machine_that_could_not_read_does_not_spoil_one_that_could() {
    let total = combine(&[
        reading("a", vec![lost("a", "package-0", DomainKind::Package)]),
        reading("a", vec![measured("a", "package-0", DomainKind::Package, 50.0)]),
        reading(
            "a",
            vec![energy(
                "a",
                "package-0",
                DomainKind::Package,
                Some(60.0),
                Quality::Estimated,
            )],
        ),
    ]);
    assert_eq!((total.joules, total.quality), (Some(50.0), Quality::Measured));
}

#[test]
fn what_lies_inside_another_domain_is_not_summed() {
    let total = reading(
        "a",
        vec![
            measured("a", "package-0", DomainKind::Package, 100.0),
            measured("a", "package-0/core", DomainKind::Core, 80.0),
            measured("a", "package-0/dram", DomainKind::Dram, 10.0),
            measured("a", "package-0/uncore", DomainKind::Uncore, 5.0),
            measured("a", "psys", DomainKind::Psys, 500.0),
            energy("a", "gpu/x", DomainKind::Gpu, Some(40.0), Quality::Integrated),
        ],
    )
    .total();
    assert_eq!((total.joules, total.quality), (Some(150.0), Quality::Integrated));
    assert_eq!(names(&total), ["gpu/x", "package-0/dram", "package-0"]);
    assert_eq!(
        keys(&total.shown),
        ["package-0/core", "package-0/uncore", "psys"].map(|domain| DomainKey::new("a", domain))
    );
}

#[test]
fn an_estimate_counts_only_where_no_package_does() {
    let measured_host = reading(
        "a",
        vec![
            measured("a", "package-0", DomainKind::Package, 100.0),
            estimate("a", "cpu-estimate", 300.0),
        ],
    );
    assert_eq!(measured_host.total().joules, Some(100.0));

    let blind_host = reading("b", vec![estimate("b", "cpu-estimate", 30.0)]);
    let both = combine([&measured_host, &blind_host]);
    assert_eq!((both.joules, both.quality), (Some(130.0), Quality::Estimated));
}

#[test]
fn the_estimate_stands_in_for_all_packages_when_one_is_lost() {
    let total = reading(
        "a",
        vec![
            measured("a", "package-0", DomainKind::Package, 100.0),
            lost("a", "package-1", DomainKind::Package),
            measured("a", "package-0/dram", DomainKind::Dram, 5.0),
            estimate("a", "cpu-estimate", 180.0),
        ],
    )
    .total();
    assert_eq!((total.joules, total.quality), (Some(185.0), Quality::Estimated));
}

#[test]
fn a_package_that_is_lost_without_a_stand_in_leaves_the_total_open() {
    let total = reading(
        "a",
        vec![
            measured("a", "package-0", DomainKind::Package, 100.0),
            lost("a", "package-1", DomainKind::Package),
        ],
    )
    .total();
    assert_eq!((total.joules, total.quality), (None, Quality::Unavailable));
    assert_eq!(keys(&total.missing), [DomainKey::new("a", "package-1")]);
}

#[test]
fn containers_with_quotas_add_up_and_a_whole_host_covers_them() {
    let containers = [
        reading("a", vec![estimate("a", "cpu-estimate/11", 10.0)]),
        reading("a", vec![estimate("a", "cpu-estimate/11", 10.5)]),
        reading("a", vec![estimate("a", "cpu-estimate/12", 20.0)]),
    ];
    assert_eq!(combine(&containers).joules, Some(30.0));
    let host = reading("a", vec![estimate("a", "cpu-estimate", 200.0)]);
    assert_eq!(combine(containers.iter().chain([&host])).joules, Some(200.0));
}

#[test]
fn nothing_is_not_zero() {
    let nobody = combine([]);
    assert_eq!((nobody.joules, nobody.quality), (None, Quality::Unavailable));
    let blind = combine(&[
        reading("a", vec![]),
        reading("b", vec![measured("b", "package-0", DomainKind::Package, 1.0)]),
    ]);
    assert_eq!((blind.joules, blind.quality), (None, Quality::Unavailable));
    assert_eq!(keys(&blind.missing), [DomainKey::new("a", "cpu-estimate")]);
}

#[test]
fn snapshots_readings_and_totals_travel() {
    fn round<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let json = serde_json::to_string(value).unwrap();
        assert_eq!(&serde_json::from_str::<T>(&json).unwrap(), value);
        let packed = rmp_serde::to_vec(value).unwrap();
        assert_eq!(&rmp_serde::from_slice::<T>(&packed).unwrap(), value);
    }
    round(&snapshot(3.0, vec![with_gap(package(1.5), 0.25)]));
    let reading = reading(
        "a",
        vec![lost("a", "gpu/x", DomainKind::Gpu), estimate("a", "cpu-estimate", 2.5)],
    );
    round(&reading);
    round(&reading.total());
}

fn any_domain() -> impl Strategy<Value = DomainEnergy> {
    let domains = [
        ("package-0", DomainKind::Package),
        ("package-1", DomainKind::Package),
        ("package-0/dram", DomainKind::Dram),
        ("psys", DomainKind::Psys),
        ("gpu/x", DomainKind::Gpu),
        ("cpu-estimate", DomainKind::Estimate),
        ("cpu-estimate/7", DomainKind::Estimate),
    ];
    let qualities = [Quality::Measured, Quality::Integrated, Quality::Estimated];
    (
        0..domains.len(),
        prop::option::weighted(0.8, 0.0..1e6f64),
        0..qualities.len(),
    )
        .prop_map(move |(domain, joules, quality)| {
            let (name, kind) = domains[domain];
            let quality = joules.map_or(Quality::Unavailable, |_| qualities[quality]);
            energy("", name, kind, joules, quality)
        })
}

proptest! {
    /// The order of the machines does not matter, and hearing a machine twice changes no joule.
    #[test]
    fn a_total_is_a_set(
        machines in prop::collection::vec((0..3usize, prop::collection::vec(any_domain(), 0..6)), 1..6),
    ) {
        let readings: Vec<EnergyReading> = machines
            .into_iter()
            .map(|(host, mut domains)| {
                let host = ["a", "b", "c"][host];
                domains.iter_mut().for_each(|energy| energy.key.host = host.to_owned());
                reading(host, domains)
            })
            .collect();
        let total = combine(&readings);
        let backwards = combine(readings.iter().rev());
        // The order decides only between figures of one quality.
        let what = |total: &EnergyTotal| -> Vec<_> {
            total.counted.iter().map(|energy| (energy.key.clone(), energy.quality)).collect()
        };
        prop_assert_eq!(what(&total), what(&backwards));
        prop_assert_eq!(total.quality, backwards.quality);
        prop_assert_eq!(&total.missing, &backwards.missing);
        let twice = combine(readings.iter().chain(&readings));
        prop_assert_eq!(total.joules, twice.joules);
        prop_assert_eq!(total.joules.is_none(), total.quality == Quality::Unavailable);
        prop_assert!(total.counted.iter().all(|energy| energy.kind.counts_in_total()));
        prop_assert!(total.counted.iter().all(|energy| energy.quality <= total.quality));
    }
}
