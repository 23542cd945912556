//! When ranks that train in step wait for rows, and how long: one pass over the steps of an epoch.
//!
//! A batch of a rank is assembled once there is a place for it (at most `ahead` batches wait to be trained) and the rows that
//! it needs have come. Rows are asked for just before the assembly that their issue gap names. Their owner answers what a
//! rank asks one after the other, and what a rank receives at once shares its link.
//!
//! Training averages gradients at every step, so that a step starts when the last rank has its batch: a wait of one rank is a
//! wait of all. Evaluation averages nothing: its steps are taken by every rank apart, and the ranks meet at the end.
//!
//! What a rank asks for at one time is priced in closed form, as if it had the link to itself once what was asked for before
//! has come. What owners do for several ranks at once is in their measured coefficients or nowhere.

use super::cost::{Coefficients, RankTraffic, SimulationError};
use super::traffic::{Delivery, OwnerTraffic};

/// What is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Rebuild,
    Miss,
}

/// Seconds by what was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Waits {
    pub rebuild_s: f64,
    pub miss_s: f64,
}

impl Waits {
    fn add(&mut self, kind: Kind, seconds: f64) {
        match kind {
            Kind::Rebuild => self.rebuild_s += seconds,
            Kind::Miss => self.miss_s += seconds,
        }
    }

    fn total_s(&self) -> f64 {
        self.rebuild_s + self.miss_s
    }
}

/// What one rank does besides training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RankWaits {
    /// For rows, its own or those of others.
    pub waits: Waits,
    /// For its own rows, and of that what it waited in training.
    pub own_s: f64,
    pub own_training_s: f64,
    /// For ranks that train more slowly, or have more steps. No plan changes it.
    pub slower_s: f64,
}

/// Rows that are asked for together, as the steps of the epoch see them.
struct Fetch<'a> {
    kind: Kind,
    /// Steps by their place in the epoch. What is beyond the last has come when the epoch ends.
    issue_gap: usize,
    needed_by: usize,
    traffic: &'a Delivery,
}

impl Fetch<'_> {
    /// Steps and how many of the rows of `traffic` must have come for them, ascending.
    fn needs(&self, traffic: &OwnerTraffic) -> Vec<(usize, u64)> {
        let of_owner = self.traffic.later.iter().filter(|later| later.owner == traffic.owner);
        let mut later: Vec<(u32, u64)> = of_owner.map(|later| (later.steps, later.rows)).collect();
        later.sort_unstable();
        let late_rows: u64 = later.iter().map(|(_, rows)| rows).sum();
        let mut rows = traffic.rows.saturating_sub(late_rows);
        let mut needs = vec![(self.needed_by, rows)];
        for (steps, more) in later {
            rows += more;
            needs.push((self.needed_by.saturating_add(steps as usize), rows));
        }
        needs
    }
}

/// When something is there, and what was waited for.
#[derive(Clone, Copy, Debug, Default)]
struct Arrival {
    seconds: f64,
    kind: Kind,
}

impl Arrival {
    fn later(&mut self, other: Self) {
        if other.seconds > self.seconds {
            *self = other;
        }
    }
}

/// One rank on its way through the epoch.
struct Rank<'a> {
    coefficients: &'a Coefficients,
    /// Per step whether it evaluates.
    evaluates: Vec<bool>,
    /// In the order in which they leave.
    fetches: std::iter::Peekable<std::vec::IntoIter<Fetch<'a>>>,
    /// By owner, when it has answered all that was asked.
    owner_free: Vec<f64>,
    /// When all that was asked has passed the link, were it never idle.
    link_free: f64,
    /// Per step, and then for the end of the epoch, when its rows have come.
    come: Vec<Arrival>,
    /// When the last batch was assembled.
    assembled: Arrival,
    /// When each of its steps had been taken.
    taken: Vec<f64>,
    /// When all of its steps so far had been taken.
    now: f64,
    /// Since the ranks met: its own waits and its steps.
    apart: Waits,
    apart_steps_s: f64,
    result: RankWaits,
}

