//! Keeps the Lease for the master beside this program, and points the Service of masters at it while it leads
//! (docs/decisions/master-election.md).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use crds::{MooncakeCluster, names};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, Resource};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::election::{Election, Grant, Record, Seat, Step, Times};
use crate::seat::Local;
use crate::witness::{Request, Requests, Witness, request};

/// How long the end of the program waits for the master to end and for the Lease to be released.
const END: Duration = Duration::from_secs(5);

/// This elector and its master.
#[derive(Debug, Clone)]
pub struct Settings {
    pub namespace: String,
    pub cluster: String,
    /// UID of the MooncakeCluster, which owns the Lease.
    pub cluster_uid: String,
    /// Name of this pod.
    pub pod: String,
    /// Addresses of this pod.
    pub addresses: Vec<IpAddr>,
    /// Seconds of the Lease.
    pub lease_seconds: u32,
}

/// Keeps the Lease for one master.
pub struct Elector {
    settings: Settings,
    times: Times,
    leases: Api<Lease>,
    slices: Api<EndpointSlice>,
    local: Local,
    requests: Requests,
    election: Election,
    /// The Lease as last read or written.
    lease: Option<Lease>,
    grant: Option<Grant>,
    /// The Service is pointed at this pod in the present term.
    pointed: bool,
    /// The failures that were logged last, by what failed.
    failures: BTreeMap<&'static str, String>,
}

impl Elector {
    pub fn new(client: Client, settings: Settings, local: Local, requests: Requests) -> Self {
        let times = Times::of(settings.lease_seconds);
        Self {
            leases: Api::namespaced(client.clone(), &settings.namespace),
            slices: Api::namespaced(client, &settings.namespace),
            election: Election::new(settings.pod.clone(), times, boottime()),
            times,
            settings,
            local,
            requests,
            lease: None,
            grant: None,
            pointed: false,
            failures: BTreeMap::new(),
        }
    }

    /// Elects until `stop`. Then the master is stopped and the Lease released, so that another master need not wait.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let name = names::master(&self.settings.cluster);
        let mut events = watch_object(self.leases.clone(), &name)
            .default_backoff()
            .boxed();
        tokio::select! {
            () = self.elect(&mut events) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.election.stop();
        self.local.send("stop").await;
        if timeout(END, self.elect(&mut events)).await.is_err() {
            tracing::warn!(lease = name, "the Lease is left to run out");
        }
    }

    /// Returns when the program ends and nothing is left to do.
    async fn elect(
        &mut self,
        events: &mut (impl Stream<Item = kube::runtime::watcher::Result<Option<Lease>>> + Unpin),
    ) {
        while !self.election.is_over() {
            let now = boottime();
            match self.election.step(now, clock()) {
                Step::Hold { epoch } => self.hold(epoch).await,
                Step::Request { epoch } => self.extend(epoch).await,
                Step::Release => self.put(self.next_lease("")).await,
                Step::Attend => self.put(self.attended_lease()).await,
                Step::Wait(until) => {
                    if self.leads() && !self.pointed {
                        self.point().await;
                    }
                    let mut pause = until.saturating_sub(boottime());
                    if self.leads() && !self.pointed {
                        pause = pause.min(self.times.retry);
                    }
                    tokio::select! {
                        seat = self.local.changed() => {
                            tracing::info!(?seat, "the master beside this program");
                            self.election.sits(seat, boottime());
                            if !matches!(seat, Seat::Serving(_)) {
                                // What was permitted has ended before its time.
                                self.grant = None;
                                self.pointed = false;
                            }
                        }
                        request = self.requests.next() => self.answer(request),
                        Some(event) = events.next() => match event {
                            Ok(lease) => self.saw(lease),
                            Err(error) => self.note("watch the Lease", Some(error.to_string())),
                        },
                        () = sleep(pause) => {}
                    }
                }
            }
        }
    }

    fn leads(&self) -> bool {
        self.grant.is_some_and(|grant| boottime() < grant.until)
    }

    fn saw(&mut self, lease: Option<Lease>) {
        self.note("watch the Lease", None);
        if self.election.saw(lease.as_ref().map(record), boottime()) {
            self.know(lease);
        }
    }

    fn know(&mut self, lease: Option<Lease>) {
        let holder = lease.as_ref().and_then(|lease| {
            let address: SocketAddr = annotation(lease, names::ANNOTATION_ELECTOR)?.parse().ok()?;
            Some(address.ip())
        });
        self.requests.admit(holder);
        self.lease = lease;
    }

    fn answer(&mut self, request: Request) {
        let Request {
            holder,
            epoch,
            answer,
        } = request;
        let promised = self.election.promises(&holder, epoch, boottime());
        // The holder may have given up.
        let _left = answer.send(promised);
    }

