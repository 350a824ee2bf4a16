//! The status of the node's own MooncakeNode: gathered on a board, written by server-side apply
//! when it has changed and at no other time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crds::condition::{self, ConditionType, Finding};
use crds::node::{HcaLine, MooncakeNodeStatus, PoolAssignment, PoolReport, PoolState};
use crds::reason::Reason;
use crds::{ByteSize, MooncakeNode, MooncakeNodeSpec, State};
use engine::{Host, HostStats, PeerFailures};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use tokio::sync::watch;

use super::assignments::Assignments;
use super::{metrics, patience};

/// Whose fields these are.
pub(crate) const FIELD_MANAGER: &str = "mooncake-agent";

/// Most bytes of a status.
const STATUS_LIMIT: usize = 8 << 10;

/// Least time between two writes.
const WRITE_PERIOD: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
struct Posted {
    report: PoolReport,
    cluster: String,
    host: Weak<Host>,
}

/// The ports of the node's RDMA devices, as many as have a line, and how many have none.
pub(crate) type HcaLines = (Vec<HcaLine>, Option<u32>);

/// What each pool pod's task says about it, and what is known of the node's RDMA devices.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    posted: Arc<Mutex<BTreeMap<String, Posted>>>,
    hcas: Arc<Mutex<HcaLines>>,
    news: Arc<watch::Sender<()>>,
}

/// One pool pod as the metrics show it.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    pub(crate) state: PoolState,
    pub(crate) reason: Reason,
    pub(crate) mounted: u64,
    pub(crate) stats: Option<HostStats>,
    /// The worst of its peers, as many as the metrics may show.
    pub(crate) worst: Vec<PeerFailures>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            posted: Arc::default(),
            hcas: Arc::default(),
            news: Arc::new(watch::channel(()).0),
        }
    }
}

impl Board {
    /// Says how a pod stands.
    pub(crate) fn set(&self, report: PoolReport, of: &PoolAssignment, host: Option<&Arc<Host>>) {
        let mut posted = self.lock();
        let before = posted.get(&report.pod_uid);
        let moved = before.is_none_or(|before| before.report.state != report.state);
        let news = before.is_none_or(|before| before.report != report);
        if moved {
            tracing::info!(
                pod = report.pod_name, namespace = report.namespace, uid = report.pod_uid,
                reason = %report.reason, "now {:?}: {}", report.state, report.message
            );
        }
        let entry = Posted {
            report,
            cluster: of.cluster.clone(),
            host: host.map(Arc::downgrade).unwrap_or_default(),
        };
        posted.insert(entry.report.pod_uid.clone(), entry);
        drop(posted);
        if news {
            self.news.send_replace(());
        }
    }

    /// Says what RDMA devices the node has.
    pub(crate) fn set_hcas(&self, lines: HcaLines) {
        let mut hcas = self.hcas.lock().unwrap_or_else(PoisonError::into_inner);
        let news = *hcas != lines;
        *hcas = lines;
        drop(hcas);
        if news {
            self.news.send_replace(());
        }
    }

    fn hcas(&self) -> HcaLines {
        let hcas = self.hcas.lock().unwrap_or_else(PoisonError::into_inner);
        hcas.clone()
    }

    /// Nothing more is to be said about a pod.
    pub(crate) fn remove(&self, pod_uid: &str) {
        if self.lock().remove(pod_uid).is_some() {
            self.news.send_replace(());
        }
    }

    /// Forgets every pod that is none of these.
    pub(crate) fn retain(&self, known: impl Fn(&String) -> bool) {
        let mut posted = self.lock();
        let before = posted.len();
        posted.retain(|uid, _| known(uid));
        let news = posted.len() != before;
        drop(posted);
        if news {
            self.news.send_replace(());
        }
    }

    fn reports(&self) -> Vec<PoolReport> {
        self.lock()
            .values()
            .map(|posted| posted.report.clone())
            .collect()
    }

