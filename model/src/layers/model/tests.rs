use super::*;
use crate::assemble::tests::{random_block, random_values};
use crate::assemble::{InputBuffers, assemble_input};
use crate::batch::Block;
use crate::layers::{Device, build, weights_sha256};
use crate::rng::{BatchKey, CounterRng, Purpose};

fn config(layers: usize, dropout: f64) -> ModelConfig {
    ModelConfig {
        features: 6,
        hidden: 5,
        layers,
        classes: 3,
        dropout,
        learning_rate: 0.01,
    }
}

fn key(step: u32) -> BatchKey {
    BatchKey {
        seed: 1,
        purpose: Purpose::Train,
        epoch: 0,
        rank: 0,
        step,
    }
}

/// A batch with `seeds` seeds, each hop about three times as wide as the one before.
fn random_batch(config: &ModelConfig, seed: u64, seeds: u32, preaggregate: bool) -> AssembledBatch {
    let mut blocks = Vec::new();
    let mut destinations = seeds;
    for layer in 0..config.layers as u64 {
        let sources = 3 * destinations + 1;
        blocks.push(random_block(seed + layer, destinations, sources, 6));
        destinations = sources;
    }
    let values = random_values(seed ^ 99, destinations as usize * config.features);
    let mut rng = CounterRng::new(seed ^ 7);
    let classes = config.classes as u32;
    let labels = (0..seeds).map(|_| i64::from(rng.below(classes + 1)) - 1).collect();
    let rows: Vec<&[f32]> = values.chunks_exact(config.features).collect();
    let outermost = &blocks[config.layers - 1];
    let input = assemble_input(
        &rows[..],
        outermost,
        config.features,
        preaggregate,
        &mut InputBuffers::default(),
    );
    AssembledBatch {
        key: key(seed as u32),
        input: input.unwrap(),
        blocks,
        labels,
    }
}

/// The model in f64, written from its definition with dense loops. The loss of each seed; 0 where unlabelled.
struct Reference<'a> {
    config: &'a ModelConfig,
    batch: &'a AssembledBatch,
    training: bool,
}

impl Reference<'_> {
    fn losses(&self, parameters: &[(NamedParameter, Vec<f64>)]) -> Vec<f64> {
        let find = |name: String| &parameters.iter().find(|(known, _)| known.name == name).unwrap().1;
        let BatchInput::Rows(rows) = &self.batch.input else {
            panic!("the reference wants rows")
        };
        let mut rows: Vec<Vec<f64>> = rows
            .chunks_exact(self.config.features)
            .map(|row| row.iter().copied().map(f64::from).collect())
            .collect();
        for layer in 0..self.config.layers {
            let block = &self.batch.blocks[self.config.layers - 1 - layer];
            let own_weight = find(format!("layers.{layer}.fc_self.weight"));
            let mean_weight = find(format!("layers.{layer}.fc_neigh.weight"));
            let bias = find(format!("layers.{layer}.fc_self.bias"));
            let last = layer + 1 == self.config.layers;
            let share = if self.training { self.config.dropout } else { 0.0 };
            let dropout = Dropout::new(self.batch.key.dropout(layer as u32), share);
            let outputs = bias.len();
            let count = block.destination_count() as usize;
            let factors = match dropout {
                Some(dropout) if !last => dropout.factors(count * outputs),
                _ => vec![1.0; count * outputs],
            };
            rows = (0..count)
                .map(|destination| {
                    let picks =
                        &block.sources[block.offsets[destination] as usize..block.offsets[destination + 1] as usize];
                    let width = rows[destination].len();
                    let mut mean = vec![0.0; width];
                    for source in picks {
                        for (mean, value) in mean.iter_mut().zip(&rows[*source as usize]) {
                            *mean += value / picks.len() as f64;
                        }
                    }
                    (0..outputs)
                        .map(|output| {
                            let dot = |weight: &[f64], row: &[f64]| -> f64 {
                                weight[output * width..][..width]
                                    .iter()
                                    .zip(row)
                                    .map(|(w, x)| w * x)
                                    .sum()
                            };
                            let sum = dot(own_weight, &rows[destination]) + dot(mean_weight, &mean) + bias[output];
                            let factor = f64::from(factors[destination * outputs + output]);
                            if last { sum } else { sum.max(0.0) * factor }
                        })
                        .collect()
                })
                .collect();
        }
        let losses = rows
            .iter()
            .zip(&self.batch.labels)
            .map(|(logits, label)| match usize::try_from(*label) {
                Ok(class) => logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[class],
                Err(_) => 0.0,
            });
        losses.collect()
    }
}

