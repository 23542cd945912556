//! The asking end of a stream over a lane.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use greengnn_model::book::PartId;
use greengnn_model::counters::{Period, Phase};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::super::client::{Dialer, reply_header, row_amount};
use super::super::frame::{FrameKind, HEADER_BYTES, finish_frame, start_frame};
use super::super::hello::LanePurpose;
use super::super::link::{self, Fault};
use super::super::{BoxFuture, Caller, RowSink, TransportError};
use super::wire::{LAST, StreamOpen, cost, put_part};
use super::{Arrival, GRANTED_AT_ONCE, RowStream, ScheduledRows, arrival, delivery_name, unfit};
use crate::shard::lock;

/// Bytes of rows that are read ahead, so that a small delivery costs one read.
const READ_AHEAD: usize = 4 << 10;

/// Bytes that a part of a schedule has at most, unless one delivery takes more.
const PART_BYTES: usize = 256 << 10;

/// Lanes to one peer that carry streams: one per open stream, kept for the next one when it has ended well.
#[derive(Default)]
pub(in super::super) struct StreamLanes {
    idle: Mutex<Vec<StreamLane>>,
}

struct StreamLane {
    stream: TcpStream,
    checksums: bool,
    membership_epoch: u64,
    /// Streams that it has carried.
    streams: u64,
}

impl StreamLanes {
    /// Opens a stream of part `owner`.
    pub async fn open(
        self: &Arc<Self>,
        dialer: &Arc<Dialer>,
        caller: Caller,
        owner: PartId,
    ) -> Result<LaneStream, TransportError> {
        let opened = self.open_lane(dialer, caller, owner).await;
        opened.map_err(|fault| {
            let what = format!("a stream of part {owner} in epoch {}", caller.period.epoch);
            dialer.error(&what, fault)
        })
    }

    async fn open_lane(
        self: &Arc<Self>,
        dialer: &Arc<Dialer>,
        caller: Caller,
        owner: PartId,
    ) -> Result<LaneStream, Fault> {
        let mut lane = self.lane(dialer).await?;
        lane.streams += 1;
        let id = lane.streams;
        let mut frame = Vec::new();
        start_frame(&mut frame);
        StreamOpen { caller, owner }.put(&mut frame);
        finish_frame(&mut frame, FrameKind::StreamOpen, id, 0, lane.checksums);
        let (deadline, wire) = (dialer.settings.deadline, dialer.local.wire());
        link::write_all(&mut lane.stream, &frame, deadline, wire, caller.period).await?;
        let (reader, writer) = lane.stream.into_split();
        let channel = Channel {
            dialer: Arc::clone(dialer),
            lanes: Arc::clone(self),
            caller,
            owner,
            id,
            checksums: lane.checksums,
            membership_epoch: lane.membership_epoch,
            schedule: Mutex::default(),
            writer: tokio::sync::Mutex::new(Some(writer)),
            broken: Mutex::default(),
        };
        let channel = Arc::new(channel);
        let (granted, turns) = mpsc::channel(GRANTED_AT_ONCE);
        Ok(LaneStream {
            receiving: tokio::spawn(receive(Arc::clone(&channel), reader, turns)),
            channel,
            due: VecDeque::new(),
            granted,
        })
    }

    async fn lane(&self, dialer: &Dialer) -> Result<StreamLane, Fault> {
        let membership_epoch = dialer.local.membership_epoch();
        let mut idle = std::iter::from_fn(|| lock(&self.idle).pop());
        if let Some(lane) = idle.find(|lane| lane.membership_epoch == membership_epoch && is_quiet(&lane.stream)) {
            return Ok(lane);
        }
        let (stream, checksums) = dialer.dial(LanePurpose::Streams, membership_epoch).await?;
        Ok(StreamLane {
            stream,
            checksums,
            membership_epoch,
            streams: 0,
        })
    }
}

