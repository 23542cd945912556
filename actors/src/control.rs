//! The control plane: an authenticated ractor_cluster node, with liveness that ractor_cluster does not have.
//!
//! Control messages are small. Sockets are our own on both sides, so that they carry `TCP_USER_TIMEOUT` and keep-alive
//! and a silent network is noticed in seconds; ractor_cluster would take a quarter of an hour.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorId, ActorRef, pg};
use ractor_cluster::node::NodeServerSessionInformation;
use ractor_cluster::{IncomingEncryptionMode, NetworkStream, NodeEventSubscription, NodeServer, NodeServerMessage};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::JoinHandle;

/// Largest control message. Bulk data has lanes of its own.
pub const FRAME_LIMIT: u64 = 4 << 20;

/// Every name of a process group of this program starts with this.
const GROUP_PREFIX: &str = "greengnn";

/// The group that the cluster supervisor is in.
pub fn supervisor_group() -> String {
    format!("{GROUP_PREFIX}/supervisor")
}

/// The group that the gate of a machine is in. A namesake, or a later life of the machine, has another.
pub fn machine_group(name: &str, incarnation: u64) -> String {
    format!("{GROUP_PREFIX}/machine/{name}-{incarnation:016x}")
}

/// The group that the owner of `part` is in.
pub fn owner_group(part: u16) -> String {
    format!("{GROUP_PREFIX}/owner/{part}")
}

/// Why the control plane cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("{address} is not an address: {source}")]
    Resolve { address: String, source: std::io::Error },
    #[error("{address} {problem}; give HOST:PORT, an IPv6 address in brackets")]
    Malformed { address: String, problem: &'static str },
    #[error("{address} names no host; give HOST:PORT, a port alone is not enough")]
    NoAddress { address: String },
    #[error("{address} did not accept a connection within {} s: {reason}", within.as_secs_f32())]
    Connect {
        address: String,
        within: Duration,
        reason: String,
    },
    #[error("{who} did not appear within {} s; is the cookie the same on both sides?", within.as_secs_f32())]
    NotSeen { who: String, within: Duration },
    #[error("the cookie of {path} cannot be used: {reason}")]
    Cookie { path: String, reason: String },
    #[error("the control plane could not start: {0}")]
    Start(String),
}

/// Connections that may be open at once without having shown that they know the cookie.
const MOST_STRANGERS: usize = 32;

/// How long a connection may take to show that it knows the cookie.
const AUTHENTICATE_WITHIN: Duration = Duration::from_secs(5);

/// How long one attempt to find a host, or to connect to it, may take.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(3);

/// A running node. Dropping it closes its port and its sessions.
pub struct ControlNode {
    server: ActorRef<NodeServerMessage>,
    accepting: JoinHandle<()>,
    address: SocketAddr,
}

