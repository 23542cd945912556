//! The energy counters of processors and memory, read from the kernel's powercap tree (Intel RAPL; AMD has the same
//! files).
//!
//! - Zones are known by their `name`, never by their index: `package-0` may be `intel-rapl:1`.
//! - Packages and DRAM are summed. `core` and `uncore` lie inside a package, `psys` around everything: they are only
//!   shown.
//! - A package may show twice, through its registers (`intel-rapl`) and through memory (`intel-rapl-mmio`); one of them
//!   is taken.
//! - Files stay open, and a reading is one system call per zone.
//!
//! Where figures are missing, [`RaplUnavailable`] says why and what to do.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::Clock;
use crate::counter::{CounterRange, CounterTotal, DEFAULT_POWER_CAP_W, Unwrapper};
use crate::domain::DomainKind;
use crate::quality::Quality;
use crate::snapshot::DomainState;
use crate::source::{Source, SourceReport, SourceWarning};

mod discover;
mod unavailable;

pub use unavailable::RaplUnavailable;

/// Environment variable that names the root of the tree. It is read by [`crate::meter::MeterConfig::from_env`], nowhere
/// else.
pub const ROOT_VARIABLE: &str = "GREENGNN_RAPL_ROOT";

/// Where the tree is looked for: in a container with the host's `/sys` mounted beside, then where the kernel shows it.
pub const SEARCH_LIST: [&str; 4] = [
    "/host/sys/devices/virtual/powercap",
    "/host/sys/class/powercap",
    "/sys/class/powercap",
    "/sys/devices/virtual/powercap",
];

/// A socket may draw this much more than the limit that its zone states, for short.
const OVER_LIMIT: f64 = 1.5;

/// A counter that has not moved for so long measures nothing: it is updated every millisecond, and a processor is never
/// without power.
const NEVER_MOVES_AFTER_S: f64 = 1.0;

/// Further tries of the first reading of a zone, and the pause before each.
const FIRST_READ_RETRIES: u32 = 5;
const FIRST_READ_PAUSE: Duration = Duration::from_millis(2);

/// One zone of the tree and its energy.
#[derive(Debug)]
struct Zone {
    /// `package-0`, `package-0/dram`.
    domain: String,
    kind: DomainKind,
    /// Its `energy_uj`.
    path: PathBuf,
    file: File,
    total: CounterTotal,
}

impl Zone {
    fn open(domain: String, kind: DomainKind, folder: &Path) -> Result<Self, RaplUnavailable> {
        let path = folder.join("energy_uj");
        let file = File::open(&path).map_err(|error| RaplUnavailable::of_file(&path, &error))?;
        let range = read_number(&folder.join("max_energy_range_uj"))
            .filter(|&range| range > 0)
            .map_or(CounterRange::Unknown, CounterRange::Known);
        let unwrapper = Unwrapper::new(range, power_cap_w(folder));
        let zone = Self {
            domain,
            kind,
            path,
            file,
            total: CounterTotal::new(unwrapper),
        };
        zone.read_patiently()
            .map_err(|error| RaplUnavailable::of_file(&zone.path, &error))?;
        Ok(zone)
    }

    /// Reads the counter, a few times if it fails: one that is just being written decides nothing about a whole run.
    fn read_patiently(&self) -> std::io::Result<u64> {
        let mut answer = self.read();
        for _ in 0..FIRST_READ_RETRIES {
            if answer.is_ok() {
                break;
            }
            std::thread::sleep(FIRST_READ_PAUSE);
            answer = self.read();
        }
        answer
    }

    /// The counter now, in microjoules.
    fn read(&self) -> std::io::Result<u64> {
        let mut buffer = [0; 32];
        let length = self.file.read_at(&mut buffer, 0)?;
        std::str::from_utf8(&buffer[..length])
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "not a number of microjoules"))
    }

    /// Reads the counter. A file that fails is opened anew: a reload of the driver makes new ones.
    fn sample(&mut self, clock: &dyn Clock) {
        let raw_uj = self.read().or_else(|_| {
            self.file = File::open(&self.path)?;
            self.read()
        });
        match raw_uj {
            Ok(raw_uj) => {
                self.total.feed(raw_uj, clock.now_s());
            }
            Err(_) => self.total.miss(),
        }
    }

    /// Opens the file anew if another one has taken its place, of which reading the old one would never tell.
    fn follow(&mut self) {
        let replaced = self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        if replaced && let Ok(file) = File::open(&self.path) {
            self.file = file;
        }
    }
}

/// The power, in watts, that the zone cannot exceed.
fn power_cap_w(folder: &Path) -> f64 {
    let limit_uw = (0..3)
        .filter_map(|constraint| read_number(&folder.join(format!("constraint_{constraint}_max_power_uw"))))
        .max()
        .unwrap_or(0);
    DEFAULT_POWER_CAP_W.max(limit_uw as f64 * 1e-6 * OVER_LIMIT)
}

