use super::*;

/// A matrix of random sparse rows.
fn random_sparse(rows: usize, columns: usize, per_row: u32, key: u64) -> SparseMatrix {
    let mut rng = CounterRng::new(key);
    let mut matrix = SparseMatrix {
        columns,
        offsets: vec![0],
        indices: Vec::new(),
        values: Vec::new(),
    };
    for _ in 0..rows {
        for _ in 0..rng.below(2 * per_row + 1) {
            matrix.indices.push(rng.below(columns as u32));
            matrix.values.push(rng.normal() as f32);
        }
        matrix.offsets.push(matrix.indices.len() as u64);
    }
    matrix
}

fn from_dense(dense: &Matrix) -> SparseMatrix {
    let mut matrix = SparseMatrix {
        columns: dense.columns,
        offsets: vec![0],
        indices: Vec::new(),
        values: Vec::new(),
    };
    for row in 0..dense.rows {
        for (column, value) in dense.row(row).iter().enumerate() {
            if *value != 0.0 {
                matrix.indices.push(column as u32);
                matrix.values.push(*value as f32);
            }
        }
        matrix.offsets.push(matrix.indices.len() as u64);
    }
    matrix
}

fn to_dense(matrix: &SparseMatrix) -> Matrix {
    let mut dense = Matrix::zeros(matrix.rows(), matrix.columns);
    for row in 0..matrix.rows() {
        let (columns, entries) = matrix.row(row);
        for (column, value) in columns.iter().zip(entries) {
            dense.row_mut(row)[*column as usize] += f64::from(*value);
        }
    }
    dense
}

/// All features, one row per row of the matrix.
fn features(matrix: &SparseMatrix, factors: &RightFactors) -> Vec<Vec<f32>> {
    (0..matrix.rows())
        .map(|row| {
            let mut features = vec![0.0; factors.columns];
            factors.project(matrix.row(row), &mut features);
            features
        })
        .collect()
}

/// The norms of the feature columns with the scale taken out, which are the singular values.
fn singular_values(features: &[Vec<f32>], factors: &RightFactors) -> Vec<f64> {
    (0..factors.columns)
        .map(|column| {
            let squares: f64 = features.iter().map(|row| f64::from(row[column]).powi(2)).sum();
            squares.sqrt() / factors.record.scale
        })
        .collect()
}

/// Orthonormal rows.
fn orthonormal(rows: usize, columns: usize, key: u64) -> Matrix {
    let mut matrix = Matrix::zeros(rows, columns);
    let mut rng = CounterRng::new(key);
    matrix.values.iter_mut().for_each(|value| *value = rng.normal());
    orthonormalise_rows(&mut matrix);
    matrix
}

#[test]
fn a_matrix_of_known_singular_values_is_taken_apart() {
    let (rows, columns, wanted) = (60, 50, 5);
    let known: Vec<f64> = (0..40).map(|index| 10.0 * 0.7f64.powi(index)).collect();
    let left = orthonormal(known.len(), rows, 1);
    let right = orthonormal(known.len(), columns, 2);
    let mut dense = Matrix::zeros(rows, columns);
    for (index, value) in known.iter().enumerate() {
        for row in 0..rows {
            add_scaled(dense.row_mut(row), value * left.row(index)[row], right.row(index));
        }
    }
    let matrix = from_dense(&dense);
    let factors = right_factors(&matrix, wanted, 3);
    let features = features(&matrix, &factors);
    for (found, expected) in singular_values(&features, &factors).iter().zip(&known) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found}, expected {expected}");
    }
    // U S with the scale, up to the sign of each column.
    for index in 0..wanted {
        let expected: Vec<f64> = left
            .row(index)
            .iter()
            .map(|value| value * known[index] * factors.record.scale)
            .collect();
        let found: Vec<f64> = features.iter().map(|row| f64::from(row[index])).collect();
        let sign = dot(&expected, &found).signum();
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - sign * expected).abs() < 1e-4, "{found}, expected {expected}");
        }
    }
    // What is left after five components: the sum of the squares of the other singular values.
    let all: f64 = known.iter().map(|value| value * value).sum();
    let held: f64 = known.iter().take(wanted).map(|value| value * value).sum();
    assert!((factors.record.explained - held / all).abs() < 1e-6);
}

