//! Peers that break the protocol, from either side.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use greengnn_model::row_type::RowType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::super::frame::{FrameHeader, FrameKind, RowsRequest, finish_frame, start_frame};
use super::super::hello::{Hello, LanePurpose, Welcome};
use super::super::link::Task;
use super::super::testing::{Machine, V4, settings, shard};
use super::super::*;
use super::{Rows, caller};

/// A listener that greets as it should and then does what a test wants.
pub(super) struct Impostor {
    address: SocketAddr,
    _accepting: Task,
}

impl Impostor {
    pub const NAME: &str = "impostor";

    pub async fn silent_after_greeting(ip: IpAddr) -> Self {
        Self::start(ip, |stream| async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        })
        .await
    }

    async fn start<F>(ip: IpAddr, behave: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(SocketAddr::new(ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = Task::spawn(async move {
            let mut connections = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let hello = Hello::HEAD_BYTES + "asking".len();
                stream.read_exact(&mut vec![0; hello]).await.unwrap();
                let welcome = Welcome::Accepted {
                    checksums: false,
                    machine: MachineId::new(Self::NAME, 1),
                };
                stream.write_all(&welcome.encode()).await.unwrap();
                connections.push(Task::spawn(behave(stream)));
            }
        });
        Self {
            address,
            _accepting: accepting,
        }
    }

    /// One that answers the first request on each lane with `bytes` and is silent afterwards.
    async fn answering(bytes: Vec<u8>) -> Self {
        let bytes = Arc::new(bytes);
        Self::start(V4, move |mut stream| {
            let bytes = Arc::clone(&bytes);
            async move {
                let _ = stream.read(&mut [0; 1000]).await;
                let _ = stream.write_all(&bytes).await;
                std::future::pending::<()>().await;
            }
        })
        .await
    }

    pub async fn lanes(&self, local: &Arc<Hosted>, settings: &LaneSettings) -> Arc<LaneClient> {
        let tickets = TicketStack::new(vec![Ticket::from_bytes([1; 32]); 20]);
        let client = LaneClient::connect(Self::NAME, self.address, tickets, Arc::clone(local), settings.clone());
        Arc::new(client.await.unwrap())
    }

    /// What a client gets that asks for two rows.
    async fn asked_for_two_rows(&self, settings: &LaneSettings) -> Result<Vec<f32>, TransportError> {
        let local = Arc::new(Hosted::new(MachineId::new("asking", 1)));
        let client = self.lanes(&local, settings).await;
        let mut rows = Rows::default();
        client.fetch_rows(caller(), 0, &[0, 1], &mut rows).await?;
        Ok(rows.0)
    }
}

/// A frame of f32 rows `width` wide that answers the first request of a lane.
fn rows_frame(width: u32, values: &[f32]) -> Vec<u8> {
    let mut frame = Vec::new();
    start_frame(&mut frame);
    frame.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    finish_frame(&mut frame, FrameKind::Rows, 1, width * 4, false);
    frame
}

#[tokio::test]
async fn replies_that_do_not_fit_the_question_break_the_lane() {
    let good = rows_frame(2, &[1.0, 2.0, 3.0, 4.0]);
    let impostor = Impostor::answering(good.clone()).await;
    assert_eq!(
        impostor.asked_for_two_rows(&settings()).await.unwrap(),
        [1.0, 2.0, 3.0, 4.0]
    );

    let header = |change: fn(&mut FrameHeader)| {
        let mut header = FrameHeader::decode(good.first_chunk().unwrap()).unwrap();
        change(&mut header);
        header.encode().to_vec()
    };
    let cases = [
        ("garbage", vec![0xAB; 64]),
        ("a huge length", header(|header| header.body_bytes = u32::MAX as usize)),
        ("a huge width", header(|header| header.number = u32::MAX)),
        ("a width of nothing", header(|header| header.number = 0)),
        ("another request's id", header(|header| header.request = 2)),
        (
            "a frame for another kind of request",
            header(|header| header.kind = FrameKind::Samples),
        ),
        (
            "damaged rows",
            [header(|header| header.checksum = Some(1)), good[24..].to_vec()].concat(),
        ),
        ("half a row", rows_frame(2, &[1.0, 2.0, 3.0])),
        ("three rows", rows_frame(2, &[0.0; 6])),
        ("a frame of no rows", rows_frame(2, &[])),
        (
            "two widths",
            [rows_frame(2, &[1.0, 2.0]), rows_frame(1, &[1.0])].concat(),
        ),
    ];
    for (what, bytes) in cases {
        let broken = Impostor::answering(bytes).await.asked_for_two_rows(&settings()).await;
        let named = matches!(&broken, Err(TransportError::Broken { peer, .. }) if peer == Impostor::NAME);
        assert!(named, "{what}: {broken:?}");
    }
}

