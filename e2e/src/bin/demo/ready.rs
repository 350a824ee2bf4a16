//! Waiting for the parts, and telling what is waited for.

use crate::error::Error;
use crate::ours::{self, get};
use crate::pods::rest;
use crate::progress::Progress;
use crate::target::Target;
use crds::MooncakeCluster;
use crds::condition::{ConditionType, State, find};
use mooncake_e2e::product;
use mooncake_e2e::wait::wait_until;
use serde_json::Value;
use std::time::Duration;

const INSTALLED: Duration = Duration::from_secs(180);
const READY: Duration = Duration::from_secs(300);

/// Operator and agents.
pub(crate) fn installed(target: &Target, progress: &mut Progress) -> Result<(), Error> {
    wait_until("operator and agents to be ready", INSTALLED, || {
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
        let words = seen
            .iter()
            .map(|(name, ready, wanted)| format!("{name} {ready}/{wanted}"))
            .collect::<Vec<_>>()
            .join(", ");
        progress.say_if_new(&format!("pods ready: {words}"));
        let done = seen.len() == 2 && seen.iter().all(|(_, ready, wanted)| ready >= wanted);
        Ok(if done { Ok(()) } else { Err(words) })
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
            // Zero until the controller has looked.
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

/// The MooncakeCluster; every change of its words is shown.
pub(crate) fn cluster(
    target: &Target,
    name: &str,
    progress: &mut Progress,
) -> Result<MooncakeCluster, Error> {
    let what = format!("MooncakeCluster {name} to be Ready");
    Ok(wait_until(&what, READY, || {
        let answer = get(
            target,
            &["mooncakecluster", name, "--namespace", ours::NAMESPACE],
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
        let words = words(&cluster);
        progress.say_if_new(&words);
        Ok(if is_ready(&cluster) {
            Ok(cluster)
        } else {
            rest(target, &["--for=condition=Ready", "mooncakecluster", name]);
            Err(words)
        })
    })?)
}

fn is_ready(cluster: &MooncakeCluster) -> bool {
    let ready = cluster
        .status
        .as_ref()
        .and_then(|status| find(&status.conditions, ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == State::True.as_str()
            && ready.observed_generation == cluster.metadata.generation
    })
}

/// What the cluster says of itself, in one line.
fn words(cluster: &MooncakeCluster) -> String {
    let Some(status) = &cluster.status else {
        return "waiting for the operator to look at the MooncakeCluster".to_owned();
    };
    match find(&status.conditions, ConditionType::Ready) {
        Some(ready) => {
            // What to do is to watch this.
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

/// Two nodes for the two pods, or the same twice where there is but one.
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
