//! Snapshots of the objects in `fixtures`.

use std::sync::Arc;

use crds::MooncakeNode;
use crds::names::{COMPONENT_MASTER, COMPONENT_POOL, LABEL_COMPONENT, LABEL_INJECT};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_cli::Snapshot;
use mooncake_cli::read_error::{Cause, ReadError, Resources};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::Value;

pub(crate) const HEALTHY: &str = include_str!("fixtures/healthy.yaml");
pub(crate) const DEGRADED: &str = include_str!("fixtures/degraded.yaml");
pub(crate) const INVENTORY: &str = include_str!("fixtures/inventory.yaml");

/// All objects of the file, each in the list of its kind and labels.
pub(crate) fn snapshot(text: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let object = Value::deserialize(document).unwrap();
        match object["kind"].as_str().unwrap() {
            "MooncakeCluster" => snapshot.clusters.push(read(object)),
            "MooncakeNode" => snapshot.nodes.push(read(object)),
            "MooncakeNodePolicy" => snapshot.policies.push(read(object)),
            "Deployment" => snapshot.operators.push(read(object)),
            "DaemonSet" => snapshot.agents.push(read(object)),
            "MutatingWebhookConfiguration" => snapshot.webhooks.push(read(object)),
            "Pod" => add_pod(&mut snapshot, read(object)),
            kind => panic!("no list for {kind}"),
        }
    }
    snapshot
}

fn add_pod(snapshot: &mut Snapshot, pod: Pod) {
    let component = pod.labels().get(LABEL_COMPONENT).map(String::as_str);
    let list = match component {
        Some(COMPONENT_MASTER | COMPONENT_POOL) => &mut snapshot.pods,
        Some(_) => &mut snapshot.control_plane,
        None => {
            assert!(pod.labels().contains_key(LABEL_INJECT));
            &mut snapshot.labelled
        }
    };
    list.push(Arc::new(pod));
}

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_yaml_ng::from_value(object).unwrap()
}

/// The part of the snapshot that a tenant can read: namespaced objects of one namespace.
pub(crate) fn of_tenant(mut snapshot: Snapshot) -> Snapshot {
    snapshot.namespace = Some("team".to_owned());
    snapshot.nodes.clear();
    snapshot.policies.clear();
    snapshot.operators.clear();
    snapshot.agents.clear();
    snapshot.control_plane.clear();
    snapshot.webhooks.clear();
    for (resource, scope) in [
        (Resources::MOONCAKE_NODES, "cluster scope"),
        (Resources::POLICIES, "cluster scope"),
        (Resources::CONTROL_PLANE_PODS, "all namespaces"),
        (Resources::OPERATORS, "all namespaces"),
        (Resources::AGENTS, "all namespaces"),
        (Resources::WEBHOOKS, "cluster scope"),
    ] {
        let message = format!("{} is forbidden: User \"tenant\"", resource.0);
        let error = ReadError::new(resource, scope, Cause::Forbidden, message);
        snapshot.read_errors.push(error);
    }
    snapshot
}

/// The snapshot of an API server without the CRDs.
pub(crate) fn not_installed() -> Snapshot {
    let (resource, cause) = (Resources::CLUSTERS, Cause::NotInstalled);
    let message = "404 page not found".to_owned();
    Snapshot {
        read_errors: vec![ReadError::new(resource, "all namespaces", cause, message)],
        ..Snapshot::default()
    }
}

/// A labelled pod.
pub(crate) fn pod(snapshot: &Snapshot, name: &str) -> Pod {
    let found = snapshot.labelled.iter().find(|pod| pod.name_any() == name);
    found.unwrap().as_ref().clone()
}

/// The MooncakeNode of that name.
pub(crate) fn node<'a>(snapshot: &'a Snapshot, name: &str) -> &'a MooncakeNode {
    let mut nodes = snapshot.nodes.iter();
    nodes.find(|node| node.name_any() == name).unwrap()
}

/// Sets the condition `AgentAlive` of a node.
pub(crate) fn agent_alive(node: &mut MooncakeNode, value: &str) {
    let conditions = &mut node.status.as_mut().unwrap().conditions;
    let alive = conditions.iter_mut().find(|one| one.type_ == "AgentAlive");
    let alive = alive.unwrap();
    value.clone_into(&mut alive.status);
    "AgentMissing".clone_into(&mut alive.reason);
    "the agent is gone".clone_into(&mut alive.message);
}
