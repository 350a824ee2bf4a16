//! The metadata server of the stock master: values that transfer engines put and get by key.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;

const MOST_VALUE_BYTES: usize = 1 << 20;
/// Limit of all keys and values together, with what each pair costs beside them.
const MOST_BYTES: usize = 256 << 20;
/// Memory of a pair beside its bytes.
const PAIR_BYTES: usize = 256;

#[derive(Default)]
struct Values {
    values: HashMap<String, Bytes>,
    bytes: usize,
}

type Shared = State<Arc<Mutex<Values>>>;
type Named = Query<HashMap<String, String>>;

pub(super) fn router() -> Router {
    Router::new()
        .route("/health", get(|| async { "OK" }))
        .route("/metadata", get(read).put(write).delete(remove))
        .layer(DefaultBodyLimit::max(MOST_VALUE_BYTES))
        .with_state(Arc::new(Mutex::new(Values::default())))
}

/// Answers about the key in the query, or that it is missing.
fn about_key(
    query: &HashMap<String, String>,
    answer: impl FnOnce(&str) -> Option<Response>,
) -> Response {
    let Some(key) = query.get("key") else {
        return (StatusCode::BAD_REQUEST, "Missing key parameter").into_response();
    };
    answer(key).unwrap_or_else(|| (StatusCode::NOT_FOUND, "metadata not found").into_response())
}

fn size(key: &str, value: &Bytes) -> usize {
    PAIR_BYTES + key.len() + value.len()
}

async fn read(State(values): Shared, Query(query): Named) -> Response {
    about_key(&query, |key| {
        let value = values.lock().values.get(key).cloned()?;
        Some(([(CONTENT_TYPE, "application/json")], value).into_response())
    })
}

async fn write(State(values): Shared, Query(query): Named, value: Bytes) -> Response {
    about_key(&query, |key| {
        let mut values = values.lock();
        let former = values.values.get(key).map_or(0, |old| size(key, old));
        let bytes = values.bytes - former + size(key, &value);
        if bytes > MOST_BYTES {
            let full = (StatusCode::INSUFFICIENT_STORAGE, "too much metadata");
            return Some(full.into_response());
        }
        values.bytes = bytes;
        values.values.insert(key.into(), value);
        Some("metadata updated".into_response())
    })
}

async fn remove(State(values): Shared, Query(query): Named) -> Response {
    about_key(&query, |key| {
        let mut values = values.lock();
        let value = values.values.remove(key)?;
        values.bytes -= size(key, &value);
        Some("metadata deleted".into_response())
    })
}
