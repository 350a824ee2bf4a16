//! What is said when a pod is injected whose engines ask, by their own variables, for more hugepages than
//! they will find: by how much, in the words of Mooncake's own helper. Nothing is refused for it. Pure.

use std::collections::BTreeMap;

use crds::stock::{Demand, Misfit};
use crds::{ByteSize, MooncakeCluster};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::advice::{Room, takes};
use super::target::Target;
use super::wish::Wish;
use super::{environment, sidecar};

/// The warnings about an injected pod, at most two for each container. `rooms` is asked where it matters.
pub(super) fn advise(
    pod: &Pod,
    namespace: &str,
    cluster: Option<&MooncakeCluster>,
    rooms: impl Fn() -> Vec<Room>,
) -> Vec<String> {
    let (Ok(Some(wish)), Some(spec)) = (Wish::of(pod, namespace), &pod.spec) else {
        return Vec::new();
    };
    let target = Target::new(&wish, cluster);
    let init = spec.init_containers.iter().flatten();
    let containers = init.chain(&spec.containers);
    let own = containers.filter(|container| container.name != sidecar::NAME);
    own.filter_map(|container| {
        let demand = environment::demand(container, &target)?;
        demand.asked().is_some().then_some((container, demand))
    })
    .flat_map(|(container, demand)| {
        let limit = beyond_limit(container, &demand);
        let nodes = beyond_nodes(spec, &demand, &rooms());
        let words = limit.into_iter().chain(nodes);
        words.map(|words| format!("container {}: {words}", container.name))
    })
    .collect()
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
        Some((_, Quantity(text))) => text.parse::<ByteSize>().ok()?.0,
    };
    let misfit = demand.misfit(limit)?;
    let Misfit { asked, status, .. } = &misfit;
    let has = match set {
        None => format!("has no limit {resource}, without which the kernel gives it none"),
        Some(_) => format!("its limit {resource} is {}", ByteSize(limit)),
    };
    Some(format!(
        "{status}: it asks for {asked} and {has}: {}. Set resources.limits",
        misfit.lacks()
    ))
}

/// A pod goes to one node: it is enough that one has room.
fn beyond_nodes(spec: &PodSpec, demand: &Demand, rooms: &[Room]) -> Option<String> {
    let resource = demand.page().resource();
    let none = BTreeMap::new();
    let selector = spec.node_selector.as_ref().unwrap_or(&none);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let mut allowed: Vec<&Room> = rooms
        .iter()
        .filter(|room| takes(room, selector, tolerations))
        .collect();
    allowed.sort_by(|one, other| {
        let left = |room: &Room| room.left(resource);
        left(other)
            .cmp(&left(one))
            .then_with(|| one.node.cmp(&other.node))
    });
    let best = allowed.first()?;
    let left = best.left(resource);
    let misfit = demand.misfit(left)?;
    let Misfit { asked, status, .. } = &misfit;
    Some(format!(
        "{status}: it asks for {asked}; of {} nodes that it may go to, {} has most beside pools, {}: {}. Set \
         more hugepages aside and restart the kubelet, or lower what it asks for",
        allowed.len(),
        best.node,
        ByteSize(left),
        misfit.lacks()
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

    fn said(pod: &Value) -> Vec<String> {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        advise(&pod, "team", None, || vec![room("n1", 2), room("n2", 4)])
    }

    const HUGE: (&str, &str) = ("MC_STORE_USE_HUGEPAGE", "1");
    const ARENA: (&str, &str) = ("MC_MMAP_ARENA_POOL_SIZE", "2gb");

    #[test]
    fn s20_hugepages_without_a_limit_are_told_with_the_buffer_that_the_webhook_gives() {
        let [words] = said(&pod(&[HUGE], json!({}))).try_into().unwrap();
        assert_eq!(
            words,
            "container main: insufficient_for_baseline: it asks for 64Mi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE) and has no limit hugepages-2Mi, without which the kernel gives it none: \
             64Mi (32 pages) too little. Set resources.limits"
        );
    }

    #[test]
    fn s21_s22_more_than_any_node_has_is_told_by_how_much_and_what_fits_is_not() {
        let segment = |size| ("MOONCAKE_GLOBAL_SEGMENT_SIZE", size);
        let limit = |size: &str| json!({"limits": {"hugepages-2Mi": size}});
        let buffer = ("MOONCAKE_LOCAL_BUFFER_SIZE", "0");
        let fits = pod(&[HUGE, buffer, segment("3gb")], limit("3Gi"));
        assert!(said(&fits).is_empty());
        let [words] = said(&pod(&[HUGE, buffer, segment("4gb")], limit("4Gi")))
            .try_into()
            .unwrap();
        assert_eq!(
            words,
            "container main: insufficient_for_baseline: it asks for 4Gi of hugepages-2Mi \
             (MC_STORE_USE_HUGEPAGE); of 2 nodes that it may go to, n2 has most beside pools, 3Gi: 1Gi (512 \
             pages) too little. Set more hugepages aside and restart the kubelet, or lower what it asks for"
        );
        let [words] = said(&pod(&[HUGE, ARENA, buffer, segment("2gb")], limit("4Gi")))
            .try_into()
            .unwrap();
        assert!(
            words.contains("baseline_fits_arena_may_fallback") && words.contains("3Gi: 1Gi (512"),
            "{words}"
        );
        // Only the nodes that it may go to count.
        let mut chosen = fits;
        chosen["spec"]["nodeSelector"] = json!({"gpu": "n1"});
        let [words] = said(&chosen).try_into().unwrap();
        assert!(
            words.contains("of 1 nodes that it may go to, n1"),
            "{words}"
        );
    }

    #[test]
    fn s23_what_asks_for_none_or_cannot_be_seen_is_told_nothing() {
        let disabled = ("MC_DISABLE_MMAP_ARENA", "on");
        assert!(said(&pod(&[], json!({}))).is_empty());
        assert!(said(&pod(&[ARENA, disabled], json!({}))).is_empty());
        assert_eq!(said(&pod(&[ARENA], json!({}))).len(), 1);
        for unseen in [
            json!({"name": "MC_STORE_USE_HUGEPAGE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}),
            json!({"name": "MC_STORE_USE_HUGEPAGE", "value": "$(OTHER)"}),
        ] {
            let mut pod = pod(&[ARENA], json!({}));
            let environment = pod["spec"]["containers"][0]["env"].as_array_mut();
            environment.unwrap().push(unseen);
            assert!(said(&pod).is_empty());
        }
    }

    #[test]
    fn of_nodes_that_nobody_knows_nothing_is_said() {
        let limit = json!({"limits": {"hugepages-2Mi": "64Mi"}});
        let pod: Pod = serde_json::from_value(pod(&[HUGE], limit)).unwrap();
        assert!(advise(&pod, "team", None, Vec::new).is_empty());
    }
}
