use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::clock::ManualClock;

const RANGE: u64 = 262_143_328_850;

/// A powercap tree whose counters a test advances.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    /// A zone at `path` under the root: `intel-rapl/intel-rapl:0`.
    fn zone(&self, path: &str, name: &str, energy_uj: u64) -> &Self {
        let folder = self.root().join(path);
        create_dir_all(&folder).unwrap();
        write(folder.join("name"), format!("{name}\n")).unwrap();
        write(folder.join("max_energy_range_uj"), format!("{RANGE}\n")).unwrap();
        write(folder.join("constraint_0_max_power_uw"), "150000000\n").unwrap();
        self.set(path, energy_uj)
    }

    fn set(&self, path: &str, energy_uj: u64) -> &Self {
        write(self.root().join(path).join("energy_uj"), format!("{energy_uj}\n")).unwrap();
        self
    }

    fn open(&self) -> Rapl {
        Rapl::open(self.root(), Quality::Measured).unwrap()
    }

    fn error(&self) -> RaplUnavailable {
        Rapl::open(self.root(), Quality::Measured).unwrap_err()
    }
}

fn domains(rapl: &Rapl) -> Vec<(&str, DomainKind)> {
    rapl.zones
        .iter()
        .map(|zone| (zone.domain.as_str(), zone.kind))
        .collect()
}

/// Joules by domain.
fn joules(rapl: &Rapl, now_s: f64) -> Vec<(String, f64)> {
    let mut states = Vec::new();
    rapl.states(now_s, &mut states);
    states
        .into_iter()
        .filter(|state| state.live)
        .map(|state| (state.domain, state.joules))
        .collect()
}

#[test]
fn zones_go_by_their_names_and_sockets_are_told_apart() {
    let tree = Tree::new();
    tree.zone("intel-rapl/intel-rapl:0", "package-1", 0)
        .zone("intel-rapl/intel-rapl:0/intel-rapl:0:0", "core", 0)
        .zone("intel-rapl/intel-rapl:0/intel-rapl:0:1", "dram", 0)
        .zone("intel-rapl/intel-rapl:1", "package-0", 0)
        .zone("intel-rapl/intel-rapl:1/intel-rapl:1:0", "dram", 0)
        .zone("intel-rapl/intel-rapl:2", "psys", 0);
    let expected = [
        ("package-0", DomainKind::Package),
        ("package-0/dram", DomainKind::Dram),
        ("package-1", DomainKind::Package),
        ("package-1/core", DomainKind::Core),
        ("package-1/dram", DomainKind::Dram),
        ("psys", DomainKind::Psys),
    ];
    assert_eq!(domains(&tree.open()), expected);
    let one_type = Rapl::open(&tree.root().join("intel-rapl"), Quality::Measured).unwrap();
    assert_eq!(domains(&one_type), expected);
}

#[test]
fn the_flat_class_folder_gives_the_same_as_the_tree() {
    let tree = Tree::new();
    tree.zone("devices/intel-rapl/intel-rapl:0", "package-0", 0).zone(
        "devices/intel-rapl/intel-rapl:0/intel-rapl:0:0",
        "dram",
        0,
    );
    let class = tree.root().join("class");
    create_dir_all(&class).unwrap();
    symlink("../devices/intel-rapl", class.join("intel-rapl")).unwrap();
    symlink("../devices/intel-rapl/intel-rapl:0", class.join("intel-rapl:0")).unwrap();
    symlink(
        "../devices/intel-rapl/intel-rapl:0/intel-rapl:0:0",
        class.join("intel-rapl:0:0"),
    )
    .unwrap();
    let rapl = Rapl::open(&class, Quality::Measured).unwrap();
    assert_eq!(
        domains(&rapl),
        [("package-0", DomainKind::Package), ("package-0/dram", DomainKind::Dram)]
    );
}

#[test]
fn dies_are_packages_and_amd_has_no_dram() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0-die-0", 0)
        .zone("intel-rapl:1", "package-0-die-1", 0);
    let rapl = tree.open();
    assert_eq!(
        domains(&rapl),
        [
            ("package-0-die-0", DomainKind::Package),
            ("package-0-die-1", DomainKind::Package)
        ]
    );
    let amd = Tree::new();
    amd.zone("intel-rapl:0", "package-0", 0)
        .zone("intel-rapl:0/intel-rapl:0:0", "core", 0);
    assert_eq!(
        domains(&amd.open()),
        [("package-0", DomainKind::Package), ("package-0/core", DomainKind::Core)]
    );
}

