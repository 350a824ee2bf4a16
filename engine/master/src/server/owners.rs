//! The address from which each segment was mounted: no other member may unmount it or mount it again. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use proto::store::{ErrorCode, Uuid};

use crate::admission::{Peer, Role};

/// Mounted segments of one address. A pool pod has one for each 16 GiB.
const MOST: usize = 1024;
/// Fewest entries at which those of former segments are removed.
const LEAST: usize = 64;

/// Addresses by segment. Entries of segments that are no longer mounted have no effect.
#[derive(Debug, Default)]
pub(super) struct Owners {
    addresses: HashMap<Uuid, IpAddr>,
    /// Number of entries at which those of former segments are removed.
    full: usize,
}

impl Owners {
    /// Checks that the peer may change this segment, which is mounted.
    ///
    /// # Errors
    /// `IllegalClient` for a member if another address has mounted it.
    pub(super) fn check(&self, segment: Uuid, peer: Peer) -> Result<(), ErrorCode> {
        let owner = self.addresses.get(&segment);
        if peer.role == Role::Operator || owner.is_none_or(|owner| *owner == peer.address) {
            Ok(())
        } else {
            Err(ErrorCode::IllegalClient)
        }
    }

    /// Checks that the peer may mount this many more segments.
    ///
    /// # Errors
    /// `UnavailableInCurrentStatus` for a member that has too many.
    pub(super) fn check_share(
        &self,
        more: usize,
        peer: Peer,
        is_mounted: impl Fn(Uuid) -> bool,
    ) -> Result<(), ErrorCode> {
        if peer.role == Role::Operator || more == 0 {
            return Ok(());
        }
        let entries = self.addresses.iter();
        let own = entries.filter(|(id, owner)| **owner == peer.address && is_mounted(**id));
        if own.count() + more > MOST {
            return Err(ErrorCode::UnavailableInCurrentStatus);
        }
        Ok(())
    }

    /// Records who has mounted a segment that was not mounted before.
    pub(super) fn mounted(&mut self, segment: Uuid, peer: Peer, is_mounted: impl Fn(Uuid) -> bool) {
        self.addresses.insert(segment, peer.address);
        if self.addresses.len() >= self.full.max(LEAST) {
            self.addresses.retain(|segment, _| is_mounted(*segment));
            self.full = 2 * self.addresses.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8, role: Role) -> Peer {
        Peer {
            address: IpAddr::from([10, 0, 0, last]),
            role,
        }
    }

    fn id(second: u64) -> Uuid {
        Uuid { first: 1, second }
    }

    #[test]
    fn only_its_owner_and_operators_may_change_a_segment() {
        let mut owners = Owners::default();
        owners.mounted(id(1), peer(1, Role::Member), |_| true);
        assert_eq!(owners.check(id(1), peer(1, Role::Member)), Ok(()));
        assert_eq!(owners.check(id(1), peer(2, Role::Operator)), Ok(()));
        assert_eq!(
            owners.check(id(1), peer(2, Role::Member)),
            Err(ErrorCode::IllegalClient)
        );
        owners.mounted(id(1), peer(2, Role::Member), |_| true);
        assert_eq!(owners.check(id(1), peer(2, Role::Member)), Ok(()));
    }

    #[test]
    fn entries_of_former_segments_do_not_accumulate() {
        let mut owners = Owners::default();
        for second in 0..10_000 {
            let current = |segment: Uuid| segment.second + 10 > second;
            owners.mounted(id(second), peer(1, Role::Member), current);
            assert!(owners.addresses.len() <= LEAST, "{second}");
        }
    }
}
