//! Maps a changed object to the objects to reconcile: only where a field changed that a reconcile reads. A status that
//! the operator itself wrote thus causes no reconcile. Pure.

use crds::condition::find;
use crds::node::{PoolAssignment, PoolReport};
use crds::{ConditionType, MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};

use crate::cordon_state::is_cordoned;

/// Names one MooncakeCluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName {
    pub namespace: String,
    pub name: String,
}

/// What to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    Cluster(ClusterName),
    /// The nodes on which the cluster has pool pods.
    NodesOf(ClusterName),
    Node(String),
    /// The node whose agent changed, and its neighbours on the ring.
    Ring(String),
    /// The clusters and nodes of the ComputeDomain with that UID.
    Domain(String),
    /// The clusters of that namespace that request a ComputeDomain.
    Mnnvl(String),
    /// A node was cordoned or uncordoned, or is about to be removed by an autoscaler: the clusters that drain such nodes.
    Cordons,
    /// A policy changed, which may affect every node.
    Policies,
    Everything,
}

/// True if the objects differ in more than their version.
pub(super) fn differs<K: Resource + Clone + PartialEq>(old: &K, new: &K) -> bool {
    if old.meta().resource_version == new.meta().resource_version {
        return false;
    }
    let mut old = old.clone();
    old.meta_mut()
        .resource_version
        .clone_from(&new.meta().resource_version);
    old != *new
}

/// The cluster and its nodes, after a change of the spec, of what the operator remembers of a ComputeDomain, or of the
/// transport, which the nodes of injected pods read; the cluster alone, after a change of what is remembered of its change to TCP.
pub(super) fn of_cluster(
    old: Option<&DeserializeGuard<MooncakeCluster>>,
    new: &DeserializeGuard<MooncakeCluster>,
) -> Vec<Trigger> {
    fn relevant(cluster: &DeserializeGuard<MooncakeCluster>) -> impl PartialEq + '_ {
        let decoded = cluster.0.as_ref().ok();
        let status = decoded.and_then(|cluster| cluster.status.as_ref());
        let meta = cluster.meta();
        (
            (meta.uid.as_ref(), meta.generation),
            meta.deletion_timestamp.is_some(),
            decoded.is_some(),
            status.and_then(|status| status.mnnvl.as_ref()),
            status.and_then(|status| status.transport.as_ref()),
        )
    }
    fn rdma_usable(cluster: &DeserializeGuard<MooncakeCluster>) -> Option<(&str, &Time)> {
        let status = cluster.0.as_ref().ok()?.status.as_ref()?;
        let usable = find(&status.conditions, ConditionType::RdmaUsable)?;
        Some((&*usable.status, &usable.last_transition_time))
    }
    let same_for_nodes = old.is_some_and(|old| relevant(old) == relevant(new));
    if same_for_nodes && old.is_some_and(|old| rdma_usable(old) == rdma_usable(new)) {
        return Vec::new();
    }
    let Some(name) = named(new.namespace(), Some(new.name_any())) else {
        return Vec::new();
    };
    let mut triggers = vec![Trigger::Cluster(name.clone())];
    if !same_for_nodes {
        triggers.push(Trigger::NodesOf(name));
    }
    triggers
}

