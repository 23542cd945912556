//! What a meter has seen, the energy of a window, and the energy of many machines.
//!
//! A snapshot is cumulative. Two snapshots of one meter make the reading of the window between them, in which all
//! domains are measured over the same time. The readings of all machines make a total that counts every physical domain
//! once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::counter::Accumulated;
use crate::domain::{DomainKey, DomainKind};
use crate::process::ProcessUse;
use crate::quality::Quality;

/// A window may miss this share of its time and still have a figure: the mean power of the rest stands for it, as an
/// estimate.
const LARGEST_BRIDGED_SHARE: f64 = 0.05;

/// What one domain has accumulated since its meter started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainState {
    /// The domain's name on its host.
    pub domain: String,
    pub kind: DomainKind,
    /// How the joules are obtained. A GPU may have two states, from its counter and from its power.
    pub quality: Quality,
    /// Joules outside gaps.
    pub joules: f64,
    /// Seconds of which the energy is not known.
    pub gap_s: f64,
    pub gaps: u32,
    /// Whether the domain has shown that it measures anything.
    pub live: bool,
}

impl DomainState {
    pub fn new(domain: impl Into<String>, kind: DomainKind, quality: Quality, so_far: Accumulated) -> Self {
        let Accumulated {
            joules,
            gap_s,
            gaps,
            live,
        } = so_far;
        Self {
            domain: domain.into(),
            kind,
            quality,
            joules,
            gap_s,
            gaps,
            live,
        }
    }
}

/// How well the meter kept its pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TickStats {
    /// Readings on schedule since the start.
    pub ticks: u64,
    /// Readings that were skipped because the one before was late.
    pub missed: u64,
    /// Mean time between readings, in seconds.
    pub mean_period_s: f64,
    /// Longest time between readings, in seconds.
    pub longest_period_s: f64,
}

/// Everything that a meter has seen since it started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnergySnapshot {
    /// The boot id of the computer.
    pub host: String,
    /// When the meter started, in seconds on its clock; with `host`, the meter's identity.
    pub started_s: f64,
    /// When the snapshot was taken, in seconds on the meter's clock.
    pub at_s: f64,
    /// CPU seconds and peak memory of the process.
    pub process: ProcessUse,
    pub domains: Vec<DomainState>,
    pub ticks: TickStats,
}

impl EnergySnapshot {
    /// This snapshot moved on by what passed from `from` to `to`, two later snapshots of the same meter: the window from
    /// the result to a snapshot after `to` is the window from `self` without the time in between.
    #[must_use]
    pub fn skipping(&self, from: &EnergySnapshot, to: &EnergySnapshot) -> EnergySnapshot {
        let mut moved = self.clone();
        moved.at_s += to.at_s - from.at_s;
        moved.process.cpu_s += to.process.cpu_s - from.process.cpu_s;
        for state in &mut moved.domains {
            let of = |snapshot: &EnergySnapshot| {
                let same = |other: &&DomainState| other.domain == state.domain && other.quality == state.quality;
                snapshot.domains.iter().find(same).cloned()
            };
            if let (Some(from), Some(to)) = (of(from), of(to)) {
                state.joules += to.joules - from.joules;
                state.gap_s += to.gap_s - from.gap_s;
                state.gaps += to.gaps.saturating_sub(from.gaps);
            }
        }
        moved
    }

    /// The energy of the window from `earlier` to `self`, two snapshots of one meter.
    ///
    /// Snapshots of different meters, or in the wrong order, have no figures in common: every domain is then
    /// unavailable, and the CPU seconds are those that the later process has used since it started.
    pub fn since(&self, earlier: &EnergySnapshot) -> EnergyReading {
        let duration_s = self.at_s - earlier.at_s;
        let same_meter = self.host == earlier.host && self.started_s == earlier.started_s && duration_s >= 0.0;
        let mut domains: BTreeMap<&str, DomainEnergy> = BTreeMap::new();
        // A GPU is there whether it can be read or not, and so is a socket beside one that can: a total must not pass over
        // them.
        let any_package = self
            .domains
            .iter()
            .any(|state| state.live && state.kind == DomainKind::Package);
        let is_there = |state: &&DomainState| match state.kind {
            DomainKind::Gpu => true,
            DomainKind::Package => any_package,
            _ => state.live,
        };
        for state in self.domains.iter().filter(is_there) {
            let before = earlier
                .domains
                .iter()
                .find(|before| before.domain == state.domain && before.quality == state.quality)
                .filter(|_| same_meter);
            let energy = window_energy(&self.host, state, before, duration_s);
            match domains.get_mut(state.domain.as_str()) {
                Some(known) => keep_better(known, energy),
                None => {
                    domains.insert(&state.domain, energy);
                }
            }
        }
        EnergyReading {
            host: self.host.clone(),
            domains: domains.into_values().collect(),
            duration_s: duration_s.max(0.0),
            cpu_s: match same_meter {
                true => (self.process.cpu_s - earlier.process.cpu_s).max(0.0),
                false => self.process.cpu_s,
            },
        }
    }
}

/// The energy of one domain in a window of `duration_s`.
fn window_energy(host: &str, state: &DomainState, before: Option<&DomainState>, duration_s: f64) -> DomainEnergy {
    let mut energy = DomainEnergy {
        key: DomainKey::new(host, &state.domain),
        kind: state.kind,
        joules: None,
        quality: Quality::Unavailable,
        gaps: 0,
        gap_s: 0.0,
    };
    let Some(before) = before else { return energy };
    energy.gaps = state.gaps.saturating_sub(before.gaps);
    // Negative when a counter makes good a gap that was open at the first snapshot: the joules then reach back before
    // it.
    let gap_s = state.gap_s - before.gap_s;
    energy.gap_s = gap_s.max(0.0);
    if !state.live || gap_s.abs() > LARGEST_BRIDGED_SHARE * duration_s {
        return energy;
    }
    let seen = (state.joules - before.joules).max(0.0);
    if gap_s == 0.0 {
        energy.joules = Some(seen);
        energy.quality = state.quality;
    } else {
        energy.joules = Some(seen * duration_s / (duration_s - gap_s));
        energy.quality = state.quality.max(Quality::Estimated);
    }
    energy
}

