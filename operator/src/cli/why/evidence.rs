//! What an answer was read from: the pod's own marks, its gate, its namespace, the webhook, its cluster.

use crds::condition::find;
use crds::{ConditionType, names};
use kube::ResourceExt;
use serde::Serialize;

use super::Subject;
use crate::admission::{GATE_CONTAINER, Wish};
use crate::cli::unseen::What;
use crate::cli::webhook;
use crate::cluster::{fit, mirror};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    pub what: String,
    pub says: String,
}

pub(super) fn of(subject: &Subject, namespace: &str, wish: Option<&Wish>) -> Vec<Evidence> {
    let pod = &subject.pod;
    let mut found = Vec::new();
    let mut tell = |what: String, says: String| found.push(Evidence { what, says });
    let none = || "none".to_owned();
    for label in [
        names::LABEL_INJECT,
        names::LABEL_ACCESS,
        names::LABEL_HOST_ACCESS,
    ] {
        if let Some(value) = pod.labels().get(label) {
            tell(format!("label {label}"), value.clone());
        }
    }
    for annotation in [
        names::ANNOTATION_CLUSTER_NAMESPACE,
        names::ANNOTATION_INJECTED,
        names::ANNOTATION_SKIPPED,
        names::ANNOTATION_CLAIM_SKIPPED,
    ] {
        if let Some(value) = pod.annotations().get(annotation) {
            tell(format!("annotation {annotation}"), value.clone());
        }
    }
    for kind in [mirror::INJECTED, mirror::GATE, fit::FIT] {
        if let Some(condition) = mirror::condition(pod, kind) {
            let words = [&condition.reason, &condition.message];
            let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
            let says = format!("{} {}", condition.status, words.join(": "));
            tell(format!("condition {kind}"), says);
        }
    }
    let inits = pod.status.iter().flat_map(|status| {
        let inits = status.init_container_statuses.iter().flatten();
        inits.filter(|container| container.name == GATE_CONTAINER)
    });
    for gate in inits {
        let started = if gate.started == Some(true) {
            "open"
        } else {
            "not open"
        };
        let mut says = format!("{started}, restarted {} times", gate.restart_count);
        let ended = gate.last_state.iter().chain(&gate.state);
        let mut words = ended.filter_map(|state| state.terminated.as_ref()?.message.clone());
        if let Some(last) = words.next_back() {
            says.push_str(&format!("; it ended with: {}", last.trim()));
        }
        tell(format!("sidecar {GATE_CONTAINER}"), says);
    }
    if let Some(labels) = &subject.labels {
        let says: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        tell(format!("namespace {namespace}"), says.join(", "));
    }
    if let Some(found) = webhook::find(&subject.webhooks) {
        let says = found
            .passes_by(pod, namespace, subject.labels.as_ref())
            .unwrap_or_else(|| "called for pods like this one".to_owned());
        tell(format!("webhook {}", webhook::NAME), says);
    }
    let Some(wish) = wish else { return found };
    let name = format!("MooncakeCluster {}/{}", wish.namespace, wish.cluster);
    match &subject.cluster {
        None if subject.saw(What::Clusters) => tell(name, "there is none".to_owned()),
        None => {}
        Some(cluster) => {
            let access = &cluster.spec.access;
            let policies = cluster.spec.transports_in_force();
            let allowed = access.allowed_namespaces.join(", ");
            let ready = cluster
                .status
                .as_ref()
                .and_then(|status| find(&status.conditions, ConditionType::Ready))
                .map(|ready| format!("{} {}", ready.status, ready.reason));
            let says = format!(
                "Ready {}; allowedNamespaces {}; allowHostNetwork {}; transports tcp {:?}, rdma {:?}",
                ready.unwrap_or_else(none),
                if allowed.is_empty() { none() } else { allowed },
                access.allow_host_network,
                policies.tcp,
                policies.rdma
            );
            tell(name, says);
        }
    }
    found
}