#[test]
fn four_sockets_of_two_dies_are_eight_packages_in_any_order() {
    let tree = Tree::new();
    for index in 0..8u32 {
        // The kernel numbers zones as it finds them.
        let (socket, die) = ((7 - index) / 2, (7 - index) % 2);
        tree.zone(
            &format!("intel-rapl/intel-rapl:{index}"),
            &format!("package-{socket}-die-{die}"),
            0,
        );
    }
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    rapl.sample(&clock, true);
    for index in 0..8u64 {
        tree.set(&format!("intel-rapl/intel-rapl:{index}"), (index + 1) * 1_000_000);
    }
    clock.set(1.0);
    rapl.sample(&clock, true);
    let expected: Vec<(String, f64)> = (0..8u32)
        .map(|place| (format!("package-{}-die-{}", place / 2, place % 2), f64::from(8 - place)))
        .collect();
    assert_eq!(joules(&rapl, 1.0), expected);
}

#[test]
fn a_package_that_shows_twice_is_taken_once() {
    let tree = Tree::new();
    tree.zone("intel-rapl-mmio/intel-rapl-mmio:0", "package-0", 0)
        .zone("intel-rapl/intel-rapl:0", "package-0", 0);
    let rapl = tree.open();
    assert_eq!(domains(&rapl), [("package-0", DomainKind::Package)]);
    assert!(rapl.zones[0].path.ends_with("intel-rapl/intel-rapl:0/energy_uj"));

    let only_memory = Tree::new();
    only_memory.zone("intel-rapl-mmio/intel-rapl-mmio:0", "package-0", 0);
    assert_eq!(domains(&only_memory.open()), [("package-0", DomainKind::Package)]);
}

#[test]
fn two_zones_of_one_name_are_both_kept() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 0)
        .zone("intel-rapl:1", "package-0", 0);
    let rapl = tree.open();
    assert_eq!(
        domains(&rapl),
        [
            ("package-0", DomainKind::Package),
            ("package-0@intel-rapl:1", DomainKind::Package)
        ]
    );
}

#[test]
fn the_joules_are_those_that_were_written_over_a_wrap() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", RANGE - 3_000_000)
        .zone("intel-rapl:0/intel-rapl:0:0", "dram", 500);
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    rapl.sample(&clock, true);
    let mut written_uj = 0;
    for tick in 1..=200u32 {
        written_uj += 5_000 * u64::from(tick);
        tree.set("intel-rapl:0", (RANGE - 3_000_000 + written_uj) % RANGE);
        tree.set("intel-rapl:0/intel-rapl:0:0", 500 + 1_000_000);
        clock.set(f64::from(tick) * 0.05);
        rapl.sample(&clock, false);
    }
    let truth = [
        ("package-0".to_owned(), written_uj as f64 * 1e-6),
        ("package-0/dram".to_owned(), 1.0),
    ];
    assert_eq!(joules(&rapl, 10.0), truth);
    let mut states = Vec::new();
    rapl.states(10.0, &mut states);
    assert!(
        states
            .iter()
            .all(|state| state.quality == Quality::Measured && state.gaps == 0 && state.gap_s == 0.0)
    );
}

#[test]
fn without_a_readable_range_a_wrap_is_a_gap() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 9_000_000);
    write(tree.root().join("intel-rapl:0/max_energy_range_uj"), "nonsense").unwrap();
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    for (at_s, energy_uj) in [(0.0, 9_000_000), (1.0, 10_000_000), (2.0, 1_000_000), (3.0, 3_000_000)] {
        tree.set("intel-rapl:0", energy_uj);
        clock.set(at_s);
        rapl.sample(&clock, false);
    }
    let mut states = Vec::new();
    rapl.states(3.0, &mut states);
    assert_eq!((states[0].joules, states[0].gaps, states[0].gap_s), (3.0, 1, 1.0));
}