/// The energy of one physical domain in one window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainEnergy {
    pub key: DomainKey,
    pub kind: DomainKind,
    /// Joules; none, never 0, when they are not known.
    pub joules: Option<f64>,
    /// How they were obtained; `Unavailable` exactly when there are none.
    pub quality: Quality,
    /// Gaps that ended or were open in the window.
    pub gaps: u32,
    /// Seconds of the window that were not seen. Up to 5 % of it are bridged at the mean power of the rest, and the
    /// figure is then estimated.
    pub gap_s: f64,
}

/// Of two figures of one domain the one of the better quality stays, and of equals the one that was there.
fn keep_better(known: &mut DomainEnergy, other: DomainEnergy) {
    if other.quality < known.quality {
        *known = other;
    }
}

/// The energy that one meter saw in one window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnergyReading {
    /// The boot id of the computer.
    pub host: String,
    /// Every domain of the computer once, diagnostic ones and the estimate included, in order of their names.
    pub domains: Vec<DomainEnergy>,
    /// Length of the window in seconds.
    pub duration_s: f64,
    /// CPU seconds, user and system, of the process.
    pub cpu_s: f64,
}

impl EnergyReading {
    /// The total of this computer.
    pub fn total(&self) -> EnergyTotal {
        combine([self])
    }
}

/// The energy of all computers of a run in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnergyTotal {
    /// Sum of all counted domains; none when the energy of one of them is not known.
    pub joules: Option<f64>,
    /// The worst quality of the parts.
    pub quality: Quality,
    /// The domains that are summed, each once.
    pub counted: Vec<DomainEnergy>,
    /// The domains that should have been summed and have no figure.
    pub missing: Vec<DomainEnergy>,
    /// Domains that lie inside those that are summed, or around them: cores, uncore, psys. They are only shown.
    #[serde(default)]
    pub shown: Vec<DomainEnergy>,
    /// CPU seconds of all processes.
    pub cpu_s: f64,
    /// Longest of the windows, in seconds.
    pub duration_s: f64,
}

/// Adds the readings of several machines over one window, every physical domain once.
///
/// - Machines on one host read the same counters. Of several figures of a domain the one of the best quality counts,
///   and of equals the first. Their windows differ by the time that it takes to ask, so that only the windows of one
///   machine add up to the whole: give the machines in the same order for every window.
/// - Packages, DRAM and GPUs are summed. Cores, uncore and psys lie inside other domains or around them and are only shown.
/// - An estimate counts for a host only if it has no package, or one without a figure; it then stands in for all of its
///   packages. The estimate of a whole host covers those of its control groups.
/// - A host without any figure for its processors, or a domain that was measured and fell silent, leaves the total
///   without joules.
pub fn combine<'a>(readings: impl IntoIterator<Item = &'a EnergyReading>) -> EnergyTotal {
    let mut hosts: BTreeMap<&str, BTreeMap<&str, DomainEnergy>> = BTreeMap::new();
    let mut total = EnergyTotal::default();
    for reading in readings {
        total.cpu_s += reading.cpu_s;
        total.duration_s = total.duration_s.max(reading.duration_s);
        let host = hosts.entry(&reading.host).or_default();
        for energy in &reading.domains {
            match host.get_mut(energy.key.domain.as_str()) {
                Some(known) => keep_better(known, energy.clone()),
                None => {
                    host.insert(&energy.key.domain, energy.clone());
                }
            }
        }
    }
    for (host, domains) in hosts {
        let (counted, shown) = domains
            .into_iter()
            .partition(|(_, energy)| energy.kind.counts_in_total());
        total.shown.extend(BTreeMap::into_values(shown));
        for energy in parts_of_host(host, counted) {
            match energy.joules {
                Some(_) => total.counted.push(energy),
                None => total.missing.push(energy),
            }
        }
    }
    if total.missing.is_empty() && !total.counted.is_empty() {
        total.joules = Some(total.counted.iter().filter_map(|energy| energy.joules).sum());
        total.quality = total
            .counted
            .iter()
            .map(|energy| energy.quality)
            .max()
            .unwrap_or_default();
    }
    total
}

/// The domains of one host that make its total.
fn parts_of_host(host: &str, domains: BTreeMap<&str, DomainEnergy>) -> Vec<DomainEnergy> {
    let (mut packages, mut estimates, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for energy in domains.into_values() {
        match energy.kind {
            DomainKind::Package => packages.push(energy),
            DomainKind::Estimate => estimates.push(energy),
            _ => parts.push(energy),
        }
    }
    let known = |energy: &DomainEnergy| energy.joules.is_some();
    if !packages.is_empty() && (packages.iter().all(known) || !estimates.iter().any(known)) {
        parts.append(&mut packages);
    } else if let Some(whole) = estimates
        .iter()
        .find(|energy| energy.key.domain == crate::estimate::HOST_DOMAIN)
    {
        parts.push(whole.clone());
    } else if !estimates.is_empty() {
        parts.append(&mut estimates);
    } else {
        parts.push(DomainEnergy {
            key: DomainKey::new(host, crate::estimate::HOST_DOMAIN),
            kind: DomainKind::Estimate,
            joules: None,
            quality: Quality::Unavailable,
            gaps: 0,
            gap_s: 0.0,
        });
    }
    parts
}

#[cfg(test)]
mod tests;
