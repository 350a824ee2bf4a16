//! An admission warning for a change of pools whose keys will not fit, before it starts. Nothing is rejected. Pure.

use crds::cluster::{MasterType, Pool};
use crds::{MooncakeClusterSpec, MooncakeClusterStatus};
use serde::Deserialize;

use super::advice::{Room, stores};
use crate::cluster::drained::about;

/// The stored object.
#[derive(Debug, Deserialize)]
pub(super) struct Stored {
    spec: MooncakeClusterSpec,
    #[serde(default)]
    status: MooncakeClusterStatus,
}

/// The warning; `None` if the keys fit, or if that is not known. A stock master moves no keys.
pub(super) fn evicted(old: &Stored, new: &MooncakeClusterSpec, rooms: &[Room]) -> Option<String> {
    let kinds = (old.spec.master.kind(), new.master.kind());
    if kinds != (MasterType::BuiltIn, MasterType::BuiltIn) || rooms.is_empty() {
        return None;
    }
    // Which nodes an affinity selects is for the scheduler to decide.
    let mut pools = old.spec.pools.iter().chain(&new.pools);
    let affine = |pool: &Pool| {
        let template = pool.pod_template.as_ref();
        template.is_some_and(|template| template.affinity.is_some())
    };
    if pools.any(affine) {
        return None;
    }
    // Pods are replaced, and a pool that is removed ends at once.
    let replaced = |pool: &&Pool| {
        let mut kept = new.pools.iter();
        let kept = kept.find(|kept| kept.name == pool.name);
        kept.is_some_and(|kept| kept.size != pool.size)
    };
    let bytes = |pool: &Pool| {
        let nodes = rooms.iter().filter(|room| stores(pool, room)).count();
        u64::try_from(nodes).ok()?.checked_mul(pool.size.0)
    };
    let sum = |pools: &[Pool]| {
        let mut each = pools.iter().map(bytes);
        each.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?))
    };
    let (before, after) = (sum(&old.spec.pools)?, sum(&new.pools)?);
    let percent = old.status.used.as_ref()?.strip_suffix('%')?;
    let capacity = old.status.capacity?.0;
    let used = u64::try_from(u128::from(capacity) * percent.parse::<u128>().ok()? / 100).ok()?;
    let largest = old.spec.pools.iter().filter(replaced);
    let largest = largest.map(|pool| pool.size.0).max().unwrap_or(0);
    let update = new.update.clone().unwrap_or_default();
    let pods = update.max_unavailable.of(rooms.len());
    let absent = largest.saturating_mul(u64::try_from(pods).ok()?);
    if (largest, before) == (0, after) {
        return None;
    }
    // The smallest space on the way: all pods of the new size, or some of the former ones away.
    let smallest = after.min(before.saturating_sub(absent));
    // Above this share of it the master evicts.
    let percent_kept = u64::from(new.master.eviction_watermark());
    let room = smallest / 100 * percent_kept;
    let excess = used.checked_sub(room).filter(|excess| *excess > 0)?;
    Some(format!(
        "about {} of the keys ({percent}% of {}) do not fit while pool pods are replaced or afterwards: those that were \
         used longest ago are evicted. Add pool pods first, or lower spec.update.maxUnavailable",
        about(excess),
        about(capacity)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rooms(count: usize) -> Vec<Room> {
        let room = |number| Room {
            node: format!("n{number}"),
            ..Room::default()
        };
        (0..count).map(room).collect()
    }

    fn spec(pools: &Value, kind: &str) -> Value {
        json!({"pools": pools, "master": {"type": kind}})
    }

    /// The warning for a change of a cluster on four nodes with 4 x 16Gi.
    fn warning(used: &str, pools: &Value, kind: &str) -> Option<String> {
        let old = json!({
            "spec": spec(&json!([{"name": "a", "size": "16Gi"}]), kind),
            "status": {"capacity": "64Gi", "used": used},
        });
        let old: Stored = serde_json::from_value(old).unwrap();
        let new = serde_json::from_value(spec(pools, kind)).unwrap();
        evicted(&old, &new, &rooms(4))
    }

    #[test]
    fn a_resize_that_cannot_keep_all_keys_is_announced_with_the_amount() {
        let smaller = json!([{"name": "a", "size": "8Gi"}]);
        let text = warning("75%", &smaller, "BuiltIn").unwrap();
        assert!(
            text.starts_with("about 20Gi of the keys (75% of 64Gi) do not fit"),
            "{text}"
        );
        assert_eq!(warning("40%", &smaller, "BuiltIn"), None);
        assert!(
            warning("50%", &smaller, "BuiltIn").is_some(),
            "the watermark is 90%"
        );
        assert_eq!(warning("75%", &smaller, "Stock"), None);
        assert_eq!(warning("?", &smaller, "BuiltIn"), None);
        let none = json!([{"name": "a", "size": "1Gi", "nodeSelector": {"gpu": "yes"}}]);
        assert_eq!(warning("0%", &none, "BuiltIn"), None);

        // One of four pods is away at a time.
        let larger = json!([{"name": "a", "size": "32Gi"}]);
        assert_eq!(warning("65%", &larger, "BuiltIn"), None);
        let text = warning("100%", &larger, "BuiltIn").unwrap();
        assert!(text.starts_with("about 21Gi"), "{text}");

        // A pool that is removed.
        let other = json!([{"name": "b", "size": "4Gi"}]);
        assert!(
            warning("50%", &other, "BuiltIn")
                .unwrap()
                .starts_with("about 18Gi")
        );
    }

    #[test]
    fn another_change_is_none_and_an_affinity_is_not_evaluated() {
        let same = json!([{"name": "a", "size": "16Gi", "drainSeconds": 9}]);
        assert_eq!(warning("100%", &same, "BuiltIn"), None);
        let affine = json!([{"name": "a", "size": "1Gi", "podTemplate": {"affinity": {}}}]);
        assert_eq!(warning("100%", &affine, "BuiltIn"), None);
        let nodes = json!([{"name": "a", "size": "16Gi", "nodeSelector": {"gpu": "yes"}}]);
        let text = warning("25%", &nodes, "BuiltIn").unwrap();
        assert!(text.starts_with("about 16Gi"), "{text}");
    }
}
