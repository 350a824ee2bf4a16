//! Findings of the control plane: operator, agents and webhook that are missing or not ready, and releases that
//! differ.

use std::collections::{BTreeMap, BTreeSet};

use crds::text::first_names;
use crds::{Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_operator::node::liveness::ABSENCE_LIMIT;
use mooncake_operator::pod::{is_over, is_ready};

use super::finding::{Finding, Object, Severity, elapsed};
use super::pod::not_running_container;
use crate::read_error::Resources;
use crate::snapshot::{Snapshot, with_component};
use crate::webhook;

/// Label of the chart with its release.
const LABEL_VERSION: &str = "app.kubernetes.io/version";
/// Nodes in one message.
const MAX_NODES: usize = 5;

pub(super) fn findings(snapshot: &Snapshot, release: &str, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    if snapshot.has(Resources::OPERATORS) {
        let operators = snapshot.operators.iter();
        found.extend(operators.filter_map(|set| operator(snapshot, set)));
        if snapshot.operators.is_empty() {
            let object = Object::named("Deployment", "mooncake-operator");
            let component = names::COMPONENT_OPERATOR;
            found.push(missing(Reason::OperatorMissing, object, component));
        }
    }
    if snapshot.has(Resources::WEBHOOKS) {
        found.extend(injection(snapshot));
    }
    if snapshot.has(Resources::AGENTS) {
        let agents = snapshot.agents.iter();
        found.extend(agents.filter_map(|set| agent_set(snapshot, set)));
        if snapshot.agents.is_empty() {
            let object = Object::named("DaemonSet", "mooncake-agent");
            found.push(missing(
                Reason::AgentMissing,
                object,
                names::COMPONENT_AGENT,
            ));
        }
    }
    let agents = with_component(&snapshot.control_plane, names::COMPONENT_AGENT);
    found.extend(
        agents
            .filter(|pod| !is_ready(pod) && !is_over(pod))
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .map(|pod| agent_pod(pod, now)),
    );
    found.extend(releases(snapshot, release));
    found
}

/// Operator pods that are not ready.
fn operator(snapshot: &Snapshot, operator: &Deployment) -> Option<Finding> {
    let desired = operator.spec.as_ref().and_then(|spec| spec.replicas);
    let desired = desired.unwrap_or(1);
    let status = operator.status.as_ref();
    let ready = status.and_then(|s| s.ready_replicas).unwrap_or(0);
    if ready >= desired && ready > 0 {
        return None;
    }
    // The other replicas are standbys.
    let severity = if ready == 0 {
        Severity::Error
    } else {
        Severity::Warning
    };
    let cause = with_component(&snapshot.control_plane, names::COMPONENT_OPERATOR)
        .filter(|pod| !is_ready(pod))
        .find_map(|pod| {
            let message = not_running_container(pod)?;
            Some(format!("; pod {}: {message}", pod.name_any()))
        });
    let message = format!(
        "{ready} of {desired} operator pods are ready{}",
        cause.unwrap_or_default()
    );
    let object = Object::of("Deployment", operator);
    Some(Finding::new(
        severity,
        Reason::OperatorNotReady,
        object,
        message,
    ))
}

fn injection(snapshot: &Snapshot) -> Option<Finding> {
    let (name, message) = match webhook::find(&snapshot.webhooks) {
        Some(found) if found.is_trusted() => return None,
        Some(found) => (
            found.configuration,
            "its caBundle is empty: the operator has not created its certificate yet".to_owned(),
        ),
        None => (
            "mooncake-injection",
            format!("webhook {} does not exist", webhook::NAME),
        ),
    };
    let object = Object::named("MutatingWebhookConfiguration", name);
    Some(Finding::error(Reason::WebhookMissing, object, message))
}

fn agent_set(snapshot: &Snapshot, set: &DaemonSet) -> Option<Finding> {
    let status = set.status.clone().unwrap_or_default();
    let desired = status.desired_number_scheduled;
    let current = status.current_number_scheduled;
    let ready = status.number_ready;
    let object = Object::of("DaemonSet", set);
    if desired == 0 {
        let message = "it selects no node; see its node selector";
        Some(Finding::warning(Reason::AgentMissing, object, message))
    } else if current < desired {
        let message = format!("{current} of {desired} agent pods exist; see its events");
        Some(Finding::error(Reason::AgentMissing, object, message))
    } else if ready < desired && !snapshot.has(Resources::CONTROL_PLANE_PODS) {
        // Pods that can be read have findings of their own.
        let message = format!("{ready} of {desired} agent pods are ready");
        Some(Finding::error(Reason::AgentNotReady, object, message))
    } else {
        None
    }
}

/// An agent pod that is not ready, with the scheduler's or the kubelet's message.
fn agent_pod(pod: &Pod, now: Timestamp) -> Finding {
    let condition = |kind: &str| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == kind)
    };
    let since = condition("Ready")
        .and_then(|ready| ready.last_transition_time.clone())
        .or_else(|| pod.creation_timestamp())
        .map(|time| time.0);
    // An upgrade replaces an agent pod within seconds.
    let limit = i64::try_from(ABSENCE_LIMIT.as_secs()).unwrap_or(i64::MAX);
    let severity = match elapsed(since, now) {
        Some(seconds) if seconds < limit => Severity::Warning,
        _ => Severity::Error,
    };
    let message = condition("PodScheduled")
        .filter(|scheduled| scheduled.status == "False")
        .and_then(|scheduled| scheduled.message.as_ref())
        .map(|message| format!("not scheduled: {message}"))
        .or_else(|| not_running_container(pod))
        .unwrap_or_else(|| "it is running and not ready".to_owned());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Finding::new(
        severity,
        Reason::AgentNotReady,
        Object::of("Pod", pod),
        message,
    )
    .on(node.unwrap_or_default())
    .since(since)
}

