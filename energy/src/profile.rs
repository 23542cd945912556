//! What a request and a row cost on a cluster, measured: the coefficients that the simulator works with.
//!
//! One fetch of `x` rows costs `e0 + e1 x` joules and takes `l0 + l1 x` seconds (the paper's Section V-A). Many fetches of
//! each size are timed and metered, what idling costs in that time is taken off, and a line is laid through the costs per
//! fetch. Its intercept is the initiation, its slope the payload; where the two are equal lies the crossover, 965 rows on
//! the paper's cluster.

use std::collections::BTreeMap;
use std::path::Path;

use greengnn_model::book::{PartId, Rank};
use serde::{Deserialize, Serialize};

use crate::files::{FileError, read_json, write_json};
use crate::fingerprint::Fingerprint;
use crate::quality::Quality;
use crate::simulator::{Coefficients, DeliveryCost, FetchCost};

mod line;

pub use line::{Coefficient, Line, LineError, fit_line};

/// The layout of a profile.
const FORMAT_VERSION: u32 = 2;

/// An interval wider than this share of its coefficient says that the probe was too short or the cluster too busy.
pub const WIDEST_INTERVAL: f64 = 0.25;

/// A rank and an owner need so many points for lines of their own: two thirds of what lies on a line of five sizes twice.
const FEWEST_POINTS_OF_A_PAIR: usize = 7;

/// Fetches of one size from one owner, measured together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbePoint {
    /// The rank that asked.
    pub client: Rank,
    pub owner: PartId,
    pub rows_per_request: u32,
    /// Requests, or deliveries of one stream.
    pub requests: u32,
    pub seconds: f64,
    /// Of all machines, without what they draw when idle.
    pub net_j: f64,
    /// CPU seconds of all machines' processes, without what they use when idle, and those of the client's machine alone.
    pub net_cpu_s: f64,
    pub client_cpu_s: f64,
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

/// What fetching costs one rank from one owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairProfile {
    pub client: Rank,
    pub owner: PartId,
    pub joules: Line,
    pub seconds: Line,
}

/// What a delivery of a stream costs, over all owners.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeliveryProfile {
    /// Joules per delivery over rows per delivery.
    pub joules: Line,
    /// Seconds per delivery over rows per delivery, where deliveries are granted ahead.
    pub seconds: Line,
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
    /// Watts of all machines when idle with everything loaded; none where that is not known, and waits then cost nothing.
    pub idle_w: Option<Coefficient>,
    /// The ranks of every machine: ranks of one machine fetch from each other in place.
    pub placement: Vec<Vec<Rank>>,
    /// Whether the lanes checked what they carried.
    pub checksums: bool,
    pub row_bytes: u32,
    /// What one rank received from all owners together, at most; none where it was not tried.
    pub bytes_per_s: Option<f64>,
    /// By ascending owner, over all clients.
    pub owners: Vec<OwnerProfile>,
    /// By ascending client and owner; only of pairs with enough points.
    pub pairs: Vec<PairProfile>,
    /// None where too few deliveries were tried.
    pub delivery: Option<DeliveryProfile>,
    /// What the lines were laid through.
    pub points: Vec<ProbePoint>,
    /// The same of deliveries.
    pub delivery_points: Vec<ProbePoint>,
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
    #[error("the profile was measured in another use ({difference}); run `greengnn probe` with these flags")]
    OtherUse { difference: String },
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
    pub idle_w: Option<Coefficient>,
    pub placement: Vec<Vec<Rank>>,
    pub checksums: bool,
    pub row_bytes: u32,
    pub bytes_per_s: Option<f64>,
}

