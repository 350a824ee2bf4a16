//! What MooncakeNodePolicies say: does another ask something else of the same node.

use crds::condition::find;
use crds::{ConditionType, MooncakeNodePolicy, Reason, State};

use super::object;
use super::trouble::{Severity, Trouble};
use crate::cli::picture::Picture;
use crate::cli::status::known;

pub(super) fn troubles(picture: &Picture) -> Vec<Trouble> {
    picture.policies.iter().filter_map(of_one).collect()
}

fn of_one(policy: &MooncakeNodePolicy) -> Option<Trouble> {
    let conditions = policy.status.as_ref().map(|status| &status.conditions)?;
    let accepted = find(conditions, ConditionType::Accepted)
        .filter(|accepted| accepted.status != State::True.as_str())?;
    let reason = known(&accepted.reason).unwrap_or(Reason::PolicyConflict);
    let who = object("MooncakeNodePolicy", policy);
    let trouble = Trouble::new(Severity::Warns, reason, who, &accepted.message);
    Some(trouble.since(Some(accepted.last_transition_time.0)))
}
