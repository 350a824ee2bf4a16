//! Why an object that a user wrote cannot be decoded, from the object as the API server stores it. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::de::DeserializeOwned;
use serde_json::Value;

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

/// The conditions of an object's status, empty if they cannot be read.
pub(crate) fn conditions(object: &Value) -> Vec<Condition> {
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
