//! Numbers of links. A peer keeps one connection for each NIC path of ours and ends the earlier one at another
//! rendezvous, so no two links to it have the same path, also if different data threads open them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

/// The NIC paths of our device and of the peer's.
type Ends = (String, String);

/// The numbers in use. Shared by all data threads.
#[derive(Debug, Clone, Default)]
pub(super) struct Lanes(Arc<Mutex<HashMap<Ends, BTreeSet<u32>>>>);

/// The number of a link; in use until this is dropped.
#[derive(Debug)]
pub(super) struct Lane {
    lanes: Lanes,
    ends: Ends,
    number: u32,
}

impl Lanes {
    /// Takes the lowest number that no link between these devices has.
    pub(super) fn take(&self, own: String, peer: String) -> Lane {
        let ends = (own, peer);
        let mut used = self.0.lock();
        let numbers = used.entry(ends.clone()).or_default();
        let number = (0..).find(|number| !numbers.contains(number));
        let number = number.unwrap_or(u32::MAX);
        numbers.insert(number);
        Lane {
            lanes: self.clone(),
            ends,
            number,
        }
    }
}

impl Lane {
    /// Our NIC path on this link. We publish no such path: the peer's own transfers use connections that it opens, which
    /// are not closed when a link is.
    pub(super) fn path(&self) -> String {
        format!("{}#{}", self.ends.0, self.number)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut used = self.lanes.0.lock();
        if let Some(numbers) = used.get_mut(&self.ends) {
            numbers.remove(&self.number);
            if numbers.is_empty() {
                used.remove(&self.ends);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_again_when_its_link_is_gone() {
        let lanes = Lanes::default();
        let take = |peer: &str| lanes.take("a@r0".to_owned(), peer.to_owned());
        let [first, second, other] = ["b@r0", "b@r0", "c@r0"].map(take);
        let paths = [&first, &second, &other].map(Lane::path);
        assert_eq!(paths, ["a@r0#0", "a@r0#1", "a@r0#0"]);
        drop(first);
        assert_eq!(take("b@r0").path(), "a@r0#0");
        drop((second, other));
        assert!(lanes.0.lock().is_empty());
    }
}
