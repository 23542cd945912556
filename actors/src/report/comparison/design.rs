//! What is compared: the cells of a comparison, and the order in which they run.

use greengnn_model::policy::Budget;
use greengnn_model::rng::{mix_words, shuffle};
use serde::{Deserialize, Serialize};

/// Keeps the draws of the order apart from all draws of training.
const ORDER: u64 = 0x6f72_6465_7200;
/// A comparison of more runs than this is a mistake.
const MOST_CELLS: usize = 100_000;

/// Names one run of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub policy: String,
    /// None for a policy that takes no budget.
    pub budget: Option<Budget>,
    /// Steps per window; none for a policy of which they change nothing.
    pub window: Option<u32>,
    pub batch_size: u32,
    /// From 0.
    pub repeat: u32,
    /// The training seed: the same for all policies of a repeat.
    pub seed: u64,
}

impl Cell {
    /// The name of the cell's folder: letters, digits, dots and dashes, so that it may stand in a link as it is.
    pub fn folder_name(&self) -> String {
        let budget = self.budget.map_or_else(String::new, |budget| {
            format!("-{}", budget.to_string().replace('%', "pct"))
        });
        let window = self
            .window
            .map_or_else(String::new, |window| format!("-window-{window}"));
        format!(
            "{}{budget}{window}-batch-{}-seed-{}",
            self.policy, self.batch_size, self.seed
        )
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.policy)?;
        if let Some(budget) = &self.budget {
            write!(f, " at {budget}")?;
        }
        if let Some(window) = self.window {
            write!(f, ", window {window}")?;
        }
        write!(f, ", batch size {}, seed {}", self.batch_size, self.seed)
    }
}

/// A policy that is compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contender {
    pub policy: String,
    /// Whether it runs once per budget; without a budget it runs once.
    pub takes_budget: bool,
    /// Whether it runs once per window.
    pub takes_window: bool,
}

/// Everything that decides which cells there are. The cells are all combinations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Design {
    pub contenders: Vec<Contender>,
    pub budgets: Vec<Budget>,
    pub batch_sizes: Vec<u32>,
    /// Steps per window.
    pub windows: Vec<u32>,
    /// Runs of every combination; repeat `r` trains with seed `seed + r`.
    pub repeats: u32,
    pub seed: u64,
}

/// Why there is nothing to compare.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DesignError {
    #[error("{0} must name at least one value")]
    Empty(&'static str),
    #[error("repeats must be at least 1")]
    NoRepeats,
    #[error("{what} names {value} twice; name every value once")]
    Twice { what: &'static str, value: String },
    #[error("the comparison has more than {MOST_CELLS} runs; name fewer values")]
    TooManyCells,
}

impl Design {
    /// Refuses a design without cells, or with a cell twice.
    pub fn check(&self) -> Result<(), DesignError> {
        let policies: Vec<_> = self.contenders.iter().map(|contender| &contender.policy).collect();
        once_each("policies", &policies)?;
        once_each("batch-sizes", &self.batch_sizes)?;
        if self.contenders.iter().any(|contender| contender.takes_budget) {
            once_each("budgets", &self.budgets)?;
        }
        if self.contenders.iter().any(|contender| contender.takes_window) {
            once_each("windows", &self.windows)?;
        }
        if self.repeats == 0 {
            return Err(DesignError::NoRepeats);
        }
        let combinations = [
            self.contenders.len(),
            self.budgets.len().max(1),
            self.windows.len().max(1),
            self.batch_sizes.len(),
        ];
        let cells = combinations
            .iter()
            .try_fold(self.repeats as usize, |cells, count| cells.checked_mul(*count));
        match cells {
            Some(0..=MOST_CELLS) => Ok(()),
            _ => Err(DesignError::TooManyCells),
        }
    }

    /// The cells in the order of the table: by batch size, policy, budget, window and repeat, each as it was named.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &batch_size in &self.batch_sizes {
            for contender in &self.contenders {
                let budgets = each_or_none(contender.takes_budget, &self.budgets);
                let windows = each_or_none(contender.takes_window, &self.windows);
                let pairs = budgets
                    .iter()
                    .flat_map(|budget| windows.iter().map(|window| (*budget, *window)));
                for (budget, window) in pairs {
                    cells.extend((0..self.repeats).map(|repeat| Cell {
                        policy: contender.policy.clone(),
                        budget,
                        window,
                        batch_size,
                        repeat,
                        seed: self.seed.wrapping_add(u64::from(repeat)),
                    }));
                }
            }
        }
        cells
    }

    /// The cells in the order in which they run: at random, so that a computer that gets warmer or busier over time is
    /// unfair to no policy; and a function of the seed, so that the order can be told.
    pub fn order(&self) -> Vec<Cell> {
        let mut cells = self.cells();
        shuffle(mix_words(&[self.seed, ORDER]), &mut cells);
        cells
    }
}

