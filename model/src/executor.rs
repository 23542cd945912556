//! Runs plans in memory: an arena that holds the names of rows instead of their values, and no clock but the steps.
//!
//! The executor believes nothing. It checks the rules of [`Policy`](crate::policy::Policy) that concern a plan as it is
//! executed, fills slots at the worst times ([`Arrivals`]), forgets what a released slot held, and looks at every row of
//! every batch. The same loop, with values, sockets and threads, is what the runtime does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::book::{NodeId, PartId, PartitionBook, Rank};
use crate::counters::Phase;
use crate::plan::{BatchPlan, CacheState, Delivery, HeldRow, Place, Request, WindowPlan};
use crate::policy::{Fill, RemoteTrace, TraceReadError};

#[cfg(test)]
mod tests;

/// When answers come. A plan has to hold for both, and then holds for everything in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// As soon as the request leaves: finds slots that are overwritten too early.
    AtOnce,
    /// Only just before the step that needs the request is assembled: finds rows that are read too early.
    WhenNeeded,
}

/// What a rank moved and held in one phase of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that count for the phase: those that are needed by one of its steps, or, of streams, those of the epoch,
    /// which count for training.
    pub feature_requests: u64,
    /// Arrivals of rows that are needed by one of its steps.
    pub deliveries: u64,
    /// Rows of these deliveries.
    pub feature_rows: u64,
    /// Remote rows of all batches, each counted in every batch that has it.
    pub needed_rows: u64,
    /// The most slots that were charged at a gap before a step of the phase.
    pub held_rows_peak: u32,
}

/// Where a plan breaks a rule, and which one, as numbered at [`Policy`](crate::policy::Policy).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule} is broken at step {step}: {what}")]
pub struct Violation {
    pub rule: u8,
    pub step: u32,
    pub what: String,
}

/// Why an execution ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError {
    #[error(transparent)]
    Trace(#[from] TraceReadError),
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// The part of a slot's life that the charge sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Free,
    /// Charged for this row, which may be read from step `due` on.
    Charged {
        node: NodeId,
        due: u32,
    },
}

/// A request that has left.
#[derive(Clone)]
struct UnderWay {
    request: Request,
    /// How many of its rows have come.
    come: usize,
}

/// Executes the plans of one rank, epoch after epoch.
#[derive(Clone)]
pub struct Executor {
    book: Arc<PartitionBook>,
    rank: Rank,
    arrivals: Arrivals,
    delivery: Delivery,
    /// Owners whose stream of this epoch is open.
    streams: BTreeSet<PartId>,
    charges: Vec<Charge>,
    charged: u32,
    /// What is really in a slot: nothing once it is released and until the answer comes.
    contents: Vec<Option<NodeId>>,
    /// The slot that is charged for a node.
    slot_of: BTreeMap<NodeId, u32>,
    /// What is in the assembly buffer of the next step.
    buffer: Vec<Option<NodeId>>,
    /// Requests that have not been answered in full.
    under_way: Vec<UnderWay>,
    next_step: u32,
    tallies: BTreeMap<Phase, Tally>,
}

impl Executor {
    /// An executor with an empty arena of `budget_rows` slots.
    pub fn new(book: Arc<PartitionBook>, rank: Rank, budget_rows: u32, arrivals: Arrivals) -> Self {
        Self {
            book,
            rank,
            arrivals,
            delivery: Delivery::Windowed,
            streams: BTreeSet::new(),
            charges: vec![Charge::Free; budget_rows as usize],
            charged: 0,
            contents: vec![None; budget_rows as usize],
            slot_of: BTreeMap::new(),
            buffer: Vec::new(),
            under_way: Vec::new(),
            next_step: 0,
            tallies: BTreeMap::new(),
        }
    }

    /// The same with requests as `delivery` says, and rule 16 checked of streams. A fill is always asked request by request.
    pub fn with_delivery(self, delivery: Delivery) -> Self {
        Self { delivery, ..self }
    }

    /// Executes the fill of a static policy.
    ///
    /// # Errors
    /// A [`Violation`] of rule 3, 4, 6, 10 or 13.
    pub fn fill(&mut self, fill: &Fill) -> Result<(), Violation> {
        let mut owner_before = None;
        for request in &fill.requests {
            ensure(owner_before < Some(request.owner), 13, 0, || {
                format!("the fill asks part {} a second time or out of order", request.owner)
            })?;
            owner_before = Some(request.owner);
            ensure((request.issue_gap(), request.needed_by_step) == (0, 0), 4, 0, || {
                "a request of the fill waits for a step".to_owned()
            })?;
            self.issue(request, 0, Phase::Setup)?;
        }
        self.answer_needed_by(0);
        self.note_peak(Phase::Setup);
        self.check_state(&fill.state, 13)
    }

