//! What one pool pod is good for, judged from the pod, its node's agent and its master. Pure.

use crds::condition::find;
use crds::node::PoolState;
use crds::{ConditionType, MooncakeNode, Reason, State};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Resource, ResourceExt};

use crate::cluster::desired::pool;
use crate::cluster::observe::{is_over, node_of};
use crate::cluster::{eviction, instance};

/// One pool pod, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub pod: String,
    /// Where it is or should be; empty where nobody says.
    pub node: String,
    pub service: Service,
}

/// Whether a pool pod serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    Serving {
        bytes: u64,
    },
    /// It does not.
    Not {
        reason: Reason,
        message: String,
    },
    /// Nobody can say: the node or its agent is silent.
    Unknown {
        reason: Reason,
        message: String,
    },
}

/// Judges `pod`. `report` is its node's MooncakeNode; `master` is the UID of the pod that is the
/// master now.
pub fn judge(pod: &Pod, report: Option<&MooncakeNode>, master: Option<&str>) -> Verdict {
    Verdict {
        pod: pod.name_any(),
        node: node_of(pod).unwrap_or_default(),
        service: service(pod, report, master),
    }
}

fn service(pod: &Pod, report: Option<&MooncakeNode>, master: Option<&str>) -> Service {
    let not = |reason, message: String| Service::Not { reason, message };
    if let Some(words) = eviction::words(pod) {
        return not(Reason::PoolPodEvicted, eviction::in_words(&words));
    }
    if pod.meta().deletion_timestamp.is_some() {
        return not(Reason::Draining, "the pod was told to end".to_owned());
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
    match heard(report) {
        Ok(report) => told(pod, report, master),
        Err((reason, message)) => Service::Unknown { reason, message },
    }
}

/// Why a pod is over, in the words of whoever ended it.
fn over(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let said = status.map(|status| [&status.phase, &status.reason, &status.message]);
    let words: Vec<&str> = said
        .iter()
        .flatten()
        .filter_map(|said| said.as_deref())
        .collect();
    format!("the pod is over: {}", words.join(": "))
}

/// The scheduler's own words.
fn pending(pod: &Pod) -> String {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|condition| condition.message.clone())
        .unwrap_or_else(|| "the scheduler has not yet looked at it".to_owned())
}

/// The node's report, if its agent is there and speaks of this life of the node.
pub(crate) fn heard(report: Option<&MooncakeNode>) -> Result<&MooncakeNode, (Reason, String)> {
    let Some(report) = report else {
        let message = "the node has no MooncakeNode yet".to_owned();
        return Err((Reason::AgentMissing, message));
    };
    let conditions = report.status.iter().flat_map(|status| &status.conditions);
    let conditions: Vec<_> = conditions.cloned().collect();
    match find(&conditions, ConditionType::AgentAlive) {
        Some(alive) if alive.status == State::True.as_str() => {}
        Some(alive) => return Err((reason(&alive.reason), alive.message.clone())),
        None => {
            let message = "nothing is known of the node's agent yet".to_owned();
            return Err((Reason::AgentMissing, message));
        }
    }
    if is_void(report) {
        let message = "the agent has not yet reported in this life of the node".to_owned();
        return Err((Reason::StaleStatus, message));
    }
    Ok(report)
}

/// True where the status is of another life of the node than the spec means.
pub fn is_void(report: &MooncakeNode) -> bool {
    report.status.as_ref().is_none_or(|status| {
        status.node_uid != report.spec.node_uid || status.boot_id != report.spec.boot_id
    })
}

fn told(pod: &Pod, report: &MooncakeNode, master: Option<&str>) -> Service {
    let uid = pod.uid().unwrap_or_default();
    let pools = report.status.iter().flat_map(|status| &status.pools);
    let Some(told) = pools.into_iter().find(|told| told.pod_uid == uid) else {
        return Service::Not {
            reason: Reason::PoolPodNotReady,
            message: waiting(pod)
                .unwrap_or_else(|| "the node's agent has not yet met the pod".to_owned()),
        };
    };
    match told.state {
        PoolState::Serving if is_current(report, &uid, &told.master_pod_uid, master) => {
            Service::Serving {
                bytes: told.mounted.map_or(0, |mounted| mounted.0),
            }
        }
        PoolState::Serving => Service::Not {
            reason: Reason::Mounting,
            message: "its memory is still mounted in an earlier master".to_owned(),
        },
        PoolState::Waiting
        | PoolState::Preparing
        | PoolState::Mounting
        | PoolState::Draining
        | PoolState::Released
        | PoolState::Refused => Service::Not {
            reason: told.reason,
            message: waiting(pod).map_or_else(
                || told.message.clone(),
                |waiting| format!("{}; {waiting}", told.message),
            ),
        },
    }
}

/// True where the pod is mounted in the instance that it is assigned to, of the master that is one
/// now. Without a master nothing better can be asked for.
fn is_current(report: &MooncakeNode, pod: &str, mounted: &str, master: Option<&str>) -> bool {
    let Some(master) = master else { return true };
    let assigned = report.spec.pools.iter().find(|entry| entry.pod_uid == pod);
    assigned
        .and_then(|entry| entry.master.as_ref())
        .is_some_and(|assigned| {
            assigned.pod_uid == mounted && instance::pod_uid(&assigned.pod_uid) == master
        })
}

/// What the kubelet says of a pool container that does not run.
fn waiting(pod: &Pod) -> Option<String> {
    let container = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .find(|container| container.name == pool::CONTAINER)?;
    not_running(container)
}

/// The kubelet's words on a container that does not run; `None` where it runs.
pub fn not_running(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    let words = |reason: Option<&String>, message: Option<&String>| {
        let parts = [reason, message].into_iter().flatten();
        parts.cloned().collect::<Vec<_>>().join(": ")
    };
    if let Some(waiting) = &state.waiting {
        let said = words(waiting.reason.as_ref(), waiting.message.as_ref());
        return Some(format!("container {} waits: {said}", container.name));
    }
    let ended = state.terminated.as_ref()?;
    let said = words(ended.reason.as_ref(), ended.message.as_ref());
    Some(format!(
        "container {} ended with {}: {said}",
        container.name, ended.exit_code
    ))
}

/// A reason read back from a condition that we wrote.
pub fn reason(word: &str) -> Reason {
    Reason::ALL
        .iter()
        .copied()
        .find(|reason| reason.as_str() == word)
        .unwrap_or(Reason::AgentNotReady)
}
