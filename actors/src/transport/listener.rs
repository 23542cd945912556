//! The serving end of lanes: accepts connections that bring a ticket, and answers them from what the machine hosts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greengnn_model::counters::{Period, Phase};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::hello::{Hello, LanePurpose, Status, Welcome};
use super::link::{self, Fault, Task};
use super::service::Service;
use super::{Hosted, LaneSettings};

/// Bytes of requests that are read ahead, so that a small request costs one read.
const READ_AHEAD: usize = 16 << 10;

/// Greetings belong to no epoch.
pub(crate) const GREETING_PERIOD: Period = Period {
    epoch: 0,
    phase: Phase::Setup,
};

/// Serves the parts and inboxes of a [`Hosted`] over TCP until it is closed or dropped.
///
/// A connection that has not shown a ticket within two seconds is closed. Their number is bounded, apart from that of
/// the connections which have, so that strangers do not keep peers out.
#[derive(Debug)]
pub struct LaneListener {
    address: SocketAddr,
    accepting: Task,
}

impl LaneListener {
    /// Listens on `address`; port 0 takes a free one. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is in use or not of this machine.
    pub async fn bind(address: SocketAddr, hosted: Arc<Hosted>, settings: LaneSettings) -> io::Result<Self> {
        let settings = settings.clamped();
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let door = Arc::new(Door {
            hosted,
            strangers: Arc::new(Semaphore::new(settings.max_strangers)),
            peers: Arc::new(Semaphore::new(settings.max_connections)),
            settings,
        });
        Ok(Self {
            address,
            accepting: Task::spawn(accept(listener, door)),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and all connections, and waits until they are closed.
    pub async fn close(self) {
        self.accepting.stop().await;
    }
}

/// What every connection shares.
struct Door {
    hosted: Arc<Hosted>,
    strangers: Arc<Semaphore>,
    peers: Arc<Semaphore>,
    settings: LaneSettings,
}

async fn accept(listener: TcpListener, door: Arc<Door>) {
    // Dropping the set ends all connections, so that none outlives the listener.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, from)) => match Arc::clone(&door.strangers).try_acquire_owned() {
                Ok(stranger) => {
                    connections.spawn(Arc::clone(&door).serve(stream, from, stranger));
                }
                Err(_) => tracing::warn!(%from, "too many connections without a ticket, one is dropped"),
            },
            Err(error) => {
                // Out of file descriptors, as a rule: the next attempt fails too, until something is closed.
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Door {
    async fn serve(self: Arc<Self>, mut stream: TcpStream, from: SocketAddr, stranger: OwnedSemaphorePermit) {
        if let Err(error) = link::configure(&stream, self.settings.silence_timeout) {
            tracing::warn!(%from, %error, "the options of a connection could not be set");
            return;
        }
        let greeted = timeout(self.settings.hello_timeout, self.greet(&mut stream)).await;
        drop(stranger);
        let (hello, _peer) = match greeted {
            Ok(Ok(greeted)) => greeted,
            Ok(Err(fault)) => {
                tracing::warn!(%from, reason = %fault, "a lane was refused");
                return;
            }
            Err(_) => {
                tracing::warn!(%from, "a connection without a greeting was closed");
                return;
            }
        };
        let peer = hello.machine.name.clone();
        let service = Service {
            checksums: hello.checksums || self.settings.checksums,
            chunk_bytes: self.settings.chunk_bytes.min(hello.chunk_bytes as usize).max(4),
            membership_epoch: hello.membership_epoch,
            hosted: Arc::clone(&self.hosted),
            settings: self.settings.clone(),
        };
        let stream = BufReader::with_capacity(READ_AHEAD, stream);
        let ended = match hello.purpose {
            LanePurpose::Reads => service.answer(stream).await,
            LanePurpose::Parcels => service.receive_parcels(stream).await,
        };
        match ended {
            Ok(()) => tracing::debug!(peer, "a lane was closed"),
            // Whoever asked over it says so if it matters; a peer that ends closes its lanes like this.
            Err(fault) => tracing::debug!(peer, reason = %fault, "a lane broke"),
        }
    }

    /// Reads the hello, answers it, and keeps a place for the peer.
    async fn greet(&self, stream: &mut TcpStream) -> Result<(Hello, OwnedSemaphorePermit), Fault> {
        let checked = self.check(stream).await?;
        let welcome = match &checked {
            Ok((hello, _)) => Welcome::Accepted {
                checksums: hello.checksums || self.settings.checksums,
                machine: self.hosted.machine().clone(),
            },
            Err((status, reason)) => Welcome::Refused {
                status: *status,
                reason: reason.clone(),
            },
        };
        let (wire, deadline) = (self.hosted.wire(), self.settings.hello_timeout);
        link::write_all(stream, &welcome.encode(), deadline, wire, GREETING_PERIOD).await?;
        if checked.is_err() {
            link::linger(stream).await;
        }
        checked.map_err(|(_, reason)| Fault::Refused(reason))
    }

    async fn check(
        &self,
        stream: &mut TcpStream,
    ) -> Result<Result<(Hello, OwnedSemaphorePermit), (Status, String)>, Fault> {
        let deadline = self.settings.hello_timeout;
        let mut head = [0; Hello::HEAD_BYTES];
        link::read_exact(stream, &mut head, deadline).await?;
        let mut name = match Hello::name_bytes(&head) {
            Ok(length) => vec![0; length],
            Err(refusal) => return Ok(Err(refusal)),
        };
        link::read_exact(stream, &mut name, deadline).await?;
        Ok(Hello::decode(&head, name).and_then(|hello| self.admit(hello)))
    }

    fn admit(&self, hello: Hello) -> Result<(Hello, OwnedSemaphorePermit), (Status, String)> {
        if !self.hosted.tickets().redeem(&hello.ticket, &hello.machine) {
            let reason = "the ticket is unknown, used, expired or another machine's; ask the owner for a new one";
            return Err((Status::BadTicket, reason.into()));
        }
        let current = self.hosted.membership_epoch();
        if hello.membership_epoch != current {
            return Err((
                Status::StaleMembership,
                format!(
                    "this machine is in membership epoch {current}, the greeting is from {}",
                    hello.membership_epoch
                ),
            ));
        }
        let row_type = self.settings.row_type;
        if hello.row_type != row_type {
            return Err((
                Status::OtherRowType,
                format!(
                    "this machine serves {row_type} rows, the greeting asks for {}",
                    hello.row_type
                ),
            ));
        }
        match Arc::clone(&self.peers).try_acquire_owned() {
            Ok(place) => Ok((hello, place)),
            Err(_) => Err((
                Status::Full,
                format!(
                    "this machine serves {} connections, its limit",
                    self.settings.max_connections
                ),
            )),
        }
    }
}
