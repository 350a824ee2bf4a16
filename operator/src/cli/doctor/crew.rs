//! Operator, agents and webhook: are they there, ready, and of one release.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::object;
use super::pod::first_words;
use super::trouble::{Object, Severity, Trouble, lasts};
use crate::cli::picture::Picture;
use crate::cli::unseen::What;
use crate::cli::webhook;
use crate::cluster::observe::{is_over, is_ready};
use crate::node::alive::AWAY;

/// The chart's label for its release.
const LABEL_VERSION: &str = "app.kubernetes.io/version";
/// Nodes that a message names at most.
const TOLD: usize = 5;

pub(super) fn troubles(picture: &Picture, release: &str, now: Timestamp) -> Vec<Trouble> {
    let mut found = operators(picture);
    found.extend(injection(picture));
    found.extend(agents(picture));
    found.extend(agent_pods(picture, now));
    found.extend(releases(picture, release));
    found
}

fn operators(picture: &Picture) -> Vec<Trouble> {
    if !picture.saw(What::Operators) {
        return Vec::new();
    }
    if picture.operators.is_empty() {
        let who = absent("Deployment", "mooncake-operator");
        let message = unlabelled("Deployment", names::COMPONENT_OPERATOR);
        return vec![Trouble::new(
            Severity::Fails,
            Reason::OperatorMissing,
            who,
            message,
        )];
    }
    let operators = picture.operators.iter();
    operators
        .filter_map(|operator| short(picture, operator))
        .collect()
}

/// Fewer operators than wanted.
fn short(picture: &Picture, operator: &Deployment) -> Option<Trouble> {
    let wanted = operator.spec.as_ref().and_then(|spec| spec.replicas);
    let wanted = wanted.unwrap_or(1);
    let status = operator.status.as_ref();
    let ready = status.and_then(|s| s.ready_replicas).unwrap_or(0);
    if ready >= wanted && ready > 0 {
        return None;
    }
    // One leads; the other is there for when that one goes.
    let severity = if ready == 0 {
        Severity::Fails
    } else {
        Severity::Warns
    };
    let words = of(picture, names::COMPONENT_OPERATOR)
        .filter(|pod| !is_ready(pod))
        .find_map(|pod| Some(format!("; pod {}: {}", pod.name_any(), first_words(pod)?)));
    let message = format!(
        "{ready} of {wanted} operator pods are ready{}",
        words.unwrap_or_default()
    );
    let who = object("Deployment", operator);
    Some(Trouble::new(
        severity,
        Reason::OperatorNotReady,
        who,
        message,
    ))
}

fn injection(picture: &Picture) -> Option<Trouble> {
    if !picture.saw(What::Webhooks) {
        return None;
    }
    let (name, message) = match webhook::find(&picture.webhooks) {
        Some(found) if found.is_trusted() => return None,
        Some(found) => (
            found.configuration,
            "its caBundle is empty: the operator has not made its certificate yet".to_owned(),
        ),
        None => (
            "mooncake-injection",
            format!("none has a webhook {}", webhook::NAME),
        ),
    };
    let who = absent("MutatingWebhookConfiguration", name);
    Some(Trouble::new(
        Severity::Fails,
        Reason::WebhookMissing,
        who,
        message,
    ))
}

fn agents(picture: &Picture) -> Vec<Trouble> {
    if !picture.saw(What::Agents) {
        return Vec::new();
    }
    if picture.agents.is_empty() {
        let who = absent("DaemonSet", "mooncake-agent");
        let message = unlabelled("DaemonSet", names::COMPONENT_AGENT);
        return vec![Trouble::new(
            Severity::Fails,
            Reason::AgentMissing,
            who,
            message,
        )];
    }
    let sets = picture.agents.iter();
    sets.filter_map(|set| of_set(picture, set)).collect()
}

fn of_set(picture: &Picture, set: &DaemonSet) -> Option<Trouble> {
    let status = set.status.clone().unwrap_or_default();
    let wanted = status.desired_number_scheduled;
    let there = status.current_number_scheduled;
    let (severity, reason, message) = if wanted == 0 {
        let message = "it wants no pod on any node: see its node selector".to_owned();
        (Severity::Warns, Reason::AgentMissing, message)
    } else if there < wanted {
        let message = format!("{there} of {wanted} agent pods exist; see its events");
        (Severity::Fails, Reason::AgentMissing, message)
    } else if status.number_ready < wanted && !picture.saw(What::CrewPods) {
        // Where its pods can be looked at, they tell better.
        let message = format!("{} of {wanted} agent pods are ready", status.number_ready);
        (Severity::Fails, Reason::AgentNotReady, message)
    } else {
        return None;
    };
    let who = object("DaemonSet", set);
    Some(Trouble::new(severity, reason, who, message))
}

