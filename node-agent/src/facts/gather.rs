//! Gathers the snapshot of the node, in one task. Sources that may be slow or hang run beside it and deliver into its
//! inbox; the probes of devices run as children that it starts.

use std::path::Path;
use std::sync::Arc;

use host::Snapshot;
use host::snapshot::PeerPath;
use tokio::sync::watch;

use super::gpu_probe::GpuProber;
use super::inbox::{Inbox, Publish};
use super::rdma_probe::RdmaProber;
use super::{clock, containers, hardware, name_service, runtime};
use crate::args::Settings;
use crate::assignments::Assignments;
use crate::peers::PeerPaths;
use crate::peers::path::{self, PathState};

/// The kubelet's folder where the settings name none.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Starts the sources and the gatherer, which publishes for as long as anybody subscribes.
pub(crate) fn start(
    settings: &Settings,
    kubernetes: kube::Client,
    assigned: watch::Receiver<Assignments>,
    paths: watch::Receiver<PeerPaths>,
    publish: Publish,
) -> Inbox {
    let (node, proc) = (settings.node(), settings.host_proc.clone());
    let (inbox, observed) = watch::channel(Snapshot::default());
    // Its processes are live even where the hardware is a recording.
    let root = proc.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    tokio::spawn(hardware::run(node.clone(), inbox.clone()));
    tokio::spawn(runtime::run(node.clone(), proc, inbox.clone()));
    tokio::spawn(containers::run(root, assigned.clone(), inbox.clone()));
    tokio::spawn(name_service::run(assigned.clone(), inbox.clone()));
    tokio::spawn(clock::run(kubernetes, inbox.clone()));
    let kubelet = settings.kubelet_dir.as_deref();
    let gatherer = Gatherer {
        observed,
        paths,
        assigned,
        rdma: RdmaProber::new(&node, settings.rdma_class()),
        gpus: GpuProber::new(&node, kubelet.unwrap_or_else(|| Path::new(KUBELET_DIR))),
        current: Snapshot::default(),
    };
    tokio::spawn(gatherer.run(publish));
    inbox
}

struct Gatherer {
    observed: watch::Receiver<Snapshot>,
    paths: watch::Receiver<PeerPaths>,
    assigned: watch::Receiver<Assignments>,
    rdma: RdmaProber,
    gpus: GpuProber,
    current: Snapshot,
}

impl Gatherer {
    async fn run(mut self, publish: Publish) {
        loop {
            tokio::select! {
                changed = self.observed.changed() => if changed.is_err() { return },
                changed = self.paths.changed() => if changed.is_err() { return },
                // Reports are published with the next reading of the hardware, every few seconds.
                Some(probed) = self.rdma.finished() => {
                    self.rdma.record(probed);
                    continue;
                }
                Some(probed) = self.gpus.finished() => {
                    let upgrading = self.gpu_driver_upgrade();
                    self.gpus.record(probed, &self.current.facts, upgrading);
                    continue;
                }
                () = publish.closed() => return,
            }
            self.take().await;
            if self.current.reading > 0 {
                publish.send_replace(Some(Arc::new(self.current.clone())));
            }
        }
    }

    /// Takes what was observed. Each reading of the hardware starts the probes that are due.
    async fn take(&mut self) {
        let observed = self.observed.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.current, observed);
        self.current.peer_paths = probed_paths(&self.paths.borrow_and_update());
        if self.current.reading == before.reading {
            self.current.hca_reports = before.hca_reports;
            self.current.gpu_reports = before.gpu_reports;
            self.current.gpu_paths = before.gpu_paths;
            return;
        }
        let rates = self.assigned.borrow().probe_rates();
        self.rdma.observe(&mut self.current, rates).await;
        let upgrading = self.gpu_driver_upgrade();
        self.gpus.observe(&mut self.current, upgrading).await;
    }

    /// Whether a GPU driver upgrade is announced; `None` before the operator has written the node's spec.
    fn gpu_driver_upgrade(&self) -> Option<bool> {
        let assigned = self.assigned.borrow();
        assigned.spec().map(|spec| spec.gpu_driver_upgrade)
    }
}

/// The paths to other agents that have been probed.
fn probed_paths(paths: &PeerPaths) -> Vec<PeerPath> {
    let probed = paths.iter().filter_map(|(node, path)| {
        let error = match &path.state {
            PathState::Unknown => return None,
            PathState::Works => None,
            PathState::Broken(error) => Some(error.clone()),
        };
        Some(PeerPath {
            node: node.clone(),
            error,
            slow: path.slow.then_some(path::SLOW),
        })
    });
    probed.collect()
}
