//! Which cluster a scenario may use: scenarios that stay in their namespace share the first one, scenarios that
//! disturb the whole cluster use one exclusively.

use futures::future::{FutureExt, select_all};
use parking_lot::Mutex;
use tokio::sync::{
    OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit,
};

/// A cluster of this process's scenarios.
struct Slot {
    access: RwLock<()>,
    installed: OnceCell<()>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            access: RwLock::const_new(()),
            installed: OnceCell::const_new(),
        }
    }
}

/// The first cluster is shared; further ones, where allowed, are for exclusive use.
static SLOTS: [Slot; 3] = [const { Slot::new() }; 3];

/// Scenarios that share the first cluster at a time: more would only compete for the processors.
static BUSY_LIMIT: Semaphore = Semaphore::const_new(3);
/// The same for scenarios that mostly wait.
static WAITING_LIMIT: Semaphore = Semaphore::const_new(2);

/// What a scenario mostly does.
#[derive(Clone, Copy)]
pub(super) enum Mostly {
    /// Uses the processors.
    Works,
    /// Waits for a timer of a minute or more.
    Waits,
}

/// Access to a cluster, until dropped.
pub(super) struct ClusterAccess {
    slot: usize,
    /// Absent with exclusive access, and once the scenario has ended.
    place: Mutex<Option<SemaphorePermit<'static>>>,
    _guard: Guard,
}

#[expect(dead_code, reason = "held, not read")]
enum Guard {
    Exclusive(RwLockWriteGuard<'static, ()>),
    Shared(RwLockReadGuard<'static, ()>),
}

impl ClusterAccess {
    /// Waits until one of `clusters` clusters is unused.
    pub(super) async fn exclusive(clusters: usize) -> Self {
        let clusters = clusters.clamp(1, SLOTS.len());
        // The only cluster is also the shared one.
        let first = usize::from(clusters > 1);
        let waits = (first..clusters).map(|slot| {
            let write = SLOTS[slot].access.write();
            write.map(move |guard| (slot, guard)).boxed()
        });
        let ((slot, guard), ..) = select_all(waits).await;
        Self {
            slot,
            place: Mutex::default(),
            _guard: Guard::Exclusive(guard),
        }
    }

    /// Waits until the shared cluster is not in exclusive use and few enough scenarios share it.
    pub(super) async fn shared(mostly: Mostly) -> Self {
        let limit = match mostly {
            Mostly::Works => &BUSY_LIMIT,
            Mostly::Waits => &WAITING_LIMIT,
        };
        let permit = limit.acquire().await.expect("it is never closed");
        let guard = SLOTS[0].access.read().await;
        Self {
            slot: 0,
            place: Mutex::new(Some(permit)),
            _guard: Guard::Shared(guard),
        }
    }

    /// Lets the next scenario that shares the cluster begin while the namespace of this one is deleted.
    pub(super) fn give_place(&self) {
        drop(self.place.lock().take());
    }

    /// The cluster's name, where `base` is the name of the shared one.
    pub(super) fn cluster(&self, base: &str) -> String {
        cluster_names(base)
            .nth(self.slot)
            .expect("each slot has a name")
    }

    /// Set once this process has installed the product on the cluster.
    pub(super) fn installed(&self) -> &'static OnceCell<()> {
        &SLOTS[self.slot].installed
    }
}

/// Names of the clusters that scenarios may use, the shared one first.
pub fn cluster_names(base: &str) -> impl Iterator<Item = String> {
    (0..SLOTS.len()).map(move |slot| match slot {
        0 => base.to_owned(),
        slot => format!("{base}{slot}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn exclusive_access_uses_other_clusters_than_shared_access_where_there_are_some() {
        let shared = [
            ClusterAccess::shared(Mostly::Works).await,
            ClusterAccess::shared(Mostly::Waits).await,
        ];
        let exclusive = [
            ClusterAccess::exclusive(3).await,
            ClusterAccess::exclusive(3).await,
        ];
        assert!(shared.iter().all(|access| access.slot == 0));
        let mut slots = exclusive.each_ref().map(|access| access.slot);
        slots.sort_unstable();
        assert_eq!(slots, [1, 2]);
        let third = ClusterAccess::exclusive(3);
        assert!(third.now_or_never().is_none(), "both are in use");
        let [one, _other] = exclusive;
        let free = one.slot;
        drop(one);
        assert_eq!(ClusterAccess::exclusive(3).await.slot, free);
        // With one cluster, exclusive access waits for the end of shared access.
        let only = ClusterAccess::exclusive(1);
        assert!(only.now_or_never().is_none());
        drop(shared);
        assert_eq!(ClusterAccess::exclusive(1).await.slot, 0);

        // The next scenario begins when one of those before it has ended, which still has access.
        let waiting = || ClusterAccess::shared(Mostly::Waits);
        let (one, _two) = (waiting().await, waiting().await);
        assert!(waiting().now_or_never().is_none());
        one.give_place();
        assert!(waiting().now_or_never().is_some());
        assert!(ClusterAccess::exclusive(1).now_or_never().is_none());
    }
}
