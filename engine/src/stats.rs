//! Counters of one endpoint. Data threads add to them without locks.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

use proto::frame::Op;

use crate::ended::{EndCounters, Ended, Ends};
use crate::peers::{Peer, Peers};

/// Counts since the endpoint was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStats {
    /// Data connections that are served now.
    pub connections: u64,
    /// Bytes that peers read from the endpoint's regions.
    pub bytes_read: u64,
    /// Bytes that peers wrote into the endpoint's regions.
    pub bytes_written: u64,
    /// Requests of peers that completed.
    pub requests: u64,
    /// Handshake requests that were answered.
    pub handshakes: u64,
    /// Connections that were refused or closed.
    pub ended: Ends,
}

/// The counters behind [`EndpointStats`].
#[derive(Debug, Default)]
pub struct Counters {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    requests: AtomicU64,
    handshakes: AtomicU64,
    ended: EndCounters,
    pub(crate) peers: Peers,
}

impl Counters {
    /// Counts payload bytes of a peer's request.
    pub fn moved(&self, op: Op, bytes: u64) {
        let counter = match op {
            Op::Read => &self.bytes_read,
            Op::Write => &self.bytes_written,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a completed request of a peer.
    pub fn served(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answered handshake request.
    pub(crate) fn answered(&self) {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was refused or closed by this end.
    pub fn ended(&self, peer: &Peer, why: Ended) {
        self.ended.add(why);
        peer.ended.add(why);
    }

    pub(crate) fn read(&self, connections: usize) -> EndpointStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EndpointStats {
            connections: connections as u64,
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            requests: get(&self.requests),
            handshakes: get(&self.handshakes),
            ended: self.ended.read(),
        }
    }
}
