//! The configuration of a training run: defaults, then the file of `--config`, then the flags.

use std::path::{Path, PathBuf};

use greengnn_model::layers::{DeviceChoice, LayerError};
use greengnn_model::policy::{Budget, BudgetError, UnknownPolicy, policy_by_name};
use greengnn_model::row_type::RowType;
use greengnn_model::store::PartsManifest;
use serde::{Deserialize, Serialize};

/// Everything that decides what a run computes and how. Written to the run folder as it was resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainConfig {
    /// How remote rows are cached.
    pub policy: String,
    /// Steps per window: exact for `window`, a maximum for `bulk`.
    pub window: u32,
    /// Cache memory of a rank: a share of the rows that it does not own, bytes, or rows.
    pub budget: String,
    /// How remote rows travel and are kept: `f32`, `f16`, `bf16` or `int8`. All but `f32` change what is computed.
    pub row_type: RowType,
    pub epochs: u32,
    /// Seed nodes of a rank per step.
    pub batch_size: u32,
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
            policy: "bulk".to_owned(),
            window: 16,
            budget: "25%".to_owned(),
            row_type: RowType::F32,
            epochs: 10,
            batch_size: 1000,
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
        policy_by_name(&self.policy)?;
        self.budget.parse::<Budget>()?;
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

    /// Refuses what this graph cannot have.
    pub fn check_against(&self, manifest: &PartsManifest) -> Result<(), ConfigError> {
        let parts = manifest.book.parts();
        match self.machines {
            Some(machines) if machines > u32::from(parts) => Err(ConfigError::TooManyMachines { machines, parts }),
            _ => Ok(()),
        }
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
    /// How remote rows are cached: on-demand, degree, presample, lru, lfu, fifo, epoch, window, bulk or full
    /// [default: bulk]
    #[arg(long)]
    pub policy: Option<String>,
    /// Steps per window; exact for `window`, a maximum for `bulk` [default: 16]
    #[arg(long, value_name = "W")]
    pub window: Option<u32>,
    /// Cache memory per rank: 25% of the remote rows, 64MiB, or 1000rows [default: 25%]
    #[arg(long)]
    pub budget: Option<String>,
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
        config.row_type = self.row_type.unwrap_or(config.row_type);
        config.window = self.window.unwrap_or(config.window);
        config.epochs = self.epochs.unwrap_or(config.epochs);
        config.batch_size = self.batch_size.unwrap_or(config.batch_size);
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
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
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
    fn a_resolved_configuration_reads_back_as_it_was() {
        let config = TrainConfig {
            threads: Some(2),
            ..TrainConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<TrainConfig>(&text).unwrap(), config);
    }
}