impl Profile {
    /// Lays the lines through what was probed: requests, and deliveries of streams.
    ///
    /// # Errors
    /// [`ProfileError::Empty`], or an owner with too few points or points that are no numbers.
    pub fn fit(
        setting: ProbeSetting,
        points: Vec<ProbePoint>,
        delivery_points: Vec<ProbePoint>,
    ) -> Result<Self, ProfileError> {
        let mut owners: Vec<PartId> = points.iter().map(|point| point.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        if owners.is_empty() {
            return Err(ProfileError::Empty);
        }
        let profile = |owner: PartId| {
            let of_owner: Vec<&ProbePoint> = points.iter().filter(|point| point.owner == owner).collect();
            let failed = |what| move |source| ProfileError::Line { owner, what, source };
            Ok(OwnerProfile {
                owner,
                joules: line_of_joules(&of_owner).map_err(failed("energy"))?,
                seconds: line_of_seconds(&of_owner).map_err(failed("time"))?,
            })
        };
        let owners = owners.into_iter().map(profile).collect::<Result<_, ProfileError>>()?;
        let delivered: Vec<&ProbePoint> = delivery_points.iter().collect();
        let delivery = match (line_of_joules(&delivered), line_of_seconds(&delivered)) {
            (Ok(joules), Ok(seconds)) => Some(DeliveryProfile { joules, seconds }),
            _ => None,
        };
        Ok(Self {
            format_version: FORMAT_VERSION,
            fingerprint: setting.fingerprint,
            measured_at: setting.measured_at,
            quality: setting.quality,
            method: setting.method,
            idle_w: setting.idle_w,
            placement: setting.placement,
            checksums: setting.checksums,
            row_bytes: setting.row_bytes,
            bytes_per_s: setting.bytes_per_s,
            owners,
            pairs: pairs(&points),
            delivery,
            points,
            delivery_points,
        })
    }

    /// What the simulator needs, the same for all ranks. A step whose rows are there takes `step_s` and costs `step_j`;
    /// `ranks` share the idle power. One batch is assembled ahead, which is what a run does unless it is told otherwise.
    ///
    /// A coefficient that was measured below zero counts as zero. Owners that were not probed cost what the mean owner does.
    pub fn coefficients(&self, parts: PartId, ranks: u32, step_s: f64, step_j: f64) -> Coefficients {
        let known: Vec<FetchCost> = self
            .owners
            .iter()
            .map(|owner| fetch_cost(&owner.joules, &owner.seconds))
            .collect();
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
            delivery: self.delivery.as_ref().map(|delivery| DeliveryCost {
                delivery_j: delivery.joules.intercept.value.max(0.0),
                delivery_s: delivery.seconds.intercept.value.max(0.0),
            }),
            row_bytes: f64::from(self.row_bytes),
            bytes_per_s: self.bytes_per_s.unwrap_or(f64::INFINITY),
            idle_w: self.idle_w.unwrap_or_default().value.max(0.0) / f64::from(ranks.max(1)),
            ahead: 1,
            step_s,
            step_j,
        }
    }

    /// The same for one rank. What it was measured to pay to an owner counts instead of what all ranks pay to that owner
    /// where the two can be told apart: on equal hardware the difference is noise, and all points together know better.
    pub fn coefficients_of(&self, rank: Rank, parts: PartId, ranks: u32, step_s: f64, step_j: f64) -> Coefficients {
        let mut coefficients = self.coefficients(parts, ranks, step_s, step_j);
        for pair in self.pairs.iter().filter(|pair| pair.client == rank) {
            let all = self.owners.binary_search_by_key(&pair.owner, |owner| owner.owner);
            let (Ok(all), Some(cost)) = (all, coefficients.owners.get_mut(usize::from(pair.owner))) else {
                continue;
            };
            let own = fetch_cost(&pair.joules, &pair.seconds);
            let of_all = &self.owners[all];
            if differ(&pair.joules, &of_all.joules) {
                (cost.request_j, cost.row_j) = (own.request_j, own.row_j);
            }
            if differ(&pair.seconds, &of_all.seconds) {
                (cost.request_s, cost.row_s) = (own.request_s, own.row_s);
            }
        }
        coefficients
    }

    /// The share of a fetch's CPU time that its client spends; the rest is the owner's. None if nothing was seen.
    pub fn client_share(&self) -> Option<f64> {
        let sum = |field: fn(&ProbePoint) -> f64| self.points.iter().map(field).sum::<f64>();
        let all = sum(|point| point.net_cpu_s);
        (all > 0.0).then(|| sum(|point| point.client_cpu_s) / all)
    }

