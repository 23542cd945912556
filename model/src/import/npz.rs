//! Reads the CSR matrix that `scipy.sparse.save_npz` wrote: a zip archive of `.npy` members, stored or deflated.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::read::ZipFile;
use zip::result::ZipError;

use super::ImportError;
use super::svd::SparseMatrix;
use crate::npy::{ArrayReader, FromNumber, NpyError};

/// An archive that is a CSR matrix by its `format` and `shape`; its values are still to be read.
#[derive(Debug)]
pub(super) struct CsrArchive {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
    pub rows: u64,
    pub columns: u64,
}

impl CsrArchive {
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let file = BufReader::new(File::open(path).map_err(ImportError::io("open", path))?);
        let mut archive = ZipArchive::new(file).map_err(|error| broken(path, &error.to_string()))?;
        check_format(path, &mut archive)?;
        let shape: Vec<u64> = read_member(path, &mut archive, "shape")?;
        let &[rows, columns] = shape.as_slice() else {
            return Err(broken(path, &format!("its shape has {} axes", shape.len())));
        };
        Ok(Self {
            path: path.to_owned(),
            archive,
            rows,
            columns,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks the matrix: offsets ascend, columns are in range, values are finite.
    pub fn read(mut self) -> Result<SparseMatrix, ImportError> {
        let path = &self.path;
        let Ok(columns) = u32::try_from(self.columns) else {
            return Err(broken(path, &format!("it has {} columns", self.columns)));
        };
        let offsets: Vec<u64> = read_member(path, &mut self.archive, "indptr")?;
        let indices: Vec<u32> = read_member(path, &mut self.archive, "indices")?;
        let values: Vec<f32> = read_member(path, &mut self.archive, "data")?;
        let refuse = |member: &str, row: usize, value: u64, problem: String| ImportError::Value {
            path: member_path(path, member),
            place: format!("row {row}"),
            value: value.to_string(),
            problem,
        };
        if values.len() != indices.len() {
            return Err(broken(
                path,
                &format!("data has {} values, indices {}", values.len(), indices.len()),
            ));
        }
        if offsets.len() as u64 != self.rows.saturating_add(1) {
            return Err(broken(
                path,
                &format!("indptr has {} values, the matrix {} rows", offsets.len(), self.rows),
            ));
        }
        let mut before = 0;
        for (row, offset) in offsets.iter().enumerate() {
            let expected = match row {
                0 => *offset == 0,
                _ => *offset >= before && *offset <= indices.len() as u64,
            };
            if !expected {
                return Err(refuse(
                    "indptr",
                    row,
                    *offset,
                    format!("is not an offset from {before}, the one before, to {}", indices.len()),
                ));
            }
            before = *offset;
        }
        if before != indices.len() as u64 {
            return Err(refuse(
                "indptr",
                offsets.len() - 1,
                before,
                format!("is not {}, the length of indices", indices.len()),
            ));
        }
        if let Some(position) = indices.iter().position(|column| *column >= columns) {
            return Err(refuse(
                "indices",
                position,
                u64::from(indices[position]),
                format!("is not a column; the matrix has {columns}"),
            ));
        }
        Ok(SparseMatrix {
            columns: columns as usize,
            offsets,
            indices,
            values,
        })
    }
}

fn broken(path: &Path, problem: &str) -> ImportError {
    ImportError::Archive {
        path: path.to_owned(),
        problem: problem.to_owned(),
    }
}

fn member_path(path: &Path, member: &str) -> PathBuf {
    path.join(format!("{member}.npy"))
}

fn member<'a>(
    path: &Path,
    archive: &'a mut ZipArchive<BufReader<File>>,
    name: &str,
) -> Result<ZipFile<'a, BufReader<File>>, ImportError> {
    archive.by_name(&format!("{name}.npy")).map_err(|error| match error {
        ZipError::FileNotFound => broken(path, &format!("it has no member {name}.npy")),
        other => broken(path, &other.to_string()),
    })
}

fn read_member<T: FromNumber>(
    path: &Path,
    archive: &mut ZipArchive<BufReader<File>>,
    name: &str,
) -> Result<Vec<T>, ImportError> {
    let member = BufReader::new(member(path, archive, name)?);
    let mut reader = ArrayReader::new(member, member_path(path, name))?;
    if reader.shape().len() != 1 {
        return Err(NpyError::Shape {
            path: reader.path().to_owned(),
            found: reader.shape().to_vec(),
            expected: "one axis".to_owned(),
        }
        .into());
    }
    let values = reader.read_all()?;
    reader.finish()?;
    Ok(values)
}

/// `format` is a text of three letters, of bytes or of 32-bit characters.
fn check_format(path: &Path, archive: &mut ZipArchive<BufReader<File>>) -> Result<(), ImportError> {
    let mut bytes = Vec::new();
    member(path, archive, "format")?
        .take(4096)
        .read_to_end(&mut bytes)
        .map_err(ImportError::io("read", &member_path(path, "format")))?;
    let data = bytes.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let letters: Vec<u8> = data.iter().copied().filter(|byte| *byte != 0).collect();
    if letters == b"csr" {
        return Ok(());
    }
    Err(broken(
        path,
        &format!(
            "its format is '{}'; save it with `scipy.sparse.save_npz(path, matrix.tocsr())`",
            String::from_utf8_lossy(&letters)
        ),
    ))
}
