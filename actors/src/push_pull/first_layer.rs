//! The first layer of a step in push-pull, as a trainer computes it with all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use greengnn_model::book::Rank;
use greengnn_model::counters::{Phase, Traffic};
use greengnn_model::layers::sliced::{FirstLayerSlice, SlicedInput};
use greengnn_model::layers::{AssembledBatch, BatchInput, Evaluation, StepOutcome, Trainable};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{PushPullError, others};
use crate::collective::{Collective, CollectiveError, Moment, add, bytes_of, values_of};
use crate::shard::PartShard;
use crate::transport::{Caller, ParcelKind};

/// One rank's part in the first layer of all ranks. All ranks call the same methods in the same order.
pub struct FirstLayer {
    /// This rank's columns of the weights; may be empty.
    pub slice: FirstLayerSlice,
    /// The ranks that hold columns, in order.
    pub holders: Vec<Rank>,
    pub collective: Collective,
    pub runtime: Handle,
    /// Ends every wait when its sender goes.
    pub cancelled: watch::Receiver<bool>,
    /// Counts what other ranks push to this one and pull from it.
    pub shard: Arc<PartShard>,
    /// What this rank pushed and pulled since it was last asked.
    pub traffic: BTreeMap<Phase, Traffic>,
}

/// What a training step gave, and how long its parts took in seconds. In a run that pulls rows nothing was waited.
#[derive(Debug)]
pub struct ComputedStep {
    /// In push-pull: of the first layer's weights the gradients of this rank's columns over the batches of all ranks; of
    /// everything else those of this rank's batch.
    pub outcome: StepOutcome,
    pub forward_s: f64,
    pub backward_s: f64,
    /// Waiting for other ranks' partial sums and gradients.
    pub waited_s: f64,
}

/// Parcels that are being handed to the network. Dropping it ends them.
type Sending = JoinSet<Result<(), CollectiveError>>;

impl FirstLayer {
    /// Forward, loss and backward of this rank's batch, and this rank's columns of the batches of all.
    pub fn gradients(
        &mut self,
        model: &mut dyn Trainable,
        batch: &AssembledBatch,
        divisor: u32,
        moment: Moment,
    ) -> Result<ComputedStep, PushPullError> {
        let started = Instant::now();
        let mut forward_s = 0.0;
        let (sums, waited_forward_s) = self.sums(model, batch, moment)?;
        let outcome = model.gradients_from_sums(batch, sums, divisor, &mut || {
            forward_s = started.elapsed().as_secs_f64() - waited_forward_s;
        })?;
        let mut step = outcome.outcome;
        let waited_backward_s = self.weight_gradients(batch, outcome.gradient, &mut step.gradients, moment)?;
        let waited_s = waited_forward_s + waited_backward_s;
        if forward_s == 0.0 {
            // Without a labelled seed there is nothing after the sums.
            forward_s = started.elapsed().as_secs_f64() - waited_s;
        }
        Ok(ComputedStep {
            outcome: step,
            forward_s,
            backward_s: started.elapsed().as_secs_f64() - waited_s - forward_s,
            waited_s,
        })
    }

    /// What this rank's batch says about accuracy, and the seconds that were waited for other ranks.
    pub fn evaluate(
        &mut self,
        model: &mut dyn Trainable,
        batch: &AssembledBatch,
        moment: Moment,
    ) -> Result<(Evaluation, f64), PushPullError> {
        let (sums, waited_s) = self.sums(model, batch, moment)?;
        Ok((model.evaluate_from_sums(batch, sums)?, waited_s))
    }

    /// The first layer's sums of this rank's batch. Sends the others their partial sums on the way. Also the seconds that
    /// were waited.
    fn sums(
        &mut self,
        model: &dyn Trainable,
        batch: &AssembledBatch,
        moment: Moment,
    ) -> Result<(Vec<f32>, f64), PushPullError> {
        let rank = self.collective.rank();
        let slices = self.slices(batch)?;
        let parameters = model.parameters()?;
        let flat: Vec<f32> = parameters.into_iter().flat_map(|parameter| parameter.values).collect();
        let weights = self.slice.weights(&flat)?;
        let mut sending = Sending::new();
        let ranks = self.collective.ranks();
        for to in (rank + 1..ranks).chain(0..rank) {
            // A rank without columns has no slices.
            let Some(slice) = slices.get(usize::from(to)).filter(|slice| slice.destinations > 0) else {
                continue;
            };
            let bytes = bytes_of(&weights.partial_sums(slice)?);
            let caller = Caller {
                rank: to,
                period: moment.period,
            };
            self.shard.exchanged(caller, 0, bytes.len() as u64);
            self.send(&mut sending, ParcelKind::PartialSums, moment, to, bytes);
        }
        let destinations = batch.blocks.last().map_or(0, |block| block.destination_count()) as usize;
        let values = destinations * self.slice.outputs();
        let own = match slices.get(usize::from(rank)) {
            Some(slice) => weights.partial_sums(slice)?,
            None => Vec::new(),
        };
        let waiting = Instant::now();
        let mut sums = Vec::new();
        let mut pulled = 0;
        for from in self.holders.iter().filter(|_| values > 0) {
            if *from == rank {
                add(&mut sums, own.iter().copied());
                continue;
            }
            let bytes = self.receive(ParcelKind::PartialSums, moment, *from)?;
            self.collective.check(*from, ParcelKind::PartialSums, values, &bytes)?;
            pulled += bytes.len() as u64;
            add(&mut sums, values_of(&bytes));
        }
        self.sent(sending)?;
        let waited_s = waiting.elapsed().as_secs_f64();
        self.traffic.entry(moment.period.phase).or_default().pull_bytes += pulled;
        Ok((sums, waited_s))
    }

