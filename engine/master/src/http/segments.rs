//! Queries of segments.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use proto::store::ErrorCode;
use serde_json::{Value, json};

use super::{body, constant, failure};
use crate::server::Master;

type Named = Query<HashMap<String, String>>;

/// One name a line; empty until a segment is mounted.
pub(super) async fn all_segments(State(master): State<Arc<Master>>) -> String {
    let mut text = String::new();
    for name in master.with_index(|index, _| index.segment_names()) {
        text.push_str(&name);
        text.push('\n');
    }
    text
}

pub(super) async fn details(State(master): State<Arc<Master>>) -> Response {
    let details = master.with_index(|index, _| index.segment_details());
    let segments: Vec<Value> = details
        .iter()
        .map(|detail| {
            json!({
                "segment_name": detail.segment.name,
                "segment_id": detail.segment.id.to_string(),
                "client_id": detail.client.to_string(),
                "base_address": format!("{:#x}", detail.segment.base),
                "size_bytes": detail.segment.size,
                "te_endpoint": detail.segment.te_endpoint,
                "protocol": detail.segment.protocol,
                "status": constant(&detail.status),
                "allocator_used_bytes": detail.used,
                "allocator_capacity_bytes": detail.segment.size,
            })
        })
        .collect();
    let value = json!({"total_segments": segments.len(), "segments": segments});
    body(StatusCode::OK, &value)
}

/// The ledgers of pool pods, for `kubectl mooncake doctor`. The stock master has none.
pub(super) async fn ledgers(State(master): State<Arc<Master>>) -> Response {
    let (details, absent) = master.with_index(|index, _| index.ledger_details());
    let segments: Vec<Value> = details
        .iter()
        .map(|detail| {
            json!({
                "name": detail.name,
                "endpoint": detail.endpoint,
                "state": constant(&detail.state),
                "unrecorded": detail.unrecorded,
            })
        })
        .collect();
    body(
        StatusCode::OK,
        &json!({"success": true, "segments": segments, "absent": absent}),
    )
}

pub(super) async fn query_segment(
    State(master): State<Arc<Master>>,
    Query(query): Named,
) -> Response {
    let name = query.get("segment").map_or("", String::as_str);
    match master.with_index(|index, _| index.segment_use(name)) {
        Some((used, capacity)) => {
            let mut text = String::new();
            let _infallible = write!(
                text,
                "{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n"
            );
            text.into_response()
        }
        None => (StatusCode::INTERNAL_SERVER_ERROR, "Failed to query segment").into_response(),
    }
}

pub(super) async fn status(State(master): State<Arc<Master>>, Query(query): Named) -> Response {
    let name = query.get("segment").map_or("", String::as_str);
    if name.is_empty() {
        let value = json!({
            "success": false,
            "error_code": ErrorCode::InvalidParams.code(),
            "error_message": "Missing segment query parameter",
        });
        return body(StatusCode::BAD_REQUEST, &value);
    }
    match master.with_index(|index, _| index.segment_status(name)) {
        Ok(status) => body(
            StatusCode::OK,
            &json!({
                "success": true,
                "segment": name,
                "status": status.code(),
                "status_name": constant(&status),
                "error_code": 0,
                "error_message": "",
            }),
        ),
        Err(code) => failure(StatusCode::NOT_FOUND, code),
    }
}
