//! Whether pods can claim RDMA devices, and the clusters' claim templates. They are watched once the API
//! server serves resource.k8s.io/v1.

use std::sync::Arc;
use std::time::Duration;

use crds::names;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use kube::Client;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use parking_lot::RwLock;

use super::{ClusterName, Trigger, Watches, of_cluster, prune, trigger};

/// API of claims, their templates and classes.
const API: &str = "resource.k8s.io/v1";
/// Message for a server without it.
pub(crate) const ABSENT: &str =
    "the API server does not serve resource.k8s.io/v1; Kubernetes 1.35 or later is required";
/// Timeout of the check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Period of checks while it is not served: the server may be upgraded.
const API_RECHECK: Duration = Duration::from_secs(60);

/// Why it is unknown whether claims are served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("cannot check whether the API server serves {API}: {0}")]
    Api(Box<kube::Error>),
    #[error("cannot check whether the API server serves {API}: no answer in {} s", CHECK_TIMEOUT.as_secs())]
    Silent,
}

/// Checks whether the API server serves claims.
pub(crate) async fn is_served(client: &Client) -> Result<bool, Unanswered> {
    let resources = client.list_api_group_resources(API);
    match tokio::time::timeout(CHECK_TIMEOUT, resources).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
        Ok(Err(error)) => Err(Unanswered::Api(Box::new(error))),
        Err(_) => Err(Unanswered::Silent),
    }
}

/// Whether pods can claim RDMA devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claimable {
    /// Not checked yet.
    #[default]
    Unknown,
    Yes,
    /// For this reason.
    No(String),
}

/// A handle to what is known; clones share it.
#[derive(Clone, Default)]
pub struct Devices {
    phase: Arc<RwLock<Phase>>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Unknown,
    Absent,
    Watching {
        templates: Store<ResourceClaimTemplate>,
        classes: Store<DeviceClass>,
    },
}

impl Devices {
    /// Starts the checks; the watches end with the runtime.
    pub(super) fn start(client: &Client, watches: Watches) -> Self {
        let devices = Self::default();
        let (found, client) = (devices.clone(), client.clone());
        tokio::spawn(async move { found.look(client, watches).await });
        devices
    }

    pub fn claimable(&self) -> Claimable {
        let phase = self.phase.read();
        match &*phase {
            Phase::Unknown => Claimable::Unknown,
            Phase::Absent => Claimable::No(ABSENT.to_owned()),
            Phase::Watching { classes, .. } if classes.is_empty() => Claimable::No(format!(
                "DeviceClass {} does not exist; set agent.devices.enabled in the Helm values to create it",
                names::DEVICE_CLASS
            )),
            Phase::Watching { .. } => Claimable::Yes,
        }
    }

    /// The cluster's claim templates; `None` if the API is not served or not checked yet.
    pub fn claim_templates(
        &self,
        cluster: &ClusterName,
    ) -> Option<Vec<Arc<ResourceClaimTemplate>>> {
        let phase = self.phase.read();
        match &*phase {
            Phase::Unknown | Phase::Absent => None,
            Phase::Watching { templates, .. } => Some(of_cluster(templates, cluster)),
        }
    }

    async fn look(self, client: Client, watches: Watches) {
        loop {
            match is_served(&client).await {
                Ok(true) => break,
                Ok(false) => {
                    if self.claimable() == Claimable::Unknown {
                        tracing::info!(why = ABSENT, "RDMA device claims are not available");
                        self.enter(Phase::Absent, &watches);
                    }
                }
                Err(unanswered) => tracing::warn!("{unanswered}; retrying"),
            }
            tokio::time::sleep(API_RECHECK).await;
        }
        let every = watcher::Config::default;
        let templates = watches.start(
            every().labels(names::LABEL_CLUSTER),
            prune::managed_fields,
            trigger::of_child,
        );
        let classes = watches.start(
            every().fields(&format!("metadata.name={}", names::DEVICE_CLASS)),
            prune::managed_fields,
            |_, _| vec![Trigger::Everything],
        );
        let listed = async {
            templates.wait_until_ready().await?;
            classes.wait_until_ready().await
        };
        if listed.await.is_ok() {
            self.enter(Phase::Watching { templates, classes }, &watches);
        }
    }

    fn enter(&self, phase: Phase, watches: &Watches) {
        *self.phase.write() = phase;
        // No receiver while this replica is not the leader.
        watches.triggers.send(Trigger::Everything).ok();
    }
}
