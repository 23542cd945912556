//! What a request and a row cost on a cluster, measured: the coefficients that the simulator works with.
//!
//! One fetch of `x` rows costs `e0 + e1 x` joules and takes `l0 + l1 x` seconds (the paper's Section V-A). Many fetches of
//! each size are timed and metered, what idling costs in that time is taken off, and a line is laid through the costs per
//! fetch. Its intercept is the initiation, its slope the payload; where the two are equal lies the crossover, 965 rows on
//! the paper's cluster.

use std::path::Path;

use greengnn_model::book::PartId;
use serde::{Deserialize, Serialize};

use crate::files::{FileError, read_json, write_json};
use crate::fingerprint::Fingerprint;
use crate::quality::Quality;
use crate::simulator::{Coefficients, FetchCost};

mod line;

pub use line::{Coefficient, Line, LineError, fit_line};

/// The layout of a profile.
const FORMAT_VERSION: u32 = 1;

/// An interval wider than this share of its coefficient says that the probe was too short or the cluster too busy.
pub const WIDEST_INTERVAL: f64 = 0.25;

/// Fetches of one size from one owner, measured together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbePoint {
    pub owner: PartId,
    pub rows_per_request: u32,
    pub requests: u32,
    pub seconds: f64,
    /// Of all machines, without what they draw when idle.
    pub net_j: f64,
}

/// What fetching from one owner costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnerProfile {
    pub owner: PartId,
    /// Joules per fetch over rows per fetch: the intercept is e0, the slope e1.
    pub joules: Line,
    /// Seconds per fetch over rows per fetch: the intercept is l0, the slope l1.
    pub seconds: Line,
}

impl OwnerProfile {
    /// Rows per fetch at which payload costs as much as initiation.
    pub fn crossover_rows(&self) -> Option<f64> {
        let (initiation, row) = (self.joules.intercept.value, self.joules.slope.value);
        (row > 0.0).then(|| initiation / row)
    }
}

