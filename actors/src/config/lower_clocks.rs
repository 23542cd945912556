//! Whose clocks a run lowers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a person asked for: `auto`, or UUIDs with commas between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LowerClocks {
    /// Those of the GPUs on which the ranks of a machine train.
    Auto,
    /// Those of the GPUs with these UUIDs, each by the machine whose computer has it.
    Named(Vec<String>),
}

/// A text that names no GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerClocksError {
    #[error(
        "lower-clocks must be `auto` or UUIDs of GPUs (GPU-.., see nvidia-smi -L) with commas between them, found `{0}`"
    )]
    NotUuids(String),
    #[error(
        "lower-clocks names {0}, an instance of a split GPU (MIG), whose clocks are those of the whole board and are left alone"
    )]
    Instance(String),
}

impl FromStr for LowerClocks {
    type Err = LowerClocksError;

    fn from_str(text: &str) -> Result<Self, LowerClocksError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let uuids: Vec<&str> = text.split(',').map(str::trim).collect();
        if let Some(instance) = uuids.iter().find(|uuid| uuid.starts_with("MIG-")) {
            return Err(LowerClocksError::Instance((*instance).to_owned()));
        }
        // NVML and CUDA number GPUs differently, so that a number names none.
        if uuids.iter().any(|uuid| !uuid.starts_with("GPU-")) {
            return Err(LowerClocksError::NotUuids(text.to_owned()));
        }
        Ok(Self::Named(uuids.into_iter().map(str::to_owned).collect()))
    }
}

impl fmt::Display for LowerClocks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Named(uuids) => out.write_str(&uuids.join(",")),
        }
    }
}

impl TryFrom<String> for LowerClocks {
    type Error = LowerClocksError;

    fn try_from(text: String) -> Result<Self, LowerClocksError> {
        text.parse()
    }
}

impl From<LowerClocks> for String {
    fn from(clocks: LowerClocks) -> Self {
        clocks.to_string()
    }
}
