//! Findings of MooncakeNodePolicies: rules that the operator cannot read, conflicts with another policy, nodes that wait
//! for a cordon.

use crds::condition::find;
use crds::{ConditionStatus, ConditionType, MooncakeNodePolicy, Reason};

use super::finding::{Finding, Object, Severity};
use crate::snapshot::Snapshot;
use crate::status::known_reason;

pub(super) fn findings(snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
    snapshot.policies.iter().flat_map(of_policy)
}

fn of_policy(policy: &MooncakeNodePolicy) -> Vec<Finding> {
    let accepted = finding(policy, ConditionType::Accepted);
    let cordons = finding(policy, ConditionType::UnhealthyNodesCordoned);
    // One cause, one finding.
    let cause = accepted.as_ref().map(|accepted| accepted.reason);
    let cordons = cordons.filter(|cordons| Some(cordons.reason) != cause);
    accepted.into_iter().chain(cordons).collect()
}

fn finding(policy: &MooncakeNodePolicy, kind: ConditionType) -> Option<Finding> {
    let condition = find(&policy.status.as_ref()?.conditions, kind)
        .filter(|condition| condition.status != ConditionStatus::True.as_str())?;
    let reason = known_reason(&condition.reason).unwrap_or(Reason::PolicyConflict);
    // Nothing that the policy requests takes effect.
    let severity = match (kind, reason) {
        (ConditionType::Accepted, Reason::InvalidSpec) => Severity::Error,
        _ => Severity::Warning,
    };
    let object = Object::of("MooncakeNodePolicy", policy);
    let finding = Finding::new(severity, reason, object, &condition.message);
    Some(finding.since(Some(condition.last_transition_time.0)))
}
