//! Labels the Node, and waits until its pool pods have ended.

use std::time::Duration;

use crds::{MooncakeCluster, MooncakeNode, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use super::{Drain, Next, PoolPod, Seen, State};
use crate::args::DrainArgs;
use crate::collect::CLUSTER_SCOPE;
use crate::connection::{Connection, Server};
use crate::read_error::{Cause, ReadError, Resources};

/// Time between two looks at the node.
const PERIOD: Duration = Duration::from_secs(2);
/// Added to the grace period of the pods for the kubelet to end them.
const KUBELET_SECONDS: i64 = 60;

/// Why the node is not changed.
#[derive(Debug, thiserror::Error)]
#[error("{server}: {error}")]
pub struct Error {
    pub server: Server,
    pub error: ReadError,
}

/// Drains a node. `progress` gets a line for each change.
///
/// # Errors
/// A Node that cannot be read or labelled, and pool pods, clusters and MooncakeNodes that cannot be listed at the beginning.
pub async fn drain(
    connection: &Connection,
    wanted: &DrainArgs,
    progress: impl Fn(&str),
) -> Result<Drain, Error> {
    let fatal = |error| Error {
        server: connection.server.clone(),
        error,
    };
    let node = &wanted.node;
    let first = survey(connection, node).await.map_err(fatal)?;
    let losses = first.losses(node);
    if !losses.is_empty() && !wanted.lose_keys && !first.requested {
        return Ok(Drain::new(node, State::Refused, &first, losses));
    }
    let since = Timestamp::now();
    let seconds = wanted.deadline.map_or_else(
        || first.longest() + KUBELET_SECONDS,
        |deadline| i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX),
    );
    let deadline = Timestamp::from_second(since.as_second().saturating_add(seconds));
    let deadline = deadline.unwrap_or(Timestamp::MAX);
    set_label(connection, node, true).await.map_err(fatal)?;
    let (mut seen, mut error) = (
        Seen {
            requested: true,
            ..first
        },
        None,
    );
    let mut lines = Vec::new();
    loop {
        let left: Vec<String> = seen.left(node).iter().map(PoolPod::line).collect();
        for line in left.iter().filter(|line| !lines.contains(*line)) {
            progress(line);
        }
        lines = left;
        if let Next::End(state) = seen.next(since, deadline, Timestamp::now()) {
            let mut report = Drain::new(node, state, &seen, losses);
            report.read_errors.extend(error);
            return Ok(report);
        }
        sleep(PERIOD).await;
        // What cannot be read for a moment does not end the wait.
        match look(connection, node).await {
            Ok(now) => (seen, error) = (now, None),
            Err(failed) => error = Some(failed),
        }
    }
}

/// Lets pool pods start on a node again.
///
/// # Errors
/// A Node that cannot be read or changed.
pub async fn undrain(connection: &Connection, node: &str) -> Result<Drain, Error> {
    let changed = set_label(connection, node, false).await;
    changed.map_err(|error| Error {
        server: connection.server.clone(),
        error,
    })?;
    Ok(Drain::new(
        node,
        State::Undrained,
        &Seen::default(),
        Vec::new(),
    ))
}

async fn set_label(connection: &Connection, node: &str, drained: bool) -> Result<(), ReadError> {
    let nodes = Api::<Node>::all(connection.client.clone());
    let value = drained.then_some(names::DRAIN_POOLS);
    let patch = Patch::Merge(json!({"metadata": {"labels": {names::LABEL_DRAIN: value}}}));
    let params = PatchParams::default();
    let request = nodes.patch(node, &params, &patch);
    let changed = connection.request(Resources::NODES, node, request).await;
    changed.map(|_| ())
}

/// The objects of the node.
async fn look(connection: &Connection, node: &str) -> Result<Seen, ReadError> {
    let client = || connection.client.clone();
    let (nodes, pods) = (Api::<Node>::all(client()), Api::<Pod>::all(client()));
    let mooncake_nodes = Api::<DeserializeGuard<MooncakeNode>>::all(client());
    let component = format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_POOL);
    let of_node = ListParams::default()
        .labels(&component)
        .fields(&format!("spec.nodeName={node}"));
    let (core_node, pods, mooncake_node) = tokio::join!(
        connection.get(Resources::NODES, &nodes, node),
        connection.list(Resources::POOL_PODS, node, &pods, of_node),
        connection.get(Resources::MOONCAKE_NODES, &mooncake_nodes, node),
    );
    let label = core_node?.labels().get(names::LABEL_DRAIN).cloned();
    let nodes = match mooncake_node {
        Ok(DeserializeGuard(decoded)) => decoded.into_iter().collect(),
        // A node without an agent.
        Err(error) if error.cause == Cause::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(Seen {
        requested: label.as_deref() == Some(names::DRAIN_POOLS),
        pods: pods?,
        nodes,
        clusters: Vec::new(),
    })
}

/// The objects of the node, and all clusters and MooncakeNodes, which show what is lost. One that cannot be decoded hides no other.
async fn survey(connection: &Connection, node: &str) -> Result<Seen, ReadError> {
    let client = || connection.client.clone();
    let clusters = Api::<DeserializeGuard<MooncakeCluster>>::all(client());
    let nodes = Api::<DeserializeGuard<MooncakeNode>>::all(client());
    let (seen, clusters, nodes) = tokio::join!(
        look(connection, node),
        connection.list_ours(Resources::CLUSTERS, "all namespaces", &clusters),
        connection.list_ours(Resources::MOONCAKE_NODES, CLUSTER_SCOPE, &nodes),
    );
    let mut failed = clusters.1.into_iter().chain(nodes.1);
    if let Some(error) = failed.find(|error| error.cause != Cause::DecodeFailed) {
        return Err(error);
    }
    Ok(Seen {
        clusters: clusters.0,
        nodes: nodes.0,
        ..seen?
    })
}
