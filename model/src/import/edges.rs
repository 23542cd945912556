//! Edges as a stream of (source, destination), from text or from arrays. A stream can be read again.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::ImportError;
use crate::npy::{ArrayReader, NpyError, Number};

/// Values that are read at a time.
const CHUNK: usize = 1 << 15;
/// A longer line is not one of two node ids.
const LONGEST_LINE: u64 = 1 << 12;

/// Where the edges of a data set are.
#[derive(Debug)]
pub(super) enum Edges {
    Text { path: PathBuf, compressed: bool },
    EdgeIndex { path: PathBuf },
    Csr { indptr: PathBuf, indices: PathBuf },
}

/// Finds the one representation of the edges that the folder has.
pub(super) fn find(folder: &Path) -> Result<Edges, ImportError> {
    const NAMES: [&str; 4] = ["edges.csv", "edges.csv.gz", "edge_index.npy", "indptr.npy"];
    let mut found = NAMES.into_iter().filter(|name| folder.join(name).is_file());
    let Some(name) = found.next() else {
        return Err(ImportError::Missing {
            folder: folder.to_owned(),
            wanted: "edges (edges.csv, edges.csv.gz, edge_index.npy, or indptr.npy with indices.npy)",
        });
    };
    if let Some(second) = found.next() {
        return Err(ImportError::Ambiguous {
            folder: folder.to_owned(),
            first: name,
            second,
        });
    }
    let path = folder.join(name);
    Ok(match name {
        "edges.csv" => Edges::Text {
            path,
            compressed: false,
        },
        "edges.csv.gz" => Edges::Text { path, compressed: true },
        "edge_index.npy" => Edges::EdgeIndex { path },
        _ => {
            let indices = folder.join("indices.npy");
            if !indices.is_file() {
                return Err(ImportError::Missing {
                    folder: folder.to_owned(),
                    wanted: "indices.npy beside indptr.npy",
                });
            }
            Edges::Csr { indptr: path, indices }
        }
    })
}

impl Edges {
    pub fn path(&self) -> &Path {
        match self {
            Edges::Text { path, .. } | Edges::EdgeIndex { path } => path,
            Edges::Csr { indptr, .. } => indptr,
        }
    }

    /// The name of the file, without its folder.
    pub fn name(&self) -> &str {
        self.path()
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    }

    /// Calls `visit` with source and destination of every edge, both below `nodes`, in the order of the file.
    pub fn scan(&self, nodes: u32, visit: impl FnMut(u32, u32)) -> Result<(), ImportError> {
        match self {
            Edges::Text { path, compressed } => {
                let file = BufReader::with_capacity(1 << 17, File::open(path).map_err(ImportError::io("open", path))?);
                if *compressed {
                    let unpacked = BufReader::with_capacity(1 << 17, MultiGzDecoder::new(file));
                    scan_text(unpacked, path, nodes, visit)
                } else {
                    scan_text(file, path, nodes, visit)
                }
            }
            Edges::EdgeIndex { path } => scan_edge_index(path, nodes, visit),
            Edges::Csr { indptr, indices } => scan_csr(indptr, indices, nodes, visit),
        }
    }
}

fn scan_text(
    mut text: impl BufRead,
    path: &Path,
    nodes: u32,
    mut visit: impl FnMut(u32, u32),
) -> Result<(), ImportError> {
    let mut line = Vec::new();
    let mut number = 0u64;
    let mut may_be_header = true;
    loop {
        line.clear();
        let length = text
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .map_err(ImportError::io("read", path))?;
        if length == 0 {
            return Ok(());
        }
        number += 1;
        let refuse = |value: String, problem: String| ImportError::Value {
            path: path.to_owned(),
            place: format!("line {number}"),
            value,
            problem,
        };
        if length as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
            return Err(refuse(
                format!("'{}...'", String::from_utf8_lossy(&line[..20])),
                format!("is longer than {LONGEST_LINE} bytes"),
            ));
        }
        let content = line.trim_ascii();
        if content.is_empty() || content[0] == b'#' {
            continue;
        }
        let mut fields = content
            .split(|byte| *byte == b',' || byte.is_ascii_whitespace())
            .filter(|field| !field.is_empty());
        let (Some(source), Some(destination), None) = (fields.next(), fields.next(), fields.next()) else {
            return Err(refuse(
                format!("'{}'", String::from_utf8_lossy(content)),
                "is not a source and a destination (weights and other columns are not read)".to_owned(),
            ));
        };
        if std::mem::take(&mut may_be_header) && !is_number(source) && !is_number(destination) {
            continue;
        }
        let node = |field: &[u8]| {
            parse_id(field)
                .filter(|id| *id < nodes)
                .ok_or_else(|| refuse(String::from_utf8_lossy(field).into_owned(), not_a_node(nodes)))
        };
        visit(node(source)?, node(destination)?);
    }
}

