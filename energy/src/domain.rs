//! What is metered: a domain is one physical thing that has an energy of its own.

use serde::{Deserialize, Serialize};

/// Names one physical domain in the world, so that several processes that read the same counter count it once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DomainKey {
    /// The boot id of the kernel: the same in all processes and containers of one computer.
    pub host: String,
    /// The domain's name on that computer: `package-0`, `package-0/dram`, `gpu/GPU-<uuid>`, `cpu-estimate`.
    pub domain: String,
}

impl DomainKey {
    pub fn new(host: impl Into<String>, domain: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            domain: domain.into(),
        }
    }
}

impl std::fmt::Display for DomainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.domain)
    }
}

/// What kind of thing a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DomainKind {
    /// A processor socket or die: cores, caches, memory controller. It holds no DRAM.
    Package,
    /// The memory of a socket.
    Dram,
    /// A GPU board.
    Gpu,
    /// The processors of a host, or a control group's share of them, from a model. It stands in for `Package`.
    Estimate,
    /// The cores of a package; inside `Package`, never summed.
    Core,
    /// The rest of a package, a graphics unit for example; inside `Package`, never summed.
    Uncore,
    /// The platform, packages and memory included; never summed.
    Psys,
    /// A zone whose name says nothing to us; never summed.
    Other,
}

impl DomainKind {
    /// The kind in one word, as it stands in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Package => "package",
            Self::Dram => "dram",
            Self::Gpu => "gpu",
            Self::Estimate => "estimate",
            Self::Core => "core",
            Self::Uncore => "uncore",
            Self::Psys => "psys",
            Self::Other => "other",
        }
    }

    /// Whether the domain is a part of a total. The others lie inside a part of it and are only shown.
    pub fn counts_in_total(self) -> bool {
        matches!(self, Self::Package | Self::Dram | Self::Gpu | Self::Estimate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_lies_inside_another_domain_counts() {
        let counted = [
            DomainKind::Package,
            DomainKind::Dram,
            DomainKind::Gpu,
            DomainKind::Estimate,
        ];
        let shown = [
            DomainKind::Core,
            DomainKind::Uncore,
            DomainKind::Psys,
            DomainKind::Other,
        ];
        assert!(counted.iter().all(|kind| kind.counts_in_total()));
        assert!(!shown.iter().any(|kind| kind.counts_in_total()));
    }
}
