//! The file with the quotas of tenants, which the built-in master reads (docs/master.md#tenants-and-quotas): written from the
//! MooncakeCluster whenever it changes.

use std::path::PathBuf;

use anyhow::Context;
use crds::MooncakeCluster;
use crds::cluster::Tenant;
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use crate::file;

/// Writes the file until it is dropped. While the API server is unavailable, or the MooncakeCluster cannot be read, the last quotas
/// stay.
///
/// # Errors
/// The file cannot be written.
pub(crate) async fn follow(
    client: Client,
    namespace: &str,
    cluster: &str,
    path: PathBuf,
) -> anyhow::Result<()> {
    // Without its type: a later release may have fields that this one cannot read.
    let kind = ApiResource::erase::<MooncakeCluster>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
    let mut events = watch_object(api, cluster).default_backoff().boxed();
    let mut written = None;
    let mut failure = None;
    while let Some(event) = events.next().await {
        let text = match event {
            // The MooncakeCluster is deleted, and this pod soon after.
            Ok(None) => continue,
            Ok(Some(object)) => text(&object.data),
            Err(error) => Err(error.to_string()),
        };
        match text {
            Ok(text) => {
                failure = None;
                if written.as_ref() != Some(&text) {
                    file::replace(&path, &text)
                        .with_context(|| format!("cannot write {}", path.display()))?;
                    tracing::info!("quotas of tenants written");
                    written = Some(text);
                }
            }
            Err(error) if failure.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::warn!(
                    cluster,
                    namespace,
                    error,
                    "cannot read the quotas of tenants; the last ones stay"
                );
                failure = Some(error);
            }
        }
    }
    Ok(())
}

/// Returns the text of the file: JSON, which is YAML too.
fn text(object: &Value) -> Result<String, String> {
    let tenants = object.pointer("/spec/master/tenants");
    let tenants: Vec<Tenant> = match tenants {
        None | Some(Value::Null) => Vec::new(),
        Some(tenants) => {
            serde_json::from_value(tenants.clone()).map_err(|error| error.to_string())?
        }
    };
    let tenants: Vec<Value> = tenants
        .into_iter()
        .map(|tenant| json!({"name": tenant.name, "quota": tenant.quota.0}))
        .collect();
    let document = Map::from_iter([
        ("version".to_owned(), json!(1)),
        ("tenants".to_owned(), tenants.into()),
    ]);
    Ok(Value::Object(document).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_bytes_of_each_tenant() {
        let object = json!({"spec": {"master": {"tenants": [
            {"name": "a", "quota": "2Gi"}, {"name": "b", "quota": 1_048_576},
        ]}}});
        let written: Value = serde_json::from_str(&text(&object).unwrap()).unwrap();
        let tenants =
            json!([{"name": "a", "quota": 2_147_483_648_u64}, {"name": "b", "quota": 1_048_576}]);
        assert_eq!(written, json!({"version": 1, "tenants": tenants}));
    }

    #[test]
    fn the_last_tenant_may_be_removed_before_the_master_restarts() {
        for object in [json!({}), json!({"spec": {"master": {"tenants": null}}})] {
            assert_eq!(text(&object).unwrap(), r#"{"tenants":[],"version":1}"#);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_no_empty_list() {
        for tenants in [
            json!("a"),
            json!([{"name": "a"}]),
            json!([{"name": "a", "quota": "much"}]),
        ] {
            let object = json!({"spec": {"master": {"tenants": tenants}}});
            assert!(text(&object).is_err(), "{object}");
        }
    }
}