#[test]
fn on_a_flat_spectrum_the_error_is_close_to_the_smallest_possible() {
    let matrix = random_sparse(300, 120, 6, 11);
    let wanted = 20;
    let factors = right_factors(&matrix, wanted, 1);
    let features = features(&matrix, &factors);
    // The exact squared singular values: eigenvalues of X'X.
    let by_column = to_dense(&matrix).transposed();
    let (exact, _) = symmetric_eigen(&inner_products(&by_column, &by_column));
    let best: f64 = exact.iter().skip(wanted).sum();
    let held: f64 = singular_values(&features, &factors)
        .iter()
        .map(|value| value * value)
        .sum();
    let left: f64 = exact.iter().sum::<f64>() - held;
    assert!(left >= best * (1.0 - 1e-6), "{left} is below the optimum {best}");
    assert!(left <= best * 1.02, "{left} is far from the optimum {best}");
}

#[test]
fn the_mean_square_of_the_features_is_one() {
    let matrix = random_sparse(200, 90, 5, 5);
    let factors = right_factors(&matrix, 8, 1);
    let features = features(&matrix, &factors);
    let mean = features
        .iter()
        .flatten()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        / (200.0 * 8.0);
    assert!((mean - 1.0).abs() < 1e-6, "{mean}");
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    let matrix = random_sparse(700, 300, 8, 21);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| right_factors(&matrix, 24, 9))
    };
    let one = run(1);
    for threads in [2, 5] {
        let more = run(threads);
        assert_eq!(one.record, more.record);
        let same = one
            .vectors
            .values
            .iter()
            .zip(&more.vectors.values)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{threads} threads");
    }
}

#[test]
fn the_seed_matters_little_and_signs_are_fixed() {
    let mut matrix = random_sparse(200, 80, 6, 31);
    // A clear spectrum: columns of very different size.
    for (column, value) in matrix.indices.iter().zip(&mut matrix.values) {
        *value *= 0.6f32.powi(*column as i32);
    }
    let [first, second] = [1, 2].map(|seed| features(&matrix, &right_factors(&matrix, 4, seed)));
    for (a, b) in first.iter().flatten().zip(second.iter().flatten()) {
        assert!((a - b).abs() < 1e-3, "{a} and {b}");
    }
}

#[test]
fn missing_rank_becomes_zero_columns() {
    // Rank 2 in 40 columns, asked for 6; and a matrix without a value.
    let dense = Matrix {
        rows: 3,
        columns: 40,
        values: (0..120)
            .map(|index| if index < 80 { f64::from(index % 7) } else { 0.0 })
            .collect(),
    };
    let matrix = from_dense(&dense);
    let factors = right_factors(&matrix, 6, 1);
    let reduced = features(&matrix, &factors);
    assert!(reduced.iter().flatten().all(|value| value.is_finite()));
    let values = singular_values(&reduced, &factors);
    assert!(
        values[1] > 1.0 && values[2..].iter().all(|value| *value < 1e-5),
        "{values:?}"
    );
    assert!((factors.record.explained - 1.0).abs() < 1e-9);

    let empty = SparseMatrix {
        columns: 40,
        offsets: vec![0; 4],
        indices: Vec::new(),
        values: Vec::new(),
    };
    let factors = right_factors(&empty, 6, 1);
    assert_eq!((factors.record.scale, factors.record.explained), (1.0, 0.0));
    assert!(features(&empty, &factors).iter().flatten().all(|value| *value == 0.0));
}

#[test]
fn a_transpose_has_the_same_entries_and_ascending_columns() {
    let matrix = random_sparse(30, 17, 4, 41);
    let transposed = matrix.transposed();
    assert_eq!(to_dense(&transposed), to_dense(&matrix).transposed());
    for row in 0..transposed.rows() {
        assert!(transposed.row(row).0.is_sorted());
    }
}
