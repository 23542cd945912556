//! The frames of a lane: a header of 24 bytes and a body, little endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | bytes of the body |
//! | 4 | [`FrameKind`] |
//! | 5 | flags; bit 0: the checksum is set |
//! | 6..8 | zero |
//! | 8..16 | id of the request |
//! | 16..20 | a number whose meaning depends on the kind |
//! | 20..24 | CRC-32C of the body, or zero |

use greengnn_model::book::{PartId, Rank};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::sampling::{NeighborQuery, NeighborReply};

use super::{Caller, ParcelKind, ParcelTag};

pub(crate) const HEADER_BYTES: usize = 24;
const CHECKSUMMED: u8 = 1;

/// Bytes of a refusal's reason at most.
pub(crate) const MAX_REASON_BYTES: usize = 1024;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Caller, owner and row ids.
    RowsRequest = 1,
    /// Caller, owner and queries.
    SampleRequest = 2,
    /// Caller, addressee, tag and payload. Not answered.
    Parcel = 3,
    /// Caller and owner. Answered by a stream of Rows.
    StreamOpen = 4,
    /// Deliveries of a stream; the number is 1 if they are its last.
    Schedule = 5,
    /// No body; the number is that of rows that may be sent besides.
    Credit = 6,
    /// Whole encoded feature rows; the number is the bytes of one.
    Rows = 16,
    /// Words of sampled neighbours; the number is that of all words of the reply.
    Samples = 17,
    /// Why a request was not answered; the number is a [`RefusalCode`].
    Refusal = 18,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<Self> {
        [
            Self::RowsRequest,
            Self::SampleRequest,
            Self::Parcel,
            Self::StreamOpen,
            Self::Schedule,
            Self::Credit,
            Self::Rows,
            Self::Samples,
            Self::Refusal,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == code)
    }
}

/// A peer that does not speak the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    #[error("unknown flags {0:#x}")]
    UnknownFlags(u8),
    #[error("a {kind:?} frame where none belongs")]
    Unexpected { kind: FrameKind },
    #[error("a {kind:?} frame of {bytes} bytes, the limit is {limit}")]
    TooLong {
        kind: FrameKind,
        bytes: usize,
        limit: usize,
    },
    #[error("a {kind:?} frame whose body ends early or goes on too long")]
    Misshapen { kind: FrameKind },
    #[error("a reply to request {found} instead of {expected}")]
    WrongRequest { expected: u64, found: u64 },
    #[error("a frame whose checksum is {found:#010x} instead of {expected:#010x}: the bytes were damaged on the way")]
    Checksum { expected: u32, found: u32 },
    #[error("a frame without the checksum that was agreed on")]
    ChecksumMissing,
    #[error("{found} values where the request allows {expected}")]
    WrongAmount { expected: usize, found: usize },
    #[error("{0}")]
    Greeting(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub kind: FrameKind,
    pub body_bytes: usize,
    pub request: u64,
    pub number: u32,
    pub checksum: Option<u32>,
}

impl FrameHeader {
    /// The header of `body`.
    pub fn of(kind: FrameKind, request: u64, number: u32, body: &[u8], checksums: bool) -> Self {
        Self {
            kind,
            body_bytes: body.len(),
            request,
            number,
            checksum: checksums.then(|| crc32c::crc32c(body)),
        }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(self.body_bytes as u32).to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = if self.checksum.is_some() { CHECKSUMMED } else { 0 };
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..].copy_from_slice(&self.checksum.unwrap_or(0).to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = FrameKind::from_code(bytes[4]).ok_or(ProtocolError::UnknownKind(bytes[4]))?;
        if bytes[5] & !CHECKSUMMED != 0 || bytes[6] != 0 || bytes[7] != 0 {
            return Err(ProtocolError::UnknownFlags(bytes[5]));
        }
        Ok(Self {
            kind,
            body_bytes: word(0) as usize,
            request: u64::from(word(8)) | u64::from(word(12)) << 32,
            number: word(16),
            checksum: (bytes[5] & CHECKSUMMED != 0).then(|| word(20)),
        })
    }

    /// Refuses a body that is longer than `limit`, before anything is allocated for it.
    pub fn limit(&self, limit: usize) -> Result<(), ProtocolError> {
        if self.body_bytes > limit {
            return Err(ProtocolError::TooLong {
                kind: self.kind,
                bytes: self.body_bytes,
                limit,
            });
        }
        Ok(())
    }

    /// Compares the checksum, if one was agreed on, with `found`, which is computed only then.
    pub fn verify(&self, agreed: bool, found: impl FnOnce() -> u32) -> Result<(), ProtocolError> {
        match self.checksum {
            None if agreed => Err(ProtocolError::ChecksumMissing),
            None => Ok(()),
            Some(expected) => {
                let found = found();
                if found == expected {
                    Ok(())
                } else {
                    Err(ProtocolError::Checksum { expected, found })
                }
            }
        }
    }
}

