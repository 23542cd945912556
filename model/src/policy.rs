//! Policies: how remote rows are cached. A policy is a pure function from a trace to plans.
//!
//! | policy | what stays in the arena | what is asked when |
//! |---|---|---|
//! | [`on-demand`](pinned::OnDemand) | nothing | per batch and owner |
//! | [`lru`, `lfu`, `fifo`](replacement::Replacement) | the rows that were used last, used most or that came last | misses per batch and owner |
//! | [`epoch`](epoch::Epoch) | the most frequent rows of the epoch | once per epoch and owner, and misses per batch and owner |
//! | [`degree`, `presample`, `vip`](scored::StaticByScore) | the rows of highest score | at set-up, and misses per batch and owner |
//! | [`two-level`](two_level::TwoLevel) | the rows of highest score, split over the device and the host | at set-up, and misses per batch and owner |
//! | [`window`](window::Window) | the most frequent rows of each window, and of the next one while it is fetched | per window and owner, and misses per batch and owner |
//! | [`bulk`](bulk::Bulk) | what is needed until an owner's next delivery, and by next use whatever else fits | per owner, at the times that cost least; [streamed](streamed), which is usual, once per epoch and owner |
//! | [`full`](pinned::Full) | every remote row | once, at set-up |
//!
//! [`conformance`] checks any policy on any trace against the rules of [`Policy`]; [`bound`] says what none of them can beat,
//! and [`delivery`] what a choice of delivery times costs, and which to choose; [`moves`] counts what plans will move.

pub mod bound;
pub mod budget;
pub mod bulk;
pub mod conformance;
pub mod delivery;
pub mod epoch;
mod frequencies;
pub mod memory;
pub mod moves;
pub mod parameters;
pub mod pinned;
pub mod replacement;
pub mod scored;
pub mod scores;
mod slots;
mod step_by_step;
pub mod streamed;
#[cfg(test)]
mod tests;
pub mod two_level;
pub mod vip;
pub mod window;

use std::sync::Arc;

use crate::batch::RemoteRows;
use crate::book::{NodeId, PartId, PartitionBook, Rank};
use crate::plan::{CacheState, DeviceRows, Request, WindowPlan};
use crate::rng::Purpose;

pub use budget::{Budget, BudgetError};
pub use memory::MemoryTrace;
pub use parameters::PolicyParameters;
pub use streamed::{policy_for, usual_delivery};
pub use vip::vip;

/// A way of caching remote rows.
///
/// # Rules
///
/// Every plan of every policy keeps these rules, and [`conformance`] checks them. "Gap `g`" lies just before the assembly
/// of step `g`.
///
/// 1. *Windows.* The plans of an epoch cover the steps `from_step .. steps`, each once and in order. A window has 1 to
///    `window` steps, all of one purpose.
/// 2. *Places.* A batch names one place per remote row, in the order of [`RemoteRows::iter`]. Its direct places are
///    `0 .. direct_rows`, each once.
/// 3. *Requests.* A request asks one other part for at least one row, each once, and there is one place per row. Rows that
///    are needed first come first; those that are needed by the same step ascend.
/// 4. *Times.* A window's requests are sorted by issue gap, and each issue gap is a step of the window. It is at most
///    `needed_by_step`, and equal to it if a place is direct, which no place of a later row is. Steps that need later
///    rows ascend and are steps of the epoch.
/// 5. *One question.* No two requests share owner, issue gap and `needed_by_step`.
/// 6. *The charge.* A slot is charged from the issue gap of the request (or from the keep) that fills it until it is
///    released. It is filled only when it is free, so at most `budget_rows` slots are charged at any gap.
/// 7. *Reads.* When a step is assembled each of its rows is where its place says, whether answers come at once or only
///    when they are needed.
/// 8. *Releases.* Only a charged slot is released, and only after the step by which its row is needed.
/// 9. *Keeps.* A keep copies a direct row of its own batch into a free slot.
/// 10. *No row twice.* A row that is held or under way is not asked for and not kept a second time.
/// 11. *State.* At the end of an epoch nothing is under way, and [`Planner::into_state`] names exactly what is held, by
///     ascending owner and row. It is empty unless [`keeps_across_epochs`](Self::keeps_across_epochs).
/// 12. *Purity.* The same input gives the same plans, and [`PlanInput::next`] changes nothing unless
///     [`needs_next_epoch`](Self::needs_next_epoch).
/// 13. *Fill.* A fill asks each other part at most once, puts every row into a slot of its own, and its state names them.
/// 14. *Levels.* A fill puts at most `device_rows` rows on the device, the rank's own ones included. Every slot of the device
///     is filled by the fill, and no plan fills, frees or overwrites it.
/// 15. *One budget.* A row of the rank's own that is on the device takes the place of a remote one: together with the
///     charged slots these are at most `budget_rows` at any gap.
/// 16. *Streams.* In a plan that is streamed ([`Delivery::Stream`](crate::plan::Delivery::Stream)) no request has later
///     rows: the rows of a delivery ascend, and are needed by one step. A fill is not streamed.
pub trait Policy: Send + Sync {
    /// The name by which [`policy_by_name`] finds the policy.
    fn name(&self) -> &'static str;

