//! The configuration of a training run: defaults, then the file of `--config`, then the flags.

mod flags;
mod lower_clocks;
pub mod unused;
mod window;

use std::path::{Path, PathBuf};

use greengnn_model::book::Rank;
use greengnn_model::layers::{DeviceChoice, LayerError};
use greengnn_model::plan::Delivery;
use greengnn_model::policy::{Budget, BudgetError, PolicyParameters, UnknownPolicy, usual_delivery};
use greengnn_model::rng::Purpose;
use greengnn_model::row_type::RowType;
use greengnn_model::sampling::{EpochSpec, SeedOrder, StepCounts};
use greengnn_model::store::PartsManifest;
use serde::{Deserialize, Serialize};

use crate::wiring::PATIENCE;
use crate::work::Work;

pub use flags::TrainFlags;
pub use lower_clocks::LowerClocks;
pub use window::Window;

/// Everything that decides what a run computes and how. Written to the run folder as it was resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainConfig {
    /// What ranks move to train on nodes of other parts.
    pub communication: Communication,
    /// How remote rows are cached; `none` in push-pull.
    pub policy: String,
    /// How remote rows are asked for: request by request, or as one stream per owner and epoch; by default as
    /// [`usual_delivery`] says.
    pub delivery: Option<Delivery>,
    /// Steps per window: exact for `window`, a maximum for `bulk`; or `auto`.
    pub window: Window,
    /// Cache memory of a rank: a share of the rows that it does not own, bytes, or rows.
    pub budget: String,
    /// The part of the budget that is on the device, for policies with levels; by default none, and half for `two-level`.
    pub device_budget: Option<String>,
    /// Epochs that `presample` counts, and that correct the estimate of `vip` and `two-level`.
    pub presample_epochs: u32,
    /// Weight of the estimate in the scores of `vip` and `two-level`, 0 to 1; the rest is that of presampled counts.
    pub vip_weight: f64,
    /// How many times as much a row over the network costs as one from the host to the device, for `two-level`.
    pub network_cost: f64,
    /// How remote rows travel and are kept: `f32`, `f16`, `bf16` or `int8`. All but `f32` change what is computed.
    pub row_type: RowType,
    pub epochs: u32,
    /// Seed nodes of a rank per step.
    pub batch_size: u32,
    /// The order of the seeds. All but `random` change what is learnt.
    pub batch_order: SeedOrder,
    /// Neighbours per hop, from the seeds outwards; one GraphSAGE layer per hop.
    pub fanouts: Vec<u32>,
    pub hidden: usize,
    /// Learning rate of Adam.
    pub lr: f64,
    pub dropout: f64,
    pub seed: u64,
    /// Machine processes; by default one per part.
    pub machines: Option<u32>,
    /// Compute threads of a machine process; by default the cores divided by the machines of the host.
    pub threads: Option<u32>,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    pub resample: Resample,
    pub preaggregate: Preaggregate,
    /// Batches that are assembled while one trains: 1, or 0 as DistDGL does.
    pub ahead: u32,
    /// The longest wait for an answer of another process, in seconds.
    pub deadline_s: f64,
    /// Seconds for which the power of the machines is measured with everything loaded and nothing running, before the run
    /// begins; 0 for not at all. It belongs to no period of the run.
    pub idle_baseline: f64,
    /// Keep the trace files of a machine under this folder, which must have none yet, instead of deleting them after use.
    pub keep_trace: Option<PathBuf>,
    /// Lower the clocks of GPUs until the first training step: `auto`, those that the ranks train on, or UUIDs.
    pub lower_clocks: Option<LowerClocks>,
    /// And, as an experiment, while all ranks of a machine wait for batches.
    pub lower_clocks_while_waiting: bool,
    /// Check the parts' files and the frames of lanes against their checksums, and every remote row of every batch against
    /// reads of slots that hold nothing.
    pub verify: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            communication: Communication::Pull,
            policy: "bulk".to_owned(),
            delivery: None,
            window: Window::default(),
            budget: "25%".to_owned(),
            device_budget: None,
            presample_epochs: PolicyParameters::default().presample_epochs,
            vip_weight: PolicyParameters::default().vip_weight,
            network_cost: PolicyParameters::default().network_cost,
            row_type: RowType::F32,
            epochs: 10,
            batch_size: 1000,
            batch_order: SeedOrder::Random,
            fanouts: vec![25, 10],
            hidden: 128,
            lr: 0.003,
            dropout: 0.5,
            seed: 1,
            machines: None,
            threads: None,
            device: "auto".to_owned(),
            resample: Resample::Epoch,
            preaggregate: Preaggregate::Auto,
            ahead: 1,
            deadline_s: 60.0,
            idle_baseline: 0.0,
            keep_trace: None,
            lower_clocks: None,
            lower_clocks_while_waiting: false,
            verify: false,
        }
    }
}

