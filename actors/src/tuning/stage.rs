//! What has to be known before a choice: what fetches cost and what a step takes. Known from before, or found out at set-up.

use greengnn_energy::choice::Candidates;
use greengnn_model::counters::Traffic;
use tokio::sync::mpsc;

use super::*;
use crate::prefetcher::{PrefetchError, Prefetched, Prefetcher};
use crate::presampler::EpochTrace;
use crate::probe::{ProbeError, Prober};
use crate::work::Known;

/// The step of the moment in which ranks tell what a step takes.
const STEP_TIMES: u32 = 3;
/// And before they try.
const TRIALS_BEGIN: u32 = 4;

/// Why a choice could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Trial(#[from] PrefetchError),
    #[error(transparent)]
    Tuning(#[from] TuningError),
}

/// One rank's part in finding out.
pub struct TuningStage {
    pub prober: Prober,
    pub known: Known,
    pub candidates: Candidates,
    pub mode: Mode,
    /// Choose and do not train.
    pub only_choose: bool,
    /// Epochs of the run.
    pub epochs: u32,
    pub parameters: PolicyParameters,
    pub ahead: u32,
    pub row_bytes: usize,
    pub runtime: Handle,
    pub cancelled: watch::Receiver<bool>,
    pub trained: TrainedEpochs,
}

impl TuningStage {
    /// What fetches cost: as it is known of this hardware, or as a probe finds it. With the traffic of the probe.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub async fn profile(&mut self) -> Result<(Profile, Traffic), StageError> {
        let (here, placement) = self.prober.hardware().await?;
        let calibration = self.known.calibration.as_ref();
        if let Some(Err(why)) = calibration.map(|calibration| calibration.check(&here, self.mode)) {
            self.note(&format!("{why}; it is not used"));
            self.known.calibration = None;
        }
        let Some(profile) = self.known.profile.take() else {
            return Ok(self.prober.run().await?);
        };
        let fits = profile
            .check_hardware(&here)
            .and_then(|()| profile.check_use(&placement, self.prober.checksums, self.row_bytes as u32));
        match fits {
            Ok(()) => Ok((*profile, Traffic::default())),
            Err(why) => {
                self.note(&format!("{why}; probing anew"));
                Ok(self.prober.run().await?)
            }
        }
    }

    /// What a step takes at every rank, from steps that all of them try at once.
    ///
    /// # Errors
    /// A trace that cannot be read, or a rank that does not answer.
    pub async fn step_times(
        &self,
        prefetcher: &Prefetcher,
        trace: &Arc<EpochTrace>,
        trainer: &mpsc::Sender<Prefetched>,
    ) -> Result<Vec<f64>, StageError> {
        // All of them at once, as in a run: none while another still samples.
        gather(&self.prober.collective, 0, TRIALS_BEGIN, &()).await?;
        let own = prefetcher.try_steps(trace, trainer).await?;
        let all: Vec<Option<f64>> = gather(&self.prober.collective, 0, STEP_TIMES, &own).await?;
        // Without a training step there is nothing to take time, at any rank: all have as many.
        Ok(all.into_iter().map(|step_s| step_s.unwrap_or(0.0)).collect())
    }

    /// The tuner of the rank.
    pub fn tuner(self, profile: Profile, step_s: Vec<f64>) -> Tuner {
        let setting = TuningSetting {
            candidates: self.candidates,
            mode: self.mode,
            epochs: self.epochs,
            row_bytes: self.row_bytes,
            parameters: self.parameters,
            ahead: self.ahead,
            profile,
            step_s,
            calibration: self.known.calibration.map(|calibration| *calibration),
        };
        Tuner::new(
            self.prober.collective,
            self.prober.book,
            self.runtime,
            self.cancelled,
            self.trained,
            setting,
        )
    }

    /// Says something once for all ranks.
    fn note(&self, line: &str) {
        if self.prober.rank == 0 {
            tracing::warn!("{line}");
        }
    }
}
