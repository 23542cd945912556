//! Delivery times where held rows are priced, and the bound that follows.
//!
//! Give a price `λ_g >= 0` to a row that is held over gap `g`, and forget the budget. The owners are then independent,
//! and the cheapest times of one are a shortest path over its windows `[s, e)`: a delivery, a row for each first use, and
//! for every other use the cheaper of being fetched at `s` and of being held since its use before. The costs of all owners
//! less `budget · Σ λ` are at most the cost of any feasible plan, for any prices (Lagrangian relaxation of the budget; see
//! Held, Wolfe and Crowder, Mathematical Programming 6, 1974, for raising it by subgradients). Costs are in rows, each times the weight of its
//! owner.

use super::{OwnerReuses, ReuseCounts};

/// The uses of an owner with their sums over gaps, of which differences give the cost of a step in a window. So a window
/// grows by a step in nearly constant time, and an owner's cheapest times take the square of the steps.
pub(super) struct PricedOwner<'a> {
    owner: &'a OwnerReuses,
    /// Per step and gap `0 ..= step + 1` the rows of the gaps below.
    rows_below: Vec<f64>,
    /// The same with every row times the price of all gaps below its own.
    priced_below: Vec<f64>,
}

/// The cheapest times of one owner.
pub(super) struct Cheapest {
    pub cost: f64,
    /// First steps of the windows that fetch something.
    pub times: Vec<usize>,
}

/// A window of a shortest path.
#[derive(Clone, Copy)]
struct Window {
    first: usize,
    /// Whether something is fetched: else all of its uses are held since the use before.
    fetches: bool,
}

/// Where the entries of a step begin in a triangle with `step + 2` entries a step.
fn row_start(step: usize) -> usize {
    step * (step + 3) / 2
}

impl<'a> PricedOwner<'a> {
    pub(super) fn new(owner: &'a OwnerReuses) -> Self {
        let steps = owner.first.len();
        let mut rows_below = Vec::with_capacity(row_start(steps));
        for step in 0..steps {
            let mut sum = 0.0;
            rows_below.push(sum);
            for rows in owner.again(step) {
                sum += f64::from(*rows);
                rows_below.push(sum);
            }
        }
        Self {
            owner,
            priced_below: vec![0.0; rows_below.len()],
            rows_below,
        }
    }

    /// The cheapest times at a price per delivery; adds to `changes` how many rows more than over the gap before they hold.
    ///
    /// `paid[g]` is the price of all gaps below `g`.
    pub(super) fn cheapest(&mut self, window_ends: &[u32], paid: &[f64], price: f64, changes: &mut [f64]) -> Cheapest {
        let steps = self.owner.first.len();
        self.price(paid);
        let weight = self.weight();
        let price = price * weight;
        // Per number of steps the least cost, and its last window.
        let mut best = vec![f64::INFINITY; steps + 1];
        let mut last = vec![
            Window {
                first: 0,
                fetches: false
            };
            steps + 1
        ];
        best[0] = 0.0;
        for first in 0..steps {
            let held_since = cheap_gap(paid, first, weight);
            let (mut fetching, mut holding) = (best[first] + price, best[first]);
            for step in first..window_ends[first] as usize {
                fetching += self.fetching_cost(first, step, held_since, paid);
                holding += self.holding_cost(step, paid);
                let cost = fetching.min(holding);
                if cost < best[step + 1] {
                    best[step + 1] = cost;
                    last[step + 1] = Window {
                        first,
                        fetches: fetching < holding,
                    };
                }
            }
        }
        let mut times = Vec::new();
        let mut end = steps;
        while end > 0 {
            let window = last[end];
            self.add_load(window, end, paid, changes);
            if window.fetches {
                times.push(window.first);
            }
            end = window.first;
        }
        Cheapest {
            cost: best[steps],
            times,
        }
    }

    /// What a row costs that is fetched.
    fn weight(&self) -> f64 {
        f64::from(self.owner.weight)
    }

    fn price(&mut self, paid: &[f64]) {
        for step in 0..self.owner.first.len() {
            let mut sum = 0.0;
            let entries = &mut self.priced_below[row_start(step) + 1..];
            for ((rows, paid), entry) in self.owner.again(step).iter().zip(paid).zip(entries) {
                sum += f64::from(*rows) * paid;
                *entry = sum;
            }
        }
    }

    /// Rows of the gaps `from .. to` that are used at `step`, and the same times the price below each.
    fn between(&self, step: usize, from: usize, to: usize) -> (f64, f64) {
        let (from, to) = (row_start(step) + from, row_start(step) + to);
        (
            self.rows_below[to] - self.rows_below[from],
            self.priced_below[to] - self.priced_below[from],
        )
    }

