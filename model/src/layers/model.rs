//! GraphSAGE on any back end: the training step and the evaluation of one batch.

use burn::backend::{Autodiff, Flex};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData, Transaction};
use rayon::prelude::*;

use super::adam::Adam;
use super::backend::{Activation, LayerTensors, SageBackend, SageOps, matrix, unwrap, wrap};
use super::cpu::dense;
use super::dropout::Dropout;
use super::parameters::{LayerPlaces, Layout};
use super::{
    AssembledBatch, BatchInput, Evaluation, LayerError, ModelConfig, NamedParameter, StepOutcome, SumsOutcome,
    Trainable,
};
use crate::assemble::{AssembleError, check_block, check_places};

/// A model on the CPU.
pub(super) fn build_cpu(config: &ModelConfig, seed: u64) -> Result<Box<dyn Trainable>, LayerError> {
    Ok(Box::new(GraphSage::<Flex>::new(config, seed, Default::default())?))
}

/// A model and its optimizer. The parameters live on the host as one flat vector, which is what ranks exchange and Adam
/// moves; a step uploads them, less than a megabyte for the usual shapes.
pub(super) struct GraphSage<B: SageBackend> {
    config: ModelConfig,
    layout: Layout,
    parameters: Vec<f32>,
    adam: Adam,
    device: B::Device,
    scratch: B::Scratch,
    resident: Option<Resident<B>>,
}

/// Feature rows in the device's memory.
struct Resident<B: SageBackend> {
    table: B::Resident,
    /// Values that it has.
    values: usize,
}

/// A layer after the first, its weights side by side, as the operands of one product.
struct HiddenLayer<B: Backend> {
    /// `[outputs, 2 * inputs]`: `fc_self.weight`, then `fc_neigh.weight`.
    weight: Tensor<B, 2>,
    /// `[1, outputs]`.
    bias: Tensor<B, 2>,
}

impl<B: SageBackend> GraphSage<B> {
    pub(super) fn new(config: &ModelConfig, seed: u64, device: B::Device) -> Result<Self, LayerError> {
        let layout = Layout::new(config)?;
        Ok(Self {
            config: config.clone(),
            parameters: layout.draw(seed),
            adam: Adam::new(config.learning_rate, layout.len()),
            layout,
            device,
            scratch: B::Scratch::default(),
            resident: None,
        })
    }

    fn first_layer_tensors(&self) -> LayerTensors<B> {
        let layer = &self.layout.layers()[0];
        let upload = |place: std::ops::Range<usize>, shape| {
            unwrap(matrix::<B>(self.parameters[place].to_vec(), shape, &self.device))
        };
        LayerTensors {
            own_weight: upload(layer.own_weight.clone(), [layer.outputs, layer.inputs]),
            mean_weight: upload(layer.mean_weight.clone(), [layer.outputs, layer.inputs]),
            bias: upload(layer.bias.clone(), [1, layer.outputs]),
        }
    }

    fn hidden_layers<T: Backend<Device = B::Device>>(&self) -> Vec<HiddenLayer<T>> {
        self.layout.layers()[1..]
            .iter()
            .map(|layer| {
                let own = self.parameters[layer.own_weight.clone()].chunks_exact(layer.inputs);
                let mean = self.parameters[layer.mean_weight.clone()].chunks_exact(layer.inputs);
                let weight = own
                    .zip(mean)
                    .flat_map(|(own, mean)| own.iter().chain(mean))
                    .copied()
                    .collect();
                let bias = self.parameters[layer.bias.clone()].to_vec();
                HiddenLayer {
                    weight: matrix(weight, [layer.outputs, 2 * layer.inputs], &self.device),
                    bias: matrix(bias, [1, layer.outputs], &self.device),
                }
            })
            .collect()
    }

    /// What follows a layer: nothing after the last.
    fn activation(&self, layer: usize, batch: &AssembledBatch, training: bool) -> Option<Activation> {
        (layer + 1 < self.config.layers).then(|| Activation {
            dropout: training
                .then(|| Dropout::new(batch.key.dropout(layer as u32), self.config.dropout))
                .flatten(),
        })
    }

    fn activations(&self, batch: &AssembledBatch, training: bool) -> Vec<Option<Activation>> {
        (0..self.config.layers)
            .map(|layer| self.activation(layer, batch, training))
            .collect()
    }

