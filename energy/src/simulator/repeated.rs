//! Candidates that were run for real, again and again, and which of them can be told apart.
//!
//! Every candidate is run once per repeat, and the runs of a repeat share their seed (a randomised block design). What
//! repeats differ in is taken off, and one variance is estimated from all that is left: five repeats of seven windows
//! then know as much of the noise as 25 runs, not as five. The best of several noisy means is lower than it truly is, so
//! that intervals are those of all comparisons at once.

use crate::simulator::evaluation::{Configuration, Measured};
use crate::statistics::student_t_of_several;

/// The candidates of one configuration, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct RepeatedRuns {
    pub name: String,
    /// The windows.
    pub windows: Vec<u32>,
    /// By window the first window whose schedule is the same: those two are one program, and were run once for both.
    pub programs: Vec<u32>,
    /// By window, the lower the better.
    pub simulated: Vec<f64>,
    /// By window and repeat, in one unit.
    pub costs: Vec<Vec<f64>>,
}

/// How a pick fares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PickedWindow {
    pub pick: u32,
    /// The window with the lowest mean.
    pub best: u32,
    /// `cost(pick) / cost(best) - 1`.
    pub regret: f64,
    /// Half the width of the 95 % interval of the differences of all candidates from the best one, as a share of its cost.
    pub noise: f64,
}

impl PickedWindow {
    /// Whether the pick is the best one, as far as measurements can tell.
    pub fn is_best(&self) -> bool {
        self.regret <= self.noise
    }
}

impl RepeatedRuns {
    /// Mean costs, by window.
    pub fn means(&self) -> Vec<f64> {
        self.costs.iter().map(|runs| mean(runs)).collect()
    }

    /// Half the width of the 95 % interval of the difference of two means; none with fewer than two repeats or windows.
    pub fn half_width(&self) -> Option<f64> {
        self.simultaneous(|_| 1)
    }

    /// The same of the differences of all candidates from one of them.
    fn half_width_from_one(&self) -> Option<f64> {
        self.simultaneous(|candidates| candidates - 1)
    }

    /// The same of as many differences as there are for so many candidates that were run.
    fn simultaneous(&self, comparisons: impl Fn(usize) -> usize) -> Option<f64> {
        let repeats = self.costs.iter().map(Vec::len).min()?;
        // A program that stands for several windows was run once.
        let distinct: Vec<&Vec<f64>> = (0..self.windows.len())
            .filter(|index| self.programs[*index] == self.windows[*index])
            .map(|index| &self.costs[index])
            .collect();
        if repeats < 2 || distinct.len() < 2 {
            return None;
        }
        let of_repeat: Vec<f64> = (0..repeats)
            .map(|repeat| distinct.iter().map(|runs| runs[repeat]).sum::<f64>() / distinct.len() as f64)
            .collect();
        let grand = mean(&of_repeat);
        let mut squares = 0.0;
        for runs in &distinct {
            let own = mean(&runs[..repeats]);
            for (cost, repeat) in runs.iter().zip(&of_repeat) {
                squares += (cost - own - repeat + grand).powi(2);
            }
        }
        let freedom = ((distinct.len() - 1) * (repeats - 1)) as f64;
        let of_difference = (2.0 * squares / freedom / repeats as f64).sqrt();
        Some(student_t_of_several(freedom, comparisons(distinct.len())) * of_difference)
    }

    /// Whether any two candidates differ by more than the noise.
    pub fn can_be_told_apart(&self) -> bool {
        let means = self.means();
        let (least, most) = (
            means.iter().copied().fold(f64::INFINITY, f64::min),
            means.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        );
        let pairs = |candidates: usize| candidates * (candidates - 1) / 2;
        self.simultaneous(pairs)
            .is_some_and(|half_width| most - least > half_width)
    }

    /// Windows from the cheapest to the dearest; those of a group cannot be told from its cheapest.
    pub fn measured_order(&self) -> Vec<Vec<u32>> {
        self.groups()
            .into_iter()
            .map(|group| group.into_iter().map(|index| self.windows[index]).collect())
            .collect()
    }

    fn groups(&self) -> Vec<Vec<usize>> {
        let (means, half_width) = (self.means(), self.half_width_from_one().unwrap_or(f64::INFINITY));
        let mut order: Vec<usize> = (0..means.len()).collect();
        order.sort_by(|one, other| means[*one].total_cmp(&means[*other]));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for index in order {
            match groups.last_mut() {
                Some(group) if means[index] - means[group[0]] <= half_width => group.push(index),
                _ => groups.push(vec![index]),
            }
        }
        groups
    }

