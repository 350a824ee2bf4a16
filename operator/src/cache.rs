//! What the operator knows of the API server: one narrowed, pruned watch for each kind, and who is
//! to be reconciled when something in it moves.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, reflector as reflect};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;

use crate::cluster::eviction::Evictions;
use crate::domain::{Fabric, view};
use crate::metrics::Metrics;
use crate::node::observe::probed_at;
use crate::node::ring::{Neighbours, Ring};

pub(crate) mod devices;
mod index;
pub(crate) mod prune;
mod trigger;

pub use devices::{Claimable, Devices};
pub use index::Index;
pub use trigger::{ClusterName, Trigger, wanted_cluster};

/// Moves of which a controller may be behind before it reconciles everything instead.
const BACKLOG: usize = 1024;

/// Every watched kind.
#[derive(Clone)]
pub struct Caches {
    pub clusters: Store<DeserializeGuard<MooncakeCluster>>,
    /// The MooncakeNodes.
    pub reports: Store<DeserializeGuard<MooncakeNode>>,
    pub node_policies: Store<DeserializeGuard<MooncakeNodePolicy>>,
    pub nodes: Store<Node>,
    /// Pods of masters and pools.
    pub pods: Store<Pod>,
    /// Of those the pods on a node.
    pub pods_on: Index<Pod, String>,
    /// Of those the masters of a cluster.
    pub masters_of: Index<Pod, ClusterName>,
    /// Pods of the agent on a node.
    pub agents_on: Index<Pod, String>,
    agents: Store<Pod>,
    /// All agents that are proved to be there by others.
    ring: Arc<RwLock<Ring>>,
    /// Pods that ask for injection.
    pub labelled: Store<Pod>,
    /// Of those the pods on a node.
    pub labelled_on: Index<Pod, String>,
    pub deployments: Store<Deployment>,
    pub daemon_sets: Store<DaemonSet>,
    pub services: Store<Service>,
    pub accounts: Store<ServiceAccount>,
    pub policies: Store<NetworkPolicy>,
    pub slices: Store<EndpointSlice>,
    /// Pool pods that were evicted, also where they are gone by now.
    pub evictions: Evictions,
    /// ComputeDomains and what belongs to them, while the API server has them.
    pub fabric: Fabric,
    /// Whether pods can claim RDMA devices, and by which templates of ours.
    pub devices: Devices,
    triggers: broadcast::Sender<Trigger>,
}

