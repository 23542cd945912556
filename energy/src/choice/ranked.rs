//! The order of candidates, the pick, and the reason for it.

use greengnn_model::plan::Delivery;
use greengnn_model::policy::Budget;

use super::plans::{Extent, Priced};
use super::{Choice, ChoiceError, Method, Prediction};
use crate::calibration::{Calibration, Candidate, Setting};
use crate::simulator::Mode;

/// What all predictions of a choice share.
pub(super) struct Context<'a> {
    pub extent: &'a Extent,
    /// Traced epochs.
    pub epochs: u32,
    pub run_epochs: u32,
    /// One that is used.
    pub calibration: Option<&'a Calibration>,
    pub mode: Mode,
}

/// Orders the windows of one method and budget, the best first; ties by ascending window.
pub(super) fn rank(
    method: &Method,
    budget: Budget,
    mut priced: Vec<Priced>,
    context: &Context<'_>,
) -> Result<Vec<Prediction>, ChoiceError> {
    priced.sort_by_key(|priced| priced.window);
    let epochs = f64::from(context.epochs.max(1));
    let mut predictions: Vec<Prediction> = Vec::with_capacity(priced.len());
    for (index, one) in priced.iter().enumerate() {
        let same = priced[..index].iter().find(|other| other.schedule == one.schedule);
        let cost = match context.mode {
            Mode::Paper => &one.paper,
            Mode::Plan => &one.plan,
        };
        let setup_j = one.setup.physical_j() / f64::from(context.run_epochs.max(1));
        let epoch_j = cost.physical_j() / epochs + setup_j;
        predictions.push(Prediction {
            method: method.clone(),
            budget,
            window: one.window,
            budget_rows: one.budget_rows,
            rank: 0,
            same_schedule_as: same.map(|other| other.window),
            setup: one.setup,
            paper: one.paper,
            plan: one.plan,
            epoch_j,
            score: epoch_j,
        });
    }
    if let Some(calibration) = context.calibration {
        let Extent {
            longest_window,
            needed_rows,
        } = *context.extent;
        let of_setting = setting(&predictions, longest_window, needed_rows, context.mode);
        let scores = calibration.score(&of_setting)?;
        for (prediction, score) in predictions.iter_mut().zip(scores) {
            prediction.score = score;
        }
    }
    order(&mut predictions);
    Ok(predictions)
}

/// Puts the best first, by score, and gives ranks. Schedules that are the same have the figures of the first of them.
pub(super) fn order(predictions: &mut [Prediction]) {
    // A sum over windows that are cut otherwise may differ in its last bit.
    for index in 0..predictions.len() {
        if let Some(window) = predictions[index].same_schedule_as
            && let Some(first) = predictions[..index].iter().find(|other| other.window == window)
        {
            let (epoch_j, score) = (first.epoch_j, first.score);
            (predictions[index].epoch_j, predictions[index].score) = (epoch_j, score);
        }
    }
    predictions.sort_by(|one, other| one.score.total_cmp(&other.score));
    for index in 0..predictions.len() {
        predictions[index].rank = match index.checked_sub(1).map(|before| &predictions[before]) {
            Some(before) if before.score == predictions[index].score => before.rank,
            _ => index as u32 + 1,
        };
    }
}

/// The candidates of one method and budget as a calibration sees them.
pub(super) fn setting(predictions: &[Prediction], steps: u32, needed_rows: u64, mode: Mode) -> Setting {
    let candidate =
        |prediction: &Prediction| Candidate::simulated(prediction.window, prediction.cost(mode), needed_rows);
    let name = predictions.first().map_or_else(String::new, |first| {
        format!("{}, {}", name(&first.method), first.budget)
    });
    Setting {
        name,
        steps,
        candidates: predictions.iter().map(candidate).collect(),
    }
}

/// The pick: of the best of each method and budget the one with the fewest joules; of equals the one with the
/// smaller budget, and then the first.
pub(super) fn pick(predictions: &[Prediction]) -> Option<&Prediction> {
    let mut pick: Option<&Prediction> = None;
    for (index, one) in predictions.iter().enumerate() {
        let heads_its_setting = index == 0 || !is_same_setting(&predictions[index - 1], one);
        let is_better = pick.is_none_or(|best| {
            one.epoch_j < best.epoch_j || (one.epoch_j == best.epoch_j && one.budget_rows < best.budget_rows)
        });
        if heads_its_setting && is_better {
            pick = Some(one);
        }
    }
    pick
}

pub(super) fn is_same_setting(one: &Prediction, other: &Prediction) -> bool {
    one.method == other.method && one.budget == other.budget
}

/// The windows whose schedule is that of `first`: one, or the shortest and the longest of them.
pub(super) fn windows_of_program(predictions: &[Prediction], first: &Prediction) -> String {
    let is_same = |one: &&Prediction| is_same_setting(one, first) && one.same_schedule_as == Some(first.window);
    match predictions.iter().filter(is_same).map(|one| one.window).max() {
        Some(longest) => format!("{}-{longest}", first.window),
        None => first.window.to_string(),
    }
}

/// A method as a person says it.
pub(super) fn name(method: &Method) -> String {
    match method.delivery {
        Delivery::Windowed => method.policy.clone(),
        Delivery::Stream => format!("{}, streamed", method.policy),
    }
}

/// What sets the pick apart, in words.
pub(super) fn why(choice: &Choice) -> String {
    let pick = &choice.pick;
    let mut why = format!(
        "{} with a budget of {} and windows of {}: {:.3} J per epoch predicted",
        name(&pick.method),
        pick.budget,
        pick.window,
        pick.epoch_j
    );
    let setting = || {
        let all = choice.predictions.iter();
        all.filter(|other| is_same_setting(other, pick))
    };
    let ties: Vec<String> = setting()
        .filter(|other| other.rank == pick.rank && other.window != pick.window)
        .map(|other| other.window.to_string())
        .collect();
    if !ties.is_empty() {
        why += &format!(", the same with windows of {}", ties.join(", "));
    }
    if let Some(next) = setting().find(|other| other.rank > pick.rank) {
        why += &format!("; the next window is {} with {}", next.window, against(pick, next));
    }
    let others = choice.predictions.iter().filter(|other| !is_same_setting(other, pick));
    if let Some(other) = others.min_by(|one, other| one.epoch_j.total_cmp(&other.epoch_j)) {
        let (name, budget) = (name(&other.method), &other.budget);
        let (window, against) = (other.window, against(pick, other));
        why += &format!("; the best other way is {name} with {budget} and windows of {window} with {against}");
    }
    if choice.is_calibrated {
        why += "; a calibration ordered the windows";
    }
    why
}

/// The joules of another candidate beside those of the pick.
fn against(pick: &Prediction, other: &Prediction) -> String {
    if pick.epoch_j > 0.0 {
        let more = 100.0 * (other.epoch_j / pick.epoch_j - 1.0);
        format!("{:.3} J ({more:+.1} %)", other.epoch_j)
    } else {
        format!("{:.3} J", other.epoch_j)
    }
}
