//! The configuration of a training run: defaults, then the file of `--config`, then the flags.

use std::path::{Path, PathBuf};

use greengnn_model::layers::{DeviceChoice, LayerError};
use greengnn_model::plan::Delivery;
use greengnn_model::policy::{Budget, BudgetError, PolicyParameters, UnknownPolicy, usual_delivery};
use greengnn_model::row_type::RowType;
use greengnn_model::sampling::SeedOrder;
use greengnn_model::store::PartsManifest;
use serde::{Deserialize, Serialize};

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
    /// Steps per window: exact for `window`, a maximum for `bulk`.
    pub window: u32,
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
    /// Keep the trace files of a machine under this folder instead of deleting them after use.
    pub keep_trace: Option<PathBuf>,
    /// Check the parts' files against their checksums, and every remote row of every batch against reads of slots that
    /// hold nothing.
    pub verify: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            communication: Communication::Pull,
            policy: "bulk".to_owned(),
            delivery: None,
            window: 16,
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
            keep_trace: None,
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
    #[error(transparent)]
    Device(#[from] LayerError),
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
        if self.window == 0 {
            return refuse("window", "at least 1", "0".to_owned());
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
        Ok(())
    }

    /// Refuses what a run that moves no rows cannot have.
    fn check_policy(&self) -> Result<(), ConfigError> {
        let policy = self.policy_parameters().policy(&self.policy)?;
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
        let parts = manifest.book.parts();
        match self.machines {
            Some(machines) if machines > u32::from(parts) => Err(ConfigError::TooManyMachines { machines, parts }),
            _ => Ok(()),
        }
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

    pub fn deadline(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.deadline_s)
    }
}

/// The flags of `train` and `supervisor`. A flag that is not given leaves what the file or the default says.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TrainFlags {
    /// A TOML file with the names of these flags as keys; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Pull rows, or push graphs and pull partial sums of the first layer as P3 does [default: pull]
    #[arg(long, value_enum)]
    pub communication: Option<Communication>,
    /// How remote rows are cached: on-demand, degree, presample, vip, two-level, lru, lfu, fifo, epoch, window, bulk or full
    /// [default: bulk]
    #[arg(long)]
    pub policy: Option<String>,
    /// How remote rows are asked for: windowed, request by request, or stream, one request per owner and epoch that is
    /// answered by one ordered stream, for which bulk plans a delivery at every step [default: stream for bulk unless
    /// all rows fit, else windowed]
    #[arg(long)]
    pub delivery: Option<Delivery>,
    /// Steps per window; exact for `window`, a maximum for `bulk` [default: 16]
    #[arg(long, value_name = "W")]
    pub window: Option<u32>,
    /// Cache memory per rank: 25% of the remote rows, 64MiB, or 1000rows [default: 25%]
    #[arg(long)]
    pub budget: Option<String>,
    /// The part of the budget that is in the device's memory: 5%, 64MiB or 1000rows; for degree, presample, vip and two-level.
    /// The first layer then aggregates on the device, whatever --preaggregate says [default: 0; for two-level half the budget]
    #[arg(long, value_name = "BUDGET")]
    pub device_budget: Option<String>,
    /// Epochs that presample counts, and vip and two-level where --vip-weight is below 1 [default: 2]
    #[arg(long, value_name = "K")]
    pub presample_epochs: Option<u32>,
    /// Weight of the analytic estimate in vip and two-level, 0 to 1; the rest is for presampled counts [default: 1]
    #[arg(long, value_name = "WEIGHT")]
    pub vip_weight: Option<f64>,
    /// Cost of a row over the network in rows from host to device, for two-level [default: 10]
    #[arg(long, value_name = "RATIO")]
    pub network_cost: Option<f64>,
    /// How remote rows travel and are kept: f32, f16, bf16, or int8 with a scale per row; fewer bits move fewer bytes and
    /// let a budget in bytes hold more rows, but round the features [default: f32]
    #[arg(long, value_name = "TYPE")]
    pub row_type: Option<RowType>,
    /// [default: 10]
    #[arg(long)]
    pub epochs: Option<u32>,
    /// Seed nodes of a rank per step [default: 1000]
    #[arg(long)]
    pub batch_size: Option<u32>,
    /// Order of the seeds: `random`, or `proximity[:SEQUENCES]`, by breadth-first searches, so that batches need
    /// fewer rows; that changes what is learnt [default: random]
    #[arg(long, value_name = "ORDER")]
    pub batch_order: Option<SeedOrder>,
    /// Neighbours per hop from the seeds outwards; one layer per hop [default: 25,10]
    #[arg(long, value_delimiter = ',', value_name = "N,N,..", action = clap::ArgAction::Set)]
    pub fanouts: Option<Vec<u32>>,
    /// Width of the layers between [default: 128]
    #[arg(long)]
    pub hidden: Option<usize>,
    /// Learning rate of Adam [default: 0.003]
    #[arg(long)]
    pub lr: Option<f64>,
    /// [default: 0.5]
    #[arg(long)]
    pub dropout: Option<f64>,
    /// [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Machine processes [default: one per part]
    #[arg(long)]
    pub machines: Option<u32>,
    /// Compute threads per machine process [default: cores / machines on the host]
    #[arg(long)]
    pub threads: Option<u32>,
    /// auto, cpu, cuda or cuda:N [default: auto]
    #[arg(long)]
    pub device: Option<String>,
    /// Sample each epoch afresh, or replay the first epoch's trace [default: epoch]
    #[arg(long, value_enum)]
    pub resample: Option<Resample>,
    /// Aggregate the first layer in the loader [default: auto]
    #[arg(long, value_enum)]
    pub preaggregate: Option<Preaggregate>,
    /// Batches assembled while one trains: 1, or 0 as DistDGL does [default: 1]
    #[arg(long)]
    pub ahead: Option<u32>,
    /// The longest wait for another process, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    pub deadline_s: Option<f64>,
    /// Keep the trace files under this folder
    #[arg(long, value_name = "DIR")]
    pub keep_trace: Option<PathBuf>,
    /// Check the parts against their checksums, and every remote row of every batch for reads of empty cache slots
    #[arg(long)]
    pub verify: bool,
}