impl Caches {
    /// Starts every watch; they end with the runtime.
    pub fn start(client: &Client, namespace: &str, metrics: &Metrics) -> Self {
        let (triggers, _) = broadcast::channel(BACKLOG);
        let watches = Watches {
            triggers: triggers.clone(),
            metrics: metrics.clone(),
        };
        let every = watcher::Config::default;
        let components = format!(
            "{} in ({},{})",
            names::LABEL_COMPONENT,
            names::COMPONENT_MASTER,
            names::COMPONENT_POOL
        );
        let agents_wanted = format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_AGENT);
        let ours = || every().labels(names::LABEL_CLUSTER);
        let evictions = Evictions::default();
        let noted = evictions.clone();
        let (pods, pods_writer) = reflector::store();
        let pods_on = Index::new(pods.clone(), index::node);
        let masters_of = Index::new(pods.clone(), index::mastered);
        let (agents, agents_writer) = reflector::store();
        let agents_on = Index::new(agents.clone(), index::node);
        let ring = Arc::default();
        let (labelled, labelled_writer) = reflector::store();
        let labelled_on = Index::new(labelled.clone(), index::node);
        watches.follow(
            pods_writer,
            Api::<Pod>::all(client.clone()),
            every().labels(&components),
            move |pod| {
                prune::pod(pod);
                // Here, because it may be gone before anybody is reconciled.
                noted.note(pod, Instant::now());
            },
            trigger::of_component,
            {
                let (pods_on, masters_of) = (pods_on.clone(), masters_of.clone());
                move |event| {
                    pods_on.note(event);
                    masters_of.note(event);
                }
            },
        );
        watches.follow(
            agents_writer,
            Api::<Pod>::namespaced(client.clone(), namespace),
            every().labels(&agents_wanted),
            prune::pod,
            trigger::of_agent,
            {
                let (agents, agents_on, ring) =
                    (agents.clone(), agents_on.clone(), Arc::clone(&ring));
                move |event| {
                    agents_on.note(event);
                    note_ring(&ring, &agents, &agents_on, event);
                }
            },
        );
        watches.follow(
            labelled_writer,
            Api::<Pod>::all(client.clone()),
            every().labels(names::LABEL_INJECT),
            prune::pod,
            trigger::of_labelled,
            {
                let labelled_on = labelled_on.clone();
                move |event| labelled_on.note(event)
            },
        );
        Self {
            clusters: watches.start(
                Api::<DeserializeGuard<MooncakeCluster>>::all(client.clone()),
                every(),
                prune::cluster,
                trigger::of_cluster,
            ),
            reports: watches.start(
                Api::<DeserializeGuard<MooncakeNode>>::all(client.clone()),
                every(),
                prune::report,
                trigger::of_report,
            ),
            node_policies: watches.start(
                Api::<DeserializeGuard<MooncakeNodePolicy>>::all(client.clone()),
                every(),
                prune::node_policy,
                |_| vec![Trigger::Policies],
            ),
            nodes: watches.start(
                Api::<Node>::all(client.clone()),
                every(),
                prune::node,
                |node| vec![Trigger::Node(node.name_any())],
            ),
            pods,
            pods_on,
            masters_of,
            agents,
            agents_on,
            ring,
            labelled,
            labelled_on,
            deployments: watches.start(
                Api::<Deployment>::all(client.clone()),
                ours(),
                prune::managed_fields,
                trigger::of_child,
            ),
            daemon_sets: watches.start(
                Api::<DaemonSet>::all(client.clone()),
                ours(),
                prune::managed_fields,
                trigger::of_child,
            ),
            services: watches.start(
                Api::<Service>::all(client.clone()),
                ours(),
                prune::managed_fields,
                trigger::of_service,
            ),
            accounts: watches.start(
                Api::<ServiceAccount>::all(client.clone()),
                ours(),
                prune::managed_fields,
                trigger::of_child,
            ),
            policies: watches.start(
                Api::<NetworkPolicy>::all(client.clone()),
                ours(),
                prune::managed_fields,
                trigger::of_child,
            ),
            slices: watches.start(
                Api::<EndpointSlice>::all(client.clone()),
                ours().labels(&format!(
                    "{},{}={}",
                    names::LABEL_CLUSTER,
                    crate::cluster::desired::network::LABEL_SLICE_MANAGED_BY,
                    crate::cluster::desired::MANAGED_BY
                )),
                prune::managed_fields,
                trigger::of_child,
            ),
            evictions,
            fabric: Fabric::start(client, triggers.clone(), metrics),
            devices: Devices::start(client, watches),
            triggers,
        }
    }

    /// Moves from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Trigger> {
        self.triggers.subscribe()
    }

    /// Resolves when every kind was listed once. One caller only: a store wakes no second one.
    pub async fn synced(&self) -> Result<(), reflector::store::WriterDropped> {
        self.clusters.wait_until_ready().await?;
        self.reports.wait_until_ready().await?;
        self.node_policies.wait_until_ready().await?;
        self.nodes.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.agents.wait_until_ready().await?;
        self.labelled.wait_until_ready().await?;
        self.deployments.wait_until_ready().await?;
        self.daemon_sets.wait_until_ready().await?;
        self.services.wait_until_ready().await?;
        self.accounts.wait_until_ready().await?;
        self.policies.wait_until_ready().await?;
        self.slices.wait_until_ready().await
    }

    /// The agents around a node on the ring. Beside those that are there now, `standing` are where they
    /// are said to stand.
    pub fn neighbours<'a>(
        &self,
        node: &str,
        standing: impl IntoIterator<Item = (&'a str, SocketAddr)>,
    ) -> Neighbours {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        ring.around(node, standing)
    }

    /// Nodes on which pool pods of `cluster` or pods that ask for it are, and those that take part in its
    /// ComputeDomain.
    pub fn nodes_of(&self, cluster: &ClusterName) -> BTreeSet<String> {
        self.pods
            .state()
            .iter()
            .filter(|pod| {
                pod.labels().get(names::LABEL_CLUSTER) == Some(&cluster.name)
                    && pod.namespace().as_ref() == Some(&cluster.namespace)
            })
            .filter_map(|pod| index::node(pod))
            .chain(self.nodes_of_labelled(cluster))
            .chain(view::nodes_of_cluster(self, cluster))
            .collect()
    }

    fn nodes_of_labelled(&self, cluster: &ClusterName) -> Vec<String> {
        let labelled = self.labelled.state();
        let asking = labelled
            .iter()
            .filter(|pod| wanted_cluster(pod).as_ref() == Some(cluster));
        asking.filter_map(|pod| index::node(pod)).collect()
    }
}

