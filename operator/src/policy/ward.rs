//! Cordons nodes and gives them back, as [`super::cordon`] decides, and marks them for those who repair.
//! Only what has our mark is given back; a node that has moved meanwhile is looked at anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition::{is_true, shorten};
use crds::node::DeviceHealth;
use crds::{ConditionType, Finding, MooncakeNode, MooncakeNodePolicy, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::choice;
use super::cordon::{self, Patient, Step};
use crate::apply::{Error, FIELD_MANAGER, Writer};
use crate::cache::Caches;
use crate::event::Events;

/// When a node has moved before it was written, the watch shows it within this.
const MOVED: Duration = Duration::from_secs(2);

/// Cordons and uncordons.
pub struct Ward {
    nodes: Api<Node>,
    /// Since when each node's devices are as its policy says, as far as this process has seen.
    since: BTreeMap<String, Instant>,
}

/// What came of looking at all nodes.
#[derive(Debug, Default)]
pub struct Round {
    /// What each policy, by name, says of it.
    pub said: BTreeMap<String, Finding>,
    /// When to look again though nothing moves.
    pub again: Option<Duration>,
    pub failed: Option<Error>,
}

impl Ward {
    pub fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client),
            since: BTreeMap::new(),
        }
    }

    /// Looks at all nodes and does what follows.
    pub async fn round(
        &mut self,
        caches: &Caches,
        writer: &Writer,
        events: &Events,
        nodes: &[Arc<Node>],
        policies: &[MooncakeNodePolicy],
    ) -> Round {
        let patients = self.patients(caches, nodes, policies);
        let plan = cordon::plan(&patients, Timestamp::now());
        let mut round = Round {
            said: plan.said,
            again: plan.again,
            failed: None,
        };
        // What a policy asks that cannot be understood is not known, so that nothing is done by the others.
        if caches
            .node_policies
            .state()
            .iter()
            .any(|one| one.0.is_err())
        {
            return round;
        }
        for (name, step) in plan.steps {
            let Some(node) = nodes.iter().find(|node| node.name_any() == name) else {
                continue;
            };
            match self.carry_out(node, &step, writer).await {
                Ok(true) => tell(node, &step, writer, events).await,
                Ok(false) => round.again = round.again.into_iter().chain([MOVED]).min(),
                Err(error) => round.failed = Some(error),
            }
        }
        round
    }

    /// What is known of the nodes that are concerned at all.
    fn patients(
        &mut self,
        caches: &Caches,
        nodes: &[Arc<Node>],
        policies: &[MooncakeNodePolicy],
    ) -> Vec<Patient> {
        let now = Instant::now();
        let policies: Vec<&MooncakeNodePolicy> = policies.iter().collect();
        let asks = policies.iter().any(|one| one.spec.sick_devices.is_some());
        let mut since = BTreeMap::new();
        let patients = nodes.iter().filter_map(|node| {
            let cordoned = node.annotations().contains_key(names::ANNOTATION_CORDONED);
            let rule = choice::of(&policies, node.labels())
                .filter(|_| asks)
                .map(|choice| choice.holds())
                .and_then(|policy| Some((policy.name_any(), policy.spec.sick_devices?)));
            if rule.is_none() && !cordoned {
                return None;
            }
            let name = node.name_any();
            let devices = believed(caches, &name);
            let meets = rule
                .as_ref()
                .map(|(_, asked)| cordon::meets(asked, devices.as_ref()));
            let first = self.since.get(&name).copied();
            let first = match meets {
                Some(Some(true)) => Some(first.unwrap_or(now)),
                // While nobody knows, the clock goes on.
                Some(None) => first,
                Some(Some(false)) | None => None,
            };
            since.extend(first.map(|first| (name.clone(), first)));
            Some(Patient {
                rule,
                devices,
                ailing: first.map_or(Duration::ZERO, |first| now.duration_since(first)),
                unschedulable: is_unschedulable(node),
                cordoned,
                requested: node.annotations().get(names::ANNOTATION_REPAIR).cloned(),
                node: name,
            })
        });
        let patients = patients.collect();
        self.since = since;
        patients
    }

    /// False where the node has moved meanwhile: a person may have cordoned it.
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
                tracing::warn!(node = %name, ?step, "marked");
                Ok(true)
            }
            Err(Error::Api { source, .. }) if has_moved(&source) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// 404: it is gone.
fn has_moved(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn is_unschedulable(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable) == Some(true)
}

/// What the agent says of the node's devices, where it is alive and speaks of this life of the node.
fn believed(caches: &Caches, node: &str) -> Option<DeviceHealth> {
    let reference = ObjectRef::<DeserializeGuard<MooncakeNode>>::new(node);
    let report = caches.reports.get(&reference)?;
    let DeserializeGuard(Ok(report)) = report.as_ref() else {
        return None;
    };
    let (spec, status) = (&report.spec, report.status.as_ref()?);
    let this_life = (&spec.node_uid, &spec.boot_id) == (&status.node_uid, &status.boot_id);
    let alive = is_true(&status.conditions, ConditionType::AgentAlive);
    status.devices.clone().filter(|_| this_life && alive)
}

/// What is patched.
fn body(step: &Step) -> Value {
    match step {
        Step::Cordon { why, repair } => json!({
            "metadata": {"annotations": {
                names::ANNOTATION_CORDONED: why,
                names::ANNOTATION_REPAIR: repair,
            }},
            "spec": {"unschedulable": true},
        }),
        Step::Request(repair) => json!({
            "metadata": {"annotations": {names::ANNOTATION_REPAIR: repair}},
        }),
        Step::Release => json!({
            "metadata": {"annotations": {
                names::ANNOTATION_CORDONED: null,
                names::ANNOTATION_REPAIR: null,
            }},
            "spec": {"unschedulable": null},
        }),
    }
}

/// One Event for each thing that was done.
async fn tell(node: &Node, step: &Step, writer: &Writer, events: &Events) {
    let about = node.object_ref(&());
    let (why, repair) = match step {
        Step::Cordon { why, repair } => (Some(why), repair.as_ref()),
        Step::Request(repair) => (None, repair.as_ref()),
        // A person was faster.
        Step::Release if !is_unschedulable(node) => return,
        Step::Release => {
            let note = "its RDMA devices are well, or no MooncakeNodePolicy asks for it any more";
            let reason = Reason::NodeUncordoned;
            events
                .note(writer, about, reason, "Uncordon", note.to_owned())
                .await;
            return;
        }
    };
    if let Some(why) = why {
        let (about, reason) = (about.clone(), Reason::NodeCordoned);
        events
            .warn(writer, about, reason, "Cordon", shorten(why))
            .await;
    }
    if let Some(repair) = repair {
        let reason = Reason::RepairRequested;
        events
            .warn(writer, about, reason, "Repair", shorten(repair))
            .await;
    }
}
