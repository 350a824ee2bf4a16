//! Findings of MooncakeClusters: conditions that no finding of a pod explains.

use crds::condition::find;
use crds::{ConditionStatus, ConditionType, MooncakeCluster, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::finding::{Finding, Object, elapsed, severity};
use crate::snapshot::Snapshot;
use crate::status::{is_current, known_reason, not_observed};

/// `Ready` repeats reason and message of its most severe part; then its parts, then the conditions that it does
/// not depend on.
const READY_FIRST: [ConditionType; 8] = [
    ConditionType::Ready,
    ConditionType::MasterReady,
    ConditionType::PoolsReady,
    ConditionType::TransportsReady,
    ConditionType::MetadataReady,
    ConditionType::PodsInjected,
    ConditionType::MnnvlReady,
    ConditionType::Drained,
];

/// Conditions that are present only while something hinders the operator.
const WHILE_TRUE: [ConditionType; 2] = [ConditionType::Stalled, ConditionType::Paused];

/// How long the operator may take to observe a new cluster.
const OBSERVE_SECONDS: i64 = 60;

pub(super) fn findings(snapshot: &Snapshot, known: &[Finding], now: Timestamp) -> Vec<Finding> {
    let clusters = snapshot.clusters.iter();
    clusters
        .flat_map(|cluster| of_cluster(cluster, known, now))
        .collect()
}

fn of_cluster(cluster: &MooncakeCluster, known: &[Finding], now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    if !is_current(cluster) {
        found.push(unobserved(cluster, now));
    }
    let status = cluster.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    let mut seen = Vec::new();
    let good = READY_FIRST.map(|kind| (kind, true));
    let bad = WHILE_TRUE.map(|kind| (kind, false));
    for (kind, is_good) in good.into_iter().chain(bad) {
        let is_true = |c: &&Condition| c.status == ConditionStatus::True.as_str();
        let Some(condition) = find(conditions, kind).filter(|c| is_true(c) != is_good) else {
            continue;
        };
        let text = (&condition.reason, &condition.message);
        let explained = kind != ConditionType::Ready && is_explained(cluster, condition, known);
        // Those of the second kind are often a shorter form of the first.
        let repeated = |(reason, _): &(&String, &String)| !is_good && *reason == text.0;
        if explained || seen.contains(&text) || seen.iter().any(repeated) {
            continue;
        }
        seen.push(text);
        let since = Some(condition.last_transition_time.0);
        let object = Object::of("MooncakeCluster", cluster);
        let finding = match known_reason(&condition.reason) {
            Some(reason) => {
                let severity = severity(reason, elapsed(since, now));
                Finding::new(severity, reason, object, &condition.message)
            }
            None => {
                let message = format!(
                    "reason {} is unknown to this release: {}",
                    condition.reason, condition.message
                );
                Finding::error(Reason::ReleaseSkew, object, message)
            }
        };
        found.push(finding.subject(kind.as_str()).since(since));
    }
    found.extend(degraded_transport(cluster, conditions));
    found
}

/// A transport that works, but is not the preferred one, not proved any more, or fails between some nodes.
fn degraded_transport(cluster: &MooncakeCluster, conditions: &[Condition]) -> Option<Finding> {
    let kind = ConditionType::TransportsReady;
    let condition = find(conditions, kind)?;
    let is_true = condition.status == ConditionStatus::True.as_str();
    let reasons = [Reason::TransportDegraded, Reason::MtuMismatch];
    let mut reasons = reasons.into_iter().filter(|_| is_true);
    let reason = reasons.find(|reason| condition.reason == reason.as_str())?;
    let object = Object::of("MooncakeCluster", cluster);
    let finding = Finding::warning(reason, object, &condition.message);
    let since = Some(condition.last_transition_time.0);
    Some(finding.subject(kind.as_str()).since(since))
}

/// True when a finding of a pod has the reason of the condition, which only counts such pods.
fn is_explained(cluster: &MooncakeCluster, condition: &Condition, known: &[Finding]) -> bool {
    let namespace = cluster.namespace();
    known.iter().any(|Finding { object, reason, .. }| {
        object.kind == "Pod"
            && reason.as_str() == condition.reason
            && (object.namespace == namespace || condition.message.contains(&object.name))
    })
}

fn unobserved(cluster: &MooncakeCluster, now: Timestamp) -> Finding {
    let status = cluster.status.as_ref();
    // The API server does not record when the spec changed.
    let never = status.is_none_or(|status| status.observed_generation.is_none());
    let since = cluster.creation_timestamp().map(|time| time.0);
    let since = since.filter(|_| never);
    let recent = elapsed(since, now).is_some_and(|seconds| seconds < OBSERVE_SECONDS);
    let object = Object::of("MooncakeCluster", cluster);
    let message = not_observed(cluster);
    let finding = match never && !recent {
        true => Finding::error(Reason::Progressing, object, message),
        false => Finding::warning(Reason::Progressing, object, message),
    };
    finding.since(since)
}
