//! Reconciles one MooncakeNode with its Node, its agent and its pool pods.
//!
//! ```text
//! no agent, no pool pod, no object     --> nothing
//! kubelet and pool pods do not respond --> its segments are unmounted from the master
//! object of an earlier Node (UID)      --> deleted, created again
//! otherwise                            --> spec, then condition AgentAlive
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition::merge;
use crds::{ConditionType, MooncakeNode, Reason};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::apply::{Error as WriteError, Writer};
use crate::cache::Caches;
use crate::compute_domain::view;
use crate::controller::Failure;
use crate::event::{EventType, Events, Note};
use crate::untyped;

pub mod desired;
pub mod hugepage_capacity;
pub mod injected_pods;
pub mod liveness;
pub mod lost_segments;
pub mod observe;
pub mod transitions;

use observe::Observed;

/// Delay between deleting the object of an earlier Node and creating the next one.
const AFTER_DELETE: Duration = Duration::from_millis(500);

/// What every reconcile of a node uses.
pub struct Context {
    pub client: Client,
    pub caches: Caches,
    pub writer: Arc<Writer>,
    pub events: Events,
    /// Nodes whose kubelet does not report.
    pub unresponsive: lost_segments::UnresponsiveNodes,
    /// Nodes without a ready agent pod.
    pub without_agent: lost_segments::UnresponsiveNodes,
    /// Last node health that each agent reported.
    pub health: transitions::LastHealth,
    /// Last fixes that each agent reported.
    pub fixes: transitions::LastFixes,
    /// Pods that held unhealthy devices.
    pub device_owners: transitions::LastDeviceOwners,
    /// Memory left by the pods of each node, and when it was computed.
    pub free_memory: hugepage_capacity::FreeMemory,
}

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
#[error("node {node}: {source}")]
pub struct Error {
    node: String,
    source: WriteError,
}

impl Failure for Error {
    fn is_permanent(&self) -> bool {
        self.source.is_permanent()
    }
}

/// Reconciles one MooncakeNode.
pub async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Result<Action, Error> {
    let name = node.name_any();
    reconcile_node(&node, &context)
        .await
        .map_err(|source| Error { node: name, source })
}

async fn reconcile_node(node: &Node, context: &Context) -> Result<Action, WriteError> {
    let api = Api::<MooncakeNode>::all(context.client.clone());
    let untyped = untyped::api::<MooncakeNode>(context.client.clone(), &(), None);
    let Some(mut observed) = observe::observe(&context.caches, node) else {
        return Ok(Action::await_change());
    };
    if let Some(stale) = observed.of_an_earlier_node() {
        tracing::info!(node = %observed.name, uid = stale.uid(),
            "the Node was recreated; deleting the MooncakeNode of the earlier one");
        context.writer.delete(&untyped, stale).await?;
        return Ok(Action::requeue(AFTER_DELETE));
    }
    observed.room = hugepage_capacity::of_node(&observed, node, context).await;
    let lost = find_lost_segments(&observed, context).await;
    let removed: Vec<String> = lost.iter().map(|lost| lost.pod_uid.clone()).collect();
    let Some(wanted) = desired::desired(&observed, &removed) else {
        return Ok(Action::await_change());
    };
    let applied = context
        .writer
        .apply(&untyped, wanted, observed.mooncake_node.as_ref())
        .await?;
    let Some(object) = applied.object else {
        return Ok(Action::requeue(AFTER_DELETE));
    };

    for lost in &lost {
        unmount(lost, &object, context).await?;
    }

    let old = object
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let absent_for = context.without_agent.note(
        &observed.name,
        &observed.uid,
        !liveness::has_ready_agent(&observed),
        Instant::now(),
    );
    let findings = liveness::findings(&observed, old, absent_for.unwrap_or_default());
    let generation = object.meta().generation;
    let new = merge(old, &findings, generation, Timestamp::now());
    let mut before: Vec<_> = old
        .iter()
        .filter(|before| new.iter().any(|new| new.type_ == before.type_))
        .cloned()
        .collect();
    before.sort_by(|one, other| one.type_.cmp(&other.type_));
    let lags = context.writer.status_lags(&object);
    if !lags && !desired::same_conditions(&before, &new) {
        let status = json!({ "conditions": new });
        context
            .writer
            .apply_status(&api, object.meta(), &status)
            .await?;
        context
            .events
            .transitions(
                &context.writer,
                object.object_ref(&()),
                &only(ConditionType::AgentAlive, before),
                &only(ConditionType::AgentAlive, new),
            )
            .await;
    }
    emit_health_event(&object, old, context).await;
    emit_fix_events(&object, context).await;
    emit_device_owner_events(&object, context).await;
    // Timers: no object changes when these delays end.
    let silent = is_unresponsive(&observed).then_some(lost_segments::RECHECK_PERIOD);
    let grace = absent_for.and_then(|absent_for| liveness::grace(old).checked_sub(absent_for));
    let domains = observed.domains.as_deref().unwrap_or_default();
    let registration = view::waits(domains).then_some(view::RECHECK_PERIOD);
    let room = hugepage_capacity::wait(&observed);
    Ok(silent
        .into_iter()
        .chain(grace)
        .chain(registration)
        .chain(room)
        .min()
        .map_or_else(Action::await_change, Action::requeue))
}

