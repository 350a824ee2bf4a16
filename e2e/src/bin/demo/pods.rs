//! The two stock pods of the demo: one puts objects, one gets and compares them.

use crate::error::Error;
use crate::objects::{NAMESPACE, get};
use crate::progress::Progress;
use crate::target::Target;
use local_cluster::wait::wait_until;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

const SCRIPTS: [(&str, &str); 3] = [
    ("objects.py", include_str!("../../../demo/objects.py")),
    ("write.py", include_str!("../../../demo/write.py")),
    ("read.py", include_str!("../../../demo/read.py")),
];
/// An idle machine needs seconds, a busy one minutes.
const DEADLINE: Duration = Duration::from_secs(900);

/// What the pods use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) image: &'a str,
    /// Objects of 1 MiB.
    pub(crate) objects: u32,
}

/// The report of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Figures {
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    /// Time in calls of the store.
    pub(crate) seconds: f64,
}

/// What a pod does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Role {
    pub(crate) pod: &'static str,
    script: &'static str,
    doing: &'static str,
}

pub(crate) const WRITER: Role = Role {
    pod: "writer",
    script: "write.py",
    doing: "puts",
};
pub(crate) const READER: Role = Role {
    pod: "reader",
    script: "read.py",
    doing: "gets and compares every byte of",
};

/// Runs one pod on a node until it has ended.
pub(crate) fn run(
    target: &Target,
    role: Role,
    node: &str,
    work: Work<'_>,
    progress: &mut Progress,
) -> Result<Figures, Error> {
    let Role { pod, script, doing } = role;
    let mib = work.objects;
    progress.report(&format!("stock pod {pod} on {node} {doing} {mib} MiB"));
    target
        .kubectl
        .command(["delete", "pod", pod, "--ignore-not-found", "--wait"])
        .args(["--namespace", NAMESPACE, "--timeout=60s"])
        .deadline(Duration::from_secs(70))
        .done()?;
    target.kubectl.apply(&scripts().to_string())?;
    target
        .kubectl
        .apply(&manifest(pod, script, node, work).to_string())?;
    let deadline = target.patience(DEADLINE);
    let phase = wait_until(&format!("pod {pod} to end"), deadline, || {
        let object = match get(target, &["pod", pod, "--namespace", NAMESPACE]) {
            Ok(object) => object,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let phase = object["status"]["phase"].as_str().unwrap_or("Unknown");
        let seen = format!("{pod}: {phase}{}", waiting(&object));
        progress.report_change(&seen);
        Ok(match phase {
            "Succeeded" | "Failed" => Ok(phase.to_owned()),
            _ => {
                wait_for_change(
                    target,
                    &["--for=jsonpath={.status.phase}=Succeeded", "pod", pod],
                );
                Err(seen)
            }
        })
    })?;
    let log = target.kubectl.run([
        "logs",
        pod,
        "--container=main",
        "--tail=20",
        "--namespace",
        NAMESPACE,
    ])?;
    if phase != "Succeeded" {
        return Err(Error::PodEnded { pod, phase, log });
    }
    figures(&log).ok_or(Error::NoFigures { pod, log })
}

/// Waits up to two seconds for a change. Constant polling would take half a core from pods on the same machine.
pub(crate) fn wait_for_change(target: &Target, change: &[&str]) {
    target
        .kubectl
        .command(["wait", "--timeout=2s", "--namespace", NAMESPACE])
        .args(change)
        .done()
        // The caller looks at the object next, changed or not.
        .ok();
}

fn scripts() -> Value {
    let data: serde_json::Map<_, _> = SCRIPTS
        .iter()
        .map(|(name, text)| ((*name).to_owned(), json!(text)))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "scripts", "namespace": NAMESPACE},
        "data": data,
    })
}

/// The pod object. All Mooncake settings come from the label.
fn manifest(pod: &str, script: &str, node: &str, work: Work<'_>) -> Value {
    let Work {
        cluster,
        image,
        objects,
    } = work;
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod,
            "namespace": NAMESPACE,
            "labels": {crds::names::LABEL_INJECT: cluster},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": false,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [node]},
                ]}],
            }}},
            "containers": [{
                "name": "main",
                "image": image,
                "command": ["python3", format!("/scripts/{script}")],
                "env": [{"name": "DEMO_OBJECTS", "value": objects.to_string()}],
                "resources": {
                    "requests": {"cpu": "100m", "memory": "512Mi"},
                    "limits": {"memory": "1Gi"},
                },
                "volumeMounts": [{"name": "scripts", "mountPath": "/scripts"}],
            }],
            "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
        },
    })
}

/// Why the pod does not run yet: the scheduler's message, or the containers that have not started.
fn waiting(pod: &Value) -> String {
    let status = &pod["status"];
    let unscheduled = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "PodScheduled" && condition["status"] == "False")
        .and_then(|condition| condition["message"].as_str());
    let containers = ["initContainerStatuses", "containerStatuses"]
        .iter()
        .flat_map(|list| status[list].as_array().into_iter().flatten())
        .filter(|container| {
            container["started"] != true && container["state"]["terminated"].is_null()
        })
        .filter_map(|container| container["name"].as_str())
        .collect::<Vec<_>>();
    match (unscheduled, containers.as_slice()) {
        (Some(message), _) => format!(", {message}"),
        (None, []) => String::new(),
        (None, names) => format!(", waiting for {}", names.join(", ")),
    }
}

/// The last line that is a report; the stock engine logs other lines.
fn figures(log: &str) -> Option<Figures> {
    log.lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_found_among_the_lines_of_the_engine() {
        let log = "I1121 setup\n{\"keys\": 2, \"bytes\": 8, \"seconds\": 0.5}\nI1121 closing\n";
        let expected = Figures {
            keys: 2,
            bytes: 8,
            seconds: 0.5,
        };
        assert_eq!(figures(log), Some(expected));
        assert_eq!(figures("nothing"), None);
    }

    #[test]
    fn the_reason_of_a_waiting_pod_is_shown() {
        let pod = json!({"status": {"initContainerStatuses": [
            {"name": "mooncake-gate", "started": false, "state": {"running": {}}},
        ]}});
        assert_eq!(waiting(&pod), ", waiting for mooncake-gate");
        let pod = json!({"status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"},
        ]}});
        assert_eq!(waiting(&pod), ", 0/2 nodes are available");
    }
}
