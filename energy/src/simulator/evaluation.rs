//! How good a choice is, beside a choice that has learnt nothing.
//!
//! A simulator whose order is the same everywhere is a constant, and a constant may score well: the simulated ranks of
//! the paper's Table III are one vector in all nine configurations. So the score of the best constant order always stands
//! beside the simulator's: chosen in hindsight on the same configurations, and chosen on the others.

use std::fmt;

use crate::simulator::ranking::{RankError, check_candidates, kendall_tau_b, sign, tie_same_programs, untied_pairs};

/// The best constant order is found among all orders of at most this many windows.
const MOST_WINDOWS: usize = 14;

/// What was measured of each candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// Their energies.
    Joules(Vec<f64>),
    /// Only their ranks, 1 the best, as in the paper. They have no regret.
    Ranks(Vec<f64>),
}

impl Measured {
    fn figures(&self) -> &[f64] {
        match self {
            Self::Joules(figures) | Self::Ranks(figures) => figures,
        }
    }
}

/// One graph, batch size and cluster for which all candidates were simulated and measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    pub name: String,
    /// The candidates, the same in all configurations.
    pub windows: Vec<u32>,
    /// Steps per epoch, so that candidates that are the same program are ties; none where it is not known.
    pub steps: Option<u32>,
    /// Simulated costs or ranks, by window.
    pub simulated: Vec<f64>,
    /// By window.
    pub measured: Measured,
}

/// How one order fares in one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The window that the order puts first.
    pub pick: u32,
    /// Agreement with the measured order; none where one of them is all ties.
    pub tau_b: Option<f64>,
    /// Whether the pick is the best one, within the noise.
    pub top_1: bool,
    /// `E(pick) / E(best) - 1`; none where only ranks were measured.
    pub regret: Option<f64>,
}

/// How one order fares over all configurations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    pub configurations: usize,
    /// Over the configurations that have one.
    pub mean_tau_b: Option<f64>,
    pub top_1: usize,
    pub mean_regret: Option<f64>,
    pub worst_regret: Option<f64>,
}

/// One configuration, and what each order makes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedConfiguration {
    pub name: String,
    /// The window that was measured to be the best.
    pub best: u32,
    pub simulator: Outcome,
    /// The constant order that is the best for all configurations together.
    pub constant: Outcome,
}

/// The simulator beside constants. It prints as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    pub configurations: Vec<EvaluatedConfiguration>,
    pub simulator: Score,
    /// Windows from best to worst, in the order that agrees most with all measurements.
    pub constant_order: Vec<u32>,
    /// Its score on the configurations that it was chosen on.
    pub constant_in_hindsight: Score,
    /// The score where the order is chosen on the other configurations; none with only one.
    pub constant_from_others: Option<Score>,
}

/// A configuration in which candidates of one program are ties.
struct Tied<'a> {
    configuration: &'a Configuration,
    simulated: Vec<f64>,
    measured: Vec<f64>,
}

impl<'a> Tied<'a> {
    fn new(configuration: &'a Configuration) -> Self {
        let tied = |costs: &[f64]| match configuration.steps {
            Some(steps) => tie_same_programs(&configuration.windows, steps, costs),
            None => costs.to_vec(),
        };
        Self {
            configuration,
            simulated: tied(&configuration.simulated),
            measured: tied(configuration.measured.figures()),
        }
    }

    /// A constant order as costs: the position of each window, and of windows of one program the position of the first.
    fn positions(&self, order: &[usize]) -> Vec<f64> {
        let windows = &self.configuration.windows;
        let program = |index: usize| {
            self.configuration
                .steps
                .map_or(windows[index], |steps| windows[index].min(steps))
        };
        (0..windows.len())
            .map(|index| {
                let first = order.iter().position(|other| program(*other) == program(index));
                first.unwrap_or(order.len()) as f64
            })
            .collect()
    }

    fn outcome(&self, costs: &[f64], noise: f64) -> Outcome {
        let pick = cheapest(costs);
        let best = self.measured[cheapest(&self.measured)];
        let picked = self.measured[pick];
        let (top_1, regret) = match self.configuration.measured {
            Measured::Joules(_) => (
                picked <= best * (1.0 + noise),
                (best > 0.0).then(|| picked / best - 1.0),
            ),
            Measured::Ranks(_) => (picked == best, None),
        };
        Outcome {
            pick: self.configuration.windows[pick],
            tau_b: kendall_tau_b(costs, &self.measured),
            top_1,
            regret,
        }
    }
}

