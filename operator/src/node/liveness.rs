//! Condition AgentAlive, and the agent's own conditions while it is not alive. Pure.
//!
//! ```text
//! alive --(no ready agent pod)--> absent --(ready within ABSENCE_LIMIT)--> alive, no transition
//! absent --(ABSENCE_LIMIT)--> not alive: the agent's conditions are Unknown until it reports again
//! alive, absent --(node not Ready)--> not alive, at once
//! never alive --(no ready agent pod)--> starting, for START_LIMIT: an image is pulled, or the pod is not made yet
//! ```

use std::time::Duration;

use crds::condition::find;
use crds::{ConditionStatus, ConditionType, NewCondition, Reason};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};

use crate::cluster::pool_pod::parse_reason;
use crate::node::observe::Observed;
use crate::pod::is_ready;

/// How long an agent may be absent before it counts as not alive: a restart or upgrade takes seconds. A
/// change of leader (18 s) starts the time again; the total stays below one minute.
pub const ABSENCE_LIMIT: Duration = Duration::from_secs(20);

/// How long the first agent of a node may take to become ready. Until then nothing is wrong, so AgentAlive is
/// Unknown and no Event is written.
pub const START_LIMIT: Duration = Duration::from_secs(120);

/// How long the agent may be absent before that is a finding, from the node's `current` conditions.
pub fn grace(current: &[Condition]) -> Duration {
    match find(current, ConditionType::AgentAlive) {
        Some(alive) if !is_starting(alive) => ABSENCE_LIMIT,
        Some(_) | None => START_LIMIT,
    }
}

/// True if the condition is from before the agent was ready for the first time.
fn is_starting(alive: &Condition) -> bool {
    alive.status == ConditionStatus::Unknown.as_str()
        && alive.reason == Reason::Progressing.as_str()
}

/// Conditions that the agent writes while it is alive.
const OF_AGENT: [ConditionType; 2] = [ConditionType::NodeHealthy, ConditionType::PoolsServing];

/// True if an agent pod of the node is ready.
pub fn has_ready_agent(observed: &Observed) -> bool {
    ready_pod(observed).is_some()
}

/// The operator's conditions of the MooncakeNode, from its `current` ones. `absent_for`: how long there
/// has been no ready agent pod; zero if there is one.
pub fn findings(
    observed: &Observed,
    current: &[Condition],
    absent_for: Duration,
) -> Vec<NewCondition> {
    let now = agent_alive(observed);
    let tolerated = matches!(now.reason, Reason::AgentMissing | Reason::AgentNotReady)
        && absent_for < grace(current);
    let before = find(current, ConditionType::AgentAlive);
    let alive = match before {
        _ if !tolerated => now,
        Some(before) if before.status == ConditionStatus::True.as_str() => {
            unchanged(ConditionType::AgentAlive, before)
        }
        Some(before) if !is_starting(before) => now,
        Some(_) | None => NewCondition::new(
            ConditionType::AgentAlive,
            ConditionStatus::Unknown,
            Reason::Progressing,
            format!("the agent of node {} is starting", observed.name),
        ),
    };
    let own = OF_AGENT.map(|kind| agent_condition(kind, &alive, current));
    let alive = [Some(alive)];
    alive.into_iter().chain(own).flatten().collect()
}

/// The agent's condition is Unknown while the agent is not alive, and until the agent writes it again:
/// only the operator writes Unknown.
fn agent_condition(
    kind: ConditionType,
    alive: &NewCondition,
    current: &[Condition],
) -> Option<NewCondition> {
    let last = find(current, kind)?;
    if last.status == ConditionStatus::Unknown.as_str() && alive.state == ConditionStatus::True {
        return Some(unchanged(kind, last));
    }
    (alive.state != ConditionStatus::True).then(|| {
        NewCondition::new(
            kind,
            ConditionStatus::Unknown,
            alive.reason,
            alive.message.clone(),
        )
    })
}

/// The condition as it is.
fn unchanged(kind: ConditionType, current: &Condition) -> NewCondition {
    let state = [ConditionStatus::True, ConditionStatus::False]
        .into_iter()
        .find(|state| state.as_str() == current.status)
        .unwrap_or(ConditionStatus::Unknown);
    NewCondition::new(
        kind,
        state,
        parse_reason(&current.reason),
        current.message.clone(),
    )
}

/// True if the node is Ready and an agent pod on it is ready.
fn agent_alive(observed: &Observed) -> NewCondition {
    let node = &observed.name;
    let not =
        |reason, message| NewCondition::new(ConditionType::AgentAlive, false, reason, message);
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
        return NewCondition::new(ConditionType::AgentAlive, true, Reason::AsExpected, message);
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
