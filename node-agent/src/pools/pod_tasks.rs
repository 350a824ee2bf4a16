//! Runs one task per pool pod, from the operator's assignments, the processes on the node and the assignments that
//! earlier agents stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::node::{PoolAssignment, PoolReport};
use crds::reason::Reason;
use engine_process::control::message::{Listed, PodAssignment};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use crate::assignments::Assignments;
use crate::pools::pauses::Restarts;
use crate::pools::processes::{self, PoolProcess};
use crate::pools::{Context, pod};

/// Period of the scan while an assigned pod has no process.
const SHORT_PERIOD: Duration = Duration::from_millis(500);

/// Period of the scan before the spec is read: a pod may start again whose assignment an earlier agent stored.
const UNASSIGNED_PERIOD: Duration = Duration::from_secs(5);

/// Period of the scan otherwise. It opens a file of each process of the node; what it may find are pods that are no longer
/// assigned.
const LONG_PERIOD: Duration = Duration::from_secs(30);

struct PodTask {
    began: Instant,
    /// The last assignment that was listed.
    known: PoolAssignment,
    assignment: watch::Sender<Option<PodAssignment>>,
    handle: JoinHandle<()>,
}

/// Serves the node's pool pods until the assignments end.
pub(crate) async fn run(context: Arc<Context>, mut assignments: watch::Receiver<Assignments>) {
    let mut tasks: BTreeMap<String, PodTask> = BTreeMap::new();
    let mut restarts = Restarts::default();
    loop {
        let begun = Instant::now();
        let now = assignments.borrow_and_update().clone();
        let found = match processes::scan(&context.proc) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "cannot list the processes of the node");
                Vec::new()
            }
        };
        tasks.retain(|uid, task| {
            let ended = task.handle.is_finished();
            if ended {
                restarts.ended(uid, task.began, begun);
            }
            !ended
        });
        publish(&mut tasks, &now);
        let folders = context.engines.folders();
        folders.remove_ended(|uid| {
            tasks.contains_key(uid) || found.iter().any(|found| found.pod_uid == uid)
        });
        let mut paused: Option<Instant> = None;
        for found in found {
            if tasks.contains_key(&found.pod_uid) {
                continue;
            }
            if let Some(until) = restarts.until(&found.pod_uid, begun) {
                paused = Some(paused.map_or(until, |first| first.min(until)));
                continue;
            }
            let known = listed(&now, &found.pod_uid).cloned();
            // A pod that an earlier agent served is served on without the API server, and unmounted if it is no longer
            // assigned.
            let known = known.or_else(|| folders.assignment(&found.pod_uid));
            if let Some(known) = known {
                let task = start(&context, &found, known, &now);
                tasks.insert(found.pod_uid, task);
            }
        }
        let missing = report_missing(&context, &now, &tasks);
        let wait = match now.spec() {
            Some(_) if missing => SHORT_PERIOD,
            Some(_) => LONG_PERIOD,
            None => UNASSIGNED_PERIOD,
        };
        tokio::select! {
            changed = assignments.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep_until(paused.map_or(begun + wait, |until| until.min(begun + wait))) => {}
            () = any_finished(&mut tasks) => {}
        }
    }
}

fn listed<'a>(now: &'a Assignments, pod_uid: &str) -> Option<&'a PoolAssignment> {
    now.spec()?
        .pools
        .iter()
        .find(|pool| pool.pod_uid == pod_uid)
}

/// Returns the assignment of a pod of which `known` is the last one.
fn assignment(now: &Assignments, pod_uid: &str, known: &PoolAssignment) -> PodAssignment {
    let (listed, pool) = match (now.spec(), listed(now, pod_uid)) {
        (None, _) => (Listed::Unknown, known),
        (Some(_), Some(assignment)) => (Listed::Yes, assignment),
        (Some(_), None) => (Listed::No, known),
    };
    PodAssignment {
        listed,
        pool: pool.clone(),
    }
}

