//! The folder of a comparison, in which it goes on after an interruption.
//!
//! | file | what |
//! |---|---|
//! | `design.json` | what is compared and how; another comparison is refused here |
//! | `runs/CELL/` | the folder of every run; with a `summary.json` it is finished and is not run again |
//! | `comparison.json` | all summaries with their cells, and the table |
//! | `comparison.csv` | the table |
//! | `report.html` | the table and plots as a page |

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::design::Cell;
use super::{CellRun, steps};
use crate::report::summary::{RunSummary, SummaryError};

const DESIGN: &str = "design.json";
const RUNS: &str = "runs";
const SUMMARY: &str = "summary.json";

/// Why the folder of a comparison cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{what} {} failed", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is not empty and holds no comparison; choose another folder with --out", path.display())]
    NotAComparison { path: PathBuf },
    #[error(
        "{} holds another comparison, which differs in {differences}; choose another folder with --out, or give the \
         arguments that it was begun with", path.display()
    )]
    AnotherComparison { path: PathBuf, differences: String },
    #[error("another comparison is running in {}; wait for its end", path.display())]
    InUse { path: PathBuf },
    #[error("{} cannot be read; remove its folder to run it again", path.display())]
    Summary { path: PathBuf, source: SummaryError },
    #[error("{} is not the summary of {cell}; remove its folder to run it again", path.display())]
    AnotherRun { path: PathBuf, cell: Box<Cell> },
    #[error("the comparison could not be written down")]
    Encode(#[from] serde_json::Error),
}

/// The folder of a comparison. While this lives, no other process compares in it.
#[derive(Debug)]
pub struct ComparisonFolder {
    path: PathBuf,
    /// The folder itself, locked.
    _lock: File,
}

impl ComparisonFolder {
    /// Makes the folder, or opens the one in which this comparison was begun. `description` is everything that its
    /// figures depend on.
    pub fn open(path: impl Into<PathBuf>, description: &impl Serialize) -> Result<Self, FolderError> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(failed("making", &path))?;
        let lock = File::open(&path).map_err(failed("opening", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(failed("locking", &path)(source)),
        }
        let folder = Self { path, _lock: lock };
        let asked = serde_json::to_value(description)?;
        let design = folder.path.join(DESIGN);
        match fs::read(&design) {
            Ok(text) => folder.check(&serde_json::from_slice(&text)?, &asked)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut entries = fs::read_dir(&folder.path).map_err(failed("reading", &folder.path))?;
                if entries.next().is_some() {
                    return Err(FolderError::NotAComparison { path: folder.path });
                }
                folder.write(DESIGN, &serde_json::to_string_pretty(&asked)?)?;
            }
            Err(error) => return Err(failed("reading", &design)(error)),
        }
        Ok(folder)
    }

    fn check(&self, found: &Value, asked: &Value) -> Result<(), FolderError> {
        let mut differences = Vec::new();
        collect_differences("", found, asked, &mut differences);
        if differences.is_empty() {
            return Ok(());
        }
        Err(FolderError::AnotherComparison {
            path: self.path.clone(),
            differences: differences.join(", "),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run_folder(&self, cell: &Cell) -> PathBuf {
        self.path.join(RUNS).join(cell.folder_name())
    }

    /// The result of the cell, if it has one. A run writes its summary last and whole.
    pub fn finished(&self, cell: &Cell) -> Result<Option<CellRun>, FolderError> {
        let path = self.run_folder(cell).join(SUMMARY);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("reading", &path)(error)),
        };
        let summary = match RunSummary::from_json(&text) {
            Ok(summary) => summary,
            Err(source) => return Err(FolderError::Summary { path, source }),
        };
        if summary.policy != cell.policy || summary.seed != cell.seed {
            let cell = Box::new(cell.clone());
            return Err(FolderError::AnotherRun { path, cell });
        }
        self.with_steps(cell, summary).map(Some)
    }

    /// Adds what the folder of a finished run says of its steps.
    pub fn with_steps(&self, cell: &Cell, summary: RunSummary) -> Result<CellRun, FolderError> {
        let folder = self.run_folder(cell);
        let step_times = steps::of_run(&folder).map_err(failed("reading the steps of", &folder))?;
        Ok(CellRun {
            cell: cell.clone(),
            step_times,
            bound: None,
            summary,
        })
    }

    /// Removes what an interrupted run of the cell has left.
    pub fn clear(&self, cell: &Cell) -> Result<(), FolderError> {
        let path = self.run_folder(cell);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Writes a file of the folder, whole or not at all.
    pub fn write(&self, name: &str, text: &str) -> Result<(), FolderError> {
        let path = self.path.join(name);
        let write = || -> io::Result<()> {
            // As open as the umask allows.
            let mut file = tempfile::Builder::new()
                .prefix(&format!(".{name}."))
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(&self.path)?;
            file.write_all(text.as_bytes())?;
            if !text.ends_with('\n') {
                file.write_all(b"\n")?;
            }
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(failed("writing", &path))
    }
}

/// The names whose values differ, with their places: `design.seed`.
fn collect_differences(place: &str, found: &Value, asked: &Value, differences: &mut Vec<String>) {
    let (Value::Object(found), Value::Object(asked)) = (found, asked) else {
        if found != asked {
            differences.push(place.to_owned());
        }
        return;
    };
    let names = found
        .keys()
        .chain(asked.keys().filter(|name| !found.contains_key(*name)));
    for name in names {
        let place = if place.is_empty() {
            name.clone()
        } else {
            format!("{place}.{name}")
        };
        let of = |values: &serde_json::Map<String, Value>| values.get(name).cloned().unwrap_or(Value::Null);
        collect_differences(&place, &of(found), &of(asked), differences);
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError + use<> {
    let path = path.to_owned();
    move |source| FolderError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_comparison_goes_on_and_another_is_refused_by_name() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("comparison");
        let description = json!({"design": {"seed": 1, "repeats": 5}, "lr": 0.003});
        drop(ComparisonFolder::open(&path, &description).unwrap());
        drop(ComparisonFolder::open(&path, &description).unwrap());
        let other = json!({"design": {"seed": 2, "repeats": 5}, "lr": 0.003, "hidden": 8});
        let error = ComparisonFolder::open(&path, &other).unwrap_err().to_string();
        assert!(error.contains("differs in design.seed, hidden;"), "{error}");
    }

    #[test]
    fn two_at_a_time_and_folders_of_others_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("comparison");
        let _first = ComparisonFolder::open(&path, &json!({})).unwrap();
        let second = ComparisonFolder::open(&path, &json!({}));
        assert!(matches!(second, Err(FolderError::InUse { .. })), "{second:?}");
        let theirs = scratch.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("thesis.tex"), "x").unwrap();
        let refused = ComparisonFolder::open(&theirs, &json!({}));
        assert!(
            matches!(refused, Err(FolderError::NotAComparison { .. })),
            "{refused:?}"
        );
    }
}
