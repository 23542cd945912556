//! What an owner serves: the feature rows and the neighbour samples of one part, and the ledgers that count it.

mod encoded;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use greengnn_model::book::{NodeId, PartId, Rank};
use greengnn_model::counters::Period;
use greengnn_model::row_type::RowType;
use greengnn_model::sampling::{NeighborQuery, NeighborReply, Topology, answer_query};
use serde::{Deserialize, Serialize};

use self::encoded::EncodedRows;
use crate::transport::Caller;

/// The stored data of one part: features and in-edges. The partition store implements it over its memory maps.
pub trait ShardData: Send + Sync + 'static {
    fn part(&self) -> PartId;

    /// Number of feature rows of the part.
    fn rows(&self) -> u32;

    /// Features per node.
    fn width(&self) -> usize;

    /// The features of a local row, which must be below [`rows`](Self::rows).
    fn row(&self, row: u32) -> &[f32];

    /// The in-edges of the part's nodes, from which neighbour samples are drawn.
    fn topology(&self) -> Topology<'_>;
}

/// One part, ready to be served, with the count of what it has served.
pub struct PartShard {
    data: Box<dyn ShardData>,
    row_type: RowType,
    /// None where rows are served as they are stored.
    encoded: Option<EncodedRows>,
    served: ServedLedger,
}

impl PartShard {
    /// A part whose rows are served as they are stored.
    pub fn new(data: impl ShardData) -> Self {
        Self {
            data: Box::new(data),
            row_type: RowType::F32,
            encoded: None,
            served: ServedLedger::default(),
        }
    }

    /// A part whose rows are served as `row_type`. Those that are not f32 are encoded once, when they are first asked
    /// for, into a file without a name in `folder` that is as large as all of them.
    ///
    /// # Errors
    /// The folder cannot be written or has too little room.
    pub fn encoded(data: impl ShardData, row_type: RowType, folder: &Path) -> io::Result<Self> {
        let mut shard = Self::new(data);
        if row_type != RowType::F32 {
            shard.row_type = row_type;
            shard.encoded = Some(EncodedRows::new(&*shard.data, row_type, folder)?);
        }
        Ok(shard)
    }

    pub fn part(&self) -> PartId {
        self.data.part()
    }

    pub fn rows(&self) -> u32 {
        self.data.rows()
    }

    pub fn width(&self) -> usize {
        self.data.width()
    }

    /// Bytes of one row as it is served.
    pub fn row_bytes(&self) -> usize {
        self.row_type.row_bytes(self.width())
    }

    /// A local row as it travels; it must be below [`rows`](Self::rows).
    pub fn encoded_row(&self, row: u32) -> &[u8] {
        match &self.encoded {
            Some(encoded) => encoded.row(row, &*self.data),
            None => bytemuck::cast_slice(self.data.row(row)),
        }
    }

    pub fn data(&self) -> &dyn ShardData {
        &*self.data
    }

    /// What this owner has served so far.
    pub fn served(&self) -> &ServedLedger {
        &self.served
    }

    /// Checks a question for `rows` and counts it. Whoever calls this then delivers the rows.
    ///
    /// # Errors
    /// A row that the part does not have; nothing is counted then.
    pub fn admit_rows(&self, caller: Caller, rows: &[u32]) -> Result<(), String> {
        self.check(rows)?;
        self.served.count(caller, |served| {
            served.feature_requests += 1;
            served.deliveries += 1;
            served.feature_rows += rows.len() as u64;
        });
        Ok(())
    }

    /// Counts the request that opens a stream.
    pub fn admit_stream(&self, caller: Caller) {
        self.served.count(caller, |served| served.feature_requests += 1);
    }

    /// Checks a delivery of a stream and counts it. Whoever calls this then delivers the rows.
    ///
    /// # Errors
    /// A row that the part does not have; nothing is counted then.
    pub fn admit_delivery(&self, caller: Caller, rows: &[u32]) -> Result<(), String> {
        self.check(rows)?;
        self.served.count(caller, |served| {
            served.deliveries += 1;
            served.feature_rows += rows.len() as u64;
        });
        Ok(())
    }

    /// Counts what push-pull got from the caller and sent to it.
    pub fn exchanged(&self, caller: Caller, push_bytes: u64, pull_bytes: u64) {
        self.served.count(caller, |served| {
            served.push_bytes += push_bytes;
            served.pull_bytes += pull_bytes;
        });
    }