    /// The links of the layers after the first, in the order of the layers.
    fn links(&self, batch: &AssembledBatch) -> Result<Vec<B::Links>, LayerError> {
        let blocks = batch.blocks[..self.config.layers - 1].iter().rev();
        blocks
            .map(|block| B::links(block, &self.device).map_err(|error| bad_batch(batch, error)))
            .collect()
    }

    /// Refuses a batch that does not fit the model. Says how many seeds are labelled.
    fn check(&self, batch: &AssembledBatch) -> Result<u32, LayerError> {
        let labelled = self.check_graph(batch)?;
        let features = self.config.features;
        let outermost = &batch.blocks[self.config.layers - 1];
        let destinations = outermost.destination_count() as usize * features;
        match &batch.input {
            BatchInput::Rows(rows) => {
                same("the input", outermost.source_count as usize * features, rows.len())?;
            }
            BatchInput::PreAggregated { own, mean } => {
                same("the input's own rows", destinations, own.len())?;
                same("the input's means", destinations, mean.len())?;
            }
            BatchInput::Resident { uploaded, places } => {
                same("the input's places", outermost.source_count as usize, places.len())?;
                let resident = self.resident.as_ref().map_or(0, |resident| resident.values);
                check_places(resident, uploaded.len(), places, features).map_err(|error| bad_batch(batch, error))?;
            }
            BatchInput::Sliced(_) => return Err(bad_batch(batch, AssembleError::SlicedInput)),
        }
        Ok(labelled)
    }

    /// Refuses blocks and labels that do not fit the model. Says how many seeds are labelled.
    fn check_graph(&self, batch: &AssembledBatch) -> Result<u32, LayerError> {
        let config = &self.config;
        same("the list of blocks", config.layers, batch.blocks.len())?;
        for block in &batch.blocks {
            check_block(block).map_err(|error| bad_batch(batch, error))?;
        }
        for pair in batch.blocks.windows(2) {
            let destinations = pair[1].destination_count() as usize;
            same(
                "the destinations of a block",
                pair[0].source_count as usize,
                destinations,
            )?;
        }
        let seeds = batch.blocks[0].destination_count() as usize;
        same("the list of labels", seeds, batch.labels.len())?;
        let mut labelled = 0;
        for label in &batch.labels {
            match usize::try_from(*label) {
                Ok(class) if class < config.classes => labelled += 1,
                Err(_) if *label == -1 => {}
                _ => {
                    return Err(LayerError::Config {
                        what: "a label",
                        wanted: "-1 or a class of the model",
                        found: format!("{label} with {} classes", config.classes),
                    });
                }
            }
        }
        Ok(labelled)
    }

    /// The layers after the first, without dropout, and what they say about the labelled seeds.
    fn evaluate_from(&self, batch: &AssembledBatch, first: Tensor<B, 2>) -> Result<Evaluation, LayerError> {
        let activations = self.activations(batch, false);
        let links = self.links(batch)?;
        let layers = self.hidden_layers::<B>();
        let logits = hidden_forward::<B>(first, &layers, &links, &activations[1..]);
        let logits = floats(logits.into_data())?;
        Ok(judge(&logits, &batch.labels, self.config.classes))
    }

    /// Refuses sums that are not those of the batch, and finishes the first layer: bias, ReLU and dropout on the host,
    /// whatever runs the layers after it.
    fn finish_sums(
        &self,
        batch: &AssembledBatch,
        mut sums: Vec<f32>,
        activation: Option<Activation>,
    ) -> Result<Vec<f32>, LayerError> {
        let layer = &self.layout.layers()[0];
        let destinations = batch.blocks[self.config.layers - 1].destination_count() as usize;
        same("the sums of the first layer", destinations * layer.outputs, sums.len())?;
        let bias = &self.parameters[layer.bias.clone()];
        let tasks = sums.par_chunks_mut(ROWS_PER_TASK * layer.outputs).enumerate();
        tasks.for_each(|(task, rows)| dense::finish_rows(rows, bias, activation, task * ROWS_PER_TASK));
        Ok(sums)
    }
}

/// Rows of the first layer that one task finishes.
const ROWS_PER_TASK: usize = 1024;

fn same(what: &'static str, wanted: usize, found: usize) -> Result<(), LayerError> {
    match wanted == found {
        true => Ok(()),
        false => Err(LayerError::Shape { what, wanted, found }),
    }
}

fn check_divisor(divisor: u32, labelled: u32) -> Result<(), LayerError> {
    if divisor >= labelled {
        return Ok(());
    }
    Err(LayerError::Config {
        what: "the number of labelled seeds of the step",
        wanted: "at least that of the batch",
        found: format!("{divisor} for a batch with {labelled}"),
    })
}

