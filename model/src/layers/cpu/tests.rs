//! The fused operations against the same ones composed of Burn's.

use super::*;
use crate::assemble::tests::random_values;
use crate::layers::backend::composed;
use crate::layers::dropout::Dropout;

fn close(found: FlexTensor, wanted: FlexTensor) {
    assert_eq!(found.shape(), wanted.shape());
    let (found, wanted) = (found.to_contiguous(), wanted.to_contiguous());
    for (found, wanted) in found.storage::<f32>().iter().zip(wanted.storage::<f32>()) {
        assert!(
            (found - wanted).abs() < 1e-4 * (1.0 + wanted.abs()),
            "{found} and {wanted}"
        );
    }
}

fn activations() -> [Option<Activation>; 3] {
    let with = |dropout| Some(Activation { dropout });
    [None, with(None), with(Dropout::new(3, 0.4))]
}

#[test]
fn the_first_layer_is_what_burn_computes() {
    for (rows, inputs, outputs) in [(1, 1, 1), (7, 5, 3), (700, 33, 20), (5000, 9, 4)] {
        for activation in activations() {
            let random =
                |seed, rows: usize, columns: usize| tensor(random_values(seed, rows * columns), [rows, columns]);
            let (own, mean) = (random(1, rows, inputs), random(2, rows, inputs));
            let parameters = || LayerTensors::<Flex> {
                own_weight: random(3, outputs, inputs),
                mean_weight: random(4, outputs, inputs),
                bias: random(5, 1, outputs),
            };
            let input = CpuInput {
                own: Cow::Borrowed(own.storage()),
                mean: Cow::Borrowed(mean.storage()),
            };
            let output = Flex::first_layer(&input, parameters(), activation);
            let wanted = composed::first_layer::<Flex>(own.clone(), mean.clone(), parameters(), activation);
            close(output.clone(), wanted);

            let gradient = random(6, rows, outputs);
            let found = Flex::first_layer_backward(&input, output.clone(), gradient.clone(), activation);
            let wanted =
                composed::first_layer_backward::<Flex>(own.clone(), mean.clone(), output, gradient, activation);
            close(found.own_weight, wanted.own_weight);
            close(found.mean_weight, wanted.mean_weight);
            close(found.bias, wanted.bias);
        }
    }
}

#[test]
fn the_activation_is_what_burn_computes() {
    for (rows, columns) in [(1, 1), (3, 7), (900, 50)] {
        for activation in activations().into_iter().flatten() {
            let random = |seed, rows: usize| tensor(random_values(seed, rows * columns), [rows, columns]);
            let output = Flex::activate(random(1, rows), random(2, 1), activation);
            close(
                output.clone(),
                composed::activate::<Flex>(random(1, rows), random(2, 1), activation),
            );
            let found = Flex::activate_backward(random(3, rows), output.clone(), activation);
            close(
                found,
                composed::activate_backward::<Flex>(random(3, rows), output, activation),
            );
        }
    }
}
