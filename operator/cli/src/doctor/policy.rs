//! Findings of MooncakeNodePolicies: conflicts with another policy, nodes that wait for a cordon.

use crds::condition::find;
use crds::{ConditionStatus, ConditionType, MooncakeNodePolicy, Reason};

use super::finding::{Finding, Object};
use crate::snapshot::Snapshot;
use crate::status::known_reason;

pub(super) fn findings(snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
    snapshot.policies.iter().flat_map(|policy| {
        [
            ConditionType::Accepted,
            ConditionType::UnhealthyNodesCordoned,
        ]
        .into_iter()
        .filter_map(|kind| finding(policy, kind))
    })
}

fn finding(policy: &MooncakeNodePolicy, kind: ConditionType) -> Option<Finding> {
    let condition = find(&policy.status.as_ref()?.conditions, kind)
        .filter(|condition| condition.status != ConditionStatus::True.as_str())?;
    let reason = known_reason(&condition.reason).unwrap_or(Reason::PolicyConflict);
    let object = Object::of("MooncakeNodePolicy", policy);
    let finding = Finding::warning(reason, object, &condition.message);
    Some(finding.since(Some(condition.last_transition_time.0)))
}