    /// The cost of the uses at `step` where all are held since the use before.
    fn holding_cost(&self, step: usize, paid: &[f64]) -> f64 {
        if self.owner.first[step] > 0 {
            return f64::INFINITY;
        }
        let (rows, below) = self.between(step, 0, step + 1);
        rows * paid[step + 1] - below
    }

    /// The cost of the uses at `step` in a window from `first` that delivers. Up to that delivery it is cheaper to hold
    /// than to fetch the rows that could be held from gap `held_since` on.
    fn fetching_cost(&self, first: usize, step: usize, held_since: usize, paid: &[f64]) -> f64 {
        let new = f64::from(self.owner.first[step]);
        let weight = self.weight();
        if step == first {
            let held_since = cheap_gap(paid, first + 1, weight);
            let (fetched, _) = self.between(step, 0, held_since);
            let (held, below) = self.between(step, held_since, step + 1);
            return (new + fetched) * weight + held * paid[step + 1] - below;
        }
        let (fetched, _) = self.between(step, 0, held_since);
        let (held, below) = self.between(step, held_since, step + 1);
        (new + fetched) * (weight + paid[step + 1] - paid[first]) + held * paid[step + 1] - below
    }

    fn add_load(&self, window: Window, end: usize, paid: &[f64], changes: &mut [f64]) {
        for step in window.first..end {
            let at_once = step == window.first;
            let held_since = match (window.fetches, at_once) {
                (false, _) => 0,
                (true, true) => cheap_gap(paid, window.first + 1, self.weight()),
                (true, false) => cheap_gap(paid, window.first, self.weight()),
            };
            let mut delivered = f64::from(self.owner.first[step]);
            for (gap, rows) in self.owner.again(step).iter().enumerate() {
                let rows = f64::from(*rows);
                if gap < held_since {
                    delivered += rows;
                } else {
                    changes[gap] += rows;
                    changes[step + 1] -= rows;
                }
            }
            if !at_once {
                changes[window.first] += delivered;
                changes[step + 1] -= delivered;
            }
        }
    }
}

/// The first gap from which on it is cheaper to hold a row up to the gap before `end` than to fetch it for `cost`.
fn cheap_gap(paid: &[f64], end: usize, cost: f64) -> usize {
    paid[..end].partition_point(|below| paid[end] - below >= cost)
}

/// Prices of gaps that are raised where too many rows are held, and the best bound so far.
pub(super) struct Relaxation<'a> {
    counts: &'a ReuseCounts,
    owners: Vec<PricedOwner<'a>>,
    budget: f64,
    prices: Vec<f64>,
    paid: Vec<f64>,
    changes: Vec<f64>,
}

/// The relaxed plan at some prices.
pub(super) struct Relaxed {
    /// At most the cost of any feasible plan.
    pub bound: f64,
    /// Owner by owner.
    pub times: Vec<Vec<usize>>,
}

impl<'a> Relaxation<'a> {
    pub(super) fn new(counts: &'a ReuseCounts, budget_rows: u32) -> Self {
        Self {
            counts,
            owners: counts.owners.iter().map(PricedOwner::new).collect(),
            budget: f64::from(budget_rows),
            prices: vec![0.0; counts.steps],
            paid: vec![0.0; counts.steps + 1],
            changes: vec![0.0; counts.steps + 1],
        }
    }

    pub(super) fn solve(&mut self, price: f64) -> Relaxed {
        let mut sum = 0.0;
        for (paid, price) in self.paid[1..].iter_mut().zip(&self.prices) {
            sum += price;
            *paid = sum;
        }
        self.changes.fill(0.0);
        let mut bound = -self.budget * sum;
        let mut times = Vec::with_capacity(self.owners.len());
        for owner in &mut self.owners {
            let cheapest = owner.cheapest(&self.counts.window_ends, &self.paid, price, &mut self.changes);
            bound += cheapest.cost;
            times.push(cheapest.times);
        }
        Relaxed { bound, times }
    }

    /// Moves the prices along the overload of the last solution, by `share` of the way that would close the distance to a
    /// plan of cost `best` (Polyak's step). `false` if there is no overload and no price to lower.
    pub(super) fn step(&mut self, bound: f64, best: f64, share: f64) -> bool {
        let mut held = 0.0;
        let mut overload = Vec::with_capacity(self.prices.len());
        for (change, price) in self.changes.iter().zip(&self.prices) {
            held += change;
            let over = held - self.budget;
            overload.push(if over < 0.0 && *price == 0.0 { 0.0 } else { over });
        }
        let length: f64 = overload.iter().map(|over| over * over).sum();
        if length == 0.0 || best <= bound {
            return false;
        }
        let step = share * (best - bound) / length;
        for (price, over) in self.prices.iter_mut().zip(overload) {
            *price = (*price + step * over).max(0.0);
        }
        true
    }
}
