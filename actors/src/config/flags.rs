//! The flags that say how to train.

use std::path::PathBuf;

use greengnn_model::plan::Delivery;
use greengnn_model::row_type::RowType;
use greengnn_model::sampling::SeedOrder;
use greengnn_model::store::PartsManifest;

use super::unused::{Setting, UnusedFlag, unused_flags};
use super::{Communication, ConfigError, LowerClocks, Preaggregate, Resample, TrainConfig, Window};

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
    /// Steps per window; exact for `window`, a maximum for `bulk`. With auto the ranks measure what requests and rows cost and
    /// choose, for bulk also how rows are asked for, again before every epoch [default: 16]
    #[arg(long, value_name = "W")]
    pub window: Option<Window>,
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
    /// Measure the idle power of the machines for so long before the run begins, 1 to 600 seconds; 30 is a good value where
    /// figures above idle matter [default: 0, which is none]
    #[arg(long, value_name = "SECONDS")]
    pub idle_baseline: Option<f64>,
    /// Keep the trace files under this folder, which must have none yet
    #[arg(long, value_name = "DIR")]
    pub keep_trace: Option<PathBuf>,
    /// Lower the graphics clocks of GPUs until the first training step: of those that ranks train on, or of those with these
    /// UUIDs (nvidia-smi -L). They are restored then, and however the process ends [default: do not; without a value: auto]
    #[arg(
        long,
        value_name = "auto|UUID,UUID..",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto"
    )]
    pub lower_clocks: Option<LowerClocks>,
    /// With --lower-clocks, an experiment: lower them in training too, when all ranks of a machine have waited for batches
    /// for 0.1 s, until the first has one
    #[arg(long)]
    pub lower_clocks_while_waiting: bool,
    /// Check the parts and everything that travels on lanes against checksums, and every remote row of every batch for reads
    /// of empty cache slots
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
        config.idle_baseline = self.idle_baseline.unwrap_or(config.idle_baseline);
        if let Some(folder) = &self.keep_trace {
            config.keep_trace = Some(folder.clone());
        }
        config.lower_clocks = self.lower_clocks.clone().or(config.lower_clocks);
        config.lower_clocks_while_waiting |= self.lower_clocks_while_waiting;
        config.verify |= self.verify;
        config.communication = self.communication.unwrap_or(config.communication);
        if config.communication == Communication::PushPull {
            self.refuse_row_flags()?;
            config.without_rows();
        }
        config.check()?;
        Ok(config)
    }

    /// The flags that were given and that some policies have no use for.
    pub fn given(&self) -> Vec<(&'static str, Setting)> {
        let given = [
            ("--budget", Setting::Budget, self.budget.is_some()),
            ("--window", Setting::Window, self.window.is_some()),
            (
                "--presample-epochs",
                Setting::PresampleEpochs,
                self.presample_epochs.is_some(),
            ),
            ("--vip-weight", Setting::VipWeight, self.vip_weight.is_some()),
            ("--network-cost", Setting::NetworkCost, self.network_cost.is_some()),
        ];
        let given = given.into_iter().filter(|(_, _, given)| *given);
        given.map(|(flag, setting, _)| (flag, setting)).collect()
    }

    /// The flags that were given and change nothing in any of these runs; a file may say what its policy does not use.
    ///
    /// # Errors
    /// A configuration that [`TrainConfig::check`] refuses.
    pub fn unused(&self, runs: &[TrainConfig], manifest: &PartsManifest) -> Result<Vec<UnusedFlag>, ConfigError> {
        unused_flags(&self.given(), runs, manifest)
    }

    /// A flag that would say how rows are cached was not meant for a run that moves none.
    fn refuse_row_flags(&self) -> Result<(), ConfigError> {
        let given = [
            ("policy", self.policy.clone()),
            ("budget", self.budget.clone()),
            ("window", self.window.map(|window| window.to_string())),
            ("delivery", self.delivery.map(|delivery| delivery.name().to_owned())),
            (
                "presample-epochs",
                self.presample_epochs.map(|epochs| epochs.to_string()),
            ),
            ("vip-weight", self.vip_weight.map(|weight| weight.to_string())),
            ("network-cost", self.network_cost.map(|cost| cost.to_string())),
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