    async fn hold(&mut self, epoch: u64) {
        let before = self.lease.as_ref().map(record);
        let renewal = before
            .is_some_and(|before| before.holder == self.settings.pod && before.epoch == epoch);
        self.pointed &= renewal;
        let mut lease = self.next_lease(&self.settings.pod);
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(names::ANNOTATION_EPOCH.to_owned(), epoch.to_string());
        annotations.insert(
            names::ANNOTATION_ELECTOR.to_owned(),
            self.requests.address().to_string(),
        );
        let witness = self.lease.as_ref().filter(|_| renewal).and_then(witness);
        // Beside each renewal: the master goes on if one of the two succeeds.
        let written = self
            .write(lease, witness.map(|witness| (witness, epoch)))
            .await;
        if written && renewal && self.leads() {
            // Another writer may have changed it.
            self.point().await;
        }
    }

    /// Sends a request to the witness, whose promise permits the master to go on as after a write.
    async fn extend(&mut self, epoch: u64) {
        let Some(witness) = self.lease.as_ref().and_then(witness) else {
            return;
        };
        let sent = boottime();
        let own = self.requests.address().ip();
        let limit = self.times.reply;
        let promised = request(own, &witness, &self.settings.pod, epoch, limit).await;
        self.promised(&witness, sent, promised).await;
    }

    /// Writes the Lease, which fails if another elector wrote it in between, and passes the result on to the master.
    async fn put(&mut self, lease: Lease) {
        self.write(lease, None).await;
    }

    /// Writes the Lease, and sends a request to the witness meanwhile, whose promise permits the master to go on if the write
    /// fails. True: written.
    async fn write(&mut self, lease: Lease, witness: Option<(Witness, u64)>) -> bool {
        let started = boottime();
        let parameters = PostParams::default();
        let name = names::master(&self.settings.cluster);
        let written = timeout(self.times.call, async {
            match lease.metadata.resource_version {
                Some(_) => self.leases.replace(&name, &parameters, &lease).await,
                None => self.leases.create(&parameters, &lease).await,
            }
        });
        let (own, pod, limit) = (
            self.requests.address().ip(),
            &self.settings.pod,
            self.times.call,
        );
        let promised = async {
            let (witness, epoch) = witness.as_ref()?;
            Some(request(own, witness, pod, *epoch, limit).await)
        };
        let (written, promised) = tokio::join!(written, promised);
        let failure = match written {
            Ok(Ok(written)) => {
                self.note("write the Lease", None);
                let grant = self.election.wrote(record(&written), started, boottime());
                self.know(Some(written));
                self.permit(grant).await;
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_elapsed) => Some(no_answer(limit)),
        };
        if let (Some((witness, _)), Some(promised)) = (witness, promised) {
            self.promised(&witness, started, promised).await;
        }
        match failure {
            Some(failure) => {
                self.failed(failure).await;
                false
            }
            None => true,
        }
    }

    async fn permit(&mut self, grant: Option<Grant>) {
        if grant.map(|grant| grant.epoch) != self.grant.map(|grant| grant.epoch) {
            tracing::info!(?grant, "leadership changed");
        }
        self.grant = grant;
        if let Some(Grant { epoch, until }) = grant {
            let line = format!("lead {epoch} {}", until.as_nanos());
            self.local.send(&line).await;
        }
    }

    async fn promised(
        &mut self,
        witness: &Witness,
        sent: Duration,
        promised: Result<bool, String>,
    ) {
        let Witness { name, address } = witness;
        let refusal = match promised {
            Ok(true) => {
                let grant = self.election.promised(name, sent, boottime());
                if grant.is_some() {
                    self.permit(grant).await;
                }
                None
            }
            Ok(false) => Some(format!("{name} at {address} refuses")),
            Err(why) => Some(format!("{name} at {address}: {why}")),
        };
        if refusal.is_some() {
            self.election.unanswered();
        }
        self.note("get a promise of the witness", refusal);
    }

    /// Reads the Lease again, during the wait before the next write: the watch may be late.
    async fn failed(&mut self, why: String) {
        self.note("write the Lease", Some(why));
        self.election.failed(boottime());
        let name = names::master(&self.settings.cluster);
        let limit = self.times.retry;
        match timeout(limit, self.leases.get_opt(&name)).await {
            Ok(Ok(lease)) => self.saw(lease),
            Ok(Err(error)) => self.note("read the Lease", Some(error.to_string())),
            Err(_elapsed) => self.note("read the Lease", Some(no_answer(limit))),
        }
    }