fn read_number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The powercap tree of this computer.
#[derive(Debug)]
pub struct Rapl {
    root: PathBuf,
    quality: Quality,
    zones: Vec<Zone>,
    first_s: Option<f64>,
    now_s: f64,
}

impl Rapl {
    /// Opens all zones under `root`: a powercap class folder, the tree of devices, or the folder of one control type in
    /// it.
    ///
    /// `quality` is what its figures are: `Measured`, or `Virtual` where a hypervisor makes the counters.
    ///
    /// # Errors
    /// Every case of [`RaplUnavailable`] but `NeverMoves`. One socket that cannot be read makes all unavailable: the
    /// sum of the others would look like a figure of the whole.
    pub fn open(root: &Path, quality: Quality) -> Result<Self, RaplUnavailable> {
        let found = discover::zones(root)?;
        let mut zones = Vec::with_capacity(found.len());
        for zone in found {
            match Zone::open(zone.domain, zone.kind, &zone.folder) {
                Ok(zone) => zones.push(zone),
                Err(error) if zone.kind.counts_in_total() => return Err(error),
                Err(_) => {}
            }
        }
        if !zones.iter().any(|zone| zone.kind == DomainKind::Package) {
            return Err(RaplUnavailable::NoPackage { root: root.to_owned() });
        }
        Ok(Self {
            root: root.to_owned(),
            quality,
            zones,
            first_s: None,
            now_s: 0.0,
        })
    }

    /// Opens the first tree of [`SEARCH_LIST`] that can be read.
    ///
    /// In a guest the counters are a hypervisor's, and their quality is `Virtual`.
    ///
    /// # Errors
    /// The first reason other than "absent", which says most about what to do; else `Absent`, or `VirtualMachine` in a
    /// guest.
    pub fn search() -> Result<Self, RaplUnavailable> {
        let guest = is_virtual_machine();
        Self::search_in(&SEARCH_LIST.map(PathBuf::from), guest)
    }

    fn search_in(roots: &[PathBuf], guest: bool) -> Result<Self, RaplUnavailable> {
        let quality = if guest { Quality::Virtual } else { Quality::Measured };
        let mut telling = None;
        for root in roots {
            match Self::open(root, quality) {
                Ok(rapl) => return Ok(rapl),
                Err(RaplUnavailable::Absent { .. }) => {}
                Err(error) => {
                    telling.get_or_insert(error);
                }
            }
        }
        let searched = roots.to_vec();
        Err(telling.unwrap_or(match guest {
            true => RaplUnavailable::VirtualMachine { searched },
            false => RaplUnavailable::Absent { searched },
        }))
    }

    /// Why the counters give nothing although they can be read: none of the packages has moved for a second.
    pub fn frozen(&self) -> Option<RaplUnavailable> {
        let still = self.still_packages().count();
        let frozen = still > 0 && still == self.packages().count();
        frozen.then(|| RaplUnavailable::NeverMoves {
            root: self.root.clone(),
        })
    }

    fn packages(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter().filter(|zone| zone.kind == DomainKind::Package)
    }

    /// The packages that have not moved in all the time that they were watched, if that was long enough.
    fn still_packages(&self) -> impl Iterator<Item = &Zone> {
        let watched_s = self.first_s.map_or(0.0, |first_s| self.now_s - first_s);
        let long_enough = watched_s >= NEVER_MOVES_AFTER_S;
        self.packages()
            .filter(move |zone| long_enough && !zone.total.at(self.now_s).live)
    }
}

/// Whether this computer is a guest of a hypervisor.
pub fn is_virtual_machine() -> bool {
    is_guest(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// Whether `/proc/cpuinfo` is that of a guest of a hypervisor.
fn is_guest(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("flags"))
        .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

impl Source for Rapl {
    fn sample(&mut self, clock: &dyn Clock, fresh: bool) {
        for zone in &mut self.zones {
            if fresh {
                zone.follow();
            }
            zone.sample(clock);
        }
        self.now_s = clock.now_s();
        self.first_s.get_or_insert(self.now_s);
    }

    fn states(&self, now_s: f64, into: &mut Vec<DomainState>) {
        let state = |zone: &Zone| DomainState::new(&zone.domain, zone.kind, self.quality, zone.total.at(now_s));
        into.extend(self.zones.iter().map(state));
    }

    fn report(&self) -> SourceReport {
        if let Some(reason) = self.frozen() {
            return SourceReport::new("rapl", Quality::Unavailable, reason.to_string());
        }
        let names: Vec<&str> = self.zones.iter().map(|zone| zone.domain.as_str()).collect();
        let detail = format!("counters of {} in {}", names.join(", "), self.root.display());
        let warning = |zone: &Zone| SourceWarning::SocketStandsStill {
            domain: zone.domain.clone(),
        };
        SourceReport {
            warnings: self.still_packages().map(warning).collect(),
            ..SourceReport::new("rapl", self.quality, detail)
        }
    }
}

#[cfg(test)]
mod tests;
