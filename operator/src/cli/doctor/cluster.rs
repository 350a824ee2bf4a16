//! What MooncakeClusters say of themselves, where nothing narrower has been said.

use crds::condition::find;
use crds::{ConditionType, MooncakeCluster, Reason, State};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};

use super::object;
use super::trouble::{Severity, Trouble, lasts, severity};
use crate::cli::picture::Picture;
use crate::cli::status::{is_current, known};

/// `Ready` stands for its worst part, with that part's reason and words; then the parts, and what it
/// does not wait for.
const READY_FIRST: [ConditionType; 6] = [
    ConditionType::Ready,
    ConditionType::MasterReady,
    ConditionType::PoolsReady,
    ConditionType::TransportsReady,
    ConditionType::PodsInjected,
    ConditionType::MnnvlReady,
];

/// For how many seconds the operator may not have looked at a new cluster.
const LOOKS_SECONDS: i64 = 60;

pub(super) fn troubles(picture: &Picture, told: &[Trouble], now: Timestamp) -> Vec<Trouble> {
    let clusters = picture.clusters.iter();
    clusters
        .flat_map(|cluster| of_one(cluster, told, now))
        .collect()
}

fn of_one(cluster: &MooncakeCluster, told: &[Trouble], now: Timestamp) -> Vec<Trouble> {
    let mut found = Vec::new();
    if !is_current(cluster) {
        found.push(unlooked(cluster, now));
    }
    let conditions: &[Condition] = match &cluster.status {
        Some(status) => &status.conditions,
        None => &[],
    };
    let mut said = Vec::new();
    for kind in READY_FIRST {
        let Some(condition) = find(conditions, kind).filter(|c| c.status != State::True.as_str())
        else {
            continue;
        };
        let words = (&condition.reason, &condition.message);
        let repeats = kind != ConditionType::Ready && is_told(cluster, condition, told);
        if repeats || said.contains(&words) {
            continue;
        }
        said.push(words);
        let since = Some(condition.last_transition_time.0);
        let who = object("MooncakeCluster", cluster);
        let trouble = match known(&condition.reason) {
            Some(reason) => {
                let severity = severity(reason, lasts(since, now));
                Trouble::new(severity, reason, who, &condition.message)
            }
            None => {
                let message = format!(
                    "{}, a reason that this program does not know: {}",
                    condition.reason, condition.message
                );
                Trouble::new(Severity::Fails, Reason::ReleaseSkew, who, message)
            }
        };
        found.push(trouble.about(kind.as_str()).since(since));
    }
    found
}

/// True where a finding about one of the cluster's pods has that reason: the condition only counts them.
fn is_told(cluster: &MooncakeCluster, condition: &Condition, told: &[Trouble]) -> bool {
    let namespace = cluster.namespace();
    told.iter().any(|trouble| {
        trouble.object.kind == "Pod"
            && trouble.reason.as_str() == condition.reason
            && (trouble.object.namespace == namespace
                || condition.message.contains(&trouble.object.name))
    })
}

fn unlooked(cluster: &MooncakeCluster, now: Timestamp) -> Trouble {
    let created = cluster.creation_timestamp().map(|time| time.0);
    let fresh = lasts(created, now).is_some_and(|seconds| seconds < LOOKS_SECONDS);
    let seen = cluster.status.as_ref().and_then(|s| s.observed_generation);
    let generation = cluster.meta().generation.unwrap_or_default();
    let (severity, message, since) = match seen {
        None => {
            let severity = if fresh {
                Severity::Warns
            } else {
                Severity::Fails
            };
            let message = "the operator has not looked at it yet".to_owned();
            (severity, message, created)
        }
        // When the spec was changed is not written anywhere.
        Some(seen) => {
            let message = format!("the operator has seen generation {seen}, not yet {generation}");
            (Severity::Warns, message, None)
        }
    };
    let who = object("MooncakeCluster", cluster);
    Trouble::new(severity, Reason::Progressing, who, message).since(since)
}
