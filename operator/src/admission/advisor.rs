//! The endpoint `/advise`: one AdmissionReview of a MooncakeCluster in, its warnings and the type of its master out. It
//! allows everything: what is wrong in itself the API server refuses without us.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use crds::MooncakeNode;
use crds::cluster::MooncakeClusterSpec;
use crds::node::DeviceHealth;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, SerializePatchError,
};
use serde::Deserialize;

use super::advice::{Room, advise};
use super::resize::{Stored, evicted};
use super::{default_tenant, master_defaults};
use crate::cache::{Caches, ClusterName};
use crate::quantity;

/// Where nodes are known.
pub trait Rooms: Send + Sync + 'static {
    /// Every node, and what is left there beside the pools of all clusters but this one.
    fn rooms(&self, but: Option<&ClusterName>) -> Vec<Room>;
}

impl Rooms for Caches {
    fn rooms(&self, but: Option<&ClusterName>) -> Vec<Room> {
        let (nodes, mooncake_nodes) = (self.nodes.state(), self.mooncake_nodes.state());
        let mooncake_nodes = mooncake_nodes
            .iter()
            .filter_map(|mooncake_node| mooncake_node.0.as_ref().ok());
        rooms(nodes.iter().map(AsRef::as_ref), mooncake_nodes, but)
    }
}

/// Every node, and what is left there beside the pools in `reports` of all clusters but this one.
pub fn rooms<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    mooncake_nodes: impl Iterator<Item = &'a MooncakeNode>,
    but: Option<&ClusterName>,
) -> Vec<Room> {
    let mut taken: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut devices: BTreeMap<String, DeviceHealth> = BTreeMap::new();
    for node in mooncake_nodes {
        let known = node.status.as_ref().and_then(|s| s.devices.clone());
        devices.extend(known.map(|known| (node.name_any(), known)));
        let others = node.spec.pools.iter().filter(|pool| {
            let own =
                |but: &ClusterName| (&pool.namespace, &pool.cluster) == (&but.namespace, &but.name);
            !but.is_some_and(own)
        });
        for pool in others {
            let amounts = taken.entry(node.name_any()).or_default();
            let amount = amounts
                .entry(pool.page_size.resource().to_owned())
                .or_default();
            *amount = amount.saturating_add(pool.size.0);
        }
    }
    let room = |node: &Node| {
        let name = node.name_any();
        let devices = devices.get(&name);
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        let bytes = |(resource, quantity): (&String, &Quantity)| {
            Some((resource.clone(), quantity::bytes(quantity)?))
        };
        Room {
            labels: node.labels().clone(),
            taints: node
                .spec
                .as_ref()
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default(),
            allocatable: allocatable
                .into_iter()
                .flatten()
                .filter_map(bytes)
                .collect(),
            taken: taken.get(&name).cloned().unwrap_or_default(),
            devices: devices.map_or(0, |devices| devices.known),
            memlock: devices.and_then(|devices| Some(devices.memlock?.0)),
            node: name,
        }
    };
    nodes.map(room).collect()
}

/// The route.
pub(super) fn router<R: Rooms>(rooms: R) -> Router {
    Router::new()
        .route("/advise", post(answer::<R>))
        .with_state(Arc::new(rooms))
}

#[derive(Deserialize)]
struct Applied {
    spec: MooncakeClusterSpec,
}

async fn answer<R: Rooms>(State(rooms): State<Arc<R>>, body: Bytes) -> Response {
    let request = serde_json::from_slice::<AdmissionReview<DynamicObject>>(&body)
        .map_err(|error| error.to_string())
        .and_then(|review| {
            let request: Result<AdmissionRequest<DynamicObject>, _> = review.try_into();
            request.map_err(|_| "it has no request".to_owned())
        });
    match request {
        Ok(request) => match respond(rooms.as_ref(), &request) {
            Ok(response) => Json(response.into_review()).into_response(),
            Err(error) => {
                tracing::warn!(%error, uid = request.uid, "a patch cannot be written as JSON");
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
            }
        },
        Err(error) => {
            let text = format!("the request is no AdmissionReview of a MooncakeCluster: {error}");
            (StatusCode::BAD_REQUEST, text).into_response()
        }
    }
}

fn respond<R: Rooms>(
    rooms: &R,
    request: &AdmissionRequest<DynamicObject>,
) -> Result<AdmissionResponse, SerializePatchError> {
    let mut response = AdmissionResponse::from(request);
    let Some(object) = &request.object else {
        return Ok(response);
    };
    let mut object = object.data.clone();
    let old = request.old_object.as_ref().map(|old| &old.data);
    if let Some(operation) = master_defaults::set(old, &mut object) {
        response = response.with_patch(json_patch::Patch(vec![operation]))?;
    }
    // What cannot be read is against the schema, which is checked after this.
    if let Ok(Applied { spec }) = serde_json::from_value(object) {
        let cluster = ClusterName {
            namespace: request.namespace.clone().unwrap_or_default(),
            name: request.name.clone(),
        };
        let rooms = rooms.rooms(Some(&cluster));
        let mut warnings = advise(&spec, &rooms);
        warnings.extend(default_tenant::unlisted(&spec));
        let old = old.and_then(|old| serde_json::from_value::<Stored>(old.clone()).ok());
        warnings.extend(old.and_then(|old| evicted(&old, &spec, &rooms)));
        response.warnings = (!warnings.is_empty()).then_some(warnings);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_node_is_read_in_every_form_of_a_quantity() {
        let node = r#"{"status": {"allocatable": {"memory": "2e9", "hugepages-2Mi": "1Gi"}}}"#;
        let node: Node = serde_json::from_str(node).unwrap();
        let [room] = rooms([&node].into_iter(), std::iter::empty(), None)
            .try_into()
            .unwrap();
        assert_eq!(room.left("memory"), 2_000_000_000);
        assert_eq!(room.left("hugepages-2Mi"), 1 << 30);
    }
}
