//! Waits for operator, agents and MooncakeCluster, and prints each change of their state.

use crate::error::Error;
use crate::objects::{self, get};
use crate::pods::wait_for_change;
use crate::progress::Progress;
use crate::target::Target;
use crds::MooncakeCluster;
use crds::condition::{ConditionStatus, ConditionType, find};
use local_cluster::wait::wait_until;
use mooncake_e2e::product;
use serde_json::Value;
use std::time::Duration;

const INSTALLED: Duration = Duration::from_secs(180);
const READY: Duration = Duration::from_secs(300);

/// Waits until operator and agents are ready.
pub(crate) fn installed(target: &Target, progress: &mut Progress) -> Result<(), Error> {
    let deadline = target.patience(INSTALLED);
    wait_until("operator and agents to be ready", deadline, || {
        let answer = get(
            target,
            &["deployments,daemonsets", "--namespace", product::NAMESPACE],
        );
        let seen = match answer {
            Ok(list) => list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(counts)
                .collect::<Vec<_>>(),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let summary = seen
            .iter()
            .map(|(name, ready, wanted)| format!("{name} {ready}/{wanted}"))
            .collect::<Vec<_>>()
            .join(", ");
        progress.report_change(&format!("pods ready: {summary}"));
        let done = seen.len() == 2 && seen.iter().all(|(_, ready, wanted)| ready >= wanted);
        Ok(if done { Ok(()) } else { Err(summary) })
    })?;
    Ok(())
}

/// Name, ready and wanted pods of the newest template.
fn counts(object: &Value) -> (String, u64, u64) {
    let status = &object["status"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let current = status["observedGeneration"] == object["metadata"]["generation"];
    let (ready, updated, wanted) = if object["kind"] == "DaemonSet" {
        (
            &status["numberReady"],
            &status["updatedNumberScheduled"],
            // Zero until the controller has seen the object.
            number(&status["desiredNumberScheduled"]).max(1),
        )
    } else {
        (
            &status["readyReplicas"],
            &status["updatedReplicas"],
            number(&object["spec"]["replicas"]),
        )
    };
    let ready = if current {
        number(ready).min(number(updated))
    } else {
        0
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    (name.to_owned(), ready, wanted)
}

/// Waits until the MooncakeCluster is Ready.
pub(crate) fn cluster(
    target: &Target,
    name: &str,
    progress: &mut Progress,
) -> Result<MooncakeCluster, Error> {
    let what = format!("MooncakeCluster {name} to be Ready");
    wait_for(target, name, &what, is_ready, progress)
}

/// Waits until the operator has carried out the present spec of a MooncakeCluster, and it is Ready.
pub(crate) fn settled(
    target: &Target,
    name: &str,
    progress: &mut Progress,
) -> Result<MooncakeCluster, Error> {
    let what = format!("MooncakeCluster {name} to have replaced its pool pods");
    wait_for(target, name, &what, is_settled, progress)
}

fn wait_for(
    target: &Target,
    name: &str,
    what: &str,
    done: fn(&MooncakeCluster) -> bool,
    progress: &mut Progress,
) -> Result<MooncakeCluster, Error> {
    Ok(wait_until(what, target.patience(READY), || {
        let answer = get(
            target,
            &["mooncakecluster", name, "--namespace", objects::NAMESPACE],
        )
        .and_then(|object| {
            serde_json::from_value::<MooncakeCluster>(object).map_err(|source| Error::Answer {
                what: "the MooncakeCluster",
                source,
            })
        });
        let cluster = match answer {
            Ok(cluster) => cluster,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let seen = summary(&cluster);
        progress.report_change(&seen);
        Ok(if done(&cluster) {
            Ok(cluster)
        } else {
            // Reconciling is never False: while the cluster is Ready, this waits two seconds.
            let change = if is_ready(&cluster) {
                "--for=condition=Reconciling=False"
            } else {
                "--for=condition=Ready"
            };
            wait_for_change(target, &[change, "mooncakecluster", name]);
            Err(seen)
        })
    })?)
}

fn is_ready(cluster: &MooncakeCluster) -> bool {
    let ready = cluster
        .status
        .as_ref()
        .and_then(|status| find(&status.conditions, ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == ConditionStatus::True.as_str()
            && ready.observed_generation == cluster.metadata.generation
    })
}

/// Reconciling is present only while the operator or a node works on the spec.
fn is_settled(cluster: &MooncakeCluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| &status.conditions);
    let working = conditions.and_then(|all| find(all, ConditionType::Reconciling));
    is_ready(cluster) && working.is_none()
}

/// The condition Reconciling in one line, or Ready if it is not present.
fn summary(cluster: &MooncakeCluster) -> String {
    let Some(status) = &cluster.status else {
        return "waiting for the operator to process the MooncakeCluster".to_owned();
    };
    if is_ready(cluster)
        && let Some(working) = find(&status.conditions, ConditionType::Reconciling)
    {
        return format!("MooncakeCluster: Reconciling {}", working.message);
    }
    match find(&status.conditions, ConditionType::Ready) {
        Some(ready) => {
            // The remedy does not apply while the demo starts the cluster.
            let (message, _) = ready
                .message
                .split_once(" Remedy: ")
                .unwrap_or((&ready.message, ""));
            format!(
                "MooncakeCluster: Ready={} ({}) {message}",
                ready.status, ready.reason
            )
        }
        None => "waiting for the MooncakeCluster's first condition".to_owned(),
    }
}

/// The nodes of the two pods: the same twice in a cluster with one node.
pub(crate) fn nodes(target: &Target) -> Result<[String; 2], Error> {
    let list = get(target, &["nodes"])?;
    let usable: Vec<_> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|node| usable(node))
        .filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    match usable.as_slice() {
        [] => Err(Error::NoNodes {
            context: target.name.clone(),
        }),
        [only] => Ok([only.clone(), only.clone()]),
        [first, second, ..] => Ok([first.clone(), second.clone()]),
    }
}

fn usable(node: &Value) -> bool {
    let ready = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let tainted = node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|taint| taint["effect"] != "PreferNoSchedule");
    ready && !tainted
}
