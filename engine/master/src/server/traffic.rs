//! Counts calls and connections.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Ended;

/// Least time between two log lines of one kind about refused peers.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// When a line was logged last.
#[derive(Debug, Default)]
struct Log(Mutex<Option<Instant>>);

impl Log {
    /// Returns true at most once every [`LOG_PERIOD`].
    fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| now.duration_since(last) >= LOG_PERIOD);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Items of one call, and those that failed. A call that is no batch has one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) items: usize,
    pub(super) failed: usize,
}

impl Tally {
    pub(super) fn one(succeeded: bool) -> Self {
        Self {
            items: 1,
            failed: usize::from(!succeeded),
        }
    }

    /// Counts the results of a batch.
    pub(super) fn of<T, E>(results: &[Result<T, E>]) -> Self {
        Self {
            items: results.len(),
            failed: results.iter().filter(|result| result.is_err()).count(),
        }
    }
}

/// How long calls of one function took.
#[derive(Debug, Default)]
pub struct Latency {
    /// Calls up to each bound and above the one before it; then those above all.
    calls: [AtomicU64; Self::BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Latency {
    /// Microseconds.
    pub const BOUNDS: [u32; 7] = [50, 200, 1000, 5000, 20_000, 100_000, 1_000_000];

    fn add(&self, time: Duration) {
        let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let at = Self::BOUNDS.partition_point(|&bound| bound < microseconds);
        self.calls[at].fetch_add(1, Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// Returns the calls by bound, and the time of all.
    #[must_use]
    pub fn read(&self) -> ([u64; Self::BOUNDS.len() + 1], Duration) {
        let calls = self.calls.each_ref().map(|calls| calls.load(Relaxed));
        let nanoseconds = self.nanoseconds.load(Relaxed);
        (calls, Duration::from_nanos(nanoseconds))
    }
}

/// Calls of one function.
#[derive(Debug, Default)]
pub struct FunctionTraffic {
    pub requests: AtomicU64,
    /// Calls of which no item succeeded.
    pub failures: AtomicU64,
    /// Calls of which some items succeeded.
    pub partial: AtomicU64,
    pub items: AtomicU64,
    pub failed_items: AtomicU64,
    /// Of answered calls.
    pub latency: Latency,
}

/// What the metadata server stores and has refused.
#[derive(Debug, Default)]
pub struct MetadataTraffic {
    /// Keys now.
    pub keys: AtomicU64,
    /// Bytes of them and their values now, with what each pair costs beside them.
    pub bytes: AtomicU64,
    /// Keys that were removed because their pod was gone.
    pub expired: AtomicU64,
    /// Requests that were refused: a key of another pod, or a limit.
    pub refused: AtomicU64,
}

/// Everything that the server has counted.
#[derive(Debug)]
pub struct Traffic {
    functions: Vec<(&'static str, FunctionTraffic)>,
    /// Requests of functions that do not exist.
    pub unknown: AtomicU64,
    /// Requests whose arguments could not be decoded.
    pub undecodable: AtomicU64,
    /// Connections that were closed because of their peer's bytes or silence.
    pub faulty_connections: AtomicU64,
    pub refused_connections: AtomicU64,
    /// Connections that were closed because their peer's address is not admitted, also later.
    pub not_admitted_connections: AtomicU64,
    /// Calls that were refused because another address has mounted the segment.
    pub refused_segments: AtomicU64,
    pub metadata: MetadataTraffic,
    /// When a peer that is not admitted was logged last.
    logged: Log,
    /// When a peer above a limit of connections was logged last.
    limit_logged: Log,
    /// When a refused request to the metadata server was logged last.
    metadata_logged: Log,
}

impl Traffic {
    pub(super) fn new(names: impl Iterator<Item = &'static str>) -> Self {
        Self {
            functions: names
                .map(|name| (name, FunctionTraffic::default()))
                .collect(),
            unknown: AtomicU64::new(0),
            undecodable: AtomicU64::new(0),
            faulty_connections: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            not_admitted_connections: AtomicU64::new(0),
            refused_segments: AtomicU64::new(0),
            metadata: MetadataTraffic::default(),
            logged: Log::default(),
            limit_logged: Log::default(),
            metadata_logged: Log::default(),
        }
    }

    /// Returns the functions with the names of their C++ methods.
    pub fn functions(&self) -> impl Iterator<Item = (&'static str, &FunctionTraffic)> {
        self.functions.iter().map(|(name, counts)| (*name, counts))
    }

    pub(super) fn called(&self, function: usize, tally: Tally) {
        let Some((_, counts)) = self.functions.get(function) else {
            return;
        };
        counts.requests.fetch_add(1, Relaxed);
        counts.items.fetch_add(tally.items as u64, Relaxed);
        if tally.failed > 0 {
            counts.failed_items.fetch_add(tally.failed as u64, Relaxed);
            let outcome = if tally.failed == tally.items {
                &counts.failures
            } else {
                &counts.partial
            };
            outcome.fetch_add(1, Relaxed);
        }
    }

    /// Counts the time from the begin of a call until its reply may be sent.
    pub(super) fn answered(&self, function: usize, time: Duration) {
        if let Some((_, counts)) = self.functions.get(function) {
            counts.latency.add(time);
        }
    }

    /// Counts a refused request to the metadata server, and logs one every [`LOG_PERIOD`].
    pub(crate) fn metadata_refused(&self, peer: IpAddr, why: &dyn Display) {
        let all = self.metadata.refused.fetch_add(1, Relaxed) + 1;
        if self.metadata_logged.is_due() {
            tracing::warn!(%peer, all, %why, "refused a request to the metadata server");
        }
    }

    pub(crate) fn connection_refused(&self) {
        self.refused_connections.fetch_add(1, Relaxed);
    }

    /// Counts a connection above a limit, and logs one every [`LOG_PERIOD`].
    pub(super) fn too_many_connections(&self, peer: IpAddr, most: usize, whose: &str) {
        self.connection_refused();
        if self.limit_logged.is_due() {
            let all = self.refused_connections.load(Relaxed);
            tracing::warn!(%peer, most, all, "connection closed: too many connections {whose}");
        }
    }

    /// Counts a connection of a stranger, and logs one every [`LOG_PERIOD`].
    pub(super) fn connection_not_admitted(&self, peer: IpAddr) {
        let all = self.not_admitted_connections.fetch_add(1, Relaxed) + 1;
        if self.logged.is_due() {
            tracing::warn!(%peer, all, "connection closed: the address is not admitted");
        }
    }

    pub(super) fn segment_refused(&self, peer: IpAddr) {
        self.refused_segments.fetch_add(1, Relaxed);
        tracing::debug!(%peer, "call refused: another address has mounted the segment");
    }

    pub(super) fn connection_ended(&self, ended: &Ended) {
        match ended {
            Ended::ByPeer
            | Ended::Idle
            | Ended::Io(_)
            | Ended::Unacknowledged(_)
            | Ended::NotLeading => {}
            Ended::NotAdmitted => {
                self.not_admitted_connections.fetch_add(1, Relaxed);
            }
            Ended::Header(_) | Ended::TooLarge { .. } | Ended::Deadline(..) | Ended::NoBuffers => {
                self.faulty_connections.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_call_is_counted_up_to_the_next_bound() {
        let latency = Latency::default();
        for microseconds in [0, 50, 51, 999_999, 1_000_000, 1_000_001, u64::MAX >> 20] {
            latency.add(Duration::from_micros(microseconds));
        }
        let (calls, _) = latency.read();
        assert_eq!(calls, [2, 1, 0, 0, 0, 0, 2, 2]);
    }
}
