//! Runs one task per pool pod, from the operator's assignments, the processes on the node and the records
//! of earlier agents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::node::{PoolAssignment, PoolReport, PoolState};
use crds::reason::Reason;
use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::assignments::Assignments;
use crate::pools::processes::{self, PoolProcess};
use crate::pools::{self, Context, Inspection, PodAssignment};

/// Period of the scan while an assigned pod has no process.
const SHORT_PERIOD: Duration = Duration::from_millis(500);

/// Period of the scan otherwise.
const LONG_PERIOD: Duration = Duration::from_secs(5);

/// Number of inspections without an answer after which a process counts as foreign.
const INSPECTIONS: u32 = 10;

struct PodTask {
    assignment: watch::Sender<PodAssignment>,
    handle: JoinHandle<()>,
}

/// Serves the node's pool pods until the assignments end.
pub(crate) async fn run(context: Arc<Context>, mut assignments: watch::Receiver<Assignments>) {
    let mut tasks: BTreeMap<String, PodTask> = BTreeMap::new();
    // Inspections by PID of processes that are not assigned; `INSPECTIONS` marks a foreign process.
    let mut inspected: BTreeMap<u32, u32> = BTreeMap::new();
    loop {
        let now = assignments.borrow_and_update().clone();
        let found = match processes::scan(&context.proc) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "cannot list the processes of the node");
                Vec::new()
            }
        };
        tasks.retain(|_, task| !task.handle.is_finished());
        inspected.retain(|pid, _| found.iter().any(|found| found.pid == *pid));
        publish(&tasks, &now);
        let mut unlisted = Vec::new();
        for found in found {
            if tasks.contains_key(&found.pod_uid) {
                continue;
            }
            match listed(&now, &found.pod_uid) {
                Some(known) => {
                    let task = start(&context, &found, known.clone(), &now);
                    tasks.insert(found.pod_uid, task);
                }
                None if inspected
                    .get(&found.pid)
                    .is_some_and(|inspections| *inspections >= INSPECTIONS) => {}
                None => unlisted.push(found),
            }
        }
        let mut no_response = false;
        let inspections = unlisted
            .iter()
            .map(|found| pools::inspect(&context.proc, found, &context.key));
        for (found, inspection) in unlisted.iter().zip(join_all(inspections).await) {
            match inspection {
                Inspection::Ours(record) => {
                    let task = start(&context, found, record.assignment, &now);
                    tasks.insert(found.pod_uid.clone(), task);
                }
                Inspection::Foreign => {
                    inspected.insert(found.pid, INSPECTIONS);
                }
                Inspection::NoResponse => {
                    *inspected.entry(found.pid).or_default() += 1;
                    no_response = true;
                }
            }
        }
        let missing = report_missing(&context, &now, &tasks);
        let wait = if missing || no_response {
            SHORT_PERIOD
        } else {
            LONG_PERIOD
        };
        tokio::select! {
            changed = assignments.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(wait) => {}
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

fn assignment(now: &Assignments, pod_uid: &str) -> PodAssignment {
    match (now.spec(), listed(now, pod_uid)) {
        (None, _) => PodAssignment::Unknown,
        (Some(_), Some(assignment)) => PodAssignment::Assigned(Box::new(assignment.clone())),
        (Some(_), None) => PodAssignment::Unassigned,
    }
}

fn start(
    context: &Arc<Context>,
    found: &PoolProcess,
    known: PoolAssignment,
    now: &Assignments,
) -> PodTask {
    let (publish, receive) = watch::channel(assignment(now, &found.pod_uid));
    let span = tracing::error_span!("pool", pod = known.pod_name, uid = found.pod_uid);
    let run = pools::run(Arc::clone(context), found.clone(), known, receive);
    PodTask {
        assignment: publish,
        handle: tokio::spawn(run.instrument(span)),
    }
}

fn publish(tasks: &BTreeMap<String, PodTask>, now: &Assignments) {
    for (uid, task) in tasks {
        let assignment = assignment(now, uid);
        task.assignment
            .send_if_modified(|before| std::mem::replace(before, assignment.clone()) != assignment);
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
        let report = PoolReport {
            pod_uid: assignment.pod_uid.clone(),
            namespace: assignment.namespace.clone(),
            pod_name: assignment.pod_name.clone(),
            state: PoolState::Waiting.into(),
            reason: Reason::PoolPodNotReady.into(),
            message: "the node runs no pool process of this pod yet".to_owned(),
            endpoint: String::new(),
            master_pod_uid: String::new(),
            data_epoch: 0,
            segments: Vec::new(),
            mounted: None,
            page_size_obtained: None,
        };
        context.reporter.set_pool(report, assignment, None);
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