/// Agent pods that are not ready, with the kubelet's words.
fn agent_pods(picture: &Picture, now: Timestamp) -> Vec<Trouble> {
    of(picture, names::COMPONENT_AGENT)
        .filter(|pod| !is_ready(pod) && !is_over(pod))
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| agent_pod(pod, now))
        .collect()
}

fn agent_pod(pod: &Pod, now: Timestamp) -> Trouble {
    let condition = |kind: &str| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == kind)
    };
    let since = condition("Ready")
        .and_then(|ready| ready.last_transition_time.clone())
        .or_else(|| pod.creation_timestamp())
        .map(|time| time.0);
    // An upgrade takes seconds a node.
    let away = i64::try_from(AWAY.as_secs()).unwrap_or(i64::MAX);
    let severity = match lasts(since, now) {
        Some(seconds) if seconds < away => Severity::Warns,
        _ => Severity::Fails,
    };
    let unscheduled = condition("PodScheduled")
        .filter(|scheduled| scheduled.status == "False")
        .and_then(|scheduled| scheduled.message.as_ref())
        .map(|words| format!("it is not scheduled: {words}"));
    let words = unscheduled
        .or_else(|| first_words(pod))
        .unwrap_or_else(|| "it runs and is not ready".to_owned());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let who = object("Pod", pod);
    Trouble::new(severity, Reason::AgentNotReady, who, words)
        .on(node.unwrap_or_default())
        .since(since)
}

/// Releases that differ: operator and agents, agents among each other, and this program.
fn releases(picture: &Picture, own: &str) -> Vec<Trouble> {
    let mut found = Vec::new();
    let mut warn = |who, message: String| {
        let (severity, reason) = (Severity::Warns, Reason::ReleaseSkew);
        found.push(Trouble::new(severity, reason, who, message));
    };
    let operator = picture.operators.first();
    let wanted = operator.and_then(|operator| release(operator.labels()));
    if let (Some(operator), Some(wanted)) = (operator, wanted)
        && wanted != own
    {
        let message = format!("the operator is {wanted}, this kubectl-mooncake is {own}");
        warn(object("Deployment", operator), message);
    }
    for set in &picture.agents {
        let Some(agents) = release(set.labels()) else {
            continue;
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != agents) {
            let message = format!("the operator is {wanted}, the agents are {agents}");
            warn(object("DaemonSet", set), message);
        }
        if let Some(others) = others(picture, agents) {
            let message = format!("the agents are to be {agents}; {others}");
            warn(object("DaemonSet", set), message);
        }
    }
    found
}

/// Nodes whose agent says that it is another release.
fn others(picture: &Picture, release: &str) -> Option<String> {
    let mut nodes = Vec::new();
    let mut releases = BTreeSet::new();
    for node in &picture.nodes {
        let runs = node.status.as_ref().map(|status| &status.agent_version);
        if let Some(runs) = runs.filter(|runs| !runs.is_empty() && *runs != release) {
            nodes.push(node.name_any());
            releases.insert(runs.as_str());
        }
    }
    if nodes.is_empty() {
        return None;
    }
    let mut told = nodes[..nodes.len().min(TOLD)].join(", ");
    if nodes.len() > TOLD {
        told.push_str(&format!(" and {} more", nodes.len() - TOLD));
    }
    let releases = releases.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!("on {told}: {releases}"))
}

fn release(labels: &BTreeMap<String, String>) -> Option<&str> {
    let release = labels.get(LABEL_VERSION)?;
    (!release.is_empty()).then_some(release)
}

fn of<'a>(picture: &'a Picture, component: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> {
    picture.crew.iter().filter(move |pod| {
        let label = pod.labels().get(names::LABEL_COMPONENT);
        label.is_some_and(|label| label == component)
    })
}

fn unlabelled(kind: &str, component: &str) -> String {
    format!(
        "no {kind} has the label {}={component}",
        names::LABEL_COMPONENT
    )
}

/// An object that is not there, by the name that the chart gives it.
fn absent(kind: &'static str, name: &str) -> Object {
    Object {
        kind,
        namespace: None,
        name: name.to_owned(),
    }
}