/// Whether the peer has neither closed the lane nor sent something that nobody asked for.
fn is_quiet(stream: &TcpStream) -> bool {
    let nothing = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    stream.try_read(&mut [0]).is_err_and(nothing)
}

/// A stream over a lane. A task receives what is granted; schedule and credit are written by whoever has something to
/// say.
pub(in super::super) struct LaneStream {
    channel: Arc<Channel>,
    /// Deliveries that are scheduled and not granted.
    due: VecDeque<Due>,
    granted: mpsc::Sender<Granted>,
    receiving: JoinHandle<()>,
}

#[derive(Clone, Copy)]
struct Due {
    step: u32,
    phase: Phase,
    rows: u32,
}

/// A delivery that the owner may send.
struct Granted {
    due: Due,
    sink: Box<dyn RowSink>,
    arrived: oneshot::Sender<Result<(), TransportError>>,
}

impl Drop for LaneStream {
    fn drop(&mut self) {
        // The receiver of a stream that has ended well gives the lane back once nothing can be granted any more.
        if !self.channel.is_done() {
            self.receiving.abort();
        }
    }
}

impl RowStream for LaneStream {
    fn schedule(&mut self, deliveries: Vec<ScheduledRows>, last: bool) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            let ended = lock(&self.channel.schedule).ended;
            if let Some(reason) = unfit(&deliveries, ended) {
                return Err(self.channel.refused(reason));
            }
            self.due.extend(deliveries.iter().map(|delivery| Due {
                step: delivery.step,
                phase: delivery.phase,
                // Rows that ascend as u32 are no more than that.
                rows: delivery.rows.len() as u32,
            }));
            self.channel.append(&deliveries, last)?;
            self.channel.flush().await;
            Ok(())
        })
    }

    fn grant(&mut self, sink: Box<dyn RowSink>) -> BoxFuture<'_, Result<Arrival, TransportError>> {
        Box::pin(async move {
            let Some(due) = self.due.pop_front() else {
                return Err(self.channel.refused("no delivery is left in the schedule".to_owned()));
            };
            let (arrived, arriving) = oneshot::channel();
            // First, so that rows may be there when the receiver looks.
            self.channel.credit(due);
            self.channel.flush().await;
            // A receiver that has ended drops what it is given, and the arrival says so.
            let _ = self.granted.send(Granted { due, sink, arrived }).await;
            let channel = Arc::clone(&self.channel);
            Ok(arrival(arriving, move || channel.error(due.step, Fault::Closed)))
        })
    }
}

/// What the stream and its receiver share.
struct Channel {
    dialer: Arc<Dialer>,
    lanes: Arc<StreamLanes>,
    caller: Caller,
    owner: PartId,
    id: u64,
    checksums: bool,
    membership_epoch: u64,
    schedule: Mutex<Schedule>,
    /// Empty while a frame is being written, and for good once one was written in part.
    writer: tokio::sync::Mutex<Option<OwnedWriteHalf>>,
    /// What went wrong first.
    broken: Mutex<Option<String>>,
}

/// What there is to say, and what has been said and not been answered.
#[derive(Default)]
struct Schedule {
    unsent: VecDeque<Part>,
    unanswered: VecDeque<(u64, usize)>,
    /// Of the unanswered parts.
    unanswered_cost: usize,
    scheduled_rows: u64,
    received_rows: u64,
    /// Rows that are granted and not credited.
    credit: u64,
    credit_phase: Phase,
    ended: bool,
}

/// A part of the schedule as a frame.
struct Part {
    frame: Vec<u8>,
    /// Rows of the stream up to its end.
    rows_end: u64,
    phase: Phase,
}

impl Part {
    fn cost(&self) -> usize {
        cost(self.frame.len() - HEADER_BYTES)
    }
}

