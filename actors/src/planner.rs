//! The planner of a rank: turns traces into plans, a few windows ahead of the prefetcher.

use std::sync::Arc;

use greengnn_energy::choice::Choice;
use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::plan::{CacheState, Delivery, Request, WindowPlan};
use greengnn_model::policy::{PlanError, PlanInput, Policy, RemoteTrace};
use greengnn_model::row_type::RowType;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::presampler::{EpochTrace, thread_cpu_s};
use crate::tuning::{TRACED_EPOCHS, Tuner, TuningError};

/// Plans that may wait for the prefetcher.
pub const PLANS_AHEAD: usize = 2;

/// What the prefetcher takes from the planner.
pub enum Planned {
    /// The windows that follow are of this epoch, asked and answered in this way.
    Epoch(Arc<EpochTrace>, Asking),
    Window(WindowPlan),
    /// The epoch has no more windows.
    EpochEnd {
        /// CPU seconds that planning it took, and choosing how.
        plan_cpu_s: f64,
    },
}

/// How the rows of an epoch are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asking {
    /// Most steps of a window.
    pub window: u32,
    pub delivery: Delivery,
}

/// Why an epoch has no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlannerError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Tuning(#[from] Box<TuningError>),
}

/// Everything that a rank's planner needs.
pub struct RankPlanner {
    pub rank: Rank,
    pub policy: Arc<dyn Policy>,
    pub book: Arc<PartitionBook>,
    pub budget_rows: u32,
    pub asking: Asking,
    /// Chooses anew before every epoch; none where the configuration has chosen.
    pub tuner: Option<Box<Tuner>>,
    /// Is told of choices.
    pub tell_choice: Box<dyn Fn(Box<Choice>) + Send + Sync>,
    pub row_type: RowType,
    pub epochs: u32,
    /// What the arena holds after the set-up.
    pub state: CacheState,
}

/// Has the rows of `requests` come as `row_type`: policies plan rows, whatever a row takes.
pub fn encode_as(row_type: RowType, requests: &mut [Request]) {
    requests.iter_mut().for_each(|request| request.dtype = row_type);
}

impl RankPlanner {
    /// Plans every epoch that arrives, `first` before all others if it has arrived already. Ends early when nobody listens, or
    /// when the presampler has ended.
    pub fn run(
        mut self,
        first: Option<Arc<EpochTrace>>,
        mut traces: mpsc::Receiver<Arc<EpochTrace>>,
        plans: mpsc::Sender<Result<Planned, PlannerError>>,
    ) {
        let mut upcoming = first;
        for epoch in 0..self.epochs {
            let Some(trace) = upcoming.take().or_else(|| traces.blocking_recv()) else {
                return;
            };
            // A choice looks at two epochs, whatever the policy.
            let looks_ahead = self.policy.needs_next_epoch() || (epoch == 0 && self.tuner.is_some());
            if looks_ahead && epoch + 1 < self.epochs {
                upcoming = traces.blocking_recv();
                if upcoming.is_none() {
                    return;
                }
            }
            let cpu_before = thread_cpu_s();
            if let Err(error) = self.choose(epoch, &trace, upcoming.as_ref()) {
                // Nobody listens any more if the rank is ending.
                let _ = plans.blocking_send(Err(error));
                return;
            }
            let starts = Planned::Epoch(Arc::clone(&trace), self.asking);
            if plans.blocking_send(Ok(starts)).is_err() {
                return;
            }
            let next = upcoming.clone().filter(|_| self.policy.needs_next_epoch());
            let end = match self.plan_epoch(trace, next, &plans) {
                Ok(true) => Ok(Planned::EpochEnd {
                    plan_cpu_s: thread_cpu_s() - cpu_before,
                }),
                Ok(false) => return,
                Err(error) => Err(error),
            };
            let failed = end.is_err();
            if plans.blocking_send(end).is_err() || failed {
                return;
            }
        }
    }

    /// Chooses how the rows of an epoch are asked for, where that is to be chosen.
    fn choose(
        &mut self,
        epoch: u32,
        trace: &Arc<EpochTrace>,
        next: Option<&Arc<EpochTrace>>,
    ) -> Result<(), PlannerError> {
        let Some(tuner) = &mut self.tuner else { return Ok(()) };
        let known = std::iter::once(trace).chain(next).take(TRACED_EPOCHS);
        let traces = known.map(|trace| Arc::clone(trace) as Arc<dyn RemoteTrace>).collect();
        let decision = tuner.decide(epoch, traces, &self.state).map_err(Box::new)?;
        self.policy = decision.policy;
        self.asking = Asking {
            window: decision.window,
            delivery: decision.method.delivery,
        };
        if let Some(choice) = decision.choice {
            (self.tell_choice)(choice);
        }
        Ok(())
    }

    /// Sends the windows of one epoch; false when the prefetcher is gone.
    fn plan_epoch(
        &mut self,
        trace: Arc<EpochTrace>,
        next: Option<Arc<EpochTrace>>,
        plans: &mpsc::Sender<Result<Planned, PlannerError>>,
    ) -> Result<bool, PlannerError> {
        let epoch = trace.epoch;
        let mut planner = self.policy.plan(PlanInput {
            rank: self.rank,
            book: Arc::clone(&self.book),
            budget_rows: self.budget_rows,
            window: self.asking.window,
            trace,
            next: next.map(|next| next as Arc<dyn RemoteTrace>),
            from_step: 0,
            state: std::mem::take(&mut self.state),
        })?;
        while let Some(mut window) = planner.next_window()? {
            encode_as(self.row_type, &mut window.requests);
            if let Some(tuner) = &mut self.tuner {
                tuner.count(&window);
            }
            if plans.blocking_send(Ok(Planned::Window(window))).is_err() {
                return Ok(false);
            }
        }
        self.state = planner.into_state();
        if let Some(tuner) = &mut self.tuner {
            tuner.planned(epoch);
        }
        Ok(true)
    }
}