#[tokio::test]
async fn a_peer_that_stops_in_the_middle_of_a_reply_is_named_in_time() {
    let frame = rows_frame(2, &[1.0, 2.0, 3.0, 4.0]);
    let impostor = Impostor::answering(frame[..frame.len() - 3].to_vec()).await;
    let deadline = Duration::from_millis(300);
    let silent = impostor
        .asked_for_two_rows(&LaneSettings { deadline, ..settings() })
        .await;
    let error = silent.unwrap_err().to_string();
    assert_eq!(error, "impostor did not answer 2 feature rows of part 0 within 0.3 s");
}

#[tokio::test]
async fn a_peer_that_reads_nothing_bounds_the_wait_for_requests_and_parcels() {
    let impostor = Impostor::silent_after_greeting(V4).await;
    let impatient = LaneSettings {
        deadline: Duration::from_millis(300),
        ..settings()
    };
    let local = Arc::new(Hosted::new(MachineId::new("asking", 1)));
    let client = impostor.lanes(&local, &impatient).await;
    // More than the kernel holds for a reader that does not read.
    let parcel = Parcel {
        from: 0,
        to: 1,
        tag: ParcelTag {
            epoch: 0,
            step: 0,
            kind: ParcelKind::GradientSum,
        },
        payload: vec![0; 64 << 20],
        period: caller().period,
    };
    let posted = client.post(&parcel).await;
    assert!(matches!(posted, Err(TransportError::NoAnswer { .. })), "{posted:?}");
    let posted = client.post(&parcel).await;
    assert!(
        matches!(posted, Err(TransportError::Broken { .. })),
        "half a parcel went out: {posted:?}"
    );
    // All requests fail although only two of them have a lane of their own.
    let requests = (0..5).map(|_| {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.fetch_rows(caller(), 0, &[1], &mut Rows::default()).await })
    });
    for request in requests.collect::<Vec<_>>() {
        let failed = timeout(Duration::from_secs(20), request).await.unwrap().unwrap();
        assert!(matches!(failed, Err(TransportError::NoAnswer { .. })), "{failed:?}");
    }
}

