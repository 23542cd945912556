//! Steps that are tried before the first epoch, to know how long one takes whose rows are there.
//!
//! Batches are assembled and trained as in a run, one ahead of the other and at all ranks at once, but no row is asked
//! for: those of other parts are zero, which costs as much. No parameter changes, nothing is counted.

use greengnn_model::policy::pinned::OnDemand;
use greengnn_model::policy::{PlanInput, Policy};
use tokio::task::JoinHandle;

use super::*;

/// Steps that are tried at most; the first one warms up and is not counted.
const TRIED_STEPS: usize = 9;

impl Prefetcher {
    /// Mean seconds of a training step of this epoch whose rows are there; none if the rank trains on nothing.
    ///
    /// # Errors
    /// A trace that cannot be read.
    pub async fn try_steps(
        &self,
        trace: &Arc<EpochTrace>,
        trainer: &mpsc::Sender<Prefetched>,
    ) -> Result<Option<f64>, PrefetchError> {
        let rank = self.rank;
        let no_plan = |source| PrefetchError::Plan {
            rank,
            source: PlannerError::Plan(source),
        };
        let mut done: Vec<oneshot::Receiver<Instant>> = Vec::new();
        // An epoch of few steps is tried more than once.
        while trace.steps.train > 0 && done.len() < TRIED_STEPS {
            let mut planner = OnDemand.plan(self.whole_epoch(trace)).map_err(no_plan)?;
            for _ in 0..trace.steps.train.min((TRIED_STEPS - done.len()) as u32) {
                let window = planner.next_window().map_err(no_plan)?;
                for plan in window.into_iter().flat_map(|window| window.batches) {
                    let Ok(permit) = self.ahead.acquire().await else {
                        return Ok(None);
                    };
                    permit.forget();
                    let prepared = self.assemble_without_rows(trace, plan).await?;
                    let (tell, told) = oneshot::channel();
                    if trainer.send(Prefetched::Trial(Box::new(prepared), tell)).await.is_err() {
                        return Ok(None);
                    }
                    done.push(told);
                }
            }
        }
        let mut times = Vec::with_capacity(done.len());
        for told in done {
            // A trainer that is gone has said why.
            let Ok(at) = told.await else { return Ok(None) };
            times.push(at);
        }
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return Ok(None);
        };
        let counted = times.len() - 1;
        Ok((counted > 0).then(|| (*last - *first).as_secs_f64() / counted as f64))
    }

    fn whole_epoch(&self, trace: &Arc<EpochTrace>) -> PlanInput {
        PlanInput {
            rank: self.rank,
            book: Arc::clone(self.rows.book()),
            budget_rows: 0,
            window: 1,
            trace: Arc::clone(trace) as Arc<dyn RemoteTrace>,
            next: None,
            from_step: 0,
            state: Default::default(),
        }
    }

    async fn assemble_without_rows(
        &self,
        trace: &Arc<EpochTrace>,
        plan: BatchPlan,
    ) -> Result<PreparedBatch, PrefetchError> {
        let step = plan.step;
        let assembling = Instant::now();
        let direct = Arc::new(RowArena::for_run(plan.direct_rows as usize, self.row_bytes(), false));
        let assembly = self.assembly(trace, &direct, false);
        let assembled: JoinHandle<_> = tokio::task::spawn_blocking(move || assembly.run(plan));
        let (batch, _, _) = assembled.await.map_err(|error| self.task_ended(&error))??;
        Ok(PreparedBatch {
            step,
            batch,
            sample_s: 0.0,
            fetch_s: 0.0,
            assemble_s: assembling.elapsed().as_secs_f64(),
        })
    }
}