impl Channel {
    fn append(&self, deliveries: &[ScheduledRows], last: bool) -> Result<(), TransportError> {
        let limit = self.dialer.settings.max_request_bytes;
        let mut rest = deliveries;
        let mut parts = Vec::new();
        while !rest.is_empty() || (last && parts.is_empty()) {
            // Packed, a row takes about a byte and a half. A part that takes more is larger, which its limit allows.
            let mut bytes = 0;
            let fitting = rest.iter().take_while(|delivery| {
                bytes += delivery.rows.len() * 2;
                bytes <= PART_BYTES
            });
            let (part, later) = rest.split_at(fitting.count().max(1).min(rest.len()));
            rest = later;
            let mut frame = Vec::new();
            start_frame(&mut frame);
            put_part(&mut frame, part);
            if frame.len() - HEADER_BYTES > limit {
                let size = frame.len() - HEADER_BYTES;
                return Err(self.refused(format!(
                    "a part of the schedule takes {size} bytes, the limit is {limit}"
                )));
            }
            let number = if last && rest.is_empty() { LAST } else { 0 };
            finish_frame(&mut frame, FrameKind::Schedule, self.id, number, self.checksums);
            let rows: usize = part.iter().map(|delivery| delivery.rows.len()).sum();
            let phase = part.first().map_or(self.caller.period.phase, |delivery| delivery.phase);
            parts.push((frame, rows as u64, phase));
        }
        let mut schedule = lock(&self.schedule);
        for (frame, rows, phase) in parts {
            schedule.scheduled_rows += rows;
            let rows_end = schedule.scheduled_rows;
            schedule.unsent.push_back(Part { frame, rows_end, phase });
        }
        schedule.ended |= last;
        Ok(())
    }

    fn credit(&self, due: Due) {
        let mut schedule = lock(&self.schedule);
        schedule.credit += u64::from(due.rows);
        schedule.credit_phase = due.phase;
    }

    /// The next frame that may be sent: a part for which the owner has room, or credit.
    fn next_frame(&self) -> Option<(Vec<u8>, Phase)> {
        let mut schedule = lock(&self.schedule);
        let limit = self.dialer.settings.max_schedule_bytes;
        let taken = schedule.unanswered_cost;
        let fits = |part: &mut Part| taken == 0 || taken + part.cost() <= limit;
        if let Some(part) = schedule.unsent.pop_front_if(fits) {
            schedule.unanswered_cost += part.cost();
            schedule.unanswered.push_back((part.rows_end, part.cost()));
            schedule.settle();
            return Some((part.frame, part.phase));
        }
        // At most what the field holds; the rest follows.
        let rows = u32::try_from(schedule.credit).unwrap_or(u32::MAX);
        schedule.credit -= u64::from(rows);
        let mut frame = Vec::new();
        start_frame(&mut frame);
        finish_frame(&mut frame, FrameKind::Credit, self.id, rows, self.checksums);
        (rows > 0).then_some((frame, schedule.credit_phase))
    }

    /// Sends what can be sent. The owner reads at any time, so that it takes as long as the network. A failure is kept
    /// for whoever waits for rows.
    async fn flush(&self) {
        // Whoever has it writes, with a deadline.
        let mut place = self.writer.lock().await;
        // Taken out, so that a caller who gives up half-way leaves no lane in the middle of a frame.
        let Some(mut writer) = place.take() else { return };
        let (deadline, wire) = (self.dialer.settings.deadline, self.dialer.local.wire());
        while let Some((frame, phase)) = self.next_frame() {
            let period = self.period(phase);
            if let Err(fault) = link::write_all(&mut writer, &frame, deadline, wire, period).await {
                lock(&self.broken).get_or_insert_with(|| fault.to_string());
                return;
            }
        }
        *place = Some(writer);
    }

