//! Features: dense ones pass as they are, wide sparse ones are reduced, narrow sparse ones are written out.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::npz::CsrArchive;
use super::svd::{self, SparseMatrix, SvdRecord};
use super::{ImportError, ImportOptions};
use crate::npy::{ArrayReader, FileRecord, NpyError};
use crate::store::FolderWriter;

/// Values that are held at a time while features are written.
const CHUNK: usize = 1 << 18;

/// What became of the features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureRecord {
    /// Name of the file that they came from.
    pub file: String,
    /// Columns as they were given.
    pub given_columns: u64,
    /// Columns as they are stored.
    pub columns: usize,
    /// How they were reduced, if they were.
    pub svd: Option<SvdRecord>,
}

/// The features of a data set, opened.
#[derive(Debug)]
pub(super) enum Features {
    Dense {
        reader: ArrayReader<BufReader<File>>,
        rows: usize,
        columns: usize,
    },
    Sparse(Box<CsrArchive>),
}

const DENSE: &str = "node-feat.npy";
const SPARSE: &str = "node-feat-csr.npz";

pub(super) fn open(folder: &Path) -> Result<Features, ImportError> {
    let dense = folder.join(DENSE);
    let sparse = folder.join(SPARSE);
    match (dense.is_file(), sparse.is_file()) {
        (true, true) => Err(ImportError::Ambiguous {
            folder: folder.to_owned(),
            first: DENSE,
            second: SPARSE,
        }),
        (false, false) => Err(ImportError::Missing {
            folder: folder.to_owned(),
            wanted: "features (node-feat.npy or node-feat-csr.npz)",
        }),
        (true, false) => open_dense(dense),
        (false, true) => {
            let archive = CsrArchive::open(&sparse)?;
            if archive.columns == 0 {
                return Err(ImportError::Archive {
                    path: sparse,
                    problem: "it has no columns".to_owned(),
                });
            }
            Ok(Features::Sparse(Box::new(archive)))
        }
    }
}

fn open_dense(path: PathBuf) -> Result<Features, ImportError> {
    let reader = ArrayReader::open(&path)?;
    match *reader.shape() {
        [rows, columns] if columns > 0 => Ok(Features::Dense { reader, rows, columns }),
        _ => Err(NpyError::Shape {
            path,
            found: reader.shape().to_vec(),
            expected: "[nodes, columns], with at least one column".to_owned(),
        }
        .into()),
    }
}

impl Features {
    pub fn path(&self) -> &Path {
        match self {
            Features::Dense { reader, .. } => reader.path(),
            Features::Sparse(archive) => archive.path(),
        }
    }

    pub fn rows(&self) -> u64 {
        match self {
            Features::Dense { rows, .. } => *rows as u64,
            Features::Sparse(archive) => archive.rows,
        }
    }

    /// Writes `feat.npy`.
    pub fn write(
        self,
        writer: &mut FolderWriter,
        options: &ImportOptions,
    ) -> Result<(FileRecord, FeatureRecord), ImportError> {
        match self {
            Features::Dense { reader, rows, columns } => {
                let file = write_dense(reader, rows, columns, writer)?;
                let record = FeatureRecord {
                    file: DENSE.to_owned(),
                    given_columns: columns as u64,
                    columns,
                    svd: None,
                };
                Ok((file, record))
            }
            Features::Sparse(archive) => {
                let matrix = archive.read()?;
                let given_columns = matrix.columns as u64;
                let (file, columns, svd) = if matrix.columns > options.svd {
                    let factors = svd::right_factors(&matrix, options.svd, options.seed);
                    let file = write_reduced(&matrix, &factors, writer)?;
                    (file, options.svd, Some(factors.record))
                } else {
                    (write_spread(&matrix, writer)?, matrix.columns, None)
                };
                let record = FeatureRecord {
                    file: SPARSE.to_owned(),
                    given_columns,
                    columns,
                    svd,
                };
                Ok((file, record))
            }
        }
    }
}

fn write_dense(
    mut reader: ArrayReader<BufReader<File>>,
    rows: usize,
    columns: usize,
    writer: &mut FolderWriter,
) -> Result<FileRecord, ImportError> {
    let mut array = writer.array::<f32>("feat.npy", &[rows, columns])?;
    let mut values = Vec::new();
    loop {
        reader.read(&mut values, CHUNK)?;
        if values.is_empty() {
            return Ok(array.finish()?);
        }
        array.write(&values)?;
    }
}

/// Writes the product of the matrix and the factors, some rows at a time; rows in parallel.
fn write_reduced(
    matrix: &SparseMatrix,
    factors: &svd::RightFactors,
    writer: &mut FolderWriter,
) -> Result<FileRecord, ImportError> {
    write_rows(matrix.rows(), factors.columns, writer, |row, values| {
        factors.project(matrix.row(row), values);
    })
}

/// Writes a sparse matrix as a dense one.
fn write_spread(matrix: &SparseMatrix, writer: &mut FolderWriter) -> Result<FileRecord, ImportError> {
    write_rows(matrix.rows(), matrix.columns, writer, |row, values| {
        let (indices, entries) = matrix.row(row);
        for (column, value) in indices.iter().zip(entries) {
            values[*column as usize] += value;
        }
    })
}

/// Writes `feat.npy` row by row; `fill` gets a row number and the row, which starts as zeros.
fn write_rows(
    rows: usize,
    columns: usize,
    writer: &mut FolderWriter,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<FileRecord, ImportError> {
    let mut array = writer.array::<f32>("feat.npy", &[rows, columns])?;
    let step = (CHUNK / columns).max(1);
    let mut values = Vec::new();
    for start in (0..rows).step_by(step) {
        let end = rows.min(start + step);
        values.clear();
        values.resize((end - start) * columns, 0.0);
        values
            .par_chunks_mut(columns)
            .enumerate()
            .for_each(|(index, row)| fill(start + index, row));
        array.write(&values)?;
    }
    Ok(array.finish()?)
}
