//! Pool pods that do not serve, and labelled pods that were left out or are held, by the operator's own
//! judgement of each.

use std::sync::Arc;

use crds::{Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use super::object;
use super::trouble::{Severity, Trouble, lasts, severity};
use crate::admission::Wish;
use crate::cli::picture::Picture;
use crate::cli::unseen::What;
use crate::cluster::observe::{is_ready, node_of, owner, ready_master};
use crate::cluster::validate::validate;
use crate::cluster::verdict::{self, Service, judge, not_running};
use crate::cluster::{fit, injected, mirror};

/// Seconds for which a pod may be held where its cluster, and so its deadline, is not known.
const HELD_SECONDS: u32 = 120;

/// Pool pods that do not serve.
pub(super) fn pool_pods(picture: &Picture) -> Vec<Trouble> {
    let is_pool = |pod: &&Arc<Pod>| {
        let component = pod.labels().get(names::LABEL_COMPONENT);
        component.is_some_and(|component| component == names::COMPONENT_POOL)
            // Somebody else's pod is no pool's, whatever its labels say.
            && owner(pod.meta()).is_some_and(|owner| owner.kind == "DaemonSet")
    };
    let (nodes, masters) = (picture.by_name(), picture.masters());
    let master = |pod: &Pod| {
        let cluster = pod.labels().get(names::LABEL_CLUSTER)?;
        let of_one = masters.get(&(pod.metadata.namespace.as_deref()?, cluster.as_str()))?;
        ready_master(of_one)?.uid()
    };
    let saw_nodes = picture.saw(What::Nodes);
    let pods = picture.pods.iter().filter(is_pool);
    pods.filter_map(|pod| {
        let node = node_of(pod).unwrap_or_default();
        let report = nodes.get(node.as_str()).copied();
        let service = judge(pod, report, master(pod).as_deref()).service;
        pool_pod(pod, &node, service, saw_nodes)
    })
    .collect()
}

fn pool_pod(pod: &Pod, node: &str, service: Service, saw_nodes: bool) -> Option<Trouble> {
    let trouble = |severity, reason, message: &str| {
        let who = object("Pod", pod);
        Some(Trouble::new(severity, reason, who, message).on(node))
    };
    match service {
        Service::Serving { .. } => None,
        Service::Not { reason, message } => trouble(severity(reason, None), reason, &message),
        // Who may not see the node still sees whether the pod is Ready, which means the same.
        Service::Unknown { .. } if !saw_nodes => {
            if is_ready(pod) {
                return None;
            }
            let words = first_words(pod).unwrap_or_else(|| {
                "it is not Ready; its MooncakeNode, which says why, could not be looked at"
                    .to_owned()
            });
            trouble(Severity::Fails, Reason::PoolPodNotReady, &words)
        }
        Service::Unknown { reason, message } => {
            trouble(severity(reason, None), reason, &message).map(Trouble::echo)
        }
    }
}

/// What the kubelet says of the first container that does not run.
pub(super) fn first_words(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    init.filter(|container| !container.ready)
        .chain(status.container_statuses.iter().flatten())
        .find_map(not_running)
}

/// Labelled pods that do not take part, or are held.
pub(super) fn labelled(picture: &Picture, now: Timestamp) -> Vec<Trouble> {
    let alive = picture.alive();
    alive.filter_map(|pod| of_one(picture, pod, now)).collect()
}

fn of_one(picture: &Picture, pod: &Arc<Pod>, now: Timestamp) -> Option<Trouble> {
    let namespace = pod.namespace().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let created = pod.creation_timestamp().map(|time| time.0);
    let trouble = |severity, reason, message: &str| {
        let who = object("Pod", pod.as_ref());
        let node = node.clone().unwrap_or_default();
        Trouble::new(severity, reason, who, message)
            .on(node)
            .since(created)
    };
    let wish = match Wish::of(pod, &namespace) {
        Ok(wish) => wish?,
        Err(error) => {
            let reason = Reason::NotInjected;
            return Some(trouble(Severity::Fails, reason, &error.to_string()));
        }
    };
    let cluster = picture.cluster(&wish);
    if cluster.is_none() && picture.saw(What::Clusters) && picture.covers(&wish.namespace) {
        let message = format!(
            "there is no MooncakeCluster {}/{}",
            wish.namespace, wish.cluster
        );
        return Some(trouble(Severity::Fails, Reason::ClusterMissing, &message));
    }
    let left_out = match cluster.map(validate) {
        Some(Ok(valid)) => injected::trouble(&valid, pod),
        // A cluster that is not valid is told by itself.
        Some(Err(_)) => return None,
        None => by_its_labels(pod, &wish.cluster),
    };
    if let Some((reason, words)) = left_out {
        return Some(trouble(Severity::Fails, reason, &words));
    }
    let Some(word) = mirror::gate(pod).filter(|word| !word.holds) else {
        // Who sees the nodes is told by the pod's own.
        let said = mirror::condition(pod, fit::FIT).filter(|_| !picture.saw(What::Nodes))?;
        let unfit = said.status == "False";
        let since = said.last_transition_time.as_ref().map(|time| time.0);
        let reason = verdict::reason(said.reason.as_deref().unwrap_or_default());
        let message = said.message.as_deref().unwrap_or_default();
        return unfit.then(|| trouble(Severity::Warns, reason, message).since(since));
    };
    let since = mirror::condition(pod, mirror::GATE)
        .filter(|said| said.status == "False")
        .and_then(|said| said.last_transition_time.as_ref().map(|time| time.0))
        .or(created);
    let reason = verdict::reason(&word.reason);
    let deadline = cluster.map_or(HELD_SECONDS, |c| c.spec.injection.deadline_seconds);
    let in_time = lasts(since, now).is_none_or(|seconds| seconds <= i64::from(deadline));
    let severity = if reason == Reason::GateWaiting && in_time {
        Severity::Warns
    } else {
        Severity::Fails
    };
    Some(trouble(severity, reason, &word.message).since(since))
}

/// What the pod says itself where its cluster cannot be looked at.
pub(crate) fn by_its_labels(pod: &Pod, cluster: &str) -> Option<(Reason, String)> {
    let has = |label: &str| {
        pod.labels()
            .get(label)
            .is_some_and(|value| value == cluster)
    };
    if has(names::LABEL_ACCESS) || has(names::LABEL_HOST_ACCESS) {
        return None;
    }
    let said = pod.annotations().get(names::ANNOTATION_SKIPPED);
    let words = said.map_or_else(
        || "the webhook did not see it".to_owned(),
        |why| format!("the webhook left it as it was: {why}"),
    );
    Some((Reason::NotInjected, words))
}
