//! The folder of `--keep-trace`. It holds the traces of one run: files of two runs in one folder would have the same names,
//! and whoever reads them together would price a run that never was.

use std::path::{Path, PathBuf};

/// Folder of the trace of validation and test, beside those of the epochs.
pub const EVALUATION: &str = "evaluation";
const EPOCH: &str = "epoch-";

/// Folder of the traces of an epoch.
pub fn epoch(epoch: u32) -> String {
    format!("{EPOCH}{epoch}")
}

/// Why a run may not keep its traces there.
#[derive(Debug, thiserror::Error)]
pub enum KeepTraceError {
    #[error(
        "{found} is of another run, and a folder keeps the traces of one run alone; give --keep-trace another folder, \
         or remove it"
    )]
    Taken { found: PathBuf },
    #[error("traces cannot be kept in {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
}

/// Refuses a folder that has traces. It need not exist, and may hold other things.
///
/// # Errors
/// See [`KeepTraceError`].
pub fn check_free(folder: &Path) -> Result<(), KeepTraceError> {
    let failed = |source| KeepTraceError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_epoch = name
            .strip_prefix(EPOCH)
            .is_some_and(|number| number.parse::<u32>().is_ok());
        if is_epoch || name == EVALUATION {
            return Err(KeepTraceError::Taken { found: entry.path() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_without_traces_is_free() {
        let folder = tempfile::tempdir().unwrap();
        check_free(&folder.path().join("missing")).unwrap();
        std::fs::write(folder.path().join("notes"), "").unwrap();
        std::fs::create_dir(folder.path().join("epoch-of-heroes")).unwrap();
        check_free(folder.path()).unwrap();
        for name in [epoch(12), EVALUATION.to_owned()] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let error = check_free(folder.path()).unwrap_err();
            assert!(
                matches!(&error, KeepTraceError::Taken { found } if *found == path),
                "{error}"
            );
            std::fs::remove_dir(&path).unwrap();
        }
        let error = check_free(&folder.path().join("notes")).unwrap_err();
        assert!(matches!(error, KeepTraceError::Read { .. }), "{error}");
    }
}
