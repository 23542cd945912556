//! A cluster on paper: executes plans step by step in simulated seconds.
//!
//! This is not the simulator's formula. Time passes event by event, and every rank has a state: requests leave when the
//! step before their issue gap has been assembled, wait at their owner behind those that left earlier, take their
//! initiation, and then send their rows in order, at the owner's speed or at a fair share of what the rank can receive. A
//! batch is assembled once the rows that *it* needs have come. Batches are assembled at most `ahead` steps before they are
//! trained, and the ranks train each step together: the slowest holds up all. A rank that waits for rows, its own or those of
//! others, draws idle power.

use std::collections::VecDeque;

use greengnn_energy::simulator::Coefficients;
use greengnn_model::plan::{Request, WindowPlan};

/// What an epoch of all ranks took and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurement {
    pub seconds: f64,
    /// Seconds in which ranks waited, summed over them.
    pub stall_s: f64,
    /// Joules of requests, rows and waiting.
    pub joules: f64,
}

/// The plans of one rank and epoch.
pub type Plans = Vec<WindowPlan>;

/// A request on its way.
struct Transfer {
    initiation_s: f64,
    rows_left: f64,
    rows: usize,
    /// Steps and how many rows must have come for them, ascending.
    needs: Vec<(u32, usize)>,
}

impl Transfer {
    fn new(request: &Request, initiation_s: f64) -> Self {
        let first = (request.needed_by_step, request.rows_needed_by(request.needed_by_step));
        let later = request.later.iter();
        let later = later.map(|later| (later.needed_by_step, request.rows_needed_by(later.needed_by_step)));
        Self {
            initiation_s,
            rows_left: request.rows.len() as f64,
            rows: request.rows.len(),
            needs: std::iter::once(first).chain(later).collect(),
        }
    }

    /// Rows that have to come yet before `step` can be assembled.
    fn missing_for(&self, step: u32) -> f64 {
        let needed = self.needs.iter().rev().find(|(needed_by, _)| *needed_by <= step);
        let come = self.rows as f64 - self.rows_left;
        needed.map_or(0.0, |(_, rows)| (*rows as f64 - come).max(0.0))
    }
}

/// What one rank has asked for, by owner in the order of asking.
struct Link<'a> {
    coefficients: &'a Coefficients,
    now: f64,
    owners: Vec<VecDeque<Transfer>>,
}

/// Rows that are as good as come: times are sums of many small ones.
const NOTHING: f64 = 1e-6;

impl<'a> Link<'a> {
    fn new(coefficients: &'a Coefficients) -> Self {
        Self {
            coefficients,
            now: 0.0,
            owners: coefficients.owners.iter().map(|_| VecDeque::new()).collect(),
        }
    }

    fn ask(&mut self, request: &Request) {
        let owner = usize::from(request.owner);
        let initiation_s = self.coefficients.owners[owner].request_s;
        self.owners[owner].push_back(Transfer::new(request, initiation_s));
    }

    /// Rows a second of every owner's first transfer; none while it is initiated. Owners that are slower than a fair share
    /// of the link leave the rest to the others.
    fn rates(&self) -> Vec<Option<f64>> {
        let sends = |queue: &VecDeque<Transfer>| queue.front().is_some_and(|first| first.initiation_s <= 0.0);
        let mut sending: Vec<(usize, f64)> = (0..self.owners.len())
            .filter(|owner| sends(&self.owners[*owner]))
            .map(|owner| (owner, 1.0 / self.coefficients.owners[owner].row_s))
            .collect();
        sending.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        let mut left = self.coefficients.bytes_per_s / self.coefficients.row_bytes;
        let mut rates = vec![None; self.owners.len()];
        for (index, (owner, most)) in sending.iter().enumerate() {
            let rate = most.min(left / (sending.len() - index) as f64);
            left -= rate;
            rates[*owner] = Some(rate);
        }
        rates
    }

