//! Pods that carry the label `mooncake.io/inject`: were they injected, and is their gate open.

use std::sync::Arc;

use crds::{ConditionType, Finding, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::admission::GATE_CONTAINER;
use crate::apply::Writer;
use crate::cluster::observe::is_over;
use crate::cluster::validate::Valid;

/// Pods that a message names at most.
const TOLD: usize = 5;

/// The condition PodsInjected.
pub fn finding(cluster: &Valid, labelled: &[Arc<Pod>]) -> Finding {
    let kind = ConditionType::PodsInjected;
    let alive: Vec<&Arc<Pod>> = labelled
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none() && !is_over(pod))
        .collect();
    let left: Vec<(Reason, String)> = alive
        .iter()
        .filter_map(|pod| {
            let (reason, words) = trouble(cluster, pod)?;
            let namespace = pod.namespace().unwrap_or_default();
            Some((
                reason,
                format!("pod {namespace}/{}: {words}", pod.name_any()),
            ))
        })
        .collect();
    let Some((reason, _)) = left.first() else {
        let message = format!("{} labelled pods, every one injected", alive.len());
        return Finding::new(kind, true, Reason::AsExpected, message);
    };
    let mut message = left
        .iter()
        .take(TOLD)
        .map(|(_, words)| words.as_str())
        .collect::<Vec<_>>()
        .join("; ");
    if left.len() > TOLD {
        message.push_str(&format!("; and {} more", left.len() - TOLD));
    }
    message.push_str(&format!(". Remedy: {}", reason.remedy()));
    Finding::new(kind, false, *reason, message)
}

fn trouble(cluster: &Valid, pod: &Pod) -> Option<(Reason, String)> {
    let namespace = pod.namespace().unwrap_or_default();
    if !cluster.admits(&namespace) {
        let words = format!("namespace {namespace} is not in spec.access.allowedNamespaces");
        return Some((Reason::NamespaceNotAllowed, words));
    }
    let has = |label: &str| pod.labels().get(label) == Some(&cluster.name);
    let host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    if host && !cluster.allow_host_network {
        let words = "it uses the host's network".to_owned();
        return Some((Reason::HostNetworkNotAllowed, words));
    }
    if has(names::LABEL_ACCESS) || has(names::LABEL_HOST_ACCESS) {
        return None;
    }
    let words = pod
        .annotations()
        .get(names::ANNOTATION_SKIPPED)
        .map_or_else(
            || "the webhook did not see it".to_owned(),
            |why| format!("the webhook left it as it was: {why}"),
        );
    Some((Reason::NotInjected, words))
}

/// Pod condition that repeats what the pod's gate found.
pub const GATE_CONDITION: &str = "mooncake.io/GateReady";

/// What a pod's gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gate {
    open: bool,
    reason: String,
    message: String,
}

/// Repeats each injected pod's gate as a condition of the pod. A pod whose condition cannot be
/// written is logged: the next look tries again.
pub async fn mirror_gates(
    client: &Client,
    writer: &Writer,
    cluster: &Valid,
    labelled: &[Arc<Pod>],
) {
    for pod in labelled {
        let Some(gate) = gate(pod).filter(|gate| !stands(pod, gate)) else {
            continue;
        };
        if !cluster.admits(&pod.namespace().unwrap_or_default()) || is_over(pod) {
            continue;
        }
        let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        let body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "uid": pod.uid() },
            "status": { "conditions": [{
                "type": GATE_CONDITION,
                "status": if gate.open { "True" } else { "False" },
                "reason": gate.reason,
                "message": gate.message,
                "lastTransitionTime": since(pod, &gate, Timestamp::now()),
            }]},
        });
        if let Err(error) = writer.apply_status(&api, &name, &body).await {
            tracing::warn!(pod = %name, %error, "gate not mirrored");
        }
    }
}

