//! The endpoint `/inject`: one AdmissionReview in, one out. It writes nothing anywhere, so a dry
//! run is answered like any other call.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use crds::Reason;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use tracing::{debug, info, warn};

use super::advisor::{self, Rooms};
use super::budget::{self, Budget};
use super::claim::Devices;
use super::host_ports::{self, Policies};
use super::inject::{Decision, InjectionContext, inject};
use super::lookup::Clusters;
use super::request::InjectionRequest;
use super::skipped::Skipped;
use super::{launch, metadata_server, prefill_decode};
use crate::args::RdmaClass;

/// Largest review that an API server sends, in bytes: two objects of at most 1.5 MiB each.
pub(super) const BODY_LIMIT: usize = 3 << 20;

struct Endpoint<C, K> {
    clusters: C,
    known: K,
    gate_image: String,
    rdma_class: RdmaClass,
}

/// The webhook's routes.
pub fn router<C, K>(clusters: C, known: K, gate_image: String, rdma_class: RdmaClass) -> Router
where
    C: Clusters,
    K: Rooms + Devices + Policies + Clone,
{
    let endpoint = Arc::new(Endpoint {
        clusters,
        known: known.clone(),
        gate_image,
        rdma_class,
    });
    Router::new()
        .route("/inject", post(answer::<C, K>))
        .with_state(endpoint)
        .merge(advisor::router(known))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(from_fn_with_state(Budget::default(), budget::reserve))
}

async fn answer<C: Clusters, K: Rooms + Devices + Policies>(
    State(endpoint): State<Arc<Endpoint<C, K>>>,
    body: Bytes,
) -> Response {
    let review: AdmissionReview<Pod> = match serde_json::from_slice(&body) {
        Ok(review) => review,
        Err(error) => {
            warn!(%error, "a request is no AdmissionReview of a pod");
            let text = format!("the request is no AdmissionReview of a pod: {error}");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    let request: AdmissionRequest<Pod> = match review.try_into() {
        Ok(request) => request,
        Err(_) => {
            let text = "the AdmissionReview has no request";
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    match respond(&endpoint, &request).await {
        Ok(response) => Json(response.into_review()).into_response(),
        Err(error) => {
            warn!(%error, uid = request.uid, "a patch cannot be written as JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

async fn respond<C: Clusters, K: Rooms + Devices + Policies>(
    endpoint: &Endpoint<C, K>,
    request: &AdmissionRequest<Pod>,
) -> Result<AdmissionResponse, kube::core::admission::SerializePatchError> {
    let response = AdmissionResponse::from(request);
    // What runs cannot be changed any more; only a pod in the making is.
    let (Operation::Create, Some(pod)) = (&request.operation, &request.object) else {
        return Ok(response);
    };
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let (decision, advice) = decide(endpoint, pod, namespace).await;
    report(request, pod, namespace, &decision);
    match decision {
        Decision::Patch { patch, unclaimed } => {
            let mut response = response.with_patch(json_patch::Patch(patch))?;
            let unclaimed = unclaimed.map(|why| format!("injected without an RDMA device: {why}"));
            let warnings: Vec<String> = unclaimed.into_iter().chain(advice).collect();
            response.warnings = (!warnings.is_empty()).then_some(warnings);
            Ok(response)
        }
        Decision::Skip { skipped, patch } => {
            let mut response = response.with_patch(json_patch::Patch(patch))?;
            response.warnings = skipped.map(|s| vec![format!("not injected: {s}")]);
            Ok(response)
        }
    }
}

/// With it, warnings about an injected pod.
async fn decide<C: Clusters, K: Rooms + Devices + Policies>(
    endpoint: &Endpoint<C, K>,
    pod: &Pod,
    namespace: &str,
) -> (Decision, Vec<String>) {
    let cluster = match InjectionRequest::of(pod, namespace) {
        Ok(Some(request)) => endpoint.clusters.find(&request).await,
        // `inject` reports the same error.
        Ok(None) | Err(_) => Ok(None),
    };
    match cluster {
        Ok(cluster) => {
            let cluster = cluster.as_ref();
            let known = &endpoint.known;
            let surroundings = InjectionContext {
                claimable: known.claimable(),
                host_ports: host_ports::of(pod, || known.policies()),
                rdma_class: endpoint.rdma_class,
            };
            let image = &endpoint.gate_image;
            let decision = inject(pod, namespace, cluster, &surroundings, image);
            let advice = match decision {
                Decision::Patch { .. } => {
                    let rooms = || known.rooms(None);
                    let claimable = &surroundings.claimable;
                    let mut advice = launch::advise(pod, namespace, cluster, claimable, rooms);
                    let other = prefill_decode::advise(pod, namespace, cluster, &surroundings);
                    advice.extend(other);
                    advice.extend(metadata_server::advise(pod, namespace, cluster));
                    advice
                }
                Decision::Skip { .. } => Vec::new(),
            };
            (decision, advice)
        }
        Err(error) => {
            let skipped = Skipped::new(Reason::ApiFailed, error.to_string());
            (Decision::skip(pod, skipped), Vec::new())
        }
    }
}

fn report(request: &AdmissionRequest<Pod>, pod: &Pod, namespace: &str, decision: &Decision) {
    let name = pod
        .metadata
        .name
        .clone()
        .or_else(|| pod.metadata.generate_name.clone())
        .unwrap_or_default();
    let cluster = pod.labels().get(crds::names::LABEL_INJECT);
    let uid = &request.uid;
    match decision {
        _ if request.dry_run => debug!(namespace, name, uid, "dry run answered"),
        Decision::Patch { patch, .. } if patch.is_empty() => {
            debug!(namespace, name, uid, "pod was injected before");
        }
        Decision::Patch {
            unclaimed: Some(why),
            ..
        } => {
            warn!(namespace, name, cluster, uid, reason = %why.reason, message = why.message, "pod injected without an RDMA device")
        }
        Decision::Patch {
            unclaimed: None, ..
        } => info!(namespace, name, cluster, uid, "pod injected"),
        Decision::Skip {
            skipped: Some(skipped),
            ..
        } => {
            warn!(namespace, name, cluster, uid, reason = %skipped.reason, message = skipped.message, "pod not injected")
        }
        Decision::Skip { skipped: None, .. } => {
            info!(
                namespace,
                name, uid, "removed injection labels from a pod that requests no injection"
            );
        }
    }
}
