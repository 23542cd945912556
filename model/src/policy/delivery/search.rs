//! Candidates for delivery times, and which of them are worth having.
//!
//! Fewest deliveries at a given price of rows is strongly NP-hard in the number of owners (a request that brings any rows
//! of an owner is a page of general caching: Folwarczny and Sgall, Algorithmica 78, 2017), so this is a search: every
//! step, greedy windows under shares of the budget, the owners' cheapest times at prices of held rows, mended where they
//! overflow, and single changes to the best. The relaxation also says how far from the best a choice can be.

use super::priced::Relaxation;
use super::{Delivered, DeliveryTimes, Overload, ReuseCounts};

/// Shares of the budget for greedy windows, in percent.
const SHARES: [u64; 5] = [0, 25, 50, 75, 100];
/// Prices of a delivery, besides the one asked for, that are searched for the frontier.
const PRICE_FACTORS: [u64; 2] = [10, 100];
/// The relaxation gives times to mend once in that many iterations.
const MEND_EVERY: u32 = 3;
/// Iterations without a better bound after which steps are halved.
const PATIENCE: u32 = 8;
/// Passes of single changes.
const PASSES: u32 = 6;

/// Counts that a search looks at, in all its sweeps, where the horizon has fewer uses than that: some milliseconds. Else as
/// many as it has uses, so that a search takes about as long as reading the trace.
const LEAST_WORK: u64 = 1 << 20;

/// How many sweeps are left.
struct Effort {
    sweeps: u64,
}

impl Effort {
    /// Whether there was one left, which is now taken.
    fn take(&mut self) -> bool {
        let left = self.sweeps > 0;
        self.sweeps = self.sweeps.saturating_sub(1);
        left
    }
}

/// How long to search, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// How many rows a delivery costs; a request, where each delivery is asked for by one.
    pub rows_per_delivery: u32,
    /// Iterations of the relaxation per price.
    pub iterations: u32,
    /// Single changes that are tried at most.
    pub changes: u32,
    /// Whether also to search at higher prices of a delivery. That fills the [archive](Found::archive); the choice gains
    /// little.
    pub frontier: bool,
}

impl Search {
    /// Rows that cost as much as a request of its own, joules for joules, with the constants of the GreenGNN paper.
    pub const CROSSOVER_ROWS: u32 = 965;
}

impl Default for Search {
    fn default() -> Self {
        Self {
            rows_per_delivery: Self::CROSSOVER_ROWS,
            iterations: 30,
            changes: 120,
            frontier: false,
        }
    }
}

/// Delivery times and what they cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub delivered: Delivered,
    pub times: DeliveryTimes,
}

impl Candidate {
    /// The cost in rows where a delivery costs that many, each times the weight of its owner.
    pub fn cost(&self, rows_per_delivery: u64) -> u64 {
        self.delivered.weighted_rows + rows_per_delivery * self.delivered.weighted_deliveries
    }
}

/// Candidates none of which has both as few deliveries and as few rows as another, by ascending deliveries. All are
/// counted by the weight of their owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    candidates: Vec<Candidate>,
}

impl Archive {
    /// By ascending deliveries and falling rows.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The cheapest candidate where a delivery costs that many rows; of equal ones that with fewer deliveries.
    pub fn cheapest(&self, rows_per_delivery: u64) -> Option<&Candidate> {
        self.candidates
            .iter()
            .min_by_key(|candidate| candidate.cost(rows_per_delivery))
    }

    /// Takes the times in unless they are dominated, and lets go what they dominate.
    fn offer(&mut self, delivered: Delivered, times: &DeliveryTimes) {
        let cost = |delivered: &Delivered| (delivered.weighted_deliveries, delivered.weighted_rows);
        let (deliveries, rows) = cost(&delivered);
        let dominated = |(other_deliveries, other_rows)| other_deliveries <= deliveries && other_rows <= rows;
        if self.candidates.iter().any(|other| dominated(cost(&other.delivered))) {
            return;
        }
        self.candidates
            .retain(|other| cost(&other.delivered).0 < deliveries || cost(&other.delivered).1 < rows);
        let place = self
            .candidates
            .partition_point(|other| cost(&other.delivered).0 < deliveries);
        let times = times.clone();
        self.candidates.insert(place, Candidate { delivered, times });
    }
}

/// What a search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The cheapest candidate.
    pub chosen: Candidate,
    /// No plan for these uses and this budget costs less rows, deliveries included (to rounding).
    pub bound: f64,
    /// All candidates that are worth having, the chosen one among them.
    pub archive: Archive,
}

