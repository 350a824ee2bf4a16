//! Objects that a user wrote and that this operator cannot decode: why, and their status.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::DynamicObject;
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::apply::{Error, Writer, read};
use crate::event::Events;
use crate::untyped;

/// Longest error with the list of the allowed words, in bytes.
const LONGEST: usize = 300;

/// Returns the field of `part` (`spec` or `status`) that is no `T`, and the error.
///
/// # Errors
/// `spec.pools[0].numaPolicy: unknown variant ...`
pub(crate) fn decode<T: DeserializeOwned>(object: &Value, part: &str) -> Result<T, String> {
    serde_path_to_error::deserialize(&object[part]).map_err(|error| {
        let mut words = error.inner().to_string();
        if words.len() > LONGEST
            && let Some(start) = words.find(", expected one of")
        {
            words.truncate(start);
        }
        format!("{part}.{}: {words}", error.path())
    })
}

/// Writes the status of an object that cannot be decoded, and one Event for each new condition. `status` computes the status
/// and its conditions from the object and its present conditions; `None`: there is nothing to write.
///
/// # Errors
/// A read or write failed.
pub(crate) async fn report<K>(
    api: &Api<DeserializeGuard<K>>,
    object: &DeserializeGuard<K>,
    writer: &Writer,
    events: &Events,
    status: impl FnOnce(&DynamicObject, &[Condition], Timestamp) -> Option<(Value, Vec<Condition>)>,
) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (name, namespace) = (object.name_any(), object.namespace());
    // The cache does not keep what it cannot decode.
    let raw = untyped::api::<K>(api.clone().into_client(), &(), namespace.as_deref());
    let kind = K::kind(&());
    let label = match &namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    };
    let Some(found) = read(&label, raw.get_opt(&name)).await? else {
        return Ok(());
    };
    let old = conditions(&found.data);
    let Some((status, new)) = status(&found, &old, Timestamp::now()) else {
        return Ok(());
    };
    writer.apply_status(api, &found.metadata, &status).await?;
    let about = object.object_ref(&());
    events.transitions(writer, about, &old, &new).await;
    Ok(())
}

/// Returns the raw status with these conditions and this generation; its other fields stay. `None` if it has them.
pub(crate) fn with_conditions(
    raw: &Value,
    old: &[Condition],
    new: Vec<Condition>,
    generation: Option<i64>,
) -> Option<(Value, Vec<Condition>)> {
    let generation = json!(generation);
    if new == old && raw["observedGeneration"] == generation {
        return None;
    }
    let mut status = raw.as_object().cloned().unwrap_or_default();
    status.insert("conditions".to_owned(), json!(new));
    status.insert("observedGeneration".to_owned(), generation);
    Some((Value::Object(status), new))
}

/// The conditions of an object's status, empty if they cannot be read.
fn conditions(object: &Value) -> Vec<Condition> {
    let conditions = object["status"].get("conditions").cloned();
    conditions
        .and_then(|conditions| serde_json::from_value(conditions).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crds::{MooncakeNodePolicySpec, MooncakeNodePolicyStatus};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_error_names_the_field_and_leaves_out_a_long_list_of_words() {
        let object = json!({
            "spec": {"checks": [{"id": "MapCount", "action": "Warn"}, {"id": "Later", "action": "Warn"}]},
            "status": {"holds": "two"},
        });
        let error = decode::<MooncakeNodePolicySpec>(&object, "spec").unwrap_err();
        assert_eq!(error, "spec.checks[1].id: unknown variant `Later`");
        let error = decode::<MooncakeNodePolicyStatus>(&object, "status").unwrap_err();
        assert!(
            error.starts_with("status.holds: invalid type: string \"two\", expected u32"),
            "{error}"
        );
    }
}