    /// Everything for the metrics.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let posted = self.lock();
        let shown = posted.values().map(|posted| {
            let host = posted.host.upgrade();
            Shown {
                namespace: posted.report.namespace.clone(),
                cluster: posted.cluster.clone(),
                state: posted.report.state,
                reason: posted.report.reason,
                mounted: posted.report.mounted.map_or(0, |bytes| bytes.0),
                stats: host.as_ref().map(|host| host.stats()),
                worst: host.map_or_else(Vec::new, |host| host.worst_peers(metrics::PEERS)),
            }
        });
        shown.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Posted>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The operator's doubt, where it stands: it does not believe this agent now, so that the agent's own
/// verdict is not repeated until it does.
fn doubt(stands: &[Condition]) -> Option<&Condition> {
    let alive = condition::find(stands, ConditionType::AgentAlive)?;
    let serving = condition::find(stands, ConditionType::PoolsServing)?;
    (alive.status != State::True.as_str() && serving.status == State::Unknown.as_str())
        .then_some(serving)
}

/// True where the agent's verdict stands as it was written.
fn holds(written: &MooncakeNodeStatus, stands: &[Condition]) -> bool {
    written.conditions.iter().all(|said| {
        stands.iter().any(|stands| {
            (
                &stands.type_,
                &stands.status,
                &stands.reason,
                &stands.message,
            ) == (&said.type_, &said.status, &said.reason, &said.message)
        })
    })
}

/// The status that follows from what is known. Equal reports over an equal status give an equal
/// status.
fn compose(
    spec: &MooncakeNodeSpec,
    boot_id: &str,
    (hcas, hcas_omitted): HcaLines,
    reports: &[PoolReport],
    before: &[Condition],
    doubt: Option<&Condition>,
    now: Timestamp,
) -> MooncakeNodeStatus {
    let mounted: u64 = reports
        .iter()
        .filter_map(|report| report.mounted)
        .map(|b| b.0)
        .sum();
    let findings = [finding(spec, reports)];
    let mut status = MooncakeNodeStatus {
        node_uid: spec.node_uid.clone(),
        boot_id: boot_id.to_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        capacity: Some(ByteSize(mounted)),
        hcas,
        hcas_omitted,
        checks: None,
        findings: Vec::new(),
        pools: reports.to_vec(),
        conditions: doubt.map_or_else(
            || condition::merge(before, &findings, None, now),
            |doubt| vec![doubt.clone()],
        ),
    };
    for report in &mut status.pools {
        cut(&mut report.message, 512);
    }
    // What is dear to a reader goes last.
    let shorten: [fn(&mut PoolReport); 4] = [
        |report| report.segments.truncate(4),
        |report| report.segments.clear(),
        |report| cut(&mut report.message, 80),
        |report| report.message.clear(),
    ];
    for shorten in shorten {
        if fits(&status) {
            break;
        }
        status.pools.iter_mut().for_each(shorten);
    }
    // All ports stand in the inventory.
    while !fits(&status) && status.hcas.pop().is_some() {
        *status.hcas_omitted.get_or_insert(0) += 1;
    }
    status
}

fn fits(status: &MooncakeNodeStatus) -> bool {
    serde_json::to_vec(status).map_or(0, |bytes| bytes.len()) <= STATUS_LIMIT
}

fn cut(text: &mut String, most: usize) {
    let most = most.min(text.len());
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
}

/// Whether every listed pod is served, and if not, which is not.
fn finding(spec: &MooncakeNodeSpec, reports: &[PoolReport]) -> Finding {
    let kind = ConditionType::PoolsServing;
    let not = spec.pools.iter().find_map(|pool| {
        let report = reports.iter().find(|report| report.pod_uid == pool.pod_uid);
        match report {
            Some(report) if report.state == PoolState::Serving => None,
            Some(report) => Some((report.reason, report.message.as_str(), pool)),
            None => Some((Reason::PoolPodNotReady, "not looked at yet", pool)),
        }
    });
    match not {
        None => Finding::new(
            kind,
            true,
            Reason::AsExpected,
            format!(
                "{} of {} pool pods served",
                spec.pools.len(),
                spec.pools.len()
            ),
        ),
        Some((reason, message, pool)) => Finding::new(
            kind,
            false,
            reason,
            format!("{}/{}: {message}", pool.namespace, pool.pod_name),
        ),
    }
}

/// Writes the status whenever it differs from what was written last.
pub(crate) async fn write(
    client: kube::Client,
    node_name: String,
    boot_id: String,
    board: Board,
    mut assignments: watch::Receiver<Assignments>,
) {
    let api: Api<MooncakeNode> = Api::all(client);
    let mut news = board.news.subscribe();
    let mut written: Option<MooncakeNodeStatus> = None;
    let mut written_to = None;
    let mut wait = WRITE_PERIOD;
    loop {
        let object = assignments.borrow_and_update().node.clone();
        news.mark_unchanged();
        let mut failed = false;
        if let Some(object) = object {
            if written_to != object.metadata.uid {
                // A new object of that name starts without a status.
                written = None;
                written_to.clone_from(&object.metadata.uid);
            }
            let found = object.status.unwrap_or_default();
            let before = written.as_ref().unwrap_or(&found);
            let reports = board.reports();
            let now = Timestamp::now();
            let doubt = doubt(&found.conditions);
            let status = compose(
                &object.spec,
                &boot_id,
                board.hcas(),
                &reports,
                &before.conditions,
                doubt,
                now,
            );
            if written.as_ref() != Some(&status) || !holds(&status, &found.conditions) {
                match apply(&api, &node_name, &status).await {
                    Ok(()) => written = Some(status),
                    Err(error) => {
                        tracing::warn!(%error, "the status could not be written");
                        failed = true;
                    }
                }
            }
        }
        wait = if failed {
            (wait * 2).min(patience::LONGEST)
        } else {
            WRITE_PERIOD
        };
        tokio::time::sleep(wait).await;
        if failed {
            continue;
        }
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            changed = assignments.changed() => if changed.is_err() { return },
        }
    }
}

async fn apply(
    api: &Api<MooncakeNode>,
    name: &str,
    status: &MooncakeNodeStatus,
) -> kube::Result<()> {
    let patch = serde_json::json!({
        "apiVersion": "mooncake.io/v1alpha1",
        "kind": "MooncakeNode",
        "metadata": {"name": name},
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch_status(name, &params, &Patch::Apply(&patch))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests;
