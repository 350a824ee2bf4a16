//! The last node health, fixes and holders of unhealthy devices that each agent reported, so that each
//! change is one Event.

use std::collections::{BTreeMap, HashMap};

use crds::check::CheckFinding;
use crds::condition::find;
use crds::{CheckId, ConditionStatus, ConditionType, FixId, FixReport, MooncakeNode, Reason, Word};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use parking_lot::Mutex;

/// The last value for each node since this process started.
#[derive(Debug)]
struct Last<T>(Mutex<HashMap<String, T>>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Last<T> {
    /// Stores the value and returns the previous one; none at first, as the previous process reported it.
    fn replace(&self, node: &str, now: T, nodes: usize) -> Option<T> {
        let mut known = self.0.lock();
        if known.len() > nodes.saturating_mul(2).max(64) {
            // Most of these nodes no longer exist.
            known.clear();
        }
        known.insert(node.to_owned(), now)
    }
}

/// The last condition NodeHealthy of each node.
#[derive(Debug, Default)]
pub struct LastHealth(Last<Vec<Condition>>);

impl LastHealth {
    /// The previous and the current condition, if both are known. The agent does not write Unknown.
    pub fn note(
        &self,
        node: &str,
        conditions: &[Condition],
        nodes: usize,
    ) -> Option<(Vec<Condition>, Vec<Condition>)> {
        let health = find(conditions, ConditionType::NodeHealthy);
        if health.is_some_and(|health| health.status == ConditionStatus::Unknown.as_str()) {
            return None;
        }
        let now: Vec<Condition> = health.cloned().into_iter().collect();
        let before = self.0.replace(node, now.clone(), nodes)?;
        Some((before, now))
    }
}

/// The last reason of each fix, by node.
#[derive(Debug, Default)]
pub struct LastFixes(Last<BTreeMap<Word<FixId>, FixReport>>);

impl LastFixes {
    /// The changes: a fix with a new reason, or one that ended.
    pub fn note(&self, node: &str, fixes: &[FixReport], nodes: usize) -> Vec<(Reason, String)> {
        let now: BTreeMap<Word<FixId>, FixReport> =
            fixes.iter().map(|fix| (fix.id, fix.clone())).collect();
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
            fix.reason.or(Reason::FixRefused, &note)
        });
        let gone = before.keys().filter(|id| !now.contains_key(id));
        let gone = gone.map(|id| {
            let target = id.known().map_or("", FixId::target);
            (Reason::FixEnded, format!("{id}: {target}"))
        });
        changed.chain(gone).collect()
    }
}

/// The pods that held an unhealthy device at the last report, by UID.
#[derive(Debug, Default)]
pub struct LastDeviceOwners(Last<BTreeMap<String, CheckFinding>>);

impl LastDeviceOwners {
    /// The pods that are new. Injected pods are left out: the cluster controller writes their condition.
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
    use crds::NewCondition;
    use crds::condition::merge;
    use jiff::Timestamp;

    use super::*;

    fn health(state: ConditionStatus, reason: Reason) -> Vec<Condition> {
        let finding = NewCondition::new(ConditionType::NodeHealthy, state, reason, "words");
        merge(&[], &[finding], None, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn the_first_health_and_unknown_health_are_no_transition() {
        let last = LastHealth::default();
        let good = health(ConditionStatus::True, Reason::AsExpected);
        let bad = health(ConditionStatus::False, Reason::PortNotActive);
        let unknown = health(ConditionStatus::Unknown, Reason::AgentMissing);
        assert_eq!(last.note("n1", &good, 1), None);
        assert_eq!(last.note("n1", &bad, 1), Some((good.clone(), bad.clone())));
        assert_eq!(last.note("n1", &unknown, 1), None);
        assert_eq!(last.note("n1", &bad, 1), Some((bad.clone(), bad.clone())));
        assert_eq!(last.note("n2", &[], 2), None);
        assert_eq!(last.note("n2", &bad, 2), Some((Vec::new(), bad)));
    }

    #[test]
    fn a_fix_is_an_event_when_its_reason_changes_and_when_it_ends() {
        let fix = |reason, message: &str| FixReport {
            id: FixId::MaxMapCount.into(),
            reason: Word::from(reason),
            before: "1000".to_owned(),
            after: "65530".to_owned(),
            message: message.to_owned(),
        };
        let last = LastFixes::default();
        let note = |fixes: &[FixReport]| {
            let changes = last.note("n1", fixes, 1).into_iter();
            changes
                .map(|(reason, note)| format!("{reason} {note}"))
                .collect::<Vec<_>>()
        };
        let nothing: [String; 0] = [];
        let refused = fix(Reason::FixRefused, "EROFS");
        assert_eq!(
            note(&[fix(Reason::FixProposed, "x")]),
            nothing,
            "present at start"
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
    fn deleted_nodes_are_forgotten() {
        let last = LastHealth::default();
        for node in 0..1000 {
            last.note(&format!("n{node}"), &[], 3);
        }
        assert!(last.0.0.lock().len() <= 65);
    }

    #[test]
    fn a_pod_with_an_unhealthy_device_is_reported_once_and_an_injected_one_is_not() {
        let last = LastDeviceOwners::default();
        let reported = |uids: &[&str]| {
            let findings: Vec<String> = uids
                .iter()
                .map(|uid| {
                    format!(
                        "{{check: PodDevices, verdict: Warn, reason: DeviceUnhealthy, podUid: {uid}, \
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
            let changes = last.note(&node, 1).into_iter();
            changes
                .map(|(pod, _)| format!("{}/{}", pod.namespace.unwrap(), pod.name.unwrap()))
                .collect::<Vec<_>>()
        };
        let none: [String; 0] = [];
        assert_eq!(reported(&[]), none);
        assert_eq!(reported(&["a", "i"]), ["team/a-pod"]);
        assert_eq!(reported(&["a", "i", "b"]), ["team/b-pod"]);
        assert_eq!(reported(&["b"]), none);
        assert_eq!(reported(&["a", "b"]), ["team/a-pod"], "unhealthy again");
    }
}
