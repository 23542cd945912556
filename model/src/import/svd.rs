//! Reduces a wide sparse matrix to few dense columns by a randomized singular value decomposition.
//!
//! For X with n rows and m columns, X = U S V', the reduced features are U S = X V of the largest singular values. Halko,
//! Martinsson and Tropp (SIAM Review 53, 2011), algorithms 4.4 and 5.1, on the side of the columns: a random m x l basis
//! goes through X'X a few times, made orthonormal after each (subspace iteration), and the eigenvectors of the small
//! matrix Q'X'X Q turn the basis Q into V. The random numbers are drawn by position, and no sum depends on the number of
//! threads, so the same matrix and seed give the same bits.
//!
//! **Memory**: 16 bytes per stored value (the matrix and its transpose) and 8 l (n + 2 m) bytes, with l = columns + 16.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::dense::{Matrix, add_scaled, dot, orthonormalise_rows, symmetric_eigen};
use crate::rng::{CounterRng, mix_words};

/// Basis vectors beyond those that are asked for; they sharpen the last ones.
const OVERSAMPLING: usize = 16;
/// How often the basis goes through X'X before its singular vectors are read off.
const ITERATIONS: usize = 4;

/// A sparse matrix in compressed rows. Columns inside a row may come in any order, and twice (then they add up).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SparseMatrix {
    pub columns: usize,
    /// `rows + 1` offsets into `indices` and `values`.
    pub offsets: Vec<u64>,
    pub indices: Vec<u32>,
    pub values: Vec<f32>,
}

impl SparseMatrix {
    pub fn rows(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Columns and values of a row.
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        let range = self.offsets[row] as usize..self.offsets[row + 1] as usize;
        (&self.indices[range.clone()], &self.values[range])
    }

    /// The transpose, by counting; the columns of its rows ascend.
    fn transposed(&self) -> Self {
        let mut offsets = vec![0u64; self.columns + 1];
        for column in &self.indices {
            offsets[*column as usize + 1] += 1;
        }
        for column in 0..self.columns {
            offsets[column + 1] += offsets[column];
        }
        let mut indices = vec![0u32; self.indices.len()];
        let mut values = vec![0f32; self.values.len()];
        let mut next = offsets.clone();
        for row in 0..self.rows() {
            let (columns, entries) = self.row(row);
            for (column, value) in columns.iter().zip(entries) {
                let place = &mut next[*column as usize];
                indices[*place as usize] = row as u32;
                values[*place as usize] = *value;
                *place += 1;
            }
        }
        Self {
            columns: self.rows(),
            offsets,
            indices,
            values,
        }
    }

    /// `out = self * dense`, rows in parallel.
    fn times(&self, dense: &Matrix, out: &mut Matrix) {
        out.values
            .par_chunks_mut(dense.columns)
            .enumerate()
            .with_min_len(64)
            .for_each(|(row, sums)| {
                sums.fill(0.0);
                let (columns, entries) = self.row(row);
                for (column, value) in columns.iter().zip(entries) {
                    add_scaled(sums, f64::from(*value), dense.row(*column as usize));
                }
            });
    }
}

/// How features were reduced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SvdRecord {
    pub columns: usize,
    pub oversampling: usize,
    pub iterations: usize,
    pub seed: u64,
    /// What the features U S were multiplied by, so that their mean square is 1.
    pub scale: f64,
    /// The part of the sum of squares of the given features that the columns hold, from 0 to 1.
    pub explained: f64,
}

/// The right singular vectors V of a matrix, scaled, so that features are X V.
#[derive(Clone, Debug)]
pub(super) struct RightFactors {
    pub columns: usize,
    /// V times the scale, one row per column of X.
    vectors: Matrix,
    pub record: SvdRecord,
}

impl RightFactors {
    /// One row of X V: `features[k] = sum over the row's entries of value * V[column][k]`.
    pub fn project(&self, (columns, entries): (&[u32], &[f32]), features: &mut [f32]) {
        let mut sums = vec![0.0; self.columns];
        for (column, value) in columns.iter().zip(entries) {
            add_scaled(&mut sums, f64::from(*value), self.vectors.row(*column as usize));
        }
        for (feature, sum) in features.iter_mut().zip(sums) {
            *feature = sum as f32;
        }
    }
}

