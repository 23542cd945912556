//! What happens on one accepted lane: requests are answered one after the other, or parcels are put into inboxes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greengnn_model::book::PartId;
use greengnn_model::counters::Period;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::task::{spawn_blocking, yield_now};

use super::frame::{
    FrameHeader, FrameKind, MAX_REASON_BYTES, ParcelHead, ProtocolError, RefusalCode, RowsRequest, SampleRequest,
    finish_frame, put_words, sample_words, start_frame,
};
use super::hello::cut;
use super::link::{self, Fault};
use super::{Hosted, LaneSettings, Parcel};
use crate::shard::PartShard;

/// Buffers larger than this are given back after the request that needed them.
const KEPT_BYTES: usize = 4 << 20;

/// A frame of rows in memory is made in a tenth of this.
const SLOW_FRAME: Duration = Duration::from_millis(5);

/// How one lane is served.
pub(super) struct Service {
    pub hosted: Arc<Hosted>,
    pub settings: LaneSettings,
    /// As agreed in the greeting.
    pub checksums: bool,
    /// As agreed in the greeting.
    pub chunk_bytes: usize,
    pub membership_epoch: u64,
}

/// A request that is not answered, and why.
struct Refusal {
    code: RefusalCode,
    reason: String,
}

impl Refusal {
    fn new(code: RefusalCode, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }
}

type Stream = BufReader<TcpStream>;

impl Service {
    /// Answers requests until the peer closes the lane.
    pub async fn answer(&self, mut stream: Stream) -> Result<(), Fault> {
        let mut body = Vec::new();
        let mut scratch = Scratch::default();
        while let Some(header) = link::next_header(&mut stream, self.settings.deadline).await? {
            header.limit(self.settings.max_request_bytes)?;
            link::read_body(&mut stream, &mut body, header.body_bytes, self.settings.deadline).await?;
            header.verify(self.checksums, || crc32c::crc32c(&body))?;
            match header.kind {
                FrameKind::RowsRequest => {
                    let request = RowsRequest::parse(&body)?;
                    self.answer_rows(&mut stream, header.request, request, &mut scratch)
                        .await?;
                }
                FrameKind::SampleRequest => {
                    let request = SampleRequest::parse(&body)?;
                    self.answer_sample(&mut stream, header.request, request, &mut scratch.frame)
                        .await?;
                }
                kind => return Err(ProtocolError::Unexpected { kind }.into()),
            }
            if body.capacity() > KEPT_BYTES {
                body = Vec::new();
            }
        }
        Ok(())
    }

    async fn answer_rows(
        &self,
        stream: &mut Stream,
        id: u64,
        request: RowsRequest,
        scratch: &mut Scratch,
    ) -> Result<(), Fault> {
        let RowsRequest { caller, owner, rows } = request;
        let admitted = self
            .shard(owner)
            .and_then(|shard| match shard.admit_rows(caller, &rows) {
                Ok(()) => Ok(shard),
                Err(reason) => Err(Refusal::new(RefusalCode::BadRequest, reason)),
            });
        let shard = match admitted {
            Ok(shard) => shard,
            Err(refusal) => return self.refuse(stream, id, caller.period, &refusal).await,
        };
        let reply = RowReply {
            rows_per_frame: (self.chunk_bytes / shard.row_bytes().max(1)).max(1),
            checksums: self.checksums,
            shard,
            id,
            rows,
        };
        let reply = Arc::new(reply);
        for index in 0..reply.frames() {
            scratch.fill(&reply, index).await?;
            self.send(stream, caller.period, &scratch.frame).await?;
            if index > 0 {
                yield_now().await;
            }
        }
        Ok(())
    }

    async fn answer_sample(
        &self,
        stream: &mut Stream,
        id: u64,
        request: SampleRequest,
        frame: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let SampleRequest { caller, owner, queries } = request;
        let shard = match self.shard(owner) {
            Ok(shard) => shard,
            Err(refusal) => return self.refuse(stream, id, caller.period, &refusal).await,
        };
        let most_words = self.settings.max_sample_bytes / 4;
        let drawn = spawn_blocking(move || shard.sample(caller, &queries, most_words)).await;
        let replies = match drawn.map_err(|error| Fault::Internal(error.to_string()))? {
            Ok(replies) => replies,
            Err(reason) => {
                let refusal = Refusal::new(RefusalCode::BadRequest, reason);
                return self.refuse(stream, id, caller.period, &refusal).await;
            }
        };
        let total: usize = sample_words(&replies).map(<[u32]>::len).sum();
        let number = u32::try_from(total).map_err(|error| Fault::Internal(error.to_string()))?;
        let room = (self.chunk_bytes / 4).max(1);
        start_frame(frame);
        let mut left_in_frame = room;
        for mut words in sample_words(&replies) {
            while !words.is_empty() {
                if left_in_frame == 0 {
                    finish_frame(frame, FrameKind::Samples, id, number, self.checksums);
                    self.send(stream, caller.period, frame).await?;
                    start_frame(frame);
                    left_in_frame = room;
                }
                let (now, later) = words.split_at(words.len().min(left_in_frame));
                put_words(frame, now);
                left_in_frame -= now.len();
                words = later;
            }
        }
        finish_frame(frame, FrameKind::Samples, id, number, self.checksums);
        self.send(stream, caller.period, frame).await
    }