/// The first of the cheapest.
fn cheapest(costs: &[f64]) -> usize {
    let mut best = 0;
    for (index, cost) in costs.iter().enumerate() {
        if *cost < costs[best] {
            best = index;
        }
    }
    best
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

impl Score {
    fn of(outcomes: &[Outcome]) -> Self {
        let regrets = || outcomes.iter().filter_map(|outcome| outcome.regret);
        Self {
            configurations: outcomes.len(),
            mean_tau_b: mean(outcomes.iter().filter_map(|outcome| outcome.tau_b)),
            top_1: outcomes.iter().filter(|outcome| outcome.top_1).count(),
            mean_regret: mean(regrets()),
            worst_regret: regrets().reduce(f64::max),
        }
    }
}

/// The order of window indices with the largest sum of tau-b over the configurations.
///
/// The sum is one over pairs, so that the best order of a set of windows is the best order of the set without its last
/// window, for one choice of the last: exact, by dynamic programming over sets. With windows of one program, which an
/// order cannot separate, it is the order with the most agreeing pairs.
fn best_constant_order<'a>(configurations: impl Iterator<Item = &'a Tied<'a>>, windows: usize) -> Vec<usize> {
    // What is gained by i before j.
    let mut gain = vec![vec![0.0; windows]; windows];
    for tied in configurations {
        let untied = untied_pairs(&tied.measured);
        if untied == 0 {
            continue;
        }
        let weight = 1.0 / (untied as f64).sqrt();
        for (i, row) in gain.iter_mut().enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                *value += weight * sign(tied.measured[j] - tied.measured[i]);
            }
        }
    }
    let mut best = vec![(0.0_f64, 0_usize); 1 << windows];
    for set in 1..best.len() {
        let mut choice = (f64::NEG_INFINITY, 0);
        for last in (0..windows).filter(|last| set & (1 << last) != 0) {
            let others = set & !(1 << last);
            let gained: f64 = (0..windows)
                .filter(|other| others & (1 << other) != 0)
                .map(|other| gain[other][last])
                .sum();
            let value = best[others].0 + gained;
            if value > choice.0 {
                choice = (value, last);
            }
        }
        best[set] = choice;
    }
    let mut set = best.len() - 1;
    let mut order = Vec::with_capacity(windows);
    while set != 0 {
        let last = best[set].1;
        order.push(last);
        set &= !(1 << last);
    }
    order.reverse();
    order
}

/// Holds simulated orders against measured ones, and beside them the best constant order.
///
/// `noise` is the relative difference in energy that measurements cannot tell apart, for `top_1`.
///
/// # Errors
/// There is no configuration or no window, figures are missing or not finite, the windows differ between configurations,
/// or there are more than 14.
pub fn evaluate(configurations: &[Configuration], noise: f64) -> Result<Evaluation, RankError> {
    let first = configurations.first().ok_or(RankError::NoCandidate)?;
    let windows = &first.windows;
    for configuration in configurations {
        let what = |kind: &str| format!("{}, {kind}", configuration.name);
        check_candidates(&configuration.windows, &configuration.simulated, &what("simulated"))?;
        check_candidates(
            &configuration.windows,
            configuration.measured.figures(),
            &what("measured"),
        )?;
        if configuration.windows != *windows {
            return Err(RankError::OtherWindows {
                name: configuration.name.clone(),
            });
        }
    }
    if windows.len() > MOST_WINDOWS {
        return Err(RankError::TooMany {
            found: windows.len(),
            most: MOST_WINDOWS,
        });
    }
    let tied: Vec<Tied> = configurations.iter().map(Tied::new).collect();
    let order = best_constant_order(tied.iter(), windows.len());
    let constant = |tied: &Tied, order: &[usize]| tied.outcome(&tied.positions(order), noise);
    let simulator: Vec<Outcome> = tied.iter().map(|tied| tied.outcome(&tied.simulated, noise)).collect();
    let in_hindsight: Vec<Outcome> = tied.iter().map(|tied| constant(tied, &order)).collect();
    let from_others = (tied.len() > 1).then(|| {
        let outcomes: Vec<Outcome> = (0..tied.len())
            .map(|left_out| {
                let others = tied.iter().enumerate().filter(|(index, _)| *index != left_out);
                let order = best_constant_order(others.map(|(_, tied)| tied), windows.len());
                constant(&tied[left_out], &order)
            })
            .collect();
        Score::of(&outcomes)
    });
    Ok(Evaluation {
        simulator: Score::of(&simulator),
        constant_in_hindsight: Score::of(&in_hindsight),
        constant_from_others: from_others,
        constant_order: order.iter().map(|index| windows[*index]).collect(),
        configurations: tied
            .iter()
            .zip(simulator.into_iter().zip(in_hindsight))
            .map(|(tied, (simulator, constant))| EvaluatedConfiguration {
                name: tied.configuration.name.clone(),
                best: windows[cheapest(&tied.measured)],
                simulator,
                constant,
            })
            .collect(),
    })
}

/// A number, or a dash.
fn or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A share in percent, or a dash.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.top_1 { "best" } else { "" };
        let (tau, regret) = (or_dash(self.tau_b, 2), percent(self.regret));
        write!(f, "{:>5} {tau:>6} {regret:>8} {mark:<4}", self.pick)
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "best {}/{}, mean tau-b {}, regret {} (worst {})",
            self.top_1,
            self.configurations,
            or_dash(self.mean_tau_b, 3),
            percent(self.mean_regret),
            percent(self.worst_regret)
        )
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .configurations
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0)
            .max(13);
        writeln!(
            f,
            "{:width$}       | simulator                  | best constant order",
            ""
        )?;
        writeln!(
            f,
            "{:width$}  best |  pick  tau-b   regret      |  pick  tau-b   regret",
            "configuration"
        )?;
        for row in &self.configurations {
            writeln!(
                f,
                "{:width$} {:>5} | {} | {}",
                row.name, row.best, row.simulator, row.constant
            )?;
        }
        writeln!(f, "simulator: {}", self.simulator)?;
        writeln!(
            f,
            "constant order {:?}, chosen in hindsight: {}",
            self.constant_order, self.constant_in_hindsight
        )?;
        match &self.constant_from_others {
            Some(score) => writeln!(f, "constant order chosen on the other configurations: {score}"),
            None => writeln!(
                f,
                "constant order chosen on the other configurations: there is only one"
            ),
        }
    }
}
