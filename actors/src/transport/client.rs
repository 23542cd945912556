//! The asking end of lanes: a few connections to one peer, each with one request in service.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use greengnn_model::book::PartId;
use greengnn_model::counters::Period;
use greengnn_model::sampling::{NeighborQuery, NeighborReply};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::frame::{
    FrameHeader, FrameKind, MAX_REASON_BYTES, ProtocolError, RowsRequest, SampleRequest, finish_frame,
    replies_from_words, start_frame, words_from_wire,
};
use super::hello::{Hello, LanePurpose, Welcome};
use super::link::{self, Fault, Progress};
use super::listener::GREETING_PERIOD;
use super::outbound::ParcelLane;
use super::settings::MAX_ROW_BYTES;
use super::{Caller, Hosted, LaneSettings, Parcel, RowSink, TicketSource, TransportError};
use crate::shard::lock;

/// Bytes of replies that are read ahead, so that a small reply costs one read.
const READ_AHEAD: usize = 4 << 10;

/// Buffers larger than this are given back after the request that needed them.
const KEPT_BYTES: usize = 4 << 20;

/// The lanes to one peer.
///
/// Requests for rows share [`LaneSettings::row_lanes`] lanes, requests for samples and parcels have one lane each. A
/// lane serves one request at a time, further ones wait in line, so that no more than one reply frame per lane is in
/// memory. A lane that broke, or whose request was dropped half-way, is replaced at the next request, with a new
/// ticket; the lane of parcels is not, since parcels may have been lost with it: another membership takes a new client.
pub struct LaneClient {
    shared: Arc<Dialer>,
    rows: LanePool,
    samples: LanePool,
    parcels: ParcelLane,
}

impl LaneClient {
    /// Opens all lanes to the listener of machine `peer` at `address`, which takes `row_lanes + 2` tickets. `local` is
    /// this machine: it names itself to the peer, and its ledger gets the bytes.
    ///
    /// # Errors
    /// The peer cannot be reached or refuses a lane.
    pub async fn connect(
        peer: impl Into<String>,
        address: SocketAddr,
        tickets: impl TicketSource,
        local: Arc<Hosted>,
        settings: LaneSettings,
    ) -> Result<Self, TransportError> {
        let shared = Arc::new(Dialer {
            peer: peer.into(),
            address,
            tickets: Box::new(tickets),
            local,
            settings: settings.clamped(),
        });
        let rows = LanePool::new(shared.settings.row_lanes.max(1));
        let samples = LanePool::new(1);
        rows.open_all(&shared).await?;
        samples.open_all(&shared).await?;
        let epoch = shared.local.membership_epoch();
        let opened = shared.dial(LanePurpose::Parcels, epoch).await;
        let (stream, checksums) = opened.map_err(|fault| shared.error("a lane", fault))?;
        let parcels = ParcelLane::new(stream, checksums, &shared);
        Ok(Self {
            shared,
            rows,
            samples,
            parcels,
        })
    }

    /// The peer's name, as errors give it.
    pub fn peer(&self) -> &str {
        &self.shared.peer
    }

    /// Moves rows of part `owner` into `sink`; see [`Transport::fetch_rows`](super::Transport::fetch_rows).
    ///
    /// # Errors
    /// As the rules of transports say.
    pub async fn fetch_rows(
        &self,
        caller: Caller,
        owner: PartId,
        rows: &[u32],
        sink: &mut dyn RowSink,
    ) -> Result<(), TransportError> {
        let fetched = async {
            let mut turn = self.rows.turn(&self.shared).await?;
            let fetched = turn
                .lane
                .fetch_rows(&self.shared, caller, owner, rows, sink, &self.rows.progress);
            let fetched = fetched.await;
            turn.end(&fetched);
            fetched
        };
        let fetched = fetched.await;
        fetched.map_err(|fault| {
            self.shared
                .error(&format!("{} feature rows of part {owner}", rows.len()), fault)
        })
    }

