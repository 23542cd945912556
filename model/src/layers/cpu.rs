//! The CPU: Burn's Flex back end with our kernels, without a copy where the memory is ours to read or write.

pub(super) mod dense;

use std::borrow::Cow;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::flex::{FlexDevice, FlexTensor};
use burn::tensor::{TensorData, TensorMetadata};
use rayon::prelude::*;

use super::BatchInput;
use super::backend::{Activation, LayerTensors, SageBackend, SageOps};
use crate::assemble::{self, AssembleError, Columns, ResidentRows, TransposedBlock};
use crate::batch::Block;

/// A block and its transpose.
#[derive(Debug)]
pub(super) struct CpuLinks {
    block: Block,
    transposed: TransposedBlock,
}

/// The first layer's input: own rows and means, `[destinations, width]` each, read where the batch has them.
pub(super) struct CpuInput<'a> {
    own: Cow<'a, [f32]>,
    mean: Cow<'a, [f32]>,
}

/// Values of one task of an elementwise pass; a multiple of every group that a pass works in.
const VALUES_PER_TASK: usize = 1 << 14;

impl SageOps for Flex {
    type Links = Arc<CpuLinks>;

    fn own_and_mean(rows: FlexTensor, links: &Self::Links) -> FlexTensor {
        let width = columns(&rows);
        let rows = contiguous(rows);
        let destinations = links.block.destination_count() as usize;
        let mut out = vec![0.0; destinations * 2 * width];
        let rows = Columns::all(rows.storage(), width);
        assemble::own_and_mean(&rows, &links.block, width, &mut out).unwrap_or_else(|error| mismatch(error));
        tensor(out, [destinations, 2 * width])
    }

    fn activate(sum: FlexTensor, bias: FlexTensor, activation: Activation) -> FlexTensor {
        let width = columns(&sum);
        let Some(rows) = VALUES_PER_TASK.checked_div(width).map(|rows| rows.max(1)) else {
            return sum;
        };
        let mut sum = contiguous(sum);
        let bias = contiguous(bias);
        let bias: &[f32] = bias.storage();
        let values: &mut [f32] = sum.storage_mut();
        let tasks = values.par_chunks_mut(rows * width).enumerate();
        tasks.for_each(|(task, values)| dense::finish_rows(values, bias, Some(activation), task * rows));
        sum
    }
}

impl SageBackend for Flex {
    type Input<'a> = CpuInput<'a>;
    type Scratch = Vec<f32>;
    type Resident = Vec<f32>;

    fn resident(rows: Vec<f32>, _width: usize, _device: &FlexDevice) -> Vec<f32> {
        rows
    }

    fn links(block: &Block, _device: &FlexDevice) -> Result<Self::Links, AssembleError> {
        Ok(Arc::new(CpuLinks {
            transposed: TransposedBlock::new(block)?,
            block: block.clone(),
        }))
    }

    fn own_and_mean_backward(gradient: FlexTensor, links: &Self::Links) -> FlexTensor {
        let width = columns(&gradient) / 2;
        let gradient = contiguous(gradient);
        let sources = links.transposed.source_count();
        let mut out = vec![0.0; sources * width];
        assemble::own_and_mean_backward(gradient.storage(), &links.transposed, width, &mut out)
            .unwrap_or_else(|error| mismatch(error));
        tensor(out, [sources, width])
    }

    fn activate_backward(gradient: FlexTensor, output: FlexTensor, activation: Activation) -> FlexTensor {
        let mut gradient = contiguous(gradient);
        let output = contiguous(output);
        let output: &[f32] = output.storage();
        let values: &mut [f32] = gradient.storage_mut();
        values
            .par_chunks_mut(VALUES_PER_TASK)
            .zip(output.par_chunks(VALUES_PER_TASK))
            .for_each(|(gradient, output)| dense::cut_gradient(gradient, output, activation));
        gradient
    }

    fn input<'a>(
        input: &'a BatchInput,
        block: &Block,
        width: usize,
        resident: Option<&'a Vec<f32>>,
        scratch: &'a mut Vec<f32>,
        _device: &FlexDevice,
    ) -> Result<CpuInput<'a>, AssembleError> {
        match input {
            BatchInput::PreAggregated { own, mean } => Ok(CpuInput {
                own: Cow::Borrowed(own),
                mean: Cow::Borrowed(mean),
            }),
            BatchInput::Rows(rows) => {
                let values = block.destination_count() as usize * width;
                scratch.resize(values, 0.0);
                assemble::segment_mean(&Columns::all(rows, width), block, width, scratch)?;
                Ok(CpuInput {
                    own: Cow::Borrowed(&rows[..values]),
                    mean: Cow::Borrowed(scratch),
                })
            }
            BatchInput::Sliced(_) => Err(AssembleError::SlicedInput),
            BatchInput::Resident { uploaded, places } => {
                let rows = ResidentRows::new(resident.map_or(&[], Vec::as_slice), uploaded, places, width)?;
                let values = block.destination_count() as usize * width;
                scratch.resize(2 * values, 0.0);
                let (own, mean) = scratch.split_at_mut(values);
                rows.gather(block.destination_count() as usize, own)?;
                assemble::segment_mean(&rows, block, width, mean)?;
                Ok(CpuInput {
                    own: Cow::Borrowed(own),
                    mean: Cow::Borrowed(mean),
                })
            }
        }
    }

    fn first_layer(input: &CpuInput<'_>, parameters: LayerTensors<Self>, activation: Option<Activation>) -> FlexTensor {
        let [outputs, inputs] = parameters.own_weight.shape().dims();
        let own_weight = contiguous(parameters.own_weight);
        let mean_weight = contiguous(parameters.mean_weight);
        let bias = contiguous(parameters.bias);
        let terms = [
            (&*input.own, own_weight.storage::<f32>()),
            (&*input.mean, mean_weight.storage::<f32>()),
        ];
        let out = dense::affine(terms, bias.storage(), inputs, outputs, activation);
        let rows = out.len() / outputs;
        tensor(out, [rows, outputs])
    }

    fn first_layer_backward(
        input: &CpuInput<'_>,
        output: FlexTensor,
        gradient: FlexTensor,
        activation: Option<Activation>,
    ) -> LayerTensors<Self> {
        let [rows, outputs] = output.shape().dims();
        let inputs = input.own.len() / rows;
        let output = contiguous(output);
        let mut gradient = contiguous(gradient);
        let gradients = dense::affine_backward(
            [&input.own, &input.mean],
            output.storage(),
            gradient.storage_mut(),
            inputs,
            outputs,
            activation,
        );
        let [own_weight, mean_weight, bias] = gradients;
        LayerTensors {
            own_weight: tensor(own_weight, [outputs, inputs]),
            mean_weight: tensor(mean_weight, [outputs, inputs]),
            bias: tensor(bias, [1, outputs]),
        }
    }
}

/// The tensor's values in order and, if nobody else holds them, free to be overwritten: the view that was given is gone.
fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

fn columns(tensor: &FlexTensor) -> usize {
    let [_, columns] = tensor.shape().dims();
    columns
}

fn tensor(values: Vec<f32>, shape: [usize; 2]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Burn's operations cannot fail, and the shapes were checked with the batch.
#[cold]
fn mismatch(error: AssembleError) -> ! {
    unreachable!("a checked batch does not fit its block: {error}")
}

#[cfg(test)]
mod tests;
