//! Creates a guard on each node with pool pods, and deletes it when none is left: then `kubectl drain` goes on. Replaces guards that
//! were created for another spec, for example by an earlier release.
//!
//! ```text
//! outdated --(does not run; a minute old)--> deleted --> gone --> created
//! outdated --(runs; a minute old; its node is not cordoned; fewer than maxUnavailable guards are away)--> deleted --> gone --> created
//! ```

use std::sync::Arc;
use std::time::Duration;

use crds::text::first_names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};

use crate::apply::{Error, Writer, owner};
use crate::cluster::cordoned::{Decision, MAX_NODES};
use crate::cluster::desired::guard;
use crate::cluster::pool_pod::{is_stuck, pending};
use crate::cluster::validate::{Settings, Valid};
use crate::pod::{is_over, is_ready, not_running};
use crate::untyped;

/// Most guards that one reconcile creates. The watch event of each causes the next reconcile.
const AT_ONCE: usize = 200;
/// Age at which a guard that has ended or is outdated is replaced: one that ends at once, or whose annotations an admission policy
/// changes, causes few writes.
const REPLACEMENT_AGE: Duration = Duration::from_secs(60);
/// Age from which a guard that does not run is reported: its image must be pulled first.
const START_AGE: Duration = Duration::from_secs(60);

/// What to do about the guards of a cluster.
#[derive(Debug, Default)]
pub struct Plan {
    /// Nodes that get one.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Guards that do not run: node and cause. `kubectl drain` does not wait for a pod that has no node, and the API server
    /// lets a pod be evicted that has not started, whatever its PodDisruptionBudget.
    pub idle: Vec<(String, String)>,
    /// Something is left to do without an event.
    pub recheck: bool,
}

/// Decides. `cordons` has the nodes that need a guard and those whose guard may hold a drain, `existing` are the pods with the label of
/// guards. Pure.
pub fn plan(
    cluster: &Valid,
    settings: &Settings,
    cordons: &Decision,
    existing: &[Arc<Pod>],
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let revision = guard::revision(cluster, settings);
    let mut absent = cordons.guarded.clone();
    // Guards that run and are to be replaced, and those that do not run although they should.
    let mut outdated = Vec::new();
    let mut away = 0;
    for pod in existing {
        let ours = owner(&pod.metadata).is_some_and(|owner| owner.uid == cluster.uid);
        let node = guard::node_of(pod);
        if !ours {
            continue;
        }
        let wanted = node.as_ref().filter(|node| absent.remove(*node));
        if pod.metadata.deletion_timestamp.is_some() {
            // Its name is free when it is gone. One on a node that does not respond must not hold the replacement of the others.
            let ends = wanted.is_some() && !is_stuck(pod, now);
            away += usize::from(ends);
            // No event follows when its time is up.
            plan.recheck |= ends;
            continue;
        }
        let Some(node) = wanted else {
            plan.delete.push(pod.clone());
            continue;
        };
        let created = pod.creation_timestamp();
        let older = |age| created.as_ref().is_none_or(|created| created.0 + age < now);
        let is_outdated = guard::revision_of(pod) != Some(&revision);
        let cause = idle(pod);
        if cause.is_none() && !is_over(pod) {
            // On a node that does not respond it would not end.
            let responds = || is_ready(pod) || stopped(pod).is_some();
            if is_outdated && responds() && !cordons.holds_drain_of(node) {
                match older(REPLACEMENT_AGE) {
                    true => outdated.push(pod),
                    false => plan.recheck = true,
                }
            }
            continue;
        }
        away += 1;
        if (is_outdated || is_over(pod)) && older(REPLACEMENT_AGE) {
            plan.delete.push(pod.clone());
            continue;
        }
        plan.recheck = true;
        if !is_over(pod) && older(START_AGE) {
            plan.idle.extend(cause.map(|cause| (node.clone(), cause)));
        }
    }
    // `kubectl drain` does not wait on a node whose guard is away, so few are, and none more while the new ones do not start.
    let limit = cluster.update.max_unavailable.of(cordons.guarded.len());
    let room = limit.saturating_sub(away + absent.len());
    plan.delete.extend(outdated.into_iter().take(room).cloned());
    plan.idle.sort();
    plan.create = absent.into_iter().take(AT_ONCE).collect();
    plan
}

/// Why a guard that has not ended does not run; `None` if it runs.
fn idle(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if phase == Some("Running") {
        return None;
    }
    if pod.spec.as_ref()?.node_name.is_none() {
        return Some(pending(pod));
    }
    Some(stopped(pod).unwrap_or_else(|| "it has not started".to_owned()))
}

/// Why the container does not run, as the kubelet reports it.
fn stopped(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    statuses.into_iter().find_map(not_running)
}

