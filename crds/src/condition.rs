//! Conditions: the closed list of types, and the one merge that owns transition times.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::reason::Reason;

/// Longest message of a condition, in bytes: it is for people.
pub const MESSAGE_LIMIT: usize = 1024;

/// Every condition type that this project writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// MooncakeCluster: stock pods can put and get now.
    Ready,
    /// MooncakeCluster, abnormal-true: the spec is being carried out.
    Reconciling,
    /// MooncakeCluster, abnormal-true: nothing more happens until a person changes something.
    Stalled,
    /// MooncakeCluster: the master says that it serves.
    MasterReady,
    /// MooncakeCluster: every wanted pool pod has mounted its memory and serves it.
    PoolsReady,
    /// MooncakeCluster: the transports that the spec asks for are proven.
    TransportsReady,
    /// MooncakeCluster: every labelled pod was injected.
    PodsInjected,
    /// MooncakeCluster, only with `spec.mnnvl`: every node that takes part is a member of the
    /// ComputeDomain. `Ready` does not wait for it.
    MnnvlReady,
    /// MooncakeNode, written by the operator: the agent pod and the node are there.
    AgentAlive,
    /// MooncakeNode, written by the agent: every listed pool pod is served.
    PoolsServing,
    /// MooncakeNodePolicy: no other of the same priority asks something else of a node that it selects.
    Accepted,
    /// MooncakeNodePolicy, only with `spec.sickDevices`: every node that is to be cordoned is.
    SickNodesCordoned,
    /// MooncakeNode, written by the agent: no check of the node fails. The reason is that of the worst
    /// finding, also where that is a warning.
    NodeHealthy,
}

impl ConditionType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::MasterReady => "MasterReady",
            Self::PoolsReady => "PoolsReady",
            Self::TransportsReady => "TransportsReady",
            Self::PodsInjected => "PodsInjected",
            Self::MnnvlReady => "MnnvlReady",
            Self::AgentAlive => "AgentAlive",
            Self::PoolsServing => "PoolsServing",
            Self::NodeHealthy => "NodeHealthy",
            Self::Accepted => "Accepted",
            Self::SickNodesCordoned => "SickNodesCordoned",
        }
    }
}

/// The three values of a condition's `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    True,
    False,
    Unknown,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for State {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition before it is known whether it is news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: ConditionType,
    pub state: State,
    pub reason: Reason,
    pub message: String,
}

impl Finding {
    pub fn new(
        kind: ConditionType,
        state: impl Into<State>,
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

/// The conditions to write: those of `old` that somebody else owns are left out, a transition time
/// moves only with the state. Equal findings over equal conditions give an equal list.
pub fn merge(
    old: &[Condition],
    findings: &[Finding],
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

/// The condition of a type, if it is there.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == kind.as_str())
}

/// True where the condition is there and `True`.
pub fn is_true(conditions: &[Condition], kind: ConditionType) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == State::True.as_str())
}

/// At most [`MESSAGE_LIMIT`] bytes of it.
pub fn shorten(message: &str) -> String {
    if message.len() <= MESSAGE_LIMIT {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MESSAGE_LIMIT - 3);
    format!("{}...", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(state: bool, message: &str) -> Finding {
        let reason = if state {
            Reason::AsExpected
        } else {
            Reason::MasterNotReady
        };
        Finding::new(ConditionType::Ready, state, reason, message)
    }

    #[test]
    fn an_unchanged_world_merges_to_equal_conditions() {
        let first = merge(&[], &[ready(true, "serving")], Some(1), at(1));
        assert_eq!(
            merge(&first, &[ready(true, "serving")], Some(1), at(99)),
            first
        );
    }

    #[test]
    fn only_a_changed_state_moves_the_transition_time() {
        let first = merge(&[], &[ready(true, "serving")], Some(1), at(1));
        let words = merge(&first, &[ready(true, "serving 2 nodes")], Some(1), at(2));
        assert_eq!(words[0].last_transition_time, Time(at(1)));
        let failed = merge(&words, &[ready(false, "gone")], Some(1), at(3));
        assert_eq!(failed[0].last_transition_time, Time(at(3)));
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let cut = shorten(&"ü".repeat(MESSAGE_LIMIT));
        assert!(cut.len() <= MESSAGE_LIMIT && cut.ends_with("..."));
    }
}
