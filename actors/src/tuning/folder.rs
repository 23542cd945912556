//! The folder with what was measured and chosen for a graph: `tuning` in the folder of its parts, unless another is named.
//!
//! | file | what |
//! |---|---|
//! | `profile.json` | what requests and rows cost, from `greengnn probe` or `tune` |
//! | `calibration.json` | what the order of windows was corrected by, from `greengnn tune --calibrate` |
//! | `choice.json` | the last choice, and from what |
//! | `evaluation.json` | the candidates that `greengnn tune --evaluate` has run |

use std::path::{Path, PathBuf};

use greengnn_energy::calibration::{Calibration, CalibrationError};
use greengnn_energy::probing::ProbePlan;
use greengnn_energy::profile::{Profile, ProfileError};

use crate::work::Known;

const FOLDER: &str = "tuning";
const PROFILE: &str = "profile.json";
const CALIBRATION: &str = "calibration.json";
const CHOICE: &str = "choice.json";
const EVALUATION: &str = "evaluation.json";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TuningFolderError {
    #[error("the folder {path} cannot be made: {source}; name another with --tuning")]
    Make { path: PathBuf, source: std::io::Error },
    #[error("the old calibration {path} cannot be removed: {source}")]
    Remove { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
}

/// Names the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningFolder {
    path: PathBuf,
}

impl TuningFolder {
    /// The folder that was named, or that of the parts.
    pub fn new(named: Option<&Path>, parts: &Path) -> Self {
        Self {
            path: named.map_or_else(|| parts.join(FOLDER), Path::to_owned),
        }
    }

    /// Makes it, if it is not there.
    ///
    /// # Errors
    /// [`TuningFolderError::Make`].
    pub fn make(&self) -> Result<(), TuningFolderError> {
        std::fs::create_dir_all(&self.path).map_err(|source| TuningFolderError::Make {
            path: self.path.clone(),
            source,
        })
    }

    /// What is known, whatever hardware it is of, and how to find out what is not.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub fn known(&self, probe: ProbePlan) -> Result<Known, TuningFolderError> {
        let (profile, calibration) = (self.profile_path(), self.calibration_path());
        Ok(Known {
            profile: profile
                .exists()
                .then(|| Profile::read(&profile))
                .transpose()?
                .map(Box::new),
            calibration: calibration
                .exists()
                .then(|| Calibration::read(&calibration))
                .transpose()?
                .map(Box::new),
            probe,
        })
    }

    /// Removes the calibration, if there is one.
    ///
    /// # Errors
    /// [`TuningFolderError::Remove`].
    pub fn forget_calibration(&self) -> Result<(), TuningFolderError> {
        let path = self.calibration_path();
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(TuningFolderError::Remove { path, source })
            }
            _ => Ok(()),
        }
    }

    pub fn profile_path(&self) -> PathBuf {
        self.path.join(PROFILE)
    }

    pub fn calibration_path(&self) -> PathBuf {
        self.path.join(CALIBRATION)
    }

    pub fn choice_path(&self) -> PathBuf {
        self.path.join(CHOICE)
    }

    pub fn evaluation_path(&self) -> PathBuf {
        self.path.join(EVALUATION)
    }
}