fn start(
    context: &Arc<Context>,
    found: &PoolProcess,
    known: PoolAssignment,
    now: &Assignments,
) -> PodTask {
    let first = assignment(now, &found.pod_uid, &known);
    let (publish, receive) = watch::channel(Some(first));
    let span = tracing::error_span!("pool", pod = known.pod_name, uid = found.pod_uid);
    let run = pod::run(Arc::clone(context), found.clone(), known.clone(), receive);
    PodTask {
        began: Instant::now(),
        known,
        assignment: publish,
        handle: tokio::spawn(run.instrument(span)),
    }
}

fn publish(tasks: &mut BTreeMap<String, PodTask>, now: &Assignments) {
    for (uid, task) in tasks {
        let now = assignment(now, uid, &task.known);
        task.known = now.pool.clone();
        let now = Some(now);
        task.assignment
            .send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
    }
}

/// Reports assigned pods that have no process. Returns whether there are any.
fn report_missing(context: &Context, now: &Assignments, tasks: &BTreeMap<String, PodTask>) -> bool {
    let pools = now.spec().map_or(&[][..], |spec| spec.pools.as_slice());
    let missing = pools
        .iter()
        .filter(|pool| !tasks.contains_key(&pool.pod_uid));
    let mut missing_uids = BTreeSet::new();
    for assignment in missing {
        missing_uids.insert(assignment.pod_uid.clone());
        let message = "the node runs no pool process of this pod yet".to_owned();
        let report = PoolReport::waiting(assignment, Reason::PoolPodNotReady, message);
        context.reporter.set_pool(report, assignment);
    }
    let known = |uid: &String| missing_uids.contains(uid) || tasks.contains_key(uid);
    context.reporter.retain_pools(known);
    !missing_uids.is_empty()
}

/// Waits until the task of any pod has ended.
async fn any_finished(tasks: &mut BTreeMap<String, PodTask>) {
    if tasks.is_empty() {
        return std::future::pending().await;
    }
    let handles = tasks.values_mut().map(|task| &mut task.handle);
    // A task that panicked has ended too; the panic is already in the log.
    let _ended = futures::future::select_all(handles).await;
}

#[cfg(test)]
mod tests {
    use crds::{MooncakeNode, MooncakeNodeSpec};

    use super::*;

    fn listed_with(transport: &str) -> PoolAssignment {
        serde_json::from_value(serde_json::json!({
            "podUid": "u", "podName": "p", "namespace": "n", "cluster": "c", "clusterUid": "cu", "pool": "default",
            "size": "1Gi", "pageSize": "4Ki", "numaPolicy": "Spread", "drainSeconds": 5, "transport": transport,
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_pod_that_is_no_longer_listed_keeps_its_last_assignment() {
        let (tcp, rdma) = (listed_with("Tcp"), listed_with("Rdma"));
        let (publish_to, received) = watch::channel(None);
        let task = PodTask {
            began: Instant::now(),
            known: tcp.clone(),
            assignment: publish_to,
            handle: tokio::spawn(async {}),
        };
        let mut tasks = BTreeMap::from([("u".to_owned(), task)]);
        let with = |pools: Vec<PoolAssignment>| Assignments {
            read: true,
            node: Some(MooncakeNode::new(
                "n",
                MooncakeNodeSpec {
                    pools,
                    ..MooncakeNodeSpec::default()
                },
            )),
        };
        for (now, listed, pool) in [
            (with(vec![tcp.clone()]), Listed::Yes, &tcp),
            (with(vec![rdma.clone()]), Listed::Yes, &rdma),
            (with(Vec::new()), Listed::No, &rdma),
            (Assignments::default(), Listed::Unknown, &rdma),
        ] {
            publish(&mut tasks, &now);
            let pool = pool.clone();
            assert_eq!(*received.borrow(), Some(PodAssignment { listed, pool }));
        }
    }
}
