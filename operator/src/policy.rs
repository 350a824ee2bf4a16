//! MooncakeNodePolicies: which holds on a node, what their own status says of it, and what becomes of nodes
//! with sick devices.
//!
//! ```text
//! policies, labels of a node --> choice --> MooncakeNode.spec.policy (by `node`)
//! policies, labels of all    --> verdict -> status of each policy    (here)
//! policies, sick devices     --> cordon --> ward: marks on Nodes
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
use serde_json::json;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::apply::{Error, Writer};
use crate::cache::{Caches, Trigger};
use crate::event::Events;

pub mod choice;
pub mod cordon;
pub mod verdict;
pub mod ward;

use ward::Ward;

/// Moves within this are one look.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Pause after a status that could not be written.
const RETRY: Duration = Duration::from_secs(30);

/// The policy that is to hold on a node. One that cannot be understood stays as it stands there: what
/// it asks by now is not known.
pub fn of_node(
    caches: &Caches,
    node: &Node,
    report: Option<&MooncakeNode>,
) -> Option<PolicyInForce> {
    let standing = report.and_then(|report| report.spec.policy.as_ref());
    if let Some(standing) = standing {
        let named = ObjectRef::<DeserializeGuard<MooncakeNodePolicy>>::new(&standing.name);
        let object = caches.node_policies.get(&named);
        if object.is_some_and(|object| object.0.is_err()) {
            return Some(standing.clone());
        }
    }
    let policies = understood(caches);
    let policies: Vec<&MooncakeNodePolicy> = policies.iter().collect();
    choice::of(&policies, node.labels()).map(|choice| choice::in_force(choice.holds()))
}

fn understood(caches: &Caches) -> Vec<MooncakeNodePolicy> {
    let policies = caches.node_policies.state();
    policies
        .iter()
        .filter_map(|policy| match policy.as_ref() {
            DeserializeGuard(Ok(policy)) => Some(policy.clone()),
            DeserializeGuard(Err(invalid)) => {
                tracing::warn!(policy = %policy.name_any(), error = %invalid.error,
                    "MooncakeNodePolicy not understood");
                None
            }
        })
        .collect()
}

/// Writes statuses and cordons whenever nodes or policies move, until dropped.
pub async fn run(
    client: Client,
    caches: Caches,
    writer: Arc<Writer>,
    events: Events,
    mut triggers: broadcast::Receiver<Trigger>,
) {
    let api = Api::<MooncakeNodePolicy>::all(client.clone());
    let mut ward = Ward::new(client);
    loop {
        let (pause, again) = match look(&api, &caches, &writer, &events, &mut ward).await {
            Ok(again) => (DEBOUNCE, again),
            Err(error) => {
                tracing::warn!(%error, "what a MooncakeNodePolicy asks is not all said or done for now");
                (RETRY, Some(Duration::ZERO))
            }
        };
        let again = again.map(|again| Instant::now() + again);
        tokio::time::sleep(pause).await;
        loop {
            // By the clock alone: nothing moves when a node has been sick for long enough.
            let due = async {
                match again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => break,
                moved = triggers.recv() => match moved {
                    Ok(Trigger::Node(_) | Trigger::Policies | Trigger::Everything)
                    | Err(RecvError::Lagged(_)) => break,
                    Ok(_) => {}
                    Err(RecvError::Closed) => return,
                },
            }
        }
        // What else has moved is seen by the same look.
        while !matches!(
            triggers.try_recv(),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed)
        ) {}
    }
}

async fn look(
    api: &Api<MooncakeNodePolicy>,
    caches: &Caches,
    writer: &Writer,
    events: &Events,
    ward: &mut Ward,
) -> Result<Option<Duration>, Error> {
    let policies = understood(caches);
    let nodes = caches.nodes.state();
    let round = ward.round(caches, writer, events, &nodes, &policies).await;
    if policies.is_empty() {
        return round.failed.map_or(Ok(round.again), Err);
    }
    let labels: BTreeMap<String, &BTreeMap<String, String>> = nodes
        .iter()
        .map(|node| (node.name_any(), node.labels()))
        .collect();
    let mut failed = round.failed;
    let said = verdict::statuses(&policies, &labels, &round.said, Timestamp::now());
    for (policy, status) in said {
        let before = policy.status.clone().unwrap_or_default();
        if before == status || writer.status_lags(policy) {
            continue;
        }
        let name = policy.name_any();
        let body = json!({
            "apiVersion": MooncakeNodePolicy::api_version(&()),
            "kind": MooncakeNodePolicy::kind(&()),
            "metadata": { "name": name, "uid": policy.uid() },
            "status": status,
        });
        if let Err(error) = writer.apply_status(api, &name, &body).await {
            failed = Some(error);
            continue;
        }
        let about = policy.object_ref(&());
        events
            .transitions(writer, about, &before.conditions, &status.conditions)
            .await;
    }
    failed.map_or(Ok(round.again), Err)
}
