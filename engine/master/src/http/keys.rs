//! Queries of keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use proto::store::ErrorCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{body, constant, failure};
use crate::index::{Found, Scope, Search, View};
use crate::server::Master;

type Named = Query<HashMap<String, String>>;

/// Most keys of one query.
const MOST_KEYS: usize = 65_536;
/// Most keys that a search lists, and longest duration of a search in seconds.
const MOST_LISTED: usize = 10_000;
const LONGEST_SEARCH: u64 = 60;
/// Time for the last step of a search, so that one that is not complete shows what it has found.
const LAST_STEP: Duration = Duration::from_secs(5);

/// The memory replicas of an object, as the stock master writes them.
fn replicas(found: &Found<'_>) -> Vec<Value> {
    found
        .replicas()
        .map(|replica| {
            json!({
                "size_": replica.size,
                "buffer_address_": replica.address,
                "protocol_": View::PROTOCOL,
                "transport_endpoint_": replica.endpoint,
            })
        })
        .collect()
}

/// Grants a lease, like a lookup by RPC.
pub(super) async fn query_key(State(master): State<Arc<Master>>, Query(query): Named) -> Response {
    let key = query.get("key").map_or("", String::as_str);
    let found: Result<_, ErrorCode> = master.with_index(|index, now| {
        // As by the stock master: of the default tenant, also if the query names another one.
        let found = index.get_replica_list(Scope::default().key(key)?, now)?;
        Ok(replicas(&found))
    });
    match found {
        Ok(values) => body(StatusCode::OK, &json!({"success": true, "data": values})),
        Err(code) => failure(StatusCode::NOT_FOUND, code),
    }
}

/// Grants no lease, like the stock master.
pub(super) async fn batch_query_keys(
    State(master): State<Arc<Master>>,
    Query(query): Named,
) -> Response {
    let keys = query.get("keys").map_or("", String::as_str);
    let keys: Vec<_> = keys
        .split(',')
        .filter(|key| !key.is_empty())
        .take(MOST_KEYS)
        .collect();
    if keys.is_empty() {
        let value = json!({"success": false, "error": "No keys provided. Use ?keys=key1,key2,..."});
        return body(StatusCode::BAD_REQUEST, &value);
    }
    let mut data = Map::new();
    for key in keys {
        let found: Result<_, ErrorCode> = master.with_index(|index, _| {
            let found = index.peek(Scope::default().key(key)?)?;
            Ok(replicas(&found))
        });
        let value = json!({
            "ok": found.is_ok(),
            "error": found.as_ref().err().map(constant),
            "values": found.ok(),
            "disk_values": null,
            "local_disk_values": null,
            "nof_values": null,
        });
        data.insert(key.into(), value);
    }
    body(StatusCode::OK, &json!({"success": true, "data": data}))
}

/// One key a line, of the default tenant as by the stock master. Keys that are put meanwhile may be missing.
pub(super) async fn all_keys(State(master): State<Arc<Master>>) -> String {
    let mut text = String::new();
    let mut next = Some(0);
    while let Some(from) = next {
        next = master.with_index(|index, _| index.list_keys(from, &mut text));
        // Requests go on between the steps.
        tokio::task::yield_now().await;
    }
    text
}

/// A search for keys.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    prefix: String,
    regex: Option<String>,
    /// The default one if it is empty.
    #[serde(default)]
    tenant_id: String,
    #[serde(default)]
    limit: usize,
    /// Duration in seconds after which the search ends incomplete.
    #[serde(default = "default_seconds")]
    seconds: u64,
}

fn default_seconds() -> u64 {
    5
}

/// Finds objects by their keys. Grants no lease, unlike the queries of the stock master. Other requests go on between its
/// steps.
pub(super) async fn find_keys(
    State(master): State<Arc<Master>>,
    Query(wanted): Query<Wanted>,
) -> Response {
    let limit = wanted.limit.min(MOST_LISTED);
    let seconds = wanted.seconds.min(LONGEST_SEARCH);
    let end = Instant::now() + Duration::from_secs(seconds);
    let scope = master.with_index(|index, _| index.scope(&wanted.tenant_id));
    let begun = master
        .beside_index(end + LAST_STEP, move || {
            let regex = wanted.regex.as_deref();
            Search::begin(scope?, &wanted.prefix, regex, limit)
        })
        .await;
    let mut search = match begun.unwrap_or(Err(ErrorCode::RpcTimeout)) {
        Ok(search) => search,
        Err(code) => return failure(StatusCode::BAD_REQUEST, code),
    };
    master.with_index(|index, _| index.enter_search(&mut search));
    let mut more = true;
    while more && Instant::now() < end {
        more = master.with_index(|index, _| index.continue_search(&mut search));
        let compared = master.beside_index(end + LAST_STEP, move || {
            let all = search.compare(|| Instant::now() < end + LAST_STEP);
            all.then_some(search)
        });
        match compared.await.flatten() {
            Some(compared) => search = compared,
            None => return failure(StatusCode::BAD_REQUEST, ErrorCode::RpcTimeout),
        }
    }
    let (objects, bytes) = search.found();
    let segments: Vec<Value> = search
        .segments()
        .iter()
        .map(|segment| {
            json!({
                "name": segment.name,
                "endpoint": segment.endpoint,
                "leaves": segment.leaves,
                "objects": segment.objects,
                "bytes": segment.bytes,
            })
        })
        .collect();
    let keys = search.into_first().into_iter().map(|found| {
        json!({
            "key": found.key,
            "size": found.size,
            "hard_pin": found.hard_pin,
            "segments": found.segments,
        })
    });
    let value = json!({
        "success": true,
        "complete": !more,
        "objects": objects,
        "bytes": bytes,
        "keys": keys.collect::<Vec<_>>(),
        "segments": segments,
    });
    body(StatusCode::OK, &value)
}

pub(super) async fn remove_all(State(master): State<Arc<Master>>, Query(query): Named) -> Response {
    let force = query.get("force").is_some_and(|value| value == "true");
    let tenant = query.get("tenant_id").map_or("", String::as_str);
    match master.remove_all(tenant, force).await {
        Ok(removed) => body(
            StatusCode::OK,
            &json!({"success": true, "removed_count": removed}),
        ),
        Err(message) => body(
            StatusCode::GATEWAY_TIMEOUT,
            &json!({"success": false, "error_message": message}),
        ),
    }
}