impl ReuseCounts {
    /// Searches for delivery times where at most `budget_rows` rows are held over any gap.
    ///
    /// It takes time in proportion to owners times the square of the steps, for every iteration and every change, and in all
    /// about as long as reading the uses once: where steps are many it ends early with what it has. What it finds
    /// depends on nothing but the counts, the budget and the search.
    ///
    /// # Errors
    /// Only if more rows are held at the start than the budget allows.
    pub fn search(&self, budget_rows: u32, search: &Search) -> Result<Found, Overload> {
        let price = u64::from(search.rows_per_delivery);
        let mut archive = Archive::default();
        let cells = (self.owners.len() * self.steps * self.steps).max(1) as u64;
        let mut effort = Effort {
            sweeps: self.needed_rows().max(LEAST_WORK) / cells,
        };
        let every_step = self.every_step();
        archive.offer(self.sweep(budget_rows, &every_step)?, &every_step);
        for percent in SHARES {
            // At most the budget, so the cast keeps the value.
            let share = (u64::from(budget_rows) * percent / 100) as u32;
            self.mend(
                budget_rows,
                self.greedy_windows(budget_rows, share),
                &mut archive,
                &mut effort,
            )?;
        }
        let mut relaxation = Relaxation::new(self, budget_rows);
        let bound = self.relax(
            &mut relaxation,
            budget_rows,
            price,
            search.iterations,
            &mut archive,
            &mut effort,
        )?;
        self.mend(budget_rows, self.fewest_times(), &mut archive, &mut effort)?;
        self.change(budget_rows, price, search.changes, &mut archive, &mut effort);
        for factor in PRICE_FACTORS.into_iter().filter(|_| search.frontier) {
            self.relax(
                &mut relaxation,
                budget_rows,
                factor * price,
                search.iterations,
                &mut archive,
                &mut effort,
            )?;
        }
        let chosen = match archive.cheapest(price) {
            Some(candidate) => candidate.clone(),
            None => Candidate {
                delivered: self.sweep(budget_rows, &every_step)?,
                times: every_step,
            },
        };
        Ok(Found { chosen, bound, archive })
    }

    /// Raises the bound, and offers what the relaxation chooses. Returns the best bound.
    fn relax(
        &self,
        relaxation: &mut Relaxation,
        budget_rows: u32,
        price: u64,
        iterations: u32,
        archive: &mut Archive,
        effort: &mut Effort,
    ) -> Result<f64, Overload> {
        // Every use costs at least nothing.
        let mut best_bound = 0.0f64;
        let mut share = 1.0;
        let mut failures = 0;
        let mut before = None;
        for iteration in 0..iterations {
            if !effort.take() {
                break;
            }
            let relaxed = relaxation.solve(price as f64);
            if iteration % MEND_EVERY == 0 {
                let mut times = self.fewest_times();
                for (owner, steps) in relaxed.times.iter().enumerate() {
                    steps.iter().for_each(|step| times.set(owner, *step, true));
                }
                if before.as_ref() != Some(&times) {
                    self.mend(budget_rows, times.clone(), archive, effort)?;
                    before = Some(times);
                }
            }
            if relaxed.bound > best_bound {
                best_bound = relaxed.bound;
                failures = 0;
            } else {
                failures += 1;
                if failures % PATIENCE == 0 {
                    share /= 2.0;
                }
            }
            let best = archive.cheapest(price).map_or(0, |candidate| candidate.cost(price)) as f64;
            if !relaxation.step(relaxed.bound, best, share) {
                break;
            }
        }
        Ok(best_bound)
    }

    /// Adds delivery times where the budget overflows until they are feasible, and offers them. Without effort it gives up.
    fn mend(
        &self,
        budget_rows: u32,
        mut times: DeliveryTimes,
        archive: &mut Archive,
        effort: &mut Effort,
    ) -> Result<(), Overload> {
        loop {
            match self.sweep(budget_rows, &times) {
                Ok(delivered) => {
                    archive.offer(delivered, &times);
                    return Ok(());
                }
                Err(overload) => {
                    let Some((owner, step)) = self.relief(overload.gap, &times) else {
                        return Err(overload);
                    };
                    if !effort.take() {
                        return Ok(());
                    }
                    times.set(owner, step, true);
                }
            }
        }
    }

    /// The owner and the new delivery time that take most of what must be held off a gap.
    fn relief(&self, gap: usize, times: &DeliveryTimes) -> Option<(usize, usize)> {
        let mut best = None;
        let mut most_rows = 0;
        for (place, owner) in self.owners.iter().enumerate() {
            let due = self.due(times, place);
            // A row that is needed right after the gap can come directly, another after the next step.
            let mut rows = [0; 2];
            for step in (gap..self.steps).take_while(|step| due[*step] <= gap) {
                if due[step] == step {
                    continue;
                }
                let again = owner.again(step)[..=gap]
                    .iter()
                    .map(|rows| u64::from(*rows))
                    .sum::<u64>();
                rows[usize::from(step > gap)] += u64::from(owner.first[step]) + again;
            }
            for (time, rows) in (gap..).zip(rows) {
                if rows > most_rows {
                    most_rows = rows;
                    best = Some((place, time));
                }
            }
        }
        best
    }

    /// Changes single times of the cheapest candidate, and goes on from there wherever that is cheaper.
    fn change(&self, budget_rows: u32, price: u64, changes: u32, archive: &mut Archive, effort: &mut Effort) {
        let Some(mut best) = archive.cheapest(price).cloned() else {
            return;
        };
        let mut left = changes;
        for _ in 0..PASSES {
            let cost_before = best.cost(price);
            for owner in 0..self.owners.len() {
                for step in 1..self.steps {
                    for other in [None, Some(step - 1), Some(step + 1)] {
                        let mut times = best.times.clone();
                        let delivers = times.contains(owner, step);
                        if other.is_some_and(|other| {
                            !delivers || other == 0 || other >= self.steps || times.contains(owner, other)
                        }) {
                            continue;
                        }
                        if left == 0 || !effort.take() {
                            return;
                        }
                        left -= 1;
                        times.set(owner, step, !delivers);
                        if let Some(other) = other {
                            times.set(owner, other, true);
                        }
                        let Ok(delivered) = self.sweep(budget_rows, &times) else {
                            continue;
                        };
                        archive.offer(delivered, &times);
                        let changed = Candidate { delivered, times };
                        if changed.cost(price) < best.cost(price) {
                            best = changed;
                        }
                    }
                }
            }
            if best.cost(price) == cost_before {
                return;
            }
        }
    }
}
