//! Failures of connections by peer address. Keeps every connected address, and of the others a bounded
//! number: those with the most failures.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::ended::{EndCounters, Ended};

/// Most addresses without a connection that are kept.
const REMEMBERED: usize = 1024;

/// One peer address. Each of its connections holds a reference and counts without a lock.
#[derive(Debug)]
pub struct Peer {
    address: IpAddr,
    pub(crate) ended: EndCounters,
}

impl Peer {
    /// The address; IPv4-mapped IPv6 addresses are returned as IPv4.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Counts by cause of the connections that ended through a fault of the peer.
    fn failures(&self) -> impl Iterator<Item = (Ended, u64)> {
        let causes = Ended::ALL
            .into_iter()
            .filter(|why| *why != Ended::Withdrawn);
        causes.map(|why| (why, self.ended.get(why)))
    }
}

/// Number of connections of one peer that ended by one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFailures {
    /// Address of the peer.
    pub peer: IpAddr,
    /// The cause.
    pub cause: Ended,
    /// Connections.
    pub count: u64,
}

impl PeerFailures {
    /// Returns the `most` highest counts, highest first; equal counts are ordered by address.
    #[must_use]
    pub fn worst(mut all: Vec<Self>, most: usize) -> Vec<Self> {
        all.sort_unstable_by_key(|one| (std::cmp::Reverse(one.count), one.peer, one.cause));
        all.truncate(most);
        all
    }
}

/// The peers of one endpoint. Locked per new connection and per read of the counts only.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    known: HashMap<IpAddr, Arc<Peer>>,
    /// Size at which idle addresses are dropped.
    full: usize,
}

impl Peers {
    /// Returns the entry of an address, creating it if needed.
    pub(crate) fn of(&self, address: IpAddr) -> Arc<Peer> {
        let address = address.to_canonical();
        let mut table = self.lock();
        if let Some(peer) = table.known.get(&address) {
            return Arc::clone(peer);
        }
        if table.known.len() >= table.full.max(REMEMBERED) {
            table.forget();
        }
        let peer = Arc::new(Peer {
            address,
            ended: EndCounters::default(),
        });
        table.known.insert(address, Arc::clone(&peer));
        peer
    }

    /// Returns the highest counts by peer and cause, highest first.
    pub(crate) fn worst(&self, most: usize) -> Vec<PeerFailures> {
        let table = self.lock();
        let failures = table.known.values().flat_map(|peer| {
            let counts = peer.failures().filter(|(_, count)| *count > 0);
            counts.map(|(cause, count)| PeerFailures {
                peer: peer.address,
                cause,
                count,
            })
        });
        PeerFailures::worst(failures.collect(), most)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }
}

impl Table {
    /// Drops the idle addresses with the fewest failures, down to half of [`REMEMBERED`], so that it
    /// runs once per many new addresses.
    fn forget(&mut self) {
        let sum = |peer: &Peer| peer.failures().map(|(_, count)| count).sum::<u64>();
        let idle = self
            .known
            .values()
            .filter(|peer| Arc::strong_count(peer) == 1);
        let mut idle: Vec<(u64, IpAddr)> = idle.map(|peer| (sum(peer), peer.address)).collect();
        idle.sort_unstable();
        idle.truncate(idle.len() - idle.len().min(REMEMBERED / 2));
        for (_, address) in idle {
            self.known.remove(&address);
        }
        self.full = self.known.len() + REMEMBERED / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: usize) -> IpAddr {
        let n = u32::try_from(n).unwrap();
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    #[test]
    fn peers_are_ordered_by_failures_with_causes() {
        let peers = Peers::default();
        for n in 0..2_000 {
            let peer = peers.of(address(n));
            for _ in 0..n % 7 {
                peer.ended.add(Ended::Stalled);
            }
            peer.ended.add(Ended::Withdrawn);
        }
        let broken = peers.of("::ffff:10.0.0.1".parse().unwrap());
        for _ in 0..9 {
            broken.ended.add(Ended::Broken);
        }
        let worst = peers.worst(3);
        let found: Vec<_> = worst.iter().map(|one| (one.cause, one.count)).collect();
        assert_eq!(
            found,
            [(Ended::Broken, 9), (Ended::Stalled, 6), (Ended::Stalled, 6)]
        );
        assert_eq!(worst[0].peer, address(1));
    }

    #[test]
    fn idle_peers_are_dropped_but_neither_connected_peers_nor_the_worst() {
        let peers = Peers::default();
        let connected: Vec<_> = (0..2_000).map(|n| peers.of(address(n))).collect();
        let bad = peers.of(address(5_000));
        for _ in 0..3 {
            bad.ended.add(Ended::NotAdmitted);
        }
        drop(bad);
        for n in 10_000..60_000 {
            peers.of(address(n)).ended.add(Ended::NotAdmitted);
        }
        let known = peers.lock().known.len();
        assert!(known <= connected.len() + REMEMBERED, "{known}");
        for (n, peer) in connected.iter().enumerate() {
            assert!(Arc::ptr_eq(peer, &peers.of(address(n))));
        }
        assert_eq!(peers.worst(1)[0].peer, address(5_000));
    }
}
