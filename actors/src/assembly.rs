//! The assembly of one batch: finds every feature row of its nodes, wherever the plan put it, and makes the input of the
//! first layer.

use std::sync::{Arc, Mutex, PoisonError};

use greengnn_model::assemble::{FeatureRows, InputBuffers, StoredRow, StoredRows, assemble_input, assemble_resident};
use greengnn_model::batch::{Block, MiniBatch};
use greengnn_model::book::Rank;
use greengnn_model::counters::LevelCounts;
use greengnn_model::layers::{AssembledBatch, BatchInput};
use greengnn_model::plan::{BatchPlan, Place};
use greengnn_model::row_type::RowType;
use greengnn_model::rows::RowBook;
use greengnn_model::store::PartStore;

use crate::arena::RowArena;
use crate::prefetcher::PrefetchError;
use crate::presampler::EpochTrace;
use crate::residency::Residency;

/// Everything that the assembly of one batch needs, on a thread of its own.
pub(crate) struct Assembly {
    pub rank: Rank,
    pub rows: Arc<RowBook>,
    pub part: Arc<PartStore>,
    pub arena: Arc<RowArena>,
    pub residency: Arc<Residency>,
    pub direct: Arc<RowArena>,
    pub trace: Arc<EpochTrace>,
    pub width: usize,
    pub row_type: RowType,
    pub preaggregate: bool,
    pub verify: bool,
    pub buffers: Arc<Mutex<InputBuffers>>,
}

impl Assembly {
    /// Assembles the batch that `plan` is for, gives the plan back, and says from which memory the rows come.
    pub fn run(self, plan: BatchPlan) -> Result<(AssembledBatch, BatchPlan, LevelCounts), PrefetchError> {
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
        let (input, levels) = self.input(&batch, outermost, &plan)?;
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
            levels,
        ))
    }

    /// The input of the first layer, and from which memory its rows come. Rows of f32 are read where they lie; others are
    /// decoded where they are used.
    fn input(
        &self,
        batch: &MiniBatch,
        outermost: &Block,
        plan: &BatchPlan,
    ) -> Result<(BatchInput, LevelCounts), PrefetchError> {
        if self.row_type == RowType::F32 {
            let found = self.rows(batch, plan, |own| own, bytemuck::cast_slice)?;
            return self.input_of(&found.rows[..], found.places, found.levels, outermost, plan.step);
        }
        let found = self.rows(batch, plan, StoredRow::Own, StoredRow::Remote)?;
        let rows = StoredRows {
            rows: &found.rows,
            row_type: self.row_type,
        };
        self.input_of(&rows, found.places, found.levels, outermost, plan.step)
    }

    fn input_of<R: FeatureRows + ?Sized>(
        &self,
        rows: &R,
        places: Vec<u32>,
        levels: LevelCounts,
        outermost: &Block,
        step: u32,
    ) -> Result<(BatchInput, LevelCounts), PrefetchError> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        // With rows on the device the layer aggregates: the loader does not have all of them.
        let input = if self.residency.is_empty() {
            assemble_input(rows, outermost, self.width, self.preaggregate, &mut buffers)
        } else {
            assemble_resident(rows, places, self.width, &mut buffers)
        };
        let rank = self.rank;
        let input = input.map_err(|source| PrefetchError::Assemble { rank, step, source })?;
        let levels = LevelCounts {
            upload_bytes: input.upload_bytes(),
            ..levels
        };
        Ok((input, levels))
    }

    /// Where the feature row of every node of the batch is: on the device, or as `own` of the rank's part, or as `remote` of
    /// the arena or the batch's own buffer.
    fn rows<'a, R>(
        &'a self,
        batch: &MiniBatch,
        plan: &BatchPlan,
        own: impl Fn(&'a [f32]) -> R,
        remote: impl Fn(&'a [u8]) -> R,
    ) -> Result<FoundRows<R>, PrefetchError> {
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
        let mut found = FoundRows::new(&self.residency, batch.nodes.len());
        for node in &batch.nodes {
            let home = self.rows.home(*node);
            if home.owner == self.rank {
                match self.residency.of_own(home.row) {
                    Some(place) => {
                        found.levels.device_own_rows += 1;
                        found.on_device(place);
                    }
                    None => {
                        found.levels.host_own_rows += 1;
                        found.on_host(own(self.part.feature_row(home.row)));
                    }
                }
                continue;
            }
            let (start, owned) = starts[usize::from(home.owner)];
            let Ok(index) = owned.binary_search(&home.row) else {
                return Err(misfit(format!(
                    "row {} of part {} is not among its remote rows",
                    home.row, home.owner
                )));
            };
            let place = plan.places[start + index];
            if let Place::Slot(slot) = place
                && let Some(place) = self.residency.of_slot(slot)
            {
                found.levels.device_hit_rows += 1;
                found.on_device(place);
                continue;
            }
            // SAFETY: the row has landed, which the wait for this step has seen, and the plan keeps it until after the
            // assembly. Its request may still be writing rows that later steps need: the plan gives them other slots.
            let row = match place {
                Place::Slot(slot) => {
                    found.levels.host_hit_rows += 1;
                    unsafe { self.arena.row(slot) }
                }
                Place::Direct(direct) => {
                    found.levels.direct_rows += 1;
                    unsafe { self.direct.row(direct) }
                }
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
            found.on_host(remote(row));
        }
        Ok(found)
    }
}

/// The rows of a batch, in the order of its nodes.
struct FoundRows<R> {
    /// Those that the host has.
    rows: Vec<R>,
    /// Where all of them are, as a [`BatchInput::Resident`](greengnn_model::layers::BatchInput) wants it; empty if no row is
    /// on the device.
    places: Vec<u32>,
    /// Rows on the device, of any batch.
    resident: usize,
    levels: LevelCounts,
}

impl<R> FoundRows<R> {
    fn new(residency: &Residency, nodes: usize) -> Self {
        Self {
            rows: Vec::with_capacity(nodes),
            places: Vec::with_capacity(if residency.is_empty() { 0 } else { nodes }),
            resident: residency.len(),
            levels: LevelCounts::default(),
        }
    }

    fn on_device(&mut self, place: u32) {
        self.places.push(place);
    }

    fn on_host(&mut self, row: R) {
        if self.resident > 0 {
            self.places.push((self.resident + self.rows.len()) as u32);
        }
        self.rows.push(row);
    }
}
