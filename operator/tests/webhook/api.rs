//! The part of an API server that the certificate keeper uses: one Secret and one
//! MutatingWebhookConfiguration with list, watch and apply over HTTP.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, patch};
use futures::stream;
use jiff::Timestamp;
use kube::{Client, Config};
use mooncake_operator::certificates::Identity;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) const NAMESPACE: &str = "mooncake-system";
pub(crate) const SECRET: &str = "mooncake-webhook-certificate";
pub(crate) const CONFIGURATION: &str = "mooncake-injection";
const SECRETS: &str = "/api/v1/namespaces/mooncake-system/secrets";
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

/// One object; `versions` publishes each new version.
#[derive(Clone)]
struct Object {
    versions: watch::Sender<Value>,
    writes: Arc<Mutex<u64>>,
}

impl Object {
    fn new(mut object: Value) -> Self {
        object["metadata"]["resourceVersion"] = json!("1");
        Self {
            versions: watch::Sender::new(object),
            writes: Arc::default(),
        }
    }

    /// Simplified server-side apply: merges fields, and webhooks by name.
    fn apply(&self, patch: &Value) -> Result<Value, Value> {
        let mut writes = self.writes.lock();
        let mut object = self.versions.borrow().clone();
        let fence = patch["metadata"].get("resourceVersion");
        if fence.is_some_and(|fence| *fence != object["metadata"]["resourceVersion"]) {
            return Err(json!({"kind": "Status", "code": 409, "reason": "Conflict"}));
        }
        merge(&mut object, patch);
        *writes += 1;
        object["metadata"]["resourceVersion"] = json!((*writes + 1).to_string());
        self.versions.send_replace(object.clone());
        Ok(object)
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match (object, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                merge(fields.entry(name).or_insert(Value::Null), change);
            }
        }
        (Value::Array(items), Value::Array(changes)) => {
            for change in changes {
                let named = items.iter_mut().find(|item| item["name"] == change["name"]);
                merge(named.expect("no webhook is added"), change);
            }
        }
        (object, change) => *object = change.clone(),
    }
}

/// The API server and its objects.
pub(crate) struct Api {
    pub(crate) client: Client,
    secret: Object,
    configuration: Object,
}

impl Api {
    pub(crate) async fn start(service: &str) -> Self {
        let client_config = json!({"service":
            {"name": service, "namespace": NAMESPACE, "path": "/inject", "port": 443}});
        let webhook = |name: &str| {
            json!({"name": name, "clientConfig": client_config, "sideEffects": "None",
                "admissionReviewVersions": ["v1"]})
        };
        let secret = Object::new(json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": NAMESPACE}}));
        let configuration = Object::new(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": CONFIGURATION},
            "webhooks": [webhook("inject.mooncake.io"), webhook("strip.mooncake.io")]}));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new()
            .merge(routes(SECRETS, SECRET, "SecretList", "v1", &secret))
            .merge(routes(
                CONFIGURATIONS,
                CONFIGURATION,
                "MutatingWebhookConfigurationList",
                "admissionregistration.k8s.io/v1",
                &configuration,
            ));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let uri = format!("http://{address}").parse().unwrap();
        Self {
            client: Client::try_from(Config::new(uri)).unwrap(),
            secret,
            configuration,
        }
    }

    /// The CA bundle of the webhooks, PEM.
    pub(crate) fn bundle(&self) -> Option<String> {
        let configuration = self.configuration.versions.borrow().clone();
        let webhooks = configuration["webhooks"].as_array().unwrap().clone();
        let bundles: Vec<_> = webhooks
            .iter()
            .map(|webhook| webhook["clientConfig"].get("caBundle").cloned())
            .collect();
        assert_eq!(
            bundles[0], bundles[1],
            "the webhooks trust different authorities"
        );
        let bundle: k8s_openapi::ByteString =
            serde_json::from_value(bundles.into_iter().next()??).unwrap();
        Some(String::from_utf8(bundle.0).unwrap())
    }

    /// The authorities in the Secret, PEM, for readers of metrics.
    pub(crate) fn authorities(&self) -> Option<String> {
        text(&self.secret.versions.borrow(), "ca.crt")
    }

    /// What a pod that mounts the Secret serves, and what its clients trust.
    pub(crate) fn mounted(&self) -> Option<Identity> {
        let secret = self.secret.versions.borrow();
        Some(Identity {
            names: Vec::new(),
            authority: text(&secret, "ca.crt")?,
            certificate: text(&secret, "tls.crt")?,
            key: text(&secret, "tls.key")?,
            not_after: Timestamp::UNIX_EPOCH,
        })
    }

    /// Leaves only the identity in the Secret, as release 0.1.0 does.
    pub(crate) fn forget_authorities(&self) {
        self.secret.versions.send_modify(|secret| {
            secret["data"].as_object_mut().unwrap().remove("ca.crt");
            secret["metadata"]["resourceVersion"] = json!("100");
        });
    }

    /// Number of writes to both objects.
    pub(crate) fn writes(&self) -> u64 {
        *self.secret.writes.lock() + *self.configuration.writes.lock()
    }
}

fn text(secret: &Value, key: &str) -> Option<String> {
    let text = secret["data"].get(key)?.clone();
    let text: k8s_openapi::ByteString = serde_json::from_value(text).ok()?;
    String::from_utf8(text.0).ok()
}

#[derive(Clone)]
struct Served {
    object: Object,
    kind: &'static str,
    version: &'static str,
}

fn routes(
    path: &str,
    name: &str,
    kind: &'static str,
    version: &'static str,
    object: &Object,
) -> Router {
    let served = Served {
        object: object.clone(),
        kind,
        version,
    };
    Router::new()
        .route(path, get(list_or_watch))
        .route(&format!("{path}/{name}"), patch(apply))
        .with_state(served)
}

async fn list_or_watch(
    State(served): State<Served>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let Served {
        object,
        kind,
        version,
    } = served;
    if query.get("watch").is_none_or(|watch| watch != "true") {
        let item = object.versions.borrow().clone();
        let list = json!({"kind": kind, "apiVersion": version, "items": [item],
            "metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}});
        return Json(list).into_response();
    }
    // Sends the latest version that the client has not seen; skips intermediate ones.
    let seen = query.get("resourceVersion").cloned().unwrap_or_default();
    let versions = object.versions.subscribe();
    let events = stream::unfold((versions, seen), |(mut versions, seen)| async move {
        let item = versions
            .wait_for(|item| item["metadata"]["resourceVersion"] != json!(seen))
            .await
            .ok()?
            .clone();
        let seen = item["metadata"]["resourceVersion"].as_str()?.to_owned();
        let line = format!("{}\n", json!({"type": "MODIFIED", "object": item}));
        Some((Ok::<_, std::convert::Infallible>(line), (versions, seen)))
    });
    Body::from_stream(events).into_response()
}

async fn apply(State(served): State<Served>, body: Bytes) -> Response {
    let change: Value = serde_json::from_slice(&body).unwrap();
    match served.object.apply(&change) {
        Ok(object) => Json(object).into_response(),
        Err(status) => (StatusCode::CONFLICT, Json(status)).into_response(),
    }
}