/// What ranks move to train on nodes of other parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Communication {
    /// Feature rows, under a policy.
    #[default]
    Pull,
    /// Sampled graphs and partial sums of the first layer, as in P3; no rows, so that there is no policy.
    PushPull,
}

/// The policy of a run that moves no rows.
pub const NO_POLICY: &str = "none";

/// How often neighbours are sampled anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Resample {
    /// Every epoch has its own trace.
    Epoch,
    /// The first epoch's trace is replayed, as in the GreenGNN paper.
    Never,
}

/// Where the first layer's aggregation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Preaggregate {
    /// In the loader, straight from the rows.
    On,
    /// In the layer.
    Off,
    /// What costs least: on, on a GPU because fewer values travel, on a CPU because no row is copied first
    /// (BENCHMARKS.md).
    Auto,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{path} cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a configuration: {source}")]
    Parse {
        path: PathBuf,
        source: Box<toml::de::Error>,
    },
    #[error("{name} must be {wanted}, found {found}")]
    Value {
        name: &'static str,
        wanted: &'static str,
        found: String,
    },
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error(transparent)]
    Budget(#[from] BudgetError),
    #[error(
        "policy {policy} keeps no rows on the device, but a device budget of {found} was given; leave it out, or choose degree, \
         presample, vip or two-level"
    )]
    NoLevels { policy: &'static str, found: String },
    #[error("policy {policy} has no windows to choose from; leave out --window auto, or choose window or bulk")]
    NoWindows { policy: &'static str },
    #[error(transparent)]
    Device(#[from] LayerError),
    #[error(
        "push-pull splits the rows of nodes by columns, and these parts own rows apart from their nodes; partition \
         without moving rows"
    )]
    RowsApart,
    #[error(
        "the device budget of {device} is {device_rows} rows of rank {rank}, and the budget of {budget}, of which it is a part, \
         is {rows}: raise the one or lower the other"
    )]
    DeviceAboveBudget {
        device: String,
        device_rows: u32,
        budget: String,
        rows: u32,
        rank: Rank,
    },
    #[error(
        "none of the parts 0 to {last} has a node in the split `train`, so that there is nothing to learn from: give the graph \
         train seeds and cut it anew"
    )]
    NoTrainSeeds { last: Rank },
    #[error(
        "machines must be at most {parts}, the number of parts, found {machines}: each machine trains at least one"
    )]
    TooManyMachines { machines: u32, parts: u16 },
}