/// Parameters with biases that are not zero, so that their gradients are tested off the kink.
fn randomised(model: &mut dyn Trainable) -> Vec<(NamedParameter, Vec<f64>)> {
    let count = model
        .parameters()
        .unwrap()
        .iter()
        .map(|parameter| parameter.values.len())
        .sum();
    model.set_parameters(&random_values(12, count)).unwrap();
    let named = model.parameters().unwrap();
    named
        .into_iter()
        .map(|parameter| {
            let exact = parameter.values.iter().copied().map(f64::from).collect();
            (parameter, exact)
        })
        .collect()
}

#[test]
fn gradients_are_the_slopes_of_the_definition() {
    for layers in 1..=3 {
        let config = config(layers, 0.3);
        let batch = random_batch(&config, 40 + layers as u64, 9, false);
        let mut model = build(&Device::cpu(), &config, 5).unwrap();
        let mut parameters = randomised(model.as_mut());
        let reference = Reference {
            config: &config,
            batch: &batch,
            training: true,
        };
        let outcome = model.gradients(&batch, 20).unwrap();
        let loss: f64 = reference.losses(&parameters).iter().sum();
        assert!(
            (f64::from(outcome.loss_sum) - loss).abs() < 1e-4 * loss,
            "{} and {loss}",
            outcome.loss_sum
        );
        let mut flat = outcome.gradients.iter();
        for which in 0..parameters.len() {
            for at in 0..parameters[which].1.len() {
                const STEP: f64 = 1e-6;
                let before = parameters[which].1[at];
                let mut moved = |by: f64| {
                    parameters[which].1[at] = before + by;
                    reference.losses(&parameters).iter().sum::<f64>()
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP) / 20.0;
                moved(0.0);
                let found = f64::from(*flat.next().unwrap());
                let name = &parameters[which].0.name;
                assert!(
                    (found - slope).abs() < 2e-5 * (1.0 + slope.abs()),
                    "{name}[{at}]: {found} and {slope}"
                );
            }
        }
        assert_eq!(flat.next(), None);
    }
}

#[test]
fn evaluation_is_the_definition_without_dropout() {
    for layers in 1..=3 {
        let config = config(layers, 0.5);
        let batch = random_batch(&config, 70 + layers as u64, 30, false);
        let mut model = build(&Device::cpu(), &config, 5).unwrap();
        let parameters = randomised(model.as_mut());
        let reference = Reference {
            config: &config,
            batch: &batch,
            training: false,
        };
        let found = model.evaluate(&batch).unwrap();
        let loss: f64 = reference.losses(&parameters).iter().sum();
        assert!((found.loss_sum - loss).abs() < 1e-4 * loss);
        assert_eq!(
            found.labelled,
            batch.labels.iter().filter(|label| **label >= 0).count() as u64
        );
        assert!(found.correct <= found.labelled);
    }
    let judged = judge(&[1.0, 1.0, 0.0, 0.0, 2.0, 5.0, 9.0, 0.0, 0.0], &[0, 2, -1], 3);
    assert_eq!((judged.correct, judged.labelled), (2, 2));
}

