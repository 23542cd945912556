//! `greengnn tune --evaluate`: every candidate is run, and the choice is held against what they cost.

use std::fmt::Write as _;

use greengnn_energy::choice::{Choice, Prediction};
use greengnn_energy::quality::Quality;
use greengnn_energy::simulator::{Configuration, RepeatedRuns, evaluate};
use serde::Serialize;

use super::runs::{CandidateRun, Costs, EpochCost};
use super::{CliResult, Tune};
use crate::cli::output::print;
use crate::config::TrainConfig;
use crate::work::Chosen;

/// A regret below this is none, however well it was measured.
const ACCEPTED_REGRET: f64 = 0.02;

/// One method, budget and batch size: what was expected of each window, and what it cost.
#[derive(Serialize)]
struct Evaluated {
    policy: String,
    delivery: String,
    budget: String,
    batch_size: u32,
    /// Steps per epoch, at most: longer windows are the same program.
    longest_window: u32,
    windows: Vec<EvaluatedWindow>,
}

#[derive(Serialize)]
struct EvaluatedWindow {
    window: u32,
    /// The first window whose schedule is the same, which was run for both.
    program: u32,
    predicted_rank: u32,
    predicted_j: f64,
    /// By repeat.
    runs: Vec<EpochCost>,
}

/// What is counted as the cost of a run.
#[derive(Clone, Copy)]
struct Measure {
    name: &'static str,
    has_quality: bool,
    of: fn(&EpochCost) -> Option<f64>,
}

const CPU: Measure = Measure {
    name: "CPU seconds",
    has_quality: false,
    of: |cost| Some(cost.cpu_s),
};
const JOULES: Measure = Measure {
    name: "joules",
    has_quality: true,
    of: |cost| cost.joules,
};

pub(super) fn run(tune: &Tune) -> CliResult {
    let batch_sizes = tune
        .args
        .batch_sizes
        .clone()
        .unwrap_or_else(|| vec![tune.config.batch_size]);
    let configs: Vec<TrainConfig> = batch_sizes
        .iter()
        .map(|batch_size| TrainConfig {
            batch_size: *batch_size,
            ..tune.config.clone()
        })
        .collect();
    let mut choices: Vec<(&TrainConfig, Chosen)> = Vec::new();
    for config in &configs {
        config.check()?;
        choices.push((config, tune.choose(config)?));
    }
    let mut candidates = Vec::new();
    for (config, Chosen { choice, profile, .. }) in &choices {
        let programs = choice.predictions.iter().filter(|one| one.same_schedule_as.is_none());
        candidates.extend(programs.map(|prediction| CandidateRun {
            config,
            prediction,
            profile,
        }));
    }
    let costs = tune.runs().costs(&candidates)?;
    let mut first = 0;
    let mut evaluated = Vec::new();
    for (config, Chosen { choice, .. }) in &choices {
        for predictions in choice.settings() {
            evaluated.push(of_setting(config, choice, predictions, &costs, &mut first));
        }
    }
    tune.write_evaluation(&evaluated)?;
    if tune.args.json {
        print(serde_json::to_string_pretty(&evaluated)?)?;
        return Ok(());
    }
    let reports = [report(&evaluated, CPU)?, report(&evaluated, JOULES)?].concat();
    print(reports.trim_end())?;
    print(format_args!("all runs: {}", tune.folder.evaluation_path().display()))?;
    Ok(())
}

/// Puts together what was expected and measured. `first` is the number of the setting's first run.
fn of_setting(
    config: &TrainConfig,
    choice: &Choice,
    predictions: &[Prediction],
    costs: &Costs,
    first: &mut usize,
) -> Evaluated {
    let ran: Vec<u32> = predictions
        .iter()
        .filter(|prediction| prediction.same_schedule_as.is_none())
        .map(|prediction| prediction.window)
        .collect();
    let runs_of = |window: u32| {
        let place = ran.iter().position(|other| *other == window)?;
        costs.get(&(*first + place)).cloned()
    };
    let mut windows: Vec<EvaluatedWindow> = predictions
        .iter()
        .map(|prediction| {
            let program = prediction.same_schedule_as.unwrap_or(prediction.window);
            EvaluatedWindow {
                window: prediction.window,
                program,
                predicted_rank: prediction.rank,
                predicted_j: prediction.epoch_j,
                runs: runs_of(program).unwrap_or_default(),
            }
        })
        .collect();
    windows.sort_by_key(|window| window.window);
    *first += ran.len();
    let one = predictions.first();
    Evaluated {
        policy: one.map_or_else(String::new, |one| one.method.policy.clone()),
        delivery: one.map_or_else(String::new, |one| one.method.delivery.name().to_owned()),
        budget: one.map_or_else(String::new, |one| one.budget.to_string()),
        batch_size: config.batch_size,
        longest_window: choice.longest_window,
        windows,
    }
}