/// Digits only; a sign, a point or an exponent makes it no id.
fn parse_id(field: &[u8]) -> Option<u32> {
    if field.len() > 10 {
        return None;
    }
    let value = field.iter().try_fold(0u64, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0'))
    })?;
    u32::try_from(value).ok()
}

fn is_number(field: &[u8]) -> bool {
    std::str::from_utf8(field).is_ok_and(|field| field.parse::<f64>().is_ok())
}

fn not_a_node(nodes: u32) -> String {
    format!("is not a node; the graph has the nodes 0 to {}", nodes - 1)
}

/// One endpoint of edge `edge` as a node id.
fn node_of(path: &Path, edge: usize, number: Number, nodes: u32) -> Result<u32, ImportError> {
    use crate::npy::FromNumber;
    u32::from_number(number)
        .filter(|id| *id < nodes)
        .ok_or_else(|| ImportError::Value {
            path: path.to_owned(),
            place: format!("edge {edge}"),
            value: number.to_string(),
            problem: not_a_node(nodes),
        })
}

fn scan_edge_index(path: &Path, nodes: u32, mut visit: impl FnMut(u32, u32)) -> Result<(), ImportError> {
    let mut sources = ArrayReader::open(path)?;
    let mut destinations = ArrayReader::open(path)?;
    let &[2, edges] = sources.shape() else {
        return Err(wrong_shape(&sources, "[2, number of edges]").into());
    };
    destinations.skip(edges)?;
    let (mut from, mut to) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < edges {
        let most = CHUNK.min(edges - done);
        sources.read::<Number>(&mut from, most)?;
        destinations.read::<Number>(&mut to, most)?;
        for (index, (source, destination)) in from.iter().zip(&to).enumerate() {
            visit(
                node_of(path, done + index, *source, nodes)?,
                node_of(path, done + index, *destination, nodes)?,
            );
        }
        done += most;
    }
    Ok(())
}

fn scan_csr(indptr: &Path, indices: &Path, nodes: u32, mut visit: impl FnMut(u32, u32)) -> Result<(), ImportError> {
    let mut offsets = ArrayReader::open(indptr)?;
    if offsets.shape() != [nodes as usize + 1] {
        return Err(wrong_shape(
            &offsets,
            &format!("[{}], one more than there are nodes", u64::from(nodes) + 1),
        )
        .into());
    }
    let mut columns = ArrayReader::open(indices)?;
    let &[edges] = columns.shape() else {
        return Err(wrong_shape(&columns, "[number of edges]").into());
    };
    let refuse = |row: usize, value: u64, problem: String| ImportError::Value {
        path: indptr.to_owned(),
        place: format!("row {row}"),
        value: value.to_string(),
        problem,
    };
    let mut ends: Vec<u64> = Vec::new();
    let mut destinations: Vec<Number> = Vec::new();
    offsets.read(&mut ends, 1)?;
    if ends != [0] {
        return Err(refuse(
            0,
            ends.first().copied().unwrap_or(0),
            "is not 0, the first offset".to_owned(),
        ));
    }
    let mut before = 0u64;
    let mut source = 0u32;
    loop {
        offsets.read(&mut ends, CHUNK)?;
        if ends.is_empty() {
            break;
        }
        for &end in &ends {
            if end < before || end > edges as u64 {
                return Err(refuse(
                    source as usize + 1,
                    end,
                    format!("is not an offset from {before}, the one before, to {edges}, the length of indices.npy"),
                ));
            }
            // Rows may be long, so they are read in pieces too.
            let mut position = before as usize;
            while position < end as usize {
                columns.read(&mut destinations, CHUNK.min(end as usize - position))?;
                for (index, destination) in destinations.iter().enumerate() {
                    visit(source, node_of(indices, position + index, *destination, nodes)?);
                }
                position += destinations.len();
            }
            before = end;
            source += 1;
        }
    }
    if before != edges as u64 {
        return Err(refuse(
            nodes as usize,
            before,
            format!("is not {edges}, the length of indices.npy"),
        ));
    }
    Ok(())
}

fn wrong_shape<R: Read>(reader: &ArrayReader<R>, expected: &str) -> NpyError {
    NpyError::Shape {
        path: reader.path().to_owned(),
        found: reader.shape().to_vec(),
        expected: expected.to_owned(),
    }
}
