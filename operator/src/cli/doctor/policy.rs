//! What MooncakeNodePolicies say: does another ask something else of the same node, and does a node wait to
//! be cordoned.

use crds::condition::find;
use crds::{ConditionType, MooncakeNodePolicy, Reason, State};

use super::object;
use super::trouble::{Severity, Trouble};
use crate::cli::picture::Picture;
use crate::cli::status::known;

const KINDS: [ConditionType; 2] = [ConditionType::Accepted, ConditionType::SickNodesCordoned];

pub(super) fn troubles(picture: &Picture) -> Vec<Trouble> {
    let said = |policy| {
        KINDS
            .into_iter()
            .filter_map(move |kind| of_one(policy, kind))
    };
    picture.policies.iter().flat_map(said).collect()
}

fn of_one(policy: &MooncakeNodePolicy, kind: ConditionType) -> Option<Trouble> {
    let conditions = policy.status.as_ref().map(|status| &status.conditions)?;
    let said = find(conditions, kind).filter(|said| said.status != State::True.as_str())?;
    let reason = known(&said.reason).unwrap_or(Reason::PolicyConflict);
    let who = object("MooncakeNodePolicy", policy);
    let trouble = Trouble::new(Severity::Warns, reason, who, &said.message);
    Some(trouble.since(Some(said.last_transition_time.0)))
}
