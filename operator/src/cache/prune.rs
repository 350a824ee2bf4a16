//! Removes the fields of cached objects that the operator does not read.

use crds::cluster::PageSize;
use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus, Deployment};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Node, NodeSpec, NodeStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use kube::ResourceExt;
use kube::core::DeserializeGuard;

use crate::pod::{GATE_CONTAINER, GATE_OVER_RDMA, POOL_CONTAINER};

pub(crate) fn managed_fields<K: ResourceExt>(object: &mut K) {
    object.managed_fields_mut().clear();
}

pub(super) fn deployment(object: &mut Deployment) {
    managed_fields(object);
    object.status = None;
}

/// Keeps the numbers of pods that are wanted and that exist; the others change with each pod.
pub(super) fn daemon_set(object: &mut DaemonSet) {
    managed_fields(object);
    object.status = object.status.take().map(|status| DaemonSetStatus {
        observed_generation: status.observed_generation,
        desired_number_scheduled: status.desired_number_scheduled,
        current_number_scheduled: status.current_number_scheduled,
        ..DaemonSetStatus::default()
    });
}

pub(super) fn cluster(object: &mut DeserializeGuard<MooncakeCluster>) {
    managed_fields(object);
    object.annotations_mut().clear();
}

/// Node findings are most of the status and only for users; findings about pods are kept
/// for the pod conditions.
pub(crate) fn mooncake_node(object: &mut DeserializeGuard<MooncakeNode>) {
    managed_fields(object);
    let status = object.0.as_mut().ok().and_then(|node| node.status.as_mut());
    if let Some(status) = status {
        status.findings.retain(|finding| finding.pod_uid.is_some());
        status.findings.shrink_to_fit();
        status.later_findings = None;
    }
}

pub(super) fn node_policy(object: &mut DeserializeGuard<MooncakeNodePolicy>) {
    managed_fields(object);
    object.annotations_mut().clear();
}

/// Keeps labels (policies select by them), the resources and taints that pools need, and the operator's
/// cordon annotations.
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
        conditions: status.conditions.map(|mut all| {
            all.retain(|condition| condition.type_ == "Ready");
            for ready in &mut all {
                // It changes every few minutes.
                ready.last_heartbeat_time = None;
            }
            all
        }),
        allocatable: status.allocatable.map(|mut amounts| {
            let pooled = PageSize::ALL.map(PageSize::resource);
            amounts.retain(|resource, _| pooled.contains(&resource.as_str()));
            amounts
        }),
        node_info: status.node_info,
        ..NodeStatus::default()
    });
}

/// Keeps the arguments of pool containers and the probe port of agents.
fn container(container: Container) -> Option<Container> {
    let pool = container.name == POOL_CONTAINER;
    let mut ports = container.ports.unwrap_or_default();
    ports.retain(|port| port.name.as_deref() == Some(names::AGENT_PROBE_PORT));
    (pool || !ports.is_empty()).then(|| Container {
        name: container.name,
        args: container.args.filter(|_| pool),
        ports: (!ports.is_empty()).then_some(ports),
        ..Container::default()
    })
}

/// Keeps the gate of a pod that was injected with RDMA, and of its arguments the transport.
fn init_container(container: Container) -> Option<Container> {
    let mut arguments = container.args.unwrap_or_default();
    arguments.retain(|argument| argument == GATE_OVER_RDMA);
    let kept = container.name == GATE_CONTAINER && !arguments.is_empty();
    kept.then(|| Container {
        name: container.name,
        args: Some(arguments),
        ..Container::default()
    })
}

/// Keeps the states that messages and gates are read from.
fn container_status(status: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        name: status.name,
        state: status.state,
        last_state: status.last_state,
        ready: status.ready,
        started: status.started,
        ..ContainerStatus::default()
    }
}

/// Keeps the conditions of the scheduler and the kubelet that are read, and our own.
fn is_read(condition: &PodCondition) -> bool {
    let kind = condition.type_.as_str();
    matches!(kind, "Ready" | "PodScheduled") || kind.starts_with(names::GROUP)
}

pub(crate) fn pod(pod: &mut Pod) {
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
        init_containers: spec
            .init_containers
            .map(|all| all.into_iter().filter_map(init_container).collect()),
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        pod_ip: status.pod_ip,
        conditions: status
            .conditions
            .map(|all| all.into_iter().filter(is_read).collect()),
        container_statuses: status
            .container_statuses
            .map(|all| all.into_iter().map(container_status).collect()),
        init_container_statuses: status
            .init_container_statuses
            .map(|all| all.into_iter().map(container_status).collect()),
        ..PodStatus::default()
    });
}