    /// Sends the gradient of this rank's sums to all holders, and adds to the flat gradients those of this rank's columns
    /// of the weights, batch by batch in the order of ranks. Returns the seconds that were waited.
    fn weight_gradients(
        &mut self,
        batch: &AssembledBatch,
        gradient: Vec<f32>,
        flat: &mut [f32],
        moment: Moment,
    ) -> Result<f64, PushPullError> {
        let rank = self.collective.rank();
        let slices = self.slices(batch)?;
        let mut sending = Sending::new();
        let mut pushed = 0;
        if batch.blocks.last().is_some_and(|block| block.destination_count() > 0) {
            let bytes = bytes_of(&gradient);
            for to in others(&self.holders, rank) {
                pushed += bytes.len() as u64;
                self.send(&mut sending, ParcelKind::SumsGradient, moment, to, bytes.clone());
            }
        }
        let mut waited_s = 0.0;
        for (from, slice) in (0..).zip(slices).filter(|(_, slice)| slice.destinations > 0) {
            // A batch without a labelled seed has no gradient.
            if from == rank {
                if !gradient.is_empty() {
                    self.slice.add_gradient(slice, &gradient, flat)?;
                }
                continue;
            }
            let waiting = Instant::now();
            let bytes = self.receive(ParcelKind::SumsGradient, moment, from)?;
            waited_s += waiting.elapsed().as_secs_f64();
            let caller = Caller {
                rank: from,
                period: moment.period,
            };
            self.shard.exchanged(caller, bytes.len() as u64, 0);
            if bytes.is_empty() {
                continue;
            }
            let values = slice.destinations * self.slice.outputs();
            self.collective.check(from, ParcelKind::SumsGradient, values, &bytes)?;
            let gradient: Vec<f32> = values_of(&bytes).collect();
            self.slice.add_gradient(slice, &gradient, flat)?;
        }
        let waiting = Instant::now();
        self.sent(sending)?;
        self.traffic.entry(moment.period.phase).or_default().push_bytes += pushed;
        Ok(waited_s + waiting.elapsed().as_secs_f64())
    }

    /// This rank's columns of the batches of all ranks; none if it holds no columns.
    fn slices<'a>(&self, batch: &'a AssembledBatch) -> Result<&'a [SlicedInput], PushPullError> {
        let rank = self.collective.rank();
        let wanted = match self.slice.columns().is_empty() {
            true => 0,
            false => usize::from(self.collective.ranks()),
        };
        match &batch.input {
            BatchInput::Sliced(slices) if slices.len() == wanted => Ok(slices),
            _ => Err(PushPullError::NoSlices { rank }),
        }
    }

    fn send(&self, sending: &mut Sending, kind: ParcelKind, moment: Moment, to: Rank, bytes: Vec<u8>) {
        let collective = self.collective.clone();
        sending.spawn_on(
            async move { collective.send(kind, moment, to, bytes).await },
            &self.runtime,
        );
    }

    fn receive(&self, kind: ParcelKind, moment: Moment, from: Rank) -> Result<Vec<u8>, PushPullError> {
        self.wait(async { Ok(self.collective.receive(kind, moment, from).await?) })
    }

    /// Waits until everything has been handed to the network.
    fn sent(&self, mut sending: Sending) -> Result<(), PushPullError> {
        let rank = self.collective.rank();
        self.wait(async {
            while let Some(sent) = sending.join_next().await {
                sent.map_err(|error| PushPullError::Task {
                    rank,
                    reason: error.to_string(),
                })??;
            }
            Ok(())
        })
    }

    /// Waits for what all ranks do together, unless the rank is cancelled.
    fn wait<T>(&self, together: impl Future<Output = Result<T, PushPullError>>) -> Result<T, PushPullError> {
        let mut cancelled = self.cancelled.clone();
        self.runtime.block_on(async {
            tokio::select! {
                done = together => done,
                _ = cancelled.changed() => Err(PushPullError::Cancelled),
            }
        })
    }
}
