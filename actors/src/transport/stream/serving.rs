//! The serving end of a stream: reads the schedule and the credit while it sends the rows.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use greengnn_model::counters::Period;
use tokio::io::{AsyncRead, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio::try_join;

use super::super::Caller;
use super::super::frame::{FrameHeader, FrameKind, ProtocolError, RefusalCode};
use super::super::link::{self, Fault};
use super::super::service::{Refusal, RowReply, Scratch, Service};
use super::wire::{LAST, PartReader, StreamOpen, cost, part_rows};
use super::{STEP_PATIENCE, STEPS_BEHIND, ScheduledRows};
use crate::shard::{PartShard, lock};

/// Bytes of schedules that are read ahead, so that a credit costs one read.
const READ_AHEAD: usize = 4 << 10;

impl Service {
    /// Answers streams, one after the other, until the peer closes the lane. One that is refused ends it, since what
    /// follows on the lane still belongs to it.
    pub(in super::super) async fn answer_streams(&self, stream: TcpStream) -> Result<(), Fault> {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::with_capacity(READ_AHEAD, reader);
        while let Some(header) = link::next_header(&mut reader, self.settings.deadline).await? {
            let answered = self.answer_stream(&mut reader, &mut writer, &header).await;
            if matches!(answered, Err(Fault::Refused(_))) {
                link::linger(&mut tokio::io::join(&mut reader, &mut writer)).await;
            }
            answered?;
        }
        Ok(())
    }

    async fn answer_stream(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut OwnedWriteHalf,
        header: &FrameHeader,
    ) -> Result<(), Fault> {
        if header.kind != FrameKind::StreamOpen {
            return Err(ProtocolError::Unexpected { kind: header.kind }.into());
        }
        header.limit(StreamOpen::BYTES)?;
        let mut body = Vec::new();
        link::read_body(reader, &mut body, header.body_bytes, self.settings.deadline).await?;
        header.verify(self.checksums, || crc32c::crc32c(&body))?;
        let StreamOpen { caller, owner } = StreamOpen::parse(&body)?;
        let shard = match self.shard(owner) {
            Ok(shard) => shard,
            Err(refusal) => {
                return self.refuse_stream(writer, header.request, caller.period, refusal).await;
            }
        };
        shard.admit_stream(caller);
        let ahead = Ahead::default();
        let answer = Answer {
            service: self,
            id: header.request,
            caller,
            shard,
            ahead: &ahead,
        };
        try_join!(answer.listen(reader), answer.deliver(writer)).map(|_| ())
    }

    async fn refuse_stream(
        &self,
        writer: &mut OwnedWriteHalf,
        id: u64,
        period: Period,
        refusal: Refusal,
    ) -> Result<(), Fault> {
        let frame = self.refusal_frame(id, &refusal);
        link::write_all(writer, &frame, self.settings.deadline, self.hosted.wire(), period).await?;
        Err(Fault::Refused(refusal.reason))
    }
}

/// One stream that is being answered.
struct Answer<'a> {
    service: &'a Service,
    id: u64,
    caller: Caller,
    shard: Arc<PartShard>,
    ahead: &'a Ahead,
}