impl TrainFlags {
    /// Defaults, then the file, then the flags; checked.
    pub fn resolve(&self) -> Result<TrainConfig, ConfigError> {
        let mut config = match &self.config {
            Some(path) => TrainConfig::from_file(path)?,
            None => TrainConfig::default(),
        };
        let set = |target: &mut String, value: &Option<String>| {
            if let Some(value) = value {
                target.clone_from(value);
            }
        };
        set(&mut config.policy, &self.policy);
        set(&mut config.budget, &self.budget);
        set(&mut config.device, &self.device);
        config.device_budget = self.device_budget.clone().or(config.device_budget);
        config.presample_epochs = self.presample_epochs.unwrap_or(config.presample_epochs);
        config.vip_weight = self.vip_weight.unwrap_or(config.vip_weight);
        config.network_cost = self.network_cost.unwrap_or(config.network_cost);
        config.delivery = self.delivery.or(config.delivery);
        config.row_type = self.row_type.unwrap_or(config.row_type);
        config.window = self.window.unwrap_or(config.window);
        config.epochs = self.epochs.unwrap_or(config.epochs);
        config.batch_size = self.batch_size.unwrap_or(config.batch_size);
        config.batch_order = self.batch_order.unwrap_or(config.batch_order);
        if let Some(fanouts) = &self.fanouts {
            config.fanouts.clone_from(fanouts);
        }
        config.hidden = self.hidden.unwrap_or(config.hidden);
        config.lr = self.lr.unwrap_or(config.lr);
        config.dropout = self.dropout.unwrap_or(config.dropout);
        config.seed = self.seed.unwrap_or(config.seed);
        config.machines = self.machines.or(config.machines);
        config.threads = self.threads.or(config.threads);
        config.resample = self.resample.unwrap_or(config.resample);
        config.preaggregate = self.preaggregate.unwrap_or(config.preaggregate);
        config.ahead = self.ahead.unwrap_or(config.ahead);
        config.deadline_s = self.deadline_s.unwrap_or(config.deadline_s);
        if let Some(folder) = &self.keep_trace {
            config.keep_trace = Some(folder.clone());
        }
        config.verify |= self.verify;
        config.communication = self.communication.unwrap_or(config.communication);
        if config.communication == Communication::PushPull {
            self.refuse_row_flags()?;
            config.without_rows();
        }
        config.check()?;
        Ok(config)
    }