/// What a listener says to a connection that sends `bytes` as its greeting.
async fn greeted(serving: &Machine, bytes: &[u8]) -> Option<Welcome> {
    let mut stream = TcpStream::connect(serving.listener.local_addr()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut said = Vec::new();
    timeout(Duration::from_secs(20), stream.read_to_end(&mut said))
        .await
        .unwrap()
        .ok()?;
    let (head, text) = said.split_first_chunk()?;
    Welcome::decode(head, text.to_vec()).ok()
}

fn hello(ticket: &Ticket) -> Hello {
    Hello {
        purpose: LanePurpose::Reads,
        row_type: RowType::F32,
        checksums: false,
        chunk_bytes: 1 << 20,
        ticket: ticket.clone(),
        machine: MachineId::new("asking", 1),
        membership_epoch: 0,
    }
}

#[tokio::test]
async fn strangers_are_refused_in_a_sentence() {
    let serving = Machine::start("serving", V4, settings()).await;
    let ticket = serving.hosted.tickets().issue(&MachineId::new("asking", 1)).unwrap();
    let good = hello(&ticket).encode();
    let mut other_version = good.clone();
    other_version[8] = 9;
    let garbage = vec![0xEE; 200];
    let invented = hello(&Ticket::from_bytes([3; 32])).encode();
    let stolen = Hello {
        machine: MachineId::new("thief", 1),
        ..hello(&ticket)
    };
    for (bytes, reason) in [
        (&garbage, "lane of GreenGNN"),
        (&other_version, "version 9"),
        (&invented, "ticket"),
        (&stolen.encode(), "ticket"),
        // The thief has burnt it.
        (&good, "ticket"),
    ] {
        let said = greeted(&serving, bytes).await;
        let refused = matches!(&said, Some(Welcome::Refused { reason: why, .. }) if why.contains(reason));
        assert!(refused, "{said:?} where {reason:?} was due");
    }
}

#[tokio::test]
async fn a_ticket_opens_one_lane() {
    let serving = Machine::start("serving", V4, settings()).await;
    let ticket = serving.hosted.tickets().issue(&MachineId::new("asking", 1)).unwrap();
    let mut first = TcpStream::connect(serving.listener.local_addr()).await.unwrap();
    first.write_all(&hello(&ticket).encode()).await.unwrap();
    let mut head = [0; Welcome::HEAD_BYTES];
    first.read_exact(&mut head).await.unwrap();
    let mut name = vec![0; Welcome::text_bytes(&head).unwrap()];
    first.read_exact(&mut name).await.unwrap();
    assert!(matches!(Welcome::decode(&head, name), Ok(Welcome::Accepted { .. })));
    let again = greeted(&serving, &hello(&ticket).encode()).await;
    assert!(matches!(again, Some(Welcome::Refused { .. })), "{again:?}");

    let local = Arc::new(Hosted::new(MachineId::new("asking", 1)));
    let tickets = TicketStack::new([ticket]);
    let refused = LaneClient::connect("serving", serving.listener.local_addr(), tickets, local, settings()).await;
    let error = refused.err().unwrap().to_string();
    assert!(
        error.starts_with("serving refused a lane: the ticket is unknown, used"),
        "{error}"
    );
}

#[tokio::test]
async fn a_silent_connection_is_closed_after_the_time_for_greetings() {
    let hello_timeout = Duration::from_millis(200);
    let serving = Machine::start(
        "serving",
        V4,
        LaneSettings {
            hello_timeout,
            ..settings()
        },
    )
    .await;
    let mut stream = TcpStream::connect(serving.listener.local_addr()).await.unwrap();
    stream.write_all(b"GREENGNN").await.unwrap();
    let ended = timeout(Duration::from_secs(20), stream.read(&mut [0; 10]))
        .await
        .unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

/// Sends `bytes` on a lane that was opened properly; true when the listener then closes it.
async fn closes_after(serving: &Machine, purpose: LanePurpose, bytes: &[u8]) -> bool {
    let ticket = serving.hosted.tickets().issue(&MachineId::new("asking", 1)).unwrap();
    let hello = Hello {
        purpose,
        ..hello(&ticket)
    };
    let mut stream = TcpStream::connect(serving.listener.local_addr()).await.unwrap();
    stream.write_all(&[&hello.encode()[..], bytes].concat()).await.unwrap();
    let mut rest = Vec::new();
    timeout(Duration::from_secs(20), stream.read_to_end(&mut rest))
        .await
        .is_ok()
}

#[tokio::test]
async fn requests_that_break_the_protocol_close_their_lane_and_no_other() {
    let serving = Machine::start("serving", V4, settings()).await;
    let asking = Machine::start("asking", V4, settings()).await;
    serving.hosted.add_shard(shard(0, 10, 4));
    let client = asking.connect(&serving).await.unwrap();
    let frame = |kind: FrameKind, body: &[u8]| {
        let mut frame = Vec::new();
        start_frame(&mut frame);
        frame.extend_from_slice(body);
        finish_frame(&mut frame, kind, 1, 0, false);
        frame
    };
    let mut body = Vec::new();
    RowsRequest::put(&mut body, caller(), 0, &[1]);
    let mut huge = frame(FrameKind::RowsRequest, &body);
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    for (purpose, bytes) in [
        (LanePurpose::Reads, vec![0xEE; 100]),
        (LanePurpose::Reads, huge.clone()),
        (
            LanePurpose::Reads,
            frame(FrameKind::RowsRequest, &body[..body.len() - 1]),
        ),
        (LanePurpose::Reads, frame(FrameKind::Parcel, &body)),
        (LanePurpose::Parcels, vec![0xEE; 100]),
        (LanePurpose::Parcels, huge),
        (LanePurpose::Parcels, frame(FrameKind::Parcel, &[0; 5])),
        (LanePurpose::Parcels, frame(FrameKind::RowsRequest, &body)),
    ] {
        assert!(closes_after(&serving, purpose, &bytes).await, "{purpose:?} {bytes:?}");
    }
    client
        .fetch_rows(caller(), 0, &[1], &mut Rows::default())
        .await
        .unwrap();
}
