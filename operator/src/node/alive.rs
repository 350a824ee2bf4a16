//! Whether a node's agent can be believed, and what becomes of its last words when it cannot. Pure.
//!
//! ```text
//! alive --(no ready agent pod)--> away --(back within AWAY)--> alive, and nobody was told
//! away --(AWAY)--> not alive: what the agent said last is Unknown until it speaks again
//! alive, away --(node not Ready)--> not alive, at once
//! ```

use std::time::Duration;

use crds::condition::find;
use crds::{ConditionType, Finding, Reason, State};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};

use crate::cluster::observe::is_ready;
use crate::cluster::verdict::reason;
use crate::node::observe::Observed;

/// How long an agent that was there may be away, by our own clock: its restart or upgrade takes
/// seconds, in which transfers with its node wait. A change of leader meanwhile (18 s) counts anew,
/// and all of it stays below the minute in which an agent that is gone is to be told.
pub const AWAY: Duration = Duration::from_secs(20);

/// Conditions that the agent writes while it is believed.
const OF_AGENT: [ConditionType; 2] = [ConditionType::NodeHealthy, ConditionType::PoolsServing];

/// True where an agent pod of the node is ready.
pub fn is_there(observed: &Observed) -> bool {
    ready_pod(observed).is_some()
}

/// What is to stand in the MooncakeNode, over what `stands`. `away`: for how long there has been no
/// ready agent pod.
pub fn findings(observed: &Observed, stands: &[Condition], away: Option<Duration>) -> Vec<Finding> {
    let now = agent_alive(observed);
    let forgiven = matches!(now.reason, Reason::AgentMissing | Reason::AgentNotReady)
        && away.is_some_and(|away| away < AWAY);
    let alive = find(stands, ConditionType::AgentAlive)
        .filter(|before| forgiven && before.status == State::True.as_str())
        .map_or(now, |before| again(ConditionType::AgentAlive, before));
    let own = OF_AGENT.map(|kind| doubted(kind, &alive, stands));
    let alive = [Some(alive)];
    alive.into_iter().chain(own).flatten().collect()
}

/// An agent's own verdict is in doubt while nobody can believe the agent. It stays in doubt until
/// the agent has spoken again: only the operator says Unknown.
fn doubted(kind: ConditionType, alive: &Finding, stands: &[Condition]) -> Option<Finding> {
    let said = find(stands, kind)?;
    if said.status == State::Unknown.as_str() && alive.state == State::True {
        return Some(again(kind, said));
    }
    (alive.state != State::True)
        .then(|| Finding::new(kind, State::Unknown, alive.reason, alive.message.clone()))
}

/// What stands already.
fn again(kind: ConditionType, stands: &Condition) -> Finding {
    let state = [State::True, State::False]
        .into_iter()
        .find(|state| state.as_str() == stands.status)
        .unwrap_or(State::Unknown);
    Finding::new(kind, state, reason(&stands.reason), stands.message.clone())
}

/// The node is Ready and an agent pod on it is.
fn agent_alive(observed: &Observed) -> Finding {
    let node = &observed.name;
    let not = |reason, message| Finding::new(ConditionType::AgentAlive, false, reason, message);
    match &observed.ready {
        Some(ready) if ready.holds => {}
        Some(ready) => {
            let message = format!("node {node} is not Ready: {}", ready.message);
            return not(Reason::NodeNotReady, message);
        }
        None => {
            let message = format!("node {node} has not reported yet");
            return not(Reason::NodeNotReady, message);
        }
    }
    if let Some(pod) = ready_pod(observed) {
        let message = format!("agent pod {} is ready", pod.name_any());
        return Finding::new(ConditionType::AgentAlive, true, Reason::AsExpected, message);
    }
    match observed.agents.first() {
        None => not(
            Reason::AgentMissing,
            format!("node {node} has no agent pod"),
        ),
        Some(pod) => not(
            Reason::AgentNotReady,
            format!("agent pod {} on node {node} is not ready", pod.name_any()),
        ),
    }
}

fn ready_pod(observed: &Observed) -> Option<&Pod> {
    observed
        .agents
        .iter()
        .map(AsRef::as_ref)
        .find(|pod: &&Pod| is_ready(pod) && pod.meta().deletion_timestamp.is_none())
}

#[cfg(test)]
mod tests;