    /// Samples neighbours at part `owner`; see [`Transport::sample`](super::Transport::sample).
    ///
    /// # Errors
    /// As the rules of transports say.
    pub async fn sample(
        &self,
        caller: Caller,
        owner: PartId,
        queries: &[NeighborQuery],
    ) -> Result<Vec<NeighborReply>, TransportError> {
        let sampled = async {
            let mut turn = self.samples.turn(&self.shared).await?;
            let sampled = turn
                .lane
                .sample(&self.shared, caller, owner, queries, &self.samples.progress);
            let sampled = sampled.await;
            turn.end(&sampled);
            sampled
        };
        let sampled = sampled.await;
        sampled.map_err(|fault| self.shared.error(&format!("neighbour samples of part {owner}"), fault))
    }

    /// Sends a parcel; see [`Transport::post`](super::Transport::post).
    ///
    /// # Errors
    /// As the rules of transports say.
    pub async fn post(&self, parcel: &Parcel) -> Result<(), TransportError> {
        let posted = self.parcels.post(parcel, &self.shared).await;
        posted.map_err(|fault| {
            let what = format!("a parcel for rank {} ({:?})", parcel.to, parcel.tag);
            self.shared.error(&what, fault)
        })
    }
}

/// What it takes to open a lane.
pub(super) struct Dialer {
    pub peer: String,
    pub address: SocketAddr,
    pub tickets: Box<dyn TicketSource>,
    pub local: Arc<Hosted>,
    pub settings: LaneSettings,
}

impl Dialer {
    /// Connects, greets, and tells whether checksums were agreed on.
    pub async fn dial(&self, purpose: LanePurpose, membership_epoch: u64) -> Result<(TcpStream, bool), Fault> {
        let settings = &self.settings;
        let ticket = match timeout(settings.deadline, self.tickets.next_ticket()).await {
            Ok(Ok(ticket)) => ticket,
            Ok(Err(reason)) => return Err(Fault::Refused(format!("no ticket for a lane: {reason}"))),
            Err(_) => return Err(Fault::Deadline(settings.deadline)),
        };
        let mut stream = match timeout(settings.connect_timeout, TcpStream::connect(self.address)).await {
            Ok(stream) => stream?,
            Err(_) => return Err(Fault::Deadline(settings.connect_timeout)),
        };
        link::configure(&stream, settings.silence_timeout)?;
        let hello = Hello {
            purpose,
            row_type: settings.row_type,
            checksums: settings.checksums,
            chunk_bytes: u32::try_from(settings.chunk_bytes).unwrap_or(u32::MAX),
            ticket,
            machine: self.local.machine().clone(),
            membership_epoch,
        };
        let wire = self.local.wire();
        link::write_all(
            &mut stream,
            &hello.encode(),
            settings.hello_timeout,
            wire,
            GREETING_PERIOD,
        )
        .await?;
        let mut head = [0; Welcome::HEAD_BYTES];
        link::read_exact(&mut stream, &mut head, settings.hello_timeout).await?;
        let mut text = vec![0; Welcome::text_bytes(&head)?];
        link::read_exact(&mut stream, &mut text, settings.hello_timeout).await?;
        match Welcome::decode(&head, text)? {
            Welcome::Accepted { checksums, .. } => Ok((stream, checksums)),
            Welcome::Refused { reason, .. } => Err(Fault::Refused(reason)),
        }
    }

    pub fn error(&self, what: &str, fault: Fault) -> TransportError {
        let (peer, what) = (self.peer.clone(), what.to_owned());
        match fault {
            Fault::Deadline(deadline) => TransportError::NoAnswer { peer, what, deadline },
            Fault::Refused(reason) => TransportError::Refused { peer, what, reason },
            other => TransportError::Broken {
                peer,
                what,
                reason: other.to_string(),
            },
        }
    }
}

/// Lanes of one kind: as many as there are permits, opened when needed.
struct LanePool {
    permits: Semaphore,
    idle: Mutex<Vec<Lane>>,
    progress: Progress,
}

/// The use of one lane. Dropped before its [`end`](Self::end), it takes the lane with it.
struct Turn<'a> {
    pool: &'a LanePool,
    lane: Lane,
    _permit: SemaphorePermit<'a>,
}

impl LanePool {
    fn new(lanes: usize) -> Self {
        Self {
            permits: Semaphore::new(lanes),
            idle: Mutex::default(),
            progress: Progress::new(),
        }
    }

    async fn open_all(&self, dialer: &Dialer) -> Result<(), TransportError> {
        for _ in 0..self.permits.available_permits() {
            let lane = Lane::open(dialer)
                .await
                .map_err(|fault| dialer.error("a lane", fault))?;
            lock(&self.idle).push(lane);
        }
        Ok(())
    }

