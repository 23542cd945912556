//! A probe of a cluster: who fetches what from whom while all others rest, and the profile that follows from the readings.
//!
//! A probe is a row of slots that all ranks go through together. In most of them one rank asks one owner for the same
//! number of rows again and again; slots in which nobody asks lie between them, so that what idling costs is known for
//! the same minutes. Sizes are shuffled and clients take turns, so that a computer that gets warmer or busier is unfair to
//! none. All of it is arithmetic on what it is given: who executes the slots is somebody else.

use greengnn_model::book::{PartId, Rank};
use greengnn_model::rng::{mix_words, shuffle};
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::profile::{Coefficient, ProbePoint, ProbeSetting, Profile, ProfileError};
use crate::quality::Quality;
use crate::snapshot::{EnergyReading, EnergyTotal, combine};
use crate::statistics::student_t_975;

#[cfg(test)]
mod tests;

/// Keeps the draws of the order apart from all others.
const ORDER: u64 = 0x7072_6f62_6500;

/// Seconds of a slot where joules are computed from CPU time, which is exact however short the slot.
const ESTIMATED_SLOT_S: f64 = 0.2;

/// Seconds of a slot where a counter is read: its edges are then off by at most a tenth of a percent.
const MEASURED_SLOT_S: f64 = 1.0;

/// What is probed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbePlan {
    /// Rows per request, each size in turn.
    pub sizes: Vec<u32>,
    /// How often every owner is asked in every size.
    pub repeats: u32,
    /// Seconds of a slot; by default as long as the meters need.
    pub slot_s: Option<f64>,
}

impl Default for ProbePlan {
    fn default() -> Self {
        Self {
            sizes: vec![1, 64, 256, 1024, 4096],
            repeats: 6,
            slot_s: None,
        }
    }
}

/// Why a plan cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProbePlanError {
    #[error("{what} must be {wanted}, found {found}")]
    Value {
        what: &'static str,
        wanted: &'static str,
        found: String,
    },
    #[error("there is one rank, which owns every row; a probe needs a graph in at least two parts")]
    OneRank,
    #[error("part {part} has {rows} rows, fewer than two of the sizes; probe with smaller sizes")]
    TooSmall { part: PartId, rows: u32 },
}

/// What all ranks do in one stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Slot {
    /// Nobody asks.
    Idle,
    /// `client` asks `owner` for `rows` rows, one request after the other.
    Fetch { client: Rank, owner: PartId, rows: u32 },
    /// `client` has `owner` deliver `rows` rows again and again, on one stream.
    Deliver { client: Rank, owner: PartId, rows: u32 },
    /// `client` asks all other owners at once for `rows` rows, for the most that it can receive.
    Together { client: Rank, rows: u32 },
}

impl Slot {
    /// The rank that asks.
    pub fn client(&self) -> Option<Rank> {
        match *self {
            Self::Idle => None,
            Self::Fetch { client, .. } | Self::Deliver { client, .. } | Self::Together { client, .. } => Some(client),
        }
    }
}

impl ProbePlan {
    /// # Errors
    /// Names the first value that no probe can have.
    pub fn check(&self) -> Result<(), ProbePlanError> {
        let refuse = |what, wanted, found: String| Err(ProbePlanError::Value { what, wanted, found });
        let mut distinct = self.sizes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() < 2 || distinct.len() != self.sizes.len() || distinct[0] == 0 || self.sizes.len() > 32 {
            let found = format!("{:?}", self.sizes);
            return refuse("sizes", "2 to 32 different numbers of rows, each at least 1", found);
        }
        if !(5..=1000).contains(&self.repeats) {
            return refuse("repeats", "5 to 1000", self.repeats.to_string());
        }
        match self.slot_s {
            Some(seconds) if !(0.01..=60.0).contains(&seconds) => {
                refuse("seconds of a slot", "0.01 to 60", seconds.to_string())
            }
            _ => Ok(()),
        }
    }

