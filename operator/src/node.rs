//! MooncakeNode: what the operator wants of one node, kept beside the Node that it is about.
//!
//! ```text
//! no agent, no pool pod, no object  --> nothing
//! silent for long, answers nowhere  --> its segments leave the master
//! object of an earlier Node (UID)   --> deleted, made anew
//! otherwise                         --> spec, then whether its agent can be believed
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition::merge;
use crds::{ConditionType, MooncakeNode, Reason};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::controller::Action;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::apply::{Error as WriteError, Writer};
use crate::cache::Caches;
use crate::domain::view;
use crate::event::Events;

pub mod alive;
pub mod desired;
pub mod injected;
pub mod lost;
pub mod news;
pub mod observe;
pub mod ring;
pub mod room;

use observe::Observed;

/// When the object of an earlier Node was deleted, the next one is made after this.
const AFTER_DELETE: Duration = Duration::from_millis(500);

/// What every reconcile of a node uses.
pub struct Context {
    pub client: Client,
    pub caches: Caches,
    pub writer: Arc<Writer>,
    pub events: Events,
    /// Nodes whose kubelet is silent.
    pub silence: lost::Silence,
    /// Nodes without a ready agent pod.
    pub away: lost::Silence,
    /// What agents said of their nodes.
    pub words: news::LastWords,
    /// What agents said of what they set right.
    pub fixes: news::LastFixes,
    /// The pods that held sick devices.
    pub owners: news::LastOwners,
    /// When the pods of nodes were counted.
    pub counted: room::Counted,
}

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
#[error("node {node}: {source}")]
pub struct Error {
    node: String,
    source: WriteError,
}

/// Brings one MooncakeNode in step with its Node, its agent and its pool pods.
pub async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Result<Action, Error> {
    let name = node.name_any();
    carry_out(&node, &context)
        .await
        .map_err(|source| Error { node: name, source })
}