    /// Waits for a lane as long as the others get on.
    async fn turn(&self, dialer: &Dialer) -> Result<Turn<'_>, Fault> {
        let deadline = dialer.settings.deadline;
        let permit = match self.progress.wait(deadline, self.permits.acquire()).await {
            Some(Ok(permit)) => permit,
            Some(Err(_)) => return Err(Fault::Closed),
            None => return Err(Fault::Deadline(deadline)),
        };
        let epoch = dialer.local.membership_epoch();
        let mut idle = std::iter::from_fn(|| lock(&self.idle).pop());
        let idle = idle.find(|lane| lane.is_idle() && lane.membership_epoch == epoch);
        let lane = match idle {
            Some(lane) => lane,
            None => Lane::open(dialer).await?,
        };
        Ok(Turn {
            pool: self,
            lane,
            _permit: permit,
        })
    }
}

impl Turn<'_> {
    /// Gives the lane back unless it is out of step with the peer.
    fn end<T>(self, result: &Result<T, Fault>) {
        if matches!(result, Ok(_) | Err(Fault::Refused(_))) {
            lock(&self.pool.idle).push(self.lane);
        }
    }
}

/// One connection that answers requests.
struct Lane {
    stream: BufReader<TcpStream>,
    checksums: bool,
    /// The membership that it was opened in; the peer refuses requests on a lane of an earlier one.
    membership_epoch: u64,
    next_request: u64,
    request: Vec<u8>,
    /// The rows of the last reply frame, as they came.
    rows: Vec<u8>,
}

impl Lane {
    async fn open(dialer: &Dialer) -> Result<Self, Fault> {
        let membership_epoch = dialer.local.membership_epoch();
        let (stream, checksums) = dialer.dial(LanePurpose::Reads, membership_epoch).await?;
        Ok(Self {
            membership_epoch,
            stream: BufReader::with_capacity(READ_AHEAD, stream),
            checksums,
            next_request: 0,
            request: Vec::new(),
            rows: Vec::new(),
        })
    }

    /// Whether the peer has neither closed the lane nor sent something that nobody asked for.
    fn is_idle(&self) -> bool {
        let nothing = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        self.stream.buffer().is_empty() && self.stream.get_ref().try_read(&mut [0]).is_err_and(nothing)
    }

    async fn fetch_rows(
        &mut self,
        dialer: &Dialer,
        caller: Caller,
        owner: PartId,
        rows: &[u32],
        sink: &mut dyn RowSink,
        progress: &Progress,
    ) -> Result<(), Fault> {
        start_frame(&mut self.request);
        RowsRequest::put(&mut self.request, caller, owner, rows);
        let id = self.ask(dialer, FrameKind::RowsRequest, caller.period).await?;
        let mut done = 0;
        let mut row_bytes = None;
        loop {
            let header = self.reply_header(dialer, id, FrameKind::Rows).await?;
            let amount = row_amount(&header, row_bytes, rows.len() - done, dialer.settings.chunk_bytes)?;
            row_bytes = Some(header.number);
            if self.rows.len() < header.body_bytes {
                self.rows.resize(header.body_bytes, 0);
            }
            let arriving = &mut self.rows[..header.body_bytes];
            link::read_exact(&mut self.stream, arriving, dialer.settings.deadline).await?;
            header.verify(self.checksums, || crc32c::crc32c(arriving))?;
            progress.note();
            dialer.local.wire().rows_arrived(caller, header.body_bytes as u64);
            if amount > 0 {
                sink.accept(done, arriving);
            }
            done += amount;
            if done == rows.len() {
                return Ok(());
            }
        }
    }

