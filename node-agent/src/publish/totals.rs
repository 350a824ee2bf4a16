//! What the endpoints of a cluster have counted on this node, also those of ended engine processes: a sum over those that run
//! would fall when one of several ends, which readers of counters take for a restart of all.

use std::collections::BTreeMap;

use engine::{Ended, EndpointStats, PeerFailures};

use crate::publish::report::PEERS_LIMIT;

/// Counts that only grow while an endpoint exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) requests: u64,
    pub(crate) handshakes: u64,
    /// In the order of [`Ended::ALL`].
    ended: [u64; Ended::ALL.len()],
    /// The peers with the most failures.
    pub(crate) worst_peers: Vec<PeerFailures>,
}

impl Totals {
    pub(crate) fn of(stats: &EndpointStats, worst_peers: &[PeerFailures]) -> Self {
        Self {
            bytes_read: stats.bytes_read,
            bytes_written: stats.bytes_written,
            requests: stats.requests,
            handshakes: stats.handshakes,
            ended: Ended::ALL.map(|cause| stats.ended[cause]),
            worst_peers: worst_peers.to_vec(),
        }
    }

    /// Ended connections by cause.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (Ended, u64)> {
        Ended::ALL.into_iter().zip(self.ended)
    }

    /// Adds those of another endpoint; of the peers at most [`PEERS_LIMIT`] are kept.
    pub(super) fn add(&mut self, other: Self) {
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.requests += other.requests;
        self.handshakes += other.handshakes;
        for (sum, count) in self.ended.iter_mut().zip(other.ended) {
            *sum += count;
        }
        let mut peers = std::mem::take(&mut self.worst_peers);
        peers.extend(other.worst_peers);
        self.worst_peers = PeerFailures::worst(summed(peers), PEERS_LIMIT);
    }

    /// True if `later` is of another endpoint than these. An endpoint that has counted more at once is taken for the same one.
    pub(super) fn are_former(&self, later: &Self) -> bool {
        let mut counts = self.counts().zip(later.counts());
        counts.any(|(before, after)| after < before)
    }

    fn counts(&self) -> impl Iterator<Item = u64> {
        let first = [
            self.bytes_read,
            self.bytes_written,
            self.requests,
            self.handshakes,
        ];
        first.into_iter().chain(self.ended)
    }
}

/// One count for each peer and cause.
pub(super) fn summed(failures: Vec<PeerFailures>) -> Vec<PeerFailures> {
    let mut sums = BTreeMap::<_, u64>::new();
    for PeerFailures { peer, cause, count } in failures {
        *sums.entry((peer, cause)).or_default() += count;
    }
    let sums = sums.into_iter();
    sums.map(|((peer, cause), count)| PeerFailures { peer, cause, count })
        .collect()
}