/// The measured coefficients of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    format_version: u32,
    /// The hardware that was probed.
    pub fingerprint: Fingerprint,
    /// Seconds since 1970.
    pub measured_at: f64,
    /// Of the joules. Estimated ones are CPU time, weighted.
    pub quality: Quality,
    /// How the joules were obtained, in a sentence.
    pub method: String,
    /// Watts of all machines when idle with everything loaded.
    pub idle_w: Coefficient,
    pub row_bytes: u32,
    /// What one rank received from all owners together, at most; none where it was not tried.
    pub bytes_per_s: Option<f64>,
    /// By ascending owner.
    pub owners: Vec<OwnerProfile>,
    /// What the lines were laid through.
    pub points: Vec<ProbePoint>,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("the {what} of fetches from owner {owner}: {source}; probe longer")]
    Line {
        owner: PartId,
        what: &'static str,
        source: LineError,
    },
    #[error("nothing was probed; there are no owners to fetch from")]
    Empty,
    #[error("the profile was measured on other hardware ({difference}); run `greengnn probe` here")]
    OtherHardware { difference: String },
    #[error("the profile has format {found}, this program reads {}; probe again", FORMAT_VERSION)]
    OtherFormat { found: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a probe saw beside its points.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeSetting {
    pub fingerprint: Fingerprint,
    pub measured_at: f64,
    pub quality: Quality,
    pub method: String,
    pub idle_w: Coefficient,
    pub row_bytes: u32,
    pub bytes_per_s: Option<f64>,
}

impl Profile {
    /// Lays the lines through what was probed.
    ///
    /// # Errors
    /// [`ProfileError::Empty`], or an owner with too few points or points that are no numbers.
    pub fn fit(setting: ProbeSetting, points: Vec<ProbePoint>) -> Result<Self, ProfileError> {
        let mut owners: Vec<PartId> = points.iter().map(|point| point.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        if owners.is_empty() {
            return Err(ProfileError::Empty);
        }
        let line = |owner: PartId, what, cost: fn(&ProbePoint) -> f64| {
            let of_owner = points.iter().filter(|point| point.owner == owner);
            let per_fetch = |point: &ProbePoint| {
                let fetches = f64::from(point.requests.max(1));
                (f64::from(point.rows_per_request), cost(point) / fetches)
            };
            let costs: Vec<(f64, f64)> = of_owner.map(per_fetch).collect();
            fit_line(&costs).map_err(|source| ProfileError::Line { owner, what, source })
        };
        let profile = |owner: PartId| {
            Ok(OwnerProfile {
                owner,
                joules: line(owner, "energy", |point| point.net_j)?,
                seconds: line(owner, "time", |point| point.seconds)?,
            })
        };
        let owners = owners.into_iter().map(profile).collect::<Result<_, ProfileError>>()?;
        Ok(Self {
            format_version: FORMAT_VERSION,
            fingerprint: setting.fingerprint,
            measured_at: setting.measured_at,
            quality: setting.quality,
            method: setting.method,
            idle_w: setting.idle_w,
            row_bytes: setting.row_bytes,
            bytes_per_s: setting.bytes_per_s,
            owners,
            points,
        })
    }

    /// What the simulator needs. A step whose rows are there takes `step_s` and costs `step_j`; `ranks` share the idle power.
    /// One batch is assembled ahead, which is what a run does unless it is told otherwise.
    ///
    /// A coefficient that was measured below zero counts as zero. Owners that were not probed cost what the mean owner does.
    pub fn coefficients(&self, parts: PartId, ranks: u32, step_s: f64, step_j: f64) -> Coefficients {
        let fetch_cost = |owner: &OwnerProfile| FetchCost {
            request_j: owner.joules.intercept.value.max(0.0),
            row_j: owner.joules.slope.value.max(0.0),
            request_s: owner.seconds.intercept.value.max(0.0),
            row_s: owner.seconds.slope.value.max(0.0),
        };
        let known: Vec<FetchCost> = self.owners.iter().map(fetch_cost).collect();
        let mean = |field: fn(&FetchCost) -> f64| known.iter().map(field).sum::<f64>() / known.len().max(1) as f64;
        let typical = FetchCost {
            request_j: mean(|cost| cost.request_j),
            row_j: mean(|cost| cost.row_j),
            request_s: mean(|cost| cost.request_s),
            row_s: mean(|cost| cost.row_s),
        };
        let of = |part: PartId| {
            let found = self.owners.binary_search_by_key(&part, |owner| owner.owner);
            found.map_or(typical, |index| known[index])
        };
        Coefficients {
            owners: (0..parts).map(of).collect(),
            // Probes ask for what they fetch, so they say nothing of streams.
            delivery: None,
            row_bytes: f64::from(self.row_bytes),
            bytes_per_s: self.bytes_per_s.unwrap_or(f64::INFINITY),
            idle_w: self.idle_w.value.max(0.0) / f64::from(ranks.max(1)),
            ahead: 1,
            step_s,
            step_j,
        }
    }

    /// The coefficients whose intervals are too wide to be trusted, in words.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        for owner in &self.owners {
            let parts = [
                ("joules per request", owner.joules.intercept),
                ("joules per row", owner.joules.slope),
                ("seconds per request", owner.seconds.intercept),
                ("seconds per row", owner.seconds.slope),
            ];
            for (what, coefficient) in parts {
                if coefficient.value <= 0.0 || coefficient.half_width > WIDEST_INTERVAL * coefficient.value {
                    doubts.push(format!(
                        "owner {}: {what} {:.3e} ± {:.1e}",
                        owner.owner, coefficient.value, coefficient.half_width
                    ));
                }
            }
        }
        doubts
    }

    /// Writes the profile to a file, as a whole or not at all.
    ///
    /// # Errors
    /// [`ProfileError::File`].
    pub fn save(&self, path: &Path) -> Result<(), ProfileError> {
        Ok(write_json(path, self)?)
    }

    /// Reads a profile that was measured on the hardware `here`.
    ///
    /// # Errors
    /// [`ProfileError::File`], [`ProfileError::OtherFormat`], [`ProfileError::OtherHardware`].
    pub fn load(path: &Path, here: &Fingerprint) -> Result<Self, ProfileError> {
        let profile: Self = read_json(path, "a profile")?;
        if profile.format_version != FORMAT_VERSION {
            return Err(ProfileError::OtherFormat {
                found: profile.format_version,
            });
        }
        match profile.fingerprint.difference(here) {
            Some(difference) => Err(ProfileError::OtherHardware { difference }),
            None => Ok(profile),
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "joules are {} ({}); idle {:.1} W",
            self.quality, self.method, self.idle_w.value
        )?;
        writeln!(
            f,
            "{:>5}  {:>22}  {:>22}  {:>5}  {:>9}  {:>10}  {:>10}",
            "owner", "mJ per request", "uJ per row", "R^2", "crossover", "us/request", "ns/row"
        )?;
        for owner in &self.owners {
            let (joules, seconds) = (&owner.joules, &owner.seconds);
            let with_interval = |coefficient: Coefficient, unit: f64| {
                format!("{:.4} ± {:.4}", coefficient.value * unit, coefficient.half_width * unit)
            };
            let crossover = owner
                .crossover_rows()
                .map_or_else(|| "-".to_owned(), |rows| format!("{rows:.0} rows"));
            writeln!(
                f,
                "{:>5}  {:>22}  {:>22}  {:>5.3}  {crossover:>9}  {:>10.1}  {:>10.1}",
                owner.owner,
                with_interval(joules.intercept, 1e3),
                with_interval(joules.slope, 1e6),
                joules.r_squared,
                seconds.intercept.value * 1e6,
                seconds.slope.value * 1e9,
            )?;
        }
        for doubt in self.doubts() {
            writeln!(f, "not to be trusted: {doubt}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