impl TrainConfig {
    /// Reads a TOML file whose keys are the flags' names without the dashes in front.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Refuses values that no run can have, before anything is started.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |name, wanted, found: String| Err(ConfigError::Value { name, wanted, found });
        match self.communication {
            Communication::Pull => self.check_policy()?,
            Communication::PushPull => self.check_push_pull()?,
        }
        self.budget.parse::<Budget>()?;
        if self.presample_epochs == 0 || self.presample_epochs > 1000 {
            return refuse("presample-epochs", "1 to 1000", self.presample_epochs.to_string());
        }
        if !(0.0..=1.0).contains(&self.vip_weight) {
            return refuse("vip-weight", "0 to 1", self.vip_weight.to_string());
        }
        if !(self.network_cost >= 0.0 && self.network_cost.is_finite()) {
            return refuse("network-cost", "a number of at least 0", self.network_cost.to_string());
        }
        self.device.parse::<DeviceChoice>()?;
        if self.window == Window::Steps(0) {
            return refuse("window", "at least 1, or auto", "0".to_owned());
        }
        if self.epochs == 0 {
            return refuse("epochs", "at least 1", "0".to_owned());
        }
        if self.batch_size == 0 {
            return refuse("batch-size", "at least 1", "0".to_owned());
        }
        if self.fanouts.is_empty() || self.fanouts.len() > 8 {
            return refuse("fanouts", "1 to 8 numbers, one per hop", self.fanouts.len().to_string());
        }
        if self.hidden == 0 {
            return refuse("hidden", "at least 1", "0".to_owned());
        }
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            return refuse("lr", "a positive number", self.lr.to_string());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse("dropout", "at least 0 and below 1", self.dropout.to_string());
        }
        if self.machines == Some(0) {
            return refuse("machines", "at least 1", "0".to_owned());
        }
        if self.threads == Some(0) {
            return refuse("threads", "at least 1", "0".to_owned());
        }
        if self.ahead > 1 {
            return refuse("ahead", "0 or 1", self.ahead.to_string());
        }
        if !(1.0..=1e6).contains(&self.deadline_s) {
            return refuse("deadline-s", "1 to 1,000,000 seconds", self.deadline_s.to_string());
        }
        if self.idle_baseline != 0.0 && !(1.0..=600.0).contains(&self.idle_baseline) {
            let wanted = "0 for none, or 1 to 600 seconds";
            return refuse("idle-baseline", wanted, self.idle_baseline.to_string());
        }
        if self.lower_clocks_while_waiting && self.lower_clocks.is_none() {
            let wanted = "given together with lower-clocks, which says whose clocks are lowered";
            return refuse("lower-clocks-while-waiting", wanted, "it alone".to_owned());
        }
        Ok(())
    }

    /// Refuses what a run that moves no rows cannot have.
    fn check_policy(&self) -> Result<(), ConfigError> {
        let policy = self.policy_parameters().policy(&self.policy)?;
        if self.window.is_auto() && !policy.uses_window() {
            return Err(ConfigError::NoWindows { policy: policy.name() });
        }
        let Some(found) = &self.device_budget else {
            return Ok(());
        };
        let rows = found.parse::<Budget>()?.rows(1, u32::MAX);
        if rows > 0 && !policy.has_levels() {
            let policy = policy.name();
            let found = found.clone();
            return Err(ConfigError::NoLevels { policy, found });
        }
        Ok(())
    }

    fn check_push_pull(&self) -> Result<(), ConfigError> {
        let refuse = |name, wanted, found: String| Err(ConfigError::Value { name, wanted, found });
        if self.policy != NO_POLICY {
            return refuse(
                "policy",
                "none with push-pull, which moves no rows",
                self.policy.clone(),
            );
        }
        if self.row_type != RowType::F32 {
            return refuse(
                "row-type",
                "f32 with push-pull, which moves no rows",
                self.row_type.to_string(),
            );
        }
        if let Some(delivery) = self.delivery {
            let wanted = "left out with push-pull, which moves no rows";
            return refuse("delivery", wanted, delivery.name().to_owned());
        }
        if let Some(found) = &self.device_budget {
            return refuse(
                "device-budget",
                "absent with push-pull, which moves no rows",
                found.clone(),
            );
        }
        if self.preaggregate == Preaggregate::Off {
            return refuse("preaggregate", "on or auto with push-pull", "off".to_owned());
        }
        if self.device.parse::<DeviceChoice>()? != DeviceChoice::Cpu {
            let wanted = "cpu with push-pull, whose first layer is computed on the host";
            return refuse("device", wanted, self.device.clone());
        }
        Ok(())
    }

    /// Push-pull knows neither policy nor budget, and runs on the CPU: what the defaults say of them is not meant.
    fn without_rows(&mut self) {
        let default = Self::default();
        for (value, without) in [
            (&mut self.policy, (default.policy, NO_POLICY)),
            (&mut self.budget, (default.budget, "0rows")),
            (&mut self.device, (default.device, "cpu")),
        ] {
            if *value == without.0 {
                without.1.clone_into(value);
            }
        }
    }

    /// Refuses what this graph cannot have.
    pub fn check_against(&self, manifest: &PartsManifest) -> Result<(), ConfigError> {
        if self.communication == Communication::PushPull && manifest.row_bounds.is_some() {
            return Err(ConfigError::RowsApart);
        }
        let parts = manifest.book.parts();
        if manifest.parts.iter().all(|part| part.train == 0) {
            return Err(ConfigError::NoTrainSeeds {
                last: parts.saturating_sub(1),
            });
        }
        self.check_levels(manifest)?;
        match self.machines {
            Some(machines) if machines > u32::from(parts) => Err(ConfigError::TooManyMachines { machines, parts }),
            _ => Ok(()),
        }
    }

    /// Refuses a device budget of more rows than the budget that it is a part of. Rows on the device are decoded, so that
    /// bytes of the one and of the other are not the same rows.
    fn check_levels(&self, manifest: &PartsManifest) -> Result<(), ConfigError> {
        let budget: Budget = self.budget.parse()?;
        for rank in 0..manifest.book.parts() {
            let remote = manifest.row_book().remote_nodes(rank);
            let rows = budget.rows(self.row_type.row_bytes(manifest.features), remote);
            let device_rows = self.device_rows(manifest, remote)?.unwrap_or(0);
            if device_rows > rows {
                return Err(ConfigError::DeviceAboveBudget {
                    device: self.device_budget.clone().unwrap_or_default(),
                    device_rows,
                    budget: self.budget.clone(),
                    rows,
                    rank,
                });
            }
        }
        Ok(())
    }

    /// Rows of the device budget, where one was given, for a rank that does not own `remote_rows` rows.
    ///
    /// # Errors
    /// A budget that is none.
    pub fn device_rows(&self, manifest: &PartsManifest, remote_rows: u32) -> Result<Option<u32>, BudgetError> {
        let budget = self.device_budget.as_deref().map(str::parse::<Budget>).transpose()?;
        // Rows on the device are decoded.
        let row_bytes = RowType::F32.row_bytes(manifest.features);
        Ok(budget.map(|budget| budget.rows(row_bytes, remote_rows)))
    }

    /// What the policy is told.
    pub fn policy_parameters(&self) -> PolicyParameters {
        PolicyParameters {
            presample_epochs: self.presample_epochs,
            vip_weight: self.vip_weight,
            network_cost: self.network_cost,
        }
    }

    /// How remote rows of this graph are asked for: as the configuration says, or as it is usual for the policy and the
    /// budget.
    ///
    /// # Errors
    /// A budget that is none.
    pub fn delivery(&self, manifest: &PartsManifest) -> Result<Delivery, BudgetError> {
        let budget: Budget = self.budget.parse()?;
        Ok(self.delivery_under(budget, manifest))
    }

    /// The same under another budget.
    pub fn delivery_under(&self, budget: Budget, manifest: &PartsManifest) -> Delivery {
        let row_bytes = self.row_type.row_bytes(manifest.features);
        let rows = manifest.row_book();
        let usual = |rank| {
            let remote = rows.remote_nodes(rank);
            usual_delivery(&self.policy, budget.rows(row_bytes, remote), remote)
        };
        let any_streams = || (0..rows.parts()).any(|rank| usual(rank) == Delivery::Stream);
        self.delivery.unwrap_or_else(|| match any_streams() {
            true => Delivery::Stream,
            false => Delivery::Windowed,
        })
    }

    /// What an epoch of a run is sampled by.
    pub fn epoch_spec(&self, rank: Rank, epoch: u32, training: Purpose, steps: StepCounts) -> EpochSpec {
        EpochSpec {
            seed: self.seed,
            epoch,
            rank,
            batch_size: self.batch_size,
            fanouts: self.fanouts.clone(),
            training,
            order: self.batch_order,
            steps,
        }
    }

    /// What is not as by default, as the names of flags and what follows them: a value, or nothing for a switch that is on.
    pub fn other_than_default(&self) -> Vec<(String, String)> {
        let values = |config: &Self| match serde_json::to_value(config) {
            Ok(serde_json::Value::Object(values)) => values,
            _ => serde_json::Map::new(),
        };
        let default = values(&Self::default());
        let differs = values(self)
            .into_iter()
            .filter(|(name, value)| default.get(name) != Some(value));
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        differs
            .map(|(name, value)| match &value {
                serde_json::Value::Bool(true) => (name, String::new()),
                serde_json::Value::Array(values) => {
                    let values: Vec<String> = values.iter().map(text).collect();
                    (name, format!(" {}", values.join(",")))
                }
                value => (name, format!(" {}", text(value))),
            })
            .collect()
    }

    /// How long ranks may probe before the first epoch, in such a work; nothing where they do not.
    pub fn probe_within(&self, work: &Work) -> std::time::Duration {
        let probes = match work {
            Work::Train(_) => self.window.is_auto(),
            Work::Probe(_) | Work::Tune(_) => true,
        };
        if probes {
            self.deadline() * PATIENCE
        } else {
            std::time::Duration::ZERO
        }
    }

    pub fn deadline(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.deadline_s)
    }

    /// How long machines do nothing before they begin.
    pub fn idle_for(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.idle_baseline)
    }
}

#[cfg(test)]
mod tests;