    /// Slots of the arena that `rank` needs when the user grants `asked`: never more than the rows that the rank does not
    /// own. `full` ignores what was granted.
    fn budget_rows(&self, book: &PartitionBook, rank: Rank, asked: u32) -> u32 {
        asked.min(book.remote_nodes(rank))
    }

    /// Whether the policy can keep rows on the device.
    fn has_levels(&self) -> bool {
        false
    }

    /// Rows that the device keeps when the user asks for `asked`, or for nothing: never more than `budget_rows`, of which
    /// they are a part.
    fn device_rows(&self, budget_rows: u32, asked: Option<u32>) -> u32 {
        match self.has_levels() {
            true => asked.unwrap_or(0).min(budget_rows),
            false => 0,
        }
    }

    /// Whether plans get better when [`PlanInput::next`] is given.
    fn needs_next_epoch(&self) -> bool {
        false
    }

    /// Whether what is held at the end of an epoch is the state of the next one.
    fn keeps_across_epochs(&self) -> bool {
        false
    }

    /// Whether what moves depends on [`PlanInput::window`].
    fn uses_window(&self) -> bool {
        false
    }

    /// What is fetched once, before the first step of a run and again after a resume or a rejoin. Empty unless the policy
    /// is static.
    fn fill(&self, _book: &PartitionBook, _rank: Rank, _budget_rows: u32) -> Fill {
        Fill::default()
    }

    /// What a static policy ranks rows by. Whoever runs it computes these scores and gives them to
    /// [`fill_scored`](Self::fill_scored), at every fill the same.
    fn score_kind(&self) -> Option<ScoreKind> {
        None
    }

    /// The [`fill`](Self::fill) of a policy that may rank rows by scores.
    ///
    /// # Errors
    /// See [`FillError`]; none unless the policy has a [`score_kind`](Self::score_kind).
    fn fill_scored(&self, input: FillInput<'_>) -> Result<Fill, FillError> {
        Ok(self.fill(input.book, input.rank, input.budget_rows))
    }

    /// Starts to plan one epoch.
    ///
    /// # Errors
    /// See [`PlanError`].
    fn plan(&self, input: PlanInput) -> Result<Box<dyn Planner>, PlanError>;
}

/// Produces the plans of one epoch, window by window.
pub trait Planner: Send {
    /// The plan of the next window; `None` after the last.
    ///
    /// # Errors
    /// See [`PlanError`]. After an error the planner is of no more use.
    fn next_window(&mut self) -> Result<Option<WindowPlan>, PlanError>;

    /// What the arena holds after the last window.
    fn into_state(self: Box<Self>) -> CacheState;
}

/// What a static policy fetches at set-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// At most one per owner, by ascending owner. All places are slots; `issue_after_step` is `None`.
    pub requests: Vec<Request>,
    /// What the arena holds once they are answered.
    pub state: CacheState,
    /// Which of these rows, and which of the rank's own, the device keeps.
    pub device: DeviceRows,
}

/// What a static policy ranks rows by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreKind {
    /// [`scores::out_degrees`] of the whole graph.
    Degree,
    /// [`scores::presample_counts`] of that many epochs.
    Presample { epochs: u32 },
    /// [`vip()`] of the rank's training seeds.
    Vip,
    /// [`scores::corrected`]: the estimate with `weight`, 0 to 1, and the counts of presampled epochs with the rest.
    CorrectedVip { weight: f64, epochs: u32 },
}