#[test]
fn aggregating_in_the_loader_gives_the_same_bits() {
    for layers in 1..=3 {
        let config = config(layers, 0.5);
        let mut model = build(&Device::cpu(), &config, 5).unwrap();
        let [off, on] = [false, true].map(|preaggregate| random_batch(&config, 50, 40, preaggregate));
        assert_eq!(off.blocks, on.blocks);
        let (off_outcome, on_outcome) = (model.gradients(&off, 40).unwrap(), model.gradients(&on, 40).unwrap());
        assert_eq!(bits(&off_outcome), bits(&on_outcome));
        assert_eq!(model.evaluate(&off).unwrap(), model.evaluate(&on).unwrap());
    }
}

fn bits(outcome: &StepOutcome) -> Vec<u32> {
    let values = std::iter::once(&outcome.loss_sum).chain(&outcome.gradients);
    values.map(|value| value.to_bits()).collect()
}

#[test]
fn the_number_of_threads_does_not_show() {
    // Wide enough for Burn to spread its products over threads.
    let config = ModelConfig {
        features: 70,
        hidden: 128,
        classes: 20,
        ..config(3, 0.5)
    };
    let train = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut model = build(&Device::cpu(), &config, 3).unwrap();
            let mut seen = Vec::new();
            for step in 0..3 {
                let outcome = model
                    .gradients(&random_batch(&config, step, 150, step == 1), 150)
                    .unwrap();
                model.apply(&outcome.gradients).unwrap();
                seen.push(bits(&outcome));
            }
            (seen, weights_sha256(&model.parameters().unwrap()))
        })
    };
    let one = train(1);
    assert_eq!(train(2), one);
    assert_eq!(train(3), one);
}