impl<'a> Rank<'a> {
    fn new(RankTraffic { windows, coefficients }: &RankTraffic<'a>) -> Self {
        let first_step = windows.iter().find_map(|window| window.misses.first());
        let first_step = first_step.map_or(0, |miss| miss.issue_gap);
        let evaluates: Vec<bool> = windows
            .iter()
            .flat_map(|window| window.misses.iter().map(|_| window.evaluates))
            .collect();
        let steps = evaluates.len();
        let mut fetches = Vec::new();
        let mut step = 0;
        for window in *windows {
            for traffic in &window.deliveries {
                let issue_gap = (traffic.issue_gap.saturating_sub(first_step) as usize).min(steps);
                fetches.push(Fetch {
                    kind: Kind::Rebuild,
                    issue_gap,
                    needed_by: issue_gap.saturating_add(traffic.steps_ahead as usize),
                    traffic,
                });
            }
            for traffic in &window.misses {
                fetches.push(Fetch {
                    kind: Kind::Miss,
                    issue_gap: step,
                    needed_by: step,
                    traffic,
                });
                step += 1;
            }
        }
        fetches.retain(|fetch| !fetch.traffic.owners.is_empty());
        fetches.sort_by_key(|fetch| (fetch.issue_gap, fetch.needed_by));
        Self {
            coefficients,
            evaluates,
            fetches: fetches.into_iter().peekable(),
            owner_free: vec![0.0; coefficients.owners.len()],
            link_free: 0.0,
            come: vec![Arrival::default(); steps + 1],
            assembled: Arrival::default(),
            taken: Vec::with_capacity(steps),
            now: 0.0,
            apart: Waits::default(),
            apart_steps_s: 0.0,
            result: RankWaits::default(),
        }
    }

