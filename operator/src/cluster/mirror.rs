//! What a labelled pod is told: of itself, as conditions, was it injected, is its gate open, does what it brings along
//! fit; and of its node, where it waits for that.

use std::collections::HashMap;
use std::time::Duration;

use crds::condition::shorten;
use crds::{MooncakeNode, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::admission::GATE_CONTAINER;
use crate::apply::Writer;
use crate::cluster::observe::{Observed, is_over};
use crate::cluster::validate::Valid;
use crate::cluster::{fit, injected, preflight};
use crate::event::Events;

/// How long the API server may take for one node.
const ANSWER: Duration = Duration::from_secs(5);

/// Pod condition that repeats what the pod's gate found.
pub const GATE: &str = "mooncake.io/GateReady";
/// Pod condition that says why the pod does not take part, and later that it may.
pub const INJECTED: &str = "mooncake.io/Injected";

/// One condition before it is known whether it is news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: String,
    pub message: String,
}

/// Writes the conditions of each pod that the cluster admits. A pod whose conditions cannot be
/// written is logged: the next look tries again.
pub async fn tell(
    client: &Client,
    writer: &Writer,
    events: &Events,
    cluster: &Valid,
    observed: &Observed,
) {
    let mut nodes = Nodes::new(client);
    for pod in &observed.labelled {
        let namespace = pod.namespace().unwrap_or_default();
        let leaving = pod.meta().deletion_timestamp.is_some();
        if !cluster.admits(&namespace) || is_over(pod) || leaving {
            continue;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let report = node.and_then(|node| observed.reports.get(node));
        let words = words(cluster, pod, report);
        let node = nodes.word(cluster, pod).await;
        let told = node.as_deref() == preflight::said(pod);
        if told && words.iter().all(|word| stands(pod, word)) {
            continue;
        }
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        let name = pod.name_any();
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "uid": pod.uid() },
            "status": { "conditions": conditions(pod, &words, Timestamp::now()) },
        });
        if let Some(node) = node {
            body["metadata"]["annotations"] = json!({ names::ANNOTATION_PREFLIGHT: node });
        }
        if let Err(error) = writer.apply_status(&api, &name, &body).await {
            tracing::warn!(pod = %name, %error, "the pod was not told how it stands");
            continue;
        }
        if let Some((reason, words)) = left_out(cluster, pod) {
            let note = format!("{words}. Remedy: {}", reason.remedy());
            let about = pod.object_ref(&());
            events.warn(writer, about, reason, "Inject", note).await;
        }
        if let Some((reason, note)) = news(pod, &words) {
            let about = pod.object_ref(&());
            match reason {
                Reason::AsExpected => events.note(writer, about, reason, "Look", note).await,
                _ => events.warn(writer, about, reason, "Look", note).await,
            }
        }
    }
}

/// What nodes' agents found, asked of the API server for each node that a pod waits for: the cache keeps of a
/// report what is needed of thousands.
struct Nodes {
    api: Api<MooncakeNode>,
    said: HashMap<String, String>,
    /// The API server has not answered: the next look asks again.
    silent: bool,
}

impl Nodes {
    fn new(client: &Client) -> Self {
        Self {
            api: Api::all(client.clone()),
            said: HashMap::new(),
            silent: false,
        }
    }

    /// What is to stand in the pod's annotation; what stands there where nothing new is known.
    async fn word(&mut self, cluster: &Valid, pod: &Pod) -> Option<String> {
        let stands = preflight::said(pod).map(str::to_owned);
        let Some(node) = preflight::waits_for(pod) else {
            return stands;
        };
        if let Some(said) = self.said.get(node) {
            return Some(said.clone());
        }
        if self.silent {
            return stands;
        }
        let report = match tokio::time::timeout(ANSWER, self.api.get_opt(node)).await {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                tracing::warn!(node, %error, "what a pod waits for on its node is not known");
                return stands;
            }
            Err(_) => {
                tracing::warn!(
                    node,
                    "what a pod waits for on its node: no answer in {ANSWER:?}"
                );
                self.silent = true;
                return stands;
            }
        };
        let said = preflight::word(cluster, report.as_ref());
        self.said.insert(node.to_owned(), said.clone());
        Some(said)
    }
}

/// Everything of ours that is to stand in the pod: what one apply leaves out, it takes away.
fn words(cluster: &Valid, pod: &Pod, report: Option<&MooncakeNode>) -> Vec<Word> {
    [injection(cluster, pod), gate(pod), fit::word(pod, report)]
        .into_iter()
        .flatten()
        .collect()
}

/// Nothing where the pod was always as it should be.
fn injection(cluster: &Valid, pod: &Pod) -> Option<Word> {
    let trouble = injected::trouble(cluster, pod);
    if trouble.is_none() && condition(pod, INJECTED).is_none() {
        return None;
    }
    let holds = trouble.is_none();
    let (reason, message) = trouble.unwrap_or_else(|| {
        let words = format!("it takes part in MooncakeCluster {}", cluster.name);
        (Reason::AsExpected, words)
    });
    Some(Word {
        kind: INJECTED,
        holds,
        reason: reason.as_str().to_owned(),
        message,
    })
}

