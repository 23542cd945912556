//! What a rank does beside training: it takes part in probes and choices.

use greengnn_energy::choice::{Candidates, Method, Tuned, WINDOWS};
use greengnn_energy::probing::ProbePlan;
use greengnn_energy::simulator::Mode;
use greengnn_model::policy::Budget;

use super::*;
use crate::probe::Prober;
use crate::tuning::candidates_of_run;
use crate::tuning::stage::TuningStage;
use crate::work::Known;

impl RankStart {
    pub(super) fn prober(&self, plan: ProbePlan) -> Prober {
        Prober {
            rank: self.rank,
            plan,
            book: Arc::clone(self.rows.book()),
            transport: Arc::clone(&self.transport),
            collective: self.filling.clone(),
            row_bytes: self.config.row_type.row_bytes(self.part.manifest().features),
            checksums: self.config.verify,
            meter: self.meter.clone(),
            within: self.config.deadline() * PATIENCE,
        }
    }

    /// What is done before the first epoch where something is to be chosen.
    pub(super) fn tuning_stage(&self, trained: TrainedEpochs, cancelled: watch::Receiver<bool>) -> Option<TuningStage> {
        let config = &self.config;
        let (known, candidates, mode) = match &self.work {
            // A rank that owns every row has nothing to fetch and nothing to choose.
            Work::Train(_) if self.book.parts() == 1 => return None,
            Work::Train(known) if config.window.is_auto() => (known, self.candidates(), Mode::default()),
            Work::Tune(plan) => (&plan.known, plan.candidates.clone(), plan.mode),
            _ => return None,
        };
        let rows = self.rows.book();
        let fewest_rows = (0..rows.parts()).map(|part| rows.part_nodes(part)).min().unwrap_or(0);
        Some(TuningStage {
            prober: self.prober(known.probe.clone().fitting(fewest_rows)),
            known: known.clone(),
            candidates,
            mode,
            only_choose: matches!(self.work, Work::Tune(_)),
            epochs: config.epochs,
            parameters: config.policy_parameters(),
            ahead: config.ahead,
            row_bytes: config.row_type.row_bytes(self.part.manifest().features),
            runtime: tokio::runtime::Handle::current(),
            cancelled,
            trained,
        })
    }

    /// The policy as it is planned where the windows are given and what fetches cost is known; none where it is not.
    pub(super) fn tuned_policy(&self) -> Option<Arc<dyn Policy>> {
        let Work::Train(Known {
            profile: Some(profile), ..
        }) = &self.work
        else {
            return None;
        };
        let parts = self.book.parts();
        let coefficients = profile.coefficients_of(self.rank, parts, u32::from(parts), 0.0, 0.0);
        let tuned = Tuned::by(&coefficients, self.rank, self.config.policy_parameters());
        tuned.policy(&Method::new(&self.config.policy, self.delivery)).ok()
    }

    fn candidates(&self) -> Candidates {
        // The text was checked before the run began.
        let budget = self.config.budget.parse();
        let budget = budget.unwrap_or(Budget::Rows(u64::from(self.budget_rows)));
        candidates_of_run(&self.config.policy, self.config.delivery, budget, &WINDOWS)
    }
}

/// A rank that does nothing but take part in a probe.
pub(super) fn start_prober(
    prober: Prober,
    myself: ActorRef<RankEvent>,
    machine: ActorRef<MachineEvent>,
) -> RankActorState {
    let rank = prober.rank;
    let told = myself;
    let probing = tokio::spawn(async move {
        let working = tokio::spawn(async move { prober.run().await });
        let _ends_with_this = AbortOnDrop(working.abort_handle());
        match working.await {
            Ok(Ok((profile, _))) => {
                let _ = told.cast(RankEvent::Probed(Box::new(profile)));
            }
            Ok(Err(error)) => fail(&told, in_one_line(&error), false),
            Err(error) => fail(&told, format!("the prober of rank {rank} ended: {error}"), false),
        }
    });
    RankActorState {
        machine,
        rank,
        cancelled: Arc::default(),
        _cancel_trainer: watch::Sender::new(false),
        permits: Vec::new(),
        working: probing,
    }
}
