//! Whether one pool pod serves, from the pod, its node's agent and its master. Pure.

use std::time::Duration;

use crds::cluster::Transport;
use crds::condition::find;
use crds::node::{POOLS_LIMIT, PoolState};
use crds::{ConditionStatus, ConditionType, MooncakeNode, Reason, Vocabulary, Word};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use crate::cache::evictions;
use crate::cluster::instance;
use crate::pod::{POOL_CONTAINER, is_over, node_of, not_running, unscheduled};

/// How long after its grace period a pool pod may end.
const KUBELET_LIMIT: Duration = Duration::from_secs(60);

/// State of one pool pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPodStatus {
    pub pod: String,
    /// The node it is bound to or intended for; empty if unknown.
    pub node: String,
    pub service: PoolService,
    /// Why the pod cannot use the cluster's metadata service; `None` where it can, or where nothing is known.
    pub metadata_failure: Option<String>,
}

/// Whether a pool pod serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolService {
    Serving {
        bytes: u64,
        transport: Transport,
    },
    /// It does not serve.
    NotServing {
        reason: Reason,
        message: String,
    },
    /// Unknown: the node or its agent does not respond.
    Unknown {
        reason: Reason,
        message: String,
    },
}

/// When a pool pod that ends is stuck. Its deletion timestamp includes the grace period.
pub fn stuck_from(pod: &Pod) -> Option<Timestamp> {
    let ends = pod.meta().deletion_timestamp.as_ref()?;
    ends.0.checked_add(KUBELET_LIMIT).ok()
}

/// True if the kubelet has not ended the pod in its grace period.
pub fn is_stuck(pod: &Pod, now: Timestamp) -> bool {
    stuck_from(pod).is_some_and(|from| from < now)
}

/// Evaluates `pod`. `report` is its node's MooncakeNode; `master` is the UID of the pod that is the
/// master now.
pub fn evaluate(
    pod: &Pod,
    mooncake_node: Option<&MooncakeNode>,
    master: Option<&str>,
    now: Timestamp,
) -> PoolPodStatus {
    PoolPodStatus {
        pod: pod.name_any(),
        node: node_of(pod).unwrap_or_default(),
        service: service(pod, mooncake_node, master, now),
        metadata_failure: metadata_failure(pod, mooncake_node),
    }
}

fn metadata_failure(pod: &Pod, mooncake_node: Option<&MooncakeNode>) -> Option<String> {
    if pod.meta().deletion_timestamp.is_some() || is_over(pod) {
        return None;
    }
    let status = current_report(mooncake_node).ok()?.status.as_ref()?;
    let uid = pod.uid()?;
    let entry = status.pools.iter().find(|entry| entry.pod_uid == uid)?;
    entry.metadata_failure.clone()
}

/// The message for an eviction.
pub fn eviction_message(kubelet: &str) -> String {
    format!("the kubelet evicted it: {kubelet}")
}

fn service(
    pod: &Pod,
    mooncake_node: Option<&MooncakeNode>,
    master: Option<&str>,
    now: Timestamp,
) -> PoolService {
    let not = |reason, message: String| PoolService::NotServing { reason, message };
    if let Some(message) = evictions::kubelet_message(pod) {
        return not(Reason::PoolPodEvicted, eviction_message(&message));
    }
    if is_stuck(pod, now) {
        let (reason, message) = stuck(pod, mooncake_node);
        return not(reason, message);
    }
    if pod.meta().deletion_timestamp.is_some() {
        return not(Reason::Draining, "the pod is being deleted".to_owned());
    }
    if is_over(pod) {
        return not(Reason::PoolPodGone, over(pod));
    }
    if pod
        .spec
        .as_ref()
        .is_none_or(|spec| spec.node_name.is_none())
    {
        return not(Reason::PoolPodPending, pending(pod));
    }
    match current_report(mooncake_node) {
        Ok(mooncake_node) => reported_service(pod, mooncake_node, master),
        Err((reason, message)) => PoolService::Unknown { reason, message },
    }
}

/// Why the kubelet has not ended a pod: it is not a drain any more.
fn stuck(pod: &Pod, mooncake_node: Option<&MooncakeNode>) -> (Reason, String) {
    let ends = pod.meta().deletion_timestamp.as_ref();
    let ends = ends.map_or_else(String::new, |ends| ends.0.to_string());
    let lead = match is_over(pod) {
        true => format!(
            "it was to end by {ends}, and has ended, but its object is still there; see its metadata.finalizers"
        ),
        false => format!("it was to end by {ends}, and its kubelet has not ended it"),
    };
    match current_report(mooncake_node) {
        Ok(_) => {
            let remedy = "Read the log of the kubelet and of the container runtime of the node, and restart them";
            (Reason::PoolPodNotReady, format!("{lead}. {remedy}"))
        }
        Err((reason, message)) => {
            let remedy = "If the node does not come back, delete its Node: kubectl delete node";
            let node = node_of(pod).unwrap_or_default();
            (reason, format!("{lead}: {message}. {remedy} {node}"))
        }
    }
}

