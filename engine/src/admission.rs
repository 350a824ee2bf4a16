//! Who may connect, and how many may: decided from the source address before a byte is parsed.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::peers::Peer;

/// Who may connect to a host's listeners.
#[derive(Debug, Clone)]
pub enum Admission {
    /// Everybody who can reach them.
    Anyone,
    /// These addresses. IPv4 addresses mapped into IPv6 count as IPv4.
    Only(Arc<HashSet<IpAddr>>),
}

impl Admission {
    /// Only these addresses.
    pub fn only(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self::Only(Arc::new(
            addresses.into_iter().map(|a| a.to_canonical()).collect(),
        ))
    }

    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        match self {
            Self::Anyone => true,
            Self::Only(addresses) => addresses.contains(&address.to_canonical()),
        }
    }
}

/// Counts connections against the bounds. Touched when a connection comes or goes only.
#[derive(Debug)]
pub(crate) struct Gate {
    per_address: usize,
    in_total: usize,
    total: Arc<AtomicUsize>,
    here: Mutex<HashMap<IpAddr, usize>>,
}

impl Gate {
    /// `total` counts all hosts together against `in_total`.
    pub(crate) fn new(per_address: usize, in_total: usize, total: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            per_address,
            in_total,
            total,
            here: Mutex::default(),
        })
    }

    /// Counts one more connection of a peer in, or refuses it.
    pub(crate) fn enter(self: &Arc<Self>, peer: &Arc<Peer>) -> Option<Ticket> {
        let address = peer.address();
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let count = here.get(&address).copied().unwrap_or(0);
        let taken = self.total.load(Ordering::Relaxed);
        if count >= self.per_address || taken >= self.in_total {
            return None;
        }
        here.insert(address, count + 1);
        self.total.fetch_add(1, Ordering::Relaxed);
        Some(Ticket {
            gate: Arc::clone(self),
            peer: Arc::clone(peer),
        })
    }

    /// Connections that are in.
    pub(crate) fn count(&self) -> usize {
        self.here
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .sum()
    }
}

/// A place at a host; given back when dropped.
#[derive(Debug)]
pub struct Ticket {
    gate: Arc<Gate>,
    peer: Arc<Peer>,
}

impl Ticket {
    /// Who it was given to.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut here = self
            .gate
            .here
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = here.get_mut(&self.peer.address()) {
            *count -= 1;
            if *count == 0 {
                here.remove(&self.peer.address());
            }
        }
        self.gate.total.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peers;

    #[test]
    fn mapped_addresses_are_the_addresses_they_map() {
        let admission = Admission::only(["10.0.0.1".parse().unwrap()]);
        assert!(admission.allows("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!admission.allows("10.0.0.2".parse().unwrap()));
    }

    #[test]
    fn bounds_refuse_newcomers_and_places_come_back() {
        let gate = Gate::new(2, 3, Arc::default());
        let peers = Peers::default();
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|text| peers.of(text.parse().unwrap()));
        let first = gate.enter(&a).unwrap();
        let _second = gate.enter(&a).unwrap();
        assert!(gate.enter(&a).is_none());
        let _third = gate.enter(&b).unwrap();
        assert!(gate.enter(&b).is_none());
        drop(first);
        assert!(gate.enter(&b).is_some());
        assert_eq!(gate.count(), 2);
    }
}
