//! What an engine is started with.

use std::time::Duration;

/// Settings of an engine; [`Settings::default`] suits a node.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Threads that move bytes. Default: one per 8 cores, at least one.
    pub data_threads: usize,
    /// Most served data connections of all hosts together; newcomers beyond are refused.
    pub max_connections: usize,
    /// Most served data connections of one peer address at one host.
    pub max_connections_per_address: usize,
    /// A served connection without a whole valid header is closed after this.
    pub header_deadline: Duration,
    /// A peer that answers nothing is found dead within this (keep-alive, `TCP_USER_TIMEOUT`),
    /// and a payload that does not move for this long ends its connection.
    pub user_timeout: Duration,
    /// Most bytes of one wire request that we make; larger transfers are cut.
    pub slice_bytes: u64,
    /// Most connections that we make to one peer, per data thread.
    pub lanes_per_peer: usize,
    /// Bound of asking a peer for its descriptor, and of connecting to it.
    pub connect_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            data_threads: (cores / 8).max(1),
            max_connections: 16_384,
            max_connections_per_address: 256,
            header_deadline: Duration::from_secs(5),
            user_timeout: Duration::from_secs(30),
            slice_bytes: 16 << 20,
            lanes_per_peer: 4,
            connect_timeout: Duration::from_secs(5),
        }
    }
}
