//! Results that are there as a whole or not at all.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a file of results could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path} cannot be written: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not {what}: {source}")]
    Parse {
        path: PathBuf,
        what: &'static str,
        source: serde_json::Error,
    },
}

/// Writes `value` as JSON to a temporary name beside `path`, syncs it and renames it.
///
/// # Errors
/// [`FileError::Write`]; what was at `path` before is still there then.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let failed = |source| FileError::Write {
        path: path.to_owned(),
        source,
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let written = (|| {
        let mut text = serde_json::to_vec_pretty(value)?;
        text.push(b'\n');
        let mut file = File::create(&partial)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    })();
    if written.is_err() {
        // The error is that of the writing; what is left over is only in the way.
        let _ = std::fs::remove_file(&partial);
    }
    written.map_err(failed)
}

/// Reads JSON that is `what`, such as "a calibration".
///
/// # Errors
/// [`FileError::Read`] and [`FileError::Parse`].
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, FileError> {
    let bytes = std::fs::read(path).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|source| FileError::Parse {
        path: path.to_owned(),
        what,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        write_json(&path, &[1, 2]).unwrap();
        write_json(&path, &[3]).unwrap();
        assert_eq!(read_json::<Vec<u32>>(&path, "numbers").unwrap(), [3]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        let missing = read_json::<Vec<u32>>(&path, "numbers").unwrap_err().to_string();
        assert!(missing.contains("numbers.json cannot be read"), "{missing}");
        std::fs::write(&path, "{").unwrap();
        let damaged = read_json::<Vec<u32>>(&path, "numbers").unwrap_err().to_string();
        assert!(damaged.contains("numbers.json is not numbers"), "{damaged}");
        let nowhere = folder.path().join("no-folder").join("numbers.json");
        assert!(matches!(write_json(&nowhere, &[1]), Err(FileError::Write { .. })));
    }
}
