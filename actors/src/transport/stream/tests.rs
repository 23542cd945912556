use std::sync::{Arc, Mutex};
use std::time::Duration;

use greengnn_model::counters::Period;
use greengnn_model::row_type::RowType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::frame::{FrameHeader, FrameKind, HEADER_BYTES, finish_frame, start_frame};
use super::super::hello::{Hello, LanePurpose, Welcome};
use super::super::testing::{Machine, V4, settings, shard};
use super::super::{Caller, LaneSettings, MachineId};
use super::wire::{LAST, StreamOpen, put_part};
use super::*;
use crate::shard::lock;

const WIDTH: usize = 4;
const ROWS: u32 = 5_000;

fn caller() -> Caller {
    Caller {
        rank: 2,
        period: Period {
            epoch: 3,
            phase: Phase::Training,
        },
    }
}

/// Keeps the first value of every row.
#[derive(Clone, Default)]
struct Firsts(Arc<Mutex<Vec<f32>>>);

impl RowSink for Firsts {
    fn accept(&mut self, _: usize, rows: &[u8]) {
        let values = bytemuck::pod_collect_to_vec::<u8, f32>(rows);
        lock(&self.0).extend(values.chunks_exact(WIDTH).map(|row| row[0]));
    }
}

impl Firsts {
    /// The rows that these values are of.
    fn rows(&self) -> Vec<u32> {
        lock(&self.0).iter().map(|value| *value as u32 / WIDTH as u32).collect()
    }
}

async fn machines(settings: LaneSettings) -> (Machine, Machine) {
    let asking = Machine::start("asking", V4, settings.clone()).await;
    let serving = Machine::start("serving", V4, settings).await;
    serving.hosted.add_shard(shard(0, ROWS, WIDTH));
    (asking, serving)
}

fn training(step: u32, rows: Vec<u32>) -> ScheduledRows {
    let phase = Phase::Training;
    ScheduledRows { step, phase, rows }
}

