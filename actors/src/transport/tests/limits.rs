//! What is bounded: memory, connections, parcels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greengnn_model::row_type::RowType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::super::frame::{FrameKind, RowsRequest, finish_frame, start_frame};
use super::super::hello::{Hello, LanePurpose};
use super::super::testing::{Machine, V4, settings, shard};
use super::super::*;
use super::{Rows, caller};

fn parcel(to: u16, step: u32, bytes: usize) -> Parcel {
    Parcel {
        from: 0,
        to,
        tag: ParcelTag {
            epoch: 0,
            step,
            kind: ParcelKind::GradientSlice,
        },
        payload: vec![step as u8; bytes],
        period: caller().period,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_holds_up_its_own_lane_alone() {
    let impatient = LaneSettings {
        deadline: Duration::from_millis(500),
        ..settings()
    };
    let serving = Machine::start("serving", V4, impatient).await;
    serving.hosted.add_shard(shard(0, 1000, 256));
    let ticket = serving.hosted.tickets().issue(&MachineId::new("asking", 1)).unwrap();
    let hello = Hello {
        purpose: LanePurpose::Reads,
        row_type: RowType::F32,
        checksums: false,
        chunk_bytes: 1 << 20,
        ticket,
        machine: MachineId::new("asking", 1),
        membership_epoch: 0,
    };
    let mut request = Vec::new();
    start_frame(&mut request);
    // 200 MiB of rows.
    let rows: Vec<u32> = (0..200 << 10).map(|place| place % 1000).collect();
    RowsRequest::put(&mut request, caller(), 0, &rows);
    finish_frame(&mut request, FrameKind::RowsRequest, 1, 0, false);
    let mut stream = TcpStream::connect(serving.listener.local_addr()).await.unwrap();
    stream.write_all(&hello.encode()).await.unwrap();
    stream.write_all(&request).await.unwrap();

    // What was written went into the kernel's buffers; the rest was never made.
    let wait = Duration::from_secs(20);
    let started = Instant::now();
    let mut written = 0;
    loop {
        sleep(Duration::from_millis(700)).await;
        let now = serving.hosted.wire().written_total();
        if now == written && now > 1000 {
            break;
        }
        written = now;
        assert!(started.elapsed() < wait, "the listener still writes");
    }
    assert!(
        written < 100 << 20,
        "{written} bytes were written to a reader that does not read"
    );
    let mut rest = Vec::new();
    let ended = timeout(wait, stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the lane is still open");
    assert!((rest.len() as u64) < 100 << 20);
}

#[tokio::test]
async fn connections_without_a_ticket_are_few_and_keep_no_peer_out() {
    let strict = LaneSettings {
        max_strangers: 2,
        hello_timeout: Duration::from_secs(1),
        ..settings()
    };
    let serving = Machine::start("serving", V4, strict).await;
    serving.hosted.add_shard(shard(0, 10, 4));
    let asking = Machine::start("asking", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..5 {
        strangers.push(TcpStream::connect(serving.listener.local_addr()).await.unwrap());
        sleep(Duration::from_millis(20)).await;
    }
    // The last one is closed at once, long before its time for greetings is over.
    let ended = timeout(Duration::from_millis(500), strangers[4].read(&mut [0; 1])).await;
    assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    client
        .fetch_rows(caller(), 0, &[1], &mut Rows::default())
        .await
        .unwrap();
    // When the others have been closed too, there is room again.
    let _ = timeout(Duration::from_secs(20), strangers[0].read(&mut [0; 1]))
        .await
        .unwrap();
    let _ = timeout(Duration::from_secs(20), strangers[1].read(&mut [0; 1]))
        .await
        .unwrap();
    assert!(asking.connect(&serving).await.is_ok());
}

#[tokio::test]
async fn a_listener_serves_so_many_lanes_and_no_more() {
    let strict = LaneSettings {
        max_connections: 4,
        ..settings()
    };
    let serving = Machine::start("serving", V4, strict).await;
    let asking = Machine::start("asking", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let refused = asking.connect(&serving).await.err();
    let told = matches!(&refused, Some(TransportError::Refused { reason, .. }) if reason.contains("4 connections"));
    assert!(told, "{refused:?}");
    drop(client);
    let started = Instant::now();
    while asking.connect(&serving).await.is_err() {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "closed lanes keep their places"
        );
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn requests_and_parcels_over_the_limits_are_refused_before_they_leave() {
    let small = LaneSettings {
        max_request_bytes: 100,
        max_parcel_bytes: 100,
        ..settings()
    };
    let serving = Machine::start("serving", V4, settings()).await;
    serving.hosted.add_shard(shard(0, 10, 4));
    serving.hosted.add_inbox(Inbox::new(1, InboxLimits::default()));
    let asking = Machine::start("asking", V4, small).await;
    let client = asking.connect(&serving).await.unwrap();
    let refused = client.fetch_rows(caller(), 0, &[0; 100], &mut Rows::default()).await;
    assert!(matches!(refused, Err(TransportError::Refused { .. })), "{refused:?}");
    let refused = client.post(&parcel(1, 0, 101)).await;
    assert!(matches!(refused, Err(TransportError::Refused { .. })), "{refused:?}");
    client
        .fetch_rows(caller(), 0, &[0; 5], &mut Rows::default())
        .await
        .unwrap();
    client.post(&parcel(1, 0, 100)).await.unwrap();
}

#[tokio::test]
async fn answers_of_samples_over_the_limit_are_refused() {
    let small = LaneSettings {
        max_sample_bytes: 40,
        ..settings()
    };
    let serving = Machine::start("serving", V4, small).await;
    serving.hosted.add_shard(shard(0, 100, 4));
    let asking = Machine::start("asking", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let query = |rows| NeighborQuery {
        key: 1,
        fanout: 5,
        rows,
    };
    let refused = client.sample(caller(), 0, &[query((0..50).collect())]).await;
    let told = matches!(&refused, Err(TransportError::Refused { reason, .. }) if reason.contains("40 bytes"));
    assert!(told, "{refused:?}");
    assert_eq!(
        client.sample(caller(), 0, &[query(vec![0])]).await.unwrap()[0].counts,
        [0]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_inbox_holds_the_sender_until_parcels_are_taken() {
    let serving = Machine::start("serving", V4, settings()).await;
    let limits = InboxLimits {
        bytes: 1 << 20,
        parcels: 100,
    };
    let inbox = Inbox::new(1, limits);
    serving.hosted.add_inbox(Arc::clone(&inbox));
    let asking = Machine::start("asking", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let posting = tokio::spawn(async move {
        for step in 0..60 {
            client.post(&parcel(1, step, 1 << 20)).await?;
        }
        Ok::<_, TransportError>(client)
    });
    for step in 0..60 {
        let taken = inbox
            .take(parcel(1, step, 0).tag, 0, Duration::from_secs(20))
            .await
            .unwrap();
        assert_eq!(taken.payload, vec![step as u8; 1 << 20]);
    }
    posting.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_inbox_that_stays_full_fails_the_sender_with_the_reason() {
    let impatient = LaneSettings {
        deadline: Duration::from_millis(200),
        ..settings()
    };
    let serving = Machine::start("serving", V4, impatient).await;
    let limits = InboxLimits {
        bytes: 1 << 20,
        parcels: 1,
    };
    serving.hosted.add_inbox(Inbox::new(1, limits));
    let asking = Machine::start("asking", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let started = Instant::now();
    let error = loop {
        if let Err(error) = client.post(&parcel(1, 0, 10)).await {
            break error.to_string();
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "nobody says that the inbox is full"
        );
        sleep(Duration::from_millis(20)).await;
    };
    assert!(error.contains("the inbox of rank 1 stayed full"), "{error}");
}

#[tokio::test]
async fn a_parcel_for_a_rank_that_lives_elsewhere_ends_the_lane_with_the_reason() {
    let serving = Machine::start("serving", V4, settings()).await;
    let asking = Machine::start("asking", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    client.post(&parcel(8, 0, 10)).await.unwrap();
    let started = Instant::now();
    let error = loop {
        if let Err(error) = client.post(&parcel(8, 0, 10)).await {
            break error.to_string();
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "nobody says that the rank is unknown"
        );
        sleep(Duration::from_millis(20)).await;
    };
    assert!(error.contains("rank 8 is not hosted here"), "{error}");
}

#[tokio::test]
async fn an_inbox_is_bounded_for_local_senders_too() {
    let limits = InboxLimits {
        bytes: 2048,
        parcels: 10,
    };
    let inbox = Inbox::new(1, limits);
    let soon = Duration::from_millis(50);
    let refused = inbox.put(parcel(1, 0, 2049), soon).await;
    assert!(
        matches!(refused, Err(InboxError::TooLarge { bytes: 2049, .. })),
        "{refused:?}"
    );
    inbox.put(parcel(1, 0, 2048), soon).await.unwrap();
    let refused = inbox.put(parcel(1, 1, 1), soon).await;
    assert!(matches!(refused, Err(InboxError::Full { .. })), "{refused:?}");
    inbox.take(parcel(1, 0, 0).tag, 0, soon).await.unwrap();
    inbox.put(parcel(1, 1, 1), soon).await.unwrap();
    inbox.clear();
    inbox.put(parcel(1, 2, 2048), soon).await.unwrap();
    let nothing = inbox.take(parcel(1, 1, 0).tag, 0, soon).await;
    assert!(
        matches!(nothing, Err(InboxError::NothingCame { from: 0, to: 1, .. })),
        "{nothing:?}"
    );
}
