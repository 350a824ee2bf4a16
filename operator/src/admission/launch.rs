//! Admission warnings for an injected pod whose engines will not find what their own variables request:
//! hugepages, in the terms of Mooncake's own helper, and memory that they may lock. By how much; nothing is
//! refused for it. Pure.

use std::collections::BTreeMap;

use crds::stock::{Demand, Shortage};
use crds::{ByteSize, MooncakeCluster, Reason};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::advice::{Room, takes};
use super::claim::{self, Claim};
use super::environment;
use super::selection::Selected;
use super::transport::StockTransport;
use crate::cache::Claimable;
use crate::quantity;

/// So many nodes are named, those that lack most.
const NAMED: usize = 2;

/// The warnings about an injected pod, at most three for each container. `rooms` is read only if needed.
pub(super) fn advise(
    pod: &Pod,
    namespace: &str,
    cluster: Option<&MooncakeCluster>,
    claimable: &Claimable,
    rooms: impl Fn() -> Vec<Room>,
) -> Vec<String> {
    let Some(Selected {
        spec,
        request,
        target,
        containers,
    }) = Selected::of(pod, namespace, cluster)
    else {
        return Vec::new();
    };
    let own = containers.into_iter();
    let given = claim::of(pod, spec, namespace, &request, target.transport, claimable);
    let may_lack = target.transport == StockTransport::Rdma && !matches!(given, Claim::By(_));
    own.filter_map(|container| {
        let demand = environment::demand(container, &target)?;
        let memory = demand.memory.filter(|_| may_lack && is_limited(container));
        (demand.requested().is_some() || memory.is_some()).then_some((container, demand, memory))
    })
    .flat_map(|(container, demand, memory)| {
        let rooms = rooms();
        let allowed = allowed(spec, &rooms);
        let limit = beyond_limit(container, &demand);
        let nodes = beyond_nodes(&demand, &allowed);
        let memlock = memory.and_then(|memory| beyond_memlock(memory.bytes(), &allowed));
        let words = limit.into_iter().chain(nodes).chain(memlock);
        words
            .map(|words| format!("container {}: {words}", container.name))
            .collect::<Vec<_>>()
    })
    .collect()
}

/// The nodes that the pod may go to.
fn allowed<'a>(spec: &PodSpec, rooms: &'a [Room]) -> Vec<&'a Room> {
    let none = BTreeMap::new();
    let selector = spec.node_selector.as_ref().unwrap_or(&none);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let allowed = rooms.iter();
    allowed
        .filter(|room| takes(room, selector, tolerations))
        .collect()
}

/// Whether the limit of locked memory holds for a container. What else it claims may be a device.
fn is_limited(container: &Container) -> bool {
    let resources = container.resources.iter();
    let mut claims = resources.flat_map(|resources| resources.claims.iter().flatten());
    let security = container.security_context.as_ref();
    let privileged = security.is_some_and(|security| security.privileged == Some(true));
    let capabilities = security.and_then(|security| security.capabilities.as_ref());
    let mut added = capabilities.iter().flat_map(|of| of.add.iter().flatten());
    let locks = added.any(|name| ["IPC_LOCK", "CAP_IPC_LOCK", "ALL"].contains(&name.as_str()));
    claims.next().is_none() && !privileged && !locks
}

/// The warning about nodes where the container may not lock its memory. Each node with RDMA devices counts: the scheduler
/// does not choose by what a pod may lock.
fn beyond_memlock(each: u64, allowed: &[&Room]) -> Option<String> {
    let of = |room: &Room| each.saturating_mul(u64::from(room.devices));
    let mut short: Vec<(&Room, u64)> = allowed
        .iter()
        .filter_map(|room| Some((*room, room.memlock.filter(|may| *may < of(room))?)))
        .collect();
    short.sort_by_key(|(room, may)| (*may, room.node.as_str()));
    let named = short.iter().take(NAMED).map(|(room, may)| {
        format!(
            "{} lets it lock {} of {} ({} devices)",
            room.node,
            ByteSize(*may),
            ByteSize(of(room)),
            room.devices
        )
    });
    let named: Vec<String> = named.collect();
    (!short.is_empty()).then(|| {
        format!(
            "{}: it registers {} with each RDMA device and claims none; on {} of {} eligible nodes it \
             may lock less: {}. A container that claims its devices has no such limit",
            Reason::MemlockTooLow,
            ByteSize(each),
            short.len(),
            allowed.len(),
            named.join(", ")
        )
    })
}

