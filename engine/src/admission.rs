//! Decides from the address which peers may connect and may be connected to, before any byte is parsed, and how
//! many connections they may have.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::ended::Ended;
use crate::peers::Peer;
use crate::stats::Counters;

/// Peers that may connect to an endpoint's listeners.
#[derive(Debug, Clone)]
pub enum Admission {
    /// Any peer.
    Anyone,
    /// These addresses. IPv4-mapped IPv6 addresses count as IPv4.
    Only(Arc<HashSet<IpAddr>>),
}

impl Admission {
    /// Admits these addresses only.
    pub fn only(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = addresses.into_iter().map(|address| address.to_canonical());
        Self::Only(Arc::new(addresses.collect()))
    }

    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        match self {
            Self::Anyone => true,
            Self::Only(addresses) => addresses.contains(&address.to_canonical()),
        }
    }
}

/// Peers to which the transfers of an endpoint may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// Any peer: its name comes from whom the caller trusts.
    Anyone,
    /// Peers whose address is admitted when a connection is opened: others choose their names.
    Admitted,
}

/// Limits the connections of one listener, per peer address and in total.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    per_address: usize,
    in_total: usize,
    total: Arc<AtomicUsize>,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl ConnectionLimit {
    /// `total` counts the connections of every limiter that shares it.
    pub(crate) fn new(per_address: usize, in_total: usize, total: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            per_address,
            in_total,
            total,
            open: Mutex::default(),
        })
    }

    /// Counts a new connection of a peer; `None` if a limit is reached. A peer gets at most as many as are left for the others
    /// then, so that a few addresses cannot take all.
    pub(crate) fn acquire(self: &Arc<Self>, peer: &Arc<Peer>) -> Option<ConnectionPermit> {
        let mut open = self.open.lock();
        let of_peer = open.get(&peer.address()).copied().unwrap_or(0);
        let left = self
            .in_total
            .saturating_sub(self.total.load(Ordering::Relaxed));
        if of_peer >= self.per_address.min(left) {
            return None;
        }
        open.insert(peer.address(), of_peer + 1);
        self.total.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit {
            limit: Arc::clone(self),
            peer: Arc::clone(peer),
        })
    }

    /// Returns the number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.open.lock().values().sum()
    }
}

/// One connection within a [`ConnectionLimit`]; returned when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    peer: Arc<Peer>,
}

impl ConnectionPermit {
    /// The peer of the connection.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock();
        if let Some(count) = open.get_mut(&self.peer.address()) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer.address());
            }
        }
        self.limit.total.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The admission check of an endpoint: its listeners and its own connections share it.
#[derive(Debug)]
pub(crate) struct PeerFilter {
    admission: RwLock<Admission>,
    pub(crate) counters: Arc<Counters>,
}

impl PeerFilter {
    pub(crate) fn new(admission: Admission, counters: Arc<Counters>) -> Self {
        Self {
            admission: RwLock::new(admission),
            counters,
        }
    }

    pub(crate) fn set_admission(&self, admission: Admission) {
        *self.admission.write() = admission;
    }

    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        self.admission.read().allows(address)
    }

    /// Returns the permit of a connection from this address, or counts why it is refused.
    pub(crate) fn check(
        &self,
        address: IpAddr,
        limit: &Arc<ConnectionLimit>,
    ) -> Option<ConnectionPermit> {
        let peer = self.counters.peers.of(address);
        let refused = if self.allows(address) {
            match limit.acquire(&peer) {
                Some(permit) => return Some(permit),
                None => Ended::OverLimit,
            }
        } else {
            Ended::NotAdmitted
        };
        self.counters.ended(&peer, refused);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peers;
    use crate::settings::Settings;

    #[test]
    fn ipv4_mapped_addresses_count_as_ipv4() {
        let admission = Admission::only(["10.0.0.1".parse().unwrap()]);
        assert!(admission.allows("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!admission.allows("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn connections_over_a_limit_are_refused_until_others_close() {
        let limit = ConnectionLimit::new(2, 3, Arc::default());
        let peers = Peers::default();
        let [a, b, c] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|text| peers.of(text.parse().unwrap()));
        let first = limit.acquire(&a).unwrap();
        let _second = limit.acquire(&a).unwrap();
        assert!(limit.acquire(&a).is_none());
        let _third = limit.acquire(&b).unwrap();
        assert!(limit.acquire(&c).is_none());
        drop(first);
        assert!(limit.acquire(&c).is_some());
        assert_eq!(limit.count(), 2);
    }

    #[test]
    fn addresses_that_take_what_they_get_leave_room_for_others() {
        let Settings {
            max_connections_per_address: most,
            max_connections: total,
            ..
        } = Settings::default();
        // With few of them each has its limit; of the rest all get less.
        for hostile in [1, 4, 64] {
            let limit = ConnectionLimit::new(most, total, Arc::default());
            let peers = Peers::default();
            let addresses = (1..=hostile).map(|last| peers.of(IpAddr::from([10, 0, 0, last])));
            let addresses: Vec<_> = addresses.collect();
            let mut held = Vec::new();
            loop {
                let taken = addresses.iter().filter_map(|peer| limit.acquire(peer));
                let before = held.len();
                held.extend(taken);
                if held.len() == before {
                    break;
                }
            }
            let each = most.min(total / (usize::from(hostile) + 1));
            let held = held.len() / usize::from(hostile);
            assert!(held.abs_diff(each) <= 1, "{hostile} hold {held} each");
            let newcomer = peers.of(IpAddr::from([10, 0, 1, 1]));
            let lanes = [(); 32].map(|()| limit.acquire(&newcomer));
            assert!(lanes.iter().all(Option::is_some), "beside {hostile}");
        }
    }
}