/// The layers after the first, up to the logits.
fn hidden_forward<T: SageOps>(
    first: Tensor<T, 2>,
    layers: &[HiddenLayer<T>],
    links: &[T::Links],
    activations: &[Option<Activation>],
) -> Tensor<T, 2> {
    let mut rows = first;
    for ((layer, links), activation) in layers.iter().zip(links).zip(activations) {
        let both = wrap::<T>(T::own_and_mean(unwrap(rows), links));
        let sum = both.matmul(layer.weight.clone().transpose());
        rows = match activation {
            Some(activation) => wrap(T::activate(unwrap(sum), unwrap(layer.bias.clone()), *activation)),
            None => sum + layer.bias.clone(),
        };
    }
    rows
}

/// The cross-entropy summed over the labelled rows, `[1, 1]`. An unlabelled row has no class to look at.
fn cross_entropy_sum<T: Backend>(
    logits: Tensor<T, 2>,
    labels: &[i64],
    classes: usize,
    device: &T::Device,
) -> Tensor<T, 2> {
    let mut chosen = vec![0.0; labels.len() * classes];
    for (row, label) in chosen.chunks_exact_mut(classes).zip(labels) {
        if let Some(place) = usize::try_from(*label).ok().and_then(|class| row.get_mut(class)) {
            *place = -1.0;
        }
    }
    let chosen = matrix::<T>(chosen, [labels.len(), classes], device);
    // Row by row and then down the column: a full reduction may follow the work of the threads.
    (log_softmax(logits, 1) * chosen).sum_dim(1).sum_dim(0)
}

/// What came back through the layers after the first.
struct Backpropagated<B: Backend> {
    loss: Tensor<B, 2>,
    /// Gradient of the first layer's output.
    of_first: Tensor<B, 2>,
    /// Gradients of weight and bias of every layer after the first.
    of_layers: Vec<[Tensor<B, 2>; 2]>,
}

impl<B: SageBackend> GraphSage<B>
where
    Autodiff<B>: SageOps<Links = B::Links> + burn::tensor::backend::AutodiffBackend<InnerBackend = B>,
    Autodiff<B>: Backend<Device = B::Device>,
{
    /// Forward, loss and backward of the layers after the first, from the first one's output.
    fn backpropagate(
        &self,
        batch: &AssembledBatch,
        first: Tensor<B, 2>,
        activations: &[Option<Activation>],
        divisor: u32,
        forward_done: &mut dyn FnMut(),
    ) -> Result<Backpropagated<B>, LayerError> {
        let links = self.links(batch)?;
        let layers: Vec<HiddenLayer<Autodiff<B>>> = self
            .hidden_layers::<Autodiff<B>>()
            .into_iter()
            .map(|layer| HiddenLayer {
                weight: layer.weight.require_grad(),
                bias: layer.bias.require_grad(),
            })
            .collect();
        let first = Tensor::<Autodiff<B>, 2>::from_inner(first).require_grad();
        let logits = hidden_forward(first.clone(), &layers, &links, activations);
        let loss = cross_entropy_sum(logits, &batch.labels, self.config.classes, &self.device);
        forward_done();
        let mut tape = loss.clone().div_scalar(divisor as f32).backward();
        let missing = || LayerError::Backend("a layer got no gradient".into());
        let of_first = first.grad_remove(&mut tape).ok_or_else(missing)?;
        let mut of_layers = Vec::with_capacity(layers.len());
        for layer in &layers {
            of_layers.push([
                layer.weight.grad_remove(&mut tape).ok_or_else(missing)?,
                layer.bias.grad_remove(&mut tape).ok_or_else(missing)?,
            ]);
        }
        Ok(Backpropagated {
            loss: loss.inner(),
            of_first,
            of_layers,
        })
    }

    /// What a batch without a labelled seed adds.
    fn nothing(&self) -> StepOutcome {
        StepOutcome {
            loss_sum: 0.0,
            gradients: vec![0.0; self.layout.len()],
        }
    }
}

