//! What agents said last of their nodes' health, of what they set right there and of pods that hold sick devices, so
//! that a change of it is told once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use crds::check::CheckFinding;
use crds::condition::find;
use crds::{CheckId, ConditionType, FixId, FixReport, MooncakeNode, Reason, State};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// What was last seen of each node, as far as this process has looked.
#[derive(Debug)]
struct Last<T>(Mutex<HashMap<String, T>>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Last<T> {
    /// What was there before. What stands when this process first looks was told by its predecessor, so that
    /// it is no news.
    fn replace(&self, node: &str, now: T, nodes: usize) -> Option<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > nodes.saturating_mul(2).max(64) {
            // Most of them are nodes that are no more.
            known.clear();
        }
        known.insert(node.to_owned(), now)
    }
}

/// The last word of each node's agent.
#[derive(Debug, Default)]
pub struct LastWords(Last<Vec<Condition>>);

impl LastWords {
    /// What was said before and what is said now, where both are known. Doubt is not the agent's word.
    pub fn note(
        &self,
        node: &str,
        stands: &[Condition],
        nodes: usize,
    ) -> Option<(Vec<Condition>, Vec<Condition>)> {
        let said = find(stands, ConditionType::NodeHealthy);
        if said.is_some_and(|said| said.status == State::Unknown.as_str()) {
            return None;
        }
        let now: Vec<Condition> = said.cloned().into_iter().collect();
        let before = self.0.replace(node, now.clone(), nodes)?;
        Some((before, now))
    }
}

/// The last reason of each fix, by node.
#[derive(Debug, Default)]
pub struct LastFixes(Last<BTreeMap<FixId, FixReport>>);

impl LastFixes {
    /// What is news: a fix of another reason than before, or one that is no more.
    pub fn note(&self, node: &str, said: &[FixReport], nodes: usize) -> Vec<(Reason, String)> {
        let now: BTreeMap<FixId, FixReport> =
            said.iter().map(|fix| (fix.id, fix.clone())).collect();
        let Some(before) = self.0.replace(node, now.clone(), nodes) else {
            return Vec::new();
        };
        let other = |fix: &&FixReport| {
            let before = before.get(&fix.id);
            before.is_none_or(|before| before.reason != fix.reason)
        };
        let changed = now.values().filter(other).map(|fix| {
            let note = format!(
                "{}: from {} to {}: {}",
                fix.id, fix.before, fix.after, fix.message
            );
            (fix.reason, note)
        });
        let gone = before.keys().filter(|id| !now.contains_key(id));
        let gone = gone.map(|id| (Reason::FixEnded, format!("{id}: {}", id.target())));
        changed.chain(gone).collect()
    }
}

/// The pods that held a sick device when the node's agent last spoke, by UID.
#[derive(Debug, Default)]
pub struct LastOwners(Last<BTreeMap<String, CheckFinding>>);

impl LastOwners {
    /// The pods that are to be told for the first time. Injected ones are told all that is found of them by
    /// their cluster.
    pub fn note(&self, node: &MooncakeNode, nodes: usize) -> Vec<(ObjectReference, String)> {
        let injected = |uid: &str| node.spec.injected.iter().any(|pod| pod.pod_uid == uid);
        let findings = node.status.iter().flat_map(|status| &status.findings);
        let owners = findings.filter(|finding| finding.check == CheckId::PodDevices);
        let now: BTreeMap<String, CheckFinding> = owners
            .filter_map(|finding| Some((finding.pod_uid.clone()?, finding.clone())))
            .filter(|(uid, _)| !injected(uid))
            .collect();
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Some(before) = self.0.replace(name, now.clone(), nodes) else {
            return Vec::new();
        };
        now.iter()
            .filter(|(uid, _)| !before.contains_key(*uid))
            .filter_map(|(uid, finding)| Some((pod(uid, finding)?, finding.message.clone())))
            .collect()
    }
}

fn pod(uid: &str, finding: &CheckFinding) -> Option<ObjectReference> {
    let (namespace, name) = finding.subject.strip_prefix("pod ")?.split_once('/')?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    })
}

#[cfg(test)]
mod tests {
    use crds::Finding;
    use crds::condition::merge;
    use jiff::Timestamp;

