//! What GraphSAGE asks of a Burn back end beyond dense algebra.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorData, TensorPrimitive};

use super::BatchInput;
use super::dropout::Dropout;
use crate::assemble::AssembleError;
use crate::batch::Block;

/// What follows a layer that is not the last: ReLU, then dropout in training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    pub dropout: Option<Dropout>,
}

impl Activation {
    /// What the gradient of an activation that was neither cut nor dropped is multiplied with.
    pub fn scale(&self) -> f32 {
        self.dropout.map_or(1.0, |dropout| dropout.scale())
    }
}

/// The operations of the layers after the first: on a plain back end, and on its [`Autodiff`](burn::backend::Autodiff).
pub(super) trait SageOps: Backend {
    /// A block where the operations can use it.
    type Links: Clone + Debug + Send + 'static;

    /// Per destination its own row and the mean of its picks: `[sources, width]` to `[destinations, 2 * width]`.
    fn own_and_mean(rows: FloatTensor<Self>, links: &Self::Links) -> FloatTensor<Self>;

    /// `dropout(relu(sum + bias))` for `sum` `[rows, width]` and `bias` `[1, width]`.
    fn activate(sum: FloatTensor<Self>, bias: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self>;
}

/// The parameters or the gradients of the first layer as tensors: `[outputs, inputs]` twice and `[1, outputs]`.
pub(super) struct LayerTensors<B: Backend> {
    pub own_weight: FloatTensor<B>,
    pub mean_weight: FloatTensor<B>,
    pub bias: FloatTensor<B>,
}

/// A back end without gradients: the gradients of [`SageOps`], and the first layer.
///
/// The first layer is apart because nothing flows back into its input: its aggregation needs no gradient, and its input
/// need not become a tensor where the processor can read it in place.
pub(super) trait SageBackend: SageOps {
    /// The input of the first layer.
    type Input<'a>;

    /// Memory that is used again by every batch.
    type Scratch: Default + Send;

    /// Feature rows that stay in the device's memory.
    type Resident: Send;

    fn links(block: &Block, device: &Self::Device) -> Result<Self::Links, AssembleError>;

    /// Gradient of [`SageOps::own_and_mean`].
    fn own_and_mean_backward(gradient: FloatTensor<Self>, links: &Self::Links) -> FloatTensor<Self>;

    /// Gradient of [`SageOps::activate`] with respect to the sum, from the gradient of its `output`.
    fn activate_backward(
        gradient: FloatTensor<Self>,
        output: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;

    /// Puts rows `[rows, width]` into the device's memory.
    fn resident(rows: Vec<f32>, width: usize, device: &Self::Device) -> Self::Resident;

    /// Takes the mean of raw rows, or takes over what the loader has aggregated.
    fn input<'a>(
        input: &'a BatchInput,
        block: &Block,
        width: usize,
        resident: Option<&'a Self::Resident>,
        scratch: &'a mut Self::Scratch,
        device: &Self::Device,
    ) -> Result<Self::Input<'a>, AssembleError>;

    /// The first layer; without an activation if it is also the last.
    fn first_layer(
        input: &Self::Input<'_>,
        parameters: LayerTensors<Self>,
        activation: Option<Activation>,
    ) -> FloatTensor<Self>;

    /// Gradients of the first layer's parameters, from its `output` and the gradient of that.
    fn first_layer_backward(
        input: &Self::Input<'_>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Option<Activation>,
    ) -> LayerTensors<Self>;
}

/// A matrix from host values.
pub(super) fn matrix<B: Backend>(values: Vec<f32>, shape: [usize; 2], device: &B::Device) -> Tensor<B, 2> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

pub(super) fn wrap<B: Backend>(primitive: FloatTensor<B>) -> Tensor<B, 2> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

pub(super) fn unwrap<B: Backend>(tensor: Tensor<B, 2>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// The same operations composed of Burn's own, for back ends without fused ones and as the reference of the tests.
#[cfg(any(feature = "cuda", test))]
pub(super) mod composed {
    use super::*;

    pub fn activate<B: Backend>(sum: FloatTensor<B>, bias: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
        let output = burn::tensor::activation::relu(wrap::<B>(sum) + wrap::<B>(bias));
        let Some(dropout) = activation.dropout else {
            return unwrap(output);
        };
        let shape = output.dims();
        let device = output.device();
        let factors = matrix::<B>(dropout.factors(shape[0] * shape[1]), shape, &device);
        unwrap(output * factors)
    }

    pub fn activate_backward<B: Backend>(
        gradient: FloatTensor<B>,
        output: FloatTensor<B>,
        activation: Activation,
    ) -> FloatTensor<B> {
        let cut = wrap::<B>(output).lower_equal_elem(0.0);
        unwrap((wrap::<B>(gradient) * activation.scale()).mask_fill(cut, 0.0))
    }

    pub fn first_layer<B: Backend>(
        own: FloatTensor<B>,
        mean: FloatTensor<B>,
        parameters: LayerTensors<B>,
        activation: Option<Activation>,
    ) -> FloatTensor<B> {
        let sum = wrap::<B>(own).matmul(wrap(parameters.own_weight).transpose())
            + wrap::<B>(mean).matmul(wrap(parameters.mean_weight).transpose());
        match activation {
            Some(activation) => activate::<B>(unwrap(sum), parameters.bias, activation),
            None => unwrap(sum + wrap(parameters.bias)),
        }
    }

    pub fn first_layer_backward<B: Backend>(
        own: FloatTensor<B>,
        mean: FloatTensor<B>,
        output: FloatTensor<B>,
        gradient: FloatTensor<B>,
        activation: Option<Activation>,
    ) -> LayerTensors<B> {
        let gradient = match activation {
            Some(activation) => wrap::<B>(activate_backward::<B>(gradient, output, activation)),
            None => wrap::<B>(gradient),
        };
        let turned = gradient.clone().transpose();
        LayerTensors {
            own_weight: unwrap(turned.clone().matmul(wrap(own))),
            mean_weight: unwrap(turned.matmul(wrap(mean))),
            bias: unwrap(gradient.sum_dim(0)),
        }
    }
}
