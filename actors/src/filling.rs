//! What a rank's cache holds before the first step: nothing, every remote row, or the rows that score best.
//!
//! A rank does not know the scores of remote rows by itself. Degrees are added up over all ranks, since every owner
//! knows the edges into its own nodes; inclusion probabilities are [estimated](inclusion) by all of them hop by hop;
//! presampled counts are drawn by sampling epochs that are never trained on.

pub mod inclusion;

use std::sync::Arc;

use greengnn_model::book::Rank;
use greengnn_model::counters::{Period, Phase};
use greengnn_model::policy::scores::{UnknownNeighbor, corrected, degree_scores, out_degrees};
use greengnn_model::policy::{Fill, FillError, FillInput, Policy, ScoreKind};
use greengnn_model::rng::Purpose;
use greengnn_model::rows::RowBook;
use greengnn_model::store::PartStore;

use crate::causes::in_one_line;
use crate::collective::{Collective, CollectiveError, Moment};
use crate::presampler::{Presampler, PresamplerError};
use crate::transport::ParcelKind;

use inclusion::{InclusionError, Sampling};

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
    #[error("the inclusion probabilities could not be estimated: {}", in_one_line(.0))]
    Inclusion(#[from] InclusionError),
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
    pub device_rows: u32,
    pub presampler: Presampler,
    pub collective: Collective,
}

impl Filling {
    /// Computes the scores that the policy wants, and asks it for its fill.
    pub async fn plan(self) -> Result<Fill, FillingError> {
        let of_nodes = match self.policy.score_kind() {
            None => None,
            Some(ScoreKind::Degree) => Some(self.degrees().await?),
            Some(ScoreKind::Presample { epochs }) => Some(self.presampled(epochs).await?),
            Some(ScoreKind::Vip) => Some(self.estimated().await?),
            Some(ScoreKind::CorrectedVip { weight, epochs }) => {
                let (estimate, counts) = (self.estimated().await?, self.presampled(epochs).await?);
                let seeds = self.part.split(Purpose::Train).len() as u32;
                let batches = seeds.div_ceil(self.presampler.config.batch_size.max(1));
                Some(corrected(&estimate, batches, &counts, epochs, weight))
            }
        };
        let scores = of_nodes.map(|scores| self.rows.by_row(scores));
        let input = FillInput {
            book: self.rows.book(),
            rank: self.rank,
            budget_rows: self.budget_rows,
            device_rows: self.device_rows,
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

    /// With which probability a batch of this rank needs each node.
    async fn estimated(&self) -> Result<Vec<f64>, FillingError> {
        let config = &self.presampler.config;
        let (part, book) = (Arc::clone(&self.part), Arc::clone(&self.presampler.book));
        let sampling = Sampling {
            batch_size: config.batch_size,
            fanouts: config.fanouts.clone(),
        };
        Ok(inclusion::probabilities(&self.collective, book, part, sampling).await?)
    }

    /// In how many batches of presampled epochs each node is needed.
    async fn presampled(&self, epochs: u32) -> Result<Vec<f64>, FillingError> {
        let (presampler, nodes) = (self.presampler.clone(), self.rows.book().nodes());
        let counted = tokio::task::spawn_blocking(move || {
            let mut counts = vec![0f64; nodes as usize];
            for epoch in 0..epochs {
                presampler.count_nodes(epoch, &mut counts)?;
            }
            Ok::<_, FillingError>(counts)
        });
        counted.await?
    }
}
