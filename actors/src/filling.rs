//! What a rank's cache holds before the first step: nothing, every remote row, or the rows that score best.
//!
//! A rank does not know the scores of remote rows by itself. Degrees are added up over all ranks, since every owner
//! knows the edges into its own nodes; presampled counts are drawn by sampling epochs that are never trained on.

use std::sync::Arc;

use greengnn_model::book::Rank;
use greengnn_model::counters::{Period, Phase};
use greengnn_model::policy::scores::{UnknownNeighbor, degree_scores, out_degrees, presample_counts};
use greengnn_model::policy::{Fill, FillError, FillInput, PlanError, Policy, RemoteTrace, ScoreKind};
use greengnn_model::rows::RowBook;
use greengnn_model::store::PartStore;

use crate::causes::in_one_line;
use crate::collective::{Collective, CollectiveError, Moment};
use crate::presampler::{Presampler, PresamplerError};
use crate::transport::ParcelKind;

/// Why a cache could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum FillingError {
    #[error(transparent)]
    Fill(#[from] FillError),
    #[error(transparent)]
    Degrees(#[from] UnknownNeighbor),
    #[error("the degrees of all nodes could not be added up: {}", in_one_line(.0))]
    Gather(#[from] CollectiveError),
    #[error(transparent)]
    Presample(#[from] PresamplerError),
    #[error(transparent)]
    Counts(#[from] PlanError),
    #[error("policy {policy} ranks rows by what needs the whole graph, which no rank has")]
    NoScores { policy: &'static str },
    #[error("scores could not be computed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Everything that decides a rank's fill.
pub struct Filling {
    pub rank: Rank,
    pub policy: Arc<dyn Policy>,
    pub rows: Arc<RowBook>,
    pub part: Arc<PartStore>,
    pub budget_rows: u32,
    pub presampler: Presampler,
    pub collective: Collective,
}

impl Filling {
    /// Computes the scores that the policy wants, and asks it for its fill.
    pub async fn plan(self) -> Result<Fill, FillingError> {
        let scores = match self.policy.score_kind() {
            None => None,
            Some(ScoreKind::Degree) => Some(self.rows.by_row(self.degrees().await?)),
            Some(ScoreKind::Presample { epochs }) => Some(self.presampled(epochs).await?),
            Some(ScoreKind::Vip) => {
                return Err(FillingError::NoScores {
                    policy: self.policy.name(),
                });
            }
        };
        let input = FillInput {
            book: self.rows.book(),
            rank: self.rank,
            budget_rows: self.budget_rows,
            scores: scores.as_deref(),
        };
        Ok(self.policy.fill_scored(input)?)
    }

    /// Out-degrees of all nodes: each rank counts over the in-edges of its own nodes, and the counts add up.
    async fn degrees(&self) -> Result<Vec<f64>, FillingError> {
        let (part, nodes) = (Arc::clone(&self.part), self.rows.book().nodes());
        let own = tokio::task::spawn_blocking(move || out_degrees([part.topology()], nodes)).await??;
        let bytes = bytemuck::cast_slice(&own).to_vec();
        let moment = Moment {
            epoch: 0,
            step: 0,
            period: Period {
                epoch: 0,
                phase: Phase::Setup,
            },
        };
        let mut degrees = vec![0u32; nodes as usize];
        for counts in self.collective.all_gather(ParcelKind::Degrees, moment, bytes).await? {
            let counts: Vec<u32> = bytemuck::pod_collect_to_vec(&counts);
            degrees
                .iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum = sum.saturating_add(count));
        }
        Ok(degree_scores(&degrees))
    }

    /// In how many batches of presampled epochs each row is needed.
    async fn presampled(&self, epochs: u32) -> Result<Vec<f64>, FillingError> {
        let (presampler, book, rank) = (self.presampler.clone(), Arc::clone(self.rows.book()), self.rank);
        let counted = tokio::task::spawn_blocking(move || {
            let traces = (0..epochs)
                .map(|epoch| presampler.count_only(epoch))
                .collect::<Result<Vec<_>, _>>()?;
            let traces = traces.iter().map(|trace| trace as &dyn RemoteTrace);
            Ok::<_, FillingError>(presample_counts(traces, &book, rank)?)
        });
        counted.await?
    }
}
