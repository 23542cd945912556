//! The lane that carries parcels to one peer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Parcel;
use super::client::Dialer;
use super::frame::{FrameHeader, FrameKind, HEADER_BYTES, MAX_REASON_BYTES, ParcelHead, ProtocolError, start_frame};
use super::link::{self, Fault, Progress, Task};
use crate::shard::lock;

/// Parcels up to this size are copied behind their header and sent in one write.
const JOINED_BYTES: usize = 64 << 10;

/// One connection on which parcels go out in the order in which they were posted. Nothing is acknowledged, so that a
/// lane that broke stays broken: parcels on their way may be lost, and a silent replacement would hide that.
pub(super) struct ParcelLane {
    /// Empty while a parcel is being written, and for good once one was written in part.
    writer: tokio::sync::Mutex<Option<OwnedWriteHalf>>,
    checksums: bool,
    progress: Progress,
    /// Why the peer ended the lane.
    ended: Arc<Mutex<Option<String>>>,
    _watch: Task,
}

impl ParcelLane {
    pub fn new(stream: TcpStream, checksums: bool, dialer: &Dialer) -> Self {
        let (reader, writer) = stream.into_split();
        let ended = Arc::new(Mutex::new(None));
        let watch = watch(reader, Arc::clone(&ended), dialer.settings.deadline);
        Self {
            writer: tokio::sync::Mutex::new(Some(writer)),
            checksums,
            progress: Progress::new(),
            ended,
            _watch: Task::spawn(watch),
        }
    }

    /// Hands a parcel to the kernel.
    pub async fn post(&self, parcel: &Parcel, dialer: &Dialer) -> Result<(), Fault> {
        let settings = &dialer.settings;
        if parcel.payload.len() > settings.max_parcel_bytes {
            return Err(Fault::Refused(format!(
                "the parcel takes {} bytes, the limit is {}",
                parcel.payload.len(),
                settings.max_parcel_bytes
            )));
        }
        let turn = self.progress.wait(settings.deadline, self.writer.lock()).await;
        let Some(mut place) = turn else {
            return Err(Fault::Deadline(settings.deadline));
        };
        if let Some(reason) = lock(&self.ended).clone() {
            return Err(Fault::Ended(reason));
        }
        // Taken out, so that a caller who gives up half-way leaves no lane in the middle of a parcel.
        let Some(mut writer) = place.take() else {
            return Err(Fault::Ended("a parcel before this one was not sent in full".into()));
        };
        let mut frame = self.head(parcel);
        let joined = parcel.payload.len() <= JOINED_BYTES;
        if joined {
            frame.extend_from_slice(&parcel.payload);
        }
        let rest = if joined { &[][..] } else { &parcel.payload[..] };
        for bytes in [&frame[..], rest] {
            for stride in bytes.chunks(link::STRIDE) {
                let wire = dialer.local.wire();
                let written = link::write_all(&mut writer, stride, settings.deadline, wire, parcel.period).await;
                written.map_err(|fault| self.explain(fault))?;
                self.progress.note();
            }
        }
        *place = Some(writer);
        Ok(())
    }

    /// Header and head of a parcel's frame.
    fn head(&self, parcel: &Parcel) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER_BYTES + ParcelHead::BYTES + parcel.payload.len().min(JOINED_BYTES));
        start_frame(&mut frame);
        let head = ParcelHead {
            from: parcel.from,
            to: parcel.to,
            tag: parcel.tag,
            period: parcel.period,
        };
        head.put(&mut frame);
        let checksum = self
            .checksums
            .then(|| crc32c::crc32c_append(crc32c::crc32c(&frame[HEADER_BYTES..]), &parcel.payload));
        let header = FrameHeader {
            kind: FrameKind::Parcel,
            body_bytes: ParcelHead::BYTES + parcel.payload.len(),
            request: 0,
            number: 0,
            checksum,
        };
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
        frame
    }

    /// A failed write says little when the peer has said why it ended the lane.
    fn explain(&self, fault: Fault) -> Fault {
        match (fault, lock(&self.ended).clone()) {
            (Fault::Io(_) | Fault::Closed, Some(reason)) => Fault::Ended(reason),
            (fault, _) => fault,
        }
    }
}

/// Waits for the peer's last word. It says nothing on this lane but why it ends it.
async fn watch(mut reader: OwnedReadHalf, ended: Arc<Mutex<Option<String>>>, deadline: Duration) {
    let reason = match last_word(&mut reader, deadline).await {
        Ok(reason) => reason,
        Err(fault) => fault.to_string(),
    };
    *lock(&ended) = Some(reason);
}

async fn last_word(reader: &mut OwnedReadHalf, deadline: Duration) -> Result<String, Fault> {
    let Some(header) = link::next_header(reader, deadline).await? else {
        return Err(Fault::Closed);
    };
    if header.kind != FrameKind::Refusal {
        return Err(ProtocolError::Unexpected { kind: header.kind }.into());
    }
    header.limit(MAX_REASON_BYTES)?;
    let mut reason = vec![0; header.body_bytes];
    link::read_exact(reader, &mut reason, deadline).await?;
    Ok(String::from_utf8_lossy(&reason).into_owned())
}
