//! A trace that is held in memory, for tests, benchmarks and tools.

use std::sync::Arc;

use super::{RemoteTrace, TraceReadError};
use crate::batch::{MiniBatch, OwnerRows, RemoteRows};
use crate::book::{NodeId, PartitionBook};
use crate::rng::Purpose;

/// The remote rows of every step, in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryTrace {
    steps: Vec<(Purpose, Arc<RemoteRows>)>,
}

impl MemoryTrace {
    /// A trace of these steps.
    pub fn new(steps: impl IntoIterator<Item = (Purpose, RemoteRows)>) -> Self {
        Self {
            steps: steps
                .into_iter()
                .map(|(purpose, rows)| (purpose, Arc::new(rows)))
                .collect(),
        }
    }

    /// The remote rows of batches in step order.
    pub fn from_batches<'a>(batches: impl IntoIterator<Item = &'a MiniBatch>) -> Self {
        Self::new(batches.into_iter().map(|batch| (batch.purpose, batch.remote.clone())))
    }

    /// A trace of these steps, each given by the global ids of its remote rows: below `book.nodes()`, in ascending order,
    /// each once.
    pub fn from_nodes<'a>(book: &PartitionBook, steps: impl IntoIterator<Item = (Purpose, &'a [NodeId])>) -> Self {
        Self::new(
            steps
                .into_iter()
                .map(|(purpose, nodes)| (purpose, remote_rows(book, nodes))),
        )
    }

    /// This trace and after it the first `steps` steps of `other`, whose rows are shared and not copied.
    #[must_use]
    pub fn followed_by(&self, other: &Self, steps: u32) -> Self {
        let others = other.steps.iter().take(steps as usize);
        Self {
            steps: self.steps.iter().chain(others).cloned().collect(),
        }
    }
}

fn remote_rows(book: &PartitionBook, nodes: &[NodeId]) -> RemoteRows {
    let mut owners: Vec<OwnerRows> = Vec::new();
    for node in nodes {
        let home = book.row_home(*node);
        match owners.last_mut().filter(|owned| owned.owner == home.owner) {
            Some(owned) => owned.rows.push(home.row),
            None => owners.push(OwnerRows {
                owner: home.owner,
                rows: vec![home.row],
            }),
        }
    }
    RemoteRows { owners }
}

impl RemoteTrace for MemoryTrace {
    fn steps(&self) -> u32 {
        self.steps.len() as u32
    }

    fn purpose(&self, step: u32) -> Purpose {
        self.steps
            .get(step as usize)
            .map_or(Purpose::Train, |(purpose, _)| *purpose)
    }

    fn remote_rows(&self, step: u32) -> Result<Arc<RemoteRows>, TraceReadError> {
        match self.steps.get(step as usize) {
            Some((_, rows)) => Ok(Arc::clone(rows)),
            None => Err(TraceReadError {
                step,
                reason: format!("the trace has {} steps", self.steps.len()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_goes_on_with_the_first_steps_of_another() {
        let book = PartitionBook::new(vec![0, 1, 4]).unwrap();
        let steps: [(Purpose, &[NodeId]); 2] = [(Purpose::Valid, &[1, 3]), (Purpose::Test, &[2])];
        let evaluation = MemoryTrace::from_nodes(&book, steps);
        let training = MemoryTrace::from_nodes(&book, [(Purpose::Train, &[3][..])]);
        let epoch = training.followed_by(&evaluation, 1);
        assert_eq!(
            (epoch.steps(), epoch.purpose(0), epoch.purpose(1)),
            (2, Purpose::Train, Purpose::Valid)
        );
        assert_eq!(epoch.remote_rows(1), evaluation.remote_rows(0));
        assert_eq!(training.followed_by(&evaluation, 9).steps(), 3);
    }
}
