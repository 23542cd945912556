//! The layers: GraphSAGE with mean aggregation, its training step, and the device that runs it.
//!
//! Layer `l` computes `fc_self(own) + fc_neigh(mean of the picks)` (Hamilton, Ying and Leskovec, NeurIPS 2017); between
//! layers come a ReLU and dropout, the last layer gives the logits. [`build`] makes the model behind [`Trainable`]; the
//! crates above see neither Burn nor its back ends.
//!
//! - [`device`]: where a model runs, asked before anything is put there.
//! - [`parameters`]: shapes, names and first values of the parameters; [`adam`] changes them.
//! - [`dropout`]: which activations a batch drops.
//! - [`sliced`]: some columns of the first layer, for ranks that compute it together.
//! - [`weights`]: their hash and their file.
//! - `backend`, `tape`, `cpu`, `cuda`, `model`: the operations that Burn lacks, and the training step.

pub mod adam;
#[cfg(feature = "train")]
mod backend;
#[cfg(feature = "train")]
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
pub mod dropout;
#[cfg(feature = "train")]
mod model;
pub mod parameters;
pub mod sliced;
#[cfg(feature = "train")]
mod tape;
pub mod weights;

pub use device::{Device, DeviceChoice, cpu_fingerprint};
pub use weights::{SavedWeights, load_safetensors, save_safetensors, weights_sha256};

use crate::batch::Block;
use crate::rng::BatchKey;
use sliced::SlicedInput;

/// What the model is. Everything that the parameters' shapes and the forward pass depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Width of a feature row.
    pub features: usize,
    /// Width of the layers between.
    pub hidden: usize,
    /// Number of GraphSAGE layers, one per hop.
    pub layers: usize,
    pub classes: usize,
    /// Share of activations that are dropped between layers, in 0 .. 1.
    pub dropout: f64,
    /// Learning rate of Adam.
    pub learning_rate: f64,
}

/// The features of a batch as the loader hands them over, row-major `[rows, features]`.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchInput {
    /// One row per node of the batch; the first layer aggregates them.
    Rows(Vec<f32>),
    /// The first layer's aggregation was done by the loader: per destination of the outermost block its own row and the
    /// mean of its picks (zero without picks). The same bits as aggregating in the layer.
    PreAggregated { own: Vec<f32>, mean: Vec<f32> },
    /// The same of the batches of all ranks, in their order, but of this rank's columns alone. No model takes it as it
    /// is: the ranks add up the first layer and go on with [`Trainable::gradients_from_sums`].
    Sliced(Vec<SlicedInput>),
    /// Rows of which some are on the device already ([`Trainable::set_resident`]); the first layer gathers and aggregates
    /// them. `places` has one entry per node of the batch: below the number of resident rows it is one of those, from
    /// there on a row of `uploaded`. The same bits as [`Rows`](Self::Rows) with the same values.
    Resident { uploaded: Vec<f32>, places: Vec<u32> },
}

impl BatchInput {
    /// Bytes of feature values that the host hands to the device with the batch.
    pub fn upload_bytes(&self) -> u64 {
        let values = match self {
            BatchInput::Rows(rows) => rows.len(),
            BatchInput::PreAggregated { own, mean } => own.len() + mean.len(),
            BatchInput::Sliced(slices) => slices.iter().map(|slice| slice.own.len() + slice.mean.len()).sum(),
            BatchInput::Resident { uploaded, .. } => uploaded.len(),
        };
        (values * size_of::<f32>()) as u64
    }
}

/// A mini-batch that is ready to train on.
#[derive(Clone, Debug, PartialEq)]
pub struct AssembledBatch {
    pub key: BatchKey,
    pub input: BatchInput,
    /// One block per hop; `blocks[0]` has the seeds as destinations, the last one has the input nodes as sources.
    pub blocks: Vec<Block>,
    /// Class per seed; -1 is unlabelled and stays out of loss and metrics.
    pub labels: Vec<i64>,
}

/// What one rank adds to a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Sum of the cross-entropies of the labelled seeds, not divided.
    pub loss_sum: f32,
    /// Gradient of `loss_sum / divisor` for every parameter, flat, in the order of [`Trainable::parameters`].
    pub gradients: Vec<f32>,
}