impl Plan {
    /// Which guards do not run; `None` if all that are old enough do.
    pub fn idle_message(&self) -> Option<String> {
        let (_, cause) = self.idle.first()?;
        let nodes = first_names(self.idle.iter().map(|(node, _)| node), MAX_NODES);
        Some(format!(
            "the guards of {nodes} do not run, so kubectl drain does not wait for the pool pods there: {cause}"
        ))
    }
}

/// Carries out the plan.
///
/// # Errors
/// The first failed write. The others of the plan are tried.
pub async fn carry_out(
    client: &Client,
    writer: &Writer,
    cluster: &Valid,
    settings: &Settings,
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
        guard_of(&fixture::settings(), node, edit)
    }

    /// A guard as the cache shows it.
    fn guard_of(settings: &Settings, node: &str, edit: impl Fn(&mut Pod)) -> Arc<Pod> {
        let mut pod = guard::pod(&cluster(), settings, node);
        pod.status = serde_yaml_ng::from_str(
            "{phase: Running, conditions: [{type: Ready, status: 'True'}]}",
        )
        .unwrap();
        edit(&mut pod);
        crate::cache::prune::pod(&mut pod);
        Arc::new(pod)
    }

    fn cluster() -> Valid {
        fixture::valid("{master: {type: BuiltIn}, update: {onCordon: Drain}}")
    }

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn guarding(nodes: &[&str]) -> Decision {
        Decision {
            guarded: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..Decision::default()
        }
    }

    fn planned(guarded: &[&str], existing: &[Arc<Pod>]) -> (Vec<String>, Vec<String>, bool) {
        plan_of(&cluster(), &guarding(guarded), existing)
    }

    /// What is created and deleted, and whether the plan is looked at again.
    fn plan_of(
        cluster: &Valid,
        cordons: &Decision,
        existing: &[Arc<Pod>],
    ) -> (Vec<String>, Vec<String>, bool) {
        let plan = plan(cluster, &fixture::settings(), cordons, existing, now());
        let deleted = plan.delete.iter().map(|pod| pod.name_any()).collect();
        (plan.create, deleted, plan.recheck)
    }

    /// Guards that the release before has created, without the annotation, or with another priority.
    fn outdated_on(node: &str, edit: impl Fn(&mut Pod)) -> Arc<Pod> {
        let before = Settings {
            guard_priority_class: None,
            ..fixture::settings()
        };
        guard_of(&before, node, edit)
    }

    #[test]
    fn outdated_guards_are_replaced_a_few_at_a_time_and_none_while_another_is_away() {
        let nodes = ["n1", "n2", "n3"];
        let cordons = guarding(&nodes);
        let mut guards: Vec<_> = nodes.map(|node| outdated_on(node, |_| {})).into();
        // Created by the first release with guards.
        guards[0] = outdated_on("n1", |pod| {
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.retain(|key, _| key == "mooncake.io/node");
        });
        let of = |guards: &[Arc<Pod>]| plan_of(&cluster(), &cordons, guards);
        let deletes = |node: &str| (vec![], vec![format!("kv-guard-{node}")], false);
        let nothing = (vec![], vec![], false);
        assert_eq!(of(&guards), deletes("n1"));
        guards[0] = outdated_on("n1", |pod| {
            pod.metadata.deletion_timestamp =
                serde_yaml_ng::from_str("'2026-01-01T00:10:00Z'").unwrap();
        });
        assert_eq!(of(&guards), (vec![], vec![], true), "the first one ends");
        // On a dead node.
        guards[0] = outdated_on("n1", |pod| {
            pod.metadata.deletion_timestamp =
                serde_yaml_ng::from_str("'2026-01-01T00:08:59Z'").unwrap();
        });
        assert_eq!(of(&guards), deletes("n2"), "the first one does not end");
        let created = (vec!["n1".to_owned()], vec![], false);
        assert_eq!(of(&guards[1..]), created, "and is created at once");
        let starting = |pod: &mut Pod| {
            pod.status = serde_yaml_ng::from_str("{phase: Pending}").unwrap();
        };
        guards[0] = guard_on("n1", starting);
        assert_eq!(of(&guards), (vec![], vec![], true), "the new one starts");
        guards[0] = guard_on("n1", |_| {});
        assert_eq!(of(&guards), deletes("n2"));
        let current = nodes.map(|node| guard_on(node, |_| {}));
        assert_eq!(of(&current), nothing, "at rest");

        let all = nodes.map(|node| outdated_on(node, |_| {}));
        let wide = "{master: {type: BuiltIn}, update: {onCordon: Drain, maxUnavailable: 2}}";
        let (_, deleted, _) = plan_of(&fixture::valid(wide), &cordons, &all);
        assert_eq!(deleted, ["kv-guard-n1", "kv-guard-n2"]);
    }

    #[test]
    fn an_outdated_guard_stays_while_its_node_is_cordoned_or_does_not_respond() {
        let holds: [fn(&mut Decision, String); 3] = [
            |cordons, node| cordons.excluded.extend([node]),
            |cordons, node| cordons.waiting.push(node),
            |cordons, node| cordons.held.push(node),
        ];
        let both = ["n1", "n2"].map(|node| outdated_on(node, |_| {}));
        for hold in holds {
            let mut cordons = guarding(&["n1", "n2"]);
            hold(&mut cordons, "n1".to_owned());
            let (_, deleted, _) = plan_of(&cluster(), &cordons, &both);
            assert_eq!(deleted, ["kv-guard-n2"], "{cordons:?}");
        }
        let silent = outdated_on("n1", |pod| {
            pod.status = serde_yaml_ng::from_str(
                "{phase: Running, conditions: [{type: Ready, status: 'False'}]}",
            )
            .unwrap();
        });
        let (_, deleted, _) = planned(&["n1", "n2"], &[silent, both[1].clone()]);
        assert_eq!(deleted, ["kv-guard-n2"]);
        let crashes = outdated_on("n1", |pod| {
            pod.status = serde_yaml_ng::from_str(
                "{phase: Running, containerStatuses: [{name: guard, image: i, imageID: '', ready: false, restartCount: 9, \
                 state: {waiting: {reason: CrashLoopBackOff}}}]}",
            )
            .unwrap();
        });
        let (_, deleted, _) = planned(&["n1", "n2"], &[crashes, both[1].clone()]);
        assert_eq!(deleted, ["kv-guard-n1"]);
        // One that does not run holds nothing, also on a cordoned node.
        let idle = outdated_on("n1", |pod| {
            pod.status = serde_yaml_ng::from_str("{phase: Pending}").unwrap();
        });
        let mut cordons = guarding(&["n1"]);
        cordons.held = vec!["n1".to_owned()];
        let (_, deleted, _) = plan_of(&cluster(), &cordons, &[idle]);
        assert_eq!(deleted, ["kv-guard-n1"]);
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

    /// For example one whose annotations an admission policy changes.
    #[test]
    fn an_outdated_guard_stays_for_a_minute() {
        let states = [
            "{phase: Pending}",
            "{phase: Failed}",
            "{phase: Running, conditions: [{type: Ready, status: 'True'}]}",
        ];
        for state in states {
            let of = |created: &str| {
                outdated_on("n1", |pod| {
                    pod.metadata.creation_timestamp = serde_yaml_ng::from_str(created).unwrap();
                    pod.status = serde_yaml_ng::from_str(state).unwrap();
                })
            };
            let young = planned(&["n1"], &[of("'2026-01-01T00:09:30Z'")]);
            assert_eq!(young, (vec![], vec![], true), "{state}");
            let old = planned(&["n1"], &[of("'2026-01-01T00:08:59Z'")]);
            let name = "kv-guard-n1".to_owned();
            assert_eq!(old, (vec![], vec![name], false), "{state}");
        }
    }

    #[test]
    fn a_guard_that_does_not_start_is_reported_with_its_cause() {
        let pending = |created: &str, status: &str| {
            guard_on("n1", |pod| {
                pod.metadata.creation_timestamp = serde_yaml_ng::from_str(created).unwrap();
                pod.status = serde_yaml_ng::from_str(status).unwrap();
            })
        };
        let reported = |guard: Arc<Pod>| {
            let (cluster, settings) = (cluster(), fixture::settings());
            let plan = plan(&cluster, &settings, &guarding(&["n1"]), &[guard], now());
            assert!(plan.recheck && plan.delete.is_empty() && plan.create.is_empty());
            plan.idle_message()
        };
        let unscheduled = "{phase: Pending, conditions: [{type: PodScheduled, status: 'False', \
            message: '0/1 nodes are available: 1 Too many pods.'}]}";
        assert_eq!(
            reported(pending("'2026-01-01T00:09:30Z'", unscheduled)),
            None
        );
        let message = reported(pending("'2026-01-01T00:08:00Z'", unscheduled)).unwrap();
        assert!(
            message.contains("guards of n1 do not run") && message.ends_with("1 Too many pods."),
            "{message}"
        );
        let bound = guard_on("n1", |pod| {
            pod.metadata.creation_timestamp =
                serde_yaml_ng::from_str("'2026-01-01T00:08:00Z'").unwrap();
            pod.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
            pod.status = serde_yaml_ng::from_str(
                "{phase: Pending, containerStatuses: [{name: guard, image: i, imageID: '', ready: false, \
                 restartCount: 0, state: {waiting: {reason: ImagePullBackOff}}}]}",
            )
            .unwrap();
        });
        let message = reported(bound).unwrap();
        assert!(message.contains("ImagePullBackOff"), "{message}");
    }

    #[test]
    fn the_guards_of_a_large_cluster_are_created_in_parts() {
        let nodes: Vec<String> = (0..450).map(|number| format!("n{number:03}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let (create, _, _) = planned(&nodes, &[]);
        assert_eq!((create.len(), create[199].as_str()), (AT_ONCE, "n199"));
    }
}