async fn carry_out(node: &Node, context: &Context) -> Result<Action, WriteError> {
    let api = Api::<MooncakeNode>::all(context.client.clone());
    let Some(mut observed) = observe::observe(&context.caches, node) else {
        return Ok(Action::await_change());
    };
    if let Some(stale) = observed.of_an_earlier_node() {
        tracing::info!(node = %observed.name, uid = stale.uid(),
            "node came back as another, dropping what was known of the earlier one");
        context.writer.delete(&api, stale).await?;
        return Ok(Action::requeue(AFTER_DELETE));
    }
    observed.room = room::of_node(&observed, node, context).await;
    let left = lost(&observed, context).await;
    let removed: Vec<String> = left.iter().map(|left| left.pod_uid.clone()).collect();
    let Some(wanted) = desired::desired(&observed, &removed) else {
        return Ok(Action::await_change());
    };
    let applied = context
        .writer
        .apply(&api, wanted, observed.report.as_ref())
        .await?;
    let Some(object) = applied.object else {
        return Ok(Action::requeue(AFTER_DELETE));
    };

    for left in &left {
        remove(left, &object, context).await?;
    }

    let old = object
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let away = context
        .away
        .note(&observed.name, !alive::is_there(&observed), Instant::now());
    let findings = alive::findings(&observed, old, away);
    let generation = object.meta().generation;
    let new = merge(old, &findings, generation, Timestamp::now());
    let mut before: Vec<_> = old
        .iter()
        .filter(|before| new.iter().any(|new| new.type_ == before.type_))
        .cloned()
        .collect();
    before.sort_by(|one, other| one.type_.cmp(&other.type_));
    let lags = context.writer.status_lags(&object);
    if !lags && !desired::same_verdict(&before, &new) {
        let body = json!({
            "apiVersion": MooncakeNode::api_version(&()),
            "kind": MooncakeNode::kind(&()),
            "metadata": { "name": observed.name, "uid": object.uid() },
            "status": { "conditions": new },
        });
        context
            .writer
            .apply_status(&api, &observed.name, &body)
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
    tell_health(&object, old, context).await;
    tell_fixes(&object, context).await;
    ask_owners(&object, context).await;
    // By the clock alone: nothing moves when the time is up.
    let silent = is_silent(&observed).then_some(lost::LOOK);
    let grace = away.and_then(|away| alive::AWAY.checked_sub(away));
    let domains = observed.domains.as_deref().unwrap_or_default();
    let place = view::waits(domains).then_some(view::LOOK_AGAIN);
    let room = room::wait(&observed);
    Ok(silent
        .into_iter()
        .chain(grace)
        .chain(place)
        .chain(room)
        .min()
        .map_or_else(Action::await_change, Action::requeue))
}

/// One Event for each change of what the agent says of its node.
async fn tell_health(object: &MooncakeNode, stands: &[Condition], context: &Context) {
    let nodes = context.caches.nodes.len();
    let Some((before, now)) = context.words.note(&object.name_any(), stands, nodes) else {
        return;
    };
    let about = object.object_ref(&());
    let events = &context.events;
    events
        .transitions(&context.writer, about, &before, &now)
        .await;
}

/// One Event for each change of what the agent sets right.
async fn tell_fixes(object: &MooncakeNode, context: &Context) {
    let nodes = context.caches.nodes.len();
    let said = object.status.as_ref().map_or(&[][..], |said| &said.fixes);
    for (reason, note) in context.fixes.note(&object.name_any(), said, nodes) {
        let about = object.object_ref(&());
        let (events, writer) = (&context.events, &context.writer);
        match reason {
            Reason::FixRefused | Reason::FixSetBack | Reason::KubeletRestartRequired => {
                events.warn(writer, about, reason, "Fix", note).await;
            }
            _ => events.note(writer, about, reason, "Fix", note).await,
        }
    }
}

/// One Event for each pod that holds a device which has become sick: nobody but its owner can end it.
async fn ask_owners(object: &MooncakeNode, context: &Context) {
    let nodes = context.caches.nodes.len();
    for (pod, note) in context.owners.note(object, nodes) {
        let (events, writer) = (&context.events, &context.writer);
        events
            .warn(writer, pod, Reason::DeviceSick, "Look", note)
            .await;
    }
}

/// What follows from it is no news of its own.
fn only(kind: ConditionType, mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.retain(|condition| condition.type_ == kind.as_str());
    conditions
}

fn is_silent(observed: &Observed) -> bool {
    observed.ready.as_ref().is_some_and(|ready| ready.silent)
}

/// What masters still offer of a node that is lost; nothing where it is not.
async fn lost(observed: &Observed, context: &Context) -> Vec<lost::Left> {
    let silent = context
        .silence
        .note(&observed.name, is_silent(observed), Instant::now());
    let most = context.silence.count() * 2 > context.caches.nodes.len();
    if silent.is_none_or(|span| span < lost::PATIENCE) || most {
        return Vec::new();
    }
    lost::left(observed).await
}

/// The agent was assigned another instance before, so that it begins anew wherever it is by now.
async fn remove(
    left: &lost::Left,
    report: &MooncakeNode,
    context: &Context,
) -> Result<(), WriteError> {
    context.writer.permit("unmount", &left.pod_name)?;
    let node = report.name_any();
    let (pod, master) = (&left.pod_name, left.master);
    match lost::unmount(left).await {
        Ok(()) => {
            tracing::warn!(%node, %pod, %master, segments = left.segments.len(),
                "node is lost, its segments were taken out of the master");
            let note = format!(
                "node {node} is silent and pool pod {pod} does not answer: {} segments were taken \
                 out of the master",
                left.segments.len()
            );
            let about = report.object_ref(&());
            let reason = Reason::NodeNotReady;
            context
                .events
                .warn(&context.writer, about, reason, "Unmount", note)
                .await;
        }
        Err(error) => {
            tracing::warn!(%node, %pod, %error, "segments of a lost node stay in the master for now");
        }
    }
    Ok(())
}
