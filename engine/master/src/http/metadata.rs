//! The metadata server: values that transfer engines put and get by key, as in the stock master. With admission, a pod changes its
//! own keys only, and the keys of a pod that is gone are removed.

mod values;

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use parking_lot::Mutex;
use proto::metadata::decode;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::listener::Visitor;
use crate::admission::Role;
use crate::server::Master;
pub use values::Limits;
use values::{Refused, Values, Writer};

/// Time for a value to arrive: stock engines wait for 3 s in all.
const BODY_DEADLINE: Duration = Duration::from_secs(3);

/// A status other than success, with its text.
type Failed = (StatusCode, Cow<'static, str>);

/// What is served.
#[derive(Debug)]
pub(super) struct Metadata {
    master: Arc<Master>,
    limits: Limits,
    values: Mutex<Values>,
}

impl Metadata {
    pub(super) fn new(master: Arc<Master>) -> Arc<Self> {
        let limits = master.metadata_limits().clone();
        let values = Mutex::new(Values::new(limits.clone()));
        Arc::new(Self {
            master,
            limits,
            values,
        })
    }

    pub(super) fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/health", get(|| async { "OK" }))
            .route("/metadata", get(read).put(write).delete(remove))
            .with_state(self)
    }

    /// Removes the keys of pods that are gone, until the future is dropped.
    pub(super) async fn upkeep(self: Arc<Self>) -> Infallible {
        let mut looks = interval(self.limits.period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let Some(list) = self.master.admission().listed() else {
                continue;
            };
            let expired = self.change(|values| values.expire(&list, Instant::now()));
            if expired > 0 {
                let traffic = &self.master.traffic().metadata;
                traffic.expired.fetch_add(expired as u64, Relaxed);
                tracing::info!(expired, "removed the metadata of pods that are gone");
            }
        }
    }

    /// Changes values and publishes their number.
    fn change<T>(&self, change: impl FnOnce(&mut Values) -> T) -> T {
        let mut values = self.values.lock();
        let changed = change(&mut values);
        let usage = values.usage();
        let traffic = &self.master.traffic().metadata;
        traffic.keys.store(usage.keys as u64, Relaxed);
        traffic.bytes.store(usage.bytes as u64, Relaxed);
        changed
    }

    /// Changes values as this peer.
    fn change_as<T>(
        &self,
        visitor: &Visitor,
        change: impl FnOnce(&mut Values, Writer<'_>) -> Result<T, Refused>,
    ) -> Result<T, Failed> {
        let admission = self.master.admission();
        let list = admission.listed();
        let owner = list.as_ref().and_then(|list| list.owner(visitor.address));
        let changed = match (admission.role(visitor.address), list, owner) {
            (Some(Role::Operator), ..) => self.change(|values| change(values, Writer::Operator)),
            (Some(Role::Member), Some(list), Some(owner)) => {
                self.change(|values| change(values, Writer::Member(&owner, &list)))
            }
            _ => Err(Refused::NotAdmitted),
        };
        changed.map_err(|refused| {
            let traffic = self.master.traffic();
            traffic.metadata_refused(visitor.address, &refused);
            let status = match refused.is_full() {
                true => StatusCode::INSUFFICIENT_STORAGE,
                false => StatusCode::FORBIDDEN,
            };
            (status, refused.to_string().into())
        })
    }

    /// Returns the key in a query. The stock server has these words too.
    fn key(&self, query: Option<&str>) -> Result<Vec<u8>, Failed> {
        let bad = |text: &'static str| Err((StatusCode::BAD_REQUEST, text.into()));
        let mut fields = query.unwrap_or_default().split('&');
        let key = fields.find_map(|field| field.strip_prefix("key="));
        let key = decode(key.unwrap_or_default());
        if key.is_empty() {
            return bad("Missing key parameter");
        }
        if key.len() > self.limits.key_bytes {
            return bad("the key is too long");
        }
        Ok(key)
    }
}

type Shared = State<Arc<Metadata>>;
type From = ConnectInfo<Visitor>;

fn missing() -> Failed {
    (StatusCode::NOT_FOUND, "metadata not found".into())
}

async fn read(State(metadata): Shared, RawQuery(query): RawQuery) -> Result<Response, Failed> {
    let key = metadata.key(query.as_deref())?;
    let value = metadata.values.lock().get(&key).ok_or_else(missing)?;
    Ok(([(CONTENT_TYPE, "application/json")], value).into_response())
}

async fn write(
    State(metadata): Shared,
    ConnectInfo(visitor): From,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Failed> {
    let key = metadata.key(query.as_deref())?;
    let value = arrive(body, metadata.limits.value_bytes, visitor.bodies());
    let value = timeout(BODY_DEADLINE, value).await;
    let slow = "the value has not arrived in time";
    let value = value.unwrap_or(Err((StatusCode::REQUEST_TIMEOUT, slow.into())))?;
    metadata.change_as(&visitor, |values, writer| values.put(key, value, writer))?;
    Ok("metadata updated".into_response())
}

/// Reads a value. The peer has a limited number of turns, and no bytes beside the value stay in memory.
async fn arrive(body: Body, limit: usize, turns: &Semaphore) -> Result<Bytes, Failed> {
    let turn = turns.acquire().await;
    let _turn = turn.map_err(|_closed| (StatusCode::SERVICE_UNAVAILABLE, "ending".into()))?;
    let mut value = Vec::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| (StatusCode::BAD_REQUEST, error.to_string().into()))?;
        if value.len() + part.len() > limit {
            let large = "the value is too large";
            return Err((StatusCode::PAYLOAD_TOO_LARGE, large.into()));
        }
        value.extend_from_slice(&part);
    }
    // Vectors grow by doubling.
    value.shrink_to_fit();
    Ok(value.into())
}

async fn remove(
    State(metadata): Shared,
    ConnectInfo(visitor): From,
    RawQuery(query): RawQuery,
) -> Result<Response, Failed> {
    let key = metadata.key(query.as_deref())?;
    let removed = metadata.change_as(&visitor, |values, writer| values.remove(&key, writer))?;
    match removed {
        true => Ok("metadata deleted".into_response()),
        false => Err(missing()),
    }
}
