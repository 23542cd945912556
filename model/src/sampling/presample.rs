//! An epoch of one rank, sampled ahead of training in groups of batches.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::batch::MiniBatch;
use crate::book::{PartId, PartitionBook};
pub use crate::sampling::expand::ExpandError;
use crate::sampling::expand::{Frontier, GrowingBatch, Hop};
use crate::sampling::node_set::NodeSet;
use crate::sampling::{
    EpochSpec, NeighborQuery, NeighborReply, NeighborSource, Schedule, SeedRows, SpecError, StepCounts, Topology,
};

/// Batches that are sampled together, so that their questions to one owner travel as one request. Fixed, because the
/// windows of a policy are decided only after the trace exists.
pub const GROUP_BATCHES: u32 = 16;

/// Why presampling stopped. `S` is the error of the [`NeighborSource`], `K` that of the sink.
#[derive(Debug, thiserror::Error)]
pub enum PresampleError<S: Error + 'static, K: Error + 'static> {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("the neighbours of remote nodes for steps {first} to {last} could not be sampled")]
    Remote {
        first: u32,
        last: u32,
        #[source]
        source: S,
    },
    #[error("{wanted} requests for sampled neighbours were sent, {found} were answered in full")]
    Answers { wanted: usize, found: usize },
    #[error("step {step} could not be sampled")]
    Batch {
        step: u32,
        #[source]
        source: ExpandError,
    },
    #[error("the batches from step {step} on could not be handed over")]
    Sink {
        step: u32,
        #[source]
        source: K,
    },
}

/// Samples every step of an epoch and hands the batches to `sink` in step order.
///
/// `local` is the topology of the rank's own part. The seeds are local, so the first hop asks nobody. Every later hop asks
/// each owner at most once per group of [`GROUP_BATCHES`] consecutive steps of one purpose, which makes at most
/// `(hops - 1) x owners x ceil(steps / 16)` requests per purpose. The batches are the same bits at any number of threads
/// (rayon's current pool) and wherever the remote neighbours are drawn. One group is in memory at a time.
///
/// # Errors
/// A specification that does not fit the book or the seeds, an owner that fails or answers something else than was
/// asked, a neighbour that the graph does not have, or whatever `sink` returns; sampling ends with the first of them.
pub fn presample<S, K>(
    spec: &EpochSpec,
    seeds: SeedRows<'_>,
    book: &PartitionBook,
    local: Topology<'_>,
    remote: &mut S,
    mut sink: impl FnMut(MiniBatch) -> Result<(), K>,
) -> Result<(), PresampleError<S::Error, K>>
where
    S: NeighborSource,
    K: Error + 'static,
{
    presample_groups(spec, seeds, book, local, remote, |group| {
        group.into_iter().try_for_each(&mut sink)
    })
}

/// The same as [`presample`], one group of consecutive steps at a time, for a sink that works on several at once.
pub fn presample_groups<S, K>(
    spec: &EpochSpec,
    seeds: SeedRows<'_>,
    book: &PartitionBook,
    local: Topology<'_>,
    remote: &mut S,
    mut sink: impl FnMut(Vec<MiniBatch>) -> Result<(), K>,
) -> Result<(), PresampleError<S::Error, K>>
where
    S: NeighborSource,
    K: Error + 'static,
{
    let schedule = Schedule::new(spec, seeds, book, local)?;
    let sampler = Sampler {
        schedule: &schedule,
        book,
        local,
        sets: Mutex::new(Vec::new()),
    };
    for group in groups(spec.steps) {
        let first = group.start;
        let batches = sampler.sample_group(group, remote)?;
        sink(batches).map_err(|source| PresampleError::Sink { step: first, source })?;
    }
    Ok(())
}

/// Ranges of at most [`GROUP_BATCHES`] steps, none of which spans two purposes.
fn groups(steps: StepCounts) -> impl Iterator<Item = Range<u32>> {
    let valid = steps.train + steps.valid;
    [0..steps.train, steps.train..valid, valid..steps.total()]
        .into_iter()
        .flat_map(|purpose| {
            let end = purpose.end;
            purpose
                .step_by(GROUP_BATCHES as usize)
                .map(move |start| start..end.min(start.saturating_add(GROUP_BATCHES)))
        })
}

/// A batch of the group, and what other parts answered for its next hop.
struct Member {
    step: u32,
    batch: GrowingBatch,
    answers: Vec<(Frontier, NeighborReply)>,
}

