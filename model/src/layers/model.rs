//! GraphSAGE on any back end: the training step and the evaluation of one batch.

use burn::backend::{Autodiff, Flex};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData, Transaction};

use super::adam::Adam;
use super::backend::{Activation, LayerTensors, SageBackend, SageOps, matrix, unwrap, wrap};
use super::dropout::Dropout;
use super::parameters::{LayerPlaces, Layout};
use super::{AssembledBatch, BatchInput, Evaluation, LayerError, ModelConfig, NamedParameter, StepOutcome, Trainable};
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
        let config = &self.config;
        let shape = |what, wanted, found| match wanted == found {
            true => Ok(()),
            false => Err(LayerError::Shape { what, wanted, found }),
        };
        shape("the list of blocks", config.layers, batch.blocks.len())?;
        for block in &batch.blocks {
            check_block(block).map_err(|error| bad_batch(batch, error))?;
        }
        for pair in batch.blocks.windows(2) {
            let destinations = pair[1].destination_count() as usize;
            shape(
                "the destinations of a block",
                pair[0].source_count as usize,
                destinations,
            )?;
        }
        let (seeds, outermost) = (&batch.blocks[0], &batch.blocks[config.layers - 1]);
        shape(
            "the list of labels",
            seeds.destination_count() as usize,
            batch.labels.len(),
        )?;
        let destinations = outermost.destination_count() as usize * config.features;
        match &batch.input {
            BatchInput::Rows(rows) => {
                shape(
                    "the input",
                    outermost.source_count as usize * config.features,
                    rows.len(),
                )?;
            }
            BatchInput::PreAggregated { own, mean } => {
                shape("the input's own rows", destinations, own.len())?;
                shape("the input's means", destinations, mean.len())?;
            }
            BatchInput::Resident { uploaded, places } => {
                shape("the input's places", outermost.source_count as usize, places.len())?;
                let resident = self.resident.as_ref().map_or(0, |resident| resident.values);
                check_places(resident, uploaded.len(), places, config.features)
                    .map_err(|error| bad_batch(batch, error))?;
            }
        }
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
            return Ok(StepOutcome {
                loss_sum: 0.0,
                gradients: vec![0.0; self.layout.len()],
            });
        }
        if divisor < labelled {
            return Err(LayerError::Config {
                what: "the number of labelled seeds of the step",
                wanted: "at least that of the batch",
                found: format!("{divisor} for a batch with {labelled}"),
            });
        }
        let activations = self.activations(batch, true);
        let links = self.links(batch)?;
        let tensors = self.first_layer_tensors();
        let layers: Vec<HiddenLayer<Autodiff<B>>> = self
            .hidden_layers::<Autodiff<B>>()
            .into_iter()
            .map(|layer| HiddenLayer {
                weight: layer.weight.require_grad(),
                bias: layer.bias.require_grad(),
            })
            .collect();
        let outermost = &batch.blocks[self.config.layers - 1];
        let device = self.device.clone();
        let input = B::input(
            &batch.input,
            outermost,
            self.config.features,
            self.resident.as_ref().map(|resident| &resident.table),
            &mut self.scratch,
            &device,
        )
        .map_err(|error| bad_batch(batch, error))?;

        let output = B::first_layer(&input, tensors, activations[0]);
        let first = Tensor::<Autodiff<B>, 2>::from_inner(wrap(output.clone())).require_grad();
        let logits = hidden_forward(first.clone(), &layers, &links, &activations[1..]);
        let loss = cross_entropy_sum(logits, &batch.labels, self.config.classes, &device);
        forward_done();
        let mut tape = loss.clone().div_scalar(divisor as f32).backward();

        let missing = || LayerError::Backend("a layer got no gradient".into());
        let gradient = first.grad_remove(&mut tape).ok_or_else(missing)?;
        drop(first);
        let of_first = B::first_layer_backward(&input, output, unwrap(gradient), activations[0]);
        let mut reading = Transaction::<B>::default()
            .register(loss.inner())
            .register(wrap::<B>(of_first.own_weight))
            .register(wrap::<B>(of_first.mean_weight))
            .register(wrap::<B>(of_first.bias));
        for layer in &layers {
            reading = reading
                .register(layer.weight.grad_remove(&mut tape).ok_or_else(missing)?)
                .register(layer.bias.grad_remove(&mut tape).ok_or_else(missing)?);
        }
        let mut read = Reader(reading.execute().into_iter());
        let loss_sum = read.next()?.first().copied().unwrap_or_default();
        let mut gradients = vec![0.0; self.layout.len()];
        for (at, places) in self.layout.layers().iter().enumerate() {
            if at == 0 {
                fill(&mut gradients[places.own_weight.clone()], &read.next()?);
                fill(&mut gradients[places.mean_weight.clone()], &read.next()?);
            } else {
                split_weight(&mut gradients, places, &read.next()?);
            }
            fill(&mut gradients[places.bias.clone()], &read.next()?);
        }
        Ok(StepOutcome { loss_sum, gradients })
    }

    fn apply(&mut self, flat: &[f32]) -> Result<(), LayerError> {
        self.layout.check_len("the flat vector of gradients", flat)?;
        self.adam.apply(&mut self.parameters, flat);
        Ok(())
    }

    fn evaluate(&mut self, batch: &AssembledBatch) -> Result<Evaluation, LayerError> {
        let labelled = self.check(batch)?;
        if labelled == 0 {
            return Ok(Evaluation::default());
        }
        let activations = self.activations(batch, false);
        let links = self.links(batch)?;
        let tensors = self.first_layer_tensors();
        let layers = self.hidden_layers::<B>();
        let outermost = &batch.blocks[self.config.layers - 1];
        let device = self.device.clone();
        let input = B::input(
            &batch.input,
            outermost,
            self.config.features,
            self.resident.as_ref().map(|resident| &resident.table),
            &mut self.scratch,
            &device,
        )
        .map_err(|error| bad_batch(batch, error))?;
        let first = wrap(B::first_layer(&input, tensors, activations[0]));
        let logits = hidden_forward::<B>(first, &layers, &links, &activations[1..]);
        let logits = floats(logits.into_data())?;
        Ok(judge(&logits, &batch.labels, self.config.classes))
    }
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
