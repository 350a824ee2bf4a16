//! Facts read from one Pod.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crds::cluster::Transport;
use crds::{MooncakeCluster, names};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Resource, ResourceExt};

use crate::apply::owner;

/// Container of a pool pod.
pub const POOL_CONTAINER: &str = "pool";
/// The gate: sidecar container of an injected pod.
pub const GATE_CONTAINER: &str = "mooncake-gate";
/// Argument of the gate of a pod that was injected with RDMA. Without it the pod has TCP.
pub(crate) const GATE_OVER_RDMA: &str = "--transport=rdma";

/// The master pod that serves. `leader` is the name of the one that is elected, where there are several.
pub fn serving_master<'a>(pods: &'a [Arc<Pod>], leader: Option<&str>) -> Option<&'a Pod> {
    let Some(leader) = leader else {
        return ready_master(pods);
    };
    let mut pods = pods.iter().filter(|pod| is_ready(pod));
    pods.find(|pod| pod.name_any() == leader).map(AsRef::as_ref)
}

/// The name of the elected master, from the EndpointSlice that it writes.
pub fn leader(slice: &EndpointSlice) -> Option<String> {
    slice.endpoints.first()?.target_ref.as_ref()?.name.clone()
}

/// What nodes know as the instance of the master: the UID of the pod `serving` or, with several masters, that of the
/// MooncakeCluster. Pool pods then go on with the next leader by themselves.
pub fn master_instance(cluster: &MooncakeCluster, serving: Option<&Pod>) -> Option<String> {
    let serving = serving?;
    if cluster.spec.master.replicas() > 1 {
        cluster.uid()
    } else {
        serving.uid()
    }
}

/// The ready master pod; the newest where a former one is ready too.
pub fn ready_master(pods: &[Arc<Pod>]) -> Option<&Pod> {
    pods.iter()
        .filter(|pod| is_ready(pod) && pod.meta().deletion_timestamp.is_none())
        .filter(|pod| owner(pod.meta()).is_some_and(|owner| owner.kind == "ReplicaSet"))
        .max_by_key(|pod| pod.creation_timestamp().map(|time| time.0))
        .map(AsRef::as_ref)
}

/// True where the pod has that value of the component label.
pub fn is_component(pod: &Pod, component: &str) -> bool {
    let label = pod.labels().get(names::LABEL_COMPONENT);
    label.is_some_and(|label| label == component)
}

/// The pod's condition `Ready`.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// The scheduler's message on a pod without a node.
pub(crate) fn unscheduled(pod: &Pod) -> Option<&str> {
    let scheduled = condition(pod, "PodScheduled")?;
    let message = scheduled.message.as_deref();
    message.filter(|_| scheduled.status == "False")
}

/// True where the pod's containers will not run again.
pub fn is_over(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
}

/// The gate of an injected pod.
pub(crate) fn gate(pod: &Pod) -> Option<&Container> {
    let mut init = pod.spec.as_ref()?.init_containers.iter().flatten();
    init.find(|container| container.name == GATE_CONTAINER)
}

/// What the kubelet reports of the gate of an injected pod.
pub fn gate_status(pod: &Pod) -> Option<&ContainerStatus> {
    let mut init = pod
        .status
        .as_ref()?
        .init_container_statuses
        .iter()
        .flatten();
    init.find(|container| container.name == GATE_CONTAINER)
}

/// The transport with which an injected pod was injected.
pub fn injected_transport(pod: &Pod) -> Transport {
    let gate = gate(pod).into_iter();
    let mut arguments = gate.flat_map(|gate| gate.args.iter().flatten());
    match arguments.any(|argument| argument == GATE_OVER_RDMA) {
        true => Transport::Rdma,
        false => Transport::Tcp,
    }
}

/// The node of a pool pod: where it is bound or, before that, where its DaemonSet wants it.
pub fn node_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    spec.node_name.clone().or_else(|| {
        let terms = &spec
            .affinity
            .as_ref()?
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()?
            .node_selector_terms;
        terms
            .iter()
            .flat_map(|term| term.match_fields.iter().flatten())
            .find(|field| field.key == "metadata.name" && field.operator == "In")?
            .values
            .as_ref()?
            .first()
            .cloned()
    })
}

/// Why a container does not run, as the kubelet reports it; `None` where it runs.
pub fn not_running(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let cause = |reason: Option<&String>, message: Option<&String>| {
        let parts = [reason, message].into_iter().flatten();
        parts.cloned().collect::<Vec<_>>().join(": ")
    };
    if let Some(waiting) = &state.waiting {
        let cause = cause(waiting.reason.as_ref(), waiting.message.as_ref());
        return Some(format!("container {} waits: {cause}", container.name));
    }
    let ended = state.terminated.as_ref()?;
    let cause = cause(ended.reason.as_ref(), ended.message.as_ref());
    Some(format!(
        "container {} ended with {}: {cause}",
        container.name, ended.exit_code
    ))
}

/// A condition of the pod.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// Address at which other agents probe the path to this agent.
pub fn probed_at(pod: &Pod) -> Option<SocketAddr> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let port = containers
        .flat_map(|container| container.ports.iter().flatten())
        .find(|port| port.name.as_deref() == Some(names::AGENT_PROBE_PORT))?;
    let over = pod.meta().deletion_timestamp.is_some() || is_over(pod);
    let address = address(pod).filter(|_| !over)?;
    Some(SocketAddr::new(
        address,
        u16::try_from(port.container_port).ok()?,
    ))
}

/// The pod's own address.
pub fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}