/// What one rank adds to a training step whose first layer's sums came from elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct SumsOutcome {
    /// As of a whole step, but for the first layer's weights, whose gradients are zero.
    pub outcome: StepOutcome,
    /// Gradient of `loss_sum / divisor` for the sums, `[destinations, outputs]`; empty if no seed is labelled.
    pub gradient: Vec<f32>,
}

/// What one batch says about accuracy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    pub loss_sum: f64,
    pub correct: u64,
    pub labelled: u64,
}

/// One parameter tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedParameter {
    /// Dotted, as DGL names a `SAGEConv`: `layers.0.fc_self.weight`, `.fc_self.bias`, `.fc_neigh.weight`.
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Why a model cannot be built or a step cannot run.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("{what} must be {wanted}, found {found}")]
    Config {
        what: &'static str,
        wanted: &'static str,
        found: String,
    },
    #[error("{what} has {found} values, the model needs {wanted}")]
    Shape {
        what: &'static str,
        wanted: usize,
        found: usize,
    },
    #[error("the device {device} cannot be used: {reason}")]
    Device { device: String, reason: String },
    #[error("{0}")]
    Backend(String),
    #[error("step {step} of rank {rank} has a bad batch: {reason}")]
    Batch {
        rank: crate::book::Rank,
        step: u32,
        reason: crate::assemble::AssembleError,
    },
    #[error("{action} {path}: {reason}")]
    File {
        action: &'static str,
        path: std::path::PathBuf,
        reason: String,
    },
}

/// A model with its optimizer on one device. Hides Burn and its back ends from the crates above.
pub trait Trainable: Send {
    /// Every parameter in name order. `flat` vectors below are their values one after the other.
    fn parameters(&self) -> Result<Vec<NamedParameter>, LayerError>;

    /// Overwrites all parameters; the optimizer's state stays.
    fn set_parameters(&mut self, flat: &[f32]) -> Result<(), LayerError>;

    /// Puts feature rows, row-major `[rows, features]`, into the device's memory until others are put there, for batches
    /// with a [`BatchInput::Resident`].
    fn set_resident(&mut self, rows: Vec<f32>) -> Result<(), LayerError>;

    /// Forward, loss and backward of one batch. `divisor` is the number of labelled seeds of this step over all ranks.
    fn gradients(&mut self, batch: &AssembledBatch, divisor: u32) -> Result<StepOutcome, LayerError> {
        self.gradients_observed(batch, divisor, &mut || ())
    }

    /// The same, for whoever wants to know when the forward pass is done and the backward pass starts.
    fn gradients_observed(
        &mut self,
        batch: &AssembledBatch,
        divisor: u32,
        forward_done: &mut dyn FnMut(),
    ) -> Result<StepOutcome, LayerError>;

    /// [`gradients_observed`](Self::gradients_observed) for a batch whose first layer was multiplied elsewhere: `sums` are
    /// `W_self own + W_neigh mean` per destination of the outermost block, `[destinations, outputs]`, without the bias.
    /// The batch's input is not looked at.
    fn gradients_from_sums(
        &mut self,
        batch: &AssembledBatch,
        sums: Vec<f32>,
        divisor: u32,
        forward_done: &mut dyn FnMut(),
    ) -> Result<SumsOutcome, LayerError>;

    /// [`evaluate`](Self::evaluate) with `sums` as [`gradients_from_sums`](Self::gradients_from_sums) takes them.
    fn evaluate_from_sums(&mut self, batch: &AssembledBatch, sums: Vec<f32>) -> Result<Evaluation, LayerError>;

    /// One step of Adam with the summed gradients of all ranks.
    fn apply(&mut self, flat: &[f32]) -> Result<(), LayerError>;

    /// Forward only, without dropout.
    fn evaluate(&mut self, batch: &AssembledBatch) -> Result<Evaluation, LayerError>;
}

/// Makes a model on a device, its parameters drawn from `seed` and nothing else.
#[cfg(feature = "train")]
pub fn build(device: &Device, config: &ModelConfig, seed: u64) -> Result<Box<dyn Trainable>, LayerError> {
    match device.cuda_index() {
        None => model::build_cpu(config, seed),
        #[cfg(feature = "cuda")]
        Some(index) => cuda::build(index, config, seed),
        #[cfg(not(feature = "cuda"))]
        Some(_) => Err(device.unusable("this program was built without the feature `cuda`")),
    }
}