    /// The coefficients whose intervals are too wide to be trusted, in words.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.idle_w.is_none() {
            doubts.push("the idle power is not known, and waits cost no joules".to_owned());
        }
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

    /// Reads a profile, whatever hardware it was measured on.
    ///
    /// # Errors
    /// [`ProfileError::File`], [`ProfileError::OtherFormat`].
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let profile: Self = read_json(path, "a profile")?;
        if profile.format_version != FORMAT_VERSION {
            return Err(ProfileError::OtherFormat {
                found: profile.format_version,
            });
        }
        Ok(profile)
    }

    /// Refuses other hardware than that which was probed.
    ///
    /// # Errors
    /// [`ProfileError::OtherHardware`].
    pub fn check_hardware(&self, here: &Fingerprint) -> Result<(), ProfileError> {
        match self.fingerprint.difference(here) {
            Some(difference) => Err(ProfileError::OtherHardware { difference }),
            None => Ok(()),
        }
    }

    /// Refuses another use of that hardware: machines that host other ranks, lanes that check or do not, rows of other bytes.
    ///
    /// # Errors
    /// [`ProfileError::OtherUse`].
    pub fn check_use(&self, placement: &[Vec<Rank>], checksums: bool, row_bytes: u32) -> Result<(), ProfileError> {
        let difference = if self.placement != placement {
            format!("ranks of the machines: {:?} there, {placement:?} here", self.placement)
        } else if self.checksums != checksums {
            format!("checksums on lanes: {} there, {checksums} here", self.checksums)
        } else if self.row_bytes != row_bytes {
            format!("bytes of a row: {} there, {row_bytes} here", self.row_bytes)
        } else {
            return Ok(());
        };
        Err(ProfileError::OtherUse { difference })
    }
}

fn line_of_joules(points: &[&ProbePoint]) -> Result<Line, LineError> {
    line_of(points, |point| point.net_j)
}

fn line_of_seconds(points: &[&ProbePoint]) -> Result<Line, LineError> {
    line_of(points, |point| point.seconds)
}

/// A line through the cost per fetch over the rows per fetch.
fn line_of(points: &[&ProbePoint], cost: fn(&ProbePoint) -> f64) -> Result<Line, LineError> {
    let per_fetch = |point: &&ProbePoint| {
        let fetches = f64::from(point.requests.max(1));
        (f64::from(point.rows_per_request), cost(point) / fetches)
    };
    let costs: Vec<(f64, f64)> = points.iter().map(per_fetch).collect();
    fit_line(&costs)
}

/// The lines of every pair that has enough points.
fn pairs(points: &[ProbePoint]) -> Vec<PairProfile> {
    let mut of_pair: BTreeMap<(Rank, PartId), Vec<&ProbePoint>> = BTreeMap::new();
    for point in points {
        of_pair.entry((point.client, point.owner)).or_default().push(point);
    }
    let enough = of_pair
        .into_iter()
        .filter(|(_, points)| points.len() >= FEWEST_POINTS_OF_A_PAIR);
    enough
        .filter_map(|((client, owner), points)| {
            Some(PairProfile {
                client,
                owner,
                joules: line_of_joules(&points).ok()?,
                seconds: line_of_seconds(&points).ok()?,
            })
        })
        .collect()
}

fn fetch_cost(joules: &Line, seconds: &Line) -> FetchCost {
    FetchCost {
        request_j: joules.intercept.value.max(0.0),
        row_j: joules.slope.value.max(0.0),
        request_s: seconds.intercept.value.max(0.0),
        row_s: seconds.slope.value.max(0.0),
    }
}

/// Whether two lines have intercepts or slopes whose intervals do not touch.
fn differ(one: &Line, other: &Line) -> bool {
    let apart = |a: Coefficient, b: Coefficient| (a.value - b.value).abs() > a.half_width + b.half_width;
    apart(one.intercept, other.intercept) || apart(one.slope, other.slope)
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let idle = self
            .idle_w
            .map_or_else(|| "power unknown".to_owned(), |watts| format!("{:.1} W", watts.value));
        writeln!(f, "joules are {} ({}); idle {idle}", self.quality, self.method)?;
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
        if let Some(delivery) = &self.delivery {
            writeln!(
                f,
                "a delivery of a stream: {:.4} ± {:.4} mJ, {:.1} us, beside its rows",
                delivery.joules.intercept.value * 1e3,
                delivery.joules.intercept.half_width * 1e3,
                delivery.seconds.intercept.value * 1e6,
            )?;
        }
        if let Some(bytes_per_s) = self.bytes_per_s {
            writeln!(
                f,
                "one rank receives up to {:.0} MB/s from all owners",
                bytes_per_s / 1e6
            )?;
        }
        if let Some(share) = self.client_share() {
            writeln!(
                f,
                "the client spends {:.0} % of a fetch's CPU time, the owner the rest",
                share * 100.0
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
