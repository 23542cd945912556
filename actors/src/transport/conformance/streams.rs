//! The rules of streams.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greengnn_model::counters::{Period, Phase};

use super::super::{Arrival, Caller, RowSink, RowStream, ScheduledRows, TransportError};
use super::{Recorder, Recording, Subject, Violation, caller, ensure};
use crate::shard::{Served, lock};

pub(super) async fn check(subject: &Subject) -> Result<(), Violation> {
    a_stream_is_one_request(subject).await?;
    deliveries_come_in_order(subject).await?;
    bad_deliveries_end_their_stream(subject).await?;
    waits_are_bounded(subject).await?;
    nothing_comes_that_is_not_granted(subject).await
}

/// Keeps what comes for as long as anybody looks.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Recording>>);

struct Keeper {
    kept: Kept,
    row_bytes: usize,
}

impl RowSink for Keeper {
    fn accept(&mut self, first: usize, rows: &[u8]) {
        let mut recording = lock(&self.kept.0);
        let (recording, row_bytes) = (&mut *recording, self.row_bytes);
        Recorder { recording, row_bytes }.accept(first, rows);
    }
}

fn failed(rule: u8) -> impl Fn(TransportError) -> Violation {
    move |error| Violation {
        rule,
        what: format!("a stream failed: {error}"),
    }
}

fn scheduled(step: u32, phase: Phase, rows: Vec<u32>) -> ScheduledRows {
    ScheduledRows { step, phase, rows }
}

impl Subject {
    async fn open(&self, rule: u8, caller: Caller) -> Result<Box<dyn RowStream>, Violation> {
        let opened = self.transport.open_stream(caller, self.owner.part()).await;
        opened.map_err(failed(rule))
    }

    async fn grant(&self, rule: u8, stream: &mut dyn RowStream) -> Result<(Kept, Arrival), Violation> {
        let kept = Kept::default();
        let sink = Keeper {
            kept: kept.clone(),
            row_bytes: self.owner.row_bytes(),
        };
        let arrival = stream.grant(Box::new(sink)).await.map_err(failed(rule))?;
        Ok((kept, arrival))
    }

    /// Waits for a delivery and compares it with the owner's rows.
    async fn arrived(&self, rule: u8, rows: &[u32], (kept, arrival): (Kept, Arrival)) -> Result<(), Violation> {
        arrival.await.map_err(failed(rule))?;
        let recording = std::mem::take(&mut *lock(&kept.0));
        self.compare(rule, &recording, rows)?;
        ensure!(rule, Arc::strong_count(&kept.0) == 1, "a sink outlives its delivery");
        Ok(())
    }

    fn served(&self, caller: Caller, phase: Phase) -> Served {
        let period = Period { phase, ..caller.period };
        self.owner.served().of(caller.rank, period)
    }

    /// Some rows, ascending, as many as it takes to fill several frames or as there are; others for each `number`.
    fn ascending_rows(&self, number: u32) -> Vec<u32> {
        let step = (number % 3 + 1) as usize;
        (0..self.owner.rows()).skip(number as usize % 7).step_by(step).collect()
    }
}

async fn a_stream_is_one_request(subject: &Subject) -> Result<(), Violation> {
    let caller = caller(8);
    let phases = [Phase::Training, Phase::Training, Phase::Evaluation];
    let deliveries: Vec<ScheduledRows> = (0..)
        .zip(phases)
        .map(|(step, phase)| scheduled(step, phase, subject.ascending_rows(step)))
        .collect();
    let mut stream = subject.open(8, caller).await?;
    // Parts as a planner makes them, and an end that is known only afterwards.
    for delivery in &deliveries {
        let part = vec![delivery.clone()];
        stream.schedule(part, false).await.map_err(failed(8))?;
    }
    stream.schedule(Vec::new(), true).await.map_err(failed(8))?;
    for (number, delivery) in (1..).zip(&deliveries) {
        let granted = subject.grant(8, &mut *stream).await?;
        subject.arrived(8, &delivery.rows, granted).await?;
        let counted: Vec<Served> = [Phase::Training, Phase::Evaluation]
            .map(|phase| subject.served(caller, phase))
            .into();
        let rows_of = |phase| -> Vec<u64> {
            let so_far = deliveries[..number].iter().filter(|delivery| delivery.phase == phase);
            so_far.map(|delivery| delivery.rows.len() as u64).collect()
        };
        let expected: Vec<Served> = [Phase::Training, Phase::Evaluation]
            .map(|phase| Served {
                feature_requests: u64::from(phase == Phase::Training),
                deliveries: rows_of(phase).len() as u64,
                feature_rows: rows_of(phase).iter().sum(),
                sample_requests: 0,
                ..Served::default()
            })
            .into();
        ensure!(
            8,
            counted == expected,
            "after {number} deliveries of a stream the owner counted {counted:?} instead of {expected:?}"
        );
    }
    Ok(())
}

