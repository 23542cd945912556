//! The GPU: Burn's CUDA back end with CubeCL kernels for what Burn lacks.
//!
//! The kernels are compiled by NVRTC when they first run. This file is the only one that names the CUDA runtime, in one
//! function that is not generic, because naming it compiles the whole back end.

mod kernels;

use burn::tensor::ops::{FloatTensor, FloatTensorOps, IntTensor, IntTensorOps};
use burn::tensor::{Shape, TensorData, TensorMetadata};
use burn_cubecl::ops::numeric::empty_device_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_cuda::{Cuda, CudaDevice};
use cubecl::prelude::{CubeCount, CubeDim};

use super::backend::{Activation, LayerTensors, SageBackend, SageOps, composed};
use super::model::GraphSage;
use super::{BatchInput, LayerError, ModelConfig, Trainable};
use crate::assemble::{AssembleError, TransposedBlock, check_block};
use crate::batch::Block;

/// A model on the GPU with this number, which [`Device::probe`](super::Device::probe) has found.
pub(super) fn build(index: usize, config: &ModelConfig, seed: u64) -> Result<Box<dyn Trainable>, LayerError> {
    Ok(Box::new(GraphSage::<Cuda>::new(config, seed, CudaDevice::new(index))?))
}

/// A block and its transpose in the GPU's memory.
#[derive(Clone, Debug)]
pub(super) struct CudaLinks<R: CubeRuntime> {
    destinations: usize,
    source_count: usize,
    /// `[destinations + 1]`, u32.
    offsets: CubeTensor<R>,
    /// `[picks]`, u32.
    sources: CubeTensor<R>,
    /// `[sources + 1]`, u32.
    turned_offsets: CubeTensor<R>,
    /// `[picks]`, u32.
    turned_destinations: CubeTensor<R>,
    /// `[destinations]`: one over the number of picks.
    weights: CubeTensor<R>,
}

/// Own rows and means, `[destinations, width]` each, in the GPU's memory.
pub(super) struct CudaInput<R: CubeRuntime> {
    own: CubeTensor<R>,
    mean: CubeTensor<R>,
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> SageOps for CubeBackend<R, F, I, BT> {
    type Links = CudaLinks<R>;

    fn own_and_mean(rows: FloatTensor<Self>, links: &Self::Links) -> FloatTensor<Self> {
        let [_, width] = rows.shape().dims();
        let output = empty_like(&rows, [links.destinations, 2 * width]);
        let (count, dim) = units(&output, links.destinations * width);
        kernels::own_and_mean::launch::<R>(
            &output.client,
            count,
            dim,
            rows.into_tensor_arg(),
            links.offsets.clone().into_tensor_arg(),
            links.sources.clone().into_tensor_arg(),
            output.clone().into_tensor_arg(),
        );
        output
    }

    fn activate(sum: FloatTensor<Self>, bias: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        composed::activate::<Self>(sum, bias, activation)
    }
}

impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> SageBackend for CubeBackend<R, F, I, BT> {
    type Input<'a> = CudaInput<R>;
    type Scratch = ();
    /// `[rows, width]`, at least one row.
    type Resident = CubeTensor<R>;

    fn resident(rows: Vec<f32>, width: usize, device: &Self::Device) -> CubeTensor<R> {
        let count = rows.len().checked_div(width).unwrap_or(0);
        Self::float_from_data(TensorData::new(rows, [count, width]), device)
    }

    fn links(block: &Block, device: &Self::Device) -> Result<Self::Links, AssembleError> {
        let turned = TransposedBlock::new(block)?;
        Ok(CudaLinks {
            destinations: turned.destination_count(),
            source_count: turned.source_count(),
            offsets: upload_u32::<Self>(&block.offsets, device),
            sources: upload_u32::<Self>(&block.sources, device),
            weights: upload::<Self>(turned.weights(), [turned.destination_count()], device),
            turned_offsets: upload_u32::<Self>(turned.offsets(), device),
            turned_destinations: upload_u32::<Self>(turned.destinations(), device),
        })
    }

    fn own_and_mean_backward(gradient: FloatTensor<Self>, links: &Self::Links) -> FloatTensor<Self> {
        let [_, both] = gradient.shape().dims();
        let width = both / 2;
        let output = empty_like(&gradient, [links.source_count, width]);
        let (count, dim) = units(&output, links.source_count * width);
        kernels::own_and_mean_backward::launch::<R>(
            &output.client,
            count,
            dim,
            gradient.into_tensor_arg(),
            links.turned_offsets.clone().into_tensor_arg(),
            links.turned_destinations.clone().into_tensor_arg(),
            links.weights.clone().into_tensor_arg(),
            output.clone().into_tensor_arg(),
        );
        output
    }

    fn activate_backward(
        gradient: FloatTensor<Self>,
        output: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        composed::activate_backward::<Self>(gradient, output, activation)
    }

    fn input<'a>(
        input: &'a BatchInput,
        block: &Block,
        width: usize,
        resident: Option<&'a CubeTensor<R>>,
        _scratch: &'a mut (),
        device: &Self::Device,
    ) -> Result<CudaInput<R>, AssembleError> {
        let destinations = block.destination_count() as usize;
        let sources = block.source_count as usize;
        let rows = match input {
            BatchInput::PreAggregated { own, mean } => {
                return Ok(CudaInput {
                    own: upload::<Self>(own, [destinations, width], device),
                    mean: upload::<Self>(mean, [destinations, width], device),
                });
            }
            BatchInput::Sliced(_) => return Err(AssembleError::SlicedInput),
            BatchInput::Rows(values) => upload::<Self>(values, [sources, width], device),
            BatchInput::Resident { uploaded, places } => match resident {
                // Nothing is resident, so every place is that of an uploaded row.
                None => {
                    let rows = uploaded.len().checked_div(width).unwrap_or(0);
                    let uploaded = upload::<Self>(uploaded, [rows, width], device);
                    gather::<Self, R>(&uploaded, uploaded.clone(), 0, places, device)
                }
                Some(table) => {
                    let [resident_rows, _] = table.shape().dims();
                    // A buffer cannot be empty; nobody reads this row.
                    let nothing = vec![0.0; width];
                    let values = if uploaded.is_empty() { &nothing } else { uploaded };
                    let rows = values.len().checked_div(width).unwrap_or(0);
                    let uploaded = upload::<Self>(values, [rows, width], device);
                    gather::<Self, R>(table, uploaded, resident_rows, places, device)
                }
            },
        };
        check_block(block)?;
        let mean = empty_like(&rows, [destinations, width]);
        let (count, dim) = units(&mean, destinations * width);
        kernels::mean::launch::<R>(
            &mean.client,
            count,
            dim,
            rows.clone().into_tensor_arg(),
            upload_u32::<Self>(&block.offsets, device).into_tensor_arg(),
            upload_u32::<Self>(&block.sources, device).into_tensor_arg(),
            mean.clone().into_tensor_arg(),
        );
        let own = Self::float_slice(rows, &[(0..destinations).into(), (0..width).into()]);
        Ok(CudaInput { own, mean })
    }