    /// The Lease as it is, with this elector as the witness.
    fn attended_lease(&self) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_default();
        let witness = Witness {
            name: self.settings.pod.clone(),
            address: self.requests.address(),
        };
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(names::ANNOTATION_WITNESS.to_owned(), witness.to_string());
        lease
    }

    fn next_lease(&self, holder: &str) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(names::master(&self.settings.cluster)),
                namespace: Some(self.settings.namespace.clone()),
                labels: Some(BTreeMap::from([(
                    names::LABEL_CLUSTER.to_owned(),
                    self.settings.cluster.clone(),
                )])),
                owner_references: Some(vec![OwnerReference {
                    api_version: MooncakeCluster::api_version(&()).into_owned(),
                    kind: MooncakeCluster::kind(&()).into_owned(),
                    name: self.settings.cluster.clone(),
                    uid: self.settings.cluster_uid.clone(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        if self.election.witness().is_empty() {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.remove(names::ANNOTATION_WITNESS);
        }
        let before = lease.spec.take().unwrap_or_default();
        let kept = before.holder_identity.as_deref() == Some(holder);
        let transitions = before.lease_transitions.unwrap_or(0);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(self.settings.lease_seconds).ok(),
            lease_transitions: Some(transitions + i32::from(!kept && !holder.is_empty())),
            acquire_time: before
                .acquire_time
                .filter(|_| kept)
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            ..LeaseSpec::default()
        });
        lease
    }

    /// Points the Service of masters at this pod.
    async fn point(&mut self) {
        // Not beyond the term: then another master may point it at itself.
        let left = self.grant.map_or(Duration::ZERO, |grant| {
            grant.until.saturating_sub(boottime())
        });
        let limit = self.times.call.min(left);
        let outcome = match timeout(limit, self.try_point()).await {
            Ok(outcome) => outcome.map_err(|error| format!("{error:#}")),
            Err(_elapsed) => Err(no_answer(limit)),
        };
        self.pointed = outcome.is_ok();
        self.note("point the Service at this master", outcome.err());
    }

    async fn try_point(&self) -> anyhow::Result<()> {
        let name = names::leader_slice(&self.settings.cluster);
        let found = self.slices.get_opt(&name).await?;
        let mut slice = found.with_context(|| {
            format!("EndpointSlice {name}, which the operator creates, is missing")
        })?;
        let wanted = self.endpoint(&slice)?;
        if slice.endpoints == [wanted.clone()] {
            return Ok(());
        }
        slice.endpoints = vec![wanted];
        if !self.leads() {
            bail!("the term has ended");
        }
        self.slices
            .replace(&name, &PostParams::default(), &slice)
            .await?;
        tracing::info!(slice = name, "the Service leads to this master");
        Ok(())
    }

    fn endpoint(&self, slice: &EndpointSlice) -> anyhow::Result<Endpoint> {
        let mut addresses = self.settings.addresses.iter();
        let address = addresses
            .find(|address| address.is_ipv4() == (slice.address_type == "IPv4"))
            .ok_or_else(|| {
                anyhow!(
                    "the Service has {} addresses, and this pod has none",
                    slice.address_type
                )
            })?;
        Ok(Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            }),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".to_owned()),
                namespace: Some(self.settings.namespace.clone()),
                name: Some(self.settings.pod.clone()),
                ..ObjectReference::default()
            }),
            ..Endpoint::default()
        })
    }

    /// Logs a failure once, and its end.
    fn note(&mut self, what: &'static str, failure: Option<String>) {
        match (failure, self.failures.get(what)) {
            (Some(failure), known) if known != Some(&failure) => {
                tracing::warn!(
                    lease = names::master(&self.settings.cluster),
                    namespace = self.settings.namespace,
                    failure,
                    "cannot {what}; trying again"
                );
                self.failures.insert(what, failure);
            }
            (None, Some(_)) => {
                tracing::info!("could {what} again");
                self.failures.remove(what);
            }
            (Some(_) | None, _) => {}
        }
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer from the API server in {limit:?}")
}

fn annotation<'a>(lease: &'a Lease, name: &str) -> Option<&'a str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

fn witness(lease: &Lease) -> Option<Witness> {
    annotation(lease, names::ANNOTATION_WITNESS)?.parse().ok()
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    let epoch = annotation(lease, names::ANNOTATION_EPOCH).and_then(|epoch| epoch.parse().ok());
    let version = lease.metadata.resource_version.as_ref();
    Record {
        holder: spec
            .and_then(|spec| spec.holder_identity.clone())
            .unwrap_or_default(),
        epoch: epoch.unwrap_or(0),
        version: version
            .and_then(|version| version.parse().ok())
            .unwrap_or(0),
        seconds: spec
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u32::try_from(seconds).ok()),
        witness: witness(lease).map_or_else(String::new, |witness| witness.name),
    }
}

/// Returns the time since boot, which goes on while the process or its machine is stopped. The master reads the same clock.
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Returns the milliseconds since 1970.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
