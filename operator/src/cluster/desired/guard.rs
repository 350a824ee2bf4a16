//! The guards of nodes with pool pods, and the PodDisruptionBudget that refuses their eviction: `kubectl drain` waits for them,
//! while it leaves the pods of DaemonSets alone.

use std::collections::BTreeMap;

use crds::names;
use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodSpec, ResourceRequirements, Toleration,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::apply::fingerprint;
use crate::cluster::desired::{component, metadata};
use crate::cluster::validate::{Settings, Valid};
use crate::pod_parts::{amounts, container_security, pod_security};

/// On a guard: the node that it guards.
const ANNOTATION_NODE: &str = "mooncake.io/node";
/// On a guard: fingerprint of its spec. A guard with another one is outdated. The cache keeps no spec of a pod.
const ANNOTATION_SPEC: &str = "mooncake.io/guard-spec";
/// Longest name of a Pod.
const LONGEST_NAME: usize = 253;
/// Taints that a node gets while it is cordoned or unhealthy. Pods of DaemonSets tolerate them as well.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
];

/// Refuses every eviction of a guard: the operator deletes guards. Only a number is valid for pods whose owner has no scale.
pub fn budgets(cluster: &Valid) -> Vec<PodDisruptionBudget> {
    if !cluster.drains_cordoned() {
        return Vec::new();
    }
    let mut metadata = metadata(cluster, names::guard_budget(&cluster.name));
    let labels = component(cluster, names::COMPONENT_GUARD);
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels.clone());
    vec![PodDisruptionBudget {
        metadata,
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::MAX)),
            selector: Some(LabelSelector {
                match_labels: Some(labels),
                match_expressions: None,
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }]
}

/// The guard of `node`. The cluster is its controller, so `kubectl drain` evicts it without `--force`.
pub fn pod(cluster: &Valid, settings: &Settings, node: &str) -> Pod {
    let mut metadata = metadata(cluster, name(&cluster.name, node));
    metadata
        .labels
        .get_or_insert_default()
        .extend(component(cluster, names::COMPONENT_GUARD));
    metadata.annotations = Some(BTreeMap::from([
        (ANNOTATION_NODE.to_owned(), node.to_owned()),
        (ANNOTATION_SPEC.to_owned(), revision(cluster, settings)),
    ]));
    Pod {
        metadata,
        spec: Some(PodSpec {
            affinity: Some(on(node)),
            ..spec(cluster, settings)
        }),
        status: None,
    }
}

/// What the guards of all nodes have in common.
fn spec(cluster: &Valid, settings: &Settings) -> PodSpec {
    PodSpec {
        service_account_name: Some(names::pool_service(&cluster.name)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        tolerations: Some(tolerations(cluster)),
        // Not that of pool pods: autoscalers do not count pods of a low priority, and remove the node without a drain.
        priority_class_name: settings.guard_priority_class.clone(),
        termination_grace_period_seconds: Some(5),
        security_context: Some(pod_security()),
        containers: vec![Container {
            name: names::COMPONENT_GUARD.to_owned(),
            image: Some(settings.pool_image.clone()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            command: Some(vec!["/pool".to_owned(), "guard".to_owned()]),
            resources: Some(ResourceRequirements {
                requests: Some(amounts([("cpu", "1m"), ("memory", "8Mi")])),
                limits: Some(amounts([("memory", "16Mi")])),
                claims: None,
            }),
            security_context: Some(container_security()),
            ..Container::default()
        }],
        ..PodSpec::default()
    }
}

/// Fingerprint of the spec that guards get now.
pub fn revision(cluster: &Valid, settings: &Settings) -> String {
    fingerprint(&spec(cluster, settings))
}

/// Fingerprint of the spec that the guard was created for; `None`: by a release without it.
pub fn revision_of(pod: &Pod) -> Option<&String> {
    pod.annotations().get(ANNOTATION_SPEC)
}

/// The node that a guard guards, also before it is bound.
pub fn node_of(pod: &Pod) -> Option<String> {
    pod.annotations().get(ANNOTATION_NODE).cloned()
}

fn name(cluster: &str, node: &str) -> String {
    let readable = format!("{cluster}-guard-{node}");
    if readable.len() <= LONGEST_NAME {
        readable
    } else {
        format!("{cluster}-guard-{}", fingerprint(&node))
    }
}

/// The scheduler counts its requests, as those of the pods of a DaemonSet.
fn on(node: &str) -> Affinity {
    let named = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_expressions: None,
                    match_fields: Some(vec![named]),
                }],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// The tolerations of all pools, and those that pods of DaemonSets get. Sorted: another sequence of the pools makes no guard outdated.
fn tolerations(cluster: &Valid) -> Vec<Toleration> {
    let common = TOLERATED.map(|(key, effect)| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    });
    let pools = cluster.pools.iter().flat_map(|pool| &pool.tolerations);
    let pools = pools.filter(|toleration| !common.contains(toleration));
    let mut all: Vec<Toleration> = pools.cloned().collect();
    all.sort_by_cached_key(|toleration| {
        let of = |part: &Option<String>| part.clone();
        (
            of(&toleration.key),
            of(&toleration.operator),
            of(&toleration.value),
            of(&toleration.effect),
            toleration.toleration_seconds,
        )
    });
    all.dedup();
    all.extend(common);
    all
}
