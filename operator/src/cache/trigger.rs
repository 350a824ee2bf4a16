//! Whom a moved object concerns.

use crds::{MooncakeCluster, MooncakeNode, names};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};

/// Names one MooncakeCluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName {
    pub namespace: String,
    pub name: String,
}

/// Who is to be reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    Cluster(ClusterName),
    /// The nodes on which the cluster has pool pods.
    NodesOf(ClusterName),
    Node(String),
    /// The node whose agent came, went or moved, and its neighbours on the ring.
    Ring(String),
    /// The clusters and nodes that have to do with the ComputeDomain of that UID.
    Domain(String),
    /// The clusters of that namespace that want a ComputeDomain.
    Mnnvl(String),
    /// A policy moved, which may concern every node.
    Policies,
    Everything,
}

pub(super) fn of_cluster(cluster: &DeserializeGuard<MooncakeCluster>) -> Vec<Trigger> {
    named(cluster.namespace(), Some(cluster.name_any()))
        .map(|name| vec![Trigger::Cluster(name.clone()), Trigger::NodesOf(name)])
        .unwrap_or_default()
}

pub(super) fn of_report(report: &DeserializeGuard<MooncakeNode>) -> Vec<Trigger> {
    let mut triggers = vec![Trigger::Node(report.name_any())];
    let spec = report.0.iter().map(|report| &report.spec);
    let pools = spec.clone().flat_map(|spec| &spec.pools);
    let pools = pools.map(|pool| (&pool.namespace, &pool.cluster));
    let injected = spec.flat_map(|spec| &spec.injected);
    let injected = injected.map(|pod| (&pod.cluster_namespace, &pod.cluster));
    for (namespace, name) in pools.chain(injected) {
        let cluster = Trigger::Cluster(ClusterName {
            namespace: namespace.clone(),
            name: name.clone(),
        });
        if !triggers.contains(&cluster) {
            triggers.push(cluster);
        }
    }
    triggers
}

pub(super) fn of_component(pod: &Pod) -> Vec<Trigger> {
    let mut triggers = of_child(pod);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let labels = pod.labels();
    if labels.get(names::LABEL_COMPONENT).map(String::as_str) == Some(names::COMPONENT_MASTER) {
        triggers.extend(nodes_of(pod));
    } else if let Some(node) = node {
        triggers.push(Trigger::Node(node));
    }
    triggers
}

pub(super) fn of_agent(pod: &Pod) -> Vec<Trigger> {
    pod.spec
        .iter()
        .filter_map(|spec| spec.node_name.clone())
        .map(Trigger::Ring)
        .collect()
}

pub(super) fn of_labelled(pod: &Pod) -> Vec<Trigger> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let cluster = wanted_cluster(pod).map(Trigger::Cluster);
    cluster.into_iter().chain(node.map(Trigger::Node)).collect()
}

/// The master's address stands in MooncakeNodes.
pub(super) fn of_service(service: &Service) -> Vec<Trigger> {
    let mut triggers = of_child(service);
    triggers.extend(nodes_of(service));
    triggers
}

pub(super) fn of_child<K: Resource>(object: &K) -> Vec<Trigger> {
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

/// The cluster that a labelled pod asks for.
pub fn wanted_cluster(pod: &Pod) -> Option<ClusterName> {
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