fn each_or_none<T: Copy>(each: bool, values: &[T]) -> Vec<Option<T>> {
    match each {
        true => values.iter().copied().map(Some).collect(),
        false => vec![None],
    }
}

fn once_each<T: PartialEq + std::fmt::Display>(what: &'static str, values: &[T]) -> Result<(), DesignError> {
    if values.is_empty() {
        return Err(DesignError::Empty(what));
    }
    let again = values
        .iter()
        .enumerate()
        .find(|(index, value)| values[..*index].contains(value));
    match again {
        Some((_, value)) => Err(DesignError::Twice {
            what,
            value: value.to_string(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::HashSet;

    /// `on-demand` without, `bulk` with two budgets.
    pub(crate) fn design() -> Design {
        let contender = |policy: &str, takes_both| Contender {
            policy: policy.into(),
            takes_budget: takes_both,
            takes_window: takes_both,
        };
        Design {
            contenders: vec![contender("on-demand", false), contender("bulk", true)],
            budgets: vec!["5%".parse().unwrap(), "64MiB".parse().unwrap()],
            batch_sizes: vec![500, 1000],
            windows: vec![16],
            repeats: 3,
            seed: 7,
        }
    }

    #[test]
    fn a_policy_without_a_budget_runs_once_per_batch_size_and_repeat() {
        let cells = design().cells();
        assert_eq!(cells.len(), 2 * (1 + 2) * 3);
        let on_demand = cells.iter().filter(|cell| cell.policy == "on-demand");
        assert_eq!(on_demand.clone().count(), 2 * 3);
        assert!(on_demand.clone().all(|cell| cell.budget.is_none()));
        assert!(cells.iter().all(|cell| cell.seed == 7 + u64::from(cell.repeat)));
    }

    #[test]
    fn the_order_is_a_permutation_and_a_function_of_the_seed() {
        let design = design();
        let (cells, order) = (design.cells(), design.order());
        assert_eq!(order, design.order());
        assert_ne!(order, cells);
        assert_eq!(cells.len(), order.len());
        let names = |cells: &[Cell]| cells.iter().map(Cell::folder_name).collect::<HashSet<_>>();
        assert_eq!(names(&cells), names(&order));
        assert_eq!(names(&order).len(), order.len());
        let places = |design: &Design| -> Vec<_> {
            let order = design.order();
            order
                .iter()
                .map(|cell| (cell.policy.clone(), cell.budget, cell.batch_size, cell.repeat))
                .collect()
        };
        let other = Design {
            seed: 8,
            ..design.clone()
        };
        assert_ne!(places(&design), places(&other));
    }

    #[test]
    fn folders_differ_and_need_no_escapes() {
        let cells = design().cells();
        let names: HashSet<_> = cells.iter().map(Cell::folder_name).collect();
        assert_eq!(names.len(), cells.len());
        assert!(names.contains("bulk-5pct-window-16-batch-500-seed-7"), "{names:?}");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        assert!(names.iter().all(|name| name.chars().all(plain)), "{names:?}");
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let twice = Design {
            budgets: vec!["5%".parse().unwrap(), "5.0%".parse().unwrap()],
            ..design()
        };
        assert_eq!(
            twice.check().unwrap_err().to_string(),
            "budgets names 5% twice; name every value once"
        );
        let empty = Design {
            batch_sizes: vec![],
            ..design()
        };
        assert_eq!(empty.check(), Err(DesignError::Empty("batch-sizes")));
        let none = Design { repeats: 0, ..design() };
        assert_eq!(none.check(), Err(DesignError::NoRepeats));
        let many = Design {
            repeats: u32::MAX,
            ..design()
        };
        assert_eq!(many.check(), Err(DesignError::TooManyCells));
        assert_eq!(design().check(), Ok(()));
        let without = Design {
            contenders: vec![design().contenders[0].clone()],
            budgets: vec![],
            ..design()
        };
        assert_eq!((without.check(), without.cells().len()), (Ok(()), 6));
    }
}