/// Differences between the releases of the operator, the agents and this program.
fn releases(snapshot: &Snapshot, own: &str) -> Vec<Finding> {
    let skew = |object, message: String| Finding::warning(Reason::ReleaseSkew, object, message);
    let mut found = Vec::new();
    let operator = snapshot.operators.first();
    let expected = operator.and_then(|operator| release(operator.labels()));
    if let (Some(operator), Some(expected)) = (operator, expected)
        && expected != own
    {
        let message = format!("the operator is release {expected}, this kubectl-mooncake is {own}");
        found.push(skew(Object::of("Deployment", operator), message));
    }
    for set in &snapshot.agents {
        let Some(agents) = release(set.labels()) else {
            continue;
        };
        if let Some(expected) = expected.filter(|expected| *expected != agents) {
            let message = format!("the operator is release {expected}, the agents are {agents}");
            found.push(skew(Object::of("DaemonSet", set), message));
        }
        if let Some(others) = others(snapshot, agents) {
            let message = format!("the DaemonSet is release {agents}; {others}");
            found.push(skew(Object::of("DaemonSet", set), message));
        }
    }
    found
}

/// Nodes whose agents report another release.
fn others(snapshot: &Snapshot, release: &str) -> Option<String> {
    let (nodes, releases): (Vec<_>, BTreeSet<_>) = snapshot
        .nodes
        .iter()
        .filter_map(|node| {
            Some((
                node.name_any(),
                node.status.as_ref()?.agent_version.as_str(),
            ))
        })
        .filter(|(_, reported)| !reported.is_empty() && *reported != release)
        .unzip();
    if nodes.is_empty() {
        return None;
    }
    let nodes = first_names(nodes, MAX_NODES);
    let releases = releases.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!("agents on {nodes}: {releases}"))
}

fn release(labels: &BTreeMap<String, String>) -> Option<&str> {
    let release = labels.get(LABEL_VERSION)?;
    (!release.is_empty()).then_some(release)
}

fn missing(reason: Reason, object: Object, component: &str) -> Finding {
    let label = names::LABEL_COMPONENT;
    let message = format!("no {} has the label {label}={component}", object.kind);
    Finding::error(reason, object, message)
}