    /// Answers `queries` as one request and counts it. Takes CPU time in proportion to the picks, of which there may be
    /// as many as `most_words` together with the rows of the queries.
    ///
    /// # Errors
    /// A row that the part does not have, or too many picks; nothing is counted then.
    pub fn sample(
        &self,
        caller: Caller,
        queries: &[NeighborQuery],
        most_words: usize,
    ) -> Result<Vec<NeighborReply>, String> {
        let topology = self.data.topology();
        let mut words = 0;
        let mut replies = Vec::with_capacity(queries.len());
        for query in queries {
            let reply = answer_query(topology, query).map_err(|error| error.to_string())?;
            words += reply.counts.len() + reply.neighbors.len();
            if words > most_words {
                return Err(format!(
                    "the answer takes more than {} bytes, the limit; ask for fewer nodes at a time",
                    most_words * 4
                ));
            }
            replies.push(reply);
        }
        self.served.count(caller, |served| served.sample_requests += 1);
        Ok(replies)
    }

    fn check(&self, rows: &[u32]) -> Result<(), String> {
        let limit = self.rows();
        match rows.iter().position(|row| *row >= limit) {
            None => Ok(()),
            Some(place) => Err(format!(
                "row {} (number {place} of the request) is outside part {}, which has {limit} rows",
                rows[place],
                self.part()
            )),
        }
    }
}

/// What an owner served to one rank in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Questions for feature rows that were accepted, and streams that were opened.
    pub feature_requests: u64,
    /// Answers: one per question, and those of streams.
    pub deliveries: u64,
    /// Rows of those answers.
    pub feature_rows: u64,
    /// Questions for sampled neighbours that were answered.
    pub sample_requests: u64,
    /// Push-pull: bytes of blocks and gradients that came from the rank, and of columns and partial sums that went to it.
    #[serde(default)]
    pub push_bytes: u64,
    #[serde(default)]
    pub pull_bytes: u64,
}

/// What an owner served, by rank and period. Counted when a question is accepted, before its first row leaves.
#[derive(Debug, Default)]
pub struct ServedLedger {
    entries: Mutex<BTreeMap<(Rank, Period), Served>>,
}

impl ServedLedger {
    fn count(&self, caller: Caller, change: impl FnOnce(&mut Served)) {
        change(lock(&self.entries).entry((caller.rank, caller.period)).or_default());
    }

    /// All entries so far.
    pub fn snapshot(&self) -> BTreeMap<(Rank, Period), Served> {
        lock(&self.entries).clone()
    }

    /// The entry of one rank and period.
    pub fn of(&self, rank: Rank, period: Period) -> Served {
        lock(&self.entries).get(&(rank, period)).copied().unwrap_or_default()
    }
}

/// What one process wrote to its sockets, by period, and the row bytes that arrived on them, by rank and period.
///
/// Bytes are counted once, by the writer, headers included. Arrivals are counted by the reader and hold encoded rows
/// alone, so that arrived bytes over the bytes of a row are the rows that crossed: an account that is independent of
/// the owners' [`ServedLedger`].
#[derive(Debug, Default)]
pub struct WireLedger {
    written: Mutex<BTreeMap<Period, u64>>,
    arrived: Mutex<BTreeMap<(Rank, Period), u64>>,
}

impl WireLedger {
    pub(crate) fn charge(&self, period: Period, bytes: u64) {
        *lock(&self.written).entry(period).or_default() += bytes;
    }

    /// Undoes a charge, or a part of it.
    pub(crate) fn take_back(&self, period: Period, bytes: u64) {
        if bytes > 0 {
            let mut written = lock(&self.written);
            let entry = written.entry(period).or_default();
            *entry = entry.saturating_sub(bytes);
        }
    }

    pub(crate) fn rows_arrived(&self, caller: Caller, bytes: u64) {
        *lock(&self.arrived).entry((caller.rank, caller.period)).or_default() += bytes;
    }

    /// Bytes written to sockets so far.
    pub fn written(&self) -> BTreeMap<Period, u64> {
        lock(&self.written).clone()
    }

    /// Bytes written to sockets over all periods.
    pub fn written_total(&self) -> u64 {
        lock(&self.written).values().sum()
    }

