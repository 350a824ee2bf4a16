//! Admission warnings for a MooncakeCluster whose pools do not fit on their nodes, and by how much, in the
//! terms of Mooncake's own helper. Nothing is rejected: nodes change. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::cluster::{MooncakeClusterSpec, PageSize, Pool};
use crds::text::first_clauses;
use crds::{ByteSize, names};
use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::sizing::LaunchStatus;

/// So many nodes are named, those that lack most.
const MAX_NODES: usize = 3;

/// What a node has for pools.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// The node's name.
    pub node: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Allocatable bytes of each resource of [`PageSize::resource`].
    pub allocatable: BTreeMap<String, u64>,
    /// Bytes that pools take of each, of other clusters than the one that is advised.
    pub taken: BTreeMap<String, u64>,
    /// Its RDMA devices.
    pub devices: u32,
    /// Bytes that a container may lock there that claims none of them; absent where that has no limit, or is
    /// not known.
    pub memlock: Option<u64>,
}

impl Room {
    /// Bytes of a resource that pools leave.
    pub(super) fn left(&self, resource: &str) -> u64 {
        let of = |amounts: &BTreeMap<String, u64>| amounts.get(resource).copied().unwrap_or(0);
        of(&self.allocatable).saturating_sub(of(&self.taken))
    }
}

/// The warnings, one for each page size that is short and one for each pool that no node is for.
pub fn advise(spec: &MooncakeClusterSpec, rooms: &[Room]) -> Vec<String> {
    if rooms.is_empty() {
        return Vec::new();
    }
    let pools: Vec<&Pool> = placed(spec).collect();
    let nowhere = pools
        .iter()
        .filter(|pool| !rooms.iter().any(|room| stores(pool, room)))
        .map(|pool| {
            format!(
                "pool {}: no node of this cluster matches its nodeSelector and tolerations: no \
                 memory is pooled until one does",
                pool.name
            )
        });
    let short = PageSize::ALL
        .iter()
        .filter_map(|size| shortage(&pools, *size, rooms));
    nowhere.chain(short).collect()
}

/// Whether a pool of the cluster makes a pod there.
pub fn is_used(spec: &MooncakeClusterSpec, room: &Room) -> bool {
    placed(spec).any(|pool| stores(pool, room))
}

/// The pools without an affinity: which nodes that selects is known to the scheduler only.
fn placed(spec: &MooncakeClusterSpec) -> impl Iterator<Item = &Pool> {
    let pools = spec.pools.iter();
    pools.filter(|pool| {
        let template = pool.pod_template.as_ref();
        template.is_none_or(|template| template.affinity.is_none())
    })
}

/// A node on which pools of one page size do not fit.
struct Short<'a> {
    node: &'a str,
    free: u64,
    lacks: u64,
}

fn shortage(all: &[&Pool], size: PageSize, rooms: &[Room]) -> Option<String> {
    let resource = size.resource();
    let mut pools = BTreeSet::new();
    let mut nodes = 0;
    let mut short = Vec::new();
    for room in rooms {
        let here = all
            .iter()
            .filter(|pool| pool.page_size == size && stores(pool, room));
        let (mut need, mut names) = (0_u64, Vec::new());
        for pool in here {
            need = need.saturating_add(pool.size.0);
            names.push(pool.name.as_str());
        }
        if names.is_empty() {
            continue;
        }
        nodes += 1;
        let free = room.left(resource);
        if let Some(lacks) = need.checked_sub(free).filter(|lacks| *lacks > 0) {
            pools.extend(names);
            let node = &room.node;
            short.push(Short { node, free, lacks });
        }
    }
    if short.is_empty() {
        return None;
    }
    short.sort_by_key(|short| (std::cmp::Reverse(short.lacks), short.node));
    Some(format!(
        "pool {}: {} on {} of {nodes} nodes, {resource}: {}. {}",
        pools.into_iter().collect::<Vec<_>>().join(", "),
        LaunchStatus::InsufficientForBaseline,
        short.len(),
        first_clauses(short.iter().map(|short| described(short, size)), MAX_NODES),
        match size {
            PageSize::Base => "Lower the pools' size or select other nodes",
            PageSize::Huge2Mi | PageSize::Huge1Gi =>
                "Set more hugepages aside and restart the kubelet, or lower the pools' size",
        }
    ))
}

fn described(short: &Short<'_>, size: PageSize) -> String {
    let Short { node, free, lacks } = short;
    let (free, bytes) = (ByteSize(*free), ByteSize(*lacks));
    match size {
        PageSize::Base => format!("{node} has {free} beside other pools, {bytes} too little"),
        PageSize::Huge2Mi | PageSize::Huge1Gi => {
            let pages = lacks.div_ceil(size.bytes());
            format!("{node} has {free} beside other pools, {bytes} ({pages} pages) too little")
        }
    }
}

/// Whether a DaemonSet of this pool makes a pod there.
pub(super) fn stores(pool: &Pool, room: &Room) -> bool {
    let drained = room.labels.get(names::LABEL_DRAIN);
    drained.is_none_or(|value| value != names::DRAIN_POOLS)
        && takes(room, &pool.node_selector, &pool.tolerations)
}

