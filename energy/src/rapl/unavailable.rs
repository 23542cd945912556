//! Why the processor's counters cannot be read, and the remedy.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Why there is no energy from RAPL. Every message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RaplUnavailable {
    /// No tree where it should be.
    #[error(
        "no powercap zone in {}; load the kernel module intel_rapl_msr (on AMD too), \
         or name the tree's folder in GREENGNN_RAPL_ROOT",
        list(searched)
    )]
    Absent { searched: Vec<PathBuf> },

    /// No tree, and this is a guest.
    #[error(
        "no powercap zone in {}, since this is a virtual machine whose hypervisor shows no energy counter; \
         run on the host, or have the hypervisor export RAPL",
        list(searched)
    )]
    VirtualMachine { searched: Vec<PathBuf> },

    /// A link of the tree leads nowhere: the class folder was mounted into a container without the folder of the
    /// devices.
    #[error(
        "{link} leads to {target}, which is not there: a container without the devices of the tree; \
         mount /sys/devices/virtual/powercap of the host (read-only, at /host/sys/devices/virtual/powercap for example)"
    )]
    Dangling { link: PathBuf, target: PathBuf },

    /// Docker hides the tree behind an empty folder.
    #[error(
        "{path} is hidden by the container; mount /sys/devices/virtual/powercap of the host, read-only, \
         at /host/sys/devices/virtual/powercap"
    )]
    Masked { path: PathBuf },

    /// The counters are readable by root alone, as all kernels since 5.10 have it.
    #[error(
        "{path} may not be read (permission denied); run as root or with CAP_DAC_READ_SEARCH, \
         or give a group the right to read it by a udev rule (chmod does not outlive a restart)"
    )]
    Permission { path: PathBuf },

    /// There are zones, but no processor among them.
    #[error("{root} has no zone named package-N; name another tree's folder in GREENGNN_RAPL_ROOT")]
    NoPackage { root: PathBuf },

    /// The counters are there and stand still: some hypervisors answer 0.
    #[error(
        "the counters in {root} never move, as in a virtual machine whose hypervisor does not emulate them; \
         run on the host, or have the hypervisor export RAPL"
    )]
    NeverMoves { root: PathBuf },

    /// Anything else that the system says.
    #[error("{path} cannot be read ({why}); look for messages of intel_rapl in the kernel's log")]
    Unreadable { path: PathBuf, why: String },
}

impl RaplUnavailable {
    pub(super) fn of_file(path: &Path, error: &Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::PermissionDenied => Self::Permission { path },
            _ => Self::Unreadable {
                path,
                why: error.to_string(),
            },
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