    /// Seconds until the state changes: an initiation ends, a transfer ends, or the last row that `step` misses comes.
    fn next_event(&self, step: Option<u32>) -> Option<f64> {
        let mut soonest: Option<f64> = None;
        for (queue, rate) in self.owners.iter().zip(self.rates()) {
            let Some(first) = queue.front() else { continue };
            let seconds = match rate {
                None => first.initiation_s,
                Some(rate) => {
                    let missing = step.map_or(0.0, |step| first.missing_for(step));
                    let rows = if missing > NOTHING { missing } else { first.rows_left };
                    rows / rate
                }
            };
            soonest = Some(soonest.map_or(seconds, |soonest| soonest.min(seconds)));
        }
        soonest
    }

    fn pass(&mut self, seconds: f64) {
        let rates = self.rates();
        self.now += seconds;
        for (queue, rate) in self.owners.iter_mut().zip(rates) {
            let Some(first) = queue.front_mut() else { continue };
            match rate {
                None => {
                    first.initiation_s -= seconds;
                    if first.initiation_s < 1e-12 {
                        first.initiation_s = 0.0;
                    }
                }
                Some(rate) => {
                    first.rows_left -= rate * seconds;
                    if first.rows_left <= NOTHING {
                        queue.pop_front();
                    }
                }
            }
        }
    }

    fn run_until(&mut self, time: f64) {
        while self.now < time {
            let left = time - self.now;
            match self.next_event(None).filter(|event| *event < left) {
                Some(event) => self.pass(event),
                None => {
                    self.pass(left);
                    self.now = time;
                }
            }
        }
    }

    /// Lets time pass until all rows that `step` needs have come.
    fn run_until_ready(&mut self, step: u32) {
        let is_missing = |link: &Self| {
            let mut all = link.owners.iter().flatten();
            all.any(|transfer| transfer.missing_for(step) > NOTHING)
        };
        while is_missing(self) {
            match self.next_event(Some(step)) {
                Some(event) => self.pass(event),
                None => break,
            }
        }
    }
}

/// Runs one epoch of all ranks, `plans` and `coefficients` by rank. All of them have the same number of steps.
pub fn run(plans: &[Plans], coefficients: &[Coefficients]) -> Measurement {
    let steps = plans[0].iter().map(|window| window.batches.len()).sum::<usize>() as u32;
    let step_s = coefficients.iter().map(|rank| rank.step_s).fold(0.0, f64::max);
    let idle_w: f64 = coefficients.iter().map(|rank| rank.idle_w).sum();
    let mut requests: Vec<_> = plans
        .iter()
        .map(|plans| plans.iter().flat_map(|window| &window.requests).peekable())
        .collect();
    let mut links: Vec<Link> = coefficients.iter().map(Link::new).collect();
    let mut measured = Measurement::default();
    // When each step had been trained by all.
    let mut trained: Vec<f64> = Vec::new();
    for step in 0..steps {
        let before = trained.last().copied().unwrap_or(0.0);
        let mut start = before;
        for (link, requests) in links.iter_mut().zip(&mut requests) {
            // A place for one more batch is free once an earlier one has been trained.
            let earlier = (step as usize).checked_sub(1 + link.coefficients.ahead as usize);
            link.run_until(earlier.map_or(0.0, |step| trained[step]));
            while let Some(request) = requests.next_if(|request| request.issue_gap() <= step) {
                let cost = link.coefficients.owners[usize::from(request.owner)];
                measured.joules += cost.request_j + cost.row_j * request.rows.len() as f64;
                link.ask(request);
            }
            link.run_until_ready(step);
            start = start.max(link.now);
        }
        measured.stall_s += (start - before) * plans.len() as f64;
        measured.joules += idle_w * (start - before);
        trained.push(start + step_s);
    }
    measured.seconds = trained.last().copied().unwrap_or(0.0);
    measured
}
