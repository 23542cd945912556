//! The dense linear algebra that the randomized SVD needs: orthonormal columns, and the eigenvectors of a small
//! symmetric matrix. In f64; every sum has one fixed order, so results do not depend on the number of threads.

use rayon::prelude::*;

/// A dense matrix, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f64>,
}

impl Matrix {
    pub fn zeros(rows: usize, columns: usize) -> Self {
        Self {
            rows,
            columns,
            values: vec![0.0; rows * columns],
        }
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.values[row * self.columns..(row + 1) * self.columns]
    }

    pub fn transposed(&self) -> Self {
        let mut transposed = Self::zeros(self.columns, self.rows);
        // In tiles, so that both sides stay in the cache.
        const TILE: usize = 32;
        for first_row in (0..self.rows).step_by(TILE) {
            for first_column in (0..self.columns).step_by(TILE) {
                for row in first_row..self.rows.min(first_row + TILE) {
                    for column in first_column..self.columns.min(first_column + TILE) {
                        transposed.values[column * self.rows + row] = self.values[row * self.columns + column];
                    }
                }
            }
        }
        transposed
    }
}

/// The inner product, summed in eight lanes that are added up in one order.
pub(super) fn dot(left: &[f64], right: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (left_chunks, right_chunks) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let rest: f64 = left_chunks
        .remainder()
        .iter()
        .zip(right_chunks.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in left_chunks.zip(right_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// `target += factor * source`.
pub(super) fn add_scaled(target: &mut [f64], factor: f64, source: &[f64]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target += factor * source;
    }
}

/// Replaces the rows by orthonormal ones that span the same space; rows that depend on earlier ones become zero.
///
/// Modified Gram-Schmidt, twice (Giraud, Langou, Rozloznik 2005: twice is enough). Once a row is final it is taken out
/// of all later rows, each by itself, hence in parallel with the same result.
pub(super) fn orthonormalise_rows(vectors: &mut Matrix) {
    let columns = vectors.columns;
    for round in 0..2 {
        let before: Vec<f64> = vectors.values.chunks(columns).map(|row| dot(row, row).sqrt()).collect();
        for (index, before) in before.into_iter().enumerate() {
            let (done, later) = vectors.values.split_at_mut((index + 1) * columns);
            let row = &mut done[index * columns..];
            let norm = dot(row, row).sqrt();
            // What is left of a dependent row is rounding. In the second round rows have norm 1 or are zero.
            let dependent = norm <= before * f64::EPSILON * 64.0 || (round == 1 && norm < 0.5);
            let factor = if dependent || norm == 0.0 { 0.0 } else { 1.0 / norm };
            row.iter_mut().for_each(|value| *value *= factor);
            let row = &*row;
            if factor != 0.0 {
                later
                    .par_chunks_mut(columns)
                    .with_min_len(4)
                    .for_each(|other| add_scaled(other, -dot(row, other), row));
            }
        }
    }
}

/// Eigenvalues, descending, of a symmetric matrix, and its eigenvectors as the rows of a matrix.
///
/// Cyclic Jacobi (Golub and Van Loan, Matrix Computations, 4th ed., algorithm 8.5.3).
pub(super) fn symmetric_eigen(symmetric: &Matrix) -> (Vec<f64>, Matrix) {
    const SWEEPS: usize = 60;
    let size = symmetric.rows;
    let mut matrix = symmetric.clone();
    let mut vectors = Matrix::zeros(size, size);
    for index in 0..size {
        vectors.values[index * size + index] = 1.0;
    }
    let total = dot(&matrix.values, &matrix.values);
    for _ in 0..SWEEPS {
        let mut off_diagonal = 0.0;
        for p in 0..size {
            for q in p + 1..size {
                off_diagonal += matrix.values[p * size + q].powi(2);
            }
        }
        if off_diagonal <= total * f64::EPSILON * f64::EPSILON {
            break;
        }
        for p in 0..size {
            for q in p + 1..size {
                rotate(&mut matrix, &mut vectors, p, q);
            }
        }
    }
    let mut order: Vec<usize> = (0..size).collect();
    let value = |index: usize| matrix.values[index * size + index];
    order.sort_by(|a, b| value(*b).total_cmp(&value(*a)));
    let mut sorted = Matrix::zeros(size, size);
    for (rank, index) in order.iter().enumerate() {
        sorted.row_mut(rank).copy_from_slice(vectors.row(*index));
    }
    (order.into_iter().map(value).collect(), sorted)
}

/// Makes the entry (p, q) zero by a rotation in their plane; the rows of `vectors` turn with it.
fn rotate(matrix: &mut Matrix, vectors: &mut Matrix, p: usize, q: usize) {
    let size = matrix.columns;
    let (pp, pq, qq) = (
        matrix.values[p * size + p],
        matrix.values[p * size + q],
        matrix.values[q * size + q],
    );
    if pq == 0.0 {
        return;
    }
    let tau = (qq - pp) / (2.0 * pq);
    let tangent = tau.signum() / (tau.abs() + (1.0 + tau * tau).sqrt());
    let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
    let sine = tangent * cosine;
    // Columns first, then rows; the rows are contiguous.
    for row in matrix.values.chunks_exact_mut(size) {
        let (a, b) = (row[p], row[q]);
        row[p] = cosine * a - sine * b;
        row[q] = sine * a + cosine * b;
    }
    for target in [matrix, vectors] {
        let (head, tail) = target.values.split_at_mut(q * size);
        let (row_p, row_q) = (&mut head[p * size..(p + 1) * size], &mut tail[..size]);
        for (a, b) in row_p.iter_mut().zip(row_q) {
            (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::CounterRng;

    fn random(rows: usize, columns: usize, key: u64) -> Matrix {
        let mut rng = CounterRng::new(key);
        let mut matrix = Matrix::zeros(rows, columns);
        matrix.values.iter_mut().for_each(|value| *value = rng.normal());
        matrix
    }

    #[test]
    fn rows_become_orthonormal_and_dependent_ones_zero() {
        let mut vectors = random(6, 40, 1);
        // Row 3 depends on the first two, row 4 nearly on the first, row 5 is zero.
        let sum: Vec<f64> = vectors
            .row(0)
            .iter()
            .zip(vectors.row(1))
            .map(|(a, b)| a - 2.0 * b)
            .collect();
        vectors.row_mut(3).copy_from_slice(&sum);
        let first = vectors.row(0).to_vec();
        add_scaled(&mut vectors.row_mut(4)[..], -1.0, &[0.0; 40]);
        let near: Vec<f64> = vectors.row(4).iter().zip(&first).map(|(a, b)| a * 1e-9 + b).collect();
        vectors.row_mut(4).copy_from_slice(&near);
        vectors.row_mut(5).fill(0.0);
        orthonormalise_rows(&mut vectors);
        for a in 0..6 {
            for b in 0..6 {
                let expected = if a == b && a != 3 && a != 5 { 1.0 } else { 0.0 };
                let found = dot(vectors.row(a), vectors.row(b));
                assert!((found - expected).abs() < 1e-13, "rows {a} and {b}: {found}");
            }
        }
    }

    #[test]
    fn eigenvectors_rebuild_their_matrix() {
        for size in [1, 2, 7, 30] {
            let half = random(size, size, size as u64);
            let mut matrix = Matrix::zeros(size, size);
            for a in 0..size {
                for b in 0..size {
                    matrix.values[a * size + b] = half.values[a * size + b] + half.values[b * size + a];
                }
            }
            let (values, vectors) = symmetric_eigen(&matrix);
            assert!(values.is_sorted_by(|a, b| a >= b));
            for a in 0..size {
                for b in 0..size {
                    let rebuilt: f64 = (0..size)
                        .map(|k| values[k] * vectors.row(k)[a] * vectors.row(k)[b])
                        .sum();
                    let found = matrix.values[a * size + b];
                    assert!((rebuilt - found).abs() < 1e-12 * size as f64, "{rebuilt} {found}");
                }
            }
        }
    }

    #[test]
    fn a_known_spectrum_is_found() {
        // Eigenvalues 3 and 1 with eigenvectors (1, 1) and (1, -1); and a matrix that is diagonal already.
        let matrix = Matrix {
            rows: 2,
            columns: 2,
            values: vec![2.0, 1.0, 1.0, 2.0],
        };
        let (values, vectors) = symmetric_eigen(&matrix);
        assert!((values[0] - 3.0).abs() < 1e-15 && (values[1] - 1.0).abs() < 1e-15);
        assert!((vectors.row(0)[0] - vectors.row(0)[1]).abs() < 1e-15);
        let diagonal = Matrix {
            rows: 2,
            columns: 2,
            values: vec![1.0, 0.0, 0.0, 5.0],
        };
        assert_eq!(symmetric_eigen(&diagonal).0, [5.0, 1.0]);
    }

    #[test]
    fn transposing_twice_changes_nothing() {
        let matrix = random(45, 70, 3);
        let transposed = matrix.transposed();
        assert_eq!((transposed.rows, transposed.columns), (70, 45));
        assert_eq!(transposed.values[69 * 45 + 44], matrix.values[44 * 70 + 69]);
        assert_eq!(transposed.transposed(), matrix);
    }
}
