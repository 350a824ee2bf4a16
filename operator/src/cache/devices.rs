//! Whether pods can claim RDMA devices, and the templates by which those of our clusters do: followed
//! from when the API server has such objects, so that one without them costs and says little.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crds::names;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client};

use super::{ClusterName, Trigger, Watches, of_cluster, prune, trigger};

/// API of claims, their templates and classes.
const API: &str = "resource.k8s.io/v1";
/// What is said of a server without it.
pub(crate) const ABSENT: &str =
    "the API server does not serve resource.k8s.io/v1, as from Kubernetes 1.34";
/// Longest time for that answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a server without it is asked again: it may be upgraded.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Why it is not known whether claims are served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("whether {API} is served is not known: {0}")]
    Api(Box<kube::Error>),
    #[error("whether {API} is served was not answered in {} s", ANSWER.as_secs())]
    Silent,
}

/// Asks the API server whether it has claims.
pub(crate) async fn is_served(client: &Client) -> Result<bool, Unanswered> {
    let asked = client.list_api_group_resources(API);
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(false),
        Ok(Err(error)) => Err(Unanswered::Api(Box::new(error))),
        Err(_) => Err(Unanswered::Silent),
    }
}

/// Whether pods can claim RDMA devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claimable {
    /// It was not looked yet.
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
    /// Starts to look; the watches end with the runtime.
    pub(super) fn start(client: &Client, watches: Watches) -> Self {
        let devices = Self::default();
        let (found, client) = (devices.clone(), client.clone());
        tokio::spawn(async move { found.look(client, watches).await });
        devices
    }

    pub fn claimable(&self) -> Claimable {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Unknown => Claimable::Unknown,
            Phase::Absent => Claimable::No(ABSENT.to_owned()),
            Phase::Watching { classes, .. } if classes.is_empty() => Claimable::No(format!(
                "there is no DeviceClass {}, which the chart makes where agent.devices.enabled says so",
                names::DEVICE_CLASS
            )),
            Phase::Watching { .. } => Claimable::Yes,
        }
    }

    /// The cluster's; `None` where the API server has none, or that is not known yet.
    pub fn claim_templates(
        &self,
        cluster: &ClusterName,
    ) -> Option<Vec<Arc<ResourceClaimTemplate>>> {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
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
                        tracing::info!(why = ABSENT, "no claims of RDMA devices");
                        self.enter(Phase::Absent, &watches);
                    }
                }
                Err(unanswered) => tracing::warn!("{unanswered}, asking again"),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        let every = watcher::Config::default;
        let templates = watches.start(
            Api::<ResourceClaimTemplate>::all(client.clone()),
            every().labels(names::LABEL_CLUSTER),
            prune::managed_fields,
            trigger::of_child,
        );
        let classes = watches.start(
            Api::<DeviceClass>::all(client),
            every().fields(&format!("metadata.name={}", names::DEVICE_CLASS)),
            prune::managed_fields,
            |_| vec![Trigger::Everything],
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
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
        // Nobody listens while this replica follows.
        watches.triggers.send(Trigger::Everything).ok();
    }
}
