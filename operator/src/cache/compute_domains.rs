//! Watches the objects of NVIDIA's ComputeDomain driver. Two CRDs are always watched; everything else only
//! while both are established, so that a cluster without the driver causes no load and no log lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use kube::runtime::reflector;
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use self::objects::{Claim, Clique, DRIVER, Daemon, Domain, LABEL_DOMAIN, Offer, Template};
use self::registration::RegistrationTimes;
use self::snapshot::{DomainObjects, DomainSnapshot};
use crate::cache::{Trigger, devices, prune};
use crate::metrics::Metrics;
use crate::untyped;

pub mod objects;
pub mod registration;
pub mod snapshot;

/// The required CRDs.
const DEFINITIONS: [&str; 2] = [
    "computedomains.resource.nvidia.com",
    "computedomaincliques.resource.nvidia.com",
];
/// Period of checks for the API of claims while it is not served.
const API_RECHECK: Duration = Duration::from_secs(15);

/// Current state of the watches.
#[derive(Clone, Debug)]
pub enum Availability {
    /// Not everything was listed yet: current state is to stay.
    Unknown,
    /// The API server does not serve them, for this reason.
    Absent(String),
    Present(Arc<DomainSnapshot>),
}

/// A handle to the watches; clones share them.
#[derive(Clone)]
pub struct ComputeDomains {
    shared: Arc<Shared>,
}

struct Shared {
    phase: Mutex<Phase>,
    /// Counts every change of a watched object.
    moves: Arc<AtomicU64>,
    /// The latest snapshot and the count of changes that it includes.
    snapshot: Mutex<Option<(u64, Arc<DomainSnapshot>)>>,
    registrations: RegistrationTimes,
}

enum Phase {
    Unknown,
    Absent(String),
    Watching(Stores),
}

#[derive(Clone)]
struct Stores {
    domains: Store<DynamicObject>,
    cliques: Store<DynamicObject>,
    daemons: Store<Pod>,
    claims: Store<ResourceClaim>,
    templates: Store<ResourceClaimTemplate>,
    slices: Store<ResourceSlice>,
}

impl Stores {
    async fn synced(&self) -> Result<(), reflector::store::WriterDropped> {
        self.domains.wait_until_ready().await?;
        self.cliques.wait_until_ready().await?;
        self.daemons.wait_until_ready().await?;
        self.claims.wait_until_ready().await?;
        self.templates.wait_until_ready().await?;
        self.slices.wait_until_ready().await
    }

    fn snapshot(&self) -> DomainSnapshot {
        DomainSnapshot::new(DomainObjects {
            domains: read(&self.domains, Domain::read),
            cliques: read(&self.cliques, Clique::read),
            daemons: read(&self.daemons, Daemon::read),
            claims: read(&self.claims, Claim::read),
            templates: read(&self.templates, Template::read),
            offers: read(&self.slices, Offer::read),
        })
    }
}

fn read<K, T>(store: &Store<K>, read: fn(&K) -> Option<T>) -> Vec<T>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let objects = store.state();
    objects.iter().filter_map(|object| read(object)).collect()
}

impl ComputeDomains {
    /// Starts the watches; they end with the runtime.
    pub(crate) fn start(
        client: &Client,
        triggers: broadcast::Sender<Trigger>,
        metrics: &Metrics,
    ) -> Self {
        let compute_domains = Self {
            shared: Arc::new(Shared {
                phase: Mutex::new(Phase::Unknown),
                moves: Arc::default(),
                snapshot: Mutex::default(),
                registrations: RegistrationTimes::default(),
            }),
        };
        let watches = Watches {
            compute_domains: compute_domains.clone(),
            client: client.clone(),
            triggers,
            metrics: metrics.clone(),
        };
        tokio::spawn(async move { watches.run().await });
        compute_domains
    }

    /// The current state.
    pub fn state(&self) -> Availability {
        let stores = match &*self.shared.phase.lock() {
            Phase::Unknown => return Availability::Unknown,
            Phase::Absent(why) => return Availability::Absent(why.clone()),
            Phase::Watching(stores) => stores.clone(),
        };
        let moves = self.shared.moves.load(Ordering::Acquire);
        let mut latest = self.shared.snapshot.lock();
        if let Some((at, snapshot)) = latest.as_ref()
            && *at == moves
        {
            return Availability::Present(snapshot.clone());
        }
        let snapshot = Arc::new(stores.snapshot());
        self.shared.registrations.keep(|uid| snapshot.knows(uid));
        *latest = Some((moves, snapshot.clone()));
        Availability::Present(snapshot)
    }

