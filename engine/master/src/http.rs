//! The paths that tools of the stock master call: health, metrics, queries; and the metadata server.

mod keys;
mod metadata;
mod metrics;
mod segments;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use proto::store::ErrorCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::server::Master;

/// Serves until a listener fails.
///
/// # Errors
/// Those of `accept`.
pub async fn serve(
    master: Arc<Master>,
    admin: TcpListener,
    metadata: Option<TcpListener>,
) -> io::Result<()> {
    let admin = axum::serve(admin, router(master)).into_future();
    match metadata {
        None => admin.await,
        Some(listener) => {
            let metadata = axum::serve(listener, metadata::router()).into_future();
            tokio::select! {
                ended = admin => ended,
                ended = metadata => ended,
            }
        }
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
        .route("/api/v1/remove_all", post(keys::remove_all))
        .route("/get_all_segments", get(segments::all_segments))
        .route("/get_segments_detail", get(segments::details))
        .route("/query_segment", get(segments::query_segment))
        .route("/api/v1/segments/status", get(segments::status))
        .route(
            "/api/v1/tenant_quotas",
            get(|| async { failure(StatusCode::CONFLICT, ErrorCode::UnavailableInCurrentMode) }),
        )
        .with_state(master)
}

async fn health() -> Response {
    body(
        StatusCode::OK,
        &json!({
            "status": "ok",
            "role": "leader",
            "ha_state": "serving",
            "service_ready": true,
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
