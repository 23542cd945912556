//! The CubeCL kernels: one unit per output value, which alone writes it, so there are no atomics and sums keep the order
//! of the block. Rows may have any strides.

use cubecl::prelude::*;

/// The mean of column `column` over the picks of a destination; zero without picks.
#[cube]
fn mean_of_picks(
    rows: &Tensor<f32>,
    offsets: &Tensor<u32>,
    sources: &Tensor<u32>,
    destination: usize,
    column: usize,
) -> f32 {
    let start = usize::cast_from(offsets[destination]);
    let end = usize::cast_from(offsets[destination + 1]);
    let place = column * rows.stride(1);
    let mut sum = 0.0f32;
    for pick in start..end {
        sum += rows[usize::cast_from(sources[pick]) * rows.stride(0) + place];
    }
    if end > start {
        sum /= f32::cast_from(end - start);
    }
    sum
}

/// Rows `[places, width]` by their places in two tables: `resident` has the places below `limit`, `uploaded` those after.
#[cube(launch)]
pub fn gather(
    resident: &Tensor<f32>,
    uploaded: &Tensor<f32>,
    limit: &Tensor<u32>,
    places: &Tensor<u32>,
    output: &mut Tensor<f32>,
) {
    let width = output.shape(1);
    if ABSOLUTE_POS >= output.shape(0) * width {
        terminate!();
    }
    let row = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let place = usize::cast_from(places[row]);
    let first = usize::cast_from(limit[0]);
    let at = row * output.stride(0) + column * output.stride(1);
    if place < first {
        output[at] = resident[place * resident.stride(0) + column * resident.stride(1)];
    } else {
        output[at] = uploaded[(place - first) * uploaded.stride(0) + column * uploaded.stride(1)];
    }
}

/// `[sources, width]` to the means `[destinations, width]`.
#[cube(launch)]
pub fn mean(rows: &Tensor<f32>, offsets: &Tensor<u32>, sources: &Tensor<u32>, output: &mut Tensor<f32>) {
    let width = output.shape(1);
    if ABSOLUTE_POS >= output.shape(0) * width {
        terminate!();
    }
    let destination = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    output[destination * output.stride(0) + column * output.stride(1)] =
        mean_of_picks(rows, offsets, sources, destination, column);
}

/// `[sources, width]` to own row and mean, `[destinations, 2 * width]`.
#[cube(launch)]
pub fn own_and_mean(rows: &Tensor<f32>, offsets: &Tensor<u32>, sources: &Tensor<u32>, output: &mut Tensor<f32>) {
    let width = rows.shape(1);
    if ABSOLUTE_POS >= output.shape(0) * width {
        terminate!();
    }
    let destination = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let place = destination * output.stride(0);
    output[place + column * output.stride(1)] = rows[destination * rows.stride(0) + column * rows.stride(1)];
    output[place + (width + column) * output.stride(1)] = mean_of_picks(rows, offsets, sources, destination, column);
}

/// The gradient of [`own_and_mean`]: `[destinations, 2 * width]` to `[sources, width]`, over the transposed block.
#[cube(launch)]
pub fn own_and_mean_backward(
    gradient: &Tensor<f32>,
    offsets: &Tensor<u32>,
    destinations: &Tensor<u32>,
    weights: &Tensor<f32>,
    output: &mut Tensor<f32>,
) {
    let width = output.shape(1);
    if ABSOLUTE_POS >= output.shape(0) * width {
        terminate!();
    }
    let source = ABSOLUTE_POS / width;
    let column = ABSOLUTE_POS % width;
    let mut sum = 0.0f32;
    if source < gradient.shape(0) {
        sum = gradient[source * gradient.stride(0) + column * gradient.stride(1)];
    }
    let place = (width + column) * gradient.stride(1);
    for at in usize::cast_from(offsets[source])..usize::cast_from(offsets[source + 1]) {
        let destination = usize::cast_from(destinations[at]);
        sum += gradient[destination * gradient.stride(0) + place] * weights[destination];
    }
    output[source * output.stride(0) + column * output.stride(1)] = sum;
}