impl<B: SageBackend> Trainable for GraphSage<B>
where
    Autodiff<B>: SageOps<Links = B::Links> + burn::tensor::backend::AutodiffBackend<InnerBackend = B>,
    Autodiff<B>: Backend<Device = B::Device>,
{
    fn parameters(&self) -> Result<Vec<NamedParameter>, LayerError> {
        self.layout.name(&self.parameters)
    }

    fn set_parameters(&mut self, flat: &[f32]) -> Result<(), LayerError> {
        self.layout.check_len("the flat vector of parameters", flat)?;
        self.parameters.copy_from_slice(flat);
        Ok(())
    }

    fn set_resident(&mut self, rows: Vec<f32>) -> Result<(), LayerError> {
        let width = self.config.features;
        let whole = rows.len().checked_div(width).map_or(0, |count| count * width);
        if rows.len() != whole {
            return Err(LayerError::Shape {
                what: "the table of resident rows",
                wanted: whole,
                found: rows.len(),
            });
        }
        self.resident = match rows.len() {
            0 => None,
            values => Some(Resident {
                table: B::resident(rows, width, &self.device),
                values,
            }),
        };
        Ok(())
    }

    fn gradients_observed(
        &mut self,
        batch: &AssembledBatch,
        divisor: u32,
        forward_done: &mut dyn FnMut(),
    ) -> Result<StepOutcome, LayerError> {
        let labelled = self.check(batch)?;
        if labelled == 0 {
            return Ok(self.nothing());
        }
        check_divisor(divisor, labelled)?;
        let activations = self.activations(batch, true);
        let tensors = self.first_layer_tensors();
        let outermost = &batch.blocks[self.config.layers - 1];
        let mut scratch = std::mem::take(&mut self.scratch);
        let input = B::input(
            &batch.input,
            outermost,
            self.config.features,
            self.resident.as_ref().map(|resident| &resident.table),
            &mut scratch,
            &self.device,
        )
        .map_err(|error| bad_batch(batch, error))?;

        let output = B::first_layer(&input, tensors, activations[0]);
        let first = wrap(output.clone());
        let back = self.backpropagate(batch, first, &activations[1..], divisor, forward_done)?;
        let of_first = B::first_layer_backward(&input, output, unwrap(back.of_first), activations[0]);
        let mut reading = Transaction::<B>::default()
            .register(back.loss)
            .register(wrap::<B>(of_first.own_weight))
            .register(wrap::<B>(of_first.mean_weight))
            .register(wrap::<B>(of_first.bias));
        for [weight, bias] in back.of_layers {
            reading = reading.register(weight).register(bias);
        }
        let mut read = Reader(reading.execute().into_iter());
        drop(input);
        self.scratch = scratch;
        let loss_sum = read.next()?.first().copied().unwrap_or_default();
        let mut gradients = vec![0.0; self.layout.len()];
        let places = &self.layout.layers()[0];
        fill(&mut gradients[places.own_weight.clone()], &read.next()?);
        fill(&mut gradients[places.mean_weight.clone()], &read.next()?);
        fill(&mut gradients[places.bias.clone()], &read.next()?);
        read_hidden(&mut read, &self.layout, &mut gradients)?;
        Ok(StepOutcome { loss_sum, gradients })
    }

    fn gradients_from_sums(
        &mut self,
        batch: &AssembledBatch,
        sums: Vec<f32>,
        divisor: u32,
        forward_done: &mut dyn FnMut(),
    ) -> Result<SumsOutcome, LayerError> {
        let labelled = self.check_graph(batch)?;
        if labelled == 0 {
            return Ok(SumsOutcome {
                outcome: self.nothing(),
                gradient: Vec::new(),
            });
        }
        check_divisor(divisor, labelled)?;
        let activations = self.activations(batch, true);
        let output = self.finish_sums(batch, sums, activations[0])?;
        let outputs = self.layout.layers()[0].outputs;
        let first = matrix::<B>(output.clone(), [output.len() / outputs, outputs], &self.device);
        let back = self.backpropagate(batch, first, &activations[1..], divisor, forward_done)?;
        let mut reading = Transaction::<B>::default().register(back.loss).register(back.of_first);
        for [weight, bias] in back.of_layers {
            reading = reading.register(weight).register(bias);
        }
        let mut read = Reader(reading.execute().into_iter());
        let loss_sum = read.next()?.first().copied().unwrap_or_default();
        let mut gradient = read.next()?;
        if let Some(activation) = activations[0] {
            let tasks = gradient.par_chunks_mut(ROWS_PER_TASK * outputs);
            tasks
                .zip(output.par_chunks(ROWS_PER_TASK * outputs))
                .for_each(|(gradient, output)| dense::cut_gradient(gradient, output, activation));
        }
        let mut gradients = vec![0.0; self.layout.len()];
        let bias = dense::column_sums(&gradient, outputs);
        fill(&mut gradients[self.layout.layers()[0].bias.clone()], &bias);
        read_hidden(&mut read, &self.layout, &mut gradients)?;
        Ok(SumsOutcome {
            outcome: StepOutcome { loss_sum, gradients },
            gradient,
        })
    }

    fn apply(&mut self, flat: &[f32]) -> Result<(), LayerError> {
        self.layout.check_len("the flat vector of gradients", flat)?;
        self.adam.apply(&mut self.parameters, flat);
        Ok(())
    }

    fn evaluate(&mut self, batch: &AssembledBatch) -> Result<Evaluation, LayerError> {
        if self.check(batch)? == 0 {
            return Ok(Evaluation::default());
        }
        let activation = self.activation(0, batch, false);
        let tensors = self.first_layer_tensors();
        let outermost = &batch.blocks[self.config.layers - 1];
        let mut scratch = std::mem::take(&mut self.scratch);
        let input = B::input(
            &batch.input,
            outermost,
            self.config.features,
            self.resident.as_ref().map(|resident| &resident.table),
            &mut scratch,
            &self.device,
        )
        .map_err(|error| bad_batch(batch, error))?;
        let first = wrap(B::first_layer(&input, tensors, activation));
        drop(input);
        self.scratch = scratch;
        self.evaluate_from(batch, first)
    }

    fn evaluate_from_sums(&mut self, batch: &AssembledBatch, sums: Vec<f32>) -> Result<Evaluation, LayerError> {
        if self.check_graph(batch)? == 0 {
            return Ok(Evaluation::default());
        }
        let output = self.finish_sums(batch, sums, self.activation(0, batch, false))?;
        let outputs = self.layout.layers()[0].outputs;
        let rows = output.len() / outputs;
        self.evaluate_from(batch, matrix(output, [rows, outputs], &self.device))
    }
}

