//! The settings of an engine.

use std::time::Duration;

use crate::outstanding::Limits;

/// Settings of an engine; [`Settings::default`] suits a node.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Threads that move bytes. Default: one per 8 cores, at least one.
    pub data_threads: usize,
    /// Most served data connections of all endpoints together; further ones are refused. Each takes up to 5 KiB with the kernel's
    /// part, and an engine process has 96 MiB for all it does.
    pub max_connections: usize,
    /// Most served data connections of one peer address at one endpoint, and never more than are left for the others. A stock
    /// peer without its connection pool opens one for each request of a batch.
    pub max_connections_per_address: usize,
    /// A served connection is closed this time after the first byte of its first header, unless the header is complete and
    /// valid by then. One without a byte stays open: stock peers open connections that they use later. A handshake request
    /// has this time from its turn on, its answer the same time again; it waits for its turn for six times as long.
    pub header_deadline: Duration,
    /// An unresponsive peer of an own transfer is detected within this time (keep-alive, `TCP_USER_TIMEOUT`). A payload
    /// without progress for this time ends its connection; so do answers of which no byte is acknowledged, after up to twice
    /// this time. Other served connections that are idle end only when their peer is silent for a quarter of an hour.
    pub user_timeout: Duration,
    /// Most bytes of one outgoing wire request; larger transfers are split.
    pub slice_bytes: u64,
    /// Most outgoing connections to one peer, per data thread.
    pub lanes_per_peer: usize,
    /// Limits of an endpoint's own transfers with one peer.
    pub transfers_per_peer: Limits,
    /// Limits of all own transfers of an endpoint.
    pub transfers: Limits,
    /// Deadline for fetching a peer's descriptor, and for connecting to it.
    pub connect_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            data_threads: (cores / 8).max(1),
            max_connections: 16_384,
            max_connections_per_address: 1024,
            header_deadline: Duration::from_secs(5),
            user_timeout: Duration::from_secs(30),
            slice_bytes: 16 << 20,
            lanes_per_peer: 4,
            transfers_per_peer: Limits {
                transfers: 4096,
                bytes: 64 << 30,
            },
            transfers: Limits {
                transfers: 16_384,
                bytes: 256 << 30,
            },
            connect_timeout: Duration::from_secs(5),
        }
    }
}
