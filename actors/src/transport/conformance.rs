//! The rules of transports as one suite that every implementation passes.
//!
//! The suite asks through a [`Transport`] and looks, beside it, at the owner and the inbox that are to be reached. It
//! reports the first rule that is broken instead of panicking, so that it can be used outside test binaries.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greengnn_model::book::PartId;
use greengnn_model::counters::{Period, Phase};
use greengnn_model::sampling::{NeighborQuery, answer_query};

use tokio::task::JoinSet;

use super::{Caller, Inbox, Parcel, ParcelKind, ParcelTag, RowSink, Transport, TransportError};
use crate::shard::{PartShard, Served};

/// A transport, and what it should reach.
pub struct Subject {
    pub transport: Arc<dyn Transport>,
    /// The owner that the transport reaches under the number of its part. It has rows, and no other askers.
    pub owner: Arc<PartShard>,
    /// An inbox that the transport reaches under its rank.
    pub inbox: Arc<Inbox>,
    /// A part that nobody owns.
    pub unowned: PartId,
    /// Bytes that a sink gets at a time at most.
    pub most_bytes_at_once: usize,
    /// A peer that hears and never answers, if the transport can have one.
    pub silent: Option<Silent>,
}

/// A peer that never answers.
pub struct Silent {
    pub part: PartId,
    pub peer: String,
    /// The deadline that the transport was given.
    pub deadline: Duration,
}

/// A rule that is broken.
#[derive(Debug)]
pub struct Violation {
    /// Its number in the documentation of [`transport`](super).
    pub rule: u8,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} of transports is broken: {}", self.rule, self.what)
    }
}

impl std::error::Error for Violation {}

/// Fails with a [`Violation`] unless the condition holds.
macro_rules! ensure {
    ($rule:expr, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(Violation { rule: $rule, what: format!($($what)+) });
        }
    };
}

/// Checks all rules.
///
/// # Errors
/// The first rule that is broken.
pub async fn check(subject: &Arc<Subject>) -> Result<(), Violation> {
    rows_arrive_as_asked(subject).await?;
    served_is_counted(subject).await?;
    empty_requests_are_answered(subject).await?;
    bad_rows_are_refused(subject).await?;
    waits_are_bounded(subject).await?;
    parcels_keep_their_order(subject).await?;
    memory_is_bounded(subject).await
}

/// Keeps what comes, and what is wrong with the way it comes.
#[derive(Default)]
struct Recording {
    bytes: Vec<u8>,
    rows: usize,
    largest: usize,
    wrong: Option<String>,
}

struct Recorder<'a> {
    recording: &'a mut Recording,
    row_bytes: usize,
}

impl RowSink for Recorder<'_> {
    fn accept(&mut self, first: usize, rows: &[u8]) {
        let recording = &mut *self.recording;
        if first != recording.rows {
            recording.wrong = Some(format!("row {first} came where row {} was due", recording.rows));
        }
        if !rows.len().is_multiple_of(self.row_bytes) || rows.is_empty() {
            recording.wrong = Some(format!("{} bytes are no whole rows", rows.len()));
        }
        recording.rows += rows.len() / self.row_bytes;
        recording.largest = recording.largest.max(rows.len());
        recording.bytes.extend_from_slice(rows);
    }
}

impl Subject {
    async fn fetch(&self, caller: Caller, rows: Vec<u32>) -> Result<Recording, TransportError> {
        let mut recording = Recording::default();
        let sink = Recorder {
            recording: &mut recording,
            row_bytes: self.owner.row_bytes(),
        };
        let fetched = self
            .transport
            .fetch_rows(caller, self.owner.part(), rows, Box::new(sink));
        fetched.await?;
        Ok(recording)
    }

