//! Cordons and uncordons nodes as [`super::cordon`] decides, and annotates them with the repair. Only
//! nodes with our annotation are uncordoned. A node that changed before the write is evaluated again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition::{is_true, shorten};
use crds::node::DeviceHealth;
use crds::text::first_names;
use crds::{ConditionType, MooncakeNode, MooncakeNodePolicy, NewCondition, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::choice;
use super::cordon::{self, Candidate, Hold, Step};
use super::status::MAX_NAMES;
use super::undecodable;
use crate::apply::{Error, FIELD_MANAGER, Writer};
use crate::cache::Caches;
use crate::event::{EventType, Events, Note};

/// Time within which the watch shows a change that made a write fail.
const CONFLICT_DELAY: Duration = Duration::from_secs(2);

/// Cordons and uncordons nodes.
pub struct Quarantine {
    nodes: Api<Node>,
    /// When this process first saw each node's devices match their rule.
    since: BTreeMap<String, Instant>,
}

/// Result of one reconcile of all nodes.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The condition for each policy, by name.
    pub conditions: BTreeMap<String, NewCondition>,
    /// Time until the next reconcile if nothing changes.
    pub recheck: Option<Duration>,
    pub failed: Option<Error>,
}

impl Quarantine {
    pub fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client),
            since: BTreeMap::new(),
        }
    }

    /// Evaluates all nodes and applies the actions.
    pub async fn reconcile(
        &mut self,
        caches: &Caches,
        writer: &Writer,
        events: &Events,
        nodes: &[Arc<Node>],
        policies: &[MooncakeNodePolicy],
    ) -> Outcome {
        let candidates = self.candidates(caches, nodes, policies);
        let hold = hold(caches, writer);
        let plan = cordon::plan(&candidates, hold.as_ref(), Timestamp::now());
        let mut outcome = Outcome {
            conditions: plan.conditions,
            recheck: plan.recheck,
            failed: None,
        };
        for (name, step) in plan.steps {
            let Some(node) = nodes.iter().find(|node| node.name_any() == name) else {
                continue;
            };
            match self.carry_out(node, &step, writer).await {
                Ok(true) => emit_events(node, &step, writer, events).await,
                Ok(false) => {
                    outcome.recheck = outcome.recheck.into_iter().chain([CONFLICT_DELAY]).min()
                }
                Err(error) => outcome.failed = Some(error),
            }
        }
        outcome
    }

    /// The nodes that have a rule or our cordon.
    fn candidates(
        &mut self,
        caches: &Caches,
        nodes: &[Arc<Node>],
        policies: &[MooncakeNodePolicy],
    ) -> Vec<Candidate> {
        let now = Instant::now();
        let policies: Vec<&MooncakeNodePolicy> = policies.iter().collect();
        let has_rule = policies
            .iter()
            .any(|one| one.spec.unhealthy_devices.is_some());
        let mut since = BTreeMap::new();
        let candidates = nodes.iter().filter_map(|node| {
            let cordoned = node.annotations().contains_key(names::ANNOTATION_CORDONED);
            let rule = choice::of(&policies, node.labels())
                .filter(|_| has_rule)
                .map(|choice| choice.holds())
                .and_then(|policy| Some((policy.name_any(), policy.spec.unhealthy_devices?)));
            if rule.is_none() && !cordoned {
                return None;
            }
            let name = node.name_any();
            let devices = device_health(caches, &name);
            let meets = rule
                .as_ref()
                .map(|(_, rule)| cordon::meets(rule, devices.as_ref()));
            let first = self.since.get(&name).copied();
            let first = match meets {
                Some(Some(true)) => Some(first.unwrap_or(now)),
                // The timer continues while the state is unknown.
                Some(None) => first,
                Some(Some(false)) | None => None,
            };
            since.extend(first.map(|first| (name.clone(), first)));
            Some(Candidate {
                rule,
                devices,
                unhealthy_for: first.map_or(Duration::ZERO, |first| now.duration_since(first)),
                unschedulable: is_unschedulable(node),
                cordoned,
                requested: node.annotations().get(names::ANNOTATION_REPAIR).cloned(),
                node: name,
            })
        });
        let candidates = candidates.collect();
        self.since = since;
        candidates
    }

    /// False if the node changed meanwhile, e.g. was manually cordoned.
    async fn carry_out(&self, node: &Node, step: &Step, writer: &Writer) -> Result<bool, Error> {
        let name = node.name_any();
        let mut body = body(step);
        body["metadata"]["resourceVersion"] = json!(node.resource_version());
        let ours = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let object = format!("Node {name}");
        let patch = Patch::Merge(&body);
        let written = self.nodes.patch(&name, &ours, &patch);
        match writer.bounded("patch", &object, written).await {
            Ok(_) => {
                tracing::warn!(node = %name, ?step, "node updated");
                Ok(true)
            }
            Err(Error::Api { source, .. }) if is_conflict(&source) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Why no node may be changed now.
fn hold(caches: &Caches, writer: &Writer) -> Option<Hold> {
    if writer.is_paused() {
        let message = "the operator is paused".to_owned();
        let reason = Reason::Paused;
        return Some(Hold { reason, message });
    }
    // Their rules are unknown, also on which nodes they apply.
    let unknown = undecodable::names(caches);
    let kind = MooncakeNodePolicy::kind(&());
    (!unknown.is_empty()).then(|| Hold {
        reason: Reason::InvalidSpec,
        message: format!("{kind} {} cannot be read", first_names(&unknown, MAX_NAMES)),
    })
}

/// 409: changed; 404: deleted.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn is_unschedulable(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable) == Some(true)
}

/// The device health that the agent reported, if it is alive and reported since this boot of the node.
fn device_health(caches: &Caches, node: &str) -> Option<DeviceHealth> {
    let reference = ObjectRef::<DeserializeGuard<MooncakeNode>>::new(node);
    let mooncake_node = caches.mooncake_nodes.get(&reference)?;
    let DeserializeGuard(Ok(mooncake_node)) = mooncake_node.as_ref() else {
        return None;
    };
    let (spec, status) = (&mooncake_node.spec, mooncake_node.status.as_ref()?);
    let this_boot = (&spec.node_uid, &spec.boot_id) == (&status.node_uid, &status.boot_id);
    let alive = is_true(&status.conditions, ConditionType::AgentAlive);
    status.devices.clone().filter(|_| this_boot && alive)
}

/// The patch.
fn body(step: &Step) -> Value {
    match step {
        Step::Cordon { why, repair } => json!({
            "metadata": {"annotations": {
                names::ANNOTATION_CORDONED: why,
                names::ANNOTATION_REPAIR: repair,
            }},
            "spec": {"unschedulable": true},
        }),
        Step::SetRepair(repair) => json!({
            "metadata": {"annotations": {names::ANNOTATION_REPAIR: repair}},
        }),
        Step::Uncordon => json!({
            "metadata": {"annotations": {
                names::ANNOTATION_CORDONED: null,
                names::ANNOTATION_REPAIR: null,
            }},
            "spec": {"unschedulable": null},
        }),
    }
}

/// One Event per action.
async fn emit_events(node: &Node, step: &Step, writer: &Writer, events: &Events) {
    const HEALTHY: &str =
        "uncordoned: its RDMA devices are healthy, or no MooncakeNodePolicy requires the cordon";
    let note = |severity, reason, action, text: &str| Note {
        severity,
        reason,
        action,
        text: shorten(text),
    };
    let cordon = |why: &str| note(EventType::Warning, Reason::NodeCordoned, "Cordon", why);
    let repair = |tool: &String| note(EventType::Warning, Reason::RepairRequested, "Repair", tool);
    let notes: Vec<Note> = match step {
        Step::Cordon { why, repair: tool } => {
            let repair = tool.as_ref().map(repair);
            [cordon(why)].into_iter().chain(repair).collect()
        }
        Step::SetRepair(tool) => tool.iter().map(repair).collect(),
        // Manually uncordoned before.
        Step::Uncordon if !is_unschedulable(node) => Vec::new(),
        Step::Uncordon => {
            let (reason, action) = (Reason::NodeUncordoned, "Uncordon");
            vec![note(EventType::Normal, reason, action, HEALTHY)]
        }
    };
    for note in notes {
        events.emit(writer, node.object_ref(&()), note).await;
    }
}