    /// The slots, for owners that have so many rows each. Sizes that an owner does not have are left out for it.
    ///
    /// # Errors
    /// A plan that [`check`](Self::check) refuses, a single owner, or one that is too small for two sizes.
    pub fn slots(&self, owner_rows: &[u32]) -> Result<Vec<Slot>, ProbePlanError> {
        self.check()?;
        let ranks = owner_rows.len() as Rank;
        if ranks < 2 {
            return Err(ProbePlanError::OneRank);
        }
        for (part, rows) in (0..).zip(owner_rows) {
            if self.sizes.iter().filter(|size| *size <= rows).count() < 2 {
                return Err(ProbePlanError::TooSmall { part, rows: *rows });
            }
        }
        let mut slots = Vec::new();
        for repeat in 0..self.repeats {
            let mut sizes = self.sizes.clone();
            shuffle(mix_words(&[ORDER, u64::from(repeat)]), &mut sizes);
            let client_of = |owner: PartId| (owner + 1 + repeat as Rank % (ranks - 1)) % ranks;
            let delivering = repeat as PartId % ranks;
            for size in sizes {
                let has = |owner: &PartId| owner_rows[usize::from(*owner)] >= size;
                slots.push(Slot::Idle);
                slots.extend((0..ranks).filter(has).map(|owner| Slot::Fetch {
                    client: client_of(owner),
                    owner,
                    rows: size,
                }));
                if has(&delivering) {
                    slots.push(Slot::Deliver {
                        client: client_of(delivering),
                        owner: delivering,
                        rows: size,
                    });
                }
            }
            let most = self.sizes.iter().copied().max().unwrap_or(1);
            slots.push(Slot::Together {
                client: repeat as Rank % ranks,
                rows: most,
            });
        }
        Ok(slots)
    }

    /// The plan for owners of which the smallest has `fewest_rows`: with the sizes that it has, or where these are too few
    /// with a row alone and as many as there are.
    pub fn fitting(mut self, fewest_rows: u32) -> Self {
        let has = self.sizes.iter().filter(|size| **size <= fewest_rows).count();
        if has < 2 {
            self.sizes = vec![1, fewest_rows.max(2)];
        }
        self
    }

    /// Seconds of a slot, if joules are of this quality.
    pub fn slot_seconds(&self, quality: Quality) -> f64 {
        self.slot_s.unwrap_or(match quality {
            Quality::Measured | Quality::Integrated | Quality::Virtual => MEASURED_SLOT_S,
            Quality::Estimated | Quality::Unavailable => ESTIMATED_SLOT_S,
        })
    }
}

/// What one machine's meter saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineReadings {
    /// The ranks that it hosts.
    pub ranks: Vec<Rank>,
    pub hardware: Fingerprint,
    /// Watts that a busy hardware thread draws more than an idle one, where joules are computed from CPU time.
    pub busy_thread_w: f64,
    /// By slot.
    pub slots: Vec<EnergyReading>,
}

/// What a client fetched in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fetched {
    /// Requests, or deliveries of a stream.
    pub requests: u32,
    /// Rows of each.
    pub rows: u32,
    /// From the first request to the last answer.
    pub seconds: f64,
}

/// What a whole probe saw.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeReadings {
    pub slots: Vec<Slot>,
    pub machines: Vec<MachineReadings>,
    /// By slot; none where nobody asked.
    pub fetched: Vec<Option<Fetched>>,
    /// Bytes of a row on the wire.
    pub row_bytes: u32,
    /// Whether the lanes checked what they carried.
    pub checksums: bool,
    /// Seconds since 1970.
    pub measured_at: f64,
}