#[test]
fn a_counter_that_stands_still_has_no_figure_and_says_why() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 0);
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    for tick in 0..=200 {
        clock.set(f64::from(tick) * 0.05);
        rapl.sample(&clock, false);
        assert!(joules(&rapl, clock.now_s()).is_empty());
    }
    assert_eq!(
        rapl.frozen(),
        Some(RaplUnavailable::NeverMoves {
            root: tree.root().to_owned()
        })
    );
    assert_eq!(rapl.report().quality, Quality::Unavailable);
    assert!(rapl.report().detail.contains("never move"));
    tree.set("intel-rapl:0", 70_000_000);
    rapl.sample(&clock, false);
    assert_eq!(rapl.frozen(), None);
    assert_eq!(joules(&rapl, 10.0), [("package-0".to_owned(), 70.0)]);
}

#[test]
fn a_second_without_a_move_is_enough_and_one_still_socket_is_a_warning() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 0)
        .zone("intel-rapl:1", "package-1", 0);
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    rapl.sample(&clock, true);
    clock.set(0.9);
    rapl.sample(&clock, false);
    assert_eq!(rapl.frozen(), None);
    clock.set(1.0);
    rapl.sample(&clock, false);
    assert!(matches!(rapl.frozen(), Some(RaplUnavailable::NeverMoves { .. })));
    tree.set("intel-rapl:0", 5_000_000);
    clock.set(1.05);
    rapl.sample(&clock, false);
    assert_eq!(rapl.frozen(), None);
    let [warning] = &rapl.report().warnings[..] else {
        panic!("{:?}", rapl.report());
    };
    assert!(warning.to_string().contains("package-1"), "{warning}");
    tree.set("intel-rapl:1", 1);
    rapl.sample(&clock, false);
    assert!(rapl.report().warnings.is_empty());
}

#[test]
fn a_file_that_is_replaced_is_followed() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 1_000_000);
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    rapl.sample(&clock, true);
    let (new, energy) = (tree.root().join("new"), tree.root().join("intel-rapl:0/energy_uj"));
    write(&new, "3000000\n").unwrap();
    std::fs::rename(&new, &energy).unwrap();
    clock.set(0.05);
    rapl.sample(&clock, true);
    assert_eq!(joules(&rapl, 0.05), [("package-0".to_owned(), 2.0)]);

    // Gone for a while: an open gap, and nothing is lost once it is back.
    std::fs::remove_file(&energy).unwrap();
    write(tree.root().join("intel-rapl:0/other"), "").unwrap();
    clock.set(0.10);
    rapl.sample(&clock, true);
    write(&energy, "4500000\n").unwrap();
    clock.set(0.15);
    rapl.sample(&clock, true);
    assert_eq!(joules(&rapl, 0.15), [("package-0".to_owned(), 3.5)]);
}

#[test]
fn a_value_that_is_no_number_is_an_open_gap() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 1_000_000);
    let mut rapl = tree.open();
    let clock = ManualClock::default();
    let energy = tree.root().join("intel-rapl:0/energy_uj");
    for (at_s, text, gap_s) in [
        (0.0, "0\n", 0.0),
        (1.0, "1000000\n", 0.0),
        (2.0, "", 1.0),
        (3.0, "-5\n", 2.0),
        (4.0, "4000000\n", 0.0),
    ] {
        write(&energy, text).unwrap();
        clock.set(at_s);
        rapl.sample(&clock, false);
        let mut states = Vec::new();
        rapl.states(at_s, &mut states);
        assert_eq!(states[0].gap_s, gap_s, "at {at_s}");
    }
    assert_eq!(joules(&rapl, 4.0), [("package-0".to_owned(), 4.0)]);
}