/// Keeps the ring in step with the agents' pods.
fn note_ring(
    ring: &RwLock<Ring>,
    agents: &Store<Pod>,
    agents_on: &Index<Pod, String>,
    event: &watcher::Event<Pod>,
) {
    let mut ring = ring.write().unwrap_or_else(PoisonError::into_inner);
    match event {
        watcher::Event::Apply(pod) | watcher::Event::Delete(pod) => {
            if let Some(node) = index::node(pod) {
                let there = agents_on.of(&node);
                ring.place(&node, there.iter().find_map(|pod| probed_at(pod)));
            }
        }
        watcher::Event::InitDone => {
            *ring = Ring::default();
            for pod in agents.state() {
                if let (Some(node), Some(address)) = (index::node(&pod), probed_at(&pod)) {
                    ring.place(&node, Some(address));
                }
            }
        }
        watcher::Event::Init | watcher::Event::InitApply(_) => {}
    }
}

struct Watches {
    triggers: broadcast::Sender<Trigger>,
    metrics: Metrics,
}

impl Watches {
    fn start<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        prune: impl Fn(&mut K) + Send + 'static,
        of: fn(&K) -> Vec<Trigger>,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store::<K>();
        self.follow(writer, api, config, prune, of, |_| ());
        store
    }

    /// `note` sees each event after the store has taken it in, and before anybody is told.
    fn follow<K>(
        &self,
        writer: reflector::store::Writer<K>,
        api: Api<K>,
        config: watcher::Config,
        prune: impl Fn(&mut K) + Send + 'static,
        of: fn(&K) -> Vec<Trigger>,
        note: impl Fn(&watcher::Event<K>) + Send + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (triggers, metrics) = (self.triggers.clone(), self.metrics.clone());
        let kind = K::kind(&());
        let stream = watcher(api, config)
            .map_ok(move |event| event.modify(&prune))
            .default_backoff();
        tokio::spawn(async move {
            let mut events = Box::pin(reflect(writer, stream));
            while let Some(event) = events.next().await {
                if let Ok(event) = &event {
                    note(event);
                }
                match event {
                    Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => {
                        for trigger in of(&object) {
                            // Nobody listens while this replica follows.
                            triggers.send(trigger).ok();
                        }
                    }
                    // What was deleted while the watch was broken gives no event of its own.
                    Ok(watcher::Event::InitDone) => {
                        triggers.send(Trigger::Everything).ok();
                    }
                    Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
                    Err(error) => {
                        metrics.count_watch_error(&kind);
                        tracing::warn!(%kind, %error, "watch broken, trying again");
                    }
                }
            }
        });
    }
}

/// A snapshot of one namespace's objects of one cluster.
pub fn of_cluster<K>(store: &Store<K>, cluster: &ClusterName) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.state_filter(|object: &K| {
        let meta = object.meta();
        meta.namespace.as_ref() == Some(&cluster.namespace)
            && meta
                .labels
                .as_ref()
                .and_then(|labels| labels.get(names::LABEL_CLUSTER))
                == Some(&cluster.name)
    })
}
