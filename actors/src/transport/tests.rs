use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greengnn_model::counters::{Period, Phase};
use greengnn_model::row_type::RowType;
use greengnn_model::sampling::Topology;
use tokio::net::TcpListener;

use super::conformance::{Silent, Subject, check};
use super::testing::{Machine, V4, V6, encoded_shard, settings, shard};
use super::*;
use crate::shard::{MemoryShard, PartShard, ShardData};

mod hostile;
mod limits;
mod violations;

/// Values of a row of [`shard`]s in these tests.
const WIDTH: usize = 33;

pub(super) fn caller() -> Caller {
    Caller {
        rank: 0,
        period: Period {
            epoch: 1,
            phase: Phase::Training,
        },
    }
}

/// Collects f32 rows.
#[derive(Default)]
pub(super) struct Rows(pub Vec<f32>);

impl RowSink for Rows {
    fn accept(&mut self, _: usize, rows: &[u8]) {
        self.0.extend(bytemuck::pod_collect_to_vec::<u8, f32>(rows));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_machine_that_hosts_everything_conforms() {
    for row_type in RowType::ALL {
        in_process(row_type).await;
    }
}

#[tokio::test]
async fn it_also_conforms_on_a_runtime_of_one_thread() {
    in_process(RowType::F32).await;
}

async fn in_process(row_type: RowType) {
    let hosted = Arc::new(Hosted::new(MachineId::new("alone", 1)));
    let owner = encoded_shard(5, 300, WIDTH, row_type);
    let inbox = Inbox::new(2, InboxLimits::default());
    hosted.add_shard(Arc::clone(&owner));
    hosted.add_inbox(Arc::clone(&inbox));
    let subject = Arc::new(Subject {
        transport: Arc::new(Router::new(Arc::clone(&hosted), Duration::from_secs(20))),
        owner,
        inbox,
        unowned: 6,
        most_bytes_at_once: row_type.row_bytes(WIDTH),
        silent: None,
    });
    check(&subject).await.unwrap();
    assert_eq!(hosted.wire().written_total(), 0, "nothing leaves the process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_conform_over_ipv4() {
    over_lanes(V4, settings()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn lanes_conform_over_ipv6_with_checksums() {
    let checksums = true;
    over_lanes(
        V6,
        LaneSettings {
            checksums,
            ..settings()
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_conform_with_every_row_type() {
    for row_type in RowType::ALL {
        // Frames of a few rows, of which the last is shorter.
        let chunk_bytes = 1000;
        let settings = LaneSettings {
            row_type,
            chunk_bytes,
            ..settings()
        };
        over_lanes(V4, settings).await;
    }
}

#[tokio::test]
async fn machines_of_two_row_types_open_no_lanes() {
    let serving = Machine::start("serving", V4, settings()).await;
    let other = LaneSettings {
        row_type: RowType::Int8,
        ..settings()
    };
    let asking = Machine::start("asking", V4, other).await;
    let refused = asking.connect(&serving).await.err();
    let told = matches!(&refused, Some(TransportError::Refused { reason, .. })
        if reason == "this machine serves f32 rows, the greeting asks for int8");
    assert!(told, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_conform_with_one_row_a_frame_and_one_lane() {
    let tiny = LaneSettings {
        chunk_bytes: 100,
        row_lanes: 1,
        ..settings()
    };
    over_lanes(V4, tiny).await;
}

#[tokio::test]
async fn lanes_conform_on_a_runtime_of_one_thread() {
    let chunk_bytes = 1000;
    over_lanes(
        V4,
        LaneSettings {
            chunk_bytes,
            ..settings()
        },
    )
    .await;
}

async fn over_lanes(ip: IpAddr, settings: LaneSettings) {
    let asking = Machine::start("asking", ip, settings.clone()).await;
    let serving = Machine::start("serving", ip, settings.clone()).await;
    let owner = encoded_shard(5, 300, WIDTH, settings.row_type);
    let inbox = Inbox::new(2, InboxLimits::default());
    serving.hosted.add_shard(Arc::clone(&owner));
    serving.hosted.add_inbox(Arc::clone(&inbox));
    let router = asking.router();
    router.attach(&asking.connect(&serving).await.unwrap(), [5], [2]);

    // A peer that takes connections, greets, and is silent from then on.
    let impatient = LaneSettings {
        deadline: Duration::from_millis(200),
        ..settings.clone()
    };
    let silent = hostile::Impostor::silent_after_greeting(ip).await;
    router.attach(&silent.lanes(&asking.hosted, &impatient).await, [9], []);

    let subject = Arc::new(Subject {
        transport: Arc::new(router),
        owner: Arc::clone(&owner),
        inbox,
        unowned: 6,
        most_bytes_at_once: settings.chunk_bytes,
        silent: Some(Silent {
            part: 9,
            peer: hostile::Impostor::NAME.into(),
            deadline: impatient.deadline,
        }),
    });
    check(&subject).await.unwrap();

    // Rows that arrived over sockets are those that the owner counted, independently.
    let arrived = asking.hosted.wire().arrived_row_bytes();
    for ((rank, period), served) in owner.served().snapshot() {
        let bytes = arrived.get(&(rank, period)).copied().unwrap_or(0);
        let row_bytes = settings.row_type.row_bytes(WIDTH) as u64;
        assert_eq!(bytes, served.feature_rows * row_bytes, "rank {rank}, {period:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_on_the_wire_are_counted_once_by_their_writer() {
    let asking = Machine::start("asking", V4, settings()).await;
    let serving = Machine::start("serving", V4, settings()).await;
    serving.hosted.add_shard(shard(0, 10, 4));
    serving.hosted.add_inbox(Inbox::new(1, InboxLimits::default()));
    let client = asking.connect(&serving).await.unwrap();
    let period = caller().period;
    let mut rows = Rows::default();
    client.fetch_rows(caller(), 0, &[3, 1], &mut rows).await.unwrap();
    assert_eq!(rows.0, [12.0, 13.0, 14.0, 15.0, 4.0, 5.0, 6.0, 7.0]);
    // A header, the caller, the owner and two ids; a header and two rows of four values.
    assert_eq!(asking.hosted.wire().written().get(&period), Some(&(24 + 7 + 2 + 2 * 4)));
    assert_eq!(serving.hosted.wire().written().get(&period), Some(&(24 + 2 * 4 * 4)));
    let parcel = Parcel {
        from: 0,
        to: 1,
        tag: ParcelTag {
            epoch: 1,
            step: 2,
            kind: ParcelKind::Evaluation,
        },
        payload: vec![7; 100_000],
        period: Period {
            epoch: 2,
            phase: Phase::Evaluation,
        },
    };
    client.post(&parcel).await.unwrap();
    let inbox = serving.hosted.inbox(1).unwrap();
    let taken = inbox.take(parcel.tag, 0, Duration::from_secs(20)).await.unwrap();
    assert_eq!(taken, parcel);
    assert_eq!(
        asking.hosted.wire().written().get(&parcel.period),
        Some(&(24 + 18 + 100_000))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_request_leaves_no_lane_out_of_step() {
    let asking = Machine::start("asking", V4, settings()).await;
    let serving = Machine::start("serving", V4, settings()).await;
    serving.hosted.add_shard(shard(0, 40_000, 64));
    let client = asking.connect(&serving).await.unwrap();
    let all: Vec<u32> = (0..40_000).collect();
    for micros in [0, 100, 1_000, 5_000] {
        let mut rows = Rows::default();
        let fetch = client.fetch_rows(caller(), 0, &all, &mut rows);
        let _ = tokio::time::timeout(Duration::from_micros(micros), fetch).await;
        let mut rows = Rows::default();
        client.fetch_rows(caller(), 0, &[1], &mut rows).await.unwrap();
        assert_eq!(rows.0, (64..128).map(|value| value as f32).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_are_replaced_after_the_peer_closed_them_and_parcels_are_not() {
    let asking = Machine::start("asking", V4, settings()).await;
    let serving = Machine::start("serving", V4, settings()).await;
    serving.hosted.add_shard(shard(0, 10, 4));
    serving.hosted.add_inbox(Inbox::new(1, InboxLimits::default()));
    let client = asking.connect(&serving).await.unwrap();
    // Another life of the same machine at the same address.
    let address = serving.listener.local_addr();
    serving.listener.close().await;
    let broken = client.fetch_rows(caller(), 0, &[1], &mut Rows::default()).await;
    let named = matches!(&broken, Err(TransportError::Broken { peer, .. }) if peer == "serving");
    assert!(named, "{broken:?}");

    let _listener = LaneListener::bind(address, Arc::clone(&serving.hosted), settings())
        .await
        .unwrap();
    client
        .fetch_rows(caller(), 0, &[1], &mut Rows::default())
        .await
        .unwrap();
    let parcel = Parcel {
        from: 0,
        to: 1,
        tag: ParcelTag {
            epoch: 0,
            step: 0,
            kind: ParcelKind::Parameters,
        },
        payload: Vec::new(),
        period: caller().period,
    };
    let broken = client.post(&parcel).await;
    assert!(matches!(broken, Err(TransportError::Broken { .. })), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_membership_shuts_the_lanes_of_the_one_before() {
    let asking = Machine::start("asking", V4, settings()).await;
    let serving = Machine::start("serving", V4, settings()).await;
    serving.hosted.add_shard(shard(0, 10, 4));
    let client = asking.connect(&serving).await.unwrap();
    serving.hosted.set_membership_epoch(1);
    let refused = client.fetch_rows(caller(), 0, &[1], &mut Rows::default()).await;
    let told = matches!(&refused, Err(TransportError::Refused { reason, .. }) if reason.contains("membership epoch 1"));
    assert!(told, "{refused:?}");
    let refused = asking.connect(&serving).await.err();
    let told =
        matches!(&refused, Some(TransportError::Refused { reason, .. }) if reason.contains("membership epoch 1"));
    assert!(told, "{refused:?}");
    asking.hosted.set_membership_epoch(1);
    client
        .fetch_rows(caller(), 0, &[1], &mut Rows::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_dropped_listener_frees_its_port_and_ends_its_connections() {
    let asking = Machine::start("asking", V4, settings()).await;
    let serving = Machine::start("serving", V4, settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let address = serving.listener.local_addr();
    drop(serving);
    let started = Instant::now();
    while TcpListener::bind(address).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "the port is still taken");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let broken = client.fetch_rows(caller(), 0, &[], &mut Rows::default()).await;
    assert!(matches!(broken, Err(TransportError::Broken { .. })), "{broken:?}");
}

/// Rows that take their time, as from a disk.
struct SlowRows(MemoryShard);

impl ShardData for SlowRows {
    fn part(&self) -> PartId {
        self.0.part()
    }

    fn rows(&self) -> u32 {
        self.0.rows()
    }

    fn width(&self) -> usize {
        self.0.width()
    }

    fn row(&self, row: u32) -> &[f32] {
        std::thread::sleep(Duration::from_millis(6));
        self.0.row(row)
    }

    fn topology(&self) -> Topology<'_> {
        self.0.topology()
    }
}

#[tokio::test]
async fn rows_from_a_slow_disk_arrive_in_order() {
    let tiny = LaneSettings {
        chunk_bytes: 8,
        ..settings()
    };
    let serving = Machine::start("serving", V4, tiny.clone()).await;
    let data = MemoryShard::new(0, 2, (0..20).map(|value| value as f32).collect()).unwrap();
    serving.hosted.add_shard(Arc::new(PartShard::new(SlowRows(data))));
    let asking = Machine::start("asking", V4, tiny).await;
    let client = asking.connect(&serving).await.unwrap();
    let mut rows = Rows::default();
    client.fetch_rows(caller(), 0, &[4, 0, 9, 9], &mut rows).await.unwrap();
    assert_eq!(rows.0, [8.0, 9.0, 0.0, 1.0, 18.0, 19.0, 18.0, 19.0]);
}
