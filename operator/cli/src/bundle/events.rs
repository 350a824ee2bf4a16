//! Events for the bundle: those about Mooncake objects and pods of ours, and those that the operator wrote.

use std::collections::BTreeSet;
use std::io;

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use mooncake_operator::apply::FIELD_MANAGER;

use super::archive::Archive;
use super::{Deadline, prune};
use crate::collect::api;
use crate::connection::Connection;
use crate::read_error::Resources;
use crate::snapshot::Snapshot;

/// Namespace of Events about cluster-scoped objects.
const OF_CLUSTER_SCOPE: &str = "default";

pub(super) async fn collect(
    archive: &mut Archive,
    connection: &Connection,
    snapshot: &Snapshot,
    deadline: Deadline,
) -> io::Result<()> {
    let own = snapshot.control_plane.iter().chain(&snapshot.pods);
    let own: BTreeSet<String> = own
        .filter_map(|pod| pod.uid())
        .chain(snapshot.operators.iter().filter_map(ResourceExt::uid))
        .chain(snapshot.agents.iter().filter_map(ResourceExt::uid))
        .collect();
    let mut kept = Vec::new();
    for namespace in namespaces(snapshot) {
        let events = api::<Event>(connection, namespace.as_deref());
        let scope = namespace.unwrap_or_else(|| "all namespaces".to_owned());
        let listed = connection.list(Resources::EVENTS, &scope, &events, ListParams::default());
        match deadline.bound(listed).await {
            Ok(Ok(events)) => kept.extend(events.into_iter().filter(|event| is_ours(event, &own))),
            Ok(Err(error)) => archive.leave_out(format!("events of {scope}"), error.to_string()),
            Err(why) => archive.leave_out(format!("events of {scope}"), why),
        }
    }
    let events = kept.iter().map(|event| {
        let event = serde_json::to_value(event).unwrap_or_default();
        prune::event(&event)
    });
    archive.objects("events.jsonl", events)
}

/// The namespaces of the snapshot; `None` is all.
fn namespaces(snapshot: &Snapshot) -> Vec<Option<String>> {
    let Some(own) = snapshot.namespace.clone() else {
        return vec![None];
    };
    let system = snapshot
        .control_plane
        .iter()
        .filter_map(|pod| pod.namespace());
    let all = [own, OF_CLUSTER_SCOPE.to_owned()].into_iter().chain(system);
    let all: BTreeSet<String> = all.collect();
    all.into_iter().map(Some).collect()
}

/// A kubelet's Event about a pod of a user may quote the answer of its probe.
fn is_ours(event: &Event, own: &BTreeSet<String>) -> bool {
    let about = &event.involved_object;
    let group = about.api_version.as_deref().unwrap_or_default();
    let source = event.source.as_ref();
    let writer = event
        .reporting_component
        .as_deref()
        .filter(|name| !name.is_empty());
    let writer = writer.or_else(|| source?.component.as_deref());
    group.starts_with(crds::names::GROUP)
        || writer == Some(FIELD_MANAGER)
        || about.uid.as_ref().is_some_and(|uid| own.contains(uid))
}