    /// Fetches and compares with the owner's rows.
    async fn fetch_and_compare(&self, rule: u8, caller: Caller, rows: Vec<u32>) -> Result<Recording, Violation> {
        let recording = self.fetch(caller, rows.clone()).await.map_err(|error| Violation {
            rule,
            what: format!("{} rows could not be fetched: {error}", rows.len()),
        })?;
        ensure!(rule, recording.wrong.is_none(), "{:?}", recording.wrong);
        let expected = rows.iter().flat_map(|row| self.owner.encoded_row(*row));
        let same = recording.rows == rows.len() && recording.bytes.iter().eq(expected);
        ensure!(
            rule,
            same,
            "{} rows came that are not the {} asked",
            recording.rows,
            rows.len()
        );
        Ok(recording)
    }

    /// All rows, as often as it takes to fill several frames, with neighbours apart.
    fn many_rows(&self) -> Vec<u32> {
        let rows = u64::from(self.owner.rows());
        let count = (4 * self.most_bytes_at_once / self.owner.row_bytes()).clamp(64, 1 << 16) as u64;
        (0..count + 3).map(|place| (place * 7919 % rows) as u32).collect()
    }
}

fn caller(epoch: u32) -> Caller {
    Caller {
        rank: 3,
        period: Period {
            epoch,
            phase: Phase::Training,
        },
    }
}

async fn rows_arrive_as_asked(subject: &Subject) -> Result<(), Violation> {
    let last = subject.owner.rows() - 1;
    for rows in [vec![0], vec![last, 0, last, last], subject.many_rows()] {
        subject.fetch_and_compare(1, caller(1), rows).await?;
    }
    Ok(())
}

async fn served_is_counted(subject: &Subject) -> Result<(), Violation> {
    let caller = caller(2);
    let rows = subject.many_rows();
    let asked = rows.len() as u64 + 1;
    subject.fetch_and_compare(2, caller, rows).await?;
    subject.fetch_and_compare(2, caller, vec![0]).await?;
    let queries: Vec<NeighborQuery> = (0..3)
        .map(|number| NeighborQuery {
            key: number,
            fanout: 2,
            rows: (0..subject.owner.rows()).rev().take(number as usize * 40).collect(),
        })
        .collect();
    let replies = subject
        .transport
        .sample(caller, subject.owner.part(), queries.clone())
        .await;
    let replies = replies.map_err(|error| Violation {
        rule: 2,
        what: format!("neighbours could not be sampled: {error}"),
    })?;
    let topology = subject.owner.data().topology();
    let own: Result<Vec<_>, _> = queries.iter().map(|query| answer_query(topology, query)).collect();
    ensure!(
        2,
        own.is_ok_and(|own| own == replies),
        "the samples are not the owner's"
    );
    let served = subject.owner.served().of(caller.rank, caller.period);
    let expected = Served {
        feature_requests: 2,
        feature_rows: asked,
        sample_requests: 1,
    };
    ensure!(
        2,
        served == expected,
        "the owner counted {served:?} instead of {expected:?}"
    );
    Ok(())
}

async fn empty_requests_are_answered(subject: &Subject) -> Result<(), Violation> {
    let caller = caller(3);
    let recording = subject.fetch_and_compare(3, caller, Vec::new()).await?;
    ensure!(3, recording.bytes.is_empty(), "an empty request brought rows");
    let replies = subject.transport.sample(caller, subject.owner.part(), Vec::new()).await;
    ensure!(
        3,
        replies.is_ok_and(|replies| replies.is_empty()),
        "an empty sample request was not answered"
    );
    let served = subject.owner.served().of(caller.rank, caller.period);
    let expected = Served {
        feature_requests: 1,
        feature_rows: 0,
        sample_requests: 1,
    };
    ensure!(
        3,
        served == expected,
        "the owner counted {served:?} instead of {expected:?}"
    );
    Ok(())
}

