//! Whether an object that the API server returned still is what was applied.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::quantity::billionths;

/// Sixteen hexadecimal digits that change when the value does.
pub fn fingerprint<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("API objects have text keys, so they serialize");
    let digest = Sha256::digest(text);
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// True if every field of `desired` is in `observed`. What others added is no difference:
/// defaulted fields, and further items in lists of objects. Lists of scalars must be equal.
pub fn covers(observed: &Value, desired: &Value) -> bool {
    match (observed, desired) {
        (Value::Object(observed), Value::Object(desired)) => {
            desired.iter().all(|(key, wanted)| match observed.get(key) {
                Some(found) => covers(found, wanted),
                None => is_empty(wanted),
            })
        }
        (Value::Array(observed), Value::Array(desired)) => {
            if desired.iter().all(Value::is_object) && !desired.is_empty() {
                let mut rest = observed.iter();
                return desired
                    .iter()
                    .all(|wanted| rest.any(|found| covers(found, wanted)));
            }
            observed == desired
        }
        (Value::String(observed), Value::String(desired)) => {
            observed == desired || same_quantity(observed, desired)
        }
        (observed, desired) => observed == desired || (observed.is_null() && is_empty(desired)),
    }
}

/// Serialization leaves such values out, or the API server does.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The API server rewrites quantities: `1000m` comes back as `1`, and `0.5` as `500m`.
fn same_quantity(a: &str, b: &str) -> bool {
    matches!((billionths(a), billionths(b)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_additions_of_others_are_no_difference() {
        let desired = json!({"spec": {"containers": [{"name": "a"}], "x": [], "y": {}}});
        let observed = json!({"spec": {
            "containers": [{"name": "mesh"}, {"name": "a", "tty": false}], "dnsPolicy": "ClusterFirst",
        }});
        assert!(covers(&observed, &desired));
    }

    #[test]
    fn a_changed_missing_or_added_scalar_is_a_difference() {
        let desired = json!({"args": ["--a", "--b"], "n": 1});
        assert!(!covers(&json!({"args": ["--a", "--b"], "n": 2}), &desired));
        assert!(!covers(&json!({"args": ["--a"], "n": 1}), &desired));
        assert!(!covers(
            &json!({"args": ["--a", "--b", "--c"], "n": 1}),
            &desired
        ));
        assert!(!covers(&json!({"n": 1}), &desired));
    }

    #[test]
    fn quantities_are_compared_by_amount() {
        let limits = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        assert!(covers(&limits("1", "1Gi"), &limits("1000m", "1024Mi")));
        assert!(covers(&limits("500m", "2G"), &limits("0.5", "2e9")));
        assert!(!covers(&limits("1", "1Gi"), &limits("1", "1G")));
        assert!(!covers(&limits("500m", "1"), &limits("0.05", "1")));
    }

    #[test]
    fn a_fingerprint_is_stable_and_differs_between_values() {
        assert_eq!(fingerprint(&json!({"a": 1})), fingerprint(&json!({"a": 1})));
        assert_ne!(fingerprint(&json!({"a": 1})), fingerprint(&json!({"a": 2})));
        assert_eq!(fingerprint(&json!({"a": 1})).len(), 16);
    }
}