    async fn sample(
        &mut self,
        dialer: &Dialer,
        caller: Caller,
        owner: PartId,
        queries: &[NeighborQuery],
        progress: &Progress,
    ) -> Result<Vec<NeighborReply>, Fault> {
        start_frame(&mut self.request);
        SampleRequest::put(&mut self.request, caller, owner, queries);
        let id = self.ask(dialer, FrameKind::SampleRequest, caller.period).await?;
        let limit = most_words(queries).min(dialer.settings.max_sample_bytes / 4);
        let mut words: Vec<u32> = Vec::new();
        loop {
            let header = self.reply_header(dialer, id, FrameKind::Samples).await?;
            let total = header.number as usize;
            let arriving = header.body_bytes / 4;
            if total > limit {
                return Err(ProtocolError::WrongAmount {
                    expected: limit,
                    found: total,
                }
                .into());
            }
            let wrong = words.len() + arriving > total || (arriving == 0 && total > 0);
            if wrong || !header.body_bytes.is_multiple_of(4) {
                return Err(ProtocolError::Misshapen { kind: header.kind }.into());
            }
            header.limit(dialer.settings.chunk_bytes.max(4))?;
            let start = words.len();
            words.resize(start + arriving, 0);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words[start..]);
            link::read_exact(&mut self.stream, bytes, dialer.settings.deadline).await?;
            header.verify(self.checksums, || crc32c::crc32c(bytes))?;
            words_from_wire(&mut words[start..]);
            progress.note();
            if words.len() == total {
                return Ok(replies_from_words(queries, &words)?);
            }
        }
    }

    /// Sends the request that was put into the buffer, and gives it an id.
    async fn ask(&mut self, dialer: &Dialer, kind: FrameKind, period: Period) -> Result<u64, Fault> {
        let body_bytes = self.request.len() - super::frame::HEADER_BYTES;
        let limit = dialer.settings.max_request_bytes;
        if body_bytes > limit {
            self.request = Vec::new();
            return Err(Fault::Refused(format!(
                "the request takes {body_bytes} bytes, the limit is {limit}; ask for fewer at a time"
            )));
        }
        self.next_request += 1;
        let id = self.next_request;
        finish_frame(&mut self.request, kind, id, 0, self.checksums);
        let (deadline, wire) = (dialer.settings.deadline, dialer.local.wire());
        let written = link::write_all(self.stream.get_mut(), &self.request, deadline, wire, period).await;
        if self.request.capacity() > KEPT_BYTES {
            self.request = Vec::new();
        }
        written.map(|()| id)
    }

    /// The header of a frame that answers request `id`; a refusal is read in full and becomes an error.
    async fn reply_header(&mut self, dialer: &Dialer, id: u64, expected: FrameKind) -> Result<FrameHeader, Fault> {
        let deadline = dialer.settings.deadline;
        let header = link::read_header(&mut self.stream, deadline).await?;
        if header.request != id {
            return Err(ProtocolError::WrongRequest {
                expected: id,
                found: header.request,
            }
            .into());
        }
        if header.kind == FrameKind::Refusal {
            header.limit(MAX_REASON_BYTES)?;
            let mut reason = vec![0; header.body_bytes];
            link::read_exact(&mut self.stream, &mut reason, deadline).await?;
            header.verify(self.checksums, || crc32c::crc32c(&reason))?;
            return Err(Fault::Refused(String::from_utf8_lossy(&reason).into_owned()));
        }
        if header.kind != expected {
            return Err(ProtocolError::Unexpected { kind: header.kind }.into());
        }
        Ok(header)
    }
}

/// Rows in a frame that says it is part of a reply of which `left` rows are to come, checked before a byte is allocated.
fn row_amount(
    header: &FrameHeader,
    agreed: Option<u32>,
    left: usize,
    chunk_bytes: usize,
) -> Result<usize, ProtocolError> {
    let misshapen = ProtocolError::Misshapen { kind: header.kind };
    let row_bytes = header.number as usize;
    if row_bytes > MAX_ROW_BYTES || agreed.is_some_and(|agreed| agreed != header.number) {
        return Err(misshapen);
    }
    header.limit(chunk_bytes.max(row_bytes))?;
    if row_bytes == 0 || !header.body_bytes.is_multiple_of(row_bytes) {
        return Err(misshapen);
    }
    let amount = header.body_bytes / row_bytes;
    if amount > left || (amount == 0 && left > 0) {
        return Err(ProtocolError::WrongAmount {
            expected: left,
            found: amount,
        });
    }
    Ok(amount)
}

/// Words of the longest answer to `queries`.
fn most_words(queries: &[NeighborQuery]) -> usize {
    queries.iter().fold(0, |sum: usize, query| {
        let per_row = (query.fanout as usize).saturating_add(1);
        sum.saturating_add(query.rows.len().saturating_mul(per_row))
    })
}