    /// Starts an epoch at `from_step`. What is held stays.
    pub fn start_epoch(&mut self, from_step: u32) {
        self.next_step = from_step;
        self.tallies.clear();
        self.streams.clear();
        // Whatever came in an epoch before may be read from the first step on.
        for charge in &mut self.charges {
            if let Charge::Charged { due, .. } = charge {
                *due = 0;
            }
        }
    }

    /// Executes the plan of the next window.
    ///
    /// # Errors
    /// A [`Violation`] of rules 1 to 10 or 16, or a trace that cannot be read.
    pub fn run_window(&mut self, plan: &WindowPlan, trace: &dyn RemoteTrace) -> Result<(), ExecuteError> {
        self.check_window(plan, trace)?;
        let mut requests = plan.requests.iter().peekable();
        for batch in &plan.batches {
            self.buffer.clear();
            self.buffer.resize(batch.direct_rows as usize, None);
            let mut questions = Vec::new();
            while let Some(request) = requests.next_if(|request| request.issue_gap() == batch.step) {
                let question = (request.owner, request.needed_by_step);
                ensure(!questions.contains(&question), 5, batch.step, || {
                    format!("part {} is asked twice for step {}", question.0, question.1)
                })?;
                questions.push(question);
                let last = request.last_needed_by_step();
                ensure(last < trace.steps(), 4, batch.step, || {
                    format!("a request is needed by step {last} of {}", trace.steps())
                })?;
                let streamed = self.delivery == Delivery::Stream;
                ensure(!streamed || request.later.is_empty(), 16, batch.step, || {
                    let owner = request.owner;
                    format!("a delivery of part {owner} in a stream has rows that only later steps need")
                })?;
                self.issue(request, batch.step, trace.purpose(request.needed_by_step).into())?;
            }
            self.note_peak(plan.purpose.into());
            self.answer_needed_by(batch.step);
            let nodes = self.assemble(batch, trace)?;
            self.tallies.entry(plan.purpose.into()).or_default().needed_rows += nodes;
            self.change_arena(batch)?;
            self.next_step = batch.step + 1;
        }
        Ok(())
    }

    /// Ends an epoch of `steps` steps.
    ///
    /// # Errors
    /// A [`Violation`] of rule 1 or 11.
    pub fn end_epoch(&self, steps: u32, state: &CacheState) -> Result<(), Violation> {
        ensure(self.next_step == steps, 1, self.next_step, || {
            format!("the plans end before step {steps}")
        })?;
        ensure(self.under_way.is_empty(), 11, steps, || {
            format!(
                "{} requests are under way at the end of the epoch",
                self.under_way.len()
            )
        })?;
        self.check_state(state, 11)
    }

    /// What was moved and held in `phase` since the epoch started, or by the fill, which is set-up, before the first one.
    pub fn tally(&self, phase: Phase) -> Tally {
        self.tallies.get(&phase).copied().unwrap_or_default()
    }

    fn check_window(&self, plan: &WindowPlan, trace: &dyn RemoteTrace) -> Result<(), Violation> {
        let first = plan.first_step();
        let end = first + plan.batches.len() as u32;
        ensure(
            !plan.batches.is_empty() && first == self.next_step,
            1,
            self.next_step,
            || format!("a window of {} steps starts at step {first}", plan.batches.len()),
        )?;
        ensure(end <= trace.steps(), 1, first, || {
            format!("the window ends at step {end} of {}", trace.steps())
        })?;
        for (step, batch) in (first..end).zip(&plan.batches) {
            ensure(
                batch.step == step && trace.purpose(step) == plan.purpose,
                1,
                step,
                || {
                    format!(
                        "a {:?} window has step {} of purpose {:?}",
                        plan.purpose,
                        batch.step,
                        trace.purpose(step)
                    )
                },
            )?;
        }
        let gaps = || plan.requests.iter().map(Request::issue_gap);
        ensure(gaps().is_sorted(), 4, first, || {
            "requests are not sorted by issue gap".to_owned()
        })?;
        ensure(gaps().all(|gap| (first..end).contains(&gap)), 4, first, || {
            "a request leaves at a step of another window".to_owned()
        })
    }

