//! What of an object goes into the bundle: listed fields only, so that no environment, argument, volume or annotation of a
//! user is in it. Pure.

use serde_json::{Map, Value, json};

/// Annotations with another prefix keep their name without the value.
const OWN: &str = "mooncake.io/";
const LEFT_OUT: &str = "(left out)";

/// The fields of these names that the object has.
fn pick(object: &Value, names: &[&str]) -> Value {
    let fields = names.iter().filter_map(|name| {
        let field = object.get(*name).filter(|field| !field.is_null())?;
        Some(((*name).to_owned(), field.clone()))
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Keeps these fields of each entry of a list.
fn pick_each(list: &Value, names: &[&str]) -> Value {
    let entries = list.as_array().into_iter().flatten();
    entries.map(|entry| pick(entry, names)).collect()
}

fn metadata(object: &Value) -> Value {
    let meta = &object["metadata"];
    let names = [
        "name",
        "namespace",
        "uid",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "ownerReferences",
        "labels",
        "annotations",
    ];
    let mut kept = pick(meta, &names);
    hide_annotations(&mut kept);
    kept
}

/// Hides the values of annotations of others, at any depth: pod templates have them too.
fn hide_annotations(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                match field {
                    Value::Object(annotations) if name == "annotations" => annotations
                        .iter_mut()
                        .filter(|(name, _)| !name.starts_with(OWN))
                        .for_each(|(_, value)| *value = json!(LEFT_OUT)),
                    field => hide_annotations(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide_annotations),
        _ => {}
    }
}

/// An object of a Mooncake kind.
pub(super) fn mooncake(object: &Value) -> Value {
    let mut kept = pick(object, &["apiVersion", "kind", "spec", "status"]);
    hide_annotations(&mut kept);
    kept["metadata"] = metadata(object);
    kept
}

/// A pod of the operator, an agent, a master or a pool.
pub(super) fn own_pod(pod: &Value) -> Value {
    let spec = &pod["spec"];
    let containers = ["name", "image", "resources"];
    let mut kept = pick(
        spec,
        &[
            "nodeName",
            "hostNetwork",
            "hostPID",
            "priorityClassName",
            "nodeSelector",
            "tolerations",
        ],
    );
    kept["containers"] = pick_each(&spec["containers"], &containers);
    json!({ "metadata": metadata(pod), "spec": kept, "status": pod["status"] })
}

/// A pod of a user: what the webhook added to its metadata, and its state without messages of its containers.
pub(super) fn user_pod(pod: &Value) -> Value {
    let status = &pod["status"];
    let mut kept = pick(status, &["phase", "reason"]);
    kept["conditions"] = pick_each(
        &status["conditions"],
        &["type", "status", "reason", "message", "lastTransitionTime"],
    );
    let names = ["name", "image", "ready", "restartCount"];
    for list in ["initContainerStatuses", "containerStatuses"] {
        kept[list] = pick_each(&status[list], &names);
        let containers = status[list].as_array().into_iter().flatten();
        for (index, container) in containers.enumerate() {
            let state = &container["state"];
            kept[list][index]["waiting"] = state["waiting"]["reason"].clone();
            let ended = pick(&state["terminated"], &["reason", "exitCode", "signal"]);
            kept[list][index]["terminated"] = ended;
        }
    }
    let mut meta = metadata(pod);
    for field in ["labels", "annotations"] {
        if let Some(fields) = meta[field].as_object_mut() {
            fields.retain(|name, _| name.starts_with(OWN));
        }
    }
    json!({ "metadata": meta, "spec": pick(&pod["spec"], &["nodeName", "hostNetwork"]), "status": kept })
}

/// A Deployment or DaemonSet of the chart.
pub(super) fn workload(object: &Value) -> Value {
    let template = &object["spec"]["template"]["spec"];
    let mut spec = pick(&object["spec"], &["replicas", "updateStrategy"]);
    spec["containers"] = pick_each(&template["containers"], &["name", "image", "resources"]);
    spec["nodeSelector"] = template["nodeSelector"].clone();
    json!({ "metadata": metadata(object), "spec": spec, "status": object["status"] })
}

/// A webhook configuration.
pub(super) fn webhook(object: &Value) -> Value {
    let names = [
        "name",
        "rules",
        "namespaceSelector",
        "objectSelector",
        "failurePolicy",
        "timeoutSeconds",
    ];
    json!({ "metadata": metadata(object), "webhooks": pick_each(&object["webhooks"], &names) })
}

/// An Event.
pub(super) fn event(event: &Value) -> Value {
    let mut kept = pick(
        event,
        &[
            "type",
            "reason",
            "message",
            "action",
            "count",
            "firstTimestamp",
            "lastTimestamp",
            "eventTime",
            "reportingComponent",
            "source",
        ],
    );
    kept["involvedObject"] = pick(
        &event["involvedObject"],
        &["kind", "namespace", "name", "uid", "fieldPath"],
    );
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_environment_argument_volume_or_foreign_annotation_is_kept() {
        let pod = json!({
            "metadata": {
                "name": "p", "labels": {"team": "HIDDEN", "mooncake.io/inject": "kv"},
                "annotations": {"note": "HIDDEN", "mooncake.io/injected": "yes"},
                "managedFields": [{"manager": "HIDDEN"}],
            },
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "HIDDEN"}], "args": ["HIDDEN"]}],
                "volumes": [{"name": "HIDDEN"}],
            },
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "c", "state": {"terminated": {"reason": "Error", "exitCode": 1, "message": "HIDDEN"}},
            }]},
        });
        let kept = user_pod(&pod).to_string();
        assert!(!kept.contains("HIDDEN"), "{kept}");
        for words in [
            "\"mooncake.io/injected\":\"yes\"",
            "\"exitCode\":1",
            "\"nodeName\":\"n1\"",
        ] {
            assert!(kept.contains(words), "no {words}: {kept}");
        }
        let kept = own_pod(&pod);
        assert_eq!(
            kept["spec"]["containers"],
            json!([{"name": "c", "image": "i"}])
        );
        assert_eq!(kept["metadata"]["annotations"]["note"], LEFT_OUT);
    }

    #[test]
    fn annotations_of_a_pod_template_are_hidden() {
        let cluster = json!({
            "metadata": {"name": "kv", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "HIDDEN"}},
            "spec": {"pools": [{"podTemplate": {"annotations": {"vault": "HIDDEN"}, "labels": {"a": "b"}}}]},
        });
        let kept = mooncake(&cluster);
        assert!(!kept.to_string().contains("HIDDEN"), "{kept}");
        assert_eq!(kept["spec"]["pools"][0]["podTemplate"]["labels"]["a"], "b");
    }
}