/// The node, after a change of what the operator reads; the clusters whose pool pods changed; and the clusters of
/// injected pods, whose gates read findings that the cache lacks.
pub(super) fn of_mooncake_node(
    old: Option<&DeserializeGuard<MooncakeNode>>,
    new: &DeserializeGuard<MooncakeNode>,
) -> Vec<Trigger> {
    let before = old.and_then(|old| old.0.as_ref().ok());
    let Ok(now) = &new.0 else {
        let mut triggers = vec![Trigger::Node(new.name_any())];
        triggers.extend(before.into_iter().flat_map(pools_of).map(of_pool));
        return unique(triggers);
    };
    let mut triggers = Vec::new();
    if before.is_none_or(|before| read_by_node(before) != read_by_node(now)) {
        triggers.push(Trigger::Node(new.name_any()));
    }
    let same_agent = before.is_some_and(|before| agent(before) == agent(now));
    let changed = |pool: &&PoolAssignment| {
        let entry = |node: &MooncakeNode| {
            let mut pools = pools_of(node);
            pools.find(|other| other.pod_uid == pool.pod_uid).cloned()
        };
        let uid = &pool.pod_uid;
        !same_agent
            || before.is_none_or(|before| {
                entry(before) != entry(now) || service(before, uid) != service(now, uid)
            })
    };
    let pools = before.into_iter().flat_map(pools_of);
    let pools = pools.chain(pools_of(now)).filter(changed);
    triggers.extend(pools.map(of_pool));
    let injected = now.spec.injected.iter();
    triggers.extend(injected.map(|pod| {
        Trigger::Cluster(ClusterName {
            namespace: pod.cluster_namespace.clone(),
            name: pod.cluster.clone(),
        })
    }));
    unique(triggers)
}

fn unique(triggers: Vec<Trigger>) -> Vec<Trigger> {
    let mut unique: Vec<Trigger> = Vec::new();
    for trigger in triggers {
        if !unique.contains(&trigger) {
            unique.push(trigger);
        }
    }
    unique
}

fn pools_of(node: &MooncakeNode) -> impl Iterator<Item = &PoolAssignment> {
    node.spec.pools.iter()
}

fn of_pool(pool: &PoolAssignment) -> Trigger {
    Trigger::Cluster(ClusterName {
        namespace: pool.namespace.clone(),
        name: pool.cluster.clone(),
    })
}

/// What the reconcile of a node reads of its MooncakeNode.
fn read_by_node(node: &MooncakeNode) -> impl PartialEq + '_ {
    let status = node.status.as_ref();
    let conditions = status.iter().flat_map(|status| &status.conditions);
    let conditions = conditions.map(|one| (&one.type_, &one.status, &one.reason));
    let meta = node.meta();
    (
        (&meta.uid, &meta.deletion_timestamp, &meta.owner_references),
        &node.spec,
        status.map(|status| (&status.node_uid, &status.boot_id)),
        conditions.collect::<Vec<_>>(),
        status.map(|status| (&status.fixes, &status.findings, &status.devices)),
    )
}

/// Whether a cluster can believe the reports about its pool pods, and what the ports of the node have proved.
fn agent(node: &MooncakeNode) -> impl PartialEq + '_ {
    let status = node.status.as_ref();
    let alive = status.and_then(|status| find(&status.conditions, ConditionType::AgentAlive));
    (
        node.meta().deletion_timestamp.is_some(),
        (&node.spec.node_uid, &node.spec.boot_id),
        status.map(|status| (&status.node_uid, &status.boot_id)),
        alive.map(|alive| (&alive.status, &alive.reason)),
        // By them the transport is decided.
        status.map(|status| (&status.hcas, status.checks.is_some())),
    )
}

/// What a cluster reads of the report about one pool pod.
fn service<'a>(node: &'a MooncakeNode, pod_uid: &str) -> impl PartialEq + 'a + use<'a> {
    let pools = node.status.iter().flat_map(|status| &status.pools);
    let mut pools = pools.filter(|report: &&PoolReport| report.pod_uid == pod_uid);
    let read = |report: &'a PoolReport| {
        (
            report.state,
            report.reason,
            &report.message,
            &report.mounted,
            &report.master_pod_uid,
            &report.metadata_failure,
            report.transport,
        )
    };
    pools.next().map(read)
}