    /// The cached ComputeDomain object.
    pub fn object(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let Phase::Watching(stores) = &*self.shared.phase.lock() else {
            return None;
        };
        stores.domains.find(|domain| {
            domain.metadata.name.as_deref() == Some(name)
                && domain.metadata.namespace.as_deref() == Some(namespace)
        })
    }

    pub fn registrations(&self) -> &RegistrationTimes {
        &self.shared.registrations
    }

    fn enter(&self, phase: Phase) {
        *self.shared.phase.lock() = phase;
        self.shared.moves.fetch_add(1, Ordering::Release);
    }
}

/// How one kind is watched.
struct Rule<K> {
    /// Other objects are dropped.
    keep: fn(&K) -> bool,
    prune: fn(&mut K),
    /// The triggers of a change.
    of: fn(&K) -> Vec<Trigger>,
}

struct Watches {
    compute_domains: ComputeDomains,
    client: Client,
    triggers: broadcast::Sender<Trigger>,
    metrics: Metrics,
}

impl Watches {
    async fn run(&self) {
        let definitions = DEFINITIONS.map(|name| {
            let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let api = untyped::api::<CustomResourceDefinition>(self.client.clone(), &(), None);
            let events = untyped::watch::<CustomResourceDefinition>(api, only);
            events.map(move |event| (name, event)).boxed()
        });
        let mut events = futures::stream::select_all(definitions);
        let mut served: BTreeMap<&str, bool> = BTreeMap::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        // Dropping it ends its tasks.
        let mut followers: Option<JoinSet<()>> = None;
        let mut again = false;
        loop {
            let event = if again {
                tokio::time::timeout(API_RECHECK, events.next()).await.ok()
            } else {
                Some(events.next().await)
            };
            match event {
                Some(Some((name, Ok(event)))) => match event {
                    Event::Init => {
                        seen.remove(name);
                        continue;
                    }
                    Event::InitApply(crd) | Event::Apply(crd) => {
                        seen.insert(name);
                        served.insert(name, is_served(&crd));
                    }
                    // It was not listed.
                    Event::InitDone if !seen.contains(name) => {
                        served.insert(name, false);
                    }
                    Event::InitDone => {}
                    Event::Delete(_) => {
                        served.insert(name, false);
                    }
                },
                Some(Some((name, Err(error)))) => {
                    self.metrics.count_watch_error("CustomResourceDefinition");
                    tracing::warn!(%name, %error, "watch failed; retrying");
                    continue;
                }
                Some(None) => return,
                None => {}
            }
            if served.len() < DEFINITIONS.len() {
                continue;
            }
            again = self.follow(&served, &mut followers).await;
        }
    }

    /// Starts or ends the other watches; true if the API must be checked again.
    async fn follow(
        &self,
        served: &BTreeMap<&str, bool>,
        followers: &mut Option<JoinSet<()>>,
    ) -> bool {
        let missing: Vec<&str> = DEFINITIONS
            .into_iter()
            .filter(|name| served.get(name) != Some(&true))
            .collect();
        if !missing.is_empty() {
            let version = objects::VERSION;
            let why = format!(
                "the API server does not serve {} {version}",
                missing.join(", ")
            );
            self.absent(followers, why);
            return false;
        }
        if followers.is_some() {
            return false;
        }
        match devices::is_served(&self.client).await {
            Ok(true) => {}
            Ok(false) => {
                self.absent(followers, devices::ABSENT.to_owned());
                return true;
            }
            Err(unanswered) => {
                tracing::warn!("{unanswered}; retrying");
                return true;
            }
        }
        *followers = Some(self.follow_all());
        false
    }

    fn absent(&self, followers: &mut Option<JoinSet<()>>, why: String) {
        *followers = None;
        let same =
            matches!(&*self.compute_domains.shared.phase.lock(), Phase::Absent(old) if *old == why);
        if same {
            return;
        }
        tracing::info!(%why, "ComputeDomains are not available");
        self.compute_domains.enter(Phase::Absent(why));
        self.triggers.send(Trigger::Everything).ok();
    }