impl Answer<'_> {
    /// Takes in the schedule and the credit until all of the schedule is granted.
    async fn listen(&self, reader: &mut (impl AsyncRead + Unpin)) -> Result<(), Fault> {
        let settings = &self.service.settings;
        while !self.ahead.is_granted()? {
            let header = link::next_header(reader, settings.deadline).await?;
            let header = header.ok_or(Fault::Closed)?;
            if header.request != self.id {
                let (expected, found) = (self.id, header.request);
                return Err(ProtocolError::WrongRequest { expected, found }.into());
            }
            match header.kind {
                FrameKind::Schedule => {
                    let room = self.ahead.room(settings.max_schedule_bytes, settings.max_request_bytes);
                    header.limit(room)?;
                    let mut body = Vec::new();
                    link::read_body(reader, &mut body, header.body_bytes, settings.deadline).await?;
                    header.verify(self.service.checksums, || crc32c::crc32c(&body))?;
                    self.ahead.append(body, header.number == LAST)?;
                }
                FrameKind::Credit => {
                    header.limit(0)?;
                    header.verify(self.service.checksums, || crc32c::crc32c(&[]))?;
                    self.ahead.grant(header.number);
                }
                kind => return Err(ProtocolError::Unexpected { kind }.into()),
            }
        }
        Ok(())
    }

    /// Sends the deliveries of the schedule in their order, each frame once there is credit for it.
    async fn deliver(&self, writer: &mut OwnedWriteHalf) -> Result<(), Fault> {
        let mut scratch = Scratch::default();
        let mut sent_rows = 0;
        while let Some(part) = self.ahead.next_part().await {
            let mut deliveries = PartReader::new(&part, self.shard.rows())?;
            while let Some(delivery) = deliveries.next()? {
                match delivery {
                    Ok(delivery) => self.send(writer, delivery, &mut scratch, &mut sent_rows).await?,
                    Err(reason) => {
                        let refusal = Refusal::new(RefusalCode::BadRequest, reason);
                        return self.refuse(writer, refusal).await;
                    }
                }
            }
            self.ahead.answered(&part);
        }
        Ok(())
    }

    async fn send(
        &self,
        writer: &mut OwnedWriteHalf,
        delivery: ScheduledRows,
        scratch: &mut Scratch,
        sent_rows: &mut u64,
    ) -> Result<(), Fault> {
        let service = self.service;
        let period = Period {
            phase: delivery.phase,
            ..self.caller.period
        };
        let patience = service.settings.deadline * STEP_PATIENCE;
        let patience = patience.saturating_mul(delivery.step.saturating_add(STEPS_BEHIND));
        let step = delivery.step;
        let reply = RowReply::new(service, &self.shard, self.id, delivery.rows);
        let reply = Arc::new(reply);
        for index in 0..reply.frames() {
            scratch.fill(&reply, index).await?;
            *sent_rows += reply.rows_of_frame(index).len() as u64;
            if timeout(patience, self.ahead.granted(*sent_rows)).await.is_err() {
                let reason = format!(
                    "rank {} has granted no rows for step {step} for {} s",
                    self.caller.rank,
                    patience.as_secs_f32()
                );
                tracing::warn!("a stream was given up: {reason}");
                return self.refuse(writer, Refusal::new(RefusalCode::BadRequest, reason)).await;
            }
            if index == 0 {
                let caller = Caller { period, ..self.caller };
                let admitted = service.check_membership().and_then(|()| {
                    let admitted = self.shard.admit_delivery(caller, &reply.rows);
                    admitted.map_err(|reason| Refusal::new(RefusalCode::BadRequest, reason))
                });
                if let Err(refusal) = admitted {
                    return self.refuse(writer, refusal).await;
                }
            } else {
                yield_now().await;
            }
            let (deadline, wire) = (service.settings.deadline, service.hosted.wire());
            link::write_all(writer, &scratch.frame, deadline, wire, period).await?;
        }
        Ok(())
    }

    async fn refuse(&self, writer: &mut OwnedWriteHalf, refusal: Refusal) -> Result<(), Fault> {
        let period = self.caller.period;
        self.service.refuse_stream(writer, self.id, period, refusal).await
    }
}

/// What the asker has said so far: the schedule that is not answered yet, and the credit.
#[derive(Default)]
struct Ahead {
    state: Mutex<AheadState>,
    changed: Notify,
}

#[derive(Default)]
struct AheadState {
    parts: VecDeque<Vec<u8>>,
    /// Of the parts, and of the one that is being answered.
    cost: usize,
    scheduled_rows: u64,
    granted_rows: u64,
    ended: bool,
}

impl Ahead {
    /// Whether nothing more can come on this stream: the schedule has ended and all of it is granted.
    fn is_granted(&self) -> Result<bool, ProtocolError> {
        let state = lock(&self.state);
        if state.ended && state.granted_rows > state.scheduled_rows {
            return Err(ProtocolError::WrongAmount {
                expected: usize::try_from(state.scheduled_rows).unwrap_or(usize::MAX),
                found: usize::try_from(state.granted_rows).unwrap_or(usize::MAX),
            });
        }
        Ok(state.ended && state.granted_rows == state.scheduled_rows)
    }

    /// Bytes that the next part may have.
    fn room(&self, max_ahead: usize, max_alone: usize) -> usize {
        match lock(&self.state).cost {
            0 => max_alone,
            taken => max_ahead.saturating_sub(taken + cost(0)),
        }
    }

    fn append(&self, part: Vec<u8>, last: bool) -> Result<(), ProtocolError> {
        let rows = part_rows(&part)?;
        let mut state = lock(&self.state);
        let kind = FrameKind::Schedule;
        if state.ended {
            return Err(ProtocolError::Unexpected { kind });
        }
        let scheduled = state.scheduled_rows.checked_add(rows);
        state.scheduled_rows = scheduled.ok_or(ProtocolError::Misshapen { kind })?;
        state.cost += cost(part.len());
        state.parts.push_back(part);
        state.ended = last;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    fn grant(&self, rows: u32) {
        let mut state = lock(&self.state);
        state.granted_rows = state.granted_rows.saturating_add(u64::from(rows));
        drop(state);
        self.changed.notify_one();
    }

    fn answered(&self, part: &[u8]) {
        lock(&self.state).cost -= cost(part.len());
    }

    /// Waits for the next part; none after the last.
    async fn next_part(&self) -> Option<Vec<u8>> {
        let next = || {
            let mut state = lock(&self.state);
            let part = state.parts.pop_front();
            (part.is_some() || state.ended).then_some(part)
        };
        loop {
            match next() {
                Some(part) => return part,
                None => self.changed.notified().await,
            }
        }
    }

    /// Waits until so many rows of the stream are granted.
    async fn granted(&self, rows: u64) {
        while lock(&self.state).granted_rows < rows {
            self.changed.notified().await;
        }
    }
}