async fn deliveries_come_in_order(subject: &Subject) -> Result<(), Violation> {
    // More than one stream at a time, each granted in full at once, and one after another on what they leave behind.
    for round in 0..2 {
        let caller = caller(9 + round);
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut stream = subject.open(9, caller).await?;
            for pair in [[0, 1], [2, 3], [4, 5]] {
                let part = pair.map(|step| scheduled(step, Phase::Training, subject.ascending_rows(step)));
                stream.schedule(part.into(), pair[1] == 5).await.map_err(failed(9))?;
            }
            streams.push(stream);
        }
        let mut granted = Vec::new();
        for step in 0..6 {
            for stream in &mut streams {
                granted.push((step, subject.grant(9, &mut **stream).await?));
            }
        }
        for (step, granted) in granted {
            subject.arrived(9, &subject.ascending_rows(step), granted).await?;
        }
        for stream in &mut streams {
            let beyond = stream
                .grant(Box::new(Keeper {
                    kept: Kept::default(),
                    row_bytes: 1,
                }))
                .await;
            ensure!(9, beyond.is_err(), "a delivery was granted that nobody had scheduled");
        }
    }
    Ok(())
}

async fn bad_deliveries_end_their_stream(subject: &Subject) -> Result<(), Violation> {
    let caller = caller(11);
    let (mut bad, mut good) = (subject.open(9, caller).await?, subject.open(9, caller).await?);
    for rows in [Vec::new(), vec![1, 1], vec![1, 0]] {
        let unfit = bad.schedule(vec![scheduled(0, Phase::Training, rows)], false).await;
        ensure!(9, unfit.is_err(), "rows that do not ascend were scheduled");
    }
    let beyond = vec![0, subject.owner.rows()];
    let deliveries = vec![
        scheduled(1, Phase::Training, vec![0]),
        scheduled(2, Phase::Training, beyond),
        scheduled(3, Phase::Training, vec![0]),
    ];
    bad.schedule(deliveries, true).await.map_err(failed(9))?;
    let granted = subject.grant(9, &mut *bad).await?;
    subject.arrived(9, &[0], granted).await?;
    let refused = match subject.grant(9, &mut *bad).await?.1.await {
        Err(TransportError::Refused { what, reason, .. }) => what.contains("step 2") && reason.contains("row"),
        _ => false,
    };
    ensure!(9, refused, "a delivery of a row that does not exist was not refused");
    let goes_on = match subject.grant(9, &mut *bad).await {
        Ok((_, arrival)) => arrival.await.is_ok(),
        Err(_) => false,
    };
    ensure!(9, !goes_on, "a stream went on after a delivery that was refused");
    let delivery = scheduled(4, Phase::Training, vec![0]);
    good.schedule(vec![delivery], true).await.map_err(failed(9))?;
    let granted = subject.grant(9, &mut *good).await?;
    subject.arrived(9, &[0], granted).await?;
    // Both streams have delivered by now, so that the owner has heard of both.
    let expected = Served {
        feature_requests: 2,
        deliveries: 2,
        feature_rows: 2,
        sample_requests: 0,
        ..Served::default()
    };
    let counted = subject.served(caller, Phase::Training);
    ensure!(
        9,
        counted == expected,
        "the owner counted {counted:?} instead of {expected:?}"
    );
    let unowned = subject.transport.open_stream(caller, subject.unowned).await.err();
    ensure!(
        9,
        matches!(unowned, Some(TransportError::UnknownOwner { part }) if part == subject.unowned),
        "a part that nobody owns was asked: {unowned:?}"
    );
    Ok(())
}

async fn waits_are_bounded(subject: &Subject) -> Result<(), Violation> {
    let Some(silent) = &subject.silent else {
        return Ok(());
    };
    let started = Instant::now();
    let mut stream = subject
        .transport
        .open_stream(caller(12), silent.part)
        .await
        .map_err(failed(9))?;
    let delivery = scheduled(77, Phase::Training, vec![0]);
    stream.schedule(vec![delivery], true).await.map_err(failed(9))?;
    let arrival = subject.grant(9, &mut *stream).await?.1.await;
    let named = match &arrival {
        Err(TransportError::NoAnswer { peer, what, .. }) => *peer == silent.peer && what.contains("step 77"),
        _ => false,
    };
    ensure!(9, named, "a silent peer and what it owes were not named: {arrival:?}");
    let bound = 2 * silent.deadline + Duration::from_secs(20);
    ensure!(
        9,
        started.elapsed() < bound,
        "a silent peer was waited for {:?}",
        started.elapsed()
    );
    Ok(())
}

async fn nothing_comes_that_is_not_granted(subject: &Subject) -> Result<(), Violation> {
    let caller = caller(13);
    let mut stream = subject.open(10, caller).await?;
    let rows = subject.ascending_rows(0);
    let deliveries = (0..3)
        .map(|step| scheduled(step, Phase::Training, rows.clone()))
        .collect();
    stream.schedule(deliveries, true).await.map_err(failed(10))?;
    let bound = subject.most_bytes_at_once.max(subject.owner.row_bytes());
    for granted in 0..3 {
        // Long enough for a transport that does not wait.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let served = subject.served(caller, Phase::Training).deliveries;
        ensure!(
            10,
            served == granted,
            "{served} deliveries left the owner, {granted} were granted"
        );
        let (kept, arrival) = subject.grant(10, &mut *stream).await?;
        arrival.await.map_err(failed(10))?;
        let largest = lock(&kept.0).largest;
        ensure!(
            10,
            largest <= bound,
            "{largest} bytes came at once, {bound} were stated"
        );
    }
    Ok(())
}