pub(super) fn of_component(old: Option<&Pod>, pod: &Pod) -> Vec<Trigger> {
    if old.is_some_and(|old| !differs(old, pod)) {
        return Vec::new();
    }
    let mut triggers = of_child(None, pod);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let labels = pod.labels();
    match labels.get(names::LABEL_COMPONENT).map(String::as_str) {
        Some(names::COMPONENT_MASTER) => triggers.extend(nodes_of(pod)),
        // No MooncakeNode contains it.
        Some(names::COMPONENT_GUARD) => {}
        _ => triggers.extend(node.map(Trigger::Node)),
    }
    triggers
}

pub(super) fn of_agent(old: Option<&Pod>, pod: &Pod) -> Vec<Trigger> {
    if old.is_some_and(|old| !differs(old, pod)) {
        return Vec::new();
    }
    pod.spec
        .iter()
        .filter_map(|spec| spec.node_name.clone())
        .map(Trigger::Ring)
        .collect()
}

pub(super) fn of_labelled(old: Option<&Pod>, pod: &Pod) -> Vec<Trigger> {
    if old.is_some_and(|old| !differs(old, pod)) {
        return Vec::new();
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let cluster = requested_cluster(pod).map(Trigger::Cluster);
    cluster.into_iter().chain(node.map(Trigger::Node)).collect()
}

/// MooncakeNodes contain the master's address.
pub(super) fn of_service(old: Option<&Service>, service: &Service) -> Vec<Trigger> {
    if old.is_some_and(|old| !differs(old, service)) {
        return Vec::new();
    }
    let mut triggers = of_child(None, service);
    triggers.extend(nodes_of(service));
    triggers
}

/// The Node, after a change of what its pruned object holds, and clusters that drain cordoned nodes.
pub(super) fn of_node(old: Option<&Node>, node: &Node) -> Vec<Trigger> {
    let same = old.is_some_and(|old| !differs(old, node));
    let mut changed: Vec<Trigger> = Vec::new();
    if !same {
        changed.push(Trigger::Node(node.name_any()));
    }
    // A deleted Node has no former one.
    if old.is_some_and(is_cordoned) != is_cordoned(node) {
        changed.push(Trigger::Cordons);
    }
    changed
}

pub(super) fn of_policy(
    old: Option<&DeserializeGuard<MooncakeNodePolicy>>,
    new: &DeserializeGuard<MooncakeNodePolicy>,
) -> Vec<Trigger> {
    let relevant = |policy: &DeserializeGuard<MooncakeNodePolicy>| {
        let meta = policy.meta();
        (meta.uid.clone(), meta.generation, policy.0.is_ok())
    };
    let same = old.is_some_and(|old| relevant(old) == relevant(new));
    (!same).then_some(Trigger::Policies).into_iter().collect()
}

pub(super) fn of_child<K: Resource + Clone + PartialEq>(
    old: Option<&K>,
    object: &K,
) -> Vec<Trigger> {
    if old.is_some_and(|old| !differs(old, object)) {
        return Vec::new();
    }
    cluster_of(object)
        .map(Trigger::Cluster)
        .into_iter()
        .collect()
}

fn nodes_of<K: Resource>(object: &K) -> Option<Trigger> {
    cluster_of(object).map(Trigger::NodesOf)
}

fn cluster_of<K: Resource>(object: &K) -> Option<ClusterName> {
    let meta = object.meta();
    let cluster = meta.labels.as_ref()?.get(names::LABEL_CLUSTER).cloned();
    named(meta.namespace.clone(), cluster)
}

/// The cluster that a labelled pod requests.
pub fn requested_cluster(pod: &Pod) -> Option<ClusterName> {
    let namespace = pod
        .annotations()
        .get(names::ANNOTATION_CLUSTER_NAMESPACE)
        .cloned()
        .or_else(|| pod.namespace());
    named(namespace, pod.labels().get(names::LABEL_INJECT).cloned())
}

fn named(namespace: Option<String>, name: Option<String>) -> Option<ClusterName> {
    Some(ClusterName {
        namespace: namespace?,
        name: name?,
    })
}

#[cfg(test)]
mod tests;
