//! The first layer's products on the CPU, with bias, ReLU and dropout while the rows are still in the cache.
//!
//! The work is cut by shapes alone, and each piece is one product of one thread, so the bits do not depend on the number
//! of threads: forward by rows, backward by spans of rows whose partial gradients are added in their order.

use gemm::Parallelism;
use rayon::prelude::*;

use crate::layers::backend::Activation;

/// Rows of one forward task: its share of the output stays in the second-level cache.
const ROWS_PER_TASK: usize = 256;

/// Most spans of the backward products; the memory for partial gradients is that many times the parameters.
const SPANS: usize = 16;

/// Fewest rows of a span, so that small batches are not cut to pieces.
const ROWS_PER_SPAN: usize = 256;

/// `sum over terms of x W^T + bias`, then the activation, `[rows, outputs]`. Each term is `x` `[rows, inputs]` and `W`
/// `[outputs, inputs]`.
pub(in crate::layers) fn affine(
    terms: [(&[f32], &[f32]); 2],
    bias: &[f32],
    inputs: usize,
    outputs: usize,
    activation: Option<Activation>,
) -> Vec<f32> {
    let rows = terms[0].0.len() / inputs;
    let mut out = vec![0.0; rows * outputs];
    out.par_chunks_mut(ROWS_PER_TASK * outputs)
        .enumerate()
        .for_each(|(chunk, out)| {
            let first = chunk * ROWS_PER_TASK;
            let rows = out.len() / outputs;
            for (term, (x, weight)) in terms.into_iter().enumerate() {
                let x = &x[first * inputs..(first + rows) * inputs];
                let accumulate = term > 0;
                product(
                    out,
                    accumulate,
                    View::rows(x, rows, inputs),
                    View::rows(weight, outputs, inputs).turned(),
                );
            }
            finish_rows(out, bias, activation, first);
        });
    out
}

/// Gradients of [`affine`]'s two weights and bias. `gradient` is that of the output and is overwritten.
pub(super) fn affine_backward(
    inputs_of_terms: [&[f32]; 2],
    output: &[f32],
    gradient: &mut [f32],
    inputs: usize,
    outputs: usize,
    activation: Option<Activation>,
) -> [Vec<f32>; 3] {
    let rows = output.len() / outputs;
    let span = rows.div_ceil(SPANS).max(ROWS_PER_SPAN);
    let partials: Vec<[Vec<f32>; 3]> = gradient
        .par_chunks_mut(span * outputs)
        .zip(output.par_chunks(span * outputs))
        .enumerate()
        .map(|(at, (gradient, output))| {
            if let Some(activation) = activation {
                cut_gradient(gradient, output, activation);
            }
            let [own, mean] = inputs_of_terms.map(|x| span_product(x, gradient, at * span, inputs, outputs));
            [own, mean, column_sums(gradient, outputs)]
        })
        .collect();
    in_order(partials, [outputs * inputs, outputs * inputs, outputs])
}

/// Gradients of the two weights of [`affine`] without an activation, from the gradient of its output.
pub(in crate::layers) fn weight_gradients(
    inputs_of_terms: [&[f32]; 2],
    gradient: &[f32],
    inputs: usize,
    outputs: usize,
) -> [Vec<f32>; 2] {
    let span = (gradient.len() / outputs).div_ceil(SPANS).max(ROWS_PER_SPAN);
    let partials: Vec<[Vec<f32>; 2]> = gradient
        .par_chunks(span * outputs)
        .enumerate()
        .map(|(at, gradient)| inputs_of_terms.map(|x| span_product(x, gradient, at * span, inputs, outputs)))
        .collect();
    in_order(partials, [outputs * inputs; 2])
}

/// `gradient^T x` for the rows of `x` from `first` on that `gradient` has.
fn span_product(x: &[f32], gradient: &[f32], first: usize, inputs: usize, outputs: usize) -> Vec<f32> {
    let rows = gradient.len() / outputs;
    let x = &x[first * inputs..(first + rows) * inputs];
    let mut partial = vec![0.0; outputs * inputs];
    let turned = View::rows(gradient, rows, outputs).turned();
    product(&mut partial, false, turned, View::rows(x, rows, inputs));
    partial
}

/// The sum of the rows, which is a bias's gradient.
pub(in crate::layers) fn column_sums(gradient: &[f32], outputs: usize) -> Vec<f32> {
    let mut sums = vec![0.0; outputs];
    for row in gradient.chunks_exact(outputs) {
        add(&mut sums, row);
    }
    sums
}

/// The partial gradients of all spans added in their order; zeros of these lengths if there is none.
fn in_order<const N: usize>(partials: Vec<[Vec<f32>; N]>, lengths: [usize; N]) -> [Vec<f32>; N] {
    let mut partials = partials.into_iter();
    let first = partials.next();
    let mut total = first.unwrap_or_else(|| lengths.map(|length| vec![0.0; length]));
    for partial in partials {
        for (total, partial) in total.iter_mut().zip(&partial) {
            add(total, partial);
        }
    }
    total
}

/// Adds the bias to rows that start with row `first` of the layer, and applies the activation.
pub(in crate::layers) fn finish_rows(values: &mut [f32], bias: &[f32], activation: Option<Activation>, first: usize) {
    let width = bias.len();
    let cut = activation.is_some();
    for row in values.chunks_exact_mut(width) {
        for (value, bias) in row.iter_mut().zip(bias) {
            let sum = *value + bias;
            *value = if cut && sum <= 0.0 { 0.0 } else { sum };
        }
    }
    if let Some(dropout) = activation.and_then(|activation| activation.dropout) {
        dropout.apply(first * width, values);
    }
}

/// The gradient before ReLU and dropout: scaled where the output is positive, else zero.
pub(in crate::layers) fn cut_gradient(gradient: &mut [f32], output: &[f32], activation: Activation) {
    let scale = activation.scale();
    for (gradient, output) in gradient.iter_mut().zip(output) {
        *gradient = if *output > 0.0 { *gradient * scale } else { 0.0 };
    }
}

pub(in crate::layers) fn add(total: &mut [f32], values: &[f32]) {
    for (total, value) in total.iter_mut().zip(values) {
        *total += value;
    }
}

/// A matrix over a slice, row-major or turned.
#[derive(Clone, Copy)]
struct View<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: isize,
    column_stride: isize,
}

impl<'a> View<'a> {
    fn rows(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} x {columns}");
        Self {
            values,
            rows,
            columns,
            row_stride: columns as isize,
            column_stride: 1,
        }
    }

    fn turned(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = left x right`, or `out += left x right`, on the calling thread. `out` is row-major.
fn product(out: &mut [f32], accumulate: bool, left: View<'_>, right: View<'_>) {
    assert_eq!(left.columns, right.rows, "inner dimensions");
    assert_eq!(out.len(), left.rows * right.columns, "output");
    // SAFETY: the strides and sizes of both views stay inside their slices by construction, `out` holds exactly the
    // product, row-major, and as a mutable slice it overlaps neither.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out.as_mut_ptr(),
            1,
            right.columns as isize,
            accumulate,
            left.values.as_ptr(),
            left.column_stride,
            left.row_stride,
            right.values.as_ptr(),
            right.column_stride,
            right.row_stride,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
