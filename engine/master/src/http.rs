//! The paths that tools of the stock master call: health, metrics, queries; and the metadata server.

mod keys;
mod listener;
mod metadata;
mod metrics;
mod segments;
mod tenants;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::future::OptionFuture;
use proto::store::ErrorCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::admission::Admission;
use crate::server::Master;
use listener::{Guarded, Visitor};
pub use metadata::Limits as MetadataLimits;
use metadata::Metadata;

/// The listeners of the HTTP services of a master that serves.
#[derive(Debug)]
pub struct Listeners {
    /// All paths, for admitted peers.
    pub admin: TcpListener,
    /// Transfer engine metadata, for admitted peers.
    pub metadata: Option<TcpListener>,
}

/// Serves until a listener fails.
///
/// # Errors
/// Those of `accept`.
pub async fn serve(master: Arc<Master>, listeners: Listeners) -> io::Result<()> {
    let Listeners { admin, metadata } = listeners;
    let admitted = |listener| Guarded::admitted(listener, Arc::clone(&master));
    let metadata = metadata.map(|listener| async {
        let metadata = Metadata::new(Arc::clone(&master));
        let router = Arc::clone(&metadata).router();
        let service = router.into_make_service_with_connect_info::<Visitor>();
        tokio::select! {
            ended = axum::serve(admitted(listener), service).into_future() => ended,
            never = metadata.upkeep() => match never {},
        }
    });
    let admin = axum::serve(admitted(admin), router(Arc::clone(&master)));
    tokio::select! {
        ended = admin.into_future() => ended,
        Some(ended) = OptionFuture::from(metadata) => ended,
    }
}

/// What the open port shows, while this program serves and while it waits to be elected.
#[derive(Debug, Clone)]
pub struct Open {
    /// The master that serves.
    pub master: watch::Receiver<Option<Arc<Master>>>,
    pub admission: Admission,
    /// There are several masters, of which one is elected: another one may serve.
    pub elected: bool,
}

/// Serves health and metrics to every peer until the listener fails. They show no key, address or name of a pod, and change nothing.
///
/// # Errors
/// Those of `accept`.
pub async fn serve_open(open: Open, listener: TcpListener) -> io::Result<()> {
    let router = Router::new()
        .route("/health", get(open_health))
        .route("/metrics", get(open_metrics))
        .with_state(open);
    axum::serve(Guarded::open(listener), router).await
}

/// A master that waits to be elected is healthy, so that rollouts and disruption budgets count it.
async fn open_health(State(open): State<Open>) -> Response {
    let master = open.master.borrow().clone();
    match master {
        Some(master) => health(State(master)).await,
        None if !open.elected => health_of("leader", "starting", false),
        None if !open.admission.is_known() => health_of("standby", "waiting_for_addresses", false),
        None => health_of("standby", "standby", true),
    }
}

/// Of a master that waits to be elected they show only that.
async fn open_metrics(State(open): State<Open>) -> Response {
    let master = open.master.borrow().clone();
    match master {
        Some(master) => metrics::metrics(State(master)).await,
        None => metrics::of_waiting(),
    }
}

/// The paths on the metrics port.
fn router(master: Arc<Master>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/role", get(|| async { "leader" }))
        .route("/ha_status", get(|| async { "serving" }))
        .route(
            "/leader",
            get(|| async {
                body(
                    StatusCode::OK,
                    &json!({"present": false, "leader_address": null, "view_version": null}),
                )
            }),
        )
        .route("/metrics", get(metrics::metrics))
        .route("/metrics/summary", get(metrics::summary))
        .route("/query_key", get(keys::query_key))
        .route("/batch_query_keys", get(keys::batch_query_keys))
        .route("/get_all_keys", get(keys::all_keys))
        .route("/find_keys", get(keys::find_keys))
        .route("/api/v1/remove_all", post(keys::remove_all))
        .route("/get_all_segments", get(segments::all_segments))
        .route("/get_segments_detail", get(segments::details))
        .route("/ledgers", get(segments::ledgers))
        .route("/query_segment", get(segments::query_segment))
        .route("/api/v1/segments/status", get(segments::status))
        .route(
            "/api/v1/tenant_quotas",
            get(tenants::quotas)
                .put(tenants::refuse)
                .delete(tenants::refuse),
        )
        .with_state(master)
}

/// Ready once the admitted addresses are known. Otherwise the status is 503, so that an HTTP probe fails.
async fn health(State(master): State<Arc<Master>>) -> Response {
    let ready = master.admission().is_known();
    let state = if ready {
        "serving"
    } else {
        "waiting_for_addresses"
    };
    health_of("leader", state, ready)
}

fn health_of(role: &str, state: &str, ready: bool) -> Response {
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    body(
        status,
        &json!({
            "status": if ready { "ok" } else { "waiting" },
            "role": role,
            "ha_state": state,
            "service_ready": ready && role == "leader",
            "leader_address": null,
            "view_version": null,
        }),
    )
}

fn body(status: StatusCode, value: &Value) -> Response {
    let json = [(CONTENT_TYPE, "application/json; charset=utf-8")];
    (status, json, value.to_string()).into_response()
}

/// A refusal as the stock master writes it.
fn failure(status: StatusCode, code: ErrorCode) -> Response {
    let value =
        json!({"success": false, "error_code": code.code(), "error_message": constant(&code)});
    body(status, &value)
}

/// The C++ name of a value: `ObjectNotFound` is `OBJECT_NOT_FOUND`.
fn constant(value: &impl std::fmt::Debug) -> String {
    let mut name = String::new();
    for sign in format!("{value:?}").chars() {
        if sign.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(sign.to_ascii_uppercase());
    }
    name
}
