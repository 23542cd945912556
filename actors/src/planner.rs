//! The planner of a rank: turns traces into plans, a few windows ahead of the prefetcher.

use std::sync::Arc;

use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::plan::{CacheState, Request, WindowPlan};
use greengnn_model::policy::{PlanError, PlanInput, Policy, RemoteTrace};
use greengnn_model::row_type::RowType;
use tokio::sync::mpsc;

use crate::presampler::{EpochTrace, thread_cpu_s};

/// Plans that may wait for the prefetcher.
pub const PLANS_AHEAD: usize = 2;

/// What the prefetcher takes from the planner.
pub enum Planned {
    /// The windows that follow are of this epoch.
    Epoch(Arc<EpochTrace>),
    Window(WindowPlan),
    /// The epoch has no more windows.
    EpochEnd {
        /// CPU seconds that planning it took.
        plan_cpu_s: f64,
    },
}

/// Everything that a rank's planner needs.
pub struct RankPlanner {
    pub rank: Rank,
    pub policy: Arc<dyn Policy>,
    pub book: Arc<PartitionBook>,
    pub budget_rows: u32,
    pub window: u32,
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
    /// Plans every epoch that arrives. Ends early when nobody listens, or when the presampler has ended.
    pub fn run(mut self, mut traces: mpsc::Receiver<Arc<EpochTrace>>, plans: mpsc::Sender<Result<Planned, PlanError>>) {
        let mut upcoming: Option<Arc<EpochTrace>> = None;
        for epoch in 0..self.epochs {
            let Some(trace) = upcoming.take().or_else(|| traces.blocking_recv()) else {
                return;
            };
            if self.policy.needs_next_epoch() && epoch + 1 < self.epochs {
                upcoming = traces.blocking_recv();
                if upcoming.is_none() {
                    return;
                }
            }
            if plans.blocking_send(Ok(Planned::Epoch(Arc::clone(&trace)))).is_err() {
                return;
            }
            let end = match self.plan_epoch(trace, upcoming.clone(), &plans) {
                Ok(Some(plan_cpu_s)) => Ok(Planned::EpochEnd { plan_cpu_s }),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let failed = end.is_err();
            if plans.blocking_send(end).is_err() || failed {
                return;
            }
        }
    }

    /// Sends the windows of one epoch; none when the prefetcher is gone.
    fn plan_epoch(
        &mut self,
        trace: Arc<EpochTrace>,
        next: Option<Arc<EpochTrace>>,
        plans: &mpsc::Sender<Result<Planned, PlanError>>,
    ) -> Result<Option<f64>, PlanError> {
        let cpu_before = thread_cpu_s();
        let mut planner = self.policy.plan(PlanInput {
            rank: self.rank,
            book: Arc::clone(&self.book),
            budget_rows: self.budget_rows,
            window: self.window,
            trace,
            next: next.map(|next| next as Arc<dyn RemoteTrace>),
            from_step: 0,
            state: std::mem::take(&mut self.state),
        })?;
        while let Some(mut window) = planner.next_window()? {
            encode_as(self.row_type, &mut window.requests);
            if plans.blocking_send(Ok(Planned::Window(window))).is_err() {
                return Ok(None);
            }
        }
        self.state = planner.into_state();
        Ok(Some(thread_cpu_s() - cpu_before))
    }
}
