//! The remote rows of an epoch without a file: for tests, benchmarks and small graphs.

use std::sync::Arc;

use crate::batch::{MiniBatch, RemoteRows};
use crate::policy::{RemoteTrace, TraceReadError};
use crate::rng::Purpose;

/// A [`RemoteTrace`] that is held in memory.
#[derive(Clone, Debug, Default)]
pub struct InMemoryTrace {
    steps: Vec<(Purpose, Arc<RemoteRows>)>,
}

impl InMemoryTrace {
    pub fn new(steps: impl IntoIterator<Item = (Purpose, RemoteRows)>) -> Self {
        Self {
            steps: steps
                .into_iter()
                .map(|(purpose, rows)| (purpose, Arc::new(rows)))
                .collect(),
        }
    }

    /// A trace of training steps alone.
    pub fn training(steps: impl IntoIterator<Item = RemoteRows>) -> Self {
        Self::new(steps.into_iter().map(|rows| (Purpose::Train, rows)))
    }

    /// The remote rows of batches in step order.
    pub fn from_batches<'a>(batches: impl IntoIterator<Item = &'a MiniBatch>) -> Self {
        Self::new(batches.into_iter().map(|batch| (batch.purpose, batch.remote.clone())))
    }
}

impl RemoteTrace for InMemoryTrace {
    fn steps(&self) -> u32 {
        self.steps.len() as u32
    }

    /// `step` must exist; training is what a step that does not is called.
    fn purpose(&self, step: u32) -> Purpose {
        self.steps
            .get(step as usize)
            .map_or(Purpose::Train, |(purpose, _)| *purpose)
    }

    fn remote_rows(&self, step: u32) -> Result<Arc<RemoteRows>, TraceReadError> {
        match self.steps.get(step as usize) {
            Some((_, rows)) => Ok(rows.clone()),
            None => Err(TraceReadError {
                step,
                reason: format!("the trace has {} steps", self.steps.len()),
            }),
        }
    }
}
