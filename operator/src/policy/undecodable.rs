//! MooncakeNodePolicies that this operator cannot decode: their condition and Event. Their nodes keep the last rules,
//! and no node is cordoned or uncordoned.

use std::collections::{BTreeMap, BTreeSet};

use crds::condition::{find, merge};
use crds::{
    ConditionStatus, ConditionType, MooncakeNodePolicy, MooncakeNodePolicySpec,
    MooncakeNodePolicyStatus, NewCondition, Reason,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::Context;
use crate::apply::Error;
use crate::cache::Caches;
use crate::undecodable::{self, decode};

/// Names of the policies that cannot be decoded.
pub(super) fn names(caches: &Caches) -> BTreeSet<String> {
    let policies = caches.node_policies.state();
    let undecodable = policies.iter().filter(|policy| policy.0.is_err());
    undecodable.map(|policy| policy.name_any()).collect()
}

/// The nodes on which the last rules of such a policy apply, and its name.
pub(super) fn kept(caches: &Caches) -> BTreeMap<String, String> {
    let undecodable = names(caches);
    if undecodable.is_empty() {
        return BTreeMap::new();
    }
    let mooncake_nodes = caches.mooncake_nodes.state();
    let kept = mooncake_nodes.iter().filter_map(|node| {
        let node = node.0.as_ref().ok()?;
        let policy = &node.spec.policy.as_ref()?.name;
        let kept = undecodable.contains(policy);
        kept.then(|| (node.name_any(), policy.clone()))
    });
    kept.collect()
}

/// The resource version at which each such policy was reported, by name.
#[derive(Debug, Default)]
pub(super) struct Reported(BTreeMap<String, Option<String>>);

impl Reported {
    /// Writes the condition and one Event of each such policy that changed since, if its status does not have the
    /// condition yet.
    ///
    /// # Errors
    /// The last read or write that failed; the other policies are reported nevertheless.
    pub(super) async fn update(&mut self, context: &Context) -> Result<(), Error> {
        let mut result = Ok(());
        let mut reported = BTreeMap::new();
        for policy in context.caches.node_policies.state() {
            let Err(invalid) = &policy.0 else { continue };
            let (name, version) = (policy.name_any(), policy.resource_version());
            if self.0.get(&name) != Some(&version) {
                let metrics = &context.metrics;
                metrics.count_undecodable(&MooncakeNodePolicy::kind(&()));
                tracing::warn!(policy = %name, error = %invalid.error,
                    "cannot decode MooncakeNodePolicy; its nodes keep its last rules");
                if let Err(error) = report(&policy, context).await {
                    result = Err(error);
                    continue;
                }
            }
            reported.insert(name, version);
        }
        self.0 = reported;
        result
    }
}

async fn report(
    policy: &DeserializeGuard<MooncakeNodePolicy>,
    context: &Context,
) -> Result<(), Error> {
    let api = Api::all(context.client.clone());
    let (writer, events) = (&context.writer, &context.events);
    undecodable::report(&api, policy, writer, events, |found, old, now| {
        status(&found.data, old, found.metadata.generation, now)
    })
    .await
}

/// The status to write and its conditions; `None` if they are there already, or if the object can be decoded.
fn status(
    object: &Value,
    old: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Option<(Value, Vec<Condition>)> {
    let Err(error) = decode::<MooncakeNodePolicySpec>(object, "spec") else {
        // The status is the operator's own and was written by another release: it is written again.
        object.get("status")?;
        decode::<MooncakeNodePolicyStatus>(object, "status").err()?;
        return Some((json!(MooncakeNodePolicyStatus::default()), old.to_vec()));
    };
    let reason = Reason::InvalidSpec;
    let mut findings = vec![NewCondition::new(
        ConditionType::Accepted,
        false,
        reason,
        format!("cannot read {error}; its nodes keep the last rules"),
    )];
    if find(old, ConditionType::UnhealthyNodesCordoned).is_some() {
        findings.push(NewCondition::new(
            ConditionType::UnhealthyNodesCordoned,
            ConditionStatus::Unknown,
            reason,
            "no node is cordoned or uncordoned while the spec cannot be read",
        ));
    }
    let new = merge(old, &findings, generation, now);
    undecodable::with_conditions(&object["status"], old, new, generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_rest_of_the_status_is_kept_and_nothing_is_written_twice() {
        let cordoned = NewCondition::new(
            ConditionType::UnhealthyNodesCordoned,
            true,
            Reason::AsExpected,
            "0 of at most 1 nodes are cordoned",
        );
        let old = merge(&[], &[cordoned], Some(1), at(0));
        let object = json!({
            "spec": {"fixes": [{"id": "RebootTheNode", "mode": "Apply"}]},
            "status": {"selected": 3, "holds": 2, "observedGeneration": 1, "conditions": old},
        });
        let (written, new) = status(&object, &old, Some(2), at(1)).unwrap();
        assert_eq!(
            (&written["selected"], &written["holds"]),
            (&json!(3), &json!(2))
        );
        let accepted = find(&new, ConditionType::Accepted).unwrap();
        assert_eq!(
            (accepted.status.as_str(), accepted.reason.as_str()),
            ("False", "InvalidSpec")
        );
        assert!(
            accepted
                .message
                .starts_with("cannot read spec.fixes[0].id: unknown variant `RebootTheNode`"),
            "{}",
            accepted.message
        );
        let cordons = find(&new, ConditionType::UnhealthyNodesCordoned).unwrap();
        assert_eq!(cordons.status, "Unknown");
        let object = json!({"spec": object["spec"], "status": written});
        assert_eq!(status(&object, &new, Some(2), at(9)), None);
    }

    #[test]
    fn a_status_of_another_release_is_replaced() {
        let object = json!({"spec": {}, "status": {"holds": "two"}});
        let (written, _) = status(&object, &[], Some(1), at(0)).unwrap();
        assert_eq!(written["holds"], 0);
        assert_eq!(
            status(&json!({"spec": {}, "status": written}), &[], Some(1), at(0)),
            None
        );
    }
}
