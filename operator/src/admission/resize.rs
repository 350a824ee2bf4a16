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
    // The pods of a removed pool, and those on nodes that a pool leaves, end together, and new ones may wait for their memory.
    let stays = |pool: &Pool, room: &Room| {
        let mut kept = new.pools.iter();
        kept.any(|kept| kept.name == pool.name && stores(kept, room))
    };
    let ends = old.spec.pools.iter().flat_map(|pool| {
        let leaves = |room: &&Room| stores(pool, room) && !stays(pool, room);
        rooms.iter().filter(leaves).map(|_| pool.size.0)
    });
    let ends = ends.fold(0_u64, u64::saturating_add);
    if (largest, before, ends) == (0, after, 0) {
        return None;
    }
    // The smallest space on the way: all pods of the new size, or some of the former ones away.
    let during = before.saturating_sub(ends).saturating_sub(absent);
    let smallest = after.min(during);
    // Above this share of it the master evicts.
    let percent_kept = u64::from(new.master.eviction_watermark());
    let room = smallest / 100 * percent_kept;
    let excess = used.checked_sub(room).filter(|excess| *excess > 0)?;
    let remedy = match ends {
        0 => "Add pool pods first, or lower spec.update.maxUnavailable",
        _ => "Add pool pods first, and remove the others when these serve",
    };
    Some(format!(
        "about {} of the keys ({percent}% of {}) do not fit while pool pods are replaced or afterwards: those that were \
         used longest ago are evicted. {remedy}",
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

        // All pods of a pool that gets another name end together, whatever the size of the new one.
        for size in ["4Gi", "16Gi"] {
            let renamed = json!([{"name": "b", "size": size}]);
            let text = warning("50%", &renamed, "BuiltIn").unwrap();
            assert!(text.starts_with("about 32Gi"), "{text}");
            assert!(
                text.ends_with("remove the others when these serve"),
                "{text}"
            );
        }
        let added = json!([{"name": "a", "size": "16Gi"}, {"name": "b", "size": "16Gi"}]);
        assert_eq!(warning("85%", &added, "BuiltIn"), None);
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

    #[test]
    fn a_pool_that_leaves_nodes_for_others_ends_there_at_once() {
        let mut rooms = rooms(4);
        for (number, room) in rooms.iter_mut().enumerate() {
            let half = ["old", "new"][number / 2];
            room.labels.insert("half".to_owned(), half.to_owned());
        }
        let on = |half: &str| {
            spec(
                &json!([{"name": "a", "size": "16Gi", "nodeSelector": {"half": half}}]),
                "BuiltIn",
            )
        };
        let status = json!({"capacity": "32Gi", "used": "50%"});
        let old: Stored =
            serde_json::from_value(json!({"spec": on("old"), "status": status})).unwrap();
        let warning = |half| evicted(&old, &serde_json::from_value(on(half)).unwrap(), &rooms);
        let text = warning("new").unwrap();
        assert!(text.starts_with("about 16Gi"), "{text}");
        assert_eq!(warning("old"), None);
    }
}