/// Why a request was refused, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCode {
    UnknownPart = 1,
    BadRequest = 2,
    StaleMembership = 3,
    ParcelUndeliverable = 4,
}

/// Starts a frame in `buffer`, which then holds the place of the header alone. [`finish_frame`] completes it.
pub(crate) fn start_frame(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
}

/// Writes the header in front of the body that was put behind [`start_frame`].
pub(crate) fn finish_frame(buffer: &mut [u8], kind: FrameKind, request: u64, number: u32, checksums: bool) {
    let (header, body) = buffer.split_at_mut(HEADER_BYTES);
    header.copy_from_slice(&FrameHeader::of(kind, request, number, body, checksums).encode());
}

/// Appends words in little-endian order.
pub(crate) fn put_words(buffer: &mut Vec<u8>, words: &[u32]) {
    if cfg!(target_endian = "little") {
        buffer.extend_from_slice(bytemuck::cast_slice(words));
    } else {
        buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
}

/// Turns words that were read as raw little-endian bytes into this machine's order.
pub(crate) fn words_from_wire(words: &mut [u32]) {
    if cfg!(target_endian = "big") {
        words.iter_mut().for_each(|word| *word = word.swap_bytes());
    }
}

/// Words from little-endian bytes; a remainder is left out.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    let (whole, _) = bytes.as_chunks::<4>();
    whole.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A question for rows: who asks, which part, which rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowsRequest {
    pub caller: Caller,
    pub owner: PartId,
    pub rows: Vec<u32>,
}

impl RowsRequest {
    pub fn put(buffer: &mut Vec<u8>, caller: Caller, owner: PartId, rows: &[u32]) {
        put_caller(buffer, caller);
        buffer.extend(owner.to_le_bytes());
        put_words(buffer, rows);
    }

    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut fields = Fields::new(FrameKind::RowsRequest, body);
        Ok(Self {
            caller: fields.caller()?,
            owner: fields.u16()?,
            rows: fields.words(fields.left() / 4)?,
        })
        .and_then(|request| fields.end().map(|()| request))
    }
}

/// A question for neighbours: who asks, which part, which queries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SampleRequest {
    pub caller: Caller,
    pub owner: PartId,
    pub queries: Vec<NeighborQuery>,
}

impl SampleRequest {
    pub fn put(buffer: &mut Vec<u8>, caller: Caller, owner: PartId, queries: &[NeighborQuery]) {
        put_caller(buffer, caller);
        buffer.extend(owner.to_le_bytes());
        for query in queries {
            buffer.extend(query.key.to_le_bytes());
            buffer.extend(query.fanout.to_le_bytes());
            buffer.extend((query.rows.len() as u32).to_le_bytes());
            put_words(buffer, &query.rows);
        }
    }

    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut fields = Fields::new(FrameKind::SampleRequest, body);
        let (caller, owner) = (fields.caller()?, fields.u16()?);
        let mut queries = Vec::new();
        while fields.left() > 0 {
            let (key, fanout, rows) = (fields.u64()?, fields.u32()?, fields.u32()?);
            queries.push(NeighborQuery {
                key,
                fanout,
                rows: fields.words(rows as usize)?,
            });
        }
        Ok(Self { caller, owner, queries })
    }
}

/// The words that answer a [`SampleRequest`]: per query the counts of all its rows, then their picks.
pub(crate) fn sample_words(replies: &[NeighborReply]) -> impl Iterator<Item = &[u32]> {
    replies
        .iter()
        .flat_map(|reply| [&reply.counts[..], &reply.neighbors[..]])
}

/// The inverse of [`sample_words`] for a known question.
pub(crate) fn replies_from_words(
    queries: &[NeighborQuery],
    words: &[u32],
) -> Result<Vec<NeighborReply>, ProtocolError> {
    let misshapen = ProtocolError::Misshapen {
        kind: FrameKind::Samples,
    };
    let mut rest = words;
    let mut replies = Vec::with_capacity(queries.len());
    for query in queries {
        let (counts, after) = rest.split_at_checked(query.rows.len()).ok_or(misshapen.clone())?;
        if counts.iter().any(|count| *count > query.fanout) {
            return Err(misshapen);
        }
        let picks: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let picks = usize::try_from(picks).map_err(|_| misshapen.clone())?;
        let (neighbors, after) = after.split_at_checked(picks).ok_or(misshapen.clone())?;
        replies.push(NeighborReply {
            counts: counts.to_vec(),
            neighbors: neighbors.to_vec(),
        });
        rest = after;
    }
    if rest.is_empty() { Ok(replies) } else { Err(misshapen) }
}