impl Evaluated {
    fn name(&self) -> String {
        format!(
            "{} ({}), {}, batch {}",
            self.policy, self.delivery, self.budget, self.batch_size
        )
    }

    fn repeated(&self, measure: Measure) -> Option<RepeatedRuns> {
        let costs = self
            .windows
            .iter()
            .map(|window| window.runs.iter().map(measure.of).collect());
        Some(RepeatedRuns {
            name: self.name(),
            windows: self.windows.iter().map(|window| window.window).collect(),
            programs: self.windows.iter().map(|window| window.program).collect(),
            simulated: self
                .windows
                .iter()
                .map(|window| f64::from(window.predicted_rank))
                .collect(),
            costs: costs.collect::<Option<Vec<Vec<f64>>>>()?,
        })
    }

    fn is_one_program(&self) -> bool {
        self.windows.windows(2).all(|two| two[0].program == two[1].program)
    }

    fn pick(&self) -> u32 {
        let best = self
            .windows
            .iter()
            .min_by_key(|window| (window.predicted_rank, window.window));
        best.map_or(0, |window| window.window)
    }

    fn qualities(&self) -> impl Iterator<Item = Quality> {
        let runs = self.windows.iter().flat_map(|window| &window.runs);
        runs.map(|run| run.quality)
    }
}

/// The evaluation by one measure, as a text: setting by setting, then all orders beside the best that is the same everywhere,
/// for every method apart.
fn report(evaluated: &[Evaluated], measure: Measure) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut text = String::new();
    let qualities = || evaluated.iter().flat_map(Evaluated::qualities);
    let (best, worst) = (
        qualities().min().unwrap_or_default(),
        qualities().max().unwrap_or_default(),
    );
    if measure.has_quality && best != worst {
        writeln!(
            text,
            "joules of some runs are {best} and of others {worst}; they are not compared"
        )?;
        return Ok(text);
    }
    let label = match measure.has_quality {
        true => format!("{} per epoch ({worst})", measure.name),
        false => format!("{} per epoch", measure.name),
    };
    let mut methods: Vec<(&str, &str)> = evaluated.iter().map(|one| (&*one.policy, &*one.delivery)).collect();
    methods.sort_unstable();
    methods.dedup();
    for (policy, delivery) in methods {
        writeln!(text, "{policy} ({delivery}), by {label}:")?;
        let mut told_apart: Vec<Configuration> = Vec::new();
        let mut noise: f64 = 0.0;
        for one in evaluated
            .iter()
            .filter(|one| one.policy == policy && one.delivery == delivery)
        {
            if one.is_one_program() {
                writeln!(text, "  {}: all windows are one program", one.name())?;
                continue;
            }
            let Some(runs) = one.repeated(measure) else {
                writeln!(text, "  {}: the energy of a run is not known", one.name())?;
                continue;
            };
            let Some(picked) = runs.regret_of(one.pick()) else {
                writeln!(text, "  {}: a candidate cost nothing", one.name())?;
                continue;
            };
            let verdict = if picked.regret <= ACCEPTED_REGRET.max(picked.noise) {
                "accepted"
            } else {
                "too much"
            };
            writeln!(
                text,
                "  {}: measured {}; simulated {}; picks {}, {:+.1} % against {} (noise {:.1} %, {verdict})",
                one.name(),
                groups(&runs.measured_order()),
                groups(&simulated_order(one)),
                picked.pick,
                100.0 * picked.regret,
                picked.best,
                100.0 * picked.noise,
            )?;
            if runs.can_be_told_apart() {
                noise = noise.max(picked.noise);
                told_apart.push(runs.configuration(one.longest_window));
            } else {
                writeln!(
                    text,
                    "    no two of its candidates can be told apart; it is left out below"
                )?;
            }
        }
        if told_apart.is_empty() {
            writeln!(text, "  nothing is left to hold orders against")?;
        } else {
            write!(text, "{}", evaluate(&told_apart, noise)?)?;
        }
    }
    Ok(text)
}

