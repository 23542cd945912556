//! The assembly of one batch: finds every feature row of its nodes, wherever the plan put it, and makes the input of the
//! first layer.

use std::sync::{Arc, Mutex, PoisonError};

use greengnn_model::assemble::{FeatureRows, InputBuffers, StoredRow, StoredRows, assemble_input};
use greengnn_model::batch::{Block, MiniBatch};
use greengnn_model::book::Rank;
use greengnn_model::layers::{AssembledBatch, BatchInput};
use greengnn_model::plan::{BatchPlan, Place};
use greengnn_model::row_type::RowType;
use greengnn_model::rows::RowBook;
use greengnn_model::store::PartStore;

use crate::arena::RowArena;
use crate::prefetcher::PrefetchError;
use crate::presampler::EpochTrace;

/// Everything that the assembly of one batch needs, on a thread of its own.
pub(crate) struct Assembly {
    pub rank: Rank,
    pub rows: Arc<RowBook>,
    pub part: Arc<PartStore>,
    pub arena: Arc<RowArena>,
    pub direct: Arc<RowArena>,
    pub trace: Arc<EpochTrace>,
    pub width: usize,
    pub row_type: RowType,
    pub preaggregate: bool,
    pub verify: bool,
    pub buffers: Arc<Mutex<InputBuffers>>,
}

impl Assembly {
    /// Assembles the batch that `plan` is for, and gives the plan back.
    pub fn run(self, plan: BatchPlan) -> Result<(AssembledBatch, BatchPlan), PrefetchError> {
        let (rank, step) = (self.rank, plan.step);
        let batch = self
            .trace
            .batch(step)
            .map_err(|source| PrefetchError::Trace { rank, step, source })?;
        let empty = Block {
            offsets: vec![0],
            ..Block::default()
        };
        let outermost = batch.blocks.last().unwrap_or(&empty);
        let input = self.input(&batch, outermost, &plan)?;
        let first = self.part.topology().first;
        let labels = self.part.labels();
        let labels = batch
            .seeds()
            .iter()
            .map(|seed| labels[(seed - first) as usize])
            .collect();
        let key = self.trace.key(step);
        Ok((
            AssembledBatch {
                key,
                input,
                blocks: batch.blocks,
                labels,
            },
            plan,
        ))
    }

    /// The input of the first layer. Rows of f32 are read where they lie; others are decoded where they are used.
    fn input(&self, batch: &MiniBatch, outermost: &Block, plan: &BatchPlan) -> Result<BatchInput, PrefetchError> {
        if self.row_type == RowType::F32 {
            let rows = self.rows(batch, plan, |own| own, bytemuck::cast_slice)?;
            return self.input_of(&rows[..], outermost, plan.step);
        }
        let rows = self.rows(batch, plan, StoredRow::Own, StoredRow::Remote)?;
        let rows = StoredRows {
            rows: &rows,
            row_type: self.row_type,
        };
        self.input_of(&rows, outermost, plan.step)
    }

    fn input_of<R: FeatureRows + ?Sized>(
        &self,
        rows: &R,
        outermost: &Block,
        step: u32,
    ) -> Result<BatchInput, PrefetchError> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let input = assemble_input(rows, outermost, self.width, self.preaggregate, &mut buffers);
        let rank = self.rank;
        input.map_err(|source| PrefetchError::Assemble { rank, step, source })
    }

    /// The feature row of every node of the batch: `own` from the rank's part, `remote` from the arena or the batch's own
    /// buffer.
    fn rows<'a, R>(
        &'a self,
        batch: &MiniBatch,
        plan: &BatchPlan,
        own: impl Fn(&'a [f32]) -> R,
        remote: impl Fn(&'a [u8]) -> R,
    ) -> Result<Vec<R>, PrefetchError> {
        let step = plan.step;
        let misfit = |what: String| PrefetchError::PlanDoesNotFit {
            rank: self.rank,
            step,
            what,
        };
        let needed = batch.remote.len();
        if needed != plan.places.len() {
            return Err(misfit(format!(
                "the batch needs {needed} remote rows, the plan has {}",
                plan.places.len()
            )));
        }
        // Where each owner's rows start among the places.
        let mut starts = vec![(0, &[][..]); usize::from(self.rows.book().parts())];
        let mut start = 0;
        for owned in &batch.remote.owners {
            starts[usize::from(owned.owner)] = (start, &owned.rows[..]);
            start += owned.rows.len();
        }
        let mut rows = Vec::with_capacity(batch.nodes.len());
        for node in &batch.nodes {
            let home = self.rows.home(*node);
            if home.owner == self.rank {
                rows.push(own(self.part.feature_row(home.row)));
                continue;
            }
            let (start, owned) = starts[usize::from(home.owner)];
            let Ok(index) = owned.binary_search(&home.row) else {
                return Err(misfit(format!(
                    "row {} of part {} is not among its remote rows",
                    home.row, home.owner
                )));
            };
            // SAFETY: the request that fills the place was answered before the assembly, and the plan keeps the row until
            // after it.
            let row = match plan.places[start + index] {
                Place::Slot(slot) => unsafe { self.arena.row(slot) },
                Place::Direct(direct) => unsafe { self.direct.row(direct) },
            };
            if self.verify && RowArena::is_poisoned(row) {
                let (owner, row) = (home.owner, home.row);
                return Err(PrefetchError::Unwritten {
                    rank: self.rank,
                    step,
                    owner,
                    row,
                });
            }
            rows.push(remote(row));
        }
        Ok(rows)
    }
}