    /// The configuration as an evaluation of orders takes it: what cannot be told apart is a tie. `steps` are those of an
    /// epoch.
    pub fn configuration(&self, steps: u32) -> Configuration {
        let means = self.means();
        let mut tied = means.clone();
        for group in self.groups() {
            let together = group.iter().map(|index| means[*index]).sum::<f64>() / group.len() as f64;
            group.iter().for_each(|index| tied[*index] = together);
        }
        Configuration {
            name: self.name.clone(),
            windows: self.windows.clone(),
            steps: Some(steps),
            simulated: self.simulated.clone(),
            measured: Measured::Joules(tied),
        }
    }

    /// How a window fares beside the best one; none for a window that was not run.
    pub fn regret_of(&self, pick: u32) -> Option<PickedWindow> {
        let means = self.means();
        let picked = self.windows.iter().position(|window| *window == pick)?;
        let best = (0..means.len()).min_by(|one, other| means[*one].total_cmp(&means[*other]))?;
        let cost = means[best];
        (cost > 0.0).then(|| PickedWindow {
            pick,
            best: self.windows[best],
            regret: means[picked] / cost - 1.0,
            noise: self.half_width_from_one().unwrap_or(f64::INFINITY) / cost,
        })
    }
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(costs: &[[f64; 3]]) -> RepeatedRuns {
        let windows: Vec<u32> = (0..costs.len()).map(|index| 1 << index).collect();
        RepeatedRuns {
            name: "test".to_owned(),
            programs: windows.clone(),
            simulated: vec![0.0; windows.len()],
            windows,
            costs: costs.iter().map(|runs| runs.to_vec()).collect(),
        }
    }

    #[test]
    fn what_repeats_share_is_no_noise() {
        // Every repeat is 100 dearer than the one before, for all windows alike.
        let runs = runs(&[[100.0, 200.0, 300.0], [110.0, 210.5, 309.5], [120.0, 219.5, 320.5]]);
        assert!(runs.half_width().unwrap() < 2.0, "{:?}", runs.half_width());
        assert!(runs.can_be_told_apart());
        assert_eq!(runs.measured_order(), [[1], [2], [4]]);
        let picked = runs.regret_of(2).unwrap();
        assert_eq!((picked.pick, picked.best), (2, 1));
        assert!((picked.regret - 0.05).abs() < 1e-12 && !picked.is_best());
    }

    /// Two windows, three repeats: residuals are +-d / 2 of the paired differences' deviations, so that the interval is that of
    /// a paired t-test: t(2) s / sqrt(3).
    #[test]
    fn with_two_candidates_the_interval_is_that_of_a_paired_test() {
        let runs = runs(&[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]);
        // Differences 1, 2, 3: standard deviation 1.
        let expected = 4.302_653 / 3_f64.sqrt();
        assert!((runs.half_width().unwrap() - expected).abs() < 1e-5);
    }

    /// The more candidates, the further the best of them lies below the others by chance.
    #[test]
    fn more_comparisons_have_wider_intervals() {
        let runs = runs(&[[1.0, 2.1, 3.0], [2.0, 3.0, 4.2], [1.1, 2.0, 3.1], [2.1, 3.1, 4.0]]);
        let (one, from_one) = (runs.half_width().unwrap(), runs.half_width_from_one().unwrap());
        // t(6) at 0.975 and at 1 - 0.025 / 3.
        assert!(
            (from_one / one - 3.287_455 / 2.446_912).abs() < 1e-4,
            "{}",
            from_one / one
        );
    }

    #[test]
    fn candidates_within_the_noise_are_ties_and_not_told_apart() {
        let noisy = runs(&[[100.0, 130.0, 90.0], [120.0, 95.0, 110.0]]);
        assert!(!noisy.can_be_told_apart());
        assert_eq!(noisy.measured_order(), [[1, 2]]);
        let Measured::Joules(tied) = noisy.configuration(10).measured else {
            panic!("costs were given");
        };
        assert_eq!(tied[0], tied[1]);
        assert!(noisy.regret_of(2).unwrap().is_best());
    }

    #[test]
    fn one_run_each_tells_nothing_apart() {
        let mut once = runs(&[[1.0, 0.0, 0.0], [9.0, 0.0, 0.0]]);
        once.costs.iter_mut().for_each(|runs| runs.truncate(1));
        assert_eq!(once.half_width(), None);
        assert!(!once.can_be_told_apart());
        assert_eq!(once.regret_of(64), None);
    }

    #[test]
    fn a_program_of_several_windows_counts_once_in_the_noise() {
        let mut twice = runs(&[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [2.0, 4.0, 6.0]]);
        twice.programs[2] = 2;
        let once = runs(&[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]);
        assert_eq!(twice.half_width(), once.half_width());
    }
}