/// Reads the gate's container; `None` where the pod has none, or it was not yet started.
fn gate(pod: &Pod) -> Option<Gate> {
    let container = pod
        .status
        .as_ref()?
        .init_container_statuses
        .iter()
        .flatten()
        .find(|container| container.name == GATE_CONTAINER)?;
    let open = container.started == Some(true);
    // Written by the gate when its deadline passed: "<Reason>: words".
    let ended = container.last_state.iter().chain(&container.state);
    let verdict = ended
        .filter_map(|state| state.terminated.as_ref()?.message.clone())
        .find_map(|said| {
            let (reason, words) = said.split_once(": ")?;
            let known = Reason::ALL.iter().any(|known| known.as_str() == reason);
            known.then(|| (reason.to_owned(), words.trim().to_owned()))
        });
    Some(match (verdict, open) {
        (Some((reason, words)), _) => Gate {
            open: false,
            reason,
            message: if open {
                format!("the pod was let go without an answer: {words}")
            } else {
                words
            },
        },
        (None, true) => Gate {
            open,
            reason: Reason::AsExpected.as_str().to_owned(),
            message: "master and pools answered from inside the pod".to_owned(),
        },
        (None, false) => Gate {
            open,
            reason: Reason::GateWaiting.as_str().to_owned(),
            message: "the gate waits; the pod's events of the startup probe say for what"
                .to_owned(),
        },
    })
}

fn condition(pod: &Pod) -> Option<&PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == GATE_CONDITION)
}

fn stands(pod: &Pod, gate: &Gate) -> bool {
    condition(pod).is_some_and(|standing| {
        (standing.status == "True") == gate.open
            && standing.reason.as_ref() == Some(&gate.reason)
            && standing.message.as_ref() == Some(&gate.message)
    })
}

fn since(pod: &Pod, gate: &Gate, now: Timestamp) -> Time {
    condition(pod)
        .filter(|standing| (standing.status == "True") == gate.open)
        .and_then(|standing| standing.last_transition_time.clone())
        .unwrap_or(Time(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn labelled(text: &str) -> Arc<Pod> {
        let mut pod: Pod = serde_yaml_ng::from_str(text).unwrap();
        pod.labels_mut()
            .insert(names::LABEL_INJECT.to_owned(), "kv".to_owned());
        Arc::new(pod)
    }

    #[test]
    fn a_labelled_pod_without_access_is_named_with_the_webhooks_reason() {
        let cluster = fixture::valid("{}");
        let skipped = labelled(
            "{metadata: {name: a, namespace: team, annotations: \
             {mooncake.io/injection-skipped: 'HostNetworkNotAllowed: it uses it'}}}",
        );
        let unseen = labelled("{metadata: {name: b, namespace: team}}");
        let found = finding(&cluster, &[skipped, unseen]);
        assert_eq!(found.reason, Reason::NotInjected);
        assert!(found.message.contains("team/a: the webhook left it"));
        assert!(found.message.contains("team/b: the webhook did not see it"));
    }

    #[test]
    fn an_injected_pod_of_an_allowed_namespace_is_no_trouble() {
        let pod =
            labelled("{metadata: {name: a, namespace: other, labels: {mooncake.io/access: kv}}}");
        let allowed = fixture::valid("{access: {allowedNamespaces: [other]}}");
        let found = finding(&allowed, std::slice::from_ref(&pod));
        assert_eq!(found.reason, Reason::AsExpected);
        let found = finding(&fixture::valid("{}"), &[pod]);
        assert_eq!(found.reason, Reason::NamespaceNotAllowed);
    }

    #[test]
    fn the_gates_last_words_are_the_pods_condition() {
        let status = |state: &str| {
            labelled(&format!(
                "{{metadata: {{name: a}}, status: {{initContainerStatuses: [{{name: {GATE_CONTAINER}, \
                 image: x, imageID: x, ready: false, restartCount: 1, {state}}}]}}}}"
            ))
        };
        let waiting = gate(&status("started: false")).unwrap();
        assert_eq!(
            (waiting.open, waiting.reason.as_str()),
            (false, "GateWaiting")
        );
        let open = gate(&status("started: true")).unwrap();
        assert!(open.open);
        let late = gate(&status(
            "started: true, lastState: {terminated: {exitCode: 0, message: 'GateTimedOut: no pool'}}",
        ))
        .unwrap();
        assert_eq!((late.open, late.reason.as_str()), (false, "GateTimedOut"));
        assert!(late.message.ends_with("no pool"));
    }
}