    fn first_layer(
        input: &CudaInput<R>,
        parameters: LayerTensors<Self>,
        activation: Option<Activation>,
    ) -> FloatTensor<Self> {
        composed::first_layer::<Self>(input.own.clone(), input.mean.clone(), parameters, activation)
    }

    fn first_layer_backward(
        input: &CudaInput<R>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Option<Activation>,
    ) -> LayerTensors<Self> {
        composed::first_layer_backward::<Self>(input.own.clone(), input.mean.clone(), output, gradient, activation)
    }
}

/// One row per place: of `resident` if the place is below `resident_rows`, else of `uploaded`.
fn gather<B, R: CubeRuntime>(
    resident: &CubeTensor<R>,
    uploaded: CubeTensor<R>,
    resident_rows: usize,
    places: &[u32],
    device: &B::Device,
) -> CubeTensor<R>
where
    B: burn::tensor::backend::Backend<IntTensorPrimitive = CubeTensor<R>>,
{
    let [_, width] = resident.shape().dims();
    let output = empty_like(resident, [places.len(), width]);
    let (count, dim) = units(&output, places.len() * width);
    let limit = [u32::try_from(resident_rows).unwrap_or(u32::MAX)];
    kernels::gather::launch::<R>(
        &output.client,
        count,
        dim,
        resident.clone().into_tensor_arg(),
        uploaded.into_tensor_arg(),
        upload_u32::<B>(&limit, device).into_tensor_arg(),
        upload_u32::<B>(places, device).into_tensor_arg(),
        output.clone().into_tensor_arg(),
    );
    output
}

fn empty_like<R: CubeRuntime>(tensor: &CubeTensor<R>, shape: [usize; 2]) -> CubeTensor<R> {
    empty_device_dtype(
        tensor.client.clone(),
        tensor.device.clone(),
        Shape::new(shape),
        tensor.dtype,
    )
}

/// One unit per value that a kernel computes.
fn units<R: CubeRuntime>(tensor: &CubeTensor<R>, values: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(&tensor.client, values);
    (cubecl::calculate_cube_count_elemwise(&tensor.client, values, dim), dim)
}

fn upload<B: FloatTensorOps<B> + burn::tensor::backend::Backend>(
    values: &[f32],
    shape: impl Into<Vec<usize>>,
    device: &B::Device,
) -> FloatTensor<B> {
    B::float_from_data(TensorData::new(values.to_vec(), shape.into()), device)
}

/// A vector of u32; a single zero that nobody reads if it is empty, since a buffer cannot be.
fn upload_u32<B: IntTensorOps<B> + burn::tensor::backend::Backend>(values: &[u32], device: &B::Device) -> IntTensor<B> {
    let values = if values.is_empty() { vec![0] } else { values.to_vec() };
    let shape = [values.len()];
    B::int_from_data(TensorData::new(values, shape), device)
}
