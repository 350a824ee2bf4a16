//! A MooncakeCluster that this operator cannot decode: its condition and Event. Its objects stay as they are.

use crds::{MooncakeCluster, MooncakeClusterSpec, MooncakeClusterStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::DynamicObject;
use kube::core::DeserializeGuard;
use kube::discovery::ApiResource;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::apply::{self, Error};
use crate::cluster::{Context, status};
use crate::undecodable::{conditions, decode};

/// Writes the condition and one Event, if the status does not have the condition yet.
///
/// # Errors
/// A read or write failed.
pub async fn report(
    object: &DeserializeGuard<MooncakeCluster>,
    context: &Context,
) -> Result<(), Error> {
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    // The cache does not keep what it cannot decode.
    let kind = ApiResource::erase::<MooncakeCluster>(&());
    let raw = Api::<DynamicObject>::namespaced_with(context.client.clone(), &namespace, &kind);
    let label = format!("{} {namespace}/{name}", kind.kind);
    let Some(found) = apply::read(&label, raw.get_opt(&name)).await? else {
        return Ok(());
    };
    let Some((reason, message)) = defect(&found.data) else {
        return Ok(());
    };
    let generation = found.metadata.generation.unwrap_or_default();
    let old = conditions(&found.data);
    let failed = Failed {
        generation,
        reason,
        message,
    };
    let Some((status, new)) = failed.status(&found.data["status"], &old, Timestamp::now()) else {
        return Ok(());
    };
    let api =
        Api::<DeserializeGuard<MooncakeCluster>>::namespaced(context.client.clone(), &namespace);
    let body = json!({
        "apiVersion": MooncakeCluster::api_version(&()),
        "kind": MooncakeCluster::kind(&()),
        "metadata": { "name": name, "uid": found.metadata.uid },
        "status": status,
    });
    context.writer.apply_status(&api, &name, &body).await?;
    let about = object.object_ref(&());
    context
        .events
        .transitions(&context.writer, about, &old, &new)
        .await;
    Ok(())
}

/// Why the object cannot be decoded, with the path of the field; `None` if it can.
fn defect(object: &Value) -> Option<(Reason, String)> {
    let rest = "the objects of the cluster are left as they are";
    if let Err(error) = decode::<MooncakeClusterSpec>(object, "spec") {
        let message = format!("cannot read {error}; {rest}");
        return Some((Reason::InvalidSpec, message));
    }
    // The status is the operator's own: it was written by another release.
    object.get("status")?;
    let error = decode::<MooncakeClusterStatus>(object, "status").err()?;
    Some((Reason::ReleaseSkew, format!("cannot read {error}; {rest}")))
}

/// What the conditions report.
struct Failed {
    generation: i64,
    reason: Reason,
    message: String,
}

impl Failed {
    /// The status to write, of which only conditions and generation change, and its conditions; `None` if they are
    /// there already.
    fn status(
        &self,
        raw: &Value,
        old: &[Condition],
        now: Timestamp,
    ) -> Option<(Value, Vec<Condition>)> {
        let before = MooncakeClusterStatus {
            conditions: old.to_vec(),
            ..MooncakeClusterStatus::default()
        };
        let new = status::failed(
            &before,
            self.generation,
            self.reason,
            &self.message,
            true,
            now,
        );
        if new.conditions == old && raw["observedGeneration"] == self.generation {
            return None;
        }
        let mut written = raw.as_object().cloned().unwrap_or_default();
        written.insert("conditions".to_owned(), json!(new.conditions));
        written.insert("observedGeneration".to_owned(), json!(self.generation));
        Some((Value::Object(written), new.conditions))
    }
}

#[cfg(test)]
mod tests {
    use crds::condition::find;
    use crds::{ConditionType, condition};

    use super::*;

    fn object(spec: Value, status: Value) -> Value {
        json!({ "spec": spec, "status": status })
    }

    #[test]
    fn the_message_names_the_field_and_the_error() {
        let spec = json!({"pools": [{"name": "a"}, {"name": "b", "numaPolicy": "Sideways"}]});
        let (reason, message) = defect(&object(spec, json!({}))).unwrap();
        assert_eq!(reason, Reason::InvalidSpec);
        assert!(
            message.starts_with("cannot read spec.pools[1].numaPolicy: unknown variant `Sideways`"),
            "{message}"
        );
        let (reason, message) = defect(&object(json!({}), json!({"nodes": 7}))).unwrap();
        assert_eq!(reason, Reason::ReleaseSkew);
        assert!(
            message.starts_with("cannot read status.nodes: "),
            "{message}"
        );
        assert_eq!(defect(&json!({"spec": {}})), None);
    }

    #[test]
    fn the_rest_of_the_status_is_kept_and_nothing_is_written_twice() {
        let failed = Failed {
            generation: 3,
            reason: Reason::InvalidSpec,
            message: "cannot read spec.a".to_owned(),
        };
        let raw = json!({"nodes": "2/2", "unknown": {"a": 1}, "observedGeneration": 2});
        let now = Timestamp::UNIX_EPOCH;
        let (status, new) = failed.status(&raw, &[], now).unwrap();
        assert_eq!(
            (&status["nodes"], &status["unknown"]),
            (&raw["nodes"], &raw["unknown"])
        );
        assert!(condition::is_true(&new, ConditionType::Stalled));
        assert_eq!(find(&new, ConditionType::Ready).unwrap().status, "False");
        let later = Timestamp::from_second(60).unwrap();
        assert_eq!(failed.status(&status, &new, later), None);
    }
}
