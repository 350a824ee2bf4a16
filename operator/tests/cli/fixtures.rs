//! Pictures from files: what an API server would have shown.

use std::sync::Arc;

use crds::names::{COMPONENT_MASTER, COMPONENT_POOL, LABEL_COMPONENT, LABEL_INJECT};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_operator::cli::Picture;
use mooncake_operator::cli::unseen::{Cause, Unseen, What};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::Value;

pub(crate) const HEALTHY: &str = include_str!("fixtures/healthy.yaml");
pub(crate) const DEGRADED: &str = include_str!("fixtures/degraded.yaml");
pub(crate) const INVENTORY: &str = include_str!("fixtures/inventory.yaml");

/// Every object of the file, each in the list that its kind and labels belong to.
pub(crate) fn picture(text: &str) -> Picture {
    let mut picture = Picture::default();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let object = Value::deserialize(document).unwrap();
        match object["kind"].as_str().unwrap() {
            "MooncakeCluster" => picture.clusters.push(read(object)),
            "MooncakeNode" => picture.nodes.push(read(object)),
            "MooncakeNodePolicy" => picture.policies.push(read(object)),
            "Deployment" => picture.operators.push(read(object)),
            "DaemonSet" => picture.agents.push(read(object)),
            "MutatingWebhookConfiguration" => picture.webhooks.push(read(object)),
            "Pod" => file(&mut picture, read(object)),
            kind => panic!("no list for {kind}"),
        }
    }
    picture
}

fn file(picture: &mut Picture, pod: Pod) {
    let component = pod.labels().get(LABEL_COMPONENT).map(String::as_str);
    let list = match component {
        Some(COMPONENT_MASTER | COMPONENT_POOL) => &mut picture.pods,
        Some(_) => &mut picture.crew,
        None => {
            assert!(pod.labels().contains_key(LABEL_INJECT));
            &mut picture.labelled
        }
    };
    list.push(Arc::new(pod));
}

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_yaml_ng::from_value(object).unwrap()
}

/// What a tenant sees: one namespace, and nothing that belongs to none.
pub(crate) fn for_a_tenant(mut picture: Picture) -> Picture {
    picture.namespace = Some("team".to_owned());
    picture.nodes.clear();
    picture.policies.clear();
    picture.operators.clear();
    picture.agents.clear();
    picture.crew.clear();
    picture.webhooks.clear();
    for (what, place) in [
        (What::Nodes, "the whole cluster"),
        (What::Policies, "the whole cluster"),
        (What::CrewPods, "all namespaces"),
        (What::Operators, "all namespaces"),
        (What::Agents, "all namespaces"),
        (What::Webhooks, "the whole cluster"),
    ] {
        let message = format!("{} is forbidden: User \"tenant\"", what.as_str());
        let unseen = Unseen::new(what, place, Cause::Forbidden, message);
        picture.unseen.push(unseen);
    }
    picture
}

/// An API server that serves none of our kinds.
pub(crate) fn not_installed() -> Picture {
    let (what, cause) = (What::Clusters, Cause::NotInstalled);
    let message = "404 page not found".to_owned();
    Picture {
        unseen: vec![Unseen::new(what, "all namespaces", cause, message)],
        ..Picture::default()
    }
}

/// One pod of a picture.
pub(crate) fn pod(picture: &Picture, name: &str) -> Pod {
    let found = picture.labelled.iter().find(|pod| pod.name_any() == name);
    found.unwrap().as_ref().clone()
}