/// Everything a fill is a function of.
#[derive(Clone, Copy, Debug)]
pub struct FillInput<'a> {
    pub book: &'a PartitionBook,
    pub rank: Rank,
    /// Slots of the arena, as [`Policy::budget_rows`] gave them.
    pub budget_rows: u32,
    /// Rows that the device may keep, as [`Policy::device_rows`] gave them.
    pub device_rows: u32,
    /// One score per node of the graph, where the policy has a [`score_kind`](Policy::score_kind).
    pub scores: Option<&'a [f64]>,
}

/// Why there is no fill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    #[error("policy {policy} ranks rows by scores, but none were given; compute them before the fill")]
    NoScores { policy: &'static str },
    #[error("policy {policy} was given {scores} scores for {nodes} nodes; give one per node")]
    ScoreCount {
        policy: &'static str,
        scores: usize,
        nodes: u32,
    },
    #[error("policy {policy} was given no number as the score of node {node}")]
    NotANumber { policy: &'static str, node: NodeId },
}

/// What a planner reads of a trace: the remote rows of every step of one epoch of one rank.
pub trait RemoteTrace: Send + Sync {
    /// Number of steps: training, then validation, then test.
    fn steps(&self) -> u32;
    fn purpose(&self, step: u32) -> Purpose;
    fn remote_rows(&self, step: u32) -> Result<Arc<RemoteRows>, TraceReadError>;
}

/// A trace that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the remote rows of step {step} cannot be read: {reason}")]
pub struct TraceReadError {
    pub step: u32,
    pub reason: String,
}

/// Everything a plan is a function of.
#[derive(Clone)]
pub struct PlanInput {
    pub rank: Rank,
    pub book: Arc<PartitionBook>,
    /// Slots of the arena, as [`Policy::budget_rows`] gave them.
    pub budget_rows: u32,
    /// Steps per window (`--window`); exact for `window`, a maximum for the others. At least 1.
    pub window: u32,
    /// This epoch.
    pub trace: Arc<dyn RemoteTrace>,
    /// The next epoch, where it has been presampled: the rest of the horizon. Later uses count as never.
    pub next: Option<Arc<dyn RemoteTrace>>,
    /// The first step to plan, from which windows are counted.
    pub from_step: u32,
    /// What the arena holds.
    pub state: CacheState,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Trace(#[from] TraceReadError),
    #[error("rank {rank} has no part: the partition book has {parts} parts")]
    UnknownRank { rank: Rank, parts: PartId },
    #[error("a window needs at least one step, ask for 1 or more")]
    EmptyWindow,
    #[error("the plan is to start at step {from_step}, but the epoch has {steps} steps")]
    StartsAfterEnd { from_step: u32, steps: u32 },
    #[error(
        "step {step} of the trace names row {row} of part {owner}, which is not a row of another part in ascending order; \
         presample the epoch anew"
    )]
    BadRow { step: u32, owner: PartId, row: u32 },
    #[error("the cache state names row {row} of part {owner} in slot {slot}: {reason}; start from an empty cache")]
    BadState {
        owner: PartId,
        row: u32,
        slot: u32,
        reason: &'static str,
    },
    #[error(
        "the plan needs more than the {budget_rows} slots of the arena before step {step}; this is a mistake of the \
         planner, please report it with the configuration of the run"
    )]
    OverBudget { step: u32, budget_rows: u32 },
    #[error("the cache state remembers {words} words, not one for each of {nodes} nodes; start from an empty cache")]
    BadHistory { words: usize, nodes: usize },
    #[error("policy {policy} starts every epoch with an empty cache, but {rows} rows are held")]
    ColdStart { policy: &'static str, rows: usize },
}

/// The names that [`policy_by_name`] knows.
pub const POLICY_NAMES: [&str; 12] = [
    "on-demand",
    "degree",
    "presample",
    "vip",
    "two-level",
    "lru",
    "lfu",
    "fifo",
    "epoch",
    "window",
    "bulk",
    "full",
];

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; choose one of {}", POLICY_NAMES.join(", "))]
pub struct UnknownPolicy {
    pub name: String,
}