    use super::*;

    fn said(state: State, reason: Reason) -> Vec<Condition> {
        let finding = Finding::new(ConditionType::NodeHealthy, state, reason, "words");
        merge(&[], &[finding], None, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_stood_when_the_operator_began_is_no_news_and_doubt_is_not_the_agents_word() {
        let words = LastWords::default();
        let good = said(State::True, Reason::AsExpected);
        let bad = said(State::False, Reason::PortNotActive);
        let doubt = said(State::Unknown, Reason::AgentMissing);
        assert_eq!(words.note("n1", &good, 1), None);
        assert_eq!(words.note("n1", &bad, 1), Some((good.clone(), bad.clone())));
        assert_eq!(words.note("n1", &doubt, 1), None);
        assert_eq!(words.note("n1", &bad, 1), Some((bad.clone(), bad.clone())));
        assert_eq!(words.note("n2", &[], 2), None);
        assert_eq!(words.note("n2", &bad, 2), Some((Vec::new(), bad)));
    }

    #[test]
    fn a_fix_is_told_when_its_reason_changes_and_when_it_is_no_more() {
        let fix = |reason, message: &str| FixReport {
            id: FixId::MaxMapCount,
            reason,
            before: "1000".to_owned(),
            after: "65530".to_owned(),
            message: message.to_owned(),
        };
        let words = LastFixes::default();
        let note = |said: &[FixReport]| {
            let told = words.note("n1", said, 1).into_iter();
            told.map(|(reason, note)| format!("{reason} {note}"))
                .collect::<Vec<_>>()
        };
        let nothing: [String; 0] = [];
        let refused = fix(Reason::FixRefused, "EROFS");
        assert_eq!(
            note(&[fix(Reason::FixProposed, "x")]),
            nothing,
            "stood when it began"
        );
        assert_eq!(
            note(std::slice::from_ref(&refused)),
            ["FixRefused MaxMapCount: from 1000 to 65530: EROFS"]
        );
        assert_eq!(note(&[refused]), nothing);
        assert_eq!(note(&[fix(Reason::FixRefused, "other words")]), nothing);
        assert_eq!(note(&[]), ["FixEnded MaxMapCount: vm.max_map_count"]);
        assert_eq!(note(&[]), nothing);
    }

    #[test]
    fn nodes_that_are_no_more_are_forgotten() {
        let words = LastWords::default();
        for node in 0..1000 {
            words.note(&format!("n{node}"), &[], 3);
        }
        assert!(words.0.0.lock().unwrap().len() <= 65);
    }

    #[test]
    fn a_pod_that_holds_a_sick_device_is_told_once_and_an_injected_one_by_its_cluster() {
        let words = LastOwners::default();
        let told = |uids: &[&str]| {
            let findings: Vec<String> = uids
                .iter()
                .map(|uid| {
                    format!(
                        "{{check: PodDevices, verdict: Warn, reason: DeviceSick, podUid: {uid}, \
                         subject: pod team/{uid}-pod, message: m, since: '2026-01-01T00:00:00Z'}}"
                    )
                })
                .collect();
            let node: MooncakeNode = serde_yaml_ng::from_str(&format!(
                "{{apiVersion: mooncake.io/v1alpha1, kind: MooncakeNode, metadata: {{name: n1}}, spec: {{injected: \
                 [{{podUid: i, namespace: team, podName: i-pod, clusterNamespace: team, cluster: kv, version: '0.3.13', \
                 rdma: Prefer}}]}}, status: {{conditions: [], findings: [{}]}}}}",
                findings.join(", ")
            ))
            .unwrap();
            let told = words.note(&node, 1).into_iter();
            told.map(|(pod, _)| format!("{}/{}", pod.namespace.unwrap(), pod.name.unwrap()))
                .collect::<Vec<_>>()
        };
        let nobody: [String; 0] = [];
        assert_eq!(told(&[]), nobody);
        assert_eq!(told(&["a", "i"]), ["team/a-pod"]);
        assert_eq!(told(&["a", "i", "b"]), ["team/b-pod"]);
        assert_eq!(told(&["b"]), nobody);
        assert_eq!(told(&["a", "b"]), ["team/a-pod"], "sick again");
    }
}
