//! The loader of a rank in push-pull: pushes the graphs of its batches, and aggregates its columns for the batches of all
//! ranks while the step before trains.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use greengnn_model::assemble::{InputBuffers, assemble_input};
use greengnn_model::batch::MiniBatch;
use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::counters::{Period, Phase, Traffic};
use greengnn_model::layers::sliced::SlicedInput;
use greengnn_model::layers::{AssembledBatch, BatchInput};
use greengnn_model::policy::RemoteTrace;
use greengnn_model::store::PartStore;
use greengnn_model::trace::OutermostBlock;
use tokio::sync::{Semaphore, mpsc};

use super::columns::ColumnTable;
use super::{PushPullError, check_sum_bytes, others};
use crate::collective::{Collective, Moment};
use crate::prefetcher::{EpochTally, Prefetched, PreparedBatch};
use crate::presampler::EpochTrace;
use crate::report::summary::Planned;
use crate::shard::PartShard;
use crate::transport::{Caller, ParcelKind};

/// Makes batches out of traces, together with the loaders of all other ranks.
pub struct PushLoader {
    pub book: Arc<PartitionBook>,
    pub part: Arc<PartStore>,
    /// Counts what other ranks push to this one and pull from it.
    pub shard: Arc<PartShard>,
    /// Another of the same ranks than the trainer's.
    pub collective: Collective,
    /// The ranks that hold columns.
    pub holders: Vec<Rank>,
    /// Width of the first layer's output.
    pub outputs: usize,
    /// One permit per batch that may be made; the trainer gives one back per finished step.
    pub ahead: Arc<Semaphore>,
    /// Given back to the presampler when an epoch is done.
    pub epochs: Arc<Semaphore>,
    /// Buffers of trained batches come back here.
    pub buffers: Arc<Mutex<InputBuffers>>,
}

impl PushLoader {
    /// Gathers this rank's columns. Counted as set-up: what came, and what had to come.
    pub async fn gather(&self) -> Result<(ColumnTable, Traffic, Planned), PushPullError> {
        let (table, came) = ColumnTable::gather(&self.book, &self.shard, &self.collective).await?;
        let counted = Traffic {
            pull_bytes: came,
            ..Traffic::default()
        };
        let planned = Planned {
            pull_bytes: ColumnTable::bytes_to_gather(&self.book, self.rank(), self.shard.width()),
            ..Planned::default()
        };
        Ok((table, counted, planned))
    }

