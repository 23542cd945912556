//! The limits and deadlines of lanes.

use std::time::Duration;

use greengnn_model::row_type::RowType;

/// Bytes of an encoded feature row at most. A reply that claims more is refused before anything is allocated.
pub const MAX_ROW_BYTES: usize = 4 << 20;

/// Limits and deadlines of lanes; the same on every machine of a run.
///
/// Memory per peer is bounded by them: a client holds one chunk per lane, a server one chunk and one request per
/// connection, and a receiver of parcels what its [`Inbox`](super::Inbox) admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSettings {
    /// Lanes to each peer that carry feature rows, each with one request in service. Neighbour samples and parcels have
    /// one further lane each, so that neither waits behind rows.
    pub row_lanes: usize,
    /// Payload bytes of one reply frame at most; a frame holds whole rows, at least one.
    pub chunk_bytes: usize,
    /// How long a peer may show no progress: no frame accepted, no frame sent.
    pub deadline: Duration,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
    /// How long a greeting may take, at either end.
    pub hello_timeout: Duration,
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged, or a receiver's window shut, before the kernel
    /// gives a connection up. An idle connection is probed and given up after about the same time.
    pub silence_timeout: Duration,
    /// How rows are encoded. A lane between machines that differ is refused.
    pub row_type: RowType,
    /// CRC-32C of every frame's body. Used on a lane when either end asks for it.
    pub checksums: bool,
    /// Bytes of a request frame at most; a row id takes four.
    pub max_request_bytes: usize,
    /// Bytes of the neighbours that answer one request at most.
    pub max_sample_bytes: usize,
    /// Bytes of a parcel at most.
    pub max_parcel_bytes: usize,
    /// Connections that a listener serves at once.
    pub max_connections: usize,
    /// Connections that have not shown a ticket yet, at once.
    pub max_strangers: usize,
}

/// Bytes of a frame's body at most, whatever the settings say.
const MAX_BODY_BYTES: usize = 1 << 31;

impl LaneSettings {
    /// The same within what the protocol can carry.
    pub(crate) fn clamped(mut self) -> Self {
        self.row_lanes = self.row_lanes.clamp(1, 64);
        self.chunk_bytes = self.chunk_bytes.clamp(4, 64 << 20);
        self.max_request_bytes = self.max_request_bytes.min(MAX_BODY_BYTES);
        self.max_sample_bytes = self.max_sample_bytes.min(MAX_BODY_BYTES);
        self.max_parcel_bytes = self.max_parcel_bytes.min(MAX_BODY_BYTES);
        self
    }
}

impl Default for LaneSettings {
    fn default() -> Self {
        Self {
            row_lanes: 2,
            chunk_bytes: 1 << 20,
            deadline: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
            hello_timeout: Duration::from_secs(2),
            silence_timeout: Duration::from_secs(10),
            row_type: RowType::F32,
            checksums: false,
            max_request_bytes: 64 << 20,
            max_sample_bytes: 256 << 20,
            max_parcel_bytes: 256 << 20,
            max_connections: 256,
            max_strangers: 32,
        }
    }
}
