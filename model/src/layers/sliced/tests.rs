//! Slices of the first layer against the whole one.

use proptest::prelude::*;

use super::*;
use crate::assemble::tests::{random_block, random_values};
use crate::assemble::{InputBuffers, assemble_input};
use crate::batch::Block;
use crate::layers::{AssembledBatch, BatchInput, Device, Trainable, build};
use crate::rng::{BatchKey, CounterRng, Purpose};

fn config(features: usize, layers: usize, dropout: f64) -> ModelConfig {
    ModelConfig {
        features,
        hidden: 5,
        layers,
        classes: 3,
        dropout,
        learning_rate: 0.01,
    }
}

/// A batch of `rank`, and the feature rows of its nodes.
fn batch(config: &ModelConfig, rank: Rank, seeds: u32) -> (AssembledBatch, Vec<f32>) {
    let seed = 100 * u64::from(rank) + 7;
    let mut blocks = Vec::new();
    let mut destinations = seeds;
    for layer in 0..config.layers as u64 {
        let sources = 3 * destinations;
        blocks.push(random_block(seed + layer, destinations, sources, 6));
        destinations = sources;
    }
    let values = random_values(seed ^ 99, destinations as usize * config.features);
    let input = input_of(&values, &blocks, config.features, 0..config.features);
    let mut rng = CounterRng::new(seed);
    let labels = (0..seeds).map(|_| i64::from(rng.below(4)) - 1).collect();
    let key = BatchKey {
        seed: 1,
        purpose: Purpose::Train,
        epoch: 0,
        rank,
        step: 3,
    };
    let batch = AssembledBatch {
        key,
        input: BatchInput::PreAggregated {
            own: input.own,
            mean: input.mean,
        },
        blocks,
        labels,
    };
    (batch, values)
}

/// The aggregated input of some columns.
fn input_of(values: &[f32], blocks: &[Block], features: usize, columns: Range<usize>) -> SlicedInput {
    let outermost = blocks.last().unwrap();
    let rows: Vec<&[f32]> = values.chunks_exact(features).map(|row| &row[columns.clone()]).collect();
    let mut buffers = InputBuffers::default();
    let input = assemble_input(&rows[..], outermost, columns.len(), true, &mut buffers).unwrap();
    let BatchInput::PreAggregated { own, mean } = input else {
        unreachable!("asked for aggregation")
    };
    SlicedInput {
        destinations: outermost.destination_count() as usize,
        own,
        mean,
    }
}

fn flat(model: &dyn Trainable) -> Vec<f32> {
    let parameters = model.parameters().unwrap();
    parameters.into_iter().flat_map(|parameter| parameter.values).collect()
}

fn assert_close(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (found - wanted).abs() < 1e-5 * (1.0 + wanted.abs()),
            "{what}[{at}]: {found} and {wanted}"
        );
    }
}

/// The sums of a batch over the slices of all ranks, in their order.
fn summed(slices: &[FirstLayerSlice], flat: &[f32], inputs: &[SlicedInput]) -> Vec<f32> {
    let mut sums: Vec<f32> = Vec::new();
    for (slice, input) in slices.iter().zip(inputs) {
        let partial = slice.weights(flat).unwrap().partial_sums(input).unwrap();
        if sums.is_empty() {
            sums = partial;
        } else {
            sums.iter_mut().zip(partial).for_each(|(sum, value)| *sum += value);
        }
    }
    sums
}

/// The sums over slices must be the whole layer's to 1e-6 of what is added up.
fn sums_are_whole(config: &ModelConfig, flat: &[f32], whole: &SlicedInput, sums: &[f32]) {
    let layer = FirstLayerSlice::new(config, 0..config.features).unwrap();
    let absolute = |values: &[f32]| -> Vec<f32> { values.iter().map(|value| value.abs()).collect() };
    let mass = SlicedInput {
        destinations: whole.destinations,
        own: absolute(&whole.own),
        mean: absolute(&whole.mean),
    };
    let mass = layer.weights(&absolute(flat)).unwrap().partial_sums(&mass).unwrap();
    let wanted = layer.weights(flat).unwrap().partial_sums(whole).unwrap();
    assert_eq!(sums.len(), wanted.len());
    for ((found, wanted), mass) in sums.iter().zip(&wanted).zip(&mass) {
        assert!((found - wanted).abs() <= 1e-6 * mass, "{found} and {wanted} of {mass}");
    }
}

