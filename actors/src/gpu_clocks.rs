//! The clocks of a machine's GPUs over a run: low while its ranks sample and fill ahead of training, what they were before
//! when the first step begins, and, as an experiment, low while all of its ranks wait for batches.
//!
//! Before the first step all ranks of the cluster exchange what they will train on, and before a run that chooses its
//! windows probes and tries steps, what hardware they have. A machine has its clocks back before its last rank takes part
//! in the first of these, so that no rank anywhere trains, probes or tries while a clock is low.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greengnn_energy::clocks::{
    ClockControl, ClockError, ClockKeeper, ClockNews, ClockTargets, CudaGpu, GuardProgram, LeaseFolder, LeaseOptions,
    OpenClocks,
};
use greengnn_energy::nvml::NvmlReader;

use greengnn_model::book::Rank;

use crate::config::LowerClocks;

/// How long all ranks of a machine wait for batches before it pays to lower clocks: some time more than the driver takes
/// to set and to restore them.
const LOWERED_AFTER: Duration = Duration::from_millis(100);

/// What a machine's clocks depend on.
pub struct ClockPlan {
    pub lower: LowerClocks,
    /// In training too, while all ranks wait for batches.
    pub while_waiting: bool,
    /// On which devices the ranks train that train on a GPU.
    pub devices: Vec<CudaGpu>,
    /// The processes of the run on this computer.
    pub companions: Vec<u32>,
    /// The ranks of the machine.
    pub ranks: BTreeSet<Rank>,
    /// Restores the clocks if this process cannot.
    pub guard: GuardProgram,
}

/// The clocks of one machine, shared by its ranks.
#[derive(Debug)]
pub struct GpuClocks {
    state: Mutex<State>,
    ranks: usize,
    while_waiting: bool,
}

#[derive(Debug)]
struct State {
    /// None once the run is over for this machine.
    keeper: Option<ClockKeeper>,
    /// Ranks that are not set up yet, and those that have not begun to train.
    setting_up: BTreeSet<Rank>,
    not_training: BTreeSet<Rank>,
    /// Ranks that wait for a batch.
    waiting: usize,
}

impl GpuClocks {
    /// Lowers the clocks from now on, beside everything else. `tell` hears what becomes of them, on another thread.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn lower(plan: ClockPlan, tell: impl FnMut(ClockNews) + Send + 'static) -> std::io::Result<Self> {
        let targets = match plan.lower {
            LowerClocks::Auto => ClockTargets::Devices(plan.devices),
            LowerClocks::Named(uuids) => ClockTargets::Named(uuids),
        };
        let open: OpenClocks = Box::new(move || {
            let (control, uuids) = targets.find(NvmlReader::load)?;
            Ok((Box::new(control), uuids))
        });
        let mut options = LeaseOptions::new(LeaseFolder::default_of_system(), plan.guard);
        if !plan.while_waiting {
            // They have nothing to compute before the first step; later only this machine's own waits are known.
            options.companions = plan.companions;
        }
        let keeper = ClockKeeper::start(open, options, plan.while_waiting, tell)?;
        Ok(Self::kept_by(keeper, plan.ranks, plan.while_waiting))
    }

    fn kept_by(keeper: ClockKeeper, ranks: BTreeSet<Rank>, while_waiting: bool) -> Self {
        keeper.lower_after(Duration::ZERO);
        Self {
            ranks: ranks.len(),
            while_waiting,
            state: Mutex::new(State {
                keeper: Some(keeper),
                setting_up: ranks.clone(),
                not_training: ranks,
                waiting: 0,
            }),
        }
    }

    /// A rank is about to probe or to try steps. The last one returns when the clocks are restored.
    pub fn rank_is_set_up(&self, rank: Rank) {
        self.lock().is_set_up(rank);
    }

    /// A rank has all that it needs for its first step. The last one returns when the clocks are restored.
    pub fn rank_trains(&self, rank: Rank) {
        let mut state = self.lock();
        state.is_set_up(rank);
        state.not_training.remove(&rank);
    }

    /// A rank waits for a batch until the answer is dropped, which returns when the clocks are restored.
    pub fn rank_waits(self: &Arc<Self>) -> RankWaits {
        let mut state = self.lock();
        if !self.while_waiting || !state.not_training.is_empty() {
            return RankWaits(None);
        }
        state.waiting += 1;
        if state.waiting == self.ranks
            && let Some(keeper) = &state.keeper
        {
            keeper.lower_after(LOWERED_AFTER);
        }
        RankWaits(Some(Arc::clone(self)))
    }

    /// Restores the clocks for good.
    pub fn end(&self) {
        let keeper = self.lock().keeper.take();
        drop(keeper);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_set_up(&mut self, rank: Rank) {
        let is_last = self.setting_up.remove(&rank) && self.setting_up.is_empty();
        if is_last && let Some(keeper) = &self.keeper {
            keeper.restore();
        }
    }
}

/// A rank that waits for a batch.
#[must_use = "the wait is over when this is dropped"]
#[derive(Debug)]
pub struct RankWaits(Option<Arc<GpuClocks>>);

impl Drop for RankWaits {
    fn drop(&mut self) {
        if let Some(clocks) = &self.0 {
            let mut state = clocks.lock();
            state.waiting = state.waiting.saturating_sub(1);
            if let Some(keeper) = &state.keeper {
                keeper.restore();
            }
        }
    }
}

/// Restores the clocks that processes which are no more have left low, if there are any, and says so.
pub fn repair() {
    let folder = LeaseFolder::default_of_system();
    let abandoned = |lease: &greengnn_energy::clocks::LeaseRecord| !lease.is_alive();
    match folder.leases() {
        // The driver is loaded only for those who need it.
        Ok(leases) if !leases.iter().any(|(_, lease)| abandoned(lease)) => return,
        Ok(_) => {}
        Err(error) => return tracing::warn!("GPU clocks that were left low are not looked for: {error}"),
    }
    let loaded = NvmlReader::load().map_err(ClockError::NoGpu);
    let repaired = loaded.and_then(|mut control| folder.repair(&mut control as &mut dyn ClockControl));
    match repaired {
        Ok(repaired) => {
            for one in repaired {
                let (pid, gpus) = (one.pid, one.restored.join(", "));
                match one.failed.first() {
                    None => tracing::warn!("restored the clocks of {gpus}, which process {pid} had left low"),
                    Some(error) => tracing::warn!("clocks that process {pid} has left low are not restored: {error}"),
                }
            }
        }
        Err(error) => tracing::warn!("GPU clocks that were left low are not restored: {error}"),
    }
}

#[cfg(test)]
mod tests;
