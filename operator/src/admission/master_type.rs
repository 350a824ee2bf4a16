//! The type of the master of a MooncakeCluster that does not state one: a new object gets the built-in master, a stored one
//! keeps what it has. A default in the schema would also change objects that are stored without a type, and every key
//! would be lost. Pure.

use crds::cluster::MasterType;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Value, json};

/// Adds the type to `object`, and returns the operation that does the same. `stored` is the object before an update; none for a
/// new object.
pub(super) fn set(stored: Option<&Value>, object: &mut Value) -> Option<PatchOperation> {
    let spec = object.get_mut("spec")?.as_object_mut()?;
    let master = match spec.get_mut("master").filter(|master| !master.is_null()) {
        Some(master) => Some(master.as_object_mut()?),
        None => None,
    };
    let has = |field| {
        let value = master.as_ref().and_then(|master| master.get(field));
        value.is_some_and(|value| !value.is_null())
    };
    if has("type") {
        return None;
    }
    let kind = match stored {
        Some(stored) => stored.pointer("/spec/master/type")?.clone(),
        // It is the image of a stock master.
        None if has("image") => return None,
        None => json!(MasterType::BuiltIn),
    };
    let (path, value) = if let Some(master) = master {
        master.insert("type".to_owned(), kind.clone());
        (["spec", "master", "type"].as_slice(), kind)
    } else {
        let master = json!({ "type": kind });
        spec.insert("master".to_owned(), master.clone());
        (["spec", "master"].as_slice(), master)
    };
    Some(PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(path.iter().copied()),
        value,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The object as it is after the webhook.
    fn defaulted(stored: Option<&Value>, spec: Value) -> Value {
        let mut object = json!({ "spec": spec });
        let mut patched = object.clone();
        if let Some(operation) = set(stored, &mut object) {
            json_patch::patch(&mut patched, &[operation]).unwrap();
        }
        assert_eq!(patched, object);
        object["spec"]["master"].clone()
    }

    #[test]
    fn a_new_cluster_gets_the_built_in_master_unless_it_states_a_type_or_an_image_of_a_stock_one() {
        let built_in = json!({"type": "BuiltIn"});
        assert_eq!(defaulted(None, json!({})), built_in);
        assert_eq!(defaulted(None, json!({"master": null})), built_in);
        assert_eq!(defaulted(None, json!({"master": {}})), built_in);
        let two = json!({"type": "BuiltIn", "replicas": 2});
        assert_eq!(defaulted(None, json!({"master": {"replicas": 2}})), two);
        for stated in [
            json!({"type": "Stock"}),
            json!({"type": "BuiltIn"}),
            json!({"image": "registry.example/mooncake:0.3.13"}),
            // The CRD's schema rejects this one.
            json!("Stock"),
        ] {
            assert_eq!(defaulted(None, json!({"master": stated})), stated);
        }
    }

    #[test]
    fn an_update_keeps_the_type_of_the_stored_object() {
        let stored = |master: Value| json!({"spec": {"master": master}});
        for kind in ["Stock", "BuiltIn"] {
            let stored = stored(json!({"type": kind}));
            let kept = json!({"type": kind});
            assert_eq!(defaulted(Some(&stored), json!({})), kept);
            assert_eq!(defaulted(Some(&stored), json!({"master": {}})), kept);
            let other = json!({"type": "Stock", "version": "0.3.13"});
            assert_eq!(defaulted(Some(&stored), json!({"master": other})), other);
        }
        // Stored without a type, it has a stock master.
        for stored in [stored(json!({})), stored(Value::Null), json!({"spec": {}})] {
            assert_eq!(defaulted(Some(&stored), json!({})), Value::Null);
            assert_eq!(defaulted(Some(&stored), json!({"master": {}})), json!({}));
        }
    }
}
