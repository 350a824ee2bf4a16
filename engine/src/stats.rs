//! Counters of one host. Data threads add, readers look; nobody waits.

use std::sync::atomic::{AtomicU64, Ordering};

use proto::frame::Op;

use crate::transport::Ended;

/// Why connections were not served, counted since the host began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// The address is not admitted.
    pub not_admitted: u64,
    /// A bound on connections was reached.
    pub over_limit: u64,
    /// No whole valid header came in time.
    pub header_deadline: u64,
    /// A handshake frame that is broken or of the wrong types.
    pub bad_header: u64,
    /// A range that is not inside one region.
    pub bad_address: u64,
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
    /// Connections not served.
    pub refused: Refused,
    /// Connections cut because the payload did not move.
    pub stalled: u64,
    /// Connections that peers broke off in the middle of a request.
    pub broken: u64,
    /// Connections cut because their region or admission was withdrawn.
    pub withdrawn: u64,
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

/// The counters behind [`HostStats`].
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    pub(crate) requests: Counter,
    pub(crate) handshakes: Counter,
    pub(crate) not_admitted: Counter,
    pub(crate) over_limit: Counter,
    pub(crate) header_deadline: Counter,
    pub(crate) bad_header: Counter,
    pub(crate) bad_address: Counter,
    pub(crate) stalled: Counter,
    pub(crate) broken: Counter,
    pub(crate) withdrawn: Counter,
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

    /// A served connection ended otherwise than by the peer's wish.
    pub fn ended(&self, why: Ended) {
        match why {
            Ended::NotAdmitted => &self.not_admitted,
            Ended::HeaderDeadline => &self.header_deadline,
            Ended::BadAddress => &self.bad_address,
            Ended::Stalled => &self.stalled,
            Ended::Broken => &self.broken,
            Ended::Withdrawn => &self.withdrawn,
        }
        .add(1);
    }

    pub(crate) fn read(&self, connections: usize) -> HostStats {
        HostStats {
            connections: connections as u64,
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            requests: self.requests.get(),
            handshakes: self.handshakes.get(),
            refused: Refused {
                not_admitted: self.not_admitted.get(),
                over_limit: self.over_limit.get(),
                header_deadline: self.header_deadline.get(),
                bad_header: self.bad_header.get(),
                bad_address: self.bad_address.get(),
            },
            stalled: self.stalled.get(),
            broken: self.broken.get(),
            withdrawn: self.withdrawn.get(),
        }
    }
}