/// The head of a parcel's body; the payload follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParcelHead {
    pub from: Rank,
    pub to: Rank,
    pub tag: ParcelTag,
    pub period: Period,
}

impl ParcelHead {
    pub const BYTES: usize = 18;

    pub fn put(&self, buffer: &mut Vec<u8>) {
        put_caller(
            buffer,
            Caller {
                rank: self.from,
                period: self.period,
            },
        );
        buffer.extend(self.to.to_le_bytes());
        buffer.extend(self.tag.epoch.to_le_bytes());
        buffer.extend(self.tag.step.to_le_bytes());
        buffer.push(parcel_kind_code(self.tag.kind));
    }

    pub fn parse(body: &[u8; Self::BYTES]) -> Result<Self, ProtocolError> {
        let mut fields = Fields::new(FrameKind::Parcel, body);
        let Caller { rank: from, period } = fields.caller()?;
        let to = fields.u16()?;
        let (epoch, step) = (fields.u32()?, fields.u32()?);
        let kind = parcel_kind(fields.u8()?).ok_or(fields.misshapen())?;
        Ok(Self {
            from,
            to,
            tag: ParcelTag { epoch, step, kind },
            period,
        })
    }
}

const PHASES: [Phase; 3] = [Phase::Setup, Phase::Training, Phase::Evaluation];

pub(crate) fn phase_code(phase: Phase) -> u8 {
    match phase {
        Phase::Setup => 0,
        Phase::Training => 1,
        Phase::Evaluation => 2,
    }
}

pub(crate) fn phase_of_code(code: u8) -> Option<Phase> {
    PHASES.get(usize::from(code)).copied()
}

const PARCEL_KINDS: [ParcelKind; 13] = [
    ParcelKind::GradientSlice,
    ParcelKind::GradientSum,
    ParcelKind::LabelCounts,
    ParcelKind::Parameters,
    ParcelKind::Evaluation,
    ParcelKind::Degrees,
    ParcelKind::Columns,
    ParcelKind::OutermostBlock,
    ParcelKind::PartialSums,
    ParcelKind::SumsGradient,
    ParcelKind::Inclusion,
    ParcelKind::Probe,
    ParcelKind::Choice,
];

fn parcel_kind_code(kind: ParcelKind) -> u8 {
    match kind {
        ParcelKind::GradientSlice => 0,
        ParcelKind::GradientSum => 1,
        ParcelKind::LabelCounts => 2,
        ParcelKind::Parameters => 3,
        ParcelKind::Evaluation => 4,
        ParcelKind::Degrees => 5,
        ParcelKind::Columns => 6,
        ParcelKind::OutermostBlock => 7,
        ParcelKind::PartialSums => 8,
        ParcelKind::SumsGradient => 9,
        ParcelKind::Inclusion => 10,
        ParcelKind::Probe => 11,
        ParcelKind::Choice => 12,
    }
}

fn parcel_kind(code: u8) -> Option<ParcelKind> {
    PARCEL_KINDS.get(usize::from(code)).copied()
}

/// Seven bytes.
pub(crate) fn put_caller(buffer: &mut Vec<u8>, caller: Caller) {
    buffer.extend(caller.rank.to_le_bytes());
    buffer.extend(caller.period.epoch.to_le_bytes());
    buffer.push(phase_code(caller.period.phase));
}

/// Takes the fields of a body one after the other.
pub(crate) struct Fields<'a> {
    kind: FrameKind,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(kind: FrameKind, rest: &'a [u8]) -> Self {
        Self { kind, rest }
    }

    fn misshapen(&self) -> ProtocolError {
        ProtocolError::Misshapen { kind: self.kind }
    }

    fn left(&self) -> usize {
        self.rest.len()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (field, rest) = self.rest.split_first_chunk().ok_or(self.misshapen())?;
        self.rest = rest;
        Ok(*field)
    }

    fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, ProtocolError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Allocates no more than the body that is there.
    fn words(&mut self, count: usize) -> Result<Vec<u32>, ProtocolError> {
        let bytes = count.checked_mul(4).ok_or(self.misshapen())?;
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(self.misshapen())?;
        self.rest = rest;
        Ok(words(taken))
    }

    pub fn caller(&mut self) -> Result<Caller, ProtocolError> {
        let (rank, epoch, phase) = (self.u16()?, self.u32()?, self.u8()?);
        let phase = phase_of_code(phase).ok_or(self.misshapen())?;
        Ok(Caller {
            rank,
            period: Period { epoch, phase },
        })
    }

    pub fn end(&self) -> Result<(), ProtocolError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.misshapen())
        }
    }
}

#[cfg(test)]
mod tests;
