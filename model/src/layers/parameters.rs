//! The parameters of a model: names, shapes, where each lies in the flat vector, and first values.

use std::ops::Range;

use super::{LayerError, ModelConfig, NamedParameter};
use crate::rng::{CounterRng, mix_words};

/// Where the parameters of one layer lie in the flat vector. Weights are `[outputs, inputs]`, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlaces {
    pub inputs: usize,
    pub outputs: usize,
    /// `fc_self.weight`: what multiplies a destination's own row.
    pub own_weight: Range<usize>,
    /// `fc_neigh.weight`: what multiplies the mean of its picks.
    pub mean_weight: Range<usize>,
    /// `fc_self.bias`.
    pub bias: Range<usize>,
}

/// The layout of all parameters in the flat vector, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name, shape and place of every parameter, by name.
    entries: Vec<Entry>,
    layers: Vec<LayerPlaces>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    place: Range<usize>,
}

impl Layout {
    pub fn new(config: &ModelConfig) -> Result<Self, LayerError> {
        check(config)?;
        let widths: Vec<(usize, usize)> = (0..config.layers)
            .map(|layer| {
                let inputs = if layer == 0 { config.features } else { config.hidden };
                let last = layer + 1 == config.layers;
                (inputs, if last { config.classes } else { config.hidden })
            })
            .collect();
        let mut entries: Vec<Entry> = Vec::with_capacity(3 * config.layers);
        for (layer, (inputs, outputs)) in widths.iter().enumerate() {
            for (name, shape) in [
                ("fc_self.weight", vec![*outputs, *inputs]),
                ("fc_neigh.weight", vec![*outputs, *inputs]),
                ("fc_self.bias", vec![*outputs]),
            ] {
                entries.push(Entry {
                    name: format!("layers.{layer}.{name}"),
                    shape,
                    place: 0..0,
                });
            }
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        let mut next = 0;
        for entry in &mut entries {
            let len: usize = entry.shape.iter().product();
            entry.place = next..next + len;
            next += len;
        }
        let place = |layer: usize, name: &str| {
            let name = format!("layers.{layer}.{name}");
            entries
                .iter()
                .find(|entry| entry.name == name)
                .map_or(0..0, |entry| entry.place.clone())
        };
        let layers = widths
            .iter()
            .enumerate()
            .map(|(layer, (inputs, outputs))| LayerPlaces {
                inputs: *inputs,
                outputs: *outputs,
                own_weight: place(layer, "fc_self.weight"),
                mean_weight: place(layer, "fc_neigh.weight"),
                bias: place(layer, "fc_self.bias"),
            })
            .collect();
        Ok(Self { entries, layers })
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.entries.last().map_or(0, |entry| entry.place.end)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The layers from the input to the logits.
    pub fn layers(&self) -> &[LayerPlaces] {
        &self.layers
    }

    /// The flat vector cut into named tensors.
    pub fn name(&self, flat: &[f32]) -> Result<Vec<NamedParameter>, LayerError> {
        self.check_len("the flat vector of parameters", flat)?;
        Ok(self
            .entries
            .iter()
            .map(|entry| NamedParameter {
                name: entry.name.clone(),
                shape: entry.shape.clone(),
                values: flat[entry.place.clone()].to_vec(),
            })
            .collect())
    }

    pub fn check_len(&self, what: &'static str, flat: &[f32]) -> Result<(), LayerError> {
        if flat.len() == self.len() {
            Ok(())
        } else {
            Err(LayerError::Shape {
                what,
                wanted: self.len(),
                found: flat.len(),
            })
        }
    }

    /// The first values, as DGL's `SAGEConv` draws them: weights uniform with the variance of Glorot and Bengio
    /// (AISTATS 2010, eq. 16) times the square of the ReLU's gain, sqrt(2); biases zero. Each parameter is drawn by the
    /// seed and its own name, so no draw depends on another.
    pub fn draw(&self, seed: u64) -> Vec<f32> {
        let mut flat = vec![0.0; self.len()];
        for entry in &self.entries {
            let [outputs, inputs] = entry.shape[..] else { continue };
            let bound = std::f64::consts::SQRT_2 * (6.0 / (inputs + outputs) as f64).sqrt();
            let words: Vec<u64> = std::iter::once(seed).chain(entry.name.bytes().map(u64::from)).collect();
            let mut rng = CounterRng::new(mix_words(&words));
            for value in &mut flat[entry.place.clone()] {
                *value = (bound * (2.0 * rng.unit_f64() - 1.0)) as f32;
            }
        }
        flat
    }
}

fn check(config: &ModelConfig) -> Result<(), LayerError> {
    let positive = |what, value: usize| match value {
        0 => Err(LayerError::Config {
            what,
            wanted: "at least 1",
            found: "0".into(),
        }),
        _ => Ok(()),
    };
    positive("the number of features", config.features)?;
    positive("the number of layers", config.layers)?;
    positive("the number of classes", config.classes)?;
    positive("the hidden width", config.hidden)?;
    if !(0.0..1.0).contains(&config.dropout) {
        return Err(LayerError::Config {
            what: "dropout",
            wanted: "at least 0 and below 1",
            found: config.dropout.to_string(),
        });
    }
    if !(config.learning_rate > 0.0 && config.learning_rate.is_finite()) {
        return Err(LayerError::Config {
            what: "the learning rate",
            wanted: "above 0",
            found: config.learning_rate.to_string(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(layers: usize) -> ModelConfig {
        ModelConfig {
            features: 5,
            hidden: 4,
            layers,
            classes: 3,
            dropout: 0.5,
            learning_rate: 0.01,
        }
    }

    #[test]
    fn the_flat_vector_is_in_name_order() {
        let layout = Layout::new(&config(12)).unwrap();
        let named = layout.name(&vec![0.0; layout.len()]).unwrap();
        let mut names: Vec<&str> = named.iter().map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(
            names[..4],
            [
                "layers.0.fc_neigh.weight",
                "layers.0.fc_self.bias",
                "layers.0.fc_self.weight",
                "layers.1.fc_neigh.weight"
            ]
        );
        let given = names.clone();
        names.sort_unstable();
        assert_eq!(names, given);
        let values: usize = named.iter().map(|parameter| parameter.values.len()).sum();
        assert_eq!(values, layout.len());
        assert_eq!(layout.layers()[11].outputs, 3);
    }

    #[test]
    fn draws_depend_on_the_seed_and_stay_in_their_bound() {
        let layout = Layout::new(&config(2)).unwrap();
        let flat = layout.draw(7);
        assert_eq!(flat, layout.draw(7));
        assert_ne!(flat, layout.draw(8));
        for parameter in layout.name(&flat).unwrap() {
            match parameter.shape[..] {
                [outputs, inputs] => {
                    let bound = (2.0f32 * 6.0 / (inputs + outputs) as f32).sqrt();
                    assert!(parameter.values.iter().all(|value| value.abs() <= bound));
                    assert!(parameter.values.iter().any(|value| value.abs() > 0.5 * bound));
                }
                _ => assert!(parameter.values.iter().all(|value| *value == 0.0)),
            }
        }
    }

    #[test]
    fn a_model_that_cannot_be_is_refused() {
        let refuse = |config: ModelConfig| Layout::new(&config).unwrap_err().to_string();
        assert_eq!(refuse(config(0)), "the number of layers must be at least 1, found 0");
        let base = config(2);
        let cases = [
            ModelConfig {
                dropout: 1.0,
                ..base.clone()
            },
            ModelConfig {
                dropout: f64::NAN,
                ..base.clone()
            },
            ModelConfig {
                learning_rate: 0.0,
                ..base.clone()
            },
            ModelConfig {
                learning_rate: f64::INFINITY,
                ..base.clone()
            },
            ModelConfig {
                features: 0,
                ..base.clone()
            },
            ModelConfig { classes: 0, ..base },
        ];
        for case in cases {
            assert!(refuse(case).contains("must be"));
        }
    }
}