    fn issue(&mut self, request: &Request, gap: u32, phase: Phase) -> Result<(), Violation> {
        let nodes = self.check_request(request, gap)?;
        let mut later = request.later.iter().peekable();
        let mut due = request.needed_by_step;
        for (row, (node, place)) in (0..).zip(nodes.iter().zip(&request.places)) {
            if let Some(rows) = later.next_if(|later| later.first_row == row) {
                due = rows.needed_by_step;
            }
            match *place {
                Place::Slot(slot) => self.charge(slot, *node, gap, due)?,
                Place::Direct(_) => {
                    let held = self.slot_of.get(node).map(|slot| self.charges[*slot as usize]);
                    let readable = matches!(held, Some(Charge::Charged { due, .. }) if due <= gap);
                    ensure(!readable, 10, gap, || format!("node {node} is held and asked for"))?;
                }
            }
        }
        let tally = self.tallies.entry(phase).or_default();
        tally.deliveries += 1;
        tally.feature_rows += nodes.len() as u64;
        if let Some(asked) = self.asks(request.owner, phase) {
            self.tallies.entry(asked).or_default().feature_requests += 1;
        }
        let mut under_way = UnderWay {
            request: request.clone(),
            come: 0,
        };
        if self.arrivals == Arrivals::AtOnce {
            self.answer(&mut under_way, nodes.len());
        }
        self.under_way.push(under_way);
        Ok(())
    }

    /// The phase for which a delivery of `owner` makes a request count; none if it belongs to a stream that is open.
    fn asks(&mut self, owner: PartId, phase: Phase) -> Option<Phase> {
        match self.delivery {
            Delivery::Stream if phase != Phase::Setup => self.streams.insert(owner).then_some(Phase::Training),
            _ => Some(phase),
        }
    }

    /// The nodes that a request asks for, after a check of everything that does not concern the arena.
    fn check_request(&self, request: &Request, gap: u32) -> Result<Vec<NodeId>, Violation> {
        let Request {
            owner, rows, places, ..
        } = request;
        ensure(*owner != self.rank && *owner < self.book.parts(), 3, gap, || {
            format!("rank {} asks part {owner}", self.rank)
        })?;
        ensure(!rows.is_empty() && rows.len() == places.len(), 3, gap, || {
            format!("{} rows of part {owner} have {} places", rows.len(), places.len())
        })?;
        let direct_end = check_order(request, gap)?;
        let unknown = rows.iter().find(|row| **row >= self.book.part_nodes(*owner));
        ensure(unknown.is_none(), 3, gap, || {
            format!("part {owner} has no row {unknown:?}")
        })?;
        ensure(gap <= request.needed_by_step, 4, gap, || {
            format!("a request is needed by step {} already", request.needed_by_step)
        })?;
        for (index, place) in places.iter().enumerate() {
            let (known, direct) = match *place {
                Place::Slot(slot) => ((slot as usize) < self.charges.len(), false),
                Place::Direct(direct) => ((direct as usize) < self.buffer.len(), true),
            };
            let in_time = gap == request.needed_by_step && index < direct_end;
            ensure(!direct || in_time, 4, gap, || {
                format!("a direct row is not needed by step {gap}, before which it is asked for")
            })?;
            ensure(known, 3, gap, || format!("there is no {place:?}"))?;
        }
        let first = self.book.range(*owner).start;
        Ok(rows.iter().map(|row| first + row).collect())
    }

    fn charge(&mut self, slot: u32, node: NodeId, step: u32, due: u32) -> Result<(), Violation> {
        ensure((slot as usize) < self.charges.len(), 6, step, || {
            format!("the arena has no slot {slot}")
        })?;
        let charge = self.charges[slot as usize];
        ensure(charge == Charge::Free, 6, step, || {
            format!("slot {slot} is to hold node {node}, but is {charge:?}")
        })?;
        let other = self.slot_of.insert(node, slot);
        ensure(other.is_none(), 10, step, || {
            format!("node {node} is to have a second slot, {slot}")
        })?;
        self.charges[slot as usize] = Charge::Charged { node, due };
        self.charged += 1;
        Ok(())
    }

    fn note_peak(&mut self, phase: Phase) {
        let tally = self.tallies.entry(phase).or_default();
        tally.held_rows_peak = tally.held_rows_peak.max(self.charged);
    }

    /// Lets the rows come that `step` needs.
    fn answer_needed_by(&mut self, step: u32) {
        let mut under_way = std::mem::take(&mut self.under_way);
        for request in &mut under_way {
            let rows = request.request.rows_needed_by(step);
            self.answer(request, rows);
        }
        under_way.retain(|request| request.request.last_needed_by_step() > step);
        self.under_way = under_way;
    }

    /// Lets rows of a request come, up to that many.
    fn answer(&mut self, under_way: &mut UnderWay, rows: usize) {
        let UnderWay { request, come } = under_way;
        let first = self.book.range(request.owner).start;
        for (row, place) in request.rows.iter().zip(&request.places).take(rows).skip(*come) {
            match *place {
                Place::Slot(slot) => self.contents[slot as usize] = Some(first + row),
                Place::Direct(direct) => self.buffer[direct as usize] = Some(first + row),
            }
        }
        *come = rows.max(*come);
    }

