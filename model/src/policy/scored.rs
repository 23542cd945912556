//! Static policies that rank rows by a score: the best are fetched at set-up and stay for the whole run.
//!
//! | policy | of | score of a remote row |
//! |---|---|---|
//! | `degree` | PaGraph (Lin et al., SoCC 2020) | how many neighbour lists name it |
//! | `presample` | GNNLab (Yang et al., EuroSys 2022) | how many batches of `K` presampled epochs need it |
//! | `vip` | SALIENT++ (Kaler et al., MLSys 2023) | the probability that a batch needs it |
//!
//! They differ in nothing but the scores, which [`scores`](super::scores) and [`vip`](super::vip()) compute from a graph
//! and from traces. A rank has neither when it fills its cache, so whoever runs it gives them ([`FillInput::scores`]).

use super::pinned::{fill_rows, plan_pinned};
use super::{Fill, FillError, FillInput, PlanError, PlanInput, Planner, Policy, ScoreKind};
use crate::book::{NodeId, PartitionBook, Rank};

/// Holds the rows of highest score, ties by ascending id, for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticByScore {
    pub kind: ScoreKind,
}

impl Policy for StaticByScore {
    fn name(&self) -> &'static str {
        match self.kind {
            ScoreKind::Degree => "degree",
            ScoreKind::Presample { .. } => "presample",
            ScoreKind::Vip => "vip",
        }
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    // `fill` stays empty: without scores no row is better than another.
    fn score_kind(&self) -> Option<ScoreKind> {
        Some(self.kind)
    }

    fn fill_scored(&self, input: FillInput<'_>) -> Result<Fill, FillError> {
        let FillInput { book, rank, .. } = input;
        let policy = self.name();
        let scores = input.scores.ok_or(FillError::NoScores { policy })?;
        if scores.len() != book.nodes() as usize {
            return Err(FillError::ScoreCount {
                policy,
                scores: scores.len(),
                nodes: book.nodes(),
            });
        }
        if let Some(node) = (0..)
            .zip(scores)
            .find(|(_, score)| score.is_nan())
            .map(|(node, _)| node)
        {
            return Err(FillError::NotANumber { policy, node });
        }
        Ok(fill_rows(book, &best_rows(book, rank, scores, input.budget_rows)))
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        plan_pinned(input)
    }
}

/// The `budget_rows` remote rows of highest score, ties by ascending id; in ascending order of their ids.
fn best_rows(book: &PartitionBook, rank: Rank, scores: &[f64], budget_rows: u32) -> Vec<NodeId> {
    let own = book.range(rank);
    let mut rows: Vec<NodeId> = (0..own.start).chain(own.end..book.nodes()).collect();
    let budget_rows = budget_rows as usize;
    if budget_rows < rows.len() {
        let score = |node: &NodeId| scores[*node as usize];
        // No score is NaN, and both zeros are one score, so this is a total order.
        rows.select_nth_unstable_by(budget_rows, |one, other| {
            let falling = score(other).partial_cmp(&score(one));
            falling.unwrap_or(std::cmp::Ordering::Equal).then(one.cmp(other))
        });
        rows.truncate(budget_rows);
        rows.sort_unstable();
    }
    rows
}
