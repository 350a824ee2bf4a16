//! DRA service for the kubelet: prepares a claim before its pod starts and unprepares it after the pod
//! ended. The kubelet retries a failed preparation only after 70 s or more, so this waits for causes that
//! pass by themselves.

use std::sync::Arc;
use std::time::Duration;

use crds::reason::Reason;
use futures::future::{BoxFuture, FutureExt as _, join_all};
use hyper::body::Incoming;
use hyper::{Request, Response};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::body::Body;

use super::allocation::{self, Allocated};
use super::checkpoint::{Granted, Prepared};
use super::claim_store::{ClaimStore, Held};
use super::health::Health;
use super::message::{
    Claim, Claims, Device, Empty, PrepareResponse, PreparedClaim, UnprepareResponse,
    UnpreparedClaim,
};
use super::refusal::Refusal;
use super::{Inputs, Snapshots, UnhealthyDevices, cdi, rpc};

/// How long a preparation waits for a cause to pass; the kubelet gives up after 45 s.
const PREPARE_DEADLINE: Duration = Duration::from_secs(40);

/// Time between two requests to an API server that did not respond, and the deadline of one.
const RETRY: Duration = Duration::from_secs(1);
const API_DEADLINE: Duration = Duration::from_secs(10);

/// Both versions use the same messages.
const SERVICES: [&str; 2] = [
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/",
];

/// All versions use the same messages; the kubelet calls at most one.
const HEALTH: [&str; 3] = [
    "/v1.DRAResourceHealth/NodeWatchResources",
    "/v1beta1.DRAResourceHealth/NodeWatchResources",
    "/v1alpha1.DRAResourceHealth/NodeWatchResources",
];

/// The DRA service.
pub(super) struct Driver {
    pub(super) node: String,
    pub(super) slots_per_hca: u8,
    pub(super) client: kube::Client,
    pub(super) snapshots: Snapshots,
    pub(super) unhealthy: watch::Receiver<UnhealthyDevices>,
    pub(super) store: Arc<ClaimStore>,
    pub(super) health: Health,
    pub(super) prepare_deadline: Duration,
}

impl Driver {
    pub(super) fn new(inputs: &Inputs, store: Arc<ClaimStore>) -> Self {
        Self {
            node: inputs.settings.node_name.clone(),
            slots_per_hca: inputs.settings.slots_per_hca,
            client: inputs.client.clone(),
            snapshots: inputs.snapshots.clone(),
            unhealthy: inputs.unhealthy.clone(),
            health: Health::new(inputs, Arc::clone(&store)),
            store,
            prepare_deadline: PREPARE_DEADLINE,
        }
    }

    async fn prepare_all(&self, claims: Claims) -> PrepareResponse {
        let until = Instant::now() + self.prepare_deadline;
        let prepared = claims.claims.into_iter().map(|claim| async move {
            let answer = match self.prepare(&claim, until).await {
                Ok(prepared) => {
                    tracing::info!(
                        namespace = claim.namespace, claim = claim.name, uid = claim.uid,
                        devices = ?names(&prepared), "prepared the claim"
                    );
                    PreparedClaim {
                        devices: self.devices(&claim.uid, &prepared),
                        error: String::new(),
                    }
                }
                Err(refusal) => {
                    tracing::warn!(
                        namespace = claim.namespace, claim = claim.name, uid = claim.uid,
                        reason = %refusal.reason, "cannot prepare the claim: {refusal}"
                    );
                    PreparedClaim {
                        devices: Vec::new(),
                        error: refusal.to_string(),
                    }
                }
            };
            (claim.uid, answer)
        });
        PrepareResponse {
            claims: join_all(prepared).await.into_iter().collect(),
        }
    }

    /// Prepares a claim; one that is prepared already needs no request.
    async fn prepare(&self, claim: &Claim, until: Instant) -> Result<Prepared, Refusal> {
        let uid = claim.uid.clone();
        if let Some(prepared) = self.on_disk(move |store| store.get(&uid)).await? {
            return Ok(prepared);
        }
        let object = self.claim(claim, until).await?;
        let allocated = allocation::of(&object, &claim.uid, &self.node)?;
        let mut freed = self.store.freed();
        loop {
            freed.mark_unchanged();
            let prepared = Prepared {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                devices: self.grant(&allocated, until).await?,
            };
            let (uid, wanted) = (claim.uid.clone(), prepared.clone());
            let held = self.on_disk(move |store| store.hold(&uid, &wanted)).await?;
            match held {
                Held::Yes => return Ok(prepared),
                Held::ByAnother(who) => {
                    let next = tokio::time::timeout_at(until, freed.changed()).await;
                    if !matches!(next, Ok(Ok(()))) {
                        return Err(Refusal::new(Reason::DeviceBusy, who));
                    }
                }
            }
        }
    }

