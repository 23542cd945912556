//! What a prefetcher knows of the epoch that it executes: what is asked and has not come, and what is counted.

use super::*;

/// A request that has left, or a delivery that may come. Dropping it ends it, a delivery with its stream.
pub(super) struct Asked {
    pub owner: PartId,
    /// Seconds from request to answer, once that has come.
    pub took_s: Option<f64>,
    pub answer: Answer,
    pub landing: Arc<Landing>,
    pub later: Vec<LaterRows>,
    /// Whether it is a request, and no delivery of a stream.
    pub requested: bool,
    pub phase: Phase,
}

impl Asked {
    /// How many rows `step` needs, and the step that needs more; none if it needs all.
    pub fn not_all(&self, step: u32) -> Option<(usize, u32)> {
        let next = self.later.iter().find(|later| later.needed_by_step > step)?;
        Some((next.first_row as usize, next.needed_by_step))
    }
}

pub(super) enum Answer {
    Request(JoinHandle<Result<f64, TransportError>>),
    Delivery(Arrival),
    /// It has been taken.
    Ended,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Answer::Request(answer) = &self.answer {
            answer.abort();
        }
    }
}

/// Rows that are charged to the budget, now and at most so far.
pub(super) struct Held {
    pub rows: u64,
    pub peak: u64,
}

/// The epoch that is being executed.
pub(super) struct Execution {
    pub trace: Arc<EpochTrace>,
    pub asking: Asking,
    pub tally: EpochTally,
    /// Requests that have left, by the step that needs them or their next rows.
    pub in_flight: BTreeMap<u32, Vec<Asked>>,
    pub streams: Streams,
    /// Owners that the plans have named so far.
    pub planned_owners: BTreeSet<PartId>,
    /// How long owners took to answer.
    pub fetches: BTreeMap<PartId, OwnerFetches>,
    /// The assembly buffer of the step before, to be filled again.
    pub spare: Option<Arc<RowArena>>,
}

impl Execution {
    pub fn new(trace: Arc<EpochTrace>, asking: Asking, streams: Streams) -> Self {
        Self {
            trace,
            asking,
            tally: EpochTally::default(),
            in_flight: BTreeMap::new(),
            streams,
            planned_owners: BTreeSet::new(),
            fetches: BTreeMap::new(),
            spare: None,
        }
    }

    pub fn phase(&self, step: u32) -> Phase {
        Phase::from(RemoteTrace::purpose(&*self.trace, step))
    }

    /// Adds up how long an owner took.
    pub fn note(&mut self, fetched: Option<OwnerFetches>) {
        let Some(fetched) = fetched else { return };
        let sum = self.fetches.entry(fetched.owner).or_insert(OwnerFetches {
            owner: fetched.owner,
            ..OwnerFetches::default()
        });
        sum.requests += fetched.requests;
        sum.rows += fetched.rows;
        sum.seconds += fetched.seconds;
    }

    /// Counts what a window's plan says, apart from what will be asked and answered.
    pub fn plan(&mut self, requests: &[Request]) {
        for request in requests {
            let phase = self.phase(request.needed_by_step);
            let mut counts = planned_of(std::slice::from_ref(request));
            if self.asking.delivery == Delivery::Stream {
                counts.feature_requests = 0;
                if self.planned_owners.insert(request.owner) {
                    self.tally.planned.entry(Phase::Training).or_default().feature_requests += 1;
                }
            }
            *self.tally.planned.entry(phase).or_default() += counts;
        }
    }

    /// A buffer for rows that come directly for one batch. The last one is used again if it is large enough and nobody
    /// holds it any more.
    pub fn assembly_buffer(&mut self, rows: usize, row_bytes: usize, verify: bool) -> Arc<RowArena> {
        let spare = self
            .spare
            .take()
            .filter(|spare| spare.rows() >= rows && Arc::strong_count(spare) == 1);
        match spare {
            Some(spare) if !verify => spare,
            _ => Arc::new(RowArena::for_run(rows, row_bytes, verify)),
        }
    }
}

/// What is asked for and moved where planned requests are asked one by one.
pub fn planned_of(requests: &[Request]) -> PlannedCounts {
    PlannedCounts {
        feature_requests: requests.len() as u64,
        deliveries: requests.len() as u64,
        feature_rows: requests.iter().map(|request| request.rows.len() as u64).sum(),
        ..PlannedCounts::default()
    }
}

pub(super) fn slots_of(request: &Request) -> u64 {
    request
        .places
        .iter()
        .filter(|place| matches!(place, Place::Slot(_)))
        .count() as u64
}

/// Puts the rows of one request where its plan says.
pub(super) struct PlacedRows {
    pub arena: Arc<RowArena>,
    pub direct: Arc<RowArena>,
    pub places: Vec<Place>,
    pub row_bytes: usize,
    pub landing: Arc<Landing>,
}

impl RowSink for PlacedRows {
    fn accept(&mut self, first: usize, rows: &[u8]) {
        let count = rows.len() / self.row_bytes.max(1);
        let known = self.landing.known(first, count);
        let places = self.places[first..].iter().zip(rows.chunks_exact(self.row_bytes));
        for (place, row) in places.skip(known) {
            // SAFETY: the plan gives every place to one request, between its issue and the step that needs it.
            match *place {
                Place::Slot(slot) => unsafe { self.arena.write(slot, row) },
                Place::Direct(index) => unsafe { self.direct.write(index, row) },
            }
        }
        self.landing.note(first + count);
    }
}
