//! What is dropped from objects before they are kept: everything that nobody reads.

use crds::cluster::PageSize;
use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use k8s_openapi::api::core::v1::{Container, Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus};
use kube::ResourceExt;
use kube::core::DeserializeGuard;

use crate::cluster::desired::pool;

pub(crate) fn managed_fields<K: ResourceExt>(object: &mut K) {
    object.managed_fields_mut().clear();
}

pub(super) fn cluster(object: &mut DeserializeGuard<MooncakeCluster>) {
    managed_fields(object);
    object.annotations_mut().clear();
}

/// What a node has and what its checks found is most of its status, and for people; what they found in a
/// pod, the pod is told.
pub(super) fn report(object: &mut DeserializeGuard<MooncakeNode>) {
    managed_fields(object);
    let status = object.0.as_mut().ok().and_then(|node| node.status.as_mut());
    if let Some(status) = status {
        status.hcas = Vec::new();
        status.findings.retain(|finding| finding.pod_uid.is_some());
        status.findings.shrink_to_fit();
    }
}

pub(super) fn node_policy(object: &mut DeserializeGuard<MooncakeNodePolicy>) {
    managed_fields(object);
    object.annotations_mut().clear();
}

/// Its labels stay: policies select by any of them. So does what pools take and where they may not go, and
/// whether it was cordoned by us.
pub(super) fn node(node: &mut Node) {
    managed_fields(node);
    let marks = [names::ANNOTATION_CORDONED, names::ANNOTATION_REPAIR];
    node.annotations_mut()
        .retain(|key, _| marks.contains(&key.as_str()));
    node.spec = node.spec.take().map(|spec| NodeSpec {
        taints: spec.taints,
        unschedulable: spec.unschedulable,
        ..NodeSpec::default()
    });
    node.status = node.status.take().map(|status| NodeStatus {
        conditions: status
            .conditions
            .map(|all| all.into_iter().filter(|c| c.type_ == "Ready").collect()),
        allocatable: status.allocatable.map(|mut amounts| {
            let pooled = PageSize::ALL.map(PageSize::resource);
            amounts.retain(|resource, _| pooled.contains(&resource.as_str()));
            amounts
        }),
        node_info: status.node_info,
        ..NodeStatus::default()
    });
}

/// What a pool pod was made with, and where an agent is proved to be.
fn container(container: Container) -> Option<Container> {
    let pool = container.name == pool::CONTAINER;
    let mut ports = container.ports.unwrap_or_default();
    ports.retain(|port| port.name.as_deref() == Some(names::AGENT_PROBE_PORT));
    (pool || !ports.is_empty()).then(|| Container {
        name: container.name,
        args: container.args.filter(|_| pool),
        ports: (!ports.is_empty()).then_some(ports),
        ..Container::default()
    })
}

pub(super) fn pod(pod: &mut Pod) {
    managed_fields(pod);
    let kept = |key: &str| key.starts_with(names::GROUP);
    pod.annotations_mut().retain(|key, _| kept(key));
    pod.labels_mut().retain(|key, _| kept(key));
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        node_name: spec.node_name,
        host_network: spec.host_network,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        affinity: spec.affinity,
        containers: spec.containers.into_iter().filter_map(container).collect(),
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        pod_ip: status.pod_ip,
        conditions: status.conditions,
        container_statuses: status.container_statuses,
        init_container_statuses: status.init_container_statuses,
        ..PodStatus::default()
    });
}
