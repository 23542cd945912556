//! Finds the zones of a powercap tree. `/sys/class/powercap` lists all of them flat, as links; in the tree of devices a
//! zone's folder holds its sub-zones, and a control type's folder its zones. Both are read the same way.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::RaplUnavailable;
use crate::domain::DomainKind;

/// A control type, a zone, a sub-zone: the tree is no deeper.
const DEEPEST: usize = 3;

/// The way to the counter. The smaller one is taken where both have a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Interface {
    /// Model-specific registers (newer servers: TPMI, under the same name).
    Registers,
    /// Memory-mapped, on client processors beside the registers.
    Memory,
}

/// A zone's place, from its folder's name: `intel-rapl:0:1` is sub-zone 1 of zone 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ZoneId {
    interface: Interface,
    indices: Vec<u32>,
}

impl ZoneId {
    fn parse(folder: &str) -> Option<Self> {
        let mut fields = folder.split(':');
        let interface = match fields.next()? {
            "intel-rapl" => Interface::Registers,
            "intel-rapl-mmio" => Interface::Memory,
            _ => return None,
        };
        let indices: Vec<u32> = fields.map(|index| index.parse().ok()).collect::<Option<_>>()?;
        (!indices.is_empty()).then_some(Self { interface, indices })
    }

    fn parent(&self) -> Option<Self> {
        let (_, above) = self.indices.split_last()?;
        (!above.is_empty()).then(|| Self {
            interface: self.interface,
            indices: above.to_vec(),
        })
    }
}

/// Whether a folder of this name holds zones.
fn is_control_type(folder: &str) -> bool {
    matches!(folder, "intel-rapl" | "intel-rapl-mmio")
}

/// A zone that was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub domain: String,
    pub kind: DomainKind,
    pub folder: PathBuf,
}

/// All zones under `root`, each domain once, in order of their names.
pub(super) fn zones(root: &Path) -> Result<Vec<Found>, RaplUnavailable> {
    let mut folders = BTreeMap::new();
    collect(root, DEEPEST, &mut folders)?;
    if folders.is_empty() {
        let hidden = root.is_dir()
            && is_masked(
                root,
                &std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
            );
        return Err(match hidden {
            true => RaplUnavailable::Masked { path: root.to_owned() },
            false => RaplUnavailable::Absent {
                searched: vec![root.to_owned()],
            },
        });
    }
    let mut names = BTreeMap::new();
    for (id, folder) in &folders {
        let path = folder.join("name");
        let name = std::fs::read_to_string(&path).map_err(|error| RaplUnavailable::of_file(&path, &error))?;
        names.insert(id, name.trim().to_owned());
    }
    let mut found: BTreeMap<String, (Interface, Found)> = BTreeMap::new();
    // In order of the interface: what the registers have is not taken from memory again.
    for (id, folder) in &folders {
        let name = &names[id];
        let mut domain = match id.parent().and_then(|parent| names.get(&parent)) {
            Some(parent) => format!("{parent}/{name}"),
            None => name.clone(),
        };
        match found.get(&domain) {
            Some((interface, _)) if *interface != id.interface => continue,
            // Two zones of one name are two things: both are kept, told apart by their folder.
            Some(_) => domain = format!("{domain}@{}", folder_name(folder)),
            None => {}
        }
        let zone = Found {
            domain: domain.clone(),
            kind: kind_of(name),
            folder: folder.clone(),
        };
        found.insert(domain, (id.interface, zone));
    }
    Ok(found.into_values().map(|(_, zone)| zone).collect())
}

fn kind_of(name: &str) -> DomainKind {
    match name {
        "dram" => DomainKind::Dram,
        "core" => DomainKind::Core,
        "uncore" => DomainKind::Uncore,
        _ if name.starts_with("package-") => DomainKind::Package,
        _ if name.starts_with("psys") => DomainKind::Psys,
        _ => DomainKind::Other,
    }
}

fn folder_name(folder: &Path) -> String {
    folder
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Adds the zones in `folder` and, `depth` levels down, in the zones and control types in it.
fn collect(folder: &Path, depth: usize, into: &mut BTreeMap<ZoneId, PathBuf>) -> Result<(), RaplUnavailable> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(RaplUnavailable::of_file(folder, &error)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let id = ZoneId::parse(name);
        if id.is_none() && !is_control_type(name) {
            continue;
        }
        let path = entry.path();
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let target = std::fs::read_link(&path).unwrap_or_default();
                return Err(RaplUnavailable::Dangling { link: path, target });
            }
            Err(error) => return Err(RaplUnavailable::of_file(&path, &error)),
        }
        if let Some(id) = id {
            into.entry(id).or_insert_with(|| path.clone());
        }
        if depth > 1 {
            collect(&path, depth - 1, into)?;
        }
    }
    Ok(())
}

/// Whether a file system other than sysfs is mounted over `path`, according to `/proc/self/mountinfo`.
fn is_masked(path: &Path, mountinfo: &str) -> bool {
    mountinfo.lines().any(|line| {
        // ID PARENT MAJOR:MINOR ROOT MOUNT-POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS
        let Some((left, right)) = line.split_once(" - ") else {
            return false;
        };
        let mount = left.split(' ').nth(4).unwrap_or_default();
        let kind = right.split(' ').next().unwrap_or_default();
        let over_it = Path::new(mount) == path || Path::new(mount).parent() == Some(path);
        over_it && mount.contains("powercap") && kind != "sysfs"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_by_their_whole_name() {
        let id = |name| ZoneId::parse(name).map(|id| (id.interface, id.indices));
        assert_eq!(id("intel-rapl:1"), Some((Interface::Registers, vec![1])));
        assert_eq!(id("intel-rapl:1:12"), Some((Interface::Registers, vec![1, 12])));
        assert_eq!(id("intel-rapl-mmio:0"), Some((Interface::Memory, vec![0])));
        for other in ["intel-rapl", "intel-rapl:", "intel-rapl:x", "dtpm:0", "device", ""] {
            assert_eq!(id(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_mask_is_told_from_an_empty_tree() {
        let masked = "700 690 0:61 / /sys/devices/virtual/powercap ro,relatime - tmpfs tmpfs ro,size=0k\n";
        let plain = "30 20 0:27 / /sys rw,nosuid - sysfs sysfs rw\n31 20 0:28 / /tmp rw - tmpfs tmpfs rw\n";
        let tree = Path::new("/sys/devices/virtual/powercap");
        assert!(is_masked(tree, masked));
        assert!(!is_masked(tree, plain));
        assert!(!is_masked(Path::new("/tmp"), plain));
        assert!(!is_masked(tree, "garbage"));
    }
}
