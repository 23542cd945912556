//! Labels and splits: read, checked, and refused by file, row and value.

use std::path::{Path, PathBuf};

use super::ImportError;
use crate::npy::{ArrayReader, Dtype, NpyError, Number};

/// Values that are read at a time.
const CHUNK: usize = 1 << 15;
/// Marks a node without a label.
const UNLABELLED: i64 = -1;

/// The labels of all nodes.
#[derive(Debug)]
pub(super) struct Labels {
    pub path: PathBuf,
    /// The class of every node, -1 where it has none.
    pub values: Vec<i64>,
    pub classes: u32,
    pub labelled: u64,
}

/// The nodes of one split, ascending.
#[derive(Debug)]
pub(super) struct Split {
    pub name: &'static str,
    pub nodes: Vec<u32>,
}

/// Reads `node-label.npy`; without `declared` classes their number is the largest label plus one.
pub(super) fn read(folder: &Path, declared: Option<u32>) -> Result<Labels, ImportError> {
    let path = folder.join("node-label.npy");
    if !path.is_file() {
        return Err(ImportError::Missing {
            folder: folder.to_owned(),
            wanted: "node-label.npy",
        });
    }
    let mut reader = ArrayReader::open(&path)?;
    let rows = match *reader.shape() {
        [rows] | [rows, 1] => rows,
        _ => {
            return Err(NpyError::Shape {
                path,
                found: reader.shape().to_vec(),
                expected: "[nodes] or [nodes, 1]".to_owned(),
            }
            .into());
        }
    };
    super::node_count(&path, rows as u64)?;
    let mut values = Vec::with_capacity(rows);
    let mut chunk: Vec<Number> = Vec::new();
    let (mut labelled, mut largest) = (0u64, UNLABELLED);
    loop {
        reader.read(&mut chunk, CHUNK)?;
        if chunk.is_empty() {
            break;
        }
        for number in &chunk {
            let label = label_of(*number, declared).map_err(|problem| ImportError::Value {
                path: path.clone(),
                place: format!("row {}", values.len()),
                value: number.to_string(),
                problem,
            })?;
            labelled += u64::from(label != UNLABELLED);
            largest = largest.max(label);
            values.push(label);
        }
    }
    // Labels were found to be below 2^32 - 1, so the conversion cannot lose anything.
    let counted = (largest + 1) as u32;
    Ok(Labels {
        path,
        values,
        classes: declared.unwrap_or(counted),
        labelled,
    })
}

/// A label, or what is wrong with it.
fn label_of(number: Number, declared: Option<u32>) -> Result<i64, String> {
    let label = match number {
        Number::Unsigned(value) => i64::try_from(value).unwrap_or(i64::MAX),
        Number::Signed(value) => value,
        Number::Float(value) if value.is_nan() => UNLABELLED,
        Number::Float(value) if value.trunc() != value => {
            return Err("is not a label; labels are whole numbers, -1 or NaN where there is none".to_owned());
        }
        // Saturates, and so stays out of range.
        Number::Float(value) => value as i64,
    };
    if label < UNLABELLED {
        return Err("is not a label; only -1 and NaN stand for none".to_owned());
    }
    match declared {
        Some(classes) if label >= i64::from(classes) => {
            Err(format!("is not a label; there are {classes} classes, counted from 0"))
        }
        // Classes are counted in 32 bits.
        None if label >= i64::from(u32::MAX) => Err(format!("is not a label; labels are below {}", u32::MAX)),
        _ => Ok(label),
    }
}

/// Reads the three splits. A node may be in one of them, once.
pub(super) fn read_splits(folder: &Path, nodes: u32) -> Result<[Split; 3], ImportError> {
    // Per node the number of its split, counted from 1.
    let mut taken = vec![0u8; nodes as usize];
    let mut read = |name: &'static str, number: u8| read_split(folder, name, number, &mut taken);
    Ok([read("train", 1)?, read("valid", 2)?, read("test", 3)?])
}

fn read_split(folder: &Path, name: &'static str, number: u8, taken: &mut [u8]) -> Result<Split, ImportError> {
    let path = folder.join("split").join(format!("{name}.npy"));
    if !path.is_file() {
        return Err(ImportError::Missing {
            folder: folder.to_owned(),
            wanted: "split/train.npy, split/valid.npy and split/test.npy, all three",
        });
    }
    let mut reader = ArrayReader::open(&path)?;
    if reader.header().dtype == Dtype::Bool {
        return Err(NpyError::Dtype {
            path,
            found: "|b1".to_owned(),
            expected: "the ids of the nodes (save `numpy.flatnonzero(mask)`)".to_owned(),
        }
        .into());
    }
    if reader.shape().len() != 1 {
        return Err(NpyError::Shape {
            path,
            found: reader.shape().to_vec(),
            expected: "[nodes of the split]".to_owned(),
        }
        .into());
    }
    let mut nodes: Vec<u32> = Vec::new();
    let mut chunk: Vec<u32> = Vec::new();
    loop {
        reader.read(&mut chunk, CHUNK)?;
        if chunk.is_empty() {
            break;
        }
        for node in &chunk {
            let refuse = |problem: String| ImportError::Value {
                path: path.clone(),
                place: format!("row {}", nodes.len()),
                value: node.to_string(),
                problem,
            };
            match taken.get_mut(*node as usize) {
                Some(split) if *split == 0 => *split = number,
                Some(split) if *split == number => return Err(refuse("is in this split twice".to_owned())),
                Some(split) => {
                    let other = if *split == 1 { "train" } else { "valid" };
                    return Err(refuse(format!("is in split/{other}.npy already")));
                }
                None => {
                    return Err(refuse(format!(
                        "is not a node; the graph has the nodes 0 to {}",
                        taken.len().saturating_sub(1)
                    )));
                }
            }
            nodes.push(*node);
        }
    }
    nodes.sort_unstable();
    Ok(Split { name, nodes })
}