impl ProbeReadings {
    /// The coefficients that follow.
    ///
    /// Where every computer has counters, joules are theirs, less what all draw when idle. Elsewhere they are the CPU
    /// seconds of the machines' processes, which are exact, times the watts of a busy thread, which are not.
    ///
    /// # Errors
    /// A rank, an owner or a slot without the readings that a line needs.
    pub fn profile(&self) -> Result<Profile, ProfileError> {
        let totals: Vec<EnergyTotal> = (0..self.slots.len()).map(|slot| self.total(slot)).collect();
        let quality = totals.iter().map(|total| total.quality).max().unwrap_or_default();
        let idle_power = |slot: usize| Some(totals[slot].joules? / totals[slot].duration_s.max(1e-9));
        let idle_power: Vec<f64> = self.idle(idle_power).into_iter().flatten().collect();
        let idle_w = (!idle_power.is_empty()).then(|| mean_of(&idle_power));
        let idle_cpu: Vec<f64> = (0..self.machines.len())
            .map(|machine| {
                let load = |slot: usize| {
                    let reading = &self.machines[machine].slots[slot];
                    reading.cpu_s / reading.duration_s.max(1e-9)
                };
                mean_of(&self.idle(load)).value
            })
            .collect();
        let is_metered = quality < Quality::Estimated && idle_w.is_some();
        let mut points = Vec::new();
        let mut deliveries = Vec::new();
        let mut ceilings = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(fetched) = self.fetched.get(index).copied().flatten() else {
                continue;
            };
            let (client, owner, into) = match *slot {
                Slot::Idle => continue,
                Slot::Together { .. } => {
                    let rows = f64::from(fetched.requests) * f64::from(fetched.rows);
                    ceilings.push(rows * f64::from(self.row_bytes) / fetched.seconds.max(1e-9));
                    continue;
                }
                Slot::Fetch { client, owner, .. } => (client, owner, &mut points),
                Slot::Deliver { client, owner, .. } => (client, owner, &mut deliveries),
            };
            let cpu = |machine: usize| {
                let reading = &self.machines[machine].slots[index];
                reading.cpu_s - idle_cpu[machine] * reading.duration_s
            };
            let all = 0..self.machines.len();
            let of_client = all
                .clone()
                .filter(|machine| self.machines[*machine].ranks.contains(&client));
            let net_j = match totals[index].joules {
                Some(joules) if is_metered => joules - idle_w.unwrap_or_default().value * totals[index].duration_s,
                _ => all
                    .clone()
                    .map(|machine| cpu(machine) * self.machines[machine].busy_thread_w)
                    .sum(),
            };
            into.push(ProbePoint {
                client,
                owner,
                rows_per_request: fetched.rows,
                requests: fetched.requests,
                seconds: fetched.seconds,
                net_j,
                net_cpu_s: all.map(cpu).sum(),
                client_cpu_s: of_client.map(cpu).sum(),
            });
        }
        let setting = ProbeSetting {
            fingerprint: Fingerprint::of_machines(self.computers()),
            placement: self.placement(),
            checksums: self.checksums,
            measured_at: self.measured_at,
            quality: if is_metered { quality } else { Quality::Estimated },
            method: self.method(is_metered),
            idle_w,
            row_bytes: self.row_bytes,
            bytes_per_s: (!ceilings.is_empty()).then(|| median(ceilings)),
        };
        Profile::fit(setting, points, deliveries)
    }

    fn total(&self, slot: usize) -> EnergyTotal {
        combine(self.machines.iter().filter_map(|machine| machine.slots.get(slot)))
    }

    /// A figure of every idle slot.
    fn idle<T>(&self, figure: impl Fn(usize) -> T) -> Vec<T> {
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| **slot == Slot::Idle);
        idle.map(|(index, _)| figure(index)).collect()
    }

    /// The hardware of every machine, with the computer that it is on.
    fn computers(&self) -> impl Iterator<Item = (String, Fingerprint)> {
        self.machines.iter().map(|machine| {
            let host = machine.slots.first().map(|reading| reading.host.clone());
            (host.unwrap_or_default(), machine.hardware.clone())
        })
    }

    /// The ranks of every machine, in the order of their first ranks.
    fn placement(&self) -> Vec<Vec<Rank>> {
        let mut placement: Vec<Vec<Rank>> = self.machines.iter().map(|machine| machine.ranks.clone()).collect();
        placement.sort_unstable();
        placement
    }

    fn method(&self, is_metered: bool) -> String {
        if is_metered {
            return "counters of all computers, less what they draw when idle".to_owned();
        }
        let mut watts: Vec<f64> = self.machines.iter().map(|machine| machine.busy_thread_w).collect();
        watts.sort_by(f64::total_cmp);
        watts.dedup();
        let watts: Vec<String> = watts.iter().map(|watts| format!("{watts:.2}")).collect();
        format!("CPU time at {} W per busy thread", watts.join(" or "))
    }
}

/// Mean and 95 % interval.
fn mean_of(figures: &[f64]) -> Coefficient {
    let count = figures.len() as f64;
    if figures.is_empty() {
        return Coefficient::default();
    }
    let mean = figures.iter().sum::<f64>() / count;
    let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
    let half_width = match figures.len() {
        1 => 0.0,
        _ => student_t_975(count - 1.0) * (squares / (count - 1.0) / count).sqrt(),
    };
    Coefficient {
        value: mean,
        half_width,
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