/// One step of `ranks` ranks, whole and in slices: losses, gradients and evaluation must be the same numbers.
fn slices_are_the_whole(features: usize, ranks: Rank, layers: usize, dropout: f64) {
    let config = config(features, layers, dropout);
    let mut model = build(&Device::cpu(), &config, 5).unwrap();
    let values = random_values(12, flat(model.as_ref()).len());
    model.set_parameters(&values).unwrap();
    let slices: Vec<FirstLayerSlice> = (0..ranks)
        .map(|rank| FirstLayerSlice::new(&config, columns_of(rank, ranks, features)).unwrap())
        .collect();
    let batches: Vec<_> = (0..ranks)
        .map(|rank| batch(&config, rank, 4 * u32::from(rank) % 9))
        .collect();

    let mut whole = vec![0.0; values.len()];
    let mut sliced = vec![0.0; values.len()];
    for (batch, rows) in &batches {
        let inputs: Vec<SlicedInput> = slices
            .iter()
            .map(|slice| input_of(rows, &batch.blocks, features, slice.columns()))
            .collect();
        let sums = summed(&slices, &values, &inputs);
        let all = input_of(rows, &batch.blocks, features, 0..features);
        sums_are_whole(&config, &values, &all, &sums);
        let wanted = model.gradients(batch, 50).unwrap();
        let found = model.gradients_from_sums(batch, sums.clone(), 50, &mut || ()).unwrap();
        assert_close(&[found.outcome.loss_sum], &[wanted.loss_sum], "loss");
        whole
            .iter_mut()
            .zip(wanted.gradients)
            .for_each(|(sum, value)| *sum += value);
        sliced
            .iter_mut()
            .zip(found.outcome.gradients)
            .for_each(|(sum, value)| *sum += value);
        for (slice, input) in slices.iter().zip(&inputs) {
            if !found.gradient.is_empty() {
                slice.add_gradient(input, &found.gradient, &mut sliced).unwrap();
            }
        }
        let (found, wanted) = (
            model.evaluate_from_sums(batch, sums).unwrap(),
            model.evaluate(batch).unwrap(),
        );
        assert_eq!((found.correct, found.labelled), (wanted.correct, wanted.labelled));
        assert!((found.loss_sum - wanted.loss_sum).abs() < 1e-5 * (1.0 + wanted.loss_sum));
    }
    assert_close(&sliced, &whole, "gradient");
}

#[test]
fn the_sum_over_slices_is_the_whole_layer() {
    for layers in 1..=3 {
        for dropout in [0.0, 0.4] {
            slices_are_the_whole(11, 4, layers, dropout);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_width_is_split_over_any_number_of_ranks(features in 1usize..20, ranks in 1u16..9) {
        slices_are_the_whole(features, ranks, 2, 0.3);
    }

    #[test]
    fn columns_are_each_held_once_in_order_and_evenly(features in 0usize..3_000, ranks in 1u16..300) {
        let mut next = 0;
        for rank in 0..ranks {
            let columns = columns_of(rank, ranks, features);
            prop_assert_eq!(columns.start, next);
            let even = features / usize::from(ranks);
            prop_assert!(columns.len() == even || columns.len() == even + 1);
            next = columns.end;
        }
        prop_assert_eq!(next, features);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let config = config(6, 2, 0.0);
    let error = FirstLayerSlice::new(&config, 4..7).unwrap_err().to_string();
    assert_eq!(
        error,
        "the slice of columns must be inside the features, found 4 .. 7 of 6"
    );
    let slice = FirstLayerSlice::new(&config, 2..4).unwrap();
    assert!(slice.weights(&[0.0; 3]).is_err());
    let mut model = build(&Device::cpu(), &config, 5).unwrap();
    let values = flat(model.as_ref());
    let input = SlicedInput {
        destinations: 2,
        own: vec![0.0; 4],
        mean: vec![0.0; 3],
    };
    let error = slice.weights(&values).unwrap().partial_sums(&input).unwrap_err();
    assert_eq!(error.to_string(), "the slice of means has 3 values, the model needs 4");

    let (mut sampled, _) = batch(&config, 0, 3);
    let error = model.gradients_from_sums(&sampled, vec![0.0; 7], 50, &mut || ());
    assert!(error.unwrap_err().to_string().contains("the sums of the first layer"));
    sampled.input = BatchInput::Sliced(Vec::new());
    let error = model.gradients(&sampled, 50).unwrap_err().to_string();
    assert!(error.contains("by all ranks together"), "{error}");
}
