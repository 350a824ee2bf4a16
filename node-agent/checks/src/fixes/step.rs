//! What planning a fix works on: changes of the node as text, what the operator requests, and steps. Pure values.

use crds::node::Headroom;
use crds::policy::PolicyInForce;
use crds::{FixId, FixMode, Reason};
use serde::{Deserialize, Serialize};

/// One change of the node, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub id: FixId,
    pub before: String,
    pub after: String,
}

/// What the operator set for this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct FixRequest<'a> {
    /// The node's name.
    pub node: &'a str,
    pub policy: Option<&'a PolicyInForce>,
    pub room: Option<&'a Headroom>,
}

impl FixRequest<'_> {
    pub(super) fn mode(&self, id: FixId) -> Option<FixMode> {
        self.policy.and_then(|policy| policy.mode(id))
    }

    pub(super) fn requests_hugepages(&self) -> bool {
        self.policy.is_some_and(PolicyInForce::manages_hugepages)
    }
}

/// The next step of one fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Report the change without applying it.
    Propose(Change),
    Apply(Change),
    /// Applied earlier, and still in place.
    Applied(Change),
    /// No policy allows the change any more, and the value is still the agent's.
    Revert(Change),
    /// The value is no longer the agent's.
    Forget(FixId),
    /// Nothing can be changed now; report why.
    Report {
        change: Change,
        reason: Reason,
        message: String,
    },
}
