//! Which pool pods hold memory on this node, so that a new one gets its own only after the earlier
//! one's is given back, and none more than the node has.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sys::mem::Region;

use super::room::{self, Short};

/// The pool of a cluster that a pod belongs to; at most one pod of it holds memory on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolId {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    pub(crate) pool: String,
}

#[derive(Debug)]
struct Entry {
    pool: PoolId,
    pod_name: String,
    /// It has, or may have, made memory.
    holds: bool,
    /// Pages of the node's own size that it is still to touch.
    untouched: u64,
    mapped: Vec<Weak<Region>>,
    /// Its process ended.
    ended: bool,
}

/// Why a pod may not have its memory yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "pod {0} of the same pool still holds memory on this node; it is given back when its process \
         has ended and nothing of it is mapped"
    )]
    Held(String),
    #[error(transparent)]
    Short(#[from] Short),
    #[error("what memory the node has cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// Shared by everybody who serves a pool pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, Entry>>>);

impl Ledger {
    /// A pool process was found. Until it says otherwise, it holds memory, and is still to touch so
    /// many bytes of it.
    pub(crate) fn enter(&self, pod_uid: &str, pool: PoolId, pod_name: &str, untouched: u64) {
        let entry = Entry {
            pool,
            pod_name: pod_name.to_owned(),
            holds: true,
            untouched,
            mapped: Vec::new(),
            ended: false,
        };
        self.lock().insert(pod_uid.to_owned(), entry);
    }

    /// It says that it has made nothing yet.
    pub(crate) fn has_nothing(&self, pod_uid: &str) {
        if let Some(entry) = self.lock().get_mut(pod_uid) {
            entry.holds = false;
            entry.untouched = 0;
        }
    }

    /// So many bytes of its memory are still to be touched.
    pub(crate) fn untouched(&self, pod_uid: &str, bytes: u64) {
        if let Some(entry) = self.lock().get_mut(pod_uid) {
            entry.untouched = bytes;
        }
    }

    /// Lets a pod hold memory and touch so many bytes, unless another pod of the same pool still
    /// holds some, or the node lacks them. `available` is asked while nobody else is granted any.
    pub(crate) fn grant(
        &self,
        pod_uid: &str,
        touch: u64,
        available: impl FnOnce() -> io::Result<u64>,
    ) -> Result<(), Refusal> {
        let mut entries = self.lock();
        let Some(pool) = entries.get(pod_uid).map(|entry| entry.pool.clone()) else {
            return Ok(());
        };
        let holder = entries.iter().find(|(uid, entry)| {
            uid.as_str() != pod_uid
                && entry.pool == pool
                && (entry.holds || entry.mapped.iter().any(|region| region.strong_count() > 0))
        });
        if let Some((_, holder)) = holder {
            return Err(Refusal::Held(holder.pod_name.clone()));
        }
        if touch > 0 {
            let others = entries.iter().filter(|(uid, _)| uid.as_str() != pod_uid);
            let promised = others.map(|(_, entry)| entry.untouched).sum();
            room::judge(available()?, promised, touch)?;
        }
        if let Some(entry) = entries.get_mut(pod_uid) {
            entry.holds = true;
            entry.untouched = touch;
        }
        Ok(())
    }

    /// Memory of a pod was mapped here.
    pub(crate) fn mapped(&self, pod_uid: &str, regions: &[Arc<Region>]) {
        if let Some(entry) = self.lock().get_mut(pod_uid) {
            entry.holds = true;
            entry.mapped = regions.iter().map(Arc::downgrade).collect();
        }
    }

    /// Mappings of a pod's memory that are still there.
    pub(crate) fn still_mapped(&self, pod_uid: &str) -> usize {
        self.lock().get(pod_uid).map_or(0, |entry| {
            let alive = |region: &&Weak<Region>| region.strong_count() > 0;
            entry.mapped.iter().filter(alive).count()
        })
    }

    /// Its process ended. What we still have mapped of it counts until it is gone.
    pub(crate) fn ended(&self, pod_uid: &str) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(pod_uid) {
            entry.holds = false;
            entry.untouched = 0;
            entry.ended = true;
        }
        entries.retain(|_, entry| {
            !entry.ended || entry.mapped.iter().any(|region| region.strong_count() > 0)
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::mem::{PageSize, memfd};

    fn pool(cluster: &str) -> PoolId {
        PoolId {
            namespace: "ns".to_owned(),
            cluster: cluster.to_owned(),
            pool: "default".to_owned(),
        }
    }

    const MIB: u64 = 1 << 20;

    /// Why a node with 800 MiB does not grant: the pod that holds memory, or `short`.
    fn refusal(ledger: &Ledger, uid: &str, touch: u64) -> Option<String> {
        match ledger.grant(uid, touch, || Ok(800 * MIB)) {
            Ok(()) => None,
            Err(Refusal::Held(pod)) => Some(pod),
            Err(Refusal::Short(_) | Refusal::Unreadable(_)) => Some("short".to_owned()),
        }
    }

    #[test]
    fn a_new_pod_waits_until_the_earlier_one_is_unmapped_and_counted_back() {
        let ledger = Ledger::default();
        ledger.enter("old", pool("c"), "c-old", 0);
        let fd = memfd::create("test", 4096, PageSize::Base).unwrap();
        let region = Arc::new(Region::map(fd, 4096, PageSize::Base).unwrap());
        ledger.mapped("old", &[Arc::clone(&region)]);
        ledger.enter("new", pool("c"), "c-new", 0);
        ledger.has_nothing("new");
        assert_eq!(refusal(&ledger, "new", 0).as_deref(), Some("c-old"));
        ledger.ended("old");
        assert_eq!(ledger.still_mapped("old"), 1);
        assert_eq!(refusal(&ledger, "new", 0).as_deref(), Some("c-old"));
        drop(region);
        assert_eq!(refusal(&ledger, "new", 0), None);
    }

    #[test]
    fn two_new_pods_of_one_pool_are_never_both_granted_and_other_pools_do_not_wait() {
        let ledger = Ledger::default();
        for uid in ["a", "b"] {
            ledger.enter(uid, pool("c"), uid, 0);
            ledger.has_nothing(uid);
        }
        ledger.enter("x", pool("d"), "x", 0);
        assert_eq!(refusal(&ledger, "a", 0), None);
        assert_eq!(refusal(&ledger, "b", 0).as_deref(), Some("a"));
        assert_eq!(refusal(&ledger, "x", 0), None);
    }

    #[test]
    fn what_one_pool_is_still_to_touch_another_cannot_have() {
        let ledger = Ledger::default();
        for uid in ["a", "b"] {
            ledger.enter(uid, pool(uid), uid, 600 * MIB);
        }
        let short = Some("short".to_owned());
        assert_eq!(refusal(&ledger, "b", 300 * MIB), short, "a may touch yet");
        ledger.has_nothing("a");
        ledger.has_nothing("b");
        assert_eq!(refusal(&ledger, "a", 600 * MIB), None);
        assert_eq!(refusal(&ledger, "b", 300 * MIB), short);
        assert_eq!(
            refusal(&ledger, "b", 0),
            None,
            "its pages are of another size"
        );
        ledger.untouched("a", 100 * MIB);
        assert_eq!(refusal(&ledger, "b", 300 * MIB), None);
        ledger.has_nothing("b");
        ledger.untouched("a", 600 * MIB);
        ledger.ended("a");
        assert_eq!(refusal(&ledger, "b", 600 * MIB), None);
    }

    #[test]
    fn what_the_node_has_must_be_known_where_it_matters() {
        let ledger = Ledger::default();
        let unreadable = || Err(io::Error::other("no procfs"));
        ledger.enter("a", pool("c"), "a", 0);
        ledger.has_nothing("a");
        let refused = ledger.grant("a", MIB, unreadable);
        assert!(matches!(refused, Err(Refusal::Unreadable(_))));
        assert!(ledger.grant("a", 0, unreadable).is_ok());
    }
}