fn simulated_order(one: &Evaluated) -> Vec<Vec<u32>> {
    let mut ranks: Vec<(u32, u32)> = one
        .windows
        .iter()
        .map(|window| (window.predicted_rank, window.window))
        .collect();
    ranks.sort_unstable();
    ranks
        .chunk_by(|one, other| one.0 == other.0)
        .map(|group| group.iter().map(|(_, window)| *window).collect())
        .collect()
}

/// An order in which those of a group cannot be told apart: `16=32<8<1`.
fn groups(order: &[Vec<u32>]) -> String {
    let group = |group: &Vec<u32>| group.iter().map(u32::to_string).collect::<Vec<_>>().join("=");
    order.iter().map(group).collect::<Vec<_>>().join("<")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(cpu_s: f64, joules: Option<f64>) -> EpochCost {
        EpochCost {
            cpu_s,
            joules,
            quality: Quality::Estimated,
            wall_s: 1.0,
        }
    }

    fn evaluated(batch_size: u32, costs: [[f64; 2]; 3]) -> Evaluated {
        let window = |(index, runs): (usize, [f64; 2])| EvaluatedWindow {
            window: 1 << index,
            program: 1 << index,
            predicted_rank: 3 - index as u32,
            predicted_j: 3.0 - index as f64,
            runs: runs.map(|cpu_s| cost(cpu_s, Some(cpu_s * 3.0))).to_vec(),
        };
        Evaluated {
            policy: "window".to_owned(),
            delivery: "windowed".to_owned(),
            budget: "5%".to_owned(),
            batch_size,
            longest_window: 100,
            windows: costs.into_iter().enumerate().map(window).collect(),
        }
    }

    #[test]
    fn a_report_has_orders_regrets_and_the_best_constant_order() {
        let right = evaluated(100, [[9.0, 9.1], [6.0, 6.1], [3.0, 3.1]]);
        let wrong = evaluated(200, [[3.0, 3.1], [6.0, 6.1], [9.0, 9.1]]);
        let text = report(&[right, wrong], CPU).unwrap();
        assert!(
            text.contains("batch 100: measured 4<2<1; simulated 4<2<1; picks 4, +0.0 %"),
            "{text}"
        );
        assert!(
            text.contains("batch 200: measured 1<2<4") && text.contains("too much"),
            "{text}"
        );
        assert!(
            text.contains("constant order chosen on the other configurations"),
            "{text}"
        );
        let joules = report(&[evaluated(100, [[9.0, 9.1], [6.0, 6.1], [3.0, 3.1]])], JOULES).unwrap();
        assert!(joules.contains("joules per epoch (estimated)"), "{joules}");
    }

    #[test]
    fn what_cannot_be_told_apart_is_listed_and_left_out() {
        let noisy = evaluated(100, [[9.0, 6.0], [6.1, 9.1], [9.2, 6.2]]);
        let text = report(&[noisy], CPU).unwrap();
        assert!(text.contains("no two of its candidates can be told apart"), "{text}");
        assert!(text.contains("nothing is left"), "{text}");
    }

    #[test]
    fn windows_that_are_one_program_are_not_compared() {
        let mut one = evaluated(100, [[9.0, 9.1]; 3]);
        one.windows.iter_mut().for_each(|window| window.program = 1);
        let text = report(&[one], CPU).unwrap();
        assert!(
            text.contains("all windows are one program") && !text.contains("inf"),
            "{text}"
        );
    }

    #[test]
    fn joules_of_different_quality_are_not_compared() {
        let mut mixed = evaluated(100, [[9.0, 9.1], [6.0, 6.1], [3.0, 3.1]]);
        mixed.windows[0].runs[0].quality = Quality::Measured;
        let text = report(&[mixed], JOULES).unwrap();
        assert!(text.contains("measured and of others estimated"), "{text}");
        assert!(!text.contains("picks"), "{text}");
    }

    #[test]
    fn energy_that_is_not_known_is_no_zero() {
        let mut unknown = evaluated(100, [[9.0, 9.1], [6.0, 6.1], [3.0, 3.1]]);
        unknown.windows[1].runs[0].joules = None;
        let text = report(&[unknown], JOULES).unwrap();
        assert!(text.contains("the energy of a run is not known"), "{text}");
    }
}
