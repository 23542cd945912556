//! `greengnn tune --calibrate`: some windows are run, and what they cost corrects the order of all.

use greengnn_energy::calibration::{Calibration, CalibrationError, CalibrationOptions, MeasuredCost, Setting};
use greengnn_energy::choice::{Choice, Prediction};
use greengnn_energy::simulator::RepeatedRuns;

use super::Tune;
use super::runs::{CandidateRun, Costs};
use crate::cli::output::note;
use crate::work::Chosen;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs `windows` of every method and budget, learns, keeps the calibration, and orders the candidates by it.
pub(super) fn run(tune: &Tune, chosen: Chosen, windows: &[u32]) -> Result<Choice, Failure> {
    let choice = &chosen.choice;
    let settings: Vec<&[Prediction]> = choice.settings().collect();
    let mut candidates = Vec::new();
    for predictions in &settings {
        candidates.extend(of_windows(predictions, windows).map(|prediction| CandidateRun {
            config: &tune.config,
            prediction,
            profile: &chosen.profile,
        }));
    }
    let costs = tune.runs().costs(&candidates)?;
    let mut first = 0;
    let mut learnt_from: Vec<Setting> = Vec::new();
    for predictions in settings {
        let ran: Vec<&Prediction> = of_windows(predictions, windows).collect();
        let mut setting = choice.calibration_setting(predictions);
        add_costs(&mut setting, &ran, &costs, first);
        first += ran.len();
        learnt_from.push(setting);
    }
    let fingerprint = chosen.profile.fingerprint.clone();
    let calibration = match Calibration::learn(&learnt_from, CalibrationOptions::default(), fingerprint, choice.mode) {
        Err(CalibrationError::NothingToLearn) => {
            note(format_args!(
                "calibration: {}; the simulator decides alone",
                CalibrationError::NothingToLearn
            ));
            // One of before would still order the windows of the next run.
            tune.folder.forget_calibration()?;
            return Ok(chosen.choice);
        }
        learnt => learnt?,
    };
    calibration.save(&tune.folder.calibration_path())?;
    let judged = calibration.leave_one_out;
    note(format_args!(
        "calibration: of {} pairs of windows, each predicted without one of the two, the simulator orders {} wrongly and the \
         calibrated score {}; it is {}",
        judged.pairs,
        judged.analytic_wrong,
        judged.learnt_wrong,
        if calibration.is_used { "used" } else { "not used" }
    ));
    Ok(chosen.choice.calibrated(&calibration)?)
}

/// The predictions of the windows that are run: of those that are one program the first.
fn of_windows<'a>(predictions: &'a [Prediction], windows: &'a [u32]) -> impl Iterator<Item = &'a Prediction> {
    let is_run =
        |prediction: &&Prediction| windows.contains(&prediction.window) && prediction.same_schedule_as.is_none();
    predictions.iter().filter(is_run)
}

/// Adds what windows cost to the candidates of a setting; `first` is the number of its first run.
fn add_costs(setting: &mut Setting, ran: &[&Prediction], costs: &Costs, first: usize) {
    let runs = RepeatedRuns {
        name: setting.name.clone(),
        windows: ran.iter().map(|prediction| prediction.window).collect(),
        programs: ran.iter().map(|prediction| prediction.window).collect(),
        simulated: ran.iter().map(|prediction| prediction.epoch_j).collect(),
        costs: (first..first + ran.len())
            .map(|run| {
                let of_run = costs.get(&run).map(Vec::as_slice).unwrap_or_default();
                of_run.iter().map(|cost| cost.cpu_s).collect()
            })
            .collect(),
    };
    // The interval of a difference of two means is as wide as the sum of what the calibration adds up.
    let half_width = runs.half_width().unwrap_or(0.0) / 2.0;
    for (window, mean) in runs.windows.iter().zip(runs.means()) {
        let candidate = setting
            .candidates
            .iter_mut()
            .find(|candidate| candidate.window == *window);
        if let Some(candidate) = candidate {
            candidate.measured = Some(MeasuredCost { mean, half_width });
        }
    }
}
