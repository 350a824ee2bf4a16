//! The values that a `why` report is based on: metadata, conditions and gate of the pod, its namespace, the webhook
//! and its cluster.

use crds::condition::find;
use crds::{ConditionType, MooncakeCluster, names};
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use kube::ResourceExt;
use mooncake_operator::admission::InjectionRequest;
use mooncake_operator::cluster::{container_compatibility, pod_conditions};
use mooncake_operator::pod::{GATE_CONTAINER, condition, gate_status};
use serde::Serialize;

use super::Inputs;
use crate::read_error::Resources;
use crate::webhook;

/// One value.
#[derive(Debug, Serialize)]
pub struct Evidence {
    pub source: String,
    pub value: String,
}

pub(super) fn of(
    inputs: &Inputs,
    namespace: &str,
    request: Option<&InjectionRequest>,
) -> Vec<Evidence> {
    let pod = &inputs.pod;
    let mut found = Vec::new();
    let mut add = |source: String, value: String| found.push(Evidence { source, value });
    for label in [
        names::LABEL_INJECT,
        names::LABEL_ACCESS,
        names::LABEL_HOST_ACCESS,
    ] {
        if let Some(value) = pod.labels().get(label) {
            add(format!("label {label}"), value.clone());
        }
    }
    for annotation in [
        names::ANNOTATION_CLUSTER_NAMESPACE,
        names::ANNOTATION_INJECTED,
        names::ANNOTATION_SKIPPED,
        names::ANNOTATION_CLAIM_SKIPPED,
    ] {
        if let Some(value) = pod.annotations().get(annotation) {
            add(format!("annotation {annotation}"), value.clone());
        }
    }
    for kind in [
        pod_conditions::INJECTED,
        pod_conditions::GATE,
        container_compatibility::CONDITION,
    ] {
        if let Some(condition) = condition(pod, kind) {
            add(format!("condition {kind}"), of_condition(condition));
        }
    }
    if let Some(gate) = gate_status(pod) {
        add(format!("sidecar {GATE_CONTAINER}"), of_gate(gate));
    }
    if let Some(labels) = &inputs.namespace_labels {
        let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        add(format!("namespace {namespace}"), labels.join(", "));
    }
    if let Some(found) = webhook::find(&inputs.webhooks) {
        let value = found
            .exclusion(pod, namespace, inputs.namespace_labels.as_ref())
            .unwrap_or_else(|| "selects this pod".to_owned());
        add(format!("webhook {}", webhook::NAME), value);
    }
    let Some(request) = request else { return found };
    let source = format!("MooncakeCluster {}/{}", request.namespace, request.cluster);
    if let Some(cluster) = &inputs.cluster {
        add(source, of_cluster(cluster));
    } else if inputs.has(Resources::CLUSTERS) {
        add(source, "not found".to_owned());
    }
    found
}

fn of_condition(condition: &PodCondition) -> String {
    let text = [&condition.reason, &condition.message];
    let text: Vec<&str> = text.into_iter().flatten().map(String::as_str).collect();
    format!("{} {}", condition.status, text.join(": "))
}

fn of_gate(gate: &ContainerStatus) -> String {
    let open = if gate.started == Some(true) {
        "open"
    } else {
        "not open"
    };
    let mut value = format!("{open}, {} restarts", gate.restart_count);
    let states = gate.last_state.iter().chain(&gate.state);
    let mut ends = states.filter_map(|state| state.terminated.as_ref()?.message.clone());
    if let Some(last) = ends.next_back() {
        value += &format!("; termination message: {}", last.trim());
    }
    value
}

fn of_cluster(cluster: &MooncakeCluster) -> String {
    let access = &cluster.spec.access;
    let policies = cluster.spec.transports_in_force();
    let ready = cluster
        .status
        .as_ref()
        .and_then(|status| find(&status.conditions, ConditionType::Ready))
        .map(|ready| format!("{} {}", ready.status, ready.reason));
    let or_none = |text: String| match text.as_str() {
        "" => "none".to_owned(),
        _ => text,
    };
    format!(
        "Ready {}; allowedNamespaces {}; allowHostNetwork {}; transports tcp {:?}, rdma {:?}",
        or_none(ready.unwrap_or_default()),
        or_none(access.allowed_namespaces.join(", ")),
        access.allow_host_network,
        policies.tcp,
        policies.rdma
    )
}
