//! Objects and versions for the bundle.

use std::collections::BTreeMap;
use std::io;

use crds::{MooncakeCluster, MooncakeInventory, MooncakeNode, MooncakeNodePolicy};
use kube::api::{DynamicObject, ListParams};
use kube::discovery::ApiResource;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use super::archive::Archive;
use super::{Deadline, prune};
use crate::collect::CLUSTER_SCOPE;
use crate::connection::Connection;
use crate::read_error::Resources;
use crate::run::RELEASE;
use crate::snapshot::Snapshot;

/// What the snapshot has: pods, workloads and webhooks.
pub(super) fn of_snapshot(archive: &mut Archive, snapshot: &Snapshot) -> io::Result<()> {
    let own = snapshot.control_plane.iter().chain(&snapshot.pods);
    let own = own.map(|pod| prune::own_pod(&raw(pod.as_ref())));
    archive.objects("pods.jsonl", own)?;
    let users = snapshot.labelled.iter();
    let users = users.map(|pod| prune::user_pod(&raw(pod.as_ref())));
    archive.objects("injected-pods.jsonl", users)?;
    let operators = snapshot.operators.iter().map(raw);
    let workloads = operators.chain(snapshot.agents.iter().map(raw));
    archive.objects(
        "workloads.jsonl",
        workloads.map(|object| prune::workload(&object)),
    )?;
    let ours = snapshot.webhooks.iter().filter(|configuration| {
        let mut webhooks = configuration.webhooks.iter().flatten();
        webhooks.any(|webhook| webhook.name.ends_with(crds::names::GROUP))
    });
    archive.objects(
        "webhooks.jsonl",
        ours.map(|object| prune::webhook(&raw(object))),
    )
}

fn raw(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// The Mooncake objects, also those that this release cannot decode.
pub(super) async fn of_mooncake(
    archive: &mut Archive,
    connection: &Connection,
    namespace: Option<&str>,
    deadline: Deadline,
) -> io::Result<()> {
    let kinds = [
        (
            Resources::CLUSTERS,
            ApiResource::erase::<MooncakeCluster>(&()),
        ),
        (
            Resources::MOONCAKE_NODES,
            ApiResource::erase::<MooncakeNode>(&()),
        ),
        (
            Resources::POLICIES,
            ApiResource::erase::<MooncakeNodePolicy>(&()),
        ),
        (
            Resources::INVENTORIES,
            ApiResource::erase::<MooncakeInventory>(&()),
        ),
    ];
    for (resource, kind) in kinds {
        let client = connection.client.clone();
        let namespaced = resource == Resources::CLUSTERS;
        let api = match namespace.filter(|_| namespaced) {
            Some(namespace) => Api::<DynamicObject>::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        };
        let params = ListParams::default();
        let listed = connection.list(resource, CLUSTER_SCOPE, &api, params);
        let path = format!("{}.jsonl", kind.plural);
        match deadline.bound(listed).await {
            Ok(Ok(objects)) => {
                archive.objects(
                    &path,
                    objects.iter().map(|object| prune::mooncake(&raw(object))),
                )?;
            }
            Ok(Err(error)) => archive.leave_out(path, error.to_string()),
            Err(why) => archive.leave_out(path, why),
        }
    }
    Ok(())
}

/// Releases of everything.
pub(super) async fn versions(
    archive: &mut Archive,
    connection: &Connection,
    snapshot: &Snapshot,
    deadline: Deadline,
) -> io::Result<()> {
    let mut agents: BTreeMap<String, usize> = BTreeMap::new();
    for node in &snapshot.nodes {
        let status = node.status.as_ref();
        let release = status.map_or("unknown", |status| &status.agent_version);
        *agents.entry(release.to_owned()).or_default() += 1;
    }
    let server = connection.request(Resources::VERSION, "API server", async {
        connection.client.apiserver_version().await
    });
    let server = match deadline.bound(server).await {
        Ok(Ok(info)) => json!({"gitVersion": info.git_version, "platform": info.platform}),
        Ok(Err(error)) => json!(error.to_string()),
        Err(why) => json!(why),
    };
    let labels = |name: String, labels: &BTreeMap<String, String>| {
        let release = labels.get("app.kubernetes.io/version").cloned();
        (name, release)
    };
    let operators = snapshot.operators.iter();
    let operators = operators.map(|set| labels(set.name_any(), set.labels()));
    let sets = snapshot.agents.iter();
    let sets = sets.map(|set| labels(set.name_any(), set.labels()));
    let versions = json!({
        "kubectlMooncake": RELEASE, "kubernetes": server, "nodesByAgentRelease": agents,
        "workloads": operators.chain(sets).collect::<BTreeMap<_, _>>(),
        "apiVersion": MooncakeCluster::api_version(&()),
    });
    archive.text("versions.json", &format!("{versions:#}\n"))
}