/// Reads weight and bias of every layer after the first into their places.
fn read_hidden(read: &mut Reader, layout: &Layout, gradients: &mut [f32]) -> Result<(), LayerError> {
    for places in &layout.layers()[1..] {
        split_weight(gradients, places, &read.next()?);
        fill(&mut gradients[places.bias.clone()], &read.next()?);
    }
    Ok(())
}

/// Loss and hits of logits `[seeds, classes]`; of equal logits the first class is the answer.
fn judge(logits: &[f32], labels: &[i64], classes: usize) -> Evaluation {
    let mut result = Evaluation::default();
    for (row, label) in logits.chunks_exact(classes).zip(labels) {
        let Some(own) = usize::try_from(*label).ok().and_then(|class| row.get(class)) else {
            continue;
        };
        let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let answer = row.iter().position(|logit| *logit == highest);
        let mass: f64 = row.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        result.loss_sum += mass.ln() - f64::from(own - highest);
        result.correct += u64::from(answer == usize::try_from(*label).ok());
        result.labelled += 1;
    }
    result
}

/// The tensors of a transaction, one after the other.
struct Reader(std::vec::IntoIter<TensorData>);

impl Reader {
    fn next(&mut self) -> Result<Vec<f32>, LayerError> {
        let data = self.0.next();
        floats(data.ok_or_else(|| LayerError::Backend("the device returned too few tensors".into()))?)
    }
}

fn floats(data: TensorData) -> Result<Vec<f32>, LayerError> {
    data.to_vec()
        .map_err(|error| LayerError::Backend(format!("the device returned values of another type: {error:?}")))
}

fn fill(place: &mut [f32], values: &[f32]) {
    for (place, value) in place.iter_mut().zip(values) {
        *place = *value;
    }
}

/// Splits `[outputs, 2 * inputs]` into the two weights' places.
fn split_weight(flat: &mut [f32], places: &LayerPlaces, both: &[f32]) {
    let inputs = places.inputs;
    for (output, row) in both.chunks_exact(2 * inputs).enumerate() {
        let at = output * inputs;
        fill(&mut flat[places.own_weight.clone()][at..at + inputs], &row[..inputs]);
        fill(&mut flat[places.mean_weight.clone()][at..at + inputs], &row[inputs..]);
    }
}

fn bad_batch(batch: &AssembledBatch, reason: AssembleError) -> LayerError {
    LayerError::Batch {
        rank: batch.key.rank,
        step: batch.key.step,
        reason,
    }
}

#[cfg(test)]
mod tests;