    /// Receives one delivery.
    async fn delivery(
        &self,
        reader: &mut BufReader<OwnedReadHalf>,
        frame: &mut Vec<u8>,
        due: Due,
        sink: &mut dyn RowSink,
    ) -> Result<(), Fault> {
        let settings = &self.dialer.settings;
        let caller = Caller {
            period: self.period(due.phase),
            ..self.caller
        };
        let (rows, mut done, mut row_bytes) = (due.rows as usize, 0, None);
        while done < rows {
            let header = reply_header(reader, self.checksums, settings.deadline, self.id, FrameKind::Rows).await?;
            let amount = row_amount(&header, row_bytes, rows - done, settings.chunk_bytes)?;
            row_bytes = Some(header.number);
            frame.resize(frame.len().max(header.body_bytes), 0);
            let arriving = &mut frame[..header.body_bytes];
            link::read_exact(reader, arriving, settings.deadline).await?;
            header.verify(self.checksums, || crc32c::crc32c(arriving))?;
            self.dialer.local.wire().rows_arrived(caller, header.body_bytes as u64);
            sink.accept(done, arriving);
            done += amount;
        }
        Ok(())
    }

    /// Notes that rows have come, and sends parts that were kept back.
    async fn received(&self, rows: u32) {
        let kept_back = {
            let mut schedule = lock(&self.schedule);
            schedule.received_rows += u64::from(rows);
            schedule.settle();
            !schedule.unsent.is_empty()
        };
        if kept_back {
            self.flush().await;
        }
    }

    /// Whether all that belongs to the stream has been said and has come.
    fn is_done(&self) -> bool {
        let schedule = lock(&self.schedule);
        schedule.ended
            && schedule.unsent.is_empty()
            && schedule.credit == 0
            && schedule.received_rows == schedule.scheduled_rows
            && lock(&self.broken).is_none()
    }

    /// Keeps the lane for another stream.
    async fn give_back(&self, reader: OwnedReadHalf) {
        let writer = self.writer.lock().await.take();
        if let Some(stream) = writer.and_then(|writer| reader.reunite(writer).ok()) {
            lock(&self.lanes.idle).push(StreamLane {
                stream,
                checksums: self.checksums,
                membership_epoch: self.membership_epoch,
                streams: self.id,
            });
        }
    }

    fn period(&self, phase: Phase) -> Period {
        Period {
            phase,
            ..self.caller.period
        }
    }

    /// The error of a delivery that did not come. What the peer said counts most, then what went wrong first.
    fn error(&self, step: u32, fault: Fault) -> TransportError {
        let fault = match (fault, lock(&self.broken).clone()) {
            (fault @ Fault::Refused(_), _) | (fault, None) => fault,
            (_, Some(reason)) => Fault::Ended(reason),
        };
        self.dialer.error(&delivery_name(self.owner, step), fault)
    }

    fn refused(&self, reason: String) -> TransportError {
        let what = format!("a stream of part {} in epoch {}", self.owner, self.caller.period.epoch);
        self.dialer.error(&what, Fault::Refused(reason))
    }
}

impl Schedule {
    /// Forgets the parts whose rows have all come.
    fn settle(&mut self) {
        let received = self.received_rows;
        while let Some((_, cost)) = self.unanswered.pop_front_if(|(end, _)| *end <= received) {
            self.unanswered_cost -= cost;
        }
    }
}

/// Receives what is granted until nothing can be granted any more, or until the lane breaks.
async fn receive(channel: Arc<Channel>, reader: OwnedReadHalf, mut turns: mpsc::Receiver<Granted>) {
    let mut reader = BufReader::with_capacity(READ_AHEAD, reader);
    let mut frame = Vec::new();
    while let Some(Granted { due, mut sink, arrived }) = turns.recv().await {
        let came = channel.delivery(&mut reader, &mut frame, due, &mut *sink).await;
        drop(sink);
        let outcome = match came {
            Ok(()) => {
                channel.received(due.rows).await;
                Ok(())
            }
            Err(fault) => {
                let reason = fault.to_string();
                let error = channel.error(due.step, fault);
                lock(&channel.broken).get_or_insert(reason);
                Err(error)
            }
        };
        let failed = outcome.is_err();
        // Nobody waits any more when the stream was dropped.
        let _ = arrived.send(outcome);
        if failed {
            return;
        }
    }
    if channel.is_done() {
        channel.give_back(reader.into_inner()).await;
    }
}