/// Whether a node takes pods with these. What a node is not ready for at the moment does not count:
/// DaemonSets tolerate it by themselves, others come when it is over.
pub(super) fn takes(
    room: &Room,
    selector: &BTreeMap<String, String>,
    tolerations: &[Toleration],
) -> bool {
    let tolerates = |taint: &Taint| {
        taint.effect == "PreferNoSchedule"
            || taint.key.starts_with("node.kubernetes.io/")
            || tolerations.iter().any(|one| matches(one, taint))
    };
    let mut selected = selector.iter();
    selected.all(|(key, value)| room.labels.get(key) == Some(value))
        && room.taints.iter().all(tolerates)
}

fn matches(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    let any = toleration.operator.as_deref() == Some("Exists");
    let same_value = any || text(&toleration.value) == text(&taint.value);
    let same_key = key == taint.key || (key.is_empty() && any);
    same_key && same_value && (effect.is_empty() || effect == taint.effect)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crds::pod_template::PoolPodTemplate;
    use k8s_openapi::api::core::v1::Affinity;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn spec(pools: Value) -> MooncakeClusterSpec {
        serde_json::from_value(json!({ "pools": pools })).unwrap()
    }

    fn room(node: &str, resource: &str, gibibytes: u64) -> Room {
        Room {
            node: node.to_owned(),
            allocatable: BTreeMap::from([(resource.to_owned(), gibibytes * GIB)]),
            ..Room::default()
        }
    }

    #[test]
    fn pools_larger_than_the_hugepages_are_reported_with_node_and_amount() {
        let spec = spec(json!([
            {"name": "a", "size": "2Gi", "pageSize": "2Mi"},
            {"name": "b", "size": "2Gi", "pageSize": "2Mi"},
        ]));
        let enough = room("n1", "hugepages-2Mi", 4);
        assert!(advise(&spec, std::slice::from_ref(&enough)).is_empty());
        let mut shared = room("n2", "hugepages-2Mi", 4);
        shared.taken = BTreeMap::from([("hugepages-2Mi".to_owned(), GIB)]);
        let none = room("n3", "memory", 64);
        assert_eq!(
            advise(&spec, &[enough, shared, none]),
            [
                "pool a, b: insufficient_for_baseline on 2 of 3 nodes, hugepages-2Mi: n3 has 0 beside \
                 other pools, 4Gi (2048 pages) too little; n2 has 3Gi beside other pools, 1Gi (512 \
                 pages) too little. Set more hugepages aside and restart the kubelet, or lower the \
                 pools' size"
            ]
        );
    }

    #[test]
    fn few_nodes_are_named_and_the_others_counted() {
        let spec = spec(json!([{"name": "a", "size": "64Gi"}]));
        let rooms: Vec<_> = (1..=5)
            .map(|n| room(&format!("n{n}"), "memory", 10 * n))
            .collect();
        let [words] = advise(&spec, &rooms).try_into().unwrap();
        assert!(
            words.contains("on 5 of 5 nodes, memory: n1 has 10Gi"),
            "{words}"
        );
        assert!(
            words.contains("n3 has 30Gi") && !words.contains("n4"),
            "{words}"
        );
        assert!(words.contains("; and 2 more. Lower"), "{words}");
    }

    #[test]
    fn nodes_on_which_a_pool_has_no_pods_do_not_count() {
        let spec = spec(json!([{"name": "a", "size": "1Gi", "nodeSelector": {"gpu": "yes"}}]));
        let mut chosen = room("n1", "memory", 2);
        chosen.labels = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
        let small = room("n2", "memory", 0);
        assert!(advise(&spec, &[chosen.clone(), small.clone()]).is_empty());
        let [words] = advise(&spec, std::slice::from_ref(&small))
            .try_into()
            .unwrap();
        assert!(
            words.starts_with("pool a: no node of this cluster matches"),
            "{words}"
        );
        // No pool pod stays on a drained node.
        let mut drained = chosen.clone();
        let label = ("mooncake.io/drain".to_owned(), "true".to_owned());
        drained.labels.extend([label]);
        assert_eq!(advise(&spec, std::slice::from_ref(&drained)).len(), 1);
        // What an affinity selects is not known here.
        let mut elsewhere = spec.clone();
        elsewhere.pools[0].pod_template = Some(PoolPodTemplate {
            affinity: Some(Affinity::default()),
            ..PoolPodTemplate::default()
        });
        assert!(advise(&elsewhere, std::slice::from_ref(&small)).is_empty());
        // A tainted node counts only if the pool tolerates the taint.
        let tainted = |key: &str| Taint {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        chosen.taints = vec![tainted("node.kubernetes.io/not-ready")];
        assert!(advise(&spec, std::slice::from_ref(&chosen)).is_empty());
        chosen.taints = vec![tainted("dedicated")];
        assert_eq!(advise(&spec, std::slice::from_ref(&chosen)).len(), 1);
        let mut tolerant = spec.clone();
        tolerant.pools[0].tolerations = vec![Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }];
        assert!(advise(&tolerant, &[chosen]).is_empty());
    }

    #[test]
    fn without_known_nodes_there_is_no_advice() {
        let spec = spec(json!([{"name": "a", "size": "64Gi"}]));
        assert!(advise(&spec, &[]).is_empty());
    }
}