#[test]
fn the_seed_decides_the_weights() {
    let hash = |seed| {
        weights_sha256(
            &build(&Device::cpu(), &config(2, 0.5), seed)
                .unwrap()
                .parameters()
                .unwrap(),
        )
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn unlabelled_seeds_stay_out() {
    let config = config(2, 0.0);
    let mut model = build(&Device::cpu(), &config, 5).unwrap();
    let batch = random_batch(&config, 60, 20, false);
    let with = model.gradients(&batch, 20).unwrap();
    let labelled = batch.labels.iter().filter(|label| **label >= 0).count();
    assert!(labelled < 20 && labelled > 0);
    let mut alone = batch.clone();
    let mut sum = 0.0;
    for at in 0..20 {
        alone.labels = vec![-1; 20];
        alone.labels[at] = batch.labels[at];
        let outcome = model.gradients(&alone, 20).unwrap();
        if batch.labels[at] < 0 {
            assert_eq!(outcome.loss_sum, 0.0);
            assert!(outcome.gradients.iter().all(|gradient| *gradient == 0.0));
        }
        sum += outcome.loss_sum;
    }
    assert!((sum - with.loss_sum).abs() < 1e-4 * sum);
}

#[test]
fn two_half_batches_are_one_whole() {
    let config = config(2, 0.0);
    let mut model = build(&Device::cpu(), &config, 5).unwrap();
    let whole = random_batch(&config, 61, 30, false);
    let half = |seeds: std::ops::Range<usize>| {
        let mut half = whole.clone();
        let outside = half.labels.iter_mut().enumerate().filter(|(at, _)| !seeds.contains(at));
        outside.for_each(|(_, label)| *label = -1);
        half
    };
    let together = model.gradients(&whole, 30).unwrap();
    let (left, right) = (
        model.gradients(&half(0..11), 30).unwrap(),
        model.gradients(&half(11..30), 30).unwrap(),
    );
    for (at, wanted) in together.gradients.iter().enumerate() {
        let found = left.gradients[at] + right.gradients[at];
        assert!((found - wanted).abs() < 1e-6, "{found} and {wanted}");
    }
    let doubled = model.gradients(&whole, 60).unwrap();
    assert_eq!(doubled.loss_sum, together.loss_sum);
    for (half, whole) in doubled.gradients.iter().zip(&together.gradients) {
        assert!((2.0 * half - whole).abs() < 1e-6);
    }
}

#[test]
fn a_batch_without_seeds_is_no_work() {
    for layers in 1..=3 {
        let config = config(layers, 0.5);
        let mut model = build(&Device::cpu(), &config, 5).unwrap();
        let empty = Block {
            offsets: vec![0],
            ..Block::default()
        };
        for input in [
            BatchInput::Rows(Vec::new()),
            BatchInput::PreAggregated {
                own: Vec::new(),
                mean: Vec::new(),
            },
        ] {
            let batch = AssembledBatch {
                key: key(0),
                input,
                blocks: vec![empty.clone(); layers],
                labels: Vec::new(),
            };
            let outcome = model.gradients(&batch, 0).unwrap();
            assert_eq!(outcome.loss_sum, 0.0);
            assert!(outcome.gradients.iter().all(|gradient| *gradient == 0.0));
            assert_eq!(model.evaluate(&batch).unwrap(), Evaluation::default());
        }
    }
}

#[test]
fn training_separates_what_only_neighbours_tell_apart() {
    // A seed's own row is noise; the mean of its picks is its class.
    let config = ModelConfig {
        hidden: 16,
        ..config(2, 0.1)
    };
    let batch = |seed: u64| {
        let mut batch = random_batch(&config, seed, 60, false);
        batch.labels = (0..60).map(|at| at % 3).collect();
        let seeds = &mut batch.blocks[0];
        seeds.offsets = (0..=60).map(|at| 2 * at).collect();
        seeds.sources = (0..60).flat_map(|at| [60 + at, 120 + at]).collect();
        let BatchInput::Rows(rows) = &mut batch.input else {
            panic!("rows")
        };
        for (at, row) in rows.chunks_exact_mut(config.features).enumerate() {
            if (60..180).contains(&at) {
                row[at % 3] += 3.0;
            }
        }
        batch
    };
    let mut model = build(&Device::cpu(), &config, 5).unwrap();
    let before = model.evaluate(&batch(1000)).unwrap();
    for step in 0..200 {
        let outcome = model.gradients(&batch(step), 60).unwrap();
        model.apply(&outcome.gradients).unwrap();
    }
    let after = model.evaluate(&batch(1000)).unwrap();
    assert!(after.correct >= 56, "{after:?}, before {before:?}");
    assert!(after.loss_sum < before.loss_sum);
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    let config = config(2, 0.5);
    let mut model = build(&Device::cpu(), &config, 5).unwrap();
    let good = random_batch(&config, 3, 10, false);
    model.gradients(&good, 10).unwrap();
    let mut refused = |change: &dyn Fn(&mut AssembledBatch), part: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let error = model.gradients(&bad, 10).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(model.evaluate(&bad).unwrap_err().to_string(), error);
    };
    refused(
        &|batch| drop(batch.blocks.pop()),
        "the list of blocks has 1 values, the model needs 2",
    );
    refused(&|batch| batch.labels[0] = 3, "found 3 with 3 classes");
    refused(
        &|batch| batch.labels[0] = -2,
        "a label must be -1 or a class of the model",
    );
    refused(&|batch| batch.labels.truncate(9), "the list of labels");
    refused(
        &|batch| batch.blocks[0].sources[0] = 10_000,
        "step 3 of rank 0 has a bad batch",
    );
    refused(
        &|batch| batch.blocks[0].source_count += 1,
        "the destinations of a block",
    );
    refused(
        &|batch| batch.input = BatchInput::Rows(vec![0.0; 5]),
        "the input has 5 values",
    );
    assert!(
        model
            .gradients(&good, 1)
            .unwrap_err()
            .to_string()
            .contains("labelled seeds")
    );
    assert!(model.set_parameters(&[1.0]).is_err());
    assert!(model.apply(&[1.0]).is_err());
}