async fn take(stream: &mut dyn RowStream) -> Result<Vec<u32>, TransportError> {
    let sink = Firsts::default();
    stream.grant(Box::new(sink.clone())).await?.await?;
    Ok(sink.rows())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_beyond_its_bound_is_kept_back_and_comes_in_the_end() {
    // Room for a part or two of the many.
    let (asking, serving) = machines(LaneSettings {
        max_schedule_bytes: 3_000,
        ..settings()
    })
    .await;
    let client = asking.connect(&serving).await.unwrap();
    let mut stream = client.open_stream(caller(), 0).await.unwrap();
    // Neighbours far apart take more bits.
    let rows = |step: u32| (0..600).map(|row| row * 7 + step).collect::<Vec<u32>>();
    for step in 0..40 {
        stream
            .schedule(vec![training(step, rows(step))], step == 39)
            .await
            .unwrap();
    }
    // The first is there long before the last has been sent; the others are asked for at once.
    assert_eq!(take(&mut *stream).await.unwrap(), rows(0));
    let mut granted = Vec::new();
    for step in 1..40 {
        let sink = Firsts::default();
        granted.push((step, sink.clone(), stream.grant(Box::new(sink)).await.unwrap()));
    }
    for (step, sink, arrival) in granted {
        arrival.await.unwrap();
        assert_eq!(sink.rows(), rows(step));
    }
    let served = serving.hosted.shard(0).unwrap().served().of(2, caller().period);
    assert_eq!(
        (served.feature_requests, served.deliveries, served.feature_rows),
        (1, 40, 24_000)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_streams_are_counted_by_their_writers_and_rows_are_not_asked_for_again() {
    let (asking, serving) = machines(settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let mut stream = client.open_stream(caller(), 0).await.unwrap();
    stream.schedule(vec![training(0, vec![8, 9, 10])], true).await.unwrap();
    let period = caller().period;
    let written = || asking.hosted.wire().written().get(&period).copied().unwrap();
    // The open frame; a part: its rows, then step, phase, number of rows, a width of 4 bits and 3 numbers.
    let said = (24 + 9) + (24 + 8 + 9 + 1 + 2);
    assert_eq!(written(), said);
    assert_eq!(take(&mut *stream).await.unwrap(), [8, 9, 10]);
    assert_eq!(written(), said + 24, "credit");
    assert_eq!(
        serving.hosted.wire().written().get(&period),
        Some(&(24 + 3 * WIDTH as u64 * 4))
    );
    let arrived = asking.hosted.wire().arrived_row_bytes();
    assert_eq!(arrived.get(&(2, period)), Some(&(3 * WIDTH as u64 * 4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_is_used_again_after_a_stream_that_ended_and_not_after_one_that_was_dropped() {
    let (asking, serving) = machines(settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let greetings = || asking.hosted.wire().written_total();
    let mut greeted = Vec::new();
    for round in 0..6 {
        let before = greetings();
        let mut stream = client.open_stream(caller(), 0).await.unwrap();
        greeted.push(greetings() - before > 24 + StreamOpen::BYTES as u64);
        let rows: Vec<u32> = (0..ROWS).collect();
        let mut deliveries = vec![training(0, vec![round]), training(1, rows)];
        if round == 2 {
            // The second may have come before the stream is dropped.
            deliveries.push(training(2, vec![0]));
        }
        stream.schedule(deliveries, true).await.unwrap();
        assert_eq!(take(&mut *stream).await.unwrap(), [round]);
        // Rounds 0 and 1 end well; 2 is dropped with a delivery on its way, 3 with one that was never granted.
        match round {
            2 => drop(stream.grant(Box::new(Firsts::default())).await.unwrap()),
            3 => {}
            _ => assert_eq!(take(&mut *stream).await.unwrap().len(), ROWS as usize),
        }
        drop(stream);
        // The lane is given back by a task of its own.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(greeted, [true, false, false, true, true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_owner_goes_away_fails_and_names_owner_and_step() {
    let (asking, serving) = machines(settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let mut stream = client.open_stream(caller(), 0).await.unwrap();
    let deliveries = vec![training(6, vec![1]), training(7, vec![2])];
    stream.schedule(deliveries, true).await.unwrap();
    assert_eq!(take(&mut *stream).await.unwrap(), [1]);
    serving.listener.close().await;
    let broken = take(&mut *stream).await.unwrap_err();
    let named = matches!(&broken, TransportError::Broken { peer, what, .. }
        if peer == "serving" && what == "the delivery of part 0 for step 7");
    assert!(named, "{broken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_not_there_and_another_membership_are_refused() {
    let (asking, serving) = machines(settings()).await;
    let client = asking.connect(&serving).await.unwrap();
    let mut stream = client.open_stream(caller(), 9).await.unwrap();
    // Whether the refusal is met here or at the delivery depends on who is faster.
    let _ = stream.schedule(vec![training(0, vec![1])], true).await;
    let refused = take(&mut *stream).await.unwrap_err();
    let told = matches!(&refused, TransportError::Refused { reason, .. } if reason.contains("part 9"));
    assert!(told, "{refused}");

    let mut stream = client.open_stream(caller(), 0).await.unwrap();
    let deliveries = vec![training(0, vec![1]), training(1, vec![1])];
    stream.schedule(deliveries, true).await.unwrap();
    take(&mut *stream).await.unwrap();
    serving.hosted.set_membership_epoch(1);
    let refused = take(&mut *stream).await.unwrap_err();
    let told = matches!(&refused, TransportError::Refused { reason, .. } if reason.contains("membership epoch 1"));
    assert!(told, "{refused}");
}

/// A lane on which a test says what it likes.
struct Stranger(TcpStream);

impl Stranger {
    async fn greet(machine: &Machine) -> Self {
        let id = MachineId::new("stranger", 1);
        let hello = Hello {
            purpose: LanePurpose::Streams,
            checksums: false,
            chunk_bytes: 1 << 20,
            ticket: machine.hosted.tickets().issue(&id).unwrap(),
            machine: id,
            membership_epoch: 0,
            row_type: RowType::F32,
        };
        let mut stream = TcpStream::connect(machine.listener.local_addr()).await.unwrap();
        stream.write_all(&hello.encode()).await.unwrap();
        let mut welcome = vec![0; Welcome::HEAD_BYTES + "serving".len()];
        stream.read_exact(&mut welcome).await.unwrap();
        let mut stranger = Self(stream);
        let open = StreamOpen {
            caller: caller(),
            owner: 0,
        };
        stranger.say(FrameKind::StreamOpen, 0, |body| open.put(body)).await;
        stranger
    }

    async fn say(&mut self, kind: FrameKind, number: u32, put: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = Vec::new();
        start_frame(&mut frame);
        put(&mut frame);
        finish_frame(&mut frame, kind, 1, number, false);
        // The other end may have hung up on what was said before.
        let _ = self.0.write_all(&frame).await;
    }

    async fn schedule(&mut self, rows: Vec<u32>, number: u32) {
        let deliveries = [training(0, rows)];
        self.say(FrameKind::Schedule, number, |body| put_part(body, &deliveries))
            .await;
    }

    /// Reads a frame of rows; its bytes.
    async fn rows(&mut self) -> usize {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).await.unwrap();
        let header = FrameHeader::decode(&header).unwrap();
        assert_eq!(header.kind, FrameKind::Rows);
        self.0.read_exact(&mut vec![0; header.body_bytes]).await.unwrap();
        header.body_bytes
    }

    /// Whether the other end says nothing for a while.
    async fn hears_nothing(&mut self) -> bool {
        let heard = tokio::time::timeout(Duration::from_millis(100), self.0.read_u8());
        heard.await.is_err()
    }

    /// Whether the other end hangs up, whatever it says before.
    async fn is_left(&mut self) -> bool {
        let mut said = Vec::new();
        let left = tokio::time::timeout(Duration::from_secs(20), self.0.read_to_end(&mut said));
        left.await.is_ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_leaves_once_the_credit_covers_all_of_it() {
    // Two rows a frame.
    let (_, serving) = machines(LaneSettings {
        chunk_bytes: 2 * WIDTH * 4,
        ..settings()
    })
    .await;
    let mut stranger = Stranger::greet(&serving).await;
    stranger.schedule(vec![0, 1, 2, 3, 4], LAST).await;
    assert!(stranger.hears_nothing().await);
    stranger.say(FrameKind::Credit, 1, |_| {}).await;
    assert!(stranger.hears_nothing().await, "half a frame is covered");
    stranger.say(FrameKind::Credit, 2, |_| {}).await;
    assert_eq!(stranger.rows().await, 2 * WIDTH * 4);
    assert!(stranger.hears_nothing().await, "one and a half are covered");
    stranger.say(FrameKind::Credit, 2, |_| {}).await;
    assert_eq!(stranger.rows().await, 2 * WIDTH * 4);
    assert_eq!(stranger.rows().await, WIDTH * 4);
    let served = serving.hosted.shard(0).unwrap().served().of(2, caller().period);
    assert_eq!(
        (served.feature_requests, served.deliveries, served.feature_rows),
        (1, 1, 5)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asker_that_grants_nothing_is_told_and_left_in_the_end() {
    // An owner waits for 40 of these, for the first step.
    let (_, serving) = machines(LaneSettings {
        deadline: Duration::from_millis(30),
        ..settings()
    })
    .await;
    let mut silent = Stranger::greet(&serving).await;
    silent.schedule(vec![0], LAST).await;
    assert!(silent.hears_nothing().await, "it was not waited for");
    let mut frame = Vec::new();
    let left = tokio::time::timeout(Duration::from_secs(20), silent.0.read_to_end(&mut frame));
    left.await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&frame[HEADER_BYTES..]);
    assert!(
        said.starts_with("rank 2 has granted no rows for step 0 for 1.2 s"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn askers_that_say_too_much_are_left() {
    let (_, serving) = machines(LaneSettings {
        max_schedule_bytes: 500,
        ..settings()
    })
    .await;
    let mut greedy = Stranger::greet(&serving).await;
    for _ in 0..9 {
        greedy.schedule((0..300).map(|row| row * 9).collect(), 0).await;
    }
    assert!(greedy.is_left().await, "more of the schedule than the bound");

    let mut endless = Stranger::greet(&serving).await;
    endless.schedule(vec![0], LAST).await;
    endless.schedule(vec![1], LAST).await;
    assert!(endless.is_left().await, "a part after the last");

    let mut generous = Stranger::greet(&serving).await;
    generous.say(FrameKind::Credit, 9, |_| {}).await;
    generous.schedule(vec![0], LAST).await;
    assert!(generous.is_left().await, "credit for more than is scheduled");

    let mut impatient = Stranger::greet(&serving).await;
    impatient.say(FrameKind::RowsRequest, 0, |_| {}).await;
    assert!(impatient.is_left().await, "another request");
}
