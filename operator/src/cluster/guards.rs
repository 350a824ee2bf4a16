//! Creates a guard on each node with pool pods, and deletes it when none is left: then `kubectl drain` goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};

use crate::apply::{Error, Writer};
use crate::cluster::desired::guard;
use crate::cluster::validate::{Settings, Valid};
use crate::pod::{is_over, owner};
use crate::untyped;

/// Most guards that one reconcile creates. The watch event of each causes the next reconcile.
const AT_ONCE: usize = 200;
/// Age at which a guard that has ended is replaced, so that one that ends at once causes few writes.
const REPLACEMENT_AGE: Duration = Duration::from_secs(60);

/// What to do about the guards of a cluster.
#[derive(Debug, Default)]
pub struct Plan {
    /// Nodes that get one.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Something is left to do without an event.
    pub recheck: bool,
}

/// Decides. `guarded` are the nodes that need one, `existing` are the pods with the label of guards. Pure.
pub fn plan(
    cluster: &Valid,
    guarded: &BTreeSet<String>,
    existing: &[Arc<Pod>],
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let mut absent = guarded.clone();
    for pod in existing {
        let ours = owner(&pod.metadata).is_some_and(|owner| owner.uid == cluster.uid);
        let node = guard::node_of(pod);
        if !ours {
            continue;
        }
        let wanted = node.is_some_and(|node| absent.remove(&node));
        if pod.metadata.deletion_timestamp.is_some() {
            // Its name is free when it is gone.
            continue;
        }
        let created = pod.creation_timestamp();
        let old = created.is_none_or(|created| created.0 + REPLACEMENT_AGE < now);
        if !wanted || is_over(pod) && old {
            plan.delete.push(pod.clone());
        } else if is_over(pod) {
            plan.recheck = true;
        }
    }
    plan.create = absent.into_iter().take(AT_ONCE).collect();
    plan
}

/// Carries out the plan.
///
/// # Errors
/// The first failed write. The others of the plan are tried.
pub async fn carry_out(
    client: &Client,
    writer: &Writer,
    (cluster, settings): (&Valid, &Settings),
    plan: &Plan,
) -> Result<(), Error> {
    let api = untyped::api::<Pod>(client.clone(), &(), Some(&cluster.namespace));
    let mut outcome = Ok(());
    for pod in &plan.delete {
        let deleted = writer.delete(&api, pod.as_ref()).await;
        outcome = outcome.and(deleted);
    }
    for node in &plan.create {
        let created = writer
            .create(&api, &guard::pod(cluster, settings, node))
            .await;
        // What the API server refuses for one it refuses for all.
        created?;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn guard_on(node: &str, edit: impl Fn(&mut Pod)) -> Arc<Pod> {
        let cluster = cluster();
        let mut pod = guard::pod(&cluster, &fixture::settings(), node);
        edit(&mut pod);
        Arc::new(pod)
    }

    fn cluster() -> Valid {
        fixture::valid("{master: {type: BuiltIn}, update: {onCordon: Drain}}")
    }

    fn planned(guarded: &[&str], existing: &[Arc<Pod>]) -> (Vec<String>, Vec<String>, bool) {
        let guarded = guarded.iter().map(|node| (*node).to_owned()).collect();
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let plan = plan(&cluster(), &guarded, existing, now);
        let deleted = plan.delete.iter().map(|pod| pod.name_any()).collect();
        (plan.create, deleted, plan.recheck)
    }

    #[test]
    fn each_node_gets_one_guard_and_nothing_is_done_at_rest() {
        let one = guard_on("n1", |_| {});
        let (create, delete, recheck) = planned(&["n1", "n2"], std::slice::from_ref(&one));
        assert_eq!(
            (create, delete, recheck),
            (vec!["n2".to_owned()], vec![], false)
        );
        let both = [one, guard_on("n2", |_| {})];
        assert_eq!(planned(&["n1", "n2"], &both), (vec![], vec![], false));
        let (create, delete, _) = planned(&["n2"], &both);
        assert_eq!((create, delete), (vec![], vec!["kv-guard-n1".to_owned()]));
    }

    #[test]
    fn a_guard_that_leaves_is_waited_for_and_a_foreign_pod_is_not_touched() {
        let leaving = guard_on("n1", |pod| {
            pod.metadata.deletion_timestamp =
                serde_yaml_ng::from_str("'2026-01-01T00:00:00Z'").unwrap();
        });
        assert_eq!(
            planned(&["n1"], std::slice::from_ref(&leaving)),
            (vec![], vec![], false)
        );
        assert_eq!(planned(&[], &[leaving]), (vec![], vec![], false));
        let foreign = guard_on("n1", |pod| pod.metadata.owner_references = None);
        assert_eq!(planned(&[], &[foreign]), (vec![], vec![], false));
    }

    #[test]
    fn a_guard_that_has_ended_is_replaced_after_a_while() {
        let over = |created: &str| {
            guard_on("n1", |pod| {
                pod.metadata.creation_timestamp = serde_yaml_ng::from_str(created).unwrap();
                pod.status = serde_yaml_ng::from_str("{phase: Failed}").unwrap();
            })
        };
        let young = over("'2026-01-01T00:09:30Z'");
        assert_eq!(planned(&["n1"], &[young]), (vec![], vec![], true));
        let old = over("'2026-01-01T00:01:00Z'");
        let name = "kv-guard-n1".to_owned();
        assert_eq!(planned(&["n1"], &[old]), (vec![], vec![name], false));
    }

    #[test]
    fn the_guards_of_a_large_cluster_are_created_in_parts() {
        let nodes: Vec<String> = (0..450).map(|number| format!("n{number:03}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let (create, _, _) = planned(&nodes, &[]);
        assert_eq!((create.len(), create[199].as_str()), (AT_ONCE, "n199"));
    }
}