    /// Makes the batches of every epoch that arrives, until there is none or the trainer goes away.
    pub async fn run(
        self,
        table: Arc<ColumnTable>,
        mut traces: mpsc::Receiver<Arc<EpochTrace>>,
        trainer: mpsc::Sender<Prefetched>,
    ) -> Result<(), PushPullError> {
        while let Some(trace) = traces.recv().await {
            if trainer.send(Prefetched::Epoch(Arc::clone(&trace))).await.is_err() {
                return Ok(());
            }
            let mut tally = EpochTally::default();
            for step in 0..trace.steps.total() {
                let Ok(permit) = self.ahead.acquire().await else {
                    return Ok(());
                };
                permit.forget();
                let prepared = self.step(&table, &trace, step, &mut tally).await?;
                if trainer.send(Prefetched::Batch(Box::new(prepared))).await.is_err() {
                    return Ok(());
                }
            }
            self.epochs.add_permits(1);
            if trainer.send(Prefetched::EpochEnd(Box::new(tally))).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One step: pushes the own graph, takes those of the others, aggregates the columns of all.
    async fn step(
        &self,
        table: &Arc<ColumnTable>,
        trace: &Arc<EpochTrace>,
        step: u32,
        tally: &mut EpochTally,
    ) -> Result<PreparedBatch, PushPullError> {
        let rank = self.rank();
        let phase = Phase::from(RemoteTrace::purpose(&**trace, step));
        let moment = Moment {
            epoch: trace.epoch,
            step,
            period: Period {
                epoch: trace.epoch,
                phase,
            },
        };
        let reading = Arc::clone(trace);
        let (batch, graph) = self.blocking(move || read(&reading, rank, step)).await?;
        *tally.planned.entry(phase).or_default() += self.planned(&batch, trace, step, graph.len() as u64)?;

        let waiting = Instant::now();
        let mut pushed = 0;
        for to in others(&self.holders, rank) {
            self.collective
                .send(ParcelKind::OutermostBlock, moment, to, graph.clone())
                .await?;
            pushed += graph.len() as u64;
        }
        tally.traffic.entry(phase).or_default().push_bytes += pushed;
        let graphs = self.receive_graphs(moment).await?;
        let fetch_s = waiting.elapsed().as_secs_f64();

        let assembling = Instant::now();
        let assembly = SlicedAssembly {
            rank,
            step,
            outputs: self.outputs,
            table: Arc::clone(table),
            buffers: Arc::clone(&self.buffers),
        };
        let (batch, slices) = self.blocking(move || assembly.run(batch, graphs)).await?;
        let first = self.book.range(rank).start;
        let labels = self.part.labels();
        let labels = batch.seeds().iter().map(|seed| labels[(seed - first) as usize]);
        Ok(PreparedBatch {
            step,
            batch: AssembledBatch {
                key: trace.key(step),
                labels: labels.collect(),
                input: BatchInput::Sliced(slices),
                blocks: batch.blocks,
            },
            sample_s: trace.step_s,
            fetch_s,
            assemble_s: assembling.elapsed().as_secs_f64(),
        })
    }

    /// The outermost blocks of all ranks but this one, by rank; none if this rank holds no columns.
    async fn receive_graphs(&self, moment: Moment) -> Result<Vec<Vec<u8>>, PushPullError> {
        let rank = self.rank();
        if !self.holders.contains(&rank) {
            return Ok(Vec::new());
        }
        let mut graphs = vec![Vec::new(); usize::from(self.collective.ranks())];
        for from in (0..self.collective.ranks()).filter(|from| *from != rank) {
            let bytes = self
                .collective
                .receive(ParcelKind::OutermostBlock, moment, from)
                .await?;
            let caller = Caller {
                rank: from,
                period: moment.period,
            };
            self.shard.exchanged(caller, bytes.len() as u64, 0);
            graphs[usize::from(from)] = bytes;
        }
        Ok(graphs)
    }

    /// What the step will push and pull: the graph, the gradient if a seed is labelled, and the partial sums.
    fn planned(&self, batch: &MiniBatch, trace: &EpochTrace, step: u32, graph: u64) -> Result<Planned, PushPullError> {
        let destinations = batch.blocks.last().map_or(0, |block| block.destination_count());
        let sums = u64::from(destinations) * self.outputs as u64 * 4;
        let holders = others(&self.holders, self.rank()).count() as u64;
        check_sum_bytes(self.rank(), step, sums * holders)?;
        // Evaluation has no gradient, and no counts of labels.
        let labelled = trace.labelled.get(step as usize).is_some_and(|labelled| *labelled > 0);
        let gradient = if labelled { sums } else { 0 };
        Ok(Planned {
            push_bytes: holders * (graph + gradient),
            pull_bytes: holders * sums,
            ..Planned::default()
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, PushPullError> + Send + 'static,
    ) -> Result<T, PushPullError> {
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| PushPullError::Task {
            rank: self.rank(),
            reason: error.to_string(),
        })?
    }

    fn rank(&self) -> Rank {
        self.collective.rank()
    }
}

/// The batch of a step, and its outermost block in bytes.
fn read(trace: &EpochTrace, rank: Rank, step: u32) -> Result<(MiniBatch, Vec<u8>), PushPullError> {
    let batch = trace
        .batch(step)
        .map_err(|source| PushPullError::Trace { rank, step, source })?;
    let graph = OutermostBlock::encode(&batch).map_err(|source| PushPullError::Block { rank, step, source })?;
    Ok((batch, graph))
}

/// Everything that the aggregation of one step needs, on a thread of its own.
struct SlicedAssembly {
    rank: Rank,
    step: u32,
    outputs: usize,
    table: Arc<ColumnTable>,
    buffers: Arc<Mutex<InputBuffers>>,
}

impl SlicedAssembly {
    /// Aggregates this rank's columns for the batches of all ranks, in their order. Gives the own batch back.
    fn run(self, mut batch: MiniBatch, graphs: Vec<Vec<u8>>) -> Result<(MiniBatch, Vec<SlicedInput>), PushPullError> {
        let nodes = self.table.nodes();
        let mut slices = Vec::with_capacity(graphs.len());
        let mut sum_bytes = 0;
        for (rank, graph) in (0..).zip(graphs) {
            if rank == self.rank {
                let own = OutermostBlock {
                    nodes: std::mem::take(&mut batch.nodes),
                    block: batch.blocks.pop().unwrap_or_default(),
                };
                slices.push(self.slice(rank, &own)?);
                batch.nodes = own.nodes;
                batch.blocks.push(own.block);
                continue;
            }
            let pushed = OutermostBlock::decode(&graph, nodes).map_err(|source| PushPullError::Block {
                rank,
                step: self.step,
                source,
            })?;
            sum_bytes += u64::from(pushed.block.destination_count()) * self.outputs as u64 * 4;
            slices.push(self.slice(rank, &pushed)?);
        }
        // The gradients of all these come to this rank.
        check_sum_bytes(self.rank, self.step, sum_bytes)?;
        Ok((batch, slices))
    }

    fn slice(&self, rank: Rank, outermost: &OutermostBlock) -> Result<SlicedInput, PushPullError> {
        let rows: Vec<&[f32]> = outermost.nodes.iter().map(|node| self.table.row(*node)).collect();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let input = assemble_input(&rows[..], &outermost.block, self.table.width(), true, &mut buffers);
        let input = input.map_err(|source| PushPullError::Aggregate {
            rank,
            step: self.step,
            source,
        })?;
        let (own, mean) = match input {
            BatchInput::PreAggregated { own, mean } => (own, mean),
            _ => (Vec::new(), Vec::new()),
        };
        Ok(SlicedInput {
            destinations: outermost.block.destination_count() as usize,
            own,
            mean,
        })
    }
}
