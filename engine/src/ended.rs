//! Reasons why served connections were refused or closed, and their counters.

use serde::{Deserialize, Serialize};
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection was refused or closed by this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ended {
    /// The peer's address is not admitted, or no longer admitted.
    NotAdmitted,
    /// A limit of connections was reached.
    OverLimit,
    /// The first header, or a handshake, was not complete in time.
    HeaderDeadline,
    /// A handshake frame was malformed or had wrong types.
    BadHeader,
    /// The peer requested a range that is not inside one region.
    BadAddress,
    /// The payload made no progress, or the peer acknowledged no byte of an answer.
    Stalled,
    /// The peer closed the connection within a request.
    Broken,
    /// The region of the current request was removed.
    Withdrawn,
}

impl Ended {
    /// Every reason.
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

    /// The name in logs and metrics.
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

/// Refused or closed connections by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends([u64; Ended::ALL.len()]);

impl Index<Ended> for Ends {
    type Output = u64;

    fn index(&self, why: Ended) -> &u64 {
        &self.0[why as usize]
    }
}

/// The counters behind [`Ends`].
#[derive(Debug, Default)]
pub(crate) struct EndCounters([AtomicU64; Ended::ALL.len()]);

impl EndCounters {
    pub(crate) fn add(&self, why: Ended) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, why: Ended) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Ends {
        Ends(Ended::ALL.map(|why| self.get(why)))
    }
}