    /// Reads every remote row of a batch where its place says. Returns their number.
    fn assemble(&self, batch: &BatchPlan, trace: &dyn RemoteTrace) -> Result<u64, ExecuteError> {
        let remote = trace.remote_rows(batch.step)?;
        let (step, places) = (batch.step, &batch.places);
        ensure(places.len() == remote.len(), 2, step, || {
            format!("{} rows have {} places", remote.len(), places.len())
        })?;
        let mut used = vec![false; self.buffer.len()];
        for ((owner, row), place) in remote.iter().zip(places) {
            let found = match *place {
                Place::Slot(slot) => self.contents.get(slot as usize),
                Place::Direct(direct) => self.buffer.get(direct as usize),
            };
            let node = self.book.range(owner).start + row;
            ensure(found == Some(&Some(node)), 7, step, || {
                format!("row {row} of part {owner}, node {node}, is read from {place:?}, where {found:?} is")
            })?;
            if let Place::Direct(direct) = *place {
                let twice = std::mem::replace(&mut used[direct as usize], true);
                ensure(!twice, 2, step, || format!("{place:?} is named twice"))?;
            }
        }
        let unused = used.iter().position(|used| !used);
        ensure(unused.is_none(), 2, step, || {
            format!("direct row {unused:?} is never read")
        })?;
        Ok(remote.len() as u64)
    }

    fn change_arena(&mut self, batch: &BatchPlan) -> Result<(), Violation> {
        let step = batch.step;
        for slot in &batch.releases {
            match self.charges.get(*slot as usize) {
                Some(Charge::Charged { node, due }) if *due <= step => {
                    self.slot_of.remove(node);
                }
                other => {
                    return Err(Violation {
                        rule: 8,
                        step,
                        what: format!("slot {slot} is released, but is {other:?}"),
                    });
                }
            }
            self.charges[*slot as usize] = Charge::Free;
            self.charged -= 1;
            self.contents[*slot as usize] = None;
        }
        for keep in &batch.keeps {
            let Some(Some(node)) = self.buffer.get(keep.direct as usize).copied() else {
                return Err(Violation {
                    rule: 9,
                    step,
                    what: format!("there is no direct row {} to keep", keep.direct),
                });
            };
            self.charge(keep.slot, node, step, step)
                .map_err(|violation| Violation {
                    rule: if violation.rule == 6 { 9 } else { violation.rule },
                    ..violation
                })?;
            self.contents[keep.slot as usize] = Some(node);
        }
        Ok(())
    }

    fn check_state(&self, state: &CacheState, rule: u8) -> Result<(), Violation> {
        let held: Vec<HeldRow> = self
            .slot_of
            .iter()
            .map(|(node, slot)| {
                let home = self.book.row_home(*node);
                let (owner, row): (PartId, u32) = (home.owner, home.row);
                HeldRow {
                    owner,
                    row,
                    slot: *slot,
                }
            })
            .collect();
        ensure(held == state.held, rule, self.next_step, || {
            format!(
                "the state names {} rows, but these are held: {held:?}",
                state.held.len()
            )
        })
    }
}

/// Checks the order of a request's rows and of the steps that need them. Returns how many rows are not later.
fn check_order(request: &Request, gap: u32) -> Result<usize, Violation> {
    let Request { owner, rows, later, .. } = request;
    let steps: Vec<u32> = std::iter::once(request.needed_by_step)
        .chain(later.iter().map(|later| later.needed_by_step))
        .collect();
    ensure(steps.is_sorted_by(|a, b| a < b), 4, gap, || {
        format!("rows of part {owner} are needed by steps {steps:?}, which do not ascend")
    })?;
    let ends: Vec<usize> = later
        .iter()
        .map(|later| later.first_row as usize)
        .chain([rows.len()])
        .collect();
    let mut first = 0;
    let mut seen = BTreeSet::new();
    for end in &ends {
        let part = rows.get(first..*end).unwrap_or_default();
        let ascends = !part.is_empty() && part.is_sorted_by(|a, b| a < b);
        ensure(ascends && part.iter().all(|row| seen.insert(*row)), 3, gap, || {
            format!("rows of part {owner} that are needed together do not ascend, or are not each once")
        })?;
        first = *end;
    }
    Ok(ends[0])
}

fn ensure(kept: bool, rule: u8, step: u32, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if kept {
        return Ok(());
    }
    Err(Violation {
        rule,
        step,
        what: what(),
    })
}