/// Phase, reason and message of a pod that ended.
fn over(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let parts = status.map(|status| [&status.phase, &status.reason, &status.message]);
    let message: Vec<&str> = parts
        .iter()
        .flatten()
        .filter_map(|parts| parts.as_deref())
        .collect();
    format!("the pod ended: {}", message.join(": "))
}

/// Why a pod has no node.
pub(crate) fn pending(pod: &Pod) -> String {
    let why = unscheduled(pod).unwrap_or("the pod is not scheduled yet");
    why.to_owned()
}

/// The node's report, if its agent is alive and reported since this boot of the node.
///
/// # Errors
/// Why it counts no more, or not yet.
pub fn current_report(
    mooncake_node: Option<&MooncakeNode>,
) -> Result<&MooncakeNode, (Reason, String)> {
    let Some(mooncake_node) = mooncake_node else {
        let message = "the node has no MooncakeNode yet".to_owned();
        return Err((Reason::AgentMissing, message));
    };
    let conditions = mooncake_node
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    let conditions: Vec<_> = conditions.cloned().collect();
    match find(&conditions, ConditionType::AgentAlive) {
        Some(alive) if alive.status == ConditionStatus::True.as_str() => {}
        Some(alive) => return Err((parse_reason(&alive.reason), alive.message.clone())),
        None => {
            let message = "the node's agent is not evaluated yet".to_owned();
            return Err((Reason::AgentMissing, message));
        }
    }
    if is_stale(mooncake_node) {
        let message = "the agent has not reported since this boot of the node".to_owned();
        return Err((Reason::StaleStatus, message));
    }
    Ok(mooncake_node)
}

/// True if the status is from an earlier Node or boot than the spec's.
pub fn is_stale(mooncake_node: &MooncakeNode) -> bool {
    mooncake_node.status.as_ref().is_none_or(|status| {
        status.node_uid != mooncake_node.spec.node_uid
            || status.boot_id != mooncake_node.spec.boot_id
    })
}

fn reported_service(pod: &Pod, mooncake_node: &MooncakeNode, master: Option<&str>) -> PoolService {
    let uid = pod.uid().unwrap_or_default();
    let assigned = &mooncake_node.spec.pools;
    if assigned.len() >= POOLS_LIMIT && assigned.iter().all(|entry| entry.pod_uid != uid) {
        return PoolService::NotServing {
            reason: Reason::PoolPodNotReady,
            message: format!(
                "node {} serves {POOLS_LIMIT} pool pods, the maximum of one node, and this one is served when one of them \
                 has ended; use fewer and larger pools, or pools on other nodes",
                mooncake_node.name_any()
            ),
        };
    }
    let pools = mooncake_node.status.iter().flat_map(|status| &status.pools);
    let Some(entry) = pools.into_iter().find(|entry| entry.pod_uid == uid) else {
        return PoolService::NotServing {
            reason: Reason::PoolPodNotReady,
            message: waiting(pod)
                .unwrap_or_else(|| "the node's agent has not connected to the pod yet".to_owned()),
        };
    };
    match entry.state.known() {
        Some(PoolState::Serving)
            if is_current(mooncake_node, &uid, &entry.master_pod_uid, master) =>
        {
            PoolService::Serving {
                bytes: entry.mounted.map_or(0, |mounted| mounted.0),
                transport: match entry.transport.and_then(Word::known) {
                    Some(Transport::Rdma) => Transport::Rdma,
                    Some(Transport::Tcp) | None => Transport::Tcp,
                },
            }
        }
        Some(PoolState::Serving) => PoolService::NotServing {
            reason: Reason::Mounting,
            message: "its memory is still mounted in an earlier master".to_owned(),
        },
        Some(
            PoolState::Waiting
            | PoolState::Preparing
            | PoolState::Mounting
            | PoolState::Draining
            | PoolState::Released
            | PoolState::Refused,
        )
        | None => {
            let (reason, message) = entry.cause().or(Reason::PoolPodNotReady, &entry.message);
            PoolService::NotServing {
                reason,
                message: match waiting(pod) {
                    Some(waiting) => format!("{message}; {waiting}"),
                    None => message,
                },
            }
        }
    }
}

/// True if the pod is mounted in its assigned instance of the current master. Without a ready master any
/// mount counts.
fn is_current(
    mooncake_node: &MooncakeNode,
    pod: &str,
    mounted: &str,
    master: Option<&str>,
) -> bool {
    let Some(master) = master else { return true };
    let assigned = mooncake_node
        .spec
        .pools
        .iter()
        .find(|entry| entry.pod_uid == pod);
    assigned
        .and_then(|entry| entry.master.as_ref())
        .is_some_and(|assigned| {
            assigned.pod_uid == mounted && instance::pod_uid(&assigned.pod_uid) == master
        })
}

/// The kubelet's status of a pool container that does not run.
fn waiting(pod: &Pod) -> Option<String> {
    let container = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .find(|container| container.name == POOL_CONTAINER)?;
    not_running(container)
}

/// The Reason of a condition that an operator wrote, also one of another release.
pub fn parse_reason(word: &str) -> Reason {
    Reason::read(word).unwrap_or(Reason::AgentNotReady)
}
