//! Grants memory to pool pods: to one pod of a pool at a time, and no more than the node has.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crds::ByteSize;
use crds::cluster::PageSize;
use crds::node::PoolAssignment;
use engine_process::control::message::MemoryReport;
use parking_lot::Mutex;

use crate::pools::available_memory::{self, InsufficientMemory};

/// Pool of a cluster. At most one of its pods holds memory on a node.
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
    /// It has, or may have, allocated memory.
    holds: bool,
    /// Bytes of base pages that are not touched yet.
    untouched: u64,
    /// What the assignment has of them. An engine process may be under the control of an intruder, who must not book more.
    assigned: u64,
    /// Its engine process maps the memory.
    mapped: bool,
}

/// Why a pod does not get its memory now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrantError {
    #[error(
        "pod {0} of the same pool still holds memory on this node; the memory is free when its process \
         has ended and nothing of it is mapped"
    )]
    Held(String),
    #[error(
        "the engine process requests {}, the assignment of the pod has {}: nothing is granted",
        ByteSize(*.touch), ByteSize(*.assigned)
    )]
    BeyondAssignment { touch: u64, assigned: u64 },
    #[error(transparent)]
    InsufficientMemory(#[from] InsufficientMemory),
    #[error("cannot read the available memory of the node: {0}")]
    Unreadable(#[from] io::Error),
}

/// Returns how many of `bytes` are touched page by page: huge pages are already reserved.
pub(crate) fn to_touch(assignment: &PoolAssignment, bytes: u64) -> u64 {
    match assignment.page_size {
        PageSize::Base => bytes,
        PageSize::Huge2Mi | PageSize::Huge1Gi => 0,
    }
}

/// Shared by the tasks of all pool pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryBudget(Arc<Mutex<BTreeMap<String, Entry>>>);

impl MemoryBudget {
    /// Adds the pod of a new process. Until it reports its extents, it counts as holding memory with all `assigned` bytes
    /// to touch.
    pub(crate) fn add(&self, pod_uid: &str, pool: PoolId, pod_name: &str, assigned: u64) {
        let entry = Entry {
            pool,
            pod_name: pod_name.to_owned(),
            holds: true,
            untouched: assigned,
            assigned,
            mapped: false,
        };
        self.0.lock().insert(pod_uid.to_owned(), entry);
    }

    /// Records what the engine process of a pod reports.
    pub(crate) fn set(&self, pod_uid: &str, report: MemoryReport) {
        if let Some(entry) = self.0.lock().get_mut(pod_uid) {
            let MemoryReport {
                holds,
                untouched,
                mapped,
            } = report;
            entry.holds = holds;
            entry.untouched = untouched.min(entry.assigned);
            entry.mapped = mapped;
        }
    }

    /// Grants memory of which `touch` bytes are touched page by page. `available` is called under the lock,
    /// so that no other grant interferes.
    ///
    /// # Errors
    /// `Held`: another pod of the same pool holds memory. `BeyondAssignment`: `touch` is more than that of the pod.
    /// `InsufficientMemory`, `Unreadable`: the node has too little, or `available` failed.
    pub(crate) fn grant(
        &self,
        pod_uid: &str,
        touch: u64,
        available: impl FnOnce() -> io::Result<u64>,
    ) -> Result<(), GrantError> {
        let mut entries = self.0.lock();
        let Some((pool, assigned)) = entries
            .get(pod_uid)
            .map(|entry| (entry.pool.clone(), entry.assigned))
        else {
            return Ok(());
        };
        if touch > assigned {
            return Err(GrantError::BeyondAssignment { touch, assigned });
        }
        let holder = entries.iter().find(|(uid, entry)| {
            uid.as_str() != pod_uid && entry.pool == pool && (entry.holds || entry.mapped)
        });
        if let Some((_, holder)) = holder {
            return Err(GrantError::Held(holder.pod_name.clone()));
        }
        if touch > 0 {
            let others = entries.iter().filter(|(uid, _)| uid.as_str() != pod_uid);
            let promised = others.fold(0, |sum: u64, (_, entry)| {
                sum.saturating_add(entry.untouched)
            });
            available_memory::check(available()?, promised, touch)?;
        }
        if let Some(entry) = entries.get_mut(pod_uid) {
            entry.holds = true;
            entry.untouched = touch;
        }
        Ok(())
    }

    /// Records that the pool process and the engine process of a pod have ended.
    pub(crate) fn ended(&self, pod_uid: &str) {
        self.0.lock().remove(pod_uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(cluster: &str) -> PoolId {
        PoolId {
            namespace: "ns".to_owned(),
            cluster: cluster.to_owned(),
            pool: "default".to_owned(),
        }
    }

    const MIB: u64 = 1 << 20;

    /// Why a node with 800 MiB available rejects a grant: the pod that holds memory, or `short`.
    fn refusal(budget: &MemoryBudget, uid: &str, touch: u64) -> Option<String> {
        match budget.grant(uid, touch, || Ok(800 * MIB)) {
            Ok(()) => None,
            Err(GrantError::Held(pod)) => Some(pod),
            Err(GrantError::BeyondAssignment { .. }) => Some("beyond".to_owned()),
            Err(GrantError::InsufficientMemory(_) | GrantError::Unreadable(_)) => {
                Some("short".to_owned())
            }
        }
    }

    const EMPTY: MemoryReport = MemoryReport {
        holds: false,
        untouched: 0,
        mapped: false,
    };

    #[test]
    fn a_new_pod_waits_until_the_memory_of_the_earlier_one_is_unmapped() {
        let budget = MemoryBudget::default();
        budget.add("old", pool("c"), "c-old", 0);
        budget.add("new", pool("c"), "c-new", 0);
        budget.set("new", EMPTY);
        let mapped = MemoryReport {
            mapped: true,
            ..EMPTY
        };
        budget.set("old", mapped);
        assert_eq!(refusal(&budget, "new", 0).as_deref(), Some("c-old"));
        budget.ended("old");
        assert_eq!(refusal(&budget, "new", 0), None);
    }

    #[test]
    fn two_new_pods_of_one_pool_are_never_both_granted_and_other_pools_do_not_wait() {
        let budget = MemoryBudget::default();
        for uid in ["a", "b"] {
            budget.add(uid, pool("c"), uid, 0);
            budget.set(uid, EMPTY);
        }
        budget.add("x", pool("d"), "x", 0);
        assert_eq!(refusal(&budget, "a", 0), None);
        assert_eq!(refusal(&budget, "b", 0).as_deref(), Some("a"));
        assert_eq!(refusal(&budget, "x", 0), None);
    }

    #[test]
    fn memory_that_one_pool_has_not_touched_is_not_granted_to_another() {
        let budget = MemoryBudget::default();
        for uid in ["a", "b"] {
            budget.add(uid, pool(uid), uid, 600 * MIB);
        }
        let short = Some("short".to_owned());
        assert_eq!(
            refusal(&budget, "b", 300 * MIB),
            short,
            "a has not touched its memory"
        );
        budget.set("a", EMPTY);
        budget.set("b", EMPTY);
        assert_eq!(refusal(&budget, "a", 600 * MIB), None);
        assert_eq!(refusal(&budget, "b", 300 * MIB), short);
        assert_eq!(refusal(&budget, "b", 0), None, "huge pages need no touch");
        budget.set(
            "a",
            MemoryReport {
                holds: true,
                untouched: 100 * MIB,
                mapped: true,
            },
        );
        assert_eq!(refusal(&budget, "b", 300 * MIB), None);
        budget.set("b", EMPTY);
        budget.set(
            "a",
            MemoryReport {
                holds: true,
                untouched: 600 * MIB,
                mapped: true,
            },
        );
        budget.ended("a");
        assert_eq!(refusal(&budget, "b", 600 * MIB), None);
    }

    #[test]
    fn a_pod_books_no_more_than_its_assignment_whatever_its_engine_process_reports() {
        let budget = MemoryBudget::default();
        for uid in ["a", "b", "c"] {
            budget.add(uid, pool(uid), uid, 100 * MIB);
        }
        let huge = |untouched| MemoryReport {
            holds: true,
            untouched,
            mapped: true,
        };
        budget.set("a", huge(u64::MAX));
        budget.set("b", huge(1 << 62));
        budget.set("c", EMPTY);
        assert_eq!(refusal(&budget, "c", 100 * MIB), None);
        let beyond = Some("beyond".to_owned());
        assert_eq!(refusal(&budget, "c", 100 * MIB + 1), beyond);
        assert_eq!(refusal(&budget, "c", u64::MAX), beyond);
        // Assignments of any size do not overflow either.
        budget.add("d", pool("d"), "d", u64::MAX);
        budget.add("e", pool("e"), "e", u64::MAX);
        let short = Some("short".to_owned());
        assert_eq!(refusal(&budget, "c", 100 * MIB), short);
    }

    #[test]
    fn available_memory_must_be_readable_where_pages_are_touched() {
        let budget = MemoryBudget::default();
        let unreadable = || Err(io::Error::other("no procfs"));
        budget.add("a", pool("c"), "a", MIB);
        budget.set("a", EMPTY);
        let refused = budget.grant("a", MIB, unreadable);
        assert!(matches!(refused, Err(GrantError::Unreadable(_))));
        assert!(budget.grant("a", 0, unreadable).is_ok());
    }
}
