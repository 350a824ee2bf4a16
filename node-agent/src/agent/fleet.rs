//! Which pool pods are served: brings together what the operator wants, what runs on the node and
//! what an earlier agent has left, and keeps one task for each pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::node::{PoolAssignment, PoolReport, PoolState};
use crds::reason::Reason;
use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::assignments::Assignments;
use super::census::{self, Found};
use super::pool::{self, Context, Peeked, Wish};

/// How often the node is looked through while a listed pod has no process yet.
const EAGER: Duration = Duration::from_millis(500);

/// How often it is looked through otherwise.
const CALM: Duration = Duration::from_secs(5);

/// How often a process that gives no answer is looked at, before it counts as foreign.
const LOOKS: u32 = 10;

struct Member {
    wish: watch::Sender<Wish>,
    task: JoinHandle<()>,
}

/// Serves the node's pool pods for ever.
pub(crate) async fn serve(context: Arc<Context>, mut assignments: watch::Receiver<Assignments>) {
    let mut members: BTreeMap<String, Member> = BTreeMap::new();
    // How often unlisted pool processes were looked at; `LOOKS` says that one is not ours.
    let mut looked: BTreeMap<u32, u32> = BTreeMap::new();
    loop {
        let now = assignments.borrow_and_update().clone();
        let found = match census::scan(&context.proc) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "the node's processes cannot be listed");
                Vec::new()
            }
        };
        members.retain(|_, member| !member.task.is_finished());
        looked.retain(|pid, _| found.iter().any(|found| found.pid == *pid));
        tell(&members, &now);
        let mut unlisted = Vec::new();
        for found in found {
            if members.contains_key(&found.pod_uid) {
                continue;
            }
            match listed(&now, &found.pod_uid) {
                Some(known) => {
                    let member = start(&context, &found, known.clone(), &now);
                    members.insert(found.pod_uid, member);
                }
                None if looked.get(&found.pid).is_some_and(|looks| *looks >= LOOKS) => {}
                None => unlisted.push(found),
            }
        }
        let mut unclear = false;
        let looks = unlisted
            .iter()
            .map(|found| pool::peek(&context.proc, found, &context.key));
        for (found, peeked) in unlisted.iter().zip(join_all(looks).await) {
            match peeked {
                Peeked::Ours(record) => {
                    let member = start(&context, found, record.assignment, &now);
                    members.insert(found.pod_uid.clone(), member);
                }
                Peeked::Foreign => {
                    looked.insert(found.pid, LOOKS);
                }
                Peeked::Unclear => {
                    *looked.entry(found.pid).or_default() += 1;
                    unclear = true;
                }
            }
        }
        let missing = report_missing(&context, &now, &members);
        let wait = if missing || unclear { EAGER } else { CALM };
        tokio::select! {
            changed = assignments.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(wait) => {}
            () = any_finished(&mut members) => {}
        }
    }
}

fn listed<'a>(now: &'a Assignments, pod_uid: &str) -> Option<&'a PoolAssignment> {
    now.spec()?
        .pools
        .iter()
        .find(|pool| pool.pod_uid == pod_uid)
}

fn wish(now: &Assignments, pod_uid: &str) -> Wish {
    match (now.spec(), listed(now, pod_uid)) {
        (None, _) => Wish::Unknown,
        (Some(_), Some(assignment)) => Wish::Serve(Box::new(assignment.clone())),
        (Some(_), None) => Wish::Gone,
    }
}

fn start(
    context: &Arc<Context>,
    found: &Found,
    known: PoolAssignment,
    now: &Assignments,
) -> Member {
    let (publish, receive) = watch::channel(wish(now, &found.pod_uid));
    let run = pool::run(Arc::clone(context), found.clone(), known, receive);
    Member {
        wish: publish,
        task: tokio::spawn(run),
    }
}

fn tell(members: &BTreeMap<String, Member>, now: &Assignments) {
    for (uid, member) in members {
        let wish = wish(now, uid);
        member.wish.send_if_modified(|before| {
            let news = *before != wish;
            *before = wish;
            news
        });
    }
}

/// Reports listed pods that have no process here; true if there are any.
fn report_missing(
    context: &Context,
    now: &Assignments,
    members: &BTreeMap<String, Member>,
) -> bool {
    let pools = now.spec().map_or(&[][..], |spec| spec.pools.as_slice());
    let missing = pools
        .iter()
        .filter(|pool| !members.contains_key(&pool.pod_uid));
    let mut waited_for = BTreeSet::new();
    for assignment in missing {
        waited_for.insert(assignment.pod_uid.clone());
        let report = PoolReport {
            pod_uid: assignment.pod_uid.clone(),
            namespace: assignment.namespace.clone(),
            pod_name: assignment.pod_name.clone(),
            state: PoolState::Waiting,
            reason: Reason::PoolPodNotReady,
            message: "no pool process of this pod runs on the node yet".to_owned(),
            endpoint: String::new(),
            master_pod_uid: String::new(),
            data_epoch: 0,
            segments: Vec::new(),
            mounted: None,
            page_size_obtained: None,
        };
        context.board.set(report, assignment, None);
    }
    let known = |uid: &String| waited_for.contains(uid) || members.contains_key(uid);
    context.board.retain(known);
    !waited_for.is_empty()
}

/// Resolves when a pod's task has ended.
async fn any_finished(members: &mut BTreeMap<String, Member>) {
    if members.is_empty() {
        return std::future::pending().await;
    }
    let tasks = members.values_mut().map(|member| &mut member.task);
    // A task that panicked has ended as well; the panic was logged where it happened.
    let _ended = futures::future::select_all(tasks).await;
}
