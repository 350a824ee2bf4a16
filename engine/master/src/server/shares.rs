//! Connections of each member, so that none takes those of all others. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::admission::{Peer, Role};

/// The connections of members, by address. Operators have no limit of their own.
#[derive(Debug)]
pub(super) struct Shares {
    most: usize,
    used: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection of a share.
#[derive(Debug)]
pub(super) struct Place {
    shares: Arc<Shares>,
    address: Option<IpAddr>,
}

impl Shares {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let used = Mutex::default();
        Arc::new(Self { most, used })
    }

    /// Returns a place for one more connection; `None` if the peer has all that it may have.
    pub(super) fn place(self: &Arc<Self>, peer: Peer) -> Option<Place> {
        let address = (peer.role == Role::Member).then(|| peer.address.to_canonical());
        if let Some(address) = address {
            let mut shares = self.used.lock();
            let used = shares.entry(address).or_default();
            if *used >= self.most {
                return None;
            }
            *used += 1;
        }
        Some(Place {
            shares: Arc::clone(self),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(address) = self.address else {
            return;
        };
        let mut shares = self.shares.used.lock();
        if let Some(used) = shares.get_mut(&address) {
            *used -= 1;
            if *used == 0 {
                shares.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_has_a_share_and_what_is_not_used_is_forgotten() {
        let shares = Shares::new(2);
        let peer = |text: &str, role| Peer {
            address: text.parse().unwrap(),
            role,
        };
        let (one, mapped) = ("10.0.0.1", "::ffff:10.0.0.1");
        let places = [one, mapped].map(|text| shares.place(peer(text, Role::Member)));
        assert!(places.iter().all(Option::is_some));
        assert!(shares.place(peer(one, Role::Member)).is_none());
        assert!(shares.place(peer("10.0.0.2", Role::Member)).is_some());
        assert!((0..9).all(|_| shares.place(peer(one, Role::Operator)).is_some()));
        drop(places);
        assert!(shares.used.lock().is_empty());
        assert!(shares.place(peer(one, Role::Member)).is_some());
    }
}