/// The policy of that name, with its default parameters.
///
/// # Errors
/// [`UnknownPolicy`] lists the names.
pub fn policy_by_name(name: &str) -> Result<Arc<dyn Policy>, UnknownPolicy> {
    PolicyParameters::default().policy(name)
}

impl PlanInput {
    /// Checks all of the input but the rows of the traces, which are checked when they are read.
    fn check(&self) -> Result<(), PlanError> {
        if self.rank >= self.book.parts() {
            return Err(PlanError::UnknownRank {
                rank: self.rank,
                parts: self.book.parts(),
            });
        }
        if self.window == 0 {
            return Err(PlanError::EmptyWindow);
        }
        let steps = self.trace.steps();
        if self.from_step > steps {
            return Err(PlanError::StartsAfterEnd {
                from_step: self.from_step,
                steps,
            });
        }
        self.check_state()
    }

    fn check_state(&self) -> Result<(), PlanError> {
        let mut taken = vec![false; self.budget_rows as usize];
        let mut before = None;
        for held in &self.state.held {
            let refuse = |reason| {
                Err(PlanError::BadState {
                    owner: held.owner,
                    row: held.row,
                    slot: held.slot,
                    reason,
                })
            };
            if !is_remote_row(&self.book, self.rank, held.owner, held.row) {
                return refuse("no other part has that row");
            }
            if before.is_some_and(|before| before >= (held.owner, held.row)) {
                return refuse("rows are not in ascending order, each once");
            }
            before = Some((held.owner, held.row));
            match taken.get_mut(held.slot as usize) {
                None => return refuse("the arena has no such slot"),
                Some(true) => return refuse("the slot holds another row"),
                Some(free) => *free = true,
            }
        }
        Ok(())
    }

    /// Refuses a state that a policy would not have left.
    fn check_cold(&self, policy: &'static str) -> Result<(), PlanError> {
        match self.state.held.len() {
            0 => Ok(()),
            rows => Err(PlanError::ColdStart { policy, rows }),
        }
    }

    /// The step after the last of the window that starts at `first`: at most `window` steps, all of one purpose.
    fn window_end(&self, first: u32) -> u32 {
        longest_window(&*self.trace, first, self.window)
    }
}

/// The step after the last of the longest window that starts at `first`: at most `limit` steps, all of one purpose.
fn longest_window(trace: &dyn RemoteTrace, first: u32, limit: u32) -> u32 {
    let purpose = trace.purpose(first);
    let end = trace.steps().min(first.saturating_add(limit));
    (first + 1..end)
        .find(|step| trace.purpose(*step) != purpose)
        .unwrap_or(end)
}

fn is_remote_row(book: &PartitionBook, rank: Rank, owner: PartId, row: u32) -> bool {
    owner < book.parts() && owner != rank && row < book.part_nodes(owner)
}

/// The remote rows of a step, after a check that they are rows of other parts, each once and in ascending order.
fn read_step(
    trace: &dyn RemoteTrace,
    book: &PartitionBook,
    rank: Rank,
    step: u32,
) -> Result<Arc<RemoteRows>, PlanError> {
    let remote = trace.remote_rows(step)?;
    let mut owner_before = None;
    for owned in &remote.owners {
        let owner = owned.owner;
        let bad = |row| PlanError::BadRow { step, owner, row };
        if owner >= book.parts() || owner == rank || owner_before.is_some_and(|before| before >= owner) {
            return Err(bad(owned.rows.first().copied().unwrap_or(0)));
        }
        owner_before = Some(owner);
        if let Some(pair) = owned.rows.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(bad(pair[1]));
        }
        if let Some(last) = owned.rows.last().filter(|last| **last >= book.part_nodes(owner)) {
            return Err(bad(*last));
        }
    }
    Ok(remote)
}

/// Puts the global ids of remote rows into `nodes`, in ascending order.
fn global_ids(remote: &RemoteRows, book: &PartitionBook, nodes: &mut Vec<NodeId>) {
    nodes.clear();
    for owned in &remote.owners {
        let first = book.range(owned.owner).start;
        nodes.extend(owned.rows.iter().map(|row| first + row));
    }
}