    fn follow_all(&self) -> JoinSet<()> {
        let mut set = JoinSet::new();
        let every = watcher::Config::default;
        let (domain, clique) = (
            objects::compute_domains(),
            objects::compute_domain_cliques(),
        );
        let domains = Rule {
            keep: |_| true,
            prune: prune::managed_fields,
            of: of_domain,
        };
        let cliques = Rule::<DynamicObject> {
            keep: |_| true,
            prune: prune::managed_fields,
            of: |clique| of_label(clique.labels().get(LABEL_DOMAIN)),
        };
        let daemons = Rule::<Pod> {
            keep: |_| true,
            prune: daemon,
            of: |pod| of_label(pod.labels().get(LABEL_DOMAIN)),
        };
        let claims = Rule {
            keep: |claim| objects::channel_of(claim).is_some(),
            prune: prune::managed_fields,
            of: of_claim,
        };
        let templates = Rule::<ResourceClaimTemplate> {
            keep: |_| true,
            prune: prune::managed_fields,
            of: |template| {
                let namespace = template.namespace().map(Trigger::Mnnvl);
                namespace.into_iter().collect()
            },
        };
        let slices = Rule::<ResourceSlice> {
            keep: |_| true,
            prune: prune::managed_fields,
            of: |slice| {
                let node = slice.spec.node_name.clone().map(Trigger::Node);
                node.into_iter().collect()
            },
        };
        let daemon_pods = every().labels(LABEL_DOMAIN);
        let ours = every().fields(&format!("spec.driver={DRIVER}"));
        let stores = Stores {
            domains: self.one(&mut set, domain, every(), domains),
            cliques: self.one(&mut set, clique, every(), cliques),
            daemons: self.one(&mut set, (), daemon_pods, daemons),
            claims: self.one(&mut set, (), every(), claims),
            templates: self.one(&mut set, (), every(), templates),
            slices: self.one(&mut set, (), ours, slices),
        };
        let (compute_domains, triggers) = (self.compute_domains.clone(), self.triggers.clone());
        set.spawn(async move {
            if stores.synced().await.is_ok() {
                tracing::info!("watching ComputeDomains");
                compute_domains.enter(Phase::Watching(stores));
                triggers.send(Trigger::Everything).ok();
            }
        });
        set
    }

    fn one<K>(
        &self,
        set: &mut JoinSet<()>,
        kind: K::DynamicType,
        config: watcher::Config,
        rule: Rule<K>,
    ) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync,
    {
        let Rule { keep, prune, of } = rule;
        let name = K::kind(&kind).into_owned();
        let api = untyped::api::<K>(self.client.clone(), &kind, None);
        let mut writer = Writer::<K>::new(kind);
        let store = writer.as_reader();
        let (triggers, metrics) = (self.triggers.clone(), self.metrics.clone());
        let moves = self.compute_domains.shared.moves.clone();
        let stream = untyped::watch::<K>(api, config)
            .try_filter(move |event| {
                std::future::ready(match event {
                    Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => {
                        keep(object)
                    }
                    Event::Init | Event::InitDone => true,
                })
            })
            .map_ok(move |event| event.modify(prune));
        set.spawn(async move {
            let mut events = pin!(stream);
            let mut synced = false;
            while let Some(event) = events.next().await {
                if let Ok(event) = &event {
                    writer.apply_watcher_event(event);
                }
                moves.fetch_add(1, Ordering::Release);
                match event {
                    Ok(Event::Apply(object) | Event::Delete(object)) => {
                        for trigger in of(&object) {
                            triggers.send(trigger).ok();
                        }
                    }
                    Ok(Event::InitDone) => {
                        if synced {
                            triggers.send(Trigger::Everything).ok();
                        }
                        synced = true;
                    }
                    Ok(Event::Init | Event::InitApply(_)) => {}
                    Err(error) => {
                        metrics.count_watch_error(&name);
                        tracing::warn!(kind = %name, %error, "watch failed; retrying");
                    }
                }
            }
        });
        store
    }
}

/// Keeps the fields of an IMEX daemon's pod that [`Daemon::read`] reads.
fn daemon(pod: &mut Pod) {
    prune::managed_fields(pod);
    pod.annotations_mut().clear();
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        node_name: spec.node_name,
        ..PodSpec::default()
    });
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        conditions: status.conditions,
        ..PodStatus::default()
    });
}

/// True if the CRD is established and serves the supported version.
fn is_served(crd: &CustomResourceDefinition) -> bool {
    let established = crd
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Established" && condition.status == "True");
    let mut versions = crd.spec.versions.iter();
    let version = versions.any(|version| version.name == objects::VERSION && version.served);
    established && version && crd.metadata.deletion_timestamp.is_none()
}

fn of_domain(domain: &DynamicObject) -> Vec<Trigger> {
    let uid = domain.uid().map(Trigger::Domain);
    let namespace = domain.namespace().map(Trigger::Mnnvl);
    uid.into_iter().chain(namespace).collect()
}

fn of_label(uid: Option<&String>) -> Vec<Trigger> {
    uid.cloned().map(Trigger::Domain).into_iter().collect()
}

fn of_claim(claim: &ResourceClaim) -> Vec<Trigger> {
    let Some(claim) = Claim::read(claim) else {
        return Vec::new();
    };
    let node = claim.node.map(Trigger::Node);
    [Trigger::Domain(claim.domain)]
        .into_iter()
        .chain(node)
        .collect()
}
