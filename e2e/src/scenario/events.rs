//! Events of an object.

use crds::Reason;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};

/// The Events about the object of this kind and name.
pub(super) async fn about(
    events: &Api<Event>,
    kind: &str,
    name: &str,
) -> anyhow::Result<Vec<Event>> {
    let mut events = events.list(&ListParams::default()).await?.items;
    events.retain(|event| {
        event.regarding.as_ref().is_some_and(|about| {
            about.kind.as_deref() == Some(kind) && about.name.as_deref() == Some(name)
        })
    });
    Ok(events)
}

pub(super) fn has_reason(event: &Event, reason: Reason) -> bool {
    event.reason.as_deref() == Some(reason.as_str())
}