/// What a group asks of one owner: one query per batch that has nodes of that owner, and which batch that is.
#[derive(Default)]
struct Question {
    queries: Vec<NeighborQuery>,
    askers: Vec<(usize, Frontier)>,
}

struct Sampler<'a> {
    schedule: &'a Schedule,
    book: &'a PartitionBook,
    local: Topology<'a>,
    /// Sets that no thread uses just now; never more than there are threads.
    sets: Mutex<Vec<NodeSet>>,
}

impl Sampler<'_> {
    fn sample_group<S, K>(
        &self,
        group: Range<u32>,
        remote: &mut S,
    ) -> Result<Vec<MiniBatch>, PresampleError<S::Error, K>>
    where
        S: NeighborSource,
        K: Error + 'static,
    {
        let spec = self.schedule.spec();
        let (first, last) = (group.start, group.end - 1);
        let mut members: Vec<Member> = group.map(|step| self.start(step)).collect();
        for (hop, fanout) in spec.fanouts.iter().enumerate() {
            let hop = hop as u32;
            // The first hop expands the seeds, which are local; a fanout of 0 has nothing to ask.
            if hop > 0 && *fanout > 0 {
                let questions = self.questions(&members, hop, *fanout);
                if !questions.is_empty() {
                    let wanted = questions.len();
                    let (requests, askers) = questions
                        .into_iter()
                        .map(|(owner, question)| ((owner, question.queries), question.askers))
                        .unzip();
                    let answers =
                        remote
                            .sample(requests)
                            .map_err(|source| PresampleError::Remote { first, last, source })?;
                    deal(&mut members, askers, answers).map_err(|found| PresampleError::Answers { wanted, found })?;
                }
            }
            members
                .par_iter_mut()
                .map(|member| self.expand(member, hop, *fanout))
                .collect::<Result<(), _>>()
                .map_err(|(step, source)| PresampleError::Batch { step, source })?;
        }
        Ok(members
            .into_iter()
            .map(|Member { step, batch, .. }| batch.finish(step, spec.purpose_of(step), self.book, spec.rank))
            .collect())
    }

    fn start(&self, step: u32) -> Member {
        let first = self.book.range(self.schedule.spec().rank).start;
        let seeds = self.schedule.seeds(step).iter().map(|row| first + row).collect();
        Member {
            step,
            batch: GrowingBatch::new(seeds),
            answers: Vec::new(),
        }
    }

    /// What the group asks before a hop, by ascending owner.
    fn questions(&self, members: &[Member], hop: u32, fanout: u32) -> BTreeMap<PartId, Question> {
        let spec = self.schedule.spec();
        let mut questions = BTreeMap::<PartId, Question>::new();
        for (index, member) in members.iter().enumerate() {
            let key = spec.key_of(member.step).hop(hop);
            for frontier in member.batch.frontiers(self.book, spec.rank) {
                let question = questions.entry(frontier.owner).or_default();
                question
                    .queries
                    .push(member.batch.query(self.book, &frontier, key, fanout));
                question.askers.push((index, frontier));
            }
        }
        questions
    }

    fn expand(&self, member: &mut Member, hop: u32, fanout: u32) -> Result<(), (u32, ExpandError)> {
        let spec = self.schedule.spec();
        let hop = Hop {
            book: self.book,
            rank: spec.rank,
            topology: self.local,
            key: spec.key_of(member.step).hop(hop),
            fanout,
        };
        let mut set = self.take_set();
        let answers = std::mem::take(&mut member.answers);
        let done = member.batch.expand(hop, &answers, &mut set);
        self.sets.lock().unwrap_or_else(PoisonError::into_inner).push(set);
        done.map_err(|error| (member.step, error))
    }

    fn take_set(&self) -> NodeSet {
        let spare = self.sets.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| NodeSet::new(self.book.nodes()))
    }
}

/// Hands the answers to the batches that asked. `Err` is the number of requests that were answered in full.
fn deal(
    members: &mut [Member],
    askers: Vec<Vec<(usize, Frontier)>>,
    answers: Vec<Vec<NeighborReply>>,
) -> Result<(), usize> {
    let full = askers
        .iter()
        .zip(&answers)
        .filter(|(asked, answered)| asked.len() == answered.len())
        .count();
    if full != askers.len() || answers.len() != askers.len() {
        return Err(full);
    }
    for ((index, frontier), reply) in askers.into_iter().flatten().zip(answers.into_iter().flatten()) {
        members[index].answers.push((frontier, reply));
    }
    Ok(())
}
