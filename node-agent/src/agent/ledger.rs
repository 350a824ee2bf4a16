//! Which pool pods hold memory on this node, so that a new one gets its own only after the earlier
//! one's is given back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sys::mem::Region;

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
    mapped: Vec<Weak<Region>>,
    /// Its process ended.
    ended: bool,
}

/// Shared by everybody who serves a pool pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, Entry>>>);

impl Ledger {
    /// A pool process was found. Until it says otherwise, it holds memory.
    pub(crate) fn enter(&self, pod_uid: &str, pool: PoolId, pod_name: &str) {
        let entry = Entry {
            pool,
            pod_name: pod_name.to_owned(),
            holds: true,
            mapped: Vec::new(),
            ended: false,
        };
        self.lock().insert(pod_uid.to_owned(), entry);
    }

    /// It says that it has made nothing yet.
    pub(crate) fn has_nothing(&self, pod_uid: &str) {
        if let Some(entry) = self.lock().get_mut(pod_uid) {
            entry.holds = false;
        }
    }

    /// Lets a pod hold memory, unless another pod of the same pool still does: then its name comes
    /// back.
    pub(crate) fn grant(&self, pod_uid: &str) -> Result<(), String> {
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
            return Err(holder.pod_name.clone());
        }
        if let Some(entry) = entries.get_mut(pod_uid) {
            entry.holds = true;
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

    #[test]
    fn a_new_pod_waits_until_the_earlier_one_is_unmapped_and_counted_back() {
        let ledger = Ledger::default();
        ledger.enter("old", pool("c"), "c-old");
        let fd = memfd::create("test", 4096, PageSize::Base).unwrap();
        let region = Arc::new(Region::map(fd, 4096, PageSize::Base).unwrap());
        ledger.mapped("old", &[Arc::clone(&region)]);
        ledger.enter("new", pool("c"), "c-new");
        ledger.has_nothing("new");
        assert_eq!(ledger.grant("new"), Err("c-old".to_owned()));
        ledger.ended("old");
        assert_eq!(ledger.still_mapped("old"), 1);
        assert_eq!(ledger.grant("new"), Err("c-old".to_owned()));
        drop(region);
        assert_eq!(ledger.grant("new"), Ok(()));
    }

    #[test]
    fn two_new_pods_of_one_pool_are_never_both_granted_and_other_pools_do_not_wait() {
        let ledger = Ledger::default();
        for uid in ["a", "b"] {
            ledger.enter(uid, pool("c"), uid);
            ledger.has_nothing(uid);
        }
        ledger.enter("x", pool("d"), "x");
        assert_eq!(ledger.grant("a"), Ok(()));
        assert_eq!(ledger.grant("b"), Err("a".to_owned()));
        assert_eq!(ledger.grant("x"), Ok(()));
    }
}