impl ControlNode {
    /// Listens on `listen` (port 0 picks a free one) as node `name`, which must be unique in the cluster.
    pub async fn start(name: &str, listen: &str, cookie: &str) -> Result<Self, ControlError> {
        let cannot_listen = |source| ControlError::Listen {
            address: listen.to_owned(),
            source,
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        // ractor_cluster insists on a listener of its own. It gets a free loopback port and is not told to anybody; the
        // connections that count are accepted below and handed over with their options set.
        let node = NodeServer::new(
            0,
            cookie.to_owned(),
            name.to_owned(),
            name.to_owned(),
            Some(IncomingEncryptionMode::Raw),
            Some(ractor_cluster::node::NodeConnectionMode::Isolated),
        )
        .with_listen_addr(std::net::IpAddr::from([127, 0, 0, 1]))
        .with_max_inbound_frame_size(FRAME_LIMIT);
        let (server, _) = Actor::spawn(None, node, ())
            .await
            .map_err(|error| ControlError::Start(error.to_string()))?;
        let strangers = Strangers::default();
        let watching = NodeServerMessage::SubscribeToEvents {
            id: "strangers".to_owned(),
            subscription: Box::new(strangers.clone()),
        };
        server
            .cast(watching)
            .map_err(|error| ControlError::Start(error.to_string()))?;
        let accepting = tokio::spawn(accept(listener, server.clone(), strangers));
        Ok(Self {
            server,
            accepting,
            address,
        })
    }

    /// Where peers reach this node.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Dials a peer until it accepts or `within` has passed.
    pub async fn dial(&self, address: &str, within: Duration) -> Result<(), ControlError> {
        let stream = reach(address, within).await?;
        self.adopt(stream, address, within)
    }

    /// Starts a session on a connection that [`reach`] opened.
    pub fn adopt(&self, stream: TcpStream, address: &str, within: Duration) -> Result<(), ControlError> {
        hand_over(&self.server, stream, false).map_err(|error| ControlError::Connect {
            address: address.to_owned(),
            within,
            reason: error.to_string(),
        })
    }

    /// Ends the node and waits until its sessions have closed.
    pub async fn stop(self) {
        let _ = self.server.stop_and_wait(None, Some(Duration::from_secs(2))).await;
    }
}

impl Drop for ControlNode {
    fn drop(&mut self) {
        self.accepting.abort();
        self.server.stop(None);
    }
}

/// Connects to `address`, a host name or an IPv4 or IPv6 address with a port, until it accepts or `within` has passed.
/// All addresses of a name are tried. A name that is not known is tried again too, because containers get their names as
/// they start; the log says so once.
///
/// # Errors
/// At once if the address is malformed, else when the time is over.
pub async fn reach(address: &str, within: Duration) -> Result<TcpStream, ControlError> {
    check_address(address)?;
    let mut pause = Duration::from_millis(20);
    let mut said = false;
    let started = tokio::time::Instant::now();
    loop {
        let reason = match attempt(address).await {
            Ok(stream) => return Ok(stream),
            Err(Failed::Name(reason)) => {
                if !said {
                    let limit = within.as_secs_f32();
                    tracing::warn!(
                        "the host of {address} is not known yet ({reason}); trying again for up to {limit} s"
                    );
                    said = true;
                }
                reason
            }
            Err(Failed::Connection(reason)) => reason,
        };
        if started.elapsed() + pause > within {
            return Err(ControlError::Connect {
                address: address.to_owned(),
                within,
                reason,
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Why one attempt to connect failed.
enum Failed {
    /// The host's name stands for no address.
    Name(String),
    Connection(String),
}

async fn attempt(address: &str) -> Result<TcpStream, Failed> {
    let no_answer = || format!("no answer in {} s", ATTEMPT_WITHIN.as_secs());
    let found = tokio::time::timeout(ATTEMPT_WITHIN, lookup_host(address)).await;
    let found = found.map_err(|_| Failed::Name(no_answer()))?;
    let addresses: Vec<_> = found.map_err(|error| Failed::Name(error.to_string()))?.collect();
    let connected = tokio::time::timeout(ATTEMPT_WITHIN, TcpStream::connect(&addresses[..])).await;
    let connected = connected.map_err(|_| Failed::Connection(no_answer()))?;
    connected.map_err(|error| Failed::Connection(error.to_string()))
}

/// Refuses what cannot be an address: neither a host name nor an IPv4 address, nor an IPv6 address in brackets, with a port.
///
/// # Errors
/// [`ControlError::Malformed`] says what is wrong.
pub fn check_address(address: &str) -> Result<(), ControlError> {
    let refuse = |problem| {
        Err(ControlError::Malformed {
            address: address.to_owned(),
            problem,
        })
    };
    let Some((host, port)) = address.rsplit_once(':') else {
        return refuse("has no port");
    };
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return refuse("has a port that is no number from 1 to 65535");
    }
    let is_known = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        // A link-local address names its interface behind a percent sign.
        Some(host) => host
            .split('%')
            .next()
            .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()),
        None => {
            let in_names = |letter: char| letter.is_alphanumeric() || "-._".contains(letter);
            !host.is_empty() && host.chars().all(in_names)
        }
    };
    if is_known {
        Ok(())
    } else {
        refuse("has no host name or address before its port")
    }
}

/// Sessions that have not shown that they know the cookie. They are few, and closed after a while.
#[derive(Clone, Default)]
struct Strangers(Arc<Mutex<BTreeSet<ActorId>>>);

impl Strangers {
    fn count(&self) -> usize {
        self.lock().len()
    }

    fn forget(&self, session: &NodeServerSessionInformation) {
        self.lock().remove(&session.actor.get_id());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<ActorId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeEventSubscription for Strangers {
    fn node_session_opened(&self, session: NodeServerSessionInformation) {
        self.lock().insert(session.actor.get_id());
        let strangers = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(AUTHENTICATE_WITHIN).await;
            if strangers.lock().contains(&session.actor.get_id()) {
                tracing::warn!(
                    "{} did not show that it knows the cookie and is cut off",
                    session.peer_addr
                );
                session.actor.kill();
            }
        });
    }

    fn node_session_authenticated(&self, session: NodeServerSessionInformation) {
        self.forget(&session);
    }

    fn node_session_disconnected(&self, session: NodeServerSessionInformation) {
        self.forget(&session);
    }
}

async fn accept(listener: TcpListener, server: ActorRef<NodeServerMessage>, strangers: Strangers) {
    loop {
        match listener.accept().await {
            Ok((_, peer)) if strangers.count() >= MOST_STRANGERS => {
                tracing::warn!("too many connections without the cookie; that of {peer} was dropped");
            }
            Ok((stream, peer)) => {
                if let Err(error) = hand_over(&server, stream, true) {
                    tracing::warn!("the connection of {peer} was dropped: {error}");
                }
            }
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn hand_over(server: &ActorRef<NodeServerMessage>, stream: TcpStream, is_server: bool) -> std::io::Result<()> {
    set_liveness(&stream)?;
    let peer_addr = stream.peer_addr()?;
    let local_addr = stream.local_addr()?;
    let stream = Box::new(NetworkStream::Raw {
        peer_addr,
        local_addr,
        stream,
    });
    server
        .cast(NodeServerMessage::ConnectionOpened { stream, is_server })
        .map_err(std::io::Error::other)
}

/// No delay for small messages, and a silent peer is given up after about five seconds.
fn set_liveness(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let set = |level: libc::c_int, name: libc::c_int, value: libc::c_int| {
        // SAFETY: the descriptor is open, and the option's value is an int of the size that is passed.
        let result = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 2)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 5_000)
}

/// The first address that `text` stands for: a host name or an IPv4 or IPv6 address with a port.
pub async fn resolve(text: &str) -> Result<SocketAddr, ControlError> {
    let mut found = lookup_host(text).await.map_err(|source| ControlError::Resolve {
        address: text.to_owned(),
        source,
    })?;
    found.next().ok_or_else(|| ControlError::NoAddress {
        address: text.to_owned(),
    })
}

/// Waits until a process group has a member, which is how a remote actor shows that its session is ready.
pub async fn wait_for_member(group: &str, who: &str, within: Duration) -> Result<ActorCell, ControlError> {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(member) = pg::get_members(&group.to_owned()).into_iter().next() {
            return Ok(member);
        }
        if started.elapsed() > within {
            return Err(ControlError::NotSeen {
                who: who.to_owned(),
                within,
            });
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The environment variable that names the cookie file.
pub const COOKIE_VARIABLE: &str = "GREENGNN_COOKIE_FILE";

/// The environment variable that holds the secret itself; how a launcher gives it to its children.
pub const COOKIE_SECRET_VARIABLE: &str = "GREENGNN_COOKIE";

/// The secret that all processes of a cluster share: from `GREENGNN_COOKIE`, else from the file that
/// `GREENGNN_COOKIE_FILE` names.
pub fn cookie_from_environment() -> Result<String, ControlError> {
    if let Ok(secret) = std::env::var(COOKIE_SECRET_VARIABLE) {
        return check_cookie(&format!("${COOKIE_SECRET_VARIABLE}"), &secret);
    }
    let Some(path) = std::env::var_os(COOKIE_VARIABLE) else {
        return Err(ControlError::Cookie {
            path: format!("${COOKIE_VARIABLE}"),
            reason:
                "the variable is not set; point it at a file with at least 16 secret characters, the same on every \
                     machine"
                    .to_owned(),
        });
    };
    read_cookie(Path::new(&path))
}

fn read_cookie(path: &Path) -> Result<String, ControlError> {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => check_cookie(&name, &text),
        Err(error) => Err(ControlError::Cookie {
            path: name,
            reason: error.to_string(),
        }),
    }
}

fn check_cookie(name: &str, text: &str) -> Result<String, ControlError> {
    let cookie = text.trim();
    if cookie.len() < 16 {
        let reason = format!("it holds {} characters, at least 16 are needed", cookie.len());
        return Err(ControlError::Cookie {
            path: name.to_owned(),
            reason,
        });
    }
    Ok(cookie.to_owned())
}

/// A fresh random secret of 32 bytes in hexadecimal digits.
pub fn random_cookie() -> Result<String, ControlError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| ControlError::Start(format!("no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_cookie_is_refused_and_the_file_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cookie");
        std::fs::write(&path, "short\n").unwrap();
        let error = read_cookie(&path).unwrap_err().to_string();
        assert!(error.contains("cookie") && error.contains("5 characters"), "{error}");
        std::fs::write(&path, format!("{}\n", random_cookie().unwrap())).unwrap();
        assert_eq!(read_cookie(&path).unwrap().len(), 64);
    }

    #[tokio::test]
    async fn a_malformed_address_is_refused_at_once_with_what_is_wrong() {
        for address in [
            "localhost:1",
            "10.0.0.1:7000",
            "[::1]:7000",
            "[fe80::1%eth0]:1",
            "a-b.c_d:65535",
        ] {
            check_address(address).unwrap();
        }
        for (address, problem) in [
            ("nonsense", "has no port"),
            ("host:", "has a port that is no number"),
            ("host:0", "has a port that is no number"),
            ("host:70000", "has a port that is no number"),
            (":7000", "has no host"),
            ("::1:7000", "has no host"),
            ("[nonsense]:7000", "has no host"),
            ("http://host:7000", "has no host"),
        ] {
            // A retry would outlast any patience.
            let error = reach(address, Duration::from_secs(1_000_000)).await.unwrap_err();
            assert!(matches!(error, ControlError::Malformed { .. }), "{error}");
            assert!(
                error.to_string().starts_with(&format!("{address} {problem}")),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn nobody_at_the_other_end_is_an_error_that_names_the_address() {
        let free = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let node = ControlNode::start("test-alone", "127.0.0.1:0", &random_cookie().unwrap())
            .await
            .unwrap();
        let error = node
            .dial(&free.to_string(), Duration::from_millis(100))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(&free.to_string()), "{error}");
        node.stop().await;
    }
}