/// One Event for each change of the node health that the agent reports.
async fn emit_health_event(object: &MooncakeNode, current: &[Condition], context: &Context) {
    let nodes = context.caches.nodes.len();
    let Some((before, now)) = context.health.note(&object.name_any(), current, nodes) else {
        return;
    };
    let about = object.object_ref(&());
    let events = &context.events;
    events
        .transitions(&context.writer, about, &before, &now)
        .await;
}

/// One Event for each change of a fix that the agent reports.
async fn emit_fix_events(object: &MooncakeNode, context: &Context) {
    let nodes = context.caches.nodes.len();
    let fixes = object
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.fixes);
    let (events, writer) = (&context.events, &context.writer);
    for (reason, text) in context.fixes.note(&object.name_any(), fixes, nodes) {
        let note = Note {
            severity: match reason {
                Reason::FixRefused | Reason::FixReverted | Reason::KubeletRestartRequired => {
                    EventType::Warning
                }
                _ => EventType::Normal,
            },
            reason,
            action: "Fix",
            text,
        };
        events.emit(writer, object.object_ref(&()), note).await;
    }
}

/// One Event for each pod that holds a device which became unhealthy: only its owner can end the pod.
async fn emit_device_owner_events(object: &MooncakeNode, context: &Context) {
    let nodes = context.caches.nodes.len();
    let (events, writer) = (&context.events, &context.writer);
    for (pod, text) in context.device_owners.note(object, nodes) {
        let note = Note {
            severity: EventType::Warning,
            reason: Reason::DeviceUnhealthy,
            action: "Look",
            text,
        };
        events.emit(writer, pod, note).await;
    }
}

/// Keeps one condition: the others follow from it and need no Event.
fn only(kind: ConditionType, mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.retain(|condition| condition.type_ == kind.as_str());
    conditions
}

fn is_unresponsive(observed: &Observed) -> bool {
    observed.ready.as_ref().is_some_and(|ready| ready.silent)
}

/// Segments that masters still list for an unresponsive node; empty if the node responds.
async fn find_lost_segments(
    observed: &Observed,
    context: &Context,
) -> Vec<lost_segments::LostSegments> {
    let now = Instant::now();
    let nodes = &context.caches.nodes;
    let exists = |name: &str, uid: &str| {
        let node = nodes.get(&ObjectRef::new(name));
        node.is_some_and(|node| node.metadata.uid.as_deref() == Some(uid))
    };
    for known in [&context.unresponsive, &context.without_agent] {
        known.forget_deleted(exists, now);
    }
    let silent = context.unresponsive.note(
        &observed.name,
        &observed.uid,
        is_unresponsive(observed),
        now,
    );
    let most = context.unresponsive.count() * 2 > context.caches.nodes.len();
    let early = silent.is_none_or(|span| span < lost_segments::UNMOUNT_DELAY);
    if early || most || context.writer.is_paused() {
        return Vec::new();
    }
    lost_segments::find(observed).await
}

/// The agent is assigned another master instance first, so that it starts a new epoch if it still runs.
async fn unmount(
    lost: &lost_segments::LostSegments,
    mooncake_node: &MooncakeNode,
    context: &Context,
) -> Result<(), WriteError> {
    context.writer.permit("unmount", &lost.pod_name)?;
    let node = mooncake_node.name_any();
    let (pod, master) = (&lost.pod_name, lost.master);
    match lost_segments::unmount(lost).await {
        Ok(()) => {
            tracing::warn!(%node, %pod, %master, segments = lost.segments.len(),
                "unmounted the segments of an unresponsive node from the master");
            let note = Note {
                severity: EventType::Warning,
                reason: Reason::NodeNotReady,
                action: "Unmount",
                text: format!(
                    "node {node} does not report and pool pod {pod} does not respond: {} segments were \
                     unmounted from the master",
                    lost.segments.len()
                ),
            };
            let (events, writer) = (&context.events, &context.writer);
            events
                .emit(writer, mooncake_node.object_ref(&()), note)
                .await;
        }
        Err(error) => {
            tracing::warn!(%node, %pod, %error, "cannot unmount the segments of an unresponsive node; retrying");
        }
    }
    Ok(())
}
