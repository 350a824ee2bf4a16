//! Conditions: the closed list of types, and the merge that sets transition times.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::reason::Reason;
use crate::text;

/// Maximum length of a condition's message, in bytes.
pub const MESSAGE_LIMIT: usize = 1024;

/// Every condition type that this project writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// MooncakeCluster: stock pods can put and get now.
    Ready,
    /// MooncakeCluster, present only while true: the spec is being reconciled.
    Reconciling,
    /// MooncakeCluster, present only while true: reconciliation cannot continue without a manual change.
    Stalled,
    /// MooncakeCluster, present only while true: enough nodes serve to be Ready, but not all.
    Degraded,
    /// MooncakeCluster, present only while true: the operator changes no object of the cluster.
    Paused,
    /// MooncakeCluster: the master reports that it serves.
    MasterReady,
    /// MooncakeCluster: the memory of every desired pool pod is mounted and served.
    PoolsReady,
    /// MooncakeCluster, only with `spec.metadata.type` HTTP or Etcd: every pool pod can use the metadata service and has published its
    /// descriptor there. `Ready` does not wait for it: mounted segments that peers know stay usable.
    MetadataReady,
    /// MooncakeCluster: the transports that the spec requires are proven to work.
    TransportsReady,
    /// MooncakeCluster, only from a change from RDMA to TCP until RDMA is used again: every storing node has proved RDMA again. The
    /// operator measures from its transition how long RDMA has been usable. `Ready` does not wait for it.
    RdmaUsable,
    /// MooncakeCluster: every labelled pod was injected.
    PodsInjected,
    /// MooncakeCluster, only with `spec.mnnvl`: every participating node is a member of the
    /// ComputeDomain. `Ready` does not wait for it.
    MnnvlReady,
    /// MooncakeCluster, only with the built-in master and from the first drain on: no pool pod ends whose keys move to others, and no
    /// cordoned node waits for that.
    Drained,
    /// MooncakeNode, set by the operator: the node and its agent pod are ready.
    AgentAlive,
    /// MooncakeNode, set by the agent: every pool pod in the spec is served.
    PoolsServing,
    /// MooncakeNodePolicy: the operator can read it, and no policy of the same priority has different rules for a node that
    /// it selects.
    Accepted,
    /// MooncakeNodePolicy, only with `spec.unhealthyDevices`: every node that meets `cordonWhen` is cordoned.
    UnhealthyNodesCordoned,
    /// MooncakeNode, set by the agent: no check of the node fails. The reason is that of the worst finding, which
    /// may be a warning.
    NodeHealthy,
}

impl ConditionType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Degraded => "Degraded",
            Self::Paused => "Paused",
            Self::MasterReady => "MasterReady",
            Self::PoolsReady => "PoolsReady",
            Self::MetadataReady => "MetadataReady",
            Self::TransportsReady => "TransportsReady",
            Self::RdmaUsable => "RdmaUsable",
            Self::PodsInjected => "PodsInjected",
            Self::MnnvlReady => "MnnvlReady",
            Self::Drained => "Drained",
            Self::AgentAlive => "AgentAlive",
            Self::PoolsServing => "PoolsServing",
            Self::NodeHealthy => "NodeHealthy",
            Self::Accepted => "Accepted",
            Self::UnhealthyNodesCordoned => "UnhealthyNodesCordoned",
        }
    }
}

/// The three values of a condition's `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// An observed condition, without transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCondition {
    pub kind: ConditionType,
    pub state: ConditionStatus,
    pub reason: Reason,
    pub message: String,
}

impl NewCondition {
    pub fn new(
        kind: ConditionType,
        state: impl Into<ConditionStatus>,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            state: state.into(),
            reason,
            message: message.into(),
        }
    }
}

/// Returns the conditions to write. Conditions of `old` that are not in `findings` belong to other writers and are
/// omitted. The transition time changes only with the status, so unchanged findings give an equal list.
pub fn merge(
    old: &[Condition],
    findings: &[NewCondition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged: Vec<Condition> = findings
        .iter()
        .map(|finding| {
            let before = find(old, finding.kind);
            let since = before
                .filter(|c| c.status == finding.state.as_str())
                .map_or(Time(now), |c| c.last_transition_time.clone());
            Condition {
                type_: finding.kind.as_str().to_owned(),
                status: finding.state.as_str().to_owned(),
                reason: finding.reason.as_str().to_owned(),
                message: shorten(&finding.message),
                observed_generation: generation,
                last_transition_time: since,
            }
        })
        .collect();
    merged.sort_by(|a, b| a.type_.cmp(&b.type_));
    merged
}

/// Returns the condition of a type, if present.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == kind.as_str())
}

/// Returns true if the condition is present and `True`.
pub fn is_true(conditions: &[Condition], kind: ConditionType) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == ConditionStatus::True.as_str())
}

/// Shortens a message to [`MESSAGE_LIMIT`] bytes.
pub fn shorten(message: &str) -> String {
    text::shorten(message, MESSAGE_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(state: bool, message: &str) -> NewCondition {
        let reason = if state {
            Reason::AsExpected
        } else {
            Reason::MasterNotReady
        };
        NewCondition::new(ConditionType::Ready, state, reason, message)
    }

    #[test]
    fn unchanged_findings_merge_to_equal_conditions() {
        let first = merge(&[], &[ready(true, "serving")], Some(1), at(1));
        assert_eq!(
            merge(&first, &[ready(true, "serving")], Some(1), at(99)),
            first
        );
    }

    #[test]
    fn only_a_changed_status_changes_the_transition_time() {
        let first = merge(&[], &[ready(true, "serving")], Some(1), at(1));
        let words = merge(&first, &[ready(true, "serving 2 nodes")], Some(1), at(2));
        assert_eq!(words[0].last_transition_time, Time(at(1)));
        let failed = merge(&words, &[ready(false, "gone")], Some(1), at(3));
        assert_eq!(failed[0].last_transition_time, Time(at(3)));
    }
}
