//! What makes batches of a rank: the fill, and then plans and their execution; with a probe before and a choice in between,
//! where windows are to be chosen.

use greengnn_energy::choice::Choice;
use greengnn_model::counters::Traffic;
use greengnn_model::policy::RemoteTrace;

use super::*;
use crate::filling::FillingError;
use crate::planner::{PLANS_AHEAD, encode_as};
use crate::prefetcher::{PrefetchError, planned_of};
use crate::push_pull::PushPullError;
use crate::report::summary::Planned;
use crate::tuning::TRACED_EPOCHS;
use crate::tuning::stage::{StageError, TuningStage};

/// What makes batches out of traces.
pub(super) enum Loader {
    /// From rows that are pulled under a policy.
    Rows(Box<RowLoader>),
    /// From the rank's columns of all rows, in push-pull.
    Columns(PushLoader),
}

/// The fill first, then plans and their execution side by side.
pub(super) struct RowLoader {
    pub filling: Filling,
    pub planner: RankPlanner,
    pub prefetcher: Prefetcher,
    /// What is done before the first epoch where windows are to be chosen.
    pub tuning: Option<TuningStage>,
    /// The machine's GPU clocks, if they are to be lowered.
    pub clocks: Option<Arc<GpuClocks>>,
}

/// Why a rank's loader ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoaderError {
    #[error(transparent)]
    Filling(#[from] FillingError),
    #[error(transparent)]
    Prefetch(#[from] PrefetchError),
    #[error("the planner could not start: {0}")]
    Planner(#[from] std::io::Error),
    #[error("rank {rank} could not choose: {}", in_one_line(source))]
    Tuning { rank: Rank, source: StageError },
    #[error("rank {rank}: {}", in_one_line(source))]
    PushPull { rank: Rank, source: PushPullError },
}

impl Loader {
    pub async fn run(
        self,
        traces: mpsc::Receiver<Arc<EpochTrace>>,
        batches: mpsc::Sender<Prefetched>,
        told: &ActorRef<RankEvent>,
    ) -> Result<(), LoaderError> {
        let loader = match self {
            Self::Rows(loader) => return loader.run(traces, batches, told).await,
            Self::Columns(loader) => loader,
        };
        let rank = loader.collective.rank();
        let failed = |source| LoaderError::PushPull { rank, source };
        let (columns, traffic, planned) = loader.gather().await.map_err(failed)?;
        let _ = told.cast(RankEvent::Filled(Filled {
            traffic,
            planned,
            ..Filled::default()
        }));
        loader.run(Arc::new(columns), traces, batches).await.map_err(failed)
    }
}

impl RowLoader {
    async fn run(
        mut self,
        mut traces: mpsc::Receiver<Arc<EpochTrace>>,
        batches: mpsc::Sender<Prefetched>,
        told: &ActorRef<RankEvent>,
    ) -> Result<(), LoaderError> {
        let rank = self.prefetcher.rank;
        if let Some(tuning) = self.tuning.take_if(|tuning| tuning.only_choose) {
            let failed = |source| LoaderError::Tuning { rank, source };
            return self.choose(tuning, traces, &batches, told).await.map_err(failed);
        }
        let own_rows = self.filling.rows.book().part_nodes(rank);
        let device_budget_rows = u64::from(self.filling.device_rows);
        let failed = |source| LoaderError::Tuning { rank, source };
        let probed = self.probed(told).await.map_err(failed)?;
        let mut fill = self.filling.plan().await?;
        encode_as(self.planner.row_type, &mut fill.requests);
        let held = fill.state.held.len() as u64;
        let (traffic, resident) = self.prefetcher.fill(&fill).await?;
        let of_probe = probed.as_ref().map_or(Traffic::default(), |(_, traffic)| *traffic);
        let mut planned = planned_of(&fill.requests);
        planned += Planned {
            feature_requests: of_probe.feature_requests,
            feature_rows: of_probe.feature_rows,
            deliveries: of_probe.deliveries,
            ..Planned::default()
        };
        let filled = Filled {
            traffic: traffic + of_probe,
            planned,
            device_rows: fill.device.len() as u64,
            device_budget_rows,
            upload_bytes: size_of_val(&resident[..]) as u64,
        };
        let _ = told.cast(RankEvent::Filled(filled));
        if !resident.is_empty() && batches.send(Prefetched::Resident(resident)).await.is_err() {
            return Ok(());
        }
        self.prefetcher.residency = Arc::new(Residency::new(fill.device, own_rows));
        self.planner.state = fill.state;
        let mut first = None;
        if let (Some(tuning), Some((profile, _))) = (self.tuning, probed) {
            let Some(trace) = traces.recv().await else {
                return Ok(());
            };
            let step_s = tuning
                .step_times(&self.prefetcher, &trace, &batches)
                .await
                .map_err(failed)?;
            first = Some(trace);
            let told = told.clone();
            let known = (profile.clone(), step_s.clone());
            self.planner.tell_choice = Box::new(move |choice| tell_choice(&told, *choice, &known));
            self.planner.tuner = Some(Box::new(tuning.tuner(profile, step_s)));
        }
        let (plan_sender, plans) = mpsc::channel(PLANS_AHEAD);
        spawn_worker(format!("plan-{rank}"), told, move || {
            self.planner.run(first, traces, plan_sender)
        })?;
        Ok(self.prefetcher.run(held, plans, batches).await?)
    }
}

impl RowLoader {
    /// Finds out what fetches cost, where windows are to be chosen. Then sampling may begin.
    async fn probed(&mut self, told: &ActorRef<RankEvent>) -> Result<Option<(Profile, Traffic)>, StageError> {
        let rank = self.prefetcher.rank;
        let Some(tuning) = &mut self.tuning else {
            return Ok(None);
        };
        if let Some(clocks) = self.clocks.take() {
            // Before all ranks tell their hardware. A task that panics has said so.
            let _ = tokio::task::spawn_blocking(move || clocks.rank_is_set_up(rank)).await;
        }
        let found = tuning.profile().await?;
        let _ = told.cast(RankEvent::KnowsCosts);
        self.prefetcher.epochs.add_permits(EPOCHS_AHEAD);
        Ok(Some(found))
    }

    /// Chooses without a run, tells, and waits for the end.
    async fn choose(
        &self,
        mut tuning: TuningStage,
        mut traces: mpsc::Receiver<Arc<EpochTrace>>,
        batches: &mpsc::Sender<Prefetched>,
        told: &ActorRef<RankEvent>,
    ) -> Result<(), StageError> {
        let (profile, _) = tuning.profile().await?;
        self.prefetcher.epochs.add_permits(EPOCHS_AHEAD);
        let mut known: Vec<Arc<EpochTrace>> = Vec::new();
        let epochs = TRACED_EPOCHS.min(tuning.epochs as usize);
        while known.len() < epochs {
            let Some(trace) = traces.recv().await else {
                return Ok(());
            };
            known.push(trace);
        }
        let Some(first) = known.first() else { return Ok(()) };
        let step_s = tuning.step_times(&self.prefetcher, first, batches).await?;
        let mut tuner = tuning.tuner(profile.clone(), step_s.clone());
        let known = known.into_iter().map(|trace| trace as Arc<dyn RemoteTrace>).collect();
        let choosing = tokio::task::spawn_blocking(move || tuner.choose(known));
        let choice = choosing.await.map_err(|error| PrefetchError::Task {
            rank: self.prefetcher.rank,
            reason: error.to_string(),
        })??;
        tell_choice(told, choice, &(profile, step_s));
        std::future::pending().await
    }
}

fn tell_choice(told: &ActorRef<RankEvent>, choice: Choice, (profile, step_s): &(Profile, Vec<f64>)) {
    let _ = told.cast(RankEvent::Chosen(Box::new(Chosen {
        choice,
        profile: profile.clone(),
        step_s: step_s.clone(),
    })));
}