/// Why the pod does not take part, where its condition does not say so yet.
fn left_out(cluster: &Valid, pod: &Pod) -> Option<(Reason, String)> {
    let (reason, words) = injected::trouble(cluster, pod)?;
    let said = condition(pod, INJECTED).is_some_and(|said| {
        said.status == "False" && said.reason.as_deref() == Some(reason.as_str())
    });
    (!said).then_some((reason, words))
}

/// What is now said of the pod's containers for the first time, or otherwise than before.
fn news(pod: &Pod, words: &[Word]) -> Option<(Reason, String)> {
    let word = words.iter().find(|word| word.kind == fit::FIT)?;
    let same = condition(pod, fit::FIT).is_some_and(|said| {
        (said.status == "True", said.reason.as_ref()) == (word.holds, Some(&word.reason))
    });
    let mut reasons = Reason::ALL.iter().filter(|_| !same);
    let reason = reasons.find(|reason| reason.as_str() == word.reason)?;
    Some((*reason, shorten(&word.message)))
}

/// Reads the gate's container; `None` where the pod has none, or it was not yet started.
pub fn gate(pod: &Pod) -> Option<Word> {
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
    let word = |holds, reason, message| Word {
        kind: GATE,
        holds,
        reason,
        message,
    };
    let own = |reason: Reason| reason.as_str().to_owned();
    Some(match (verdict, open) {
        (Some((reason, words)), true) => {
            let message = format!("the pod was let go without an answer: {words}");
            word(false, reason, message)
        }
        (Some((reason, words)), false) => word(false, reason, words),
        (None, true) => {
            let message = "master and pools answered from inside the pod".to_owned();
            word(true, own(Reason::AsExpected), message)
        }
        (None, false) => {
            let message = preflight::holds(pod).map_or_else(
                || "the gate waits; the pod's events of the startup probe say for what".to_owned(),
                |found| format!("the gate waits: {found}"),
            );
            word(false, own(Reason::GateWaiting), message)
        }
    })
}

/// A condition of the pod.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == kind)
}

fn stands(pod: &Pod, word: &Word) -> bool {
    condition(pod, word.kind).is_some_and(|standing| {
        (standing.status == "True") == word.holds
            && standing.reason.as_ref() == Some(&word.reason)
            && standing.message.as_ref() == Some(&word.message)
    })
}

/// A transition time moves only with the state.
fn conditions(pod: &Pod, words: &[Word], now: Timestamp) -> Vec<PodCondition> {
    let condition = |word: &Word| {
        let since = condition(pod, word.kind)
            .filter(|standing| (standing.status == "True") == word.holds)
            .and_then(|standing| standing.last_transition_time.clone());
        PodCondition {
            type_: word.kind.to_owned(),
            status: if word.holds { "True" } else { "False" }.to_owned(),
            reason: Some(word.reason.clone()),
            message: Some(word.message.clone()),
            last_transition_time: Some(since.unwrap_or(Time(now))),
            ..PodCondition::default()
        }
    };
    words.iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use crds::names;

    use super::*;
    use crate::fixture;

    fn labelled(rest: &str) -> Pod {
        serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: a, namespace: team, labels: {{mooncake.io/inject: kv}}}}, {rest}}}"
        ))
        .unwrap()
    }

    #[test]
    fn the_gates_last_words_are_the_pods_condition() {
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
    fn a_pod_that_was_left_out_is_told_once_and_one_that_takes_part_is_told_nothing() {
        let cluster = fixture::valid("{}");
        let mut pod = labelled("status: {}");
        let said = words(&cluster, &pod, None);
        assert_eq!((said[0].kind, said[0].holds), (INJECTED, false));
        assert!(left_out(&cluster, &pod).is_some());
        let now = Timestamp::UNIX_EPOCH;
        pod.status.as_mut().unwrap().conditions = Some(conditions(&pod, &said, now));
        let again = words(&cluster, &pod, None);
        assert!(again.iter().all(|word| stands(&pod, word)));
        assert_eq!(left_out(&cluster, &pod), None);

        pod.labels_mut()
            .insert(names::LABEL_ACCESS.to_owned(), "kv".to_owned());
        let said = words(&cluster, &pod, None);
        assert!(said[0].holds, "what stood is taken back");
        pod.status = None;
        assert_eq!(words(&cluster, &pod, None), []);
    }

    #[test]
    fn what_is_found_in_a_pod_is_an_event_when_it_comes_and_when_it_goes() {
        let word = |holds, reason: Reason| Word {
            kind: fit::FIT,
            holds,
            reason: reason.as_str().to_owned(),
            message: "container main: it has 0.3.11".to_owned(),
        };
        let mut pod = labelled("status: {}");
        let said = [
            word(false, Reason::EngineVersionSkew),
            word(false, Reason::HcaNotInPod),
            word(true, Reason::AsExpected),
        ];
        for word in said {
            let words = [word];
            let reason = words[0].reason.clone();
            let told = news(&pod, &words).unwrap();
            assert_eq!(told.0.as_str(), reason);
            let now = Timestamp::UNIX_EPOCH;
            pod.status.as_mut().unwrap().conditions = Some(conditions(&pod, &words, now));
            assert_eq!(news(&pod, &words), None, "{reason} twice");
        }
    }
}
