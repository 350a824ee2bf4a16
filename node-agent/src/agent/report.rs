//! The status of the node's own MooncakeNode: gathered on a board, written by server-side apply
//! when it has changed and at no other time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crds::node::{
    DeviceHealth, HcaLine, MooncakeNodeStatus, PoolAssignment, PoolReport, PoolState,
};
use crds::reason::Reason;
use crds::{FixReport, MooncakeNode};
use engine::{Host, HostStats, PeerFailures};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use tokio::sync::watch;

use super::assignments::Assignments;
use super::{metrics, patience};
use crate::checks::Owner;
use crate::checks::steady::Health;

mod status;

use status::{Noted, compose, doubt, holds};

/// Whose fields these are.
pub(crate) const FIELD_MANAGER: &str = "mooncake-agent";

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

/// What each pool pod's task says about it, what is known of the node's RDMA devices, and how the node
/// was judged.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    posted: Arc<Mutex<BTreeMap<String, Posted>>>,
    hcas: Arc<Mutex<Option<HcaLines>>>,
    took: Arc<Mutex<Vec<metrics::Took>>>,
    devices: Arc<Mutex<Option<DeviceHealth>>>,
    health: Arc<Mutex<Option<Health>>>,
    owners: Arc<Mutex<Vec<Owner>>>,
    fixes: Arc<Mutex<Option<Vec<FixReport>>>>,
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
            took: Arc::default(),
            devices: Arc::default(),
            health: Arc::default(),
            owners: Arc::default(),
            fixes: Arc::default(),
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
        let news = hcas.as_ref() != Some(&lines);
        *hcas = Some(lines);
        drop(hcas);
        if news {
            self.news.send_replace(());
        }
    }

    /// Says how long the RDMA devices took for what they were asked to do; no news to anybody but a
    /// scraper.
    pub(crate) fn set_took(&self, took: Vec<metrics::Took>) {
        *self.took.lock().unwrap_or_else(PoisonError::into_inner) = took;
    }

    pub(crate) fn took(&self) -> Vec<metrics::Took> {
        let took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        took.clone()
    }

    fn hcas(&self) -> Option<HcaLines> {
        let hcas = self.hcas.lock().unwrap_or_else(PoisonError::into_inner);
        hcas.clone()
    }

    /// Says which RDMA devices are sick.
    pub(crate) fn set_devices(&self, said: DeviceHealth) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let news = devices.as_ref() != Some(&said);
        *devices = Some(said);
        drop(devices);
        if news {
            self.news.send_replace(());
        }
    }

    pub(crate) fn devices(&self) -> Option<DeviceHealth> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.clone()
    }

    /// Says how the node was judged, and who the pods are that were named for a device that they hold.
    pub(crate) fn set_health(&self, judged: Health, owners: Vec<Owner>) {
        *self.owners.lock().unwrap_or_else(PoisonError::into_inner) = owners;
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let news = health.as_ref() != Some(&judged);
        *health = Some(judged);
        drop(health);
        if news {
            self.news.send_replace(());
        }
    }

    /// How the node was judged; absent before the first look.
    pub(crate) fn health(&self) -> Option<Health> {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.clone()
    }

    fn owners(&self) -> Vec<Owner> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.clone()
    }

    /// Says what was, would be or cannot be set right.
    pub(crate) fn set_fixes(&self, reports: Vec<FixReport>) {
        let mut fixes = self.fixes.lock().unwrap_or_else(PoisonError::into_inner);
        let news = fixes.as_ref() != Some(&reports);
        *fixes = Some(reports);
        drop(fixes);
        if news {
            self.news.send_replace(());
        }
    }

    /// What is said of the fixes; absent before the first look.
    pub(crate) fn fixes(&self) -> Option<Vec<FixReport>> {
        let fixes = self.fixes.lock().unwrap_or_else(PoisonError::into_inner);
        fixes.clone()
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
            let noted = Noted {
                hcas: board.hcas(),
                devices: board.devices(),
                health: board.health(),
                owners: board.owners(),
                fixes: board.fixes(),
                reports: board.reports(),
            };
            let doubt = doubt(&found.conditions);
            let now = Timestamp::now();
            let status = compose(&object.spec, &boot_id, noted, before, &doubt, now);
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