    /// Bytes of encoded rows that came in over sockets so far.
    pub fn arrived_row_bytes(&self) -> BTreeMap<(Rank, Period), u64> {
        lock(&self.arrived).clone()
    }
}

/// A part held in memory: for tests, benchmarks and programs that bring their own data.
#[derive(Clone, Debug)]
pub struct MemoryShard {
    part: PartId,
    width: usize,
    values: Vec<f32>,
    first: NodeId,
    offsets: Vec<u64>,
    neighbors: Vec<NodeId>,
}

impl MemoryShard {
    /// `values` is row-major and `width` wide; the part has as many rows and no edges.
    ///
    /// # Errors
    /// Values that do not make whole rows.
    pub fn new(part: PartId, width: usize, values: Vec<f32>) -> Result<Self, String> {
        if width == 0 || !values.len().is_multiple_of(width) {
            return Err(format!("{} values are not whole rows of {width}", values.len()));
        }
        let offsets = vec![0; values.len() / width + 1];
        Ok(Self {
            part,
            width,
            values,
            first: 0,
            offsets,
            neighbors: Vec::new(),
        })
    }

    /// Gives the nodes, of which row 0 has the global id `first`, their in-neighbours.
    ///
    /// # Errors
    /// Another number of lists than rows.
    pub fn with_neighbors(mut self, first: NodeId, lists: &[Vec<NodeId>]) -> Result<Self, String> {
        if lists.len() + 1 != self.offsets.len() {
            return Err(format!(
                "{} neighbour lists for {} rows",
                lists.len(),
                self.offsets.len() - 1
            ));
        }
        self.first = first;
        self.neighbors = lists.concat();
        self.offsets.truncate(1);
        for list in lists {
            let end = self.offsets[self.offsets.len() - 1] + list.len() as u64;
            self.offsets.push(end);
        }
        Ok(self)
    }
}

impl ShardData for MemoryShard {
    fn part(&self) -> PartId {
        self.part
    }

    fn rows(&self) -> u32 {
        (self.offsets.len() - 1) as u32
    }

    fn width(&self) -> usize {
        self.width
    }

    fn row(&self, row: u32) -> &[f32] {
        let start = row as usize * self.width;
        &self.values[start..start + self.width]
    }

    fn topology(&self) -> Topology<'_> {
        Topology {
            first: self.first,
            offsets: &self.offsets,
            neighbors: &self.neighbors,
        }
    }
}

/// A lock whose data stay sound when a holder panicked, since every change under it is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use greengnn_model::counters::Phase;

    use super::*;

    fn caller(epoch: u32) -> Caller {
        Caller {
            rank: 2,
            period: Period {
                epoch,
                phase: Phase::Evaluation,
            },
        }
    }

    #[test]
    fn ledgers_count_by_rank_and_period_and_nothing_that_is_refused() {
        let shard = PartShard::new(MemoryShard::new(1, 2, vec![0.0; 8]).unwrap());
        shard.admit_rows(caller(1), &[0, 3, 3]).unwrap();
        shard.admit_rows(caller(2), &[]).unwrap();
        let refused = shard.admit_rows(caller(1), &[0, 4]).unwrap_err();
        assert_eq!(
            refused,
            "row 4 (number 1 of the request) is outside part 1, which has 4 rows"
        );
        let first = Served {
            feature_requests: 1,
            deliveries: 1,
            feature_rows: 3,
            ..Served::default()
        };
        let second = Served {
            feature_rows: 0,
            ..first
        };
        let expected = BTreeMap::from([((2, caller(1).period), first), ((2, caller(2).period), second)]);
        assert_eq!(shard.served().snapshot(), expected);
        assert_eq!(shard.served().of(3, caller(1).period), Served::default());
    }

    #[test]
    fn values_that_are_no_rows_and_lists_that_are_not_one_per_row_are_refused() {
        assert!(MemoryShard::new(0, 3, vec![0.0; 4]).is_err());
        assert!(MemoryShard::new(0, 0, Vec::new()).is_err());
        let shard = MemoryShard::new(0, 3, vec![0.0; 6]).unwrap();
        assert!(shard.clone().with_neighbors(0, &[vec![1]]).is_err());
        let shard = shard.with_neighbors(7, &[vec![1, 2], vec![]]).unwrap();
        assert_eq!(shard.topology().first, 7);
        assert_eq!(shard.topology().row(0), [1, 2]);
        assert!(shard.topology().row(1).is_empty());
    }
}
