//! Findings of pods, by the operator's functions: pool pods that do not serve, labelled pods that are not injected
//! or wait for their gate.

use crds::{MooncakeCluster, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use mooncake_operator::admission::InjectionRequest;
use mooncake_operator::apply::owner;
use mooncake_operator::cluster::pool_pod::{PoolService, evaluate, parse_reason};
use mooncake_operator::cluster::validate::validate;
use mooncake_operator::cluster::{container_compatibility, injection, pod_conditions};
use mooncake_operator::pod::{
    condition, is_ready, master_instance, node_of, not_running, ready_master,
};

use super::finding::{Finding, Object, Severity, elapsed, severity};
use crate::read_error::Resources;
use crate::snapshot::{Snapshot, with_component};

/// Default of `spec.injection.deadlineSeconds`, for clusters that could not be read.
const DEADLINE_SECONDS: u32 = 120;

/// Pool pods that do not serve.
pub(super) fn pool_pods(snapshot: &Snapshot, now: Timestamp) -> Vec<Finding> {
    let (nodes, masters) = (snapshot.nodes_by_name(), snapshot.masters());
    let master = |pod: &Pod| {
        let cluster = pod.labels().get(names::LABEL_CLUSTER)?;
        let pods = masters.get(&(pod.metadata.namespace.as_deref()?, cluster.as_str()))?;
        let ready = ready_master(pods)?;
        let clusters = &snapshot.clusters;
        let of = |found: &&MooncakeCluster| {
            found.metadata.namespace == pod.metadata.namespace
                && found.metadata.name.as_deref() == Some(cluster)
        };
        match clusters.iter().find(of) {
            Some(found) => master_instance(found, Some(ready)),
            None => ready.uid(),
        }
    };
    let has_nodes = snapshot.has(Resources::MOONCAKE_NODES);
    with_component(&snapshot.pods, names::COMPONENT_POOL)
        // Labels alone do not make a pool pod.
        .filter(|pod| owner(pod.meta()).is_some_and(|owner| owner.kind == "DaemonSet"))
        .filter_map(|pod| {
            let node = node_of(pod).unwrap_or_default();
            let report = nodes.get(node.as_str()).copied();
            let service = evaluate(pod, report, master(pod).as_deref(), now).service;
            pool_pod(pod, service, has_nodes).map(|finding| finding.on(node))
        })
        .collect()
}

fn pool_pod(pod: &Pod, service: PoolService, has_nodes: bool) -> Option<Finding> {
    let object = Object::of("Pod", pod);
    match service {
        PoolService::Serving { .. } => None,
        PoolService::NotServing { reason, message } => Some(Finding::new(
            severity(reason, None),
            reason,
            object,
            message,
        )),
        // Without the MooncakeNode, the pod's condition Ready has the same meaning.
        PoolService::Unknown { .. } if !has_nodes => {
            if is_ready(pod) {
                return None;
            }
            let message = not_running_container(pod).unwrap_or_else(|| {
                "it is not Ready; its MooncakeNode, which has the cause, could not be read"
                    .to_owned()
            });
            Some(Finding::error(Reason::PoolPodNotReady, object, message))
        }
        PoolService::Unknown { reason, message } => {
            let severity = severity(reason, None);
            Some(Finding::new(severity, reason, object, message).secondary())
        }
    }
}

/// The kubelet's message about the first container that does not run.
pub(super) fn not_running_container(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    init.filter(|container| !container.ready)
        .chain(status.container_statuses.iter().flatten())
        .find_map(not_running)
}

/// Labelled pods that are not injected or wait for their gate.
pub(super) fn labelled(snapshot: &Snapshot, now: Timestamp) -> impl Iterator<Item = Finding> {
    let pods = snapshot.active_labelled();
    pods.filter_map(move |pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let finding = of_pod(snapshot, pod, now)?;
        Some(finding.on(node.unwrap_or_default()))
    })
}

fn of_pod(snapshot: &Snapshot, pod: &Pod, now: Timestamp) -> Option<Finding> {
    let created = pod.creation_timestamp().map(|time| time.0);
    let object = Object::of("Pod", pod);
    let namespace = pod.namespace().unwrap_or_default();
    let request = match InjectionRequest::of(pod, &namespace) {
        Ok(request) => request?,
        Err(error) => {
            let finding = Finding::error(Reason::NotInjected, object, error.to_string());
            return Some(finding.since(created));
        }
    };
    let cluster = snapshot.cluster(&request);
    if cluster.is_none() && snapshot.has(Resources::CLUSTERS) && snapshot.covers(&request.namespace)
    {
        let message = format!(
            "MooncakeCluster {}/{} does not exist",
            request.namespace, request.cluster
        );
        let finding = Finding::error(Reason::ClusterMissing, object, message);
        return Some(finding.since(created));
    }
    let skipped = match cluster.map(validate) {
        Some(Ok(valid)) => injection::problem(&valid, pod),
        // The invalid cluster has a finding of its own.
        Some(Err(_)) => return None,
        None => not_injected(pod, &request.cluster),
    };
    if let Some((reason, message)) = skipped {
        return Some(Finding::error(reason, object, message).since(created));
    }
    let Some(gate) = pod_conditions::gate(pod).filter(|gate| !gate.holds) else {
        // The finding of the MooncakeNode is preferred.
        let condition = condition(pod, container_compatibility::CONDITION)
            .filter(|_| !snapshot.has(Resources::MOONCAKE_NODES))?;
        let reason = parse_reason(condition.reason.as_deref().unwrap_or_default());
        let message = condition.message.as_deref().unwrap_or_default();
        let since = condition.last_transition_time.as_ref().map(|time| time.0);
        let finding = Finding::warning(reason, object, message).since(since);
        return (condition.status == "False").then_some(finding);
    };
    let since = condition(pod, pod_conditions::GATE)
        .filter(|condition| condition.status == "False")
        .and_then(|condition| condition.last_transition_time.as_ref().map(|time| time.0))
        .or(created);
    let reason = parse_reason(&gate.reason);
    let deadline = cluster.map_or(DEADLINE_SECONDS, |c| c.spec.injection.deadline_seconds);
    let in_time = elapsed(since, now).is_none_or(|seconds| seconds <= i64::from(deadline));
    let severity = if reason == Reason::GateWaiting && in_time {
        Severity::Warning
    } else {
        Severity::Error
    };
    Some(Finding::new(severity, reason, object, gate.message).since(since))
}

/// Why a pod is not injected, by its labels and annotations alone: its cluster could not be read.
pub(crate) fn not_injected(pod: &Pod, cluster: &str) -> Option<(Reason, String)> {
    let injected = [names::LABEL_ACCESS, names::LABEL_HOST_ACCESS]
        .iter()
        .any(|label| {
            let value = pod.labels().get(*label);
            value.is_some_and(|value| value == cluster)
        });
    let message = match pod.annotations().get(names::ANNOTATION_SKIPPED) {
        Some(cause) => format!("the webhook skipped it: {cause}"),
        None => "the webhook did not process it".to_owned(),
    };
    (!injected).then_some((Reason::NotInjected, message))
}