    /// A flag that would say how rows are cached was not meant for a run that moves none.
    fn refuse_row_flags(&self) -> Result<(), ConfigError> {
        let given = [
            ("policy", self.policy.clone()),
            ("budget", self.budget.clone()),
            ("window", self.window.map(|window| window.to_string())),
            ("delivery", self.delivery.map(|delivery| delivery.name().to_owned())),
        ];
        for (name, value) in given {
            if let Some(found) = value {
                let wanted = "left out with push-pull, which moves no rows";
                return Err(ConfigError::Value { name, wanted, found });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use greengnn_model::policy::ScoreKind;

    use super::*;

    #[test]
    fn flags_override_the_file_and_the_file_overrides_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, "hidden = 16\nbatch-size = 50\nfanouts = [10, 5]\n").unwrap();
        let flags = TrainFlags {
            config: Some(path),
            batch_size: Some(7),
            ..TrainFlags::default()
        };
        let config = flags.resolve().unwrap();
        assert_eq!(
            (config.hidden, config.batch_size, config.fanouts.as_slice()),
            (16, 7, [10, 5].as_slice())
        );
        assert_eq!(config.lr, TrainConfig::default().lr);
    }

    #[test]
    fn push_pull_moves_no_rows_and_takes_nothing_that_says_how_to_keep_them() {
        let push_pull = || TrainFlags {
            communication: Some(Communication::PushPull),
            ..TrainFlags::default()
        };
        let config = push_pull().resolve().unwrap();
        assert_eq!(
            (&*config.policy, &*config.budget, &*config.device),
            ("none", "0rows", "cpu")
        );
        let text = toml::to_string(&config).unwrap();
        let again: TrainConfig = toml::from_str(&text).unwrap();
        again.check().unwrap();
        assert_eq!(again, config);

        let refused = |flags: TrainFlags| flags.resolve().unwrap_err().to_string();
        let mut flags = push_pull();
        flags.policy = Some("bulk".into());
        let error = refused(flags);
        assert_eq!(
            error,
            "policy must be left out with push-pull, which moves no rows, found bulk"
        );
        let mut flags = push_pull();
        flags.budget = Some("5%".into());
        assert!(refused(flags).contains("budget must be left out"));
        let mut flags = push_pull();
        flags.delivery = Some(Delivery::Stream);
        assert!(refused(flags).contains("delivery must be left out"));
        let mut flags = push_pull();
        flags.device = Some("cuda:0".into());
        assert!(refused(flags).contains("device must be cpu"));
        let mut flags = push_pull();
        flags.preaggregate = Some(Preaggregate::Off);
        assert!(refused(flags).contains("preaggregate must be on or auto"));
        // Nor has a run that pulls rows no policy.
        let none = TrainConfig {
            policy: NO_POLICY.into(),
            ..TrainConfig::default()
        };
        assert!(none.check().unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_misspelt_key_and_a_bad_value_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, "hiden = 16\n").unwrap();
        let error = TrainConfig::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("run.toml") && error.contains("hiden"), "{error}");
        let flags = TrainFlags {
            dropout: Some(1.0),
            ..TrainFlags::default()
        };
        assert_eq!(
            flags.resolve().unwrap_err().to_string(),
            "dropout must be at least 0 and below 1, found 1"
        );
    }

    #[test]
    fn a_device_budget_is_for_policies_with_levels_and_parameters_have_bounds() {
        let resolve = |policy: &str, change: fn(&mut TrainFlags)| {
            let mut flags = TrainFlags {
                policy: Some(policy.to_owned()),
                ..TrainFlags::default()
            };
            change(&mut flags);
            flags.resolve().map_err(|error| error.to_string())
        };
        let device = |flags: &mut TrainFlags| flags.device_budget = Some("5%".to_owned());
        for policy in ["degree", "presample", "vip", "two-level"] {
            assert_eq!(resolve(policy, device).unwrap().device_budget.as_deref(), Some("5%"));
        }
        for policy in ["bulk", "window", "lru", "full", "on-demand"] {
            let error = resolve(policy, device).unwrap_err();
            assert!(
                error.contains(&format!("policy {policy} keeps no rows on the device")),
                "{error}"
            );
            assert!(resolve(policy, |flags| flags.device_budget = Some("0".to_owned())).is_ok());
        }
        let refused: [fn(&mut TrainFlags); 4] = [
            |flags| flags.presample_epochs = Some(0),
            |flags| flags.vip_weight = Some(f64::NAN),
            |flags| flags.network_cost = Some(-1.0),
            |flags| flags.device_budget = Some("5".to_owned()),
        ];
        for change in refused {
            assert!(resolve("two-level", change).is_err());
        }
        let config = resolve("vip", |flags| {
            flags.presample_epochs = Some(7);
            flags.vip_weight = Some(0.25);
        });
        let policy = config.unwrap().policy_parameters().policy("vip").unwrap();
        let corrected = ScoreKind::CorrectedVip {
            weight: 0.25,
            epochs: 7,
        };
        assert_eq!(policy.score_kind(), Some(corrected));
    }

    #[test]
    fn a_resolved_configuration_reads_back_as_it_was() {
        let config = TrainConfig {
            threads: Some(2),
            batch_order: SeedOrder::Proximity { sequences: 7 },
            ..TrainConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<TrainConfig>(&text).unwrap(), config);
    }
}
