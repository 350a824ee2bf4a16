//! Counters of one host. Data threads add, readers look; nobody waits.

use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::frame::Op;

use crate::peers::{Peer, Peers};

/// Why a connection was refused or cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// Its address is not admitted (any more).
    NotAdmitted,
    /// A bound on connections was reached.
    OverLimit,
    /// No whole valid header came in time.
    HeaderDeadline,
    /// A handshake frame that is broken or of the wrong types.
    BadHeader,
    /// It asked for a range that is not inside one region.
    BadAddress,
    /// Its payload did not move.
    Stalled,
    /// The peer broke it off within a request.
    Broken,
    /// The region under its request went away.
    Withdrawn,
}

impl Ended {
    /// Every cause.
    pub const ALL: [Self; 8] = [
        Self::NotAdmitted,
        Self::OverLimit,
        Self::HeaderDeadline,
        Self::BadHeader,
        Self::BadAddress,
        Self::Stalled,
        Self::Broken,
        Self::Withdrawn,
    ];

    /// Its name in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotAdmitted => "not_admitted",
            Self::OverLimit => "over_limit",
            Self::HeaderDeadline => "header_deadline",
            Self::BadHeader => "bad_header",
            Self::BadAddress => "bad_address",
            Self::Stalled => "stalled",
            Self::Broken => "broken",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// Connections refused or cut, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends([u64; Ended::ALL.len()]);

impl Index<Ended> for Ends {
    type Output = u64;

    fn index(&self, why: Ended) -> &u64 {
        &self.0[why as usize]
    }
}

/// What a host has done since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Data connections being served now.
    pub connections: u64,
    /// Bytes that peers read from our regions.
    pub bytes_read: u64,
    /// Bytes that peers wrote into our regions.
    pub bytes_written: u64,
    /// Requests of peers that were carried out.
    pub requests: u64,
    /// Handshake requests answered.
    pub handshakes: u64,
    /// Connections that were refused or cut.
    pub ended: Ends,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`Ends`].
#[derive(Debug, Default)]
pub(crate) struct EndCounters([Counter; Ended::ALL.len()]);

impl EndCounters {
    pub(crate) fn add(&self, why: Ended) {
        self.0[why as usize].add(1);
    }

    pub(crate) fn get(&self, why: Ended) -> u64 {
        self.0[why as usize].get()
    }

    fn read(&self) -> Ends {
        Ends(Ended::ALL.map(|why| self.get(why)))
    }
}

/// The counters behind [`HostStats`].
#[derive(Debug, Default)]
pub struct Counters {
    bytes_read: Counter,
    bytes_written: Counter,
    requests: Counter,
    pub(crate) handshakes: Counter,
    ended: EndCounters,
    pub(crate) peers: Peers,
}

impl Counters {
    /// A peer's request moved bytes.
    pub fn moved(&self, op: Op, bytes: u64) {
        match op {
            Op::Read => self.bytes_read.add(bytes),
            Op::Write => self.bytes_written.add(bytes),
        }
    }

    /// A peer's request was carried out.
    pub fn served(&self) {
        self.requests.add(1);
    }

    /// A connection of a peer ended otherwise than by its wish.
    pub fn ended(&self, peer: &Peer, why: Ended) {
        self.ended.add(why);
        peer.ended.add(why);
    }

    pub(crate) fn read(&self, connections: usize) -> HostStats {
        HostStats {
            connections: connections as u64,
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            requests: self.requests.get(),
            handshakes: self.handshakes.get(),
            ended: self.ended.read(),
        }
    }
}
