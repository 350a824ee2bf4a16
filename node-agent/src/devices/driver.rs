//! Answers the kubelet: prepares the devices of a claim before its pod starts, takes them back after
//! its end. A kubelet tries a failed preparation again after 70 seconds and more, so what passes by
//! itself is waited for here.

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

use super::allotment::{self, Allotted};
use super::checkpoint::{Granted, Prepared};
use super::health::Health;
use super::holdings::{Held, Holdings};
use super::message::{
    Claim, Claims, Device, Empty, PrepareResponse, PreparedClaim, UnprepareResponse,
    UnpreparedClaim,
};
use super::refusal::Refusal;
use super::{cdi, rpc};
use crate::agent::hardware::Known;
use crate::checks::sickness::Sick;

/// How long a preparation may wait for what passes by itself; the kubelet gives up after 45 seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// Between two questions to an API server that did not answer, and how long one may take.
const AGAIN: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(10);

/// Both versions have the same messages.
const SERVICES: [&str; 2] = [
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/",
];

/// All have the same messages; a kubelet calls one that it knows, if it calls any.
const HEALTH: [&str; 3] = [
    "/v1.DRAResourceHealth/NodeWatchResources",
    "/v1beta1.DRAResourceHealth/NodeWatchResources",
    "/v1alpha1.DRAResourceHealth/NodeWatchResources",
];

/// What gives the node's devices.
pub(super) struct Driver {
    pub(super) node: String,
    pub(super) slots_per_hca: u8,
    pub(super) client: kube::Client,
    pub(super) known: Known,
    pub(super) sick: watch::Receiver<Sick>,
    pub(super) holdings: Arc<Holdings>,
    pub(super) health: Health,
    pub(super) patience: Duration,
}

impl Driver {
    pub(super) fn new(
        settings: &super::Settings,
        client: kube::Client,
        known: Known,
        sick: watch::Receiver<Sick>,
        holdings: Arc<Holdings>,
        end: watch::Receiver<bool>,
    ) -> Self {
        let health = Health::new(settings, known.clone(), sick.clone(), holdings.clone(), end);
        Self {
            node: settings.node_name.clone(),
            slots_per_hca: settings.slots_per_hca,
            client,
            known,
            sick,
            holdings,
            health,
            patience: PATIENCE,
        }
    }

    async fn prepare_all(&self, claims: Claims) -> PrepareResponse {
        let until = Instant::now() + self.patience;
        let prepared = claims.claims.into_iter().map(|claim| async move {
            let answer = match self.prepare(&claim, until).await {
                Ok(prepared) => {
                    tracing::info!(
                        namespace = claim.namespace, claim = claim.name, uid = claim.uid,
                        devices = ?names(&prepared), "prepared"
                    );
                    PreparedClaim {
                        devices: self.devices(&claim.uid, &prepared),
                        error: String::new(),
                    }
                }
                Err(refusal) => {
                    tracing::warn!(
                        namespace = claim.namespace, claim = claim.name, uid = claim.uid,
                        reason = %refusal.reason, "not prepared: {refusal}"
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

    /// The same answer for a claim that is prepared already, without asking anybody.
    async fn prepare(&self, claim: &Claim, until: Instant) -> Result<Prepared, Refusal> {
        let uid = claim.uid.clone();
        if let Some(prepared) = self.on_disk(move |held| held.get(&uid)).await? {
            return Ok(prepared);
        }
        let object = self.claim(claim, until).await?;
        let allotted = allotment::of(&object, &claim.uid, &self.node)?;
        let mut freed = self.holdings.freed();
        loop {
            freed.mark_unchanged();
            let prepared = Prepared {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                devices: self.grant(&allotted, until).await?,
            };
            let (uid, wanted) = (claim.uid.clone(), prepared.clone());
            let held = self.on_disk(move |held| held.hold(&uid, &wanted)).await?;
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

    /// The claim as the API server has it.
    async fn claim(&self, claim: &Claim, until: Instant) -> Result<ResourceClaim, Refusal> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let asked = tokio::time::timeout(left.min(ANSWER), api.get_opt(&claim.name)).await;
            let why = match asked {
                Ok(Ok(Some(object))) => return Ok(object),
                Ok(Ok(None)) => {
                    let words = format!("there is no claim {}/{}", claim.namespace, claim.name);
                    return Err(Refusal::new(Reason::ClaimInvalid, words));
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the API server does not answer".to_owned(),
            };
            if Instant::now() + AGAIN >= until {
                let words = format!("reading {}/{}: {why}", claim.namespace, claim.name);
                return Err(Refusal::new(Reason::ApiFailed, words));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The files of the devices, as soon as they are seen: an agent that has just started has not looked
    /// yet, and a device may be away while its driver is loaded anew.
    async fn grant(&self, allotted: &[Allotted], until: Instant) -> Result<Vec<Granted>, Refusal> {
        let mut known = self.known.clone();
        let mut last = Refusal::new(Reason::DeviceMissing, "the node was not looked at yet");
        loop {
            let facts = known.borrow_and_update().clone();
            if let Some(facts) = facts {
                let sick = self.sick.borrow().clone();
                match allotment::grant(allotted, &facts, self.slots_per_hca, &sick) {
                    Ok(granted) => return Ok(granted),
                    // What a check has found seldom passes so soon: the pod is to say so now.
                    Err(refusal) if refusal.reason == Reason::DeviceSick => return Err(refusal),
                    Err(refusal) => last = refusal,
                }
            }
            match tokio::time::timeout_at(until, known.changed()).await {
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

    /// The claim itself may be gone already, and is not asked for.
    async fn unprepare_all(&self, claims: Claims) -> UnprepareResponse {
        let released = claims.claims.into_iter().map(|claim| async move {
            let uid = claim.uid.clone();
            let error = match self.on_disk(move |held| held.release(&uid)).await {
                Ok(()) => {
                    tracing::info!(
                        namespace = claim.namespace,
                        claim = claim.name,
                        uid = claim.uid,
                        "let go"
                    );
                    String::new()
                }
                Err(refusal) => {
                    tracing::warn!(
                        namespace = claim.namespace, claim = claim.name, uid = claim.uid,
                        reason = %refusal.reason, "not let go: {refusal}"
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
        work: impl FnOnce(&Holdings) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let holdings = Arc::clone(&self.holdings);
        let done = tokio::task::spawn_blocking(move || work(&holdings)).await;
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