    /// Puts parcels into the inboxes of this machine's ranks until the peer closes the lane. A full inbox stops the
    /// reading, and so, in the end, the sender.
    pub async fn receive_parcels(&self, mut stream: Stream) -> Result<(), Fault> {
        while let Some(header) = link::next_header(&mut stream, self.settings.deadline).await? {
            let head = self.parcel_head(&mut stream, &header).await?;
            let undeliverable = match self.receive_parcel(&mut stream, &header, head).await? {
                Ok(()) => continue,
                Err(reason) => reason,
            };
            // What follows on the lane cannot be told apart from the parcel that was refused, so that the lane ends.
            let refusal = Refusal::new(RefusalCode::ParcelUndeliverable, undeliverable);
            self.refuse(&mut stream, header.request, head.period, &refusal).await?;
            link::linger(&mut stream).await;
            return Err(Fault::Refused(refusal.reason));
        }
        Ok(())
    }

    async fn parcel_head(&self, stream: &mut Stream, header: &FrameHeader) -> Result<ParcelHead, Fault> {
        if header.kind != FrameKind::Parcel {
            return Err(ProtocolError::Unexpected { kind: header.kind }.into());
        }
        header.limit(self.settings.max_parcel_bytes.saturating_add(ParcelHead::BYTES))?;
        if header.body_bytes < ParcelHead::BYTES {
            return Err(ProtocolError::Misshapen { kind: header.kind }.into());
        }
        let mut head = [0; ParcelHead::BYTES];
        link::read_exact(stream, &mut head, self.settings.deadline).await?;
        Ok(ParcelHead::parse(&head)?)
    }

    async fn receive_parcel(
        &self,
        stream: &mut Stream,
        header: &FrameHeader,
        head: ParcelHead,
    ) -> Result<Result<(), String>, Fault> {
        if let Err(stale) = self.check_membership() {
            return Ok(Err(stale.reason));
        }
        let Some(inbox) = self.hosted.inbox(head.to) else {
            return Ok(Err(format!("rank {} is not hosted here", head.to)));
        };
        let length = header.body_bytes - ParcelHead::BYTES;
        let reservation = match inbox.reserve(length, self.settings.deadline).await {
            Ok(reservation) => reservation,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let mut payload = Vec::new();
        link::read_body(stream, &mut payload, length, self.settings.deadline).await?;
        header.verify(self.checksums, || {
            let mut bytes = Vec::with_capacity(ParcelHead::BYTES);
            head.put(&mut bytes);
            crc32c::crc32c_append(crc32c::crc32c(&bytes), &payload)
        })?;
        reservation.deliver(Parcel {
            from: head.from,
            to: head.to,
            tag: head.tag,
            payload,
            period: head.period,
        });
        Ok(Ok(()))
    }

    fn shard(&self, owner: PartId) -> Result<Arc<PartShard>, Refusal> {
        self.check_membership()?;
        self.hosted
            .shard(owner)
            .ok_or_else(|| Refusal::new(RefusalCode::UnknownPart, format!("part {owner} is not served here")))
    }

    fn check_membership(&self) -> Result<(), Refusal> {
        let current = self.hosted.membership_epoch();
        if current == self.membership_epoch {
            return Ok(());
        }
        let reason = format!(
            "this machine is in membership epoch {current}, the lane was opened in {}",
            self.membership_epoch
        );
        Err(Refusal::new(RefusalCode::StaleMembership, reason))
    }

    async fn refuse(&self, stream: &mut Stream, id: u64, period: Period, refusal: &Refusal) -> Result<(), Fault> {
        let mut frame = Vec::new();
        start_frame(&mut frame);
        frame.extend(cut(&refusal.reason, MAX_REASON_BYTES).as_bytes());
        finish_frame(&mut frame, FrameKind::Refusal, id, refusal.code as u32, self.checksums);
        self.send(stream, period, &frame).await
    }

    async fn send(&self, stream: &mut Stream, period: Period, frame: &[u8]) -> Result<(), Fault> {
        let wire = self.hosted.wire();
        link::write_all(stream.get_mut(), frame, self.settings.deadline, wire, period).await
    }
}

/// A reply of rows, cut into frames.
struct RowReply {
    shard: Arc<PartShard>,
    id: u64,
    rows: Vec<u32>,
    rows_per_frame: usize,
    checksums: bool,
}

impl RowReply {
    /// At least one: an empty reply is an empty frame.
    fn frames(&self) -> usize {
        self.rows.len().div_ceil(self.rows_per_frame).max(1)
    }

    /// Makes frame `index` in place of what `frame` holds.
    fn fill(&self, index: usize, frame: &mut Vec<u8>) {
        let start = index * self.rows_per_frame;
        let end = self.rows.len().min(start + self.rows_per_frame);
        let row_bytes = self.shard.row_bytes();
        start_frame(frame);
        frame.reserve((end - start) * row_bytes);
        for row in &self.rows[start..end] {
            frame.extend_from_slice(self.shard.encoded_row(*row));
        }
        finish_frame(frame, FrameKind::Rows, self.id, row_bytes as u32, self.checksums);
    }
}

/// The frame that is being made on a lane, and how long making one takes.
#[derive(Default)]
struct Scratch {
    frame: Vec<u8>,
    slow: bool,
}

impl Scratch {
    /// Makes frame `index` of `reply`. Rows in memory are gathered here and now, which takes the least CPU time. Rows
    /// that come from disk would hold up a thread of the runtime: once a frame was slow, the next are made elsewhere.
    async fn fill(&mut self, reply: &Arc<RowReply>, index: usize) -> Result<(), Fault> {
        let started = Instant::now();
        if self.slow {
            let (reply, mut frame) = (Arc::clone(reply), std::mem::take(&mut self.frame));
            let filling = spawn_blocking(move || {
                reply.fill(index, &mut frame);
                frame
            });
            self.frame = filling.await.map_err(|error| Fault::Internal(error.to_string()))?;
        } else {
            reply.fill(index, &mut self.frame);
        }
        self.slow = started.elapsed() > SLOW_FRAME;
        Ok(())
    }
}
