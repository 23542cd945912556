//! Static policies that rank rows by a score: the best are fetched at set-up and stay for the whole run.
//!
//! | policy | of | score of a remote row |
//! |---|---|---|
//! | `degree` | PaGraph (Lin et al., SoCC 2020) | how many neighbour lists name it |
//! | `presample` | GNNLab (Yang et al., EuroSys 2022) | how many batches of `K` presampled epochs need it |
//! | `vip` | SALIENT++ (Kaler et al., MLSys 2023) | the probability that a batch needs it |
//!
//! They differ in nothing but the scores, which [`scores`](super::scores) and [`vip`](super::vip()) compute from a graph
//! and from traces. A rank has neither when it fills its cache, so whoever runs it gives them ([`FillInput::scores`]). Where
//! the device keeps rows, these are the first of the ranking.

use std::cmp::Ordering;

use super::pinned::{fill_levels, plan_pinned};
use super::{Fill, FillError, FillInput, PlanError, PlanInput, Planner, Policy, ScoreKind};
use crate::book::NodeId;
use crate::plan::DeviceRows;

/// Holds the rows of highest score, ties by ascending id, for the whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StaticByScore {
    pub kind: ScoreKind,
}

impl Policy for StaticByScore {
    fn name(&self) -> &'static str {
        match self.kind {
            ScoreKind::Degree => "degree",
            ScoreKind::Presample { .. } => "presample",
            ScoreKind::Vip | ScoreKind::CorrectedVip { .. } => "vip",
        }
    }

    fn keeps_across_epochs(&self) -> bool {
        true
    }

    fn has_levels(&self) -> bool {
        true
    }

    // `fill` stays empty: without scores no row is better than another.
    fn score_kind(&self) -> Option<ScoreKind> {
        Some(self.kind)
    }

    fn fill_scored(&self, input: FillInput<'_>) -> Result<Fill, FillError> {
        let FillInput { book, rank, .. } = input;
        let scores = checked_scores(self.name(), &input)?;
        let mut rows: Vec<NodeId> = book.remote_ids(rank).collect();
        keep_best(&mut rows, scores, input.budget_rows);
        let mut device = rows.clone();
        keep_best(&mut device, scores, input.device_rows);
        rows.retain(|node| device.binary_search(node).is_err());
        let mut fill = fill_levels(book, &device, &rows);
        fill.device = DeviceRows {
            slots: device.len() as u32,
            own: Vec::new(),
        };
        Ok(fill)
    }

    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError> {
        plan_pinned(input)
    }
}

/// The scores of a fill's input, one per node and all of them numbers.
pub(super) fn checked_scores<'a>(policy: &'static str, input: &FillInput<'a>) -> Result<&'a [f64], FillError> {
    let scores = input.scores.ok_or(FillError::NoScores { policy })?;
    let nodes = input.book.nodes();
    if scores.len() != nodes as usize {
        return Err(FillError::ScoreCount {
            policy,
            scores: scores.len(),
            nodes,
        });
    }
    match (0..nodes).zip(scores).find(|(_, score)| score.is_nan()) {
        Some((node, _)) => Err(FillError::NotANumber { policy, node }),
        None => Ok(scores),
    }
}

/// Keeps the `count` rows of highest score, ties by ascending id, in ascending order of their ids, which is their order.
fn keep_best(rows: &mut Vec<NodeId>, scores: &[f64], count: u32) {
    let count = count as usize;
    if count < rows.len() {
        rows.select_nth_unstable_by(count, by_falling_score(scores));
        rows.truncate(count);
        rows.sort_unstable();
    }
}

/// By falling score, ties by ascending id. No score is NaN, and both zeros are one score, so this is a total order.
pub(super) fn by_falling_score(scores: &[f64]) -> impl Fn(&NodeId, &NodeId) -> Ordering {
    let score = |node: &NodeId| scores[*node as usize];
    move |one, other| {
        let falling = score(other).partial_cmp(&score(one));
        falling.unwrap_or(Ordering::Equal).then(one.cmp(other))
    }
}
