//! A partition that another program made.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::PartitionError;
use crate::book::PartId;
use crate::npy::ArrayReader;

/// The longest line of a text file: a part number and some white space.
const LONGEST_LINE: u64 = 64;
/// Values of an array that are read at a time.
const CHUNK: usize = 1 << 16;

/// Reads the part of every node from `path`: a one-dimensional `.npy` of whole numbers, or text with one part per line
/// as `gpmetis` writes it (`graph.part.4`).
///
/// # Errors
/// A number of rows that is not `nodes`, and a part that is not below `parts`, are refused with row and value.
pub fn assignment_from_file(path: &Path, nodes: u32, parts: PartId) -> Result<Vec<PartId>, PartitionError> {
    let mut rows = Rows {
        path,
        nodes,
        parts,
        assignment: Vec::with_capacity(nodes as usize),
    };
    if path.extension().is_some_and(|extension| extension == "npy") {
        rows.read_array()?;
    } else {
        rows.read_text()?;
    }
    if rows.assignment.len() != nodes as usize {
        return Err(PartitionError::AssignmentTooShort {
            path: path.to_owned(),
            rows: rows.assignment.len(),
            nodes,
        });
    }
    Ok(rows.assignment)
}

struct Rows<'a> {
    path: &'a Path,
    nodes: u32,
    parts: PartId,
    assignment: Vec<PartId>,
}

impl Rows<'_> {
    fn read_array(&mut self) -> Result<(), PartitionError> {
        let mut reader = ArrayReader::open(self.path)?;
        let shape = reader.shape();
        if shape.len() != 1 || shape[0] != self.nodes as usize {
            return Err(PartitionError::AssignmentShape {
                path: self.path.to_owned(),
                found: shape.to_vec(),
                nodes: self.nodes,
            });
        }
        let mut values: Vec<i64> = Vec::new();
        loop {
            reader.read(&mut values, CHUNK)?;
            if values.is_empty() {
                return Ok(());
            }
            for value in &values {
                self.push(usize::try_from(*value).ok(), || value.to_string())?;
            }
        }
    }

    fn read_text(&mut self) -> Result<(), PartitionError> {
        let unreadable = |source| PartitionError::ReadAssignment {
            path: self.path.to_owned(),
            source,
        };
        let mut reader = BufReader::new(File::open(self.path).map_err(unreadable)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            // One byte more than a line may have, so that a longer one shows.
            let read = reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line);
            if read.map_err(unreadable)? == 0 {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&line);
            let part = if line.len() as u64 > LONGEST_LINE {
                None
            } else {
                text.trim().parse().ok()
            };
            self.push(part, || text.trim().to_owned())?;
        }
    }

    fn push(&mut self, part: Option<usize>, value: impl FnOnce() -> String) -> Result<(), PartitionError> {
        let row = self.assignment.len();
        if row == self.nodes as usize {
            return Err(PartitionError::AssignmentTooLong {
                path: self.path.to_owned(),
                nodes: self.nodes,
            });
        }
        match part {
            Some(part) if part < usize::from(self.parts) => {
                self.assignment.push(part as PartId);
                Ok(())
            }
            _ => Err(PartitionError::PartInFile {
                path: self.path.to_owned(),
                row,
                value: value(),
                parts: self.parts,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::ArrayWriter;

    fn read_text(text: &str, nodes: u32, parts: PartId) -> Result<Vec<PartId>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.part.3");
        std::fs::write(&path, text).unwrap();
        assignment_from_file(&path, nodes, parts).map_err(|error| error.to_string())
    }

    #[test]
    fn text_and_arrays_say_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("parts.npy");
        let mut writer = ArrayWriter::<i32>::create(&path, &[4]).unwrap();
        writer.write(&[2, 0, 1, 2]).unwrap();
        writer.finish().unwrap();
        assert_eq!(assignment_from_file(&path, 4, 3).unwrap(), [2, 0, 1, 2]);
        assert_eq!(read_text("2\n0\n 1 \r\n2", 4, 3).unwrap(), [2, 0, 1, 2]);
    }

    #[test]
    fn a_wrong_part_is_refused_with_row_and_value() {
        for (text, row, value) in [
            ("0\n3\n", 1, "3"),
            ("-1\n0\n", 0, "-1"),
            ("0\nx\n", 1, "x"),
            ("0\n\n", 1, ""),
        ] {
            let message = read_text(text, 2, 3).unwrap_err();
            assert!(message.contains(&format!("row {row}")), "{message}");
            assert!(message.contains(&format!("\"{value}\"")), "{message}");
        }
        let endless = "1".repeat(10_000);
        assert!(read_text(&endless, 2, 3).unwrap_err().len() < 400);
    }

    #[test]
    fn a_wrong_length_is_refused() {
        for text in ["0\n", "0\n1\n2\n"] {
            let message = read_text(text, 2, 3).unwrap_err();
            assert!(message.contains("rows") && message.contains('2'), "{message}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("parts.npy");
        let mut writer = ArrayWriter::<i64>::create(&path, &[1, 2]).unwrap();
        writer.write(&[0, 0]).unwrap();
        writer.finish().unwrap();
        let refused = assignment_from_file(&path, 2, 3);
        assert!(
            matches!(refused, Err(PartitionError::AssignmentShape { .. })),
            "{refused:?}"
        );
    }
}