/// The right singular vectors of the `columns` largest singular values. Where the matrix has fewer, the rest is zero.
pub(super) fn right_factors(matrix: &SparseMatrix, columns: usize, seed: u64) -> RightFactors {
    let width = (columns + OVERSAMPLING).min(matrix.columns);
    let transposed = matrix.transposed();
    let mut basis = random_basis(matrix.columns, width, seed);
    let mut projected = Matrix::zeros(matrix.rows(), width);
    let mut image = Matrix::zeros(matrix.columns, width);
    for _ in 0..ITERATIONS {
        matrix.times(&basis, &mut projected);
        transposed.times(&projected, &mut image);
        let mut vectors = image.transposed();
        orthonormalise_rows(&mut vectors);
        basis = vectors.transposed();
    }
    matrix.times(&basis, &mut projected);
    transposed.times(&projected, &mut image);
    drop(projected);

    let (basis, image) = (basis.transposed(), image.transposed());
    let (squares, rotation) = symmetric_eigen(&inner_products(&basis, &image));
    let singular_values: Vec<f64> = squares
        .iter()
        .take(columns)
        .map(|square| square.max(0.0).sqrt())
        .collect();
    let held: f64 = singular_values.iter().map(|value| value * value).sum();
    let total: f64 = matrix.values.iter().map(|value| f64::from(*value).powi(2)).sum();
    // The sum of the squares of U S is that of the singular values.
    let entries = (matrix.rows() * columns) as f64;
    let scale = if held > 0.0 { (entries / held).sqrt() } else { 1.0 };
    let vectors = rotated(&basis, &rotation, columns, scale);
    RightFactors {
        columns,
        vectors,
        record: SvdRecord {
            columns,
            oversampling: OVERSAMPLING,
            iterations: ITERATIONS,
            seed,
            scale,
            explained: if total > 0.0 { (held / total).min(1.0) } else { 0.0 },
        },
    }
}

/// Standard normal numbers; row `i` depends only on the seed and `i`.
fn random_basis(rows: usize, columns: usize, seed: u64) -> Matrix {
    let mut basis = Matrix::zeros(rows, columns);
    for row in 0..rows {
        let mut rng = CounterRng::new(mix_words(&[seed, row as u64]));
        basis.row_mut(row).iter_mut().for_each(|value| *value = rng.normal());
    }
    basis
}

/// The symmetric matrix of inner products of two lists of vectors (rows), made exactly symmetric.
fn inner_products(left: &Matrix, right: &Matrix) -> Matrix {
    let size = left.rows;
    let mut products = Matrix::zeros(size, size);
    products.values.par_chunks_mut(size).enumerate().for_each(|(a, row)| {
        for (b, product) in row.iter_mut().enumerate() {
            *product = dot(left.row(a), right.row(b));
        }
    });
    for a in 0..size {
        for b in 0..a {
            let mean = 0.5 * (products.values[a * size + b] + products.values[b * size + a]);
            products.values[a * size + b] = mean;
            products.values[b * size + a] = mean;
        }
    }
    products
}

/// Turns the basis (rows are vectors) into singular vectors, fixes their signs and scales them. The result has one row per
/// column of X.
fn rotated(basis: &Matrix, rotation: &Matrix, columns: usize, scale: f64) -> Matrix {
    let mut vectors = Matrix::zeros(columns, basis.columns);
    vectors
        .values
        .par_chunks_mut(basis.columns)
        .enumerate()
        .take(rotation.rows)
        .for_each(|(index, vector)| {
            for (source, factor) in rotation.row(index).iter().enumerate() {
                add_scaled(vector, *factor, basis.row(source));
            }
            // A singular vector is known but for its sign: the entry of the largest size is made positive.
            let largest = vector.iter().fold(
                0.0f64,
                |largest, value| {
                    if value.abs() > largest.abs() { *value } else { largest }
                },
            );
            let factor = if largest < 0.0 { -scale } else { scale };
            vector.iter_mut().for_each(|value| *value *= factor);
        });
    vectors.transposed()
}

#[cfg(test)]
mod tests;