/// The kernel gives a container no more hugepages than its limit, and none without.
fn beyond_limit(container: &Container, demand: &Demand) -> Option<String> {
    let resource = demand.page().resource();
    let limits = container.resources.iter();
    let mut limits = limits.flat_map(|resources| resources.limits.iter().flatten());
    let set = limits.find(|(name, _)| *name == resource);
    let limit = match set {
        None => 0,
        // What cannot be read the API server refuses.
        Some((_, quantity)) => quantity::bytes(quantity)?,
    };
    let shortage = demand.shortage(limit)?;
    let Shortage {
        requested, status, ..
    } = &shortage;
    let has = match set {
        None => format!("has no limit {resource}, without which the kernel gives it none"),
        Some(_) => format!("its limit {resource} is {}", ByteSize(limit)),
    };
    Some(format!(
        "{status}: it requests {requested} and {has}: {}. Set resources.limits",
        shortage.lacks()
    ))
}

/// A pod goes to one node: it is enough that one has room.
fn beyond_nodes(demand: &Demand, allowed: &[&Room]) -> Option<String> {
    let resource = demand.page().resource();
    let most = |room: &&&Room| (room.left(resource), std::cmp::Reverse(room.node.clone()));
    let best = allowed.iter().max_by_key(most)?;
    let left = best.left(resource);
    let shortage = demand.shortage(left)?;
    let Shortage {
        requested, status, ..
    } = &shortage;
    Some(format!(
        "{status}: it requests {requested}; of {} eligible nodes, {} has most beside pools, {}: {}. Set \
         more hugepages aside and restart the kubelet, or lower the request",
        allowed.len(),
        best.node,
        ByteSize(left),
        shortage.lacks()
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn pod(environment: &[(&str, &str)], resources: Value) -> Value {
        let environment: Vec<Value> = environment
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        json!({
            "metadata": {"name": "a", "labels": {"mooncake.io/inject": "kv"}},
            "spec": {"containers": [{"name": "main", "env": environment, "resources": resources}]},
        })
    }

    fn room(node: &str, gibibytes: u64) -> Room {
        Room {
            node: node.to_owned(),
            labels: BTreeMap::from([("gpu".to_owned(), node.to_owned())]),
            allocatable: BTreeMap::from([("hugepages-2Mi".to_owned(), gibibytes * GIB)]),
            taken: BTreeMap::from([("hugepages-2Mi".to_owned(), GIB)]),
            ..Room::default()
        }
    }

    fn warnings(pod: &Value) -> Vec<String> {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        advise(&pod, "team", None, &Claimable::Yes, || {
            vec![room("n1", 2), room("n2", 4)]
        })
    }

    const HUGE: (&str, &str) = ("MC_STORE_USE_HUGEPAGE", "1");
    const ARENA: (&str, &str) = ("MC_MMAP_ARENA_POOL_SIZE", "2gb");

    #[test]
    fn hugepages_without_a_limit_are_reported_with_the_injected_buffer() {
        let [words] = warnings(&pod(&[HUGE], json!({}))).try_into().unwrap();
        assert_eq!(
            words,
            "container main: insufficient_for_baseline: it requests 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE) and has no limit hugepages-2Mi, without which the kernel gives it none: \
             64Mi (32 pages) too little. Set resources.limits"
        );
    }

    #[test]
    fn a_limit_is_read_in_every_form_of_a_quantity() {
        for limit in ["32Mi", "33554432e0", "33554431.5"] {
            let limits = json!({"limits": {"hugepages-2Mi": limit}});
            let [words] = warnings(&pod(&[HUGE], limits)).try_into().unwrap();
            assert!(words.contains("its limit hugepages-2Mi is 32Mi"), "{words}");
        }
    }

    #[test]
    fn a_request_larger_than_every_node_is_reported_with_the_shortage() {
        let segment = |size| ("MOONCAKE_GLOBAL_SEGMENT_SIZE", size);
        let limit = |size: &str| json!({"limits": {"hugepages-2Mi": size}});
        let buffer = ("MOONCAKE_LOCAL_BUFFER_SIZE", "0");
        let fits = pod(&[HUGE, buffer, segment("3gb")], limit("3Gi"));
        assert!(warnings(&fits).is_empty());
        let [words] = warnings(&pod(&[HUGE, buffer, segment("4gb")], limit("4Gi")))
            .try_into()
            .unwrap();
        assert_eq!(
            words,
            "container main: insufficient_for_baseline: it requests 4Gi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE); of 2 eligible nodes, n2 has most beside pools, 3Gi: 1Gi (512 \
             pages) too little. Set more hugepages aside and restart the kubelet, or lower the request"
        );
        let [words] = warnings(&pod(&[HUGE, ARENA, buffer, segment("2gb")], limit("4Gi")))
            .try_into()
            .unwrap();
        assert!(
            words.contains("baseline_fits_arena_may_fallback") && words.contains("3Gi: 1Gi (512"),
            "{words}"
        );
        // Only the eligible nodes count.
        let mut chosen = fits;
        chosen["spec"]["nodeSelector"] = json!({"gpu": "n1"});
        let [words] = warnings(&chosen).try_into().unwrap();
        assert!(words.contains("of 1 eligible nodes, n1"), "{words}");
    }

    #[test]
    fn no_or_unreadable_hugepage_settings_give_no_warning() {
        let disabled = ("MC_DISABLE_MMAP_ARENA", "on");
        assert!(warnings(&pod(&[], json!({}))).is_empty());
        assert!(warnings(&pod(&[ARENA, disabled], json!({}))).is_empty());
        assert_eq!(warnings(&pod(&[ARENA], json!({}))).len(), 1);
        for unseen in [
            json!({"name": "MC_STORE_USE_HUGEPAGE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}),
            json!({"name": "MC_STORE_USE_HUGEPAGE", "value": "$(OTHER)"}),
        ] {
            let mut pod = pod(&[ARENA], json!({}));
            let environment = pod["spec"]["containers"][0]["env"].as_array_mut();
            environment.unwrap().push(unseen);
            assert!(warnings(&pod).is_empty());
        }
    }

    #[test]
    fn without_known_nodes_there_is_no_warning() {
        let limit = json!({"limits": {"hugepages-2Mi": "64Mi"}});
        let pod: Pod = serde_json::from_value(pod(&[HUGE], limit)).unwrap();
        assert!(advise(&pod, "team", None, &Claimable::Yes, Vec::new).is_empty());
    }

    #[test]
    fn an_rdma_pod_without_a_device_claim_is_warned_of_its_memlock_limit() {
        let warnings = |change: Value, claimable: &Claimable| {
            let spec = json!({"transports": {"rdma": "Require"}});
            let cluster = MooncakeCluster::new("kv", serde_json::from_value(spec).unwrap());
            let mut pod = pod(&[], json!({}));
            let container = &mut pod["spec"]["containers"][0];
            json_patch::merge(container, &change);
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let may = |node, memlock| Room {
                devices: 8,
                memlock,
                ..room(node, 4)
            };
            let rooms = || {
                vec![
                    may("n1", Some(8 << 20)),
                    may("n2", Some(GIB)),
                    may("n3", None),
                ]
            };
            advise(&pod, "team", Some(&cluster), claimable, rooms)
        };
        let no = Claimable::No("no DeviceClass".to_owned());
        let [words] = warnings(json!({}), &no).try_into().unwrap();
        assert_eq!(
            words,
            "container main: MemlockTooLow: it registers 64Mi with each RDMA device and claims none; on 1 of 3 \
             eligible nodes it may lock less: n1 lets it lock 8Mi of 512Mi (8 devices). A container \
             that claims its devices has no such limit"
        );
        let segment = json!({"env": [{"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "4gb"}]});
        let [words] = warnings(segment, &no).try_into().unwrap();
        assert!(
            words.contains("on 2 of 3") && words.contains("n2 lets it lock 1Gi of 33280Mi"),
            "{words}"
        );
        // The webhook claims, unless it cannot.
        assert!(warnings(json!({}), &Claimable::Yes).is_empty());
        for free in [
            json!({"resources": {"claims": [{"name": "rail"}]}}),
            json!({"securityContext": {"privileged": true}}),
            json!({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}),
            json!({"env": [{"name": "MOONCAKE_CONFIG_PATH", "value": "/etc/own.json"}]}),
        ] {
            assert!(warnings(free.clone(), &no).is_empty(), "{free}");
        }
    }
}
