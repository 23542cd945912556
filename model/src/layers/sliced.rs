//! Some columns of the first layer, for ranks that compute it together instead of moving feature rows.
//!
//! The features are split by dimension: rank `r` of `R` holds the columns [`columns_of`] of *all* nodes, and the same
//! columns of the first layer's two weights (P3; Gandhi and Iyer, OSDI 2021). The products of a batch are sums over
//! columns,
//!
//! ```text
//! W_self own + W_neigh mean = sum over ranks of (W_self[:, columns] own[:, columns] + W_neigh[:, columns] mean[:, columns])
//! ```
//!
//! so every rank makes a partial sum of every rank's batch ([`SliceWeights::partial_sums`]), and the batch's rank adds them
//! up in the order of ranks. The gradient of the sums, sent back, is all that a rank needs for the gradients of its own
//! columns of the weights ([`FirstLayerSlice::add_gradient`]).

use std::ops::Range;

use super::parameters::{LayerPlaces, Layout};
use super::{LayerError, ModelConfig};
use crate::book::Rank;

#[cfg(feature = "train")]
use super::cpu::dense;

/// The columns that `rank` holds, of `features`: `rank * features / ranks .. (rank + 1) * features / ranks`. The widths
/// differ by at most one, and are zero for some ranks where there are fewer columns than ranks.
pub fn columns_of(rank: Rank, ranks: Rank, features: usize) -> Range<usize> {
    let bound = |rank: u128| (rank * features as u128 / u128::from(ranks.max(1))) as usize;
    bound(u128::from(rank))..bound(u128::from(rank) + 1)
}

/// The first layer's input of one batch, of some columns: per destination of the outermost block its own row and the mean
/// of its picks, `[destinations, width]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlicedInput {
    pub destinations: usize,
    pub own: Vec<f32>,
    pub mean: Vec<f32>,
}

/// Where some columns of the first layer's weights lie among all parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstLayerSlice {
    layout: Layout,
    columns: Range<usize>,
}

/// Some columns of the first layer's weights, `[outputs, width]` each.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceWeights {
    width: usize,
    outputs: usize,
    own: Vec<f32>,
    mean: Vec<f32>,
}

impl FirstLayerSlice {
    /// # Errors
    /// A model that cannot be, or columns that it does not have.
    pub fn new(config: &ModelConfig, columns: Range<usize>) -> Result<Self, LayerError> {
        if columns.start > columns.end || columns.end > config.features {
            return Err(LayerError::Config {
                what: "the slice of columns",
                wanted: "inside the features",
                found: format!("{} .. {} of {}", columns.start, columns.end, config.features),
            });
        }
        let layout = Layout::new(config)?;
        Ok(Self { layout, columns })
    }

    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Width of the first layer's output.
    pub fn outputs(&self) -> usize {
        self.places().outputs
    }

    /// Cuts the columns out of the flat vector of all parameters.
    pub fn weights(&self, flat: &[f32]) -> Result<SliceWeights, LayerError> {
        self.layout.check_len("the flat vector of parameters", flat)?;
        let places = self.places();
        let cut = |weight: &Range<usize>| {
            let rows = flat[weight.clone()].chunks_exact(places.inputs);
            rows.flat_map(|row| &row[self.columns.clone()]).copied().collect()
        };
        Ok(SliceWeights {
            width: self.columns.len(),
            outputs: places.outputs,
            own: cut(&places.own_weight),
            mean: cut(&places.mean_weight),
        })
    }

    /// Adds to the flat vector of gradients what one batch says about these columns. `gradient` is that of the batch's
    /// sums, `[destinations, outputs]`.
    #[cfg(feature = "train")]
    pub fn add_gradient(&self, input: &SlicedInput, gradient: &[f32], flat: &mut [f32]) -> Result<(), LayerError> {
        self.layout.check_len("the flat vector of gradients", flat)?;
        let (places, width) = (self.places(), self.columns.len());
        check_input(input, width)?;
        check_values(
            "the gradient of the sums",
            input.destinations * places.outputs,
            gradient,
        )?;
        if width == 0 || input.destinations == 0 {
            return Ok(());
        }
        let [own, mean] = dense::weight_gradients([&input.own, &input.mean], gradient, width, places.outputs);
        for (place, values) in [(&places.own_weight, own), (&places.mean_weight, mean)] {
            let rows = flat[place.clone()].chunks_exact_mut(places.inputs);
            for (row, values) in rows.zip(values.chunks_exact(width)) {
                dense::add(&mut row[self.columns.clone()], values);
            }
        }
        Ok(())
    }

    fn places(&self) -> &LayerPlaces {
        &self.layout.layers()[0]
    }
}

#[cfg(feature = "train")]
impl SliceWeights {
    /// What these columns add to the first layer's sums, `[destinations, outputs]`, without the bias.
    pub fn partial_sums(&self, input: &SlicedInput) -> Result<Vec<f32>, LayerError> {
        check_input(input, self.width)?;
        if self.width == 0 || input.destinations == 0 {
            return Ok(vec![0.0; input.destinations * self.outputs]);
        }
        let terms = [(&input.own[..], &self.own[..]), (&input.mean[..], &self.mean[..])];
        let no_bias = vec![0.0; self.outputs];
        Ok(dense::affine(terms, &no_bias, self.width, self.outputs, None))
    }
}

#[cfg(feature = "train")]
fn check_input(input: &SlicedInput, width: usize) -> Result<(), LayerError> {
    check_values("the slice of own rows", input.destinations * width, &input.own)?;
    check_values("the slice of means", input.destinations * width, &input.mean)
}

#[cfg(feature = "train")]
fn check_values(what: &'static str, wanted: usize, values: &[f32]) -> Result<(), LayerError> {
    match values.len() {
        found if found == wanted => Ok(()),
        found => Err(LayerError::Shape { what, wanted, found }),
    }
}

#[cfg(all(test, feature = "train"))]
mod tests;
