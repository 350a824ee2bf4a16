//! Type and number of the masters of a MooncakeCluster that does not state them: a new object gets two built-in masters, a stored
//! one keeps what it has. Defaults in the schema would also change objects that are stored without a type, and every key
//! would be lost. Pure.

use crds::cluster::MasterType;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Map, Value, json};

/// Built-in masters of a new object: one serves, the other one takes over with all keys.
const REPLICAS: u32 = 2;

/// Adds what is missing to `object`, and returns the operation that does the same. `stored` is the object before an update; none
/// for a new object.
pub(super) fn set(stored: Option<&Value>, object: &mut Value) -> Option<PatchOperation> {
    let spec = object.get_mut("spec")?.as_object_mut()?;
    let stated = match spec.get("master").filter(|master| !master.is_null()) {
        Some(master) => master.as_object()?.clone(),
        None => Map::new(),
    };
    let kept = |field| {
        let kept = stored?.pointer("/spec/master")?.get(field)?;
        (!kept.is_null()).then(|| kept.clone())
    };
    let mut master = stated.clone();
    if is_absent(&master, "type") {
        let kind = match stored {
            Some(_) => kept("type"),
            // It is the image of a stock master.
            None if !is_absent(&master, "image") => None,
            None => Some(json!(MasterType::BuiltIn)),
        };
        master.extend(kind.map(|kind| ("type".to_owned(), kind)));
    }
    // A stock master has one replica.
    if is_absent(&master, "replicas") && master.get("type") == Some(&json!(MasterType::BuiltIn)) {
        let replicas = match stored {
            Some(_) => kept("replicas"),
            None => Some(json!(REPLICAS)),
        };
        master.extend(replicas.map(|replicas| ("replicas".to_owned(), replicas)));
    }
    if master == stated {
        return None;
    }
    spec.insert("master".to_owned(), Value::Object(master.clone()));
    Some(PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(["spec", "master"]),
        value: Value::Object(master),
    }))
}

fn is_absent(master: &Map<String, Value>, field: &str) -> bool {
    master.get(field).is_none_or(Value::is_null)
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
    fn a_new_cluster_gets_two_built_in_masters_unless_it_states_another_number_or_a_stock_one() {
        let two = json!({"type": "BuiltIn", "replicas": 2});
        assert_eq!(defaulted(None, json!({})), two);
        for stated in [
            Value::Null,
            json!({}),
            json!({"type": null, "replicas": null}),
            json!({"type": "BuiltIn"}),
            json!({"replicas": 2}),
        ] {
            assert_eq!(defaulted(None, json!({"master": stated})), two, "{stated}");
        }
        let one = json!({"type": "BuiltIn", "replicas": 1});
        assert_eq!(defaulted(None, json!({"master": {"replicas": 1}})), one);
        let lease = json!({"type": "BuiltIn", "replicas": 2, "leaseSeconds": 5});
        assert_eq!(
            defaulted(None, json!({"master": {"leaseSeconds": 5}})),
            lease
        );
        for stated in [
            one,
            json!({"type": "Stock"}),
            json!({"image": "registry.example/mooncake:0.3.13"}),
            // The CRD's schema rejects these.
            json!({"type": "Other"}),
            json!("Stock"),
        ] {
            assert_eq!(defaulted(None, json!({"master": stated})), stated);
        }
    }

    #[test]
    fn an_update_keeps_type_and_number_of_the_stored_object() {
        let stored = |master: Value| json!({"spec": {"master": master}});
        for kept in [
            json!({"type": "Stock"}),
            // Of an operator that did not set the number.
            json!({"type": "BuiltIn"}),
            json!({"type": "BuiltIn", "replicas": 1}),
            json!({"type": "BuiltIn", "replicas": 2}),
        ] {
            let stored = stored(kept.clone());
            assert_eq!(defaulted(Some(&stored), json!({})), kept);
            assert_eq!(defaulted(Some(&stored), json!({"master": {}})), kept);
            let type_only = json!({"type": kept["type"]});
            assert_eq!(defaulted(Some(&stored), json!({"master": type_only})), kept);
            let other = json!({"type": "Stock", "version": "0.3.13"});
            assert_eq!(defaulted(Some(&stored), json!({"master": other})), other);
        }
        // Stored without a type, it has a stock master.
        for stored in [stored(json!({})), stored(Value::Null), json!({"spec": {}})] {
            assert_eq!(defaulted(Some(&stored), json!({})), Value::Null);
            assert_eq!(defaulted(Some(&stored), json!({"master": {}})), json!({}));
            let built_in = json!({"type": "BuiltIn"});
            assert_eq!(
                defaulted(Some(&stored), json!({"master": built_in})),
                built_in
            );
        }
    }
}
