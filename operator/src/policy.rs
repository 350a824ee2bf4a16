//! MooncakeNodePolicies: selects the policy of each node, writes policy status, and cordons nodes with
//! unhealthy devices.
//!
//! ```text
//! policies, labels of a node  --> choice --> MooncakeNode.spec.policy (by `node`)
//! policies, labels of all     --> status --> status of each policy    (here)
//! policies, unhealthy devices --> cordon --> quarantine: annotations and cordons of Nodes
//! a policy that cannot be decoded --> undecodable: its condition; its nodes keep its last rules, no node is cordoned
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::policy::PolicyInForce;
use crds::{MooncakeNode, MooncakeNodePolicy};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::apply::{Error, Writer};
use crate::cache::{Caches, Trigger};
use crate::event::Events;
use crate::metrics::Metrics;

pub mod choice;
pub mod cordon;
pub mod quarantine;
pub mod status;
mod undecodable;

use quarantine::Quarantine;
use undecodable::Reported;

/// Changes within this are one reconcile.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(30);
/// Longest pause after failures that no retry repairs, if no object changes meanwhile.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// The policy that applies to a node. A policy that cannot be decoded keeps its last rules: its
/// current ones are unknown.
pub fn of_node(
    caches: &Caches,
    node: &Node,
    mooncake_node: Option<&MooncakeNode>,
) -> Option<PolicyInForce> {
    let current = mooncake_node.and_then(|mooncake_node| mooncake_node.spec.policy.as_ref());
    if let Some(current) = current {
        let named = ObjectRef::<DeserializeGuard<MooncakeNodePolicy>>::new(&current.name);
        let object = caches.node_policies.get(&named);
        if object.is_some_and(|object| object.0.is_err()) {
            return Some(current.clone());
        }
    }
    let policies = decoded(caches);
    let policies: Vec<&MooncakeNodePolicy> = policies.iter().collect();
    choice::of(&policies, node.labels()).map(|choice| choice::in_force(choice.holds()))
}

fn decoded(caches: &Caches) -> Vec<MooncakeNodePolicy> {
    let policies = caches.node_policies.state();
    let readable = policies.iter().filter_map(|policy| policy.0.as_ref().ok());
    readable.cloned().collect()
}

/// What all reconciles share.
pub struct Context {
    pub client: Client,
    pub caches: Caches,
    pub writer: Arc<Writer>,
    pub events: Events,
    pub metrics: Metrics,
}

/// Writes statuses and cordons on each change of nodes or policies, until dropped.
pub async fn run(context: Context) {
    let mut triggers = context.caches.subscribe();
    let mut quarantine = Quarantine::new(context.client.clone());
    let mut reported = Reported::default();
    let mut permanent_failures = 0;
    loop {
        let (pause, recheck) = match reconcile(&context, &mut quarantine, &mut reported).await {
            Ok(recheck) => {
                permanent_failures = 0;
                (DEBOUNCE, recheck)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot apply all MooncakeNodePolicies; retrying");
                permanent_failures = match error.is_permanent() {
                    true => permanent_failures + 1,
                    false => 0,
                };
                (RETRY, Some(further_pause(permanent_failures)))
            }
        };
        let recheck = recheck.map(|recheck| Instant::now() + recheck);
        tokio::time::sleep(pause).await;
        loop {
            // A timer: no object changes when a node has been unhealthy for long enough.
            let due = async {
                match recheck {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => break,
                trigger = triggers.recv() => match trigger {
                    Ok(Trigger::Node(_) | Trigger::Policies | Trigger::Everything)
                    | Err(RecvError::Lagged(_)) => break,
                    Ok(_) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
        // One reconcile covers all queued changes.
        while !matches!(
            triggers.try_recv(),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed)
        ) {}
    }
}

/// What is added to [`RETRY`] after so many permanent failures in a row.
fn further_pause(permanent_failures: u32) -> Duration {
    let doubled = RETRY.saturating_mul(1 << permanent_failures.saturating_sub(1).min(16));
    doubled.min(LONGEST_RETRY) - RETRY
}

async fn reconcile(
    context: &Context,
    quarantine: &mut Quarantine,
    reported: &mut Reported,
) -> Result<Option<Duration>, Error> {
    let Context {
        client,
        caches,
        writer,
        events,
        metrics: _,
    } = context;
    let policies = decoded(caches);
    let nodes = caches.nodes.state();
    let outcome = quarantine
        .reconcile(caches, writer, events, &nodes, &policies)
        .await;
    let mut failed = outcome.failed;
    let updated = reported.update(context).await;
    failed = updated.err().or(failed);
    if policies.is_empty() {
        return failed.map_or(Ok(outcome.recheck), Err);
    }
    let labels: BTreeMap<String, &BTreeMap<String, String>> = nodes
        .iter()
        .map(|node| (node.name_any(), node.labels()))
        .collect();
    let api = Api::<MooncakeNodePolicy>::all(client.clone());
    let kept = undecodable::kept(caches);
    let now = Timestamp::now();
    let statuses = status::statuses(&policies, &labels, &kept, &outcome.conditions, now);
    for (policy, status) in statuses {
        let before = policy.status.clone().unwrap_or_default();
        if before == status || writer.status_lags(policy) {
            continue;
        }
        if let Err(error) = writer.apply_status(&api, policy.meta(), &status).await {
            failed = Some(error);
            continue;
        }
        let about = policy.object_ref(&());
        events
            .transitions(writer, about, &before.conditions, &status.conditions)
            .await;
    }
    failed.map_or(Ok(outcome.recheck), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanent_failures_double_the_pause_and_others_do_not() {
        let pauses =
            [0, 1, 2, 3, 4, 5, 99].map(|failures| (RETRY + further_pause(failures)).as_secs());
        assert_eq!(pauses, [30, 30, 60, 120, 240, 300, 300]);
    }
}
