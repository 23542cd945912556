//! A TCP stream that is read and written frame by frame, every wait bounded and every byte counted.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greengnn_model::counters::Period;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::frame::{FrameHeader, HEADER_BYTES, ProtocolError};
use crate::shard::WireLedger;

/// Bytes that are handed to the kernel, or asked of it, under one deadline.
pub(crate) const STRIDE: usize = 1 << 20;

/// Why a stream is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("no progress for {} s", .0.as_secs_f32())]
    Deadline(Duration),
    #[error("the other end closed it")]
    Closed,
    /// The other end said why before it closed the stream, or this end had to give the stream up.
    #[error("{0}")]
    Ended(String),
    #[error("{0}")]
    Io(#[source] io::Error),
    #[error("the other end sent {0}")]
    Protocol(#[from] ProtocolError),
    /// A well-formed request that was turned down.
    #[error("{0}")]
    Refused(String),
    #[error("a task of this process failed: {0}")]
    Internal(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Fault::Closed
        } else {
            Fault::Io(error)
        }
    }
}

/// Sends small frames at once, and notices a peer that has vanished without a word.
pub(crate) fn configure(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(silence))?;
    let probe = (silence / 4).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new()
        .with_time(probe)
        .with_interval(probe)
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)
}

/// Writes all of `bytes`, charged to `period`; each stride must be taken within `deadline`.
pub(crate) async fn write_all(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    deadline: Duration,
    wire: &WireLedger,
    period: Period,
) -> Result<(), Fault> {
    let mut charge = Charge::new(wire, period, bytes.len());
    while charge.unwritten > 0 {
        let start = bytes.len() - charge.unwritten;
        let stride = &bytes[start..bytes.len().min(start + STRIDE)];
        match timeout(deadline, stream.write(stride)).await {
            Err(_) => return Err(Fault::Deadline(deadline)),
            Ok(Ok(0)) => return Err(Fault::Closed),
            Ok(count) => charge.unwritten -= count?,
        }
    }
    Ok(())
}

/// Bytes that are charged before they are written, so that whoever has read them finds them counted. What was not
/// written, because of a failure or because the writer was dropped, is taken back.
struct Charge<'a> {
    wire: &'a WireLedger,
    period: Period,
    unwritten: usize,
}

impl<'a> Charge<'a> {
    fn new(wire: &'a WireLedger, period: Period, bytes: usize) -> Self {
        wire.charge(period, bytes as u64);
        Self {
            wire,
            period,
            unwritten: bytes,
        }
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.wire.take_back(self.period, self.unwritten as u64);
    }
}

/// Fills `bytes`; each stride must come within `deadline`.
pub(crate) async fn read_exact(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut [u8],
    deadline: Duration,
) -> Result<(), Fault> {
    for stride in bytes.chunks_mut(STRIDE) {
        match timeout(deadline, stream.read_exact(stride)).await {
            Err(_) => return Err(Fault::Deadline(deadline)),
            Ok(result) => result?,
        };
    }
    Ok(())
}

/// Reads `length` bytes into `buffer`, in place of what it holds. Memory grows as bytes come, so that a length alone
/// costs nothing.
pub(crate) async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    length: usize,
    deadline: Duration,
) -> Result<(), Fault> {
    buffer.clear();
    while buffer.len() < length {
        let start = buffer.len();
        buffer.resize(length.min(start + STRIDE), 0);
        read_exact(stream, &mut buffer[start..], deadline).await?;
    }
    Ok(())
}

/// Reads the header of a frame that must come within `deadline`.
pub(crate) async fn read_header(
    stream: &mut (impl AsyncRead + Unpin),
    deadline: Duration,
) -> Result<FrameHeader, Fault> {
    let mut bytes = [0; HEADER_BYTES];
    read_exact(stream, &mut bytes, deadline).await?;
    Ok(FrameHeader::decode(&bytes)?)
}

/// Waits without limit for the first byte of a frame, then reads its header; none when the peer has closed the stream.
pub(crate) async fn next_header(
    stream: &mut (impl AsyncRead + Unpin),
    deadline: Duration,
) -> Result<Option<FrameHeader>, Fault> {
    let mut bytes = [0; HEADER_BYTES];
    if stream.read(&mut bytes[..1]).await? == 0 {
        return Ok(None);
    }
    read_exact(stream, &mut bytes[1..], deadline).await?;
    Ok(Some(FrameHeader::decode(&bytes)?))
}

/// Says that no more will be written, and takes in what still comes for up to a second: a socket that is closed with
/// unread bytes resets the connection, and the peer might not see the last frame.
pub(crate) async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let _ = timeout(Duration::from_secs(1), async {
        stream.shutdown().await?;
        tokio::io::copy(stream, &mut tokio::io::sink()).await
    })
    .await;
}

/// When a peer last did something, over all its lanes of one kind.
///
/// A request that waits for its turn behind others fails when none of them gets anywhere, not when its turn is late.
#[derive(Debug)]
pub(crate) struct Progress {
    origin: Instant,
    last_micros: AtomicU64,
}

impl Progress {
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
            last_micros: AtomicU64::new(0),
        }
    }

    pub fn note(&self) {
        let now = self.origin.elapsed().as_micros() as u64;
        self.last_micros.fetch_max(now, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.origin + Duration::from_micros(self.last_micros.load(Ordering::Relaxed))
    }

    /// Waits for `turn` as long as there is progress; none after `deadline` without any.
    pub async fn wait<T>(&self, deadline: Duration, turn: impl Future<Output = T>) -> Option<T> {
        let started = Instant::now();
        tokio::pin!(turn);
        loop {
            let until = started.max(self.last()) + deadline;
            if let Ok(output) = timeout_at(until, &mut turn).await {
                return Some(output);
            }
            if started.max(self.last()) + deadline <= Instant::now() {
                return None;
            }
        }
    }
}

/// A task that ends when its handle is dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Ends the task and waits until it is gone.
    pub async fn stop(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
