//! A MooncakeCluster that this operator cannot decode: its condition and Event. Its objects stay as they are.

use crds::{MooncakeCluster, MooncakeClusterSpec, MooncakeClusterStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::apply::Error;
use crate::cluster::{Context, status};
use crate::undecodable::{self, decode};

/// Writes the condition and one Event, if the status does not have the condition yet.
///
/// # Errors
/// A read or write failed.
pub async fn report(
    object: &DeserializeGuard<MooncakeCluster>,
    context: &Context,
) -> Result<(), Error> {
    let namespace = object.namespace().unwrap_or_default();
    let api = Api::namespaced(context.client.clone(), &namespace);
    let (writer, events) = (&context.writer, &context.events);
    undecodable::report(&api, object, writer, events, |found, old, now| {
        let (reason, message) = defect(&found.data)?;
        let failed = Failed {
            generation: found.metadata.generation.unwrap_or_default(),
            reason,
            message,
        };
        failed.status(&found.data["status"], old, now)
    })
    .await
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
        undecodable::with_conditions(raw, old, new.conditions, Some(self.generation))
    }
}

#[cfg(test)]
mod tests {
    use crds::condition::find;
    use crds::{ConditionType, condition};
    use serde_json::json;

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
