//! Writes the pod conditions of labelled pods (injection, gate, container compatibility) and the preflight
//! annotation of pods that wait for their node.

use std::collections::HashMap;
use std::time::Duration;

use crds::condition::shorten;
use crds::{MooncakeNode, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::apply::Writer;
use crate::cluster::observe::Observed;
use crate::cluster::pod_condition::DesiredCondition;
use crate::cluster::validate::Valid;
use crate::cluster::{container_compatibility, injection, preflight};
use crate::event::{EventType, Events, Note};
use crate::pod::{condition, gate_status, is_over};

/// Timeout for reading one MooncakeNode.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Pod condition: state of the pod's gate.
pub const GATE: &str = "mooncake.io/GateReady";
/// Pod condition: the pod was injected. Only written if it once was not.
pub const INJECTED: &str = "mooncake.io/Injected";

/// Writes the conditions of each pod that the cluster admits. A pod whose conditions cannot be
/// written is logged and retried at the next reconcile; then the result is false.
pub async fn write(
    client: &Client,
    writer: &Writer,
    events: &Events,
    cluster: &Valid,
    observed: &Observed,
) -> bool {
    let mut nodes = Nodes::new(client);
    let mut all_written = true;
    for pod in &observed.labelled {
        let namespace = pod.namespace().unwrap_or_default();
        let leaving = pod.meta().deletion_timestamp.is_some();
        let done = is_over(pod) && !waits_in_vain(pod);
        if !cluster.admits(&namespace) || done || leaving {
            continue;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let mooncake_node = node.and_then(|node| observed.mooncake_node(node));
        let desired = desired_conditions(cluster, pod, mooncake_node);
        let node = nodes.preflight(cluster, pod).await;
        let same = node.as_deref() == preflight::current(pod);
        if same && desired.iter().all(|desired| desired.is_current(pod)) {
            continue;
        }
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        let now = Timestamp::now();
        let conditions: Vec<_> = desired.iter().map(|desired| desired.at(pod, now)).collect();
        let status = json!({ "conditions": conditions });
        let annotations = node.map(|node| (names::ANNOTATION_PREFLIGHT, node));
        let annotations = annotations.into_iter().collect();
        let written = writer.apply_annotated_status(&api, pod.meta(), &annotations, &status);
        if let Err(error) = written.await {
            tracing::warn!(pod = %pod.name_any(), %error, "cannot write the pod's conditions; retrying at the next reconcile");
            all_written = false;
            continue;
        }
        if let Some((reason, desired)) = new_injection_problem(cluster, pod) {
            let note = Note {
                severity: EventType::Warning,
                reason,
                action: "Inject",
                text: format!("{desired}. Remedy: {}", reason.remedy()),
            };
            events.emit(writer, pod.object_ref(&()), note).await;
        }
        if let Some((reason, text)) = container_transition(pod, &desired) {
            let note = Note {
                severity: match reason {
                    Reason::AsExpected => EventType::Normal,
                    _ => EventType::Warning,
                },
                reason,
                action: "Look",
                text,
            };
            events.emit(writer, pod.object_ref(&()), note).await;
        }
    }
    all_written && !nodes.failed
}

/// Preflight results, read from the API server for each node that a pod waits for: the cache drops the
/// findings of nodes.
struct Nodes {
    api: Api<MooncakeNode>,
    results: HashMap<String, String>,
    /// The API server did not answer: retried at the next reconcile.
    timed_out: bool,
    /// A MooncakeNode could not be read.
    failed: bool,
}

impl Nodes {
    fn new(client: &Client) -> Self {
        Self {
            api: Api::all(client.clone()),
            results: HashMap::new(),
            timed_out: false,
            failed: false,
        }
    }

    /// The pod's preflight annotation; the current one if nothing new is known.
    async fn preflight(&mut self, cluster: &Valid, pod: &Pod) -> Option<String> {
        let current = preflight::current(pod).map(str::to_owned);
        let Some(node) = preflight::waits_for(pod) else {
            return current;
        };
        if let Some(results) = self.results.get(node) {
            return Some(results.clone());
        }
        if self.timed_out {
            return current;
        }
        let mooncake_node = match tokio::time::timeout(TIMEOUT, self.api.get_opt(node)).await {
            Ok(Ok(mooncake_node)) => mooncake_node,
            Ok(Err(error)) => {
                tracing::warn!(node, %error, "cannot read the MooncakeNode for a waiting pod; retrying");
                self.failed = true;
                return current;
            }
            Err(_) => {
                tracing::warn!(
                    node,
                    "no answer in {TIMEOUT:?} to reading the MooncakeNode for a waiting pod; retrying"
                );
                (self.timed_out, self.failed) = (true, true);
                return current;
            }
        };
        let results = preflight::annotation(cluster, mooncake_node.as_ref());
        self.results.insert(node.to_owned(), results.clone());
        Some(results)
    }
}

/// All conditions of the operator: an apply removes those that it leaves out.
fn desired_conditions(
    cluster: &Valid,
    pod: &Pod,
    mooncake_node: Option<&MooncakeNode>,
) -> Vec<DesiredCondition> {
    [
        injection(cluster, pod),
        gate(pod),
        container_compatibility::desired(pod, mooncake_node),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// None if the pod never had an injection problem.
fn injection(cluster: &Valid, pod: &Pod) -> Option<DesiredCondition> {
    let problem = injection::problem(cluster, pod);
    if problem.is_none() && condition(pod, INJECTED).is_none() {
        return None;
    }
    let holds = problem.is_none();
    let (reason, message) = problem.unwrap_or_else(|| {
        let desired = format!("injected for MooncakeCluster {}", cluster.name);
        (Reason::AsExpected, desired)
    });
    Some(DesiredCondition {
        kind: INJECTED,
        holds,
        reason: reason.as_str().to_owned(),
        message,
    })
}

/// The injection problem, if the current condition does not report it yet.
fn new_injection_problem(cluster: &Valid, pod: &Pod) -> Option<(Reason, String)> {
    let (reason, desired) = injection::problem(cluster, pod)?;
    let results = condition(pod, INJECTED).is_some_and(|results| {
        results.status == "False" && results.reason.as_deref() == Some(reason.as_str())
    });
    (!results).then_some((reason, desired))
}

/// The container compatibility condition, if its status or reason changed.
fn container_transition(pod: &Pod, desired: &[DesiredCondition]) -> Option<(Reason, String)> {
    let desired = desired
        .iter()
        .find(|desired| desired.kind == container_compatibility::CONDITION)?;
    let same = condition(pod, container_compatibility::CONDITION).is_some_and(|results| {
        (results.status == "True", results.reason.as_ref())
            == (desired.holds, Some(&desired.reason))
    });
    let mut reasons = Reason::ALL.iter().filter(|_| !same);
    let reason = reasons.find(|reason| reason.as_str() == desired.reason)?;
    Some((*reason, shorten(&desired.message)))
}

/// State of the gate container; `None` if the pod has none or it has no status yet.
pub fn gate(pod: &Pod) -> Option<DesiredCondition> {
    let container = gate_status(pod)?;
    // The gate ends after the containers that it let start.
    let open = container.started == Some(true) || has_run(pod);
    // Termination message of the gate after its deadline: "<Reason>: text".
    let ended = container.last_state.iter().chain(&container.state);
    let timeout = ended
        .filter_map(|state| state.terminated.as_ref()?.message.clone())
        .find_map(|results| {
            let (reason, desired) = results.split_once(": ")?;
            let known = Reason::ALL.iter().any(|known| known.as_str() == reason);
            known.then(|| (reason.to_owned(), desired.trim().to_owned()))
        });
    let condition_of = |holds, reason, message| DesiredCondition {
        kind: GATE,
        holds,
        reason,
        message,
    };
    let own = |reason: Reason| reason.as_str().to_owned();
    Some(match (timeout, open) {
        (Some((reason, desired)), true) => {
            let message = format!("the gate let the pod start after its deadline: {desired}");
            condition_of(false, reason, message)
        }
        (Some((reason, desired)), false) => condition_of(false, reason, desired),
        (None, true) => {
            let message = "master and pools respond to the pod".to_owned();
            condition_of(true, own(Reason::AsExpected), message)
        }
        (None, false) => {
            let message = preflight::holds(pod).map_or_else(
                || "the gate waits; see the pod's startup probe events for the cause".to_owned(),
                |found| format!("the gate waits: {found}"),
            );
            condition_of(false, own(Reason::GateWaiting), message)
        }
    })
}

/// True if a container behind the gate runs or ran, so that the gate has opened. After a reboot of the node it waits
/// again, like its gate.
fn has_run(pod: &Pod) -> bool {
    let status = pod.status.iter();
    let containers = status.flat_map(|status| status.container_statuses.iter().flatten());
    let mut states = containers.filter_map(|container| container.state.as_ref());
    states.any(|state| {
        let ended = state.terminated.as_ref();
        state.running.is_some() || ended.is_some_and(|ended| ended.started_at.is_some())
    })
}

/// True if the pod has run to its end and its condition is that its gate still waits.
fn waits_in_vain(pod: &Pod) -> bool {
    let waiting = Reason::GateWaiting.as_str();
    let condition = condition(pod, GATE);
    has_run(pod) && condition.is_some_and(|one| one.reason.as_deref() == Some(waiting))
}

#[cfg(test)]
mod tests {
    use crds::names;

    use super::*;
    use crate::fixture;
    use crate::pod::GATE_CONTAINER;

    fn labelled(rest: &str) -> Pod {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: a, namespace: team, labels: {{mooncake.io/inject: kv}}}}, {rest}}}"
        ))
        .unwrap()
    }

    fn write(pod: &mut Pod, desired: &[DesiredCondition]) {
        let written = desired
            .iter()
            .map(|desired| desired.at(pod, Timestamp::UNIX_EPOCH));
        let written = written.collect();
        pod.status.as_mut().unwrap().conditions = Some(written);
    }

    #[test]
    fn the_gates_termination_message_becomes_the_pod_condition() {
        let status = |state: &str| {
            labelled(&format!(
                "status: {{initContainerStatuses: [{{name: {GATE_CONTAINER}, image: x, imageID: x, \
                 ready: false, restartCount: 1, {state}}}]}}"
            ))
        };
        let waiting = gate(&status("started: false")).unwrap();
        assert_eq!(
            (waiting.holds, waiting.reason.as_str()),
            (false, "GateWaiting")
        );
        assert!(gate(&status("started: true")).unwrap().holds);
        let late = gate(&status(
            "started: true, lastState: {terminated: {exitCode: 0, message: 'GateTimedOut: no pool'}}",
        ))
        .unwrap();
        assert_eq!((late.holds, late.reason.as_str()), (false, "GateTimedOut"));
        assert!(late.message.ends_with("no pool"));
    }

    #[test]
    fn the_gate_of_a_completed_pod_has_opened() {
        let pod = |phase: &str, state: &str| {
            labelled(&format!(
                "status: {{phase: {phase}, initContainerStatuses: [{{name: {GATE_CONTAINER}, image: x, imageID: x, \
                 ready: false, restartCount: 0, started: false, state: {{terminated: {{exitCode: 0}}}}}}], \
                 containerStatuses: [{{name: main, image: x, imageID: x, ready: false, restartCount: 0, \
                 state: {{{state}}}}}], conditions: [{{type: {GATE}, status: 'False', reason: GateWaiting}}]}}"
            ))
        };
        let ended = "terminated: {exitCode: 0, startedAt: '2026-01-01T00:00:00Z'}";
        for (phase, state) in [("Succeeded", ended), ("Failed", ended), ("Running", ended)] {
            let pod = pod(phase, state);
            let gate = gate(&pod).unwrap();
            assert!(gate.holds, "{phase}: {gate:?}");
            assert!(waits_in_vain(&pod), "{phase}: its condition is not written");
        }
        let never = pod("Failed", "waiting: {reason: PodInitializing}");
        assert!(!gate(&never).unwrap().holds && !waits_in_vain(&never));
    }

    #[test]
    fn a_pod_that_was_not_injected_gets_one_event_and_an_injected_pod_no_condition() {
        let cluster = fixture::valid("{}");
        let mut pod = labelled("status: {}");
        let results = desired_conditions(&cluster, &pod, None);
        assert_eq!((results[0].kind, results[0].holds), (INJECTED, false));
        assert!(new_injection_problem(&cluster, &pod).is_some());
        write(&mut pod, &results);
        let again = desired_conditions(&cluster, &pod, None);
        assert!(again.iter().all(|desired| desired.is_current(&pod)));
        assert_eq!(new_injection_problem(&cluster, &pod), None);

        pod.labels_mut()
            .insert(names::LABEL_ACCESS.to_owned(), "kv".to_owned());
        let results = desired_conditions(&cluster, &pod, None);
        assert!(results[0].holds, "the condition becomes True");
        pod.status = None;
        assert_eq!(desired_conditions(&cluster, &pod, None), []);
    }

    #[test]
    fn a_container_finding_is_an_event_when_it_appears_and_when_it_clears() {
        let desired = |holds, reason: Reason| DesiredCondition {
            kind: container_compatibility::CONDITION,
            holds,
            reason: reason.as_str().to_owned(),
            message: "container main: it has 0.3.11".to_owned(),
        };
        let mut pod = labelled("status: {}");
        let results = [
            desired(false, Reason::EngineVersionSkew),
            desired(false, Reason::HcaNotInPod),
            desired(true, Reason::AsExpected),
        ];
        for desired in results {
            let desired = [desired];
            let reason = desired[0].reason.clone();
            let same = container_transition(&pod, &desired).unwrap();
            assert_eq!(same.0.as_str(), reason);
            write(&mut pod, &desired);
            assert_eq!(container_transition(&pod, &desired), None, "{reason} twice");
        }
    }
}