#[test]
fn every_reason_is_told_from_the_others_with_its_remedy() {
    let text = |error: &RaplUnavailable| error.to_string();

    let nothing = Tree::new();
    let absent = Rapl::open(&nothing.root().join("no-such-folder"), Quality::Measured).unwrap_err();
    assert!(matches!(absent, RaplUnavailable::Absent { .. }), "{absent:?}");
    assert!(text(&absent).contains("intel_rapl_msr") && text(&absent).contains("GREENGNN_RAPL_ROOT"));
    assert!(matches!(nothing.error(), RaplUnavailable::Absent { .. }));

    let dangling = Tree::new();
    symlink(
        "../../devices/virtual/powercap/intel-rapl/intel-rapl:0",
        dangling.root().join("intel-rapl:0"),
    )
    .unwrap();
    assert!(matches!(dangling.error(), RaplUnavailable::Dangling { .. }));
    assert!(text(&dangling.error()).contains("mount /sys/devices/virtual/powercap"));

    let only_psys = Tree::new();
    only_psys.zone("intel-rapl:0", "psys", 0);
    assert!(matches!(only_psys.error(), RaplUnavailable::NoPackage { .. }));

    let garbled = Tree::new();
    garbled.zone("intel-rapl:0", "package-0", 0);
    write(garbled.root().join("intel-rapl:0/energy_uj"), "hello").unwrap();
    assert!(matches!(garbled.error(), RaplUnavailable::Unreadable { .. }));
    assert!(text(&garbled.error()).contains("energy_uj"));

    let nameless = Tree::new();
    create_dir_all(nameless.root().join("intel-rapl:0")).unwrap();
    assert!(matches!(nameless.error(), RaplUnavailable::Unreadable { .. }));
}

#[test]
fn denied_permission_names_the_file_and_the_ways_out() {
    let denied = RaplUnavailable::of_file(Path::new("/x/energy_uj"), &std::io::ErrorKind::PermissionDenied.into());
    let text = denied.to_string();
    for word in [
        "/x/energy_uj",
        "permission denied",
        "root",
        "CAP_DAC_READ_SEARCH",
        "udev",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn a_socket_that_may_not_be_read_makes_the_sum_unavailable() {
    use std::os::unix::fs::PermissionsExt;
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 0)
        .zone("intel-rapl:1", "package-1", 0);
    let secret = tree.root().join("intel-rapl:1/energy_uj");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
    if File::open(&secret).is_ok() {
        eprintln!("skipped: this user (root) may read everything");
        return;
    }
    assert_eq!(tree.error(), RaplUnavailable::Permission { path: secret });
}

#[test]
fn the_search_takes_the_first_tree_and_tells_the_most_telling_reason() {
    let (empty, dangling, good) = (Tree::new(), Tree::new(), Tree::new());
    symlink("/no/such/zone", dangling.root().join("intel-rapl:0")).unwrap();
    good.zone("intel-rapl:0", "package-0", 0);
    let roots = |trees: &[&Tree]| trees.iter().map(|tree| tree.root().to_owned()).collect::<Vec<_>>();

    let found = Rapl::search_in(&roots(&[&empty, &dangling, &good]), false).unwrap();
    assert_eq!((found.root.as_path(), found.quality), (good.root(), Quality::Measured));
    assert_eq!(
        Rapl::search_in(&roots(&[&good]), true).unwrap().quality,
        Quality::Virtual
    );
    let reason = |trees: &[&Tree], guest| Rapl::search_in(&roots(trees), guest).unwrap_err();
    assert!(matches!(
        reason(&[&empty, &dangling], true),
        RaplUnavailable::Dangling { .. }
    ));
    assert!(matches!(
        reason(&[&empty], true),
        RaplUnavailable::VirtualMachine { .. }
    ));
    assert_eq!(
        reason(&[&empty], false),
        RaplUnavailable::Absent {
            searched: roots(&[&empty])
        }
    );
}

#[test]
fn a_guest_is_known_by_its_flags() {
    assert!(is_guest("processor: 0\nflags\t\t: fpu hypervisor sse\n"));
    assert!(!is_guest("processor: 0\nflags\t\t: fpu sse\nmodel name: hypervisor\n"));
    assert!(!is_guest(""));
}

#[test]
fn the_power_cap_follows_a_zone_that_may_draw_more() {
    let tree = Tree::new();
    tree.zone("intel-rapl:0", "package-0", 0);
    let folder = tree.root().join("intel-rapl:0");
    assert_eq!(power_cap_w(&folder), DEFAULT_POWER_CAP_W);
    write(folder.join("constraint_1_max_power_uw"), "1000000000\n").unwrap();
    assert_eq!(power_cap_w(&folder), 1500.0);
}