    /// Reads the claim from the API server.
    async fn claim(&self, claim: &Claim, until: Instant) -> Result<ResourceClaim, Refusal> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let read = tokio::time::timeout(left.min(API_DEADLINE), api.get_opt(&claim.name)).await;
            let why = match read {
                Ok(Ok(Some(object))) => return Ok(object),
                Ok(Ok(None)) => {
                    let words = format!("claim {}/{} does not exist", claim.namespace, claim.name);
                    return Err(Refusal::new(Reason::ClaimInvalid, words));
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the API server does not respond".to_owned(),
            };
            if Instant::now() + RETRY >= until {
                let words = format!(
                    "cannot read claim {}/{}: {why}",
                    claim.namespace, claim.name
                );
                return Err(Refusal::new(Reason::ApiFailed, words));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Waits until the device files exist: a new agent has no facts yet, and a reloaded kernel driver
    /// removes devices for a moment.
    async fn grant(
        &self,
        allocated: &[Allocated],
        until: Instant,
    ) -> Result<Vec<Granted>, Refusal> {
        let mut snapshots = self.snapshots.clone();
        let mut last = Refusal::new(
            Reason::DeviceMissing,
            "the agent has not read the node's devices yet",
        );
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            if let Some(snapshot) = snapshot {
                let facts = &snapshot.facts;
                let unhealthy = self.unhealthy.borrow().clone();
                match allocation::grant(allocated, facts, self.slots_per_hca, &unhealthy) {
                    Ok(granted) => return Ok(granted),
                    // An unhealthy device seldom recovers so soon: report it on the pod now.
                    Err(refusal) if refusal.reason == Reason::DeviceUnhealthy => {
                        return Err(refusal);
                    }
                    Err(refusal) => last = refusal,
                }
            }
            match tokio::time::timeout_at(until, snapshots.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(last),
            }
        }
    }

    fn devices(&self, uid: &str, prepared: &Prepared) -> Vec<Device> {
        let devices = prepared.devices.iter().map(|granted| Device {
            request_names: vec![granted.request.clone()],
            pool_name: self.node.clone(),
            device_name: granted.device.clone(),
            cdi_device_ids: vec![cdi::id(uid, granted)],
        });
        devices.collect()
    }

    /// Does not read the claims, which may be deleted already.
    async fn unprepare_all(&self, claims: Claims) -> UnprepareResponse {
        let released = claims.claims.into_iter().map(|claim| async move {
            let uid = claim.uid.clone();
            let error = match self.on_disk(move |store| store.release(&uid)).await {
                Ok(()) => {
                    tracing::info!(
                        namespace = claim.namespace,
                        claim = claim.name,
                        uid = claim.uid,
                        "unprepared the claim"
                    );
                    String::new()
                }
                Err(refusal) => {
                    tracing::warn!(
                        namespace = claim.namespace, claim = claim.name, uid = claim.uid,
                        reason = %refusal.reason, "cannot unprepare the claim: {refusal}"
                    );
                    refusal.to_string()
                }
            };
            (claim.uid, UnpreparedClaim { error })
        });
        UnprepareResponse {
            claims: join_all(released).await.into_iter().collect(),
        }
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ClaimStore) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.unwrap_or_else(|error| {
            Err(Refusal::new(Reason::DeviceRecordFailed, error.to_string()))
        })
    }
}

fn names(prepared: &Prepared) -> Vec<&str> {
    let devices = prepared.devices.iter();
    devices.map(|granted| granted.device.as_str()).collect()
}

impl rpc::Service for Driver {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>> {
        let path = request.uri().path().to_owned();
        let method = SERVICES
            .iter()
            .find_map(|service| path.strip_prefix(service))
            .unwrap_or_default()
            .to_owned();
        async move {
            let driver = &self;
            if HEALTH.contains(&path.as_str()) {
                let reports = driver.health.reports();
                return rpc::streaming::<Empty, _, _>(request, reports).await;
            }
            match method.as_str() {
                "NodePrepareResources" => {
                    let prepare = |claims| async move { Ok(driver.prepare_all(claims).await) };
                    rpc::unary(request, prepare).await
                }
                "NodeUnprepareResources" => {
                    let unprepare = |claims| async move { Ok(driver.unprepare_all(claims).await) };
                    rpc::unary(request, unprepare).await
                }
                _ => rpc::unknown(&path),
            }
        }
        .boxed()
    }
}