async fn bad_rows_are_refused(subject: &Subject) -> Result<(), Violation> {
    let caller = caller(4);
    let beyond = subject.owner.rows();
    for rows in [vec![beyond], vec![0, u32::MAX]] {
        let refused = subject.fetch(caller, rows).await;
        let named = matches!(&refused, Err(TransportError::Refused { reason, .. }) if reason.contains("row"));
        ensure!(
            4,
            named,
            "a row that does not exist was not refused: {:?}",
            refused.err()
        );
    }
    let query = NeighborQuery {
        key: 0,
        fanout: 1,
        rows: vec![beyond],
    };
    let refused = subject
        .transport
        .sample(caller, subject.owner.part(), vec![query])
        .await;
    ensure!(
        4,
        matches!(refused, Err(TransportError::Refused { .. })),
        "a query for a row that does not exist was not refused: {refused:?}"
    );
    let unowned = subject.transport.sample(caller, subject.unowned, Vec::new()).await;
    ensure!(
        4,
        matches!(unowned, Err(TransportError::UnknownOwner { part }) if part == subject.unowned),
        "a part that nobody owns was asked: {unowned:?}"
    );
    let served = subject.owner.served().of(caller.rank, caller.period);
    ensure!(
        4,
        served == Served::default(),
        "refused requests were counted: {served:?}"
    );
    subject.fetch_and_compare(4, caller, vec![0]).await.map(|_| ())
}

async fn waits_are_bounded(subject: &Subject) -> Result<(), Violation> {
    let Some(silent) = &subject.silent else {
        return Ok(());
    };
    let started = Instant::now();
    let sampled = subject.transport.sample(caller(5), silent.part, Vec::new()).await;
    let named = matches!(&sampled, Err(TransportError::NoAnswer { peer, .. }) if *peer == silent.peer);
    ensure!(5, named, "a silent peer was not named: {sampled:?}");
    let mut recording = Recording::default();
    let sink = Recorder {
        recording: &mut recording,
        row_bytes: 1,
    };
    let fetched = subject
        .transport
        .fetch_rows(caller(5), silent.part, vec![0], Box::new(sink))
        .await;
    let named = matches!(&fetched, Err(TransportError::NoAnswer { peer, .. }) if *peer == silent.peer);
    ensure!(5, named, "a silent peer was not named: {fetched:?}");
    let bound = 2 * silent.deadline + Duration::from_secs(20);
    ensure!(
        5,
        started.elapsed() < bound,
        "two requests to a silent peer took {:?}",
        started.elapsed()
    );
    Ok(())
}

async fn parcels_keep_their_order(subject: &Subject) -> Result<(), Violation> {
    const FROM: u16 = 1;
    let tag = |step: u32| ParcelTag {
        epoch: 6,
        step,
        kind: ParcelKind::GradientSlice,
    };
    let payload = |number: u32| vec![number as u8; (number as usize % 5) * 40_000];
    for number in 0..20 {
        let posted = subject.transport.post(Parcel {
            from: FROM,
            to: subject.inbox.rank(),
            // Two tags in turn, so that a tag's parcels must keep their order among others.
            tag: tag(number % 2),
            payload: payload(number),
            period: caller(6).period,
        });
        posted.await.map_err(|error| Violation {
            rule: 6,
            what: format!("parcel {number} could not be posted: {error}"),
        })?;
    }
    for number in [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19] {
        let taken = subject.inbox.take(tag(number % 2), FROM, Duration::from_secs(20)).await;
        let taken = taken.map_err(|error| Violation {
            rule: 6,
            what: error.to_string(),
        })?;
        ensure!(
            6,
            taken.payload == payload(number),
            "parcel {number} did not come in its turn"
        );
    }
    let more = subject.inbox.take(tag(0), FROM, Duration::from_millis(50)).await;
    ensure!(6, more.is_err(), "a parcel came twice");
    Ok(())
}

async fn memory_is_bounded(subject: &Arc<Subject>) -> Result<(), Violation> {
    let bound = subject.most_bytes_at_once.max(subject.owner.row_bytes());
    let mut requests = JoinSet::new();
    for _ in 0..24 {
        let subject = Arc::clone(subject);
        requests.spawn(async move { subject.fetch_and_compare(7, caller(7), subject.many_rows()).await });
    }
    while let Some(joined) = requests.join_next().await {
        let recording = joined.map_err(|error| Violation {
            rule: 7,
            what: format!("a request panicked: {error}"),
        })??;
        ensure!(
            7,
            recording.largest <= bound,
            "{} bytes came at once, {bound} were stated",
            recording.largest
        );
    }
    Ok(())
}