    /// Asks for all that leaves at one time, and notes when the rows of each step will have come.
    ///
    /// The rows of an owner come one after the other, at its speed or at its share of the link: until it has sent `n` rows,
    /// each other owner has sent up to `n` of what it was asked.
    fn ask(&mut self, fetches: &[Fetch<'_>], now: f64) -> Result<(), SimulationError> {
        let coefficients = self.coefficients;
        let row_wire_s = coefficients.row_bytes / coefficients.bytes_per_s;
        // By owner what it was asked now, and how much of that is in the fetches so far.
        let mut asked = vec![0; self.owner_free.len()];
        let mut sent = vec![0; self.owner_free.len()];
        let mut soonest: Option<f64> = None;
        for traffic in fetches.iter().flat_map(|fetch| &fetch.traffic.owners) {
            let initiation_s = coefficients.initiation_s(traffic)?;
            let owner = usize::from(traffic.owner);
            let first_row = self.owner_free[owner].max(now) + initiation_s;
            soonest = Some(soonest.map_or(first_row, |soonest| soonest.min(first_row)));
            asked[owner] += traffic.rows;
        }
        let link_start = self.link_free.max(soonest.unwrap_or(now));
        let passed_by = |rows: u64| -> f64 {
            let passed: u64 = asked.iter().map(|asked| rows.min(*asked)).sum();
            link_start + passed as f64 * row_wire_s
        };
        for fetch in fetches {
            for traffic in &fetch.traffic.owners {
                let owner = usize::from(traffic.owner);
                let row_s = coefficients.owners[owner].row_s.max(row_wire_s);
                let first_row = self.owner_free[owner].max(now) + coefficients.initiation_s(traffic)?;
                let at = |rows: u64| {
                    let sent_by = first_row + rows as f64 * row_s;
                    if rows == 0 {
                        sent_by
                    } else {
                        sent_by.max(passed_by(sent[owner] + rows))
                    }
                };
                for (step, rows) in fetch.needs(traffic) {
                    let step = step.min(self.come.len() - 1);
                    self.come[step].later(Arrival {
                        seconds: at(rows),
                        kind: fetch.kind,
                    });
                }
                self.owner_free[owner] = at(traffic.rows);
                sent[owner] += traffic.rows;
            }
        }
        if asked.iter().any(|rows| *rows > 0) {
            self.link_free = passed_by(u64::MAX);
        }
        Ok(())
    }

    /// Assembles a batch, or at last has all rows that were asked for.
    fn assemble(&mut self, step: usize) -> Result<(), SimulationError> {
        let freed_by = step.checked_sub(self.coefficients.ahead as usize + 1);
        let place = freed_by.and_then(|step| self.taken.get(step)).copied().unwrap_or(0.0);
        self.assembled.seconds = self.assembled.seconds.max(place);
        let due = std::iter::from_fn(|| self.fetches.next_if(|fetch| fetch.issue_gap <= step));
        let due: Vec<Fetch> = due.collect();
        self.ask(&due, self.assembled.seconds)?;
        self.assembled.later(self.come[step]);
        Ok(())
    }

    /// Waits for its own batch alone.
    fn wait_apart(&mut self) {
        let wait_s = (self.assembled.seconds - self.now).max(0.0);
        self.apart.add(self.assembled.kind, wait_s);
        self.result.own_s += wait_s;
        self.now += wait_s;
    }

    fn take(&mut self, seconds: f64) {
        self.now += seconds;
        self.taken.push(self.now);
    }
}

/// The waits of every rank, given what each one's plan of one epoch moves. A rank that has fewer steps than others takes no
/// part in the last ones.
pub(crate) fn waits_in_step(ranks: &[RankTraffic<'_>]) -> Result<Vec<RankWaits>, SimulationError> {
    let mut ranks: Vec<Rank> = ranks.iter().map(Rank::new).collect();
    let steps = ranks.iter().map(|rank| rank.evaluates.len()).max().unwrap_or(0);
    for step in 0..steps {
        let trains = ranks.iter().any(|rank| rank.evaluates.get(step) == Some(&false));
        if trains {
            meet(&mut ranks);
            train(&mut ranks, step)?;
        } else {
            for rank in ranks.iter_mut().filter(|rank| step < rank.evaluates.len()) {
                rank.assemble(step)?;
                rank.wait_apart();
                rank.take(rank.coefficients.step_s);
                rank.apart_steps_s += rank.coefficients.step_s;
            }
        }
    }
    for rank in &mut ranks {
        rank.assemble(rank.evaluates.len())?;
        rank.wait_apart();
    }
    meet(&mut ranks);
    Ok(ranks.into_iter().map(|rank| rank.result).collect())
}

/// One step of all ranks, which have met.
fn train(ranks: &mut [Rank<'_>], step: usize) -> Result<(), SimulationError> {
    let mut last = Arrival::default();
    let mut longest_s: f64 = 0.0;
    for rank in ranks.iter_mut().filter(|rank| step < rank.evaluates.len()) {
        rank.assemble(step)?;
        let own_s = (rank.assembled.seconds - rank.now).max(0.0);
        rank.result.own_s += own_s;
        // Rows of the first step are asked for in the epoch before, of which this one knows nothing.
        if step > 0 {
            rank.result.own_training_s += own_s;
        }
        last.later(rank.assembled);
        longest_s = longest_s.max(rank.coefficients.step_s);
    }
    for rank in ranks {
        let wait_s = (last.seconds - rank.now).max(0.0);
        rank.result.waits.add(last.kind, wait_s);
        rank.now += wait_s;
        if step < rank.evaluates.len() {
            rank.result.slower_s += longest_s - rank.coefficients.step_s;
            rank.take(longest_s);
        } else {
            rank.result.slower_s += longest_s;
            rank.now += longest_s;
        }
    }
    Ok(())
}

/// Ends what ranks did apart: all wait for the last, for what that one waited for.
fn meet(ranks: &mut [Rank<'_>]) {
    let mut last: Option<usize> = None;
    let mut longest_s: f64 = 0.0;
    for (index, rank) in ranks.iter().enumerate() {
        longest_s = longest_s.max(rank.apart_steps_s);
        if last.is_none_or(|last| rank.now > ranks[last].now) {
            last = Some(index);
        }
    }
    let Some(last) = last.map(|last| &ranks[last]) else {
        return;
    };
    let (now, waits) = (last.now, last.apart);
    // Less than the last rank waited where another one has more to do.
    let wait_s = (last.apart_steps_s + waits.total_s() - longest_s).max(0.0);
    let share = if waits.total_s() > 0.0 {
        wait_s / waits.total_s()
    } else {
        0.0
    };
    for rank in ranks {
        rank.result.waits.rebuild_s += waits.rebuild_s * share;
        rank.result.waits.miss_s += waits.miss_s * share;
        rank.result.slower_s += longest_s - rank.apart_steps_s;
        rank.now = now;
        rank.apart = Waits::default();
        rank.apart_steps_s = 0.0;
    }
}

#[cfg(test)]
mod tests;
