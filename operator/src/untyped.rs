//! Objects without their type, as the API server sends them. Requests, watches and their decoders are compiled once for them,
//! and not for each of twenty kinds: that was a third of the code of this crate.

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The objects of a kind in one namespace, or in all.
pub fn api<K: Resource>(
    client: Client,
    kind: &K::DynamicType,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<K>(kind);
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &kind),
        None => Api::all_with(client, &kind),
    }
}

/// Gives an object its type.
///
/// # Errors
/// A field has another type than in `K`.
pub fn decode<K: DeserializeOwned>(object: DynamicObject) -> serde_json::Result<K> {
    serde_json::from_value(value(object)?)
}

/// Why an event of a watch is missing. The watch goes on.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error(transparent)]
    Watch(#[from] watcher::Error),
    #[error("{object} cannot be decoded: {source}")]
    Undecodable {
        object: String,
        source: serde_json::Error,
    },
}

/// Watches objects, with pauses between attempts that fail. An object that cannot be decoded is an error and no event.
pub fn watch<K>(
    api: Api<DynamicObject>,
    config: watcher::Config,
) -> BoxStream<'static, Result<Event<K>, WatchError>>
where
    K: DeserializeOwned + Send + 'static,
{
    events(api, config).map(|event| typed(event?)).boxed()
}

fn events(
    api: Api<DynamicObject>,
    config: watcher::Config,
) -> BoxStream<'static, watcher::Result<Event<DynamicObject>>> {
    watcher::watcher(api, config).default_backoff().boxed()
}

fn typed<K: DeserializeOwned>(event: Event<DynamicObject>) -> Result<Event<K>, WatchError> {
    let decode = |object: DynamicObject| {
        let name = format!(
            "{}/{}",
            object.namespace().unwrap_or_default(),
            object.name_any()
        );
        decode(object).map_err(|source| WatchError::Undecodable {
            object: name,
            source,
        })
    };
    Ok(match event {
        Event::Apply(object) => Event::Apply(decode(object)?),
        Event::Delete(object) => Event::Delete(decode(object)?),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(decode(object)?),
        Event::InitDone => Event::InitDone,
    })
}

/// Takes the type from an object.
///
/// # Errors
/// It cannot be serialised.
pub fn encode<K: Serialize>(object: &K) -> serde_json::Result<DynamicObject> {
    serde_json::from_value(serde_json::to_value(object)?)
}

fn value(object: DynamicObject) -> serde_json::Result<Value> {
    let DynamicObject {
        types,
        metadata,
        data,
    } = object;
    // Moved, not copied: most of the object.
    let Value::Object(mut fields) = data else {
        return serde_json::to_value(DynamicObject {
            types,
            metadata,
            data,
        });
    };
    if let Some(types) = types {
        fields.insert("apiVersion".to_owned(), types.api_version.into());
        fields.insert("kind".to_owned(), types.kind.into());
    }
    fields.insert("metadata".to_owned(), serde_json::to_value(metadata)?);
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_decoded_object_is_the_one_that_was_sent() {
        let sent = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "b", "labels": {"c": "d"}, "resourceVersion": "7"},
            "spec": {"nodeName": "n", "containers": [{"name": "e", "image": "f"}]},
            "status": {"phase": "Running"},
        });
        let untyped: DynamicObject = serde_json::from_value(sent.clone()).unwrap();
        let pod: Pod = decode(untyped).unwrap();
        assert_eq!(serde_json::to_value(pod).unwrap(), sent);
    }

    #[test]
    fn an_object_of_another_kind_is_refused() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}});
        let untyped: DynamicObject = serde_json::from_value(service).unwrap();
        assert!(decode::<Pod>(untyped).is_err());
    }
}
