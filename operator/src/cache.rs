//! The operator's cache of the API server: one filtered, pruned watch for each kind, and the triggers
//! that a change sends to the controllers.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, names};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, Resource};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use crate::metrics::Metrics;
use crate::pod::{leader, probed_at};
use crate::untyped;

pub mod compute_domains;
pub(crate) mod devices;
pub mod evictions;
mod index;
pub mod probe_ring;
pub(crate) mod prune;
mod trigger;

pub use compute_domains::ComputeDomains;
pub use devices::{Claimable, Devices};
pub use evictions::Evictions;
pub use index::Index;
use probe_ring::{Neighbours, ProbeRing};
pub use trigger::{ClusterName, Trigger, requested_cluster};

/// Triggers that a controller may lag behind before it reconciles everything instead.
const BACKLOG: usize = 1024;

/// Every watched kind.
#[derive(Clone)]
pub struct Caches {
    pub clusters: Store<DeserializeGuard<MooncakeCluster>>,
    /// The MooncakeNodes.
    pub mooncake_nodes: Store<DeserializeGuard<MooncakeNode>>,
    pub node_policies: Store<DeserializeGuard<MooncakeNodePolicy>>,
    pub nodes: Store<Node>,
    /// Pods of masters and pools, and guards.
    pub pods: Store<Pod>,
    /// Index of these by node.
    pub pods_on: Index<Pod, String>,
    /// Index of these by cluster.
    pub pods_of: Index<Pod, ClusterName>,
    /// Index of the masters by cluster.
    pub masters_of: Index<Pod, ClusterName>,
    /// Pods of the agent on a node.
    pub agents_on: Index<Pod, String>,
    /// All agents that other agents probe.
    ring: Arc<RwLock<ProbeRing>>,
    /// Pods that request injection.
    pub labelled: Store<Pod>,
    /// Index of these by node.
    pub labelled_on: Index<Pod, String>,
    /// Index of these by requested cluster.
    pub labelled_of: Index<Pod, ClusterName>,
    pub deployments: Store<Deployment>,
    pub daemon_sets: Store<DaemonSet>,
    pub services: Store<Service>,
    pub accounts: Store<ServiceAccount>,
    pub roles: Store<Role>,
    pub bindings: Store<RoleBinding>,
    pub budgets: Store<PodDisruptionBudget>,
    pub policies: Store<NetworkPolicy>,
    pub slices: Store<EndpointSlice>,
    /// Evicted pool pods, also deleted ones.
    pub evictions: Evictions,
    /// ComputeDomains and related objects, while the API server serves them.
    pub compute_domains: ComputeDomains,
    /// Whether pods can claim RDMA devices, and the clusters' claim templates.
    pub devices: Devices,
    triggers: broadcast::Sender<Trigger>,
    /// One for each kind that is always served: true after its first list.
    listed: Vec<watch::Receiver<bool>>,
}

impl Caches {
    /// Starts every watch; they end with the runtime.
    pub fn start(client: &Client, namespace: &str, metrics: &Metrics) -> Self {
        let (triggers, _) = broadcast::channel(BACKLOG);
        let watches = Watches {
            client: client.clone(),
            triggers: triggers.clone(),
            metrics: metrics.clone(),
            listed: Mutex::default(),
        };
        let every = watcher::Config::default;
        let ours = || every().labels(names::LABEL_CLUSTER);
        let evictions = Evictions::default();
        let components = Components::start(&watches, &evictions);
        let (agents_on, ring) = start_agents(&watches, namespace);
        let (labelled, labelled_on, labelled_of) = start_labelled(&watches);
        Self {
            clusters: watches.start(every(), prune::cluster, trigger::of_cluster),
            mooncake_nodes: watches.start(every(), prune::mooncake_node, trigger::of_mooncake_node),
            node_policies: watches.start(every(), prune::node_policy, trigger::of_policy),
            nodes: watches.start(every(), prune::node, trigger::of_node),
            pods: components.pods,
            pods_on: components.on,
            pods_of: components.of,
            masters_of: components.masters_of,
            agents_on,
            ring,
            labelled,
            labelled_on,
            labelled_of,
            deployments: watches.start(ours(), prune::deployment, trigger::of_child),
            daemon_sets: watches.start(ours(), prune::daemon_set, trigger::of_child),
            services: watches.start(ours(), prune::managed_fields, trigger::of_service),
            accounts: watches.start(ours(), prune::managed_fields, trigger::of_child),
            roles: watches.start(ours(), prune::managed_fields, trigger::of_child),
            budgets: watches.start(ours(), prune::managed_fields, trigger::of_child),
            bindings: watches.start(ours(), prune::managed_fields, trigger::of_child),
            policies: watches.start(ours(), prune::managed_fields, trigger::of_child),
            slices: watches.start(
                ours().labels(&format!(
                    "{},{}={}",
                    names::LABEL_CLUSTER,
                    crate::apply::LABEL_SLICE_MANAGED_BY,
                    crate::apply::MANAGED_BY
                )),
                prune::managed_fields,
                trigger::of_child,
            ),
            evictions,
            listed: watches.listed(),
            compute_domains: ComputeDomains::start(client, triggers.clone(), metrics),
            devices: Devices::start(client, watches),
            triggers,
        }
    }

    /// The name of the elected master of several.
    pub fn leader(&self, cluster: &ClusterName) -> Option<String> {
        let slice = ObjectRef::new(&names::leader_slice(&cluster.name)).within(&cluster.namespace);
        leader(self.slices.get(&slice)?.as_ref())
    }

    /// Sends a trigger to the controllers.
    pub fn trigger(&self, trigger: Trigger) {
        // No receiver while this replica is not the leader.
        self.triggers.send(trigger).ok();
    }

    /// Triggers from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Trigger> {
        self.triggers.subscribe()
    }

    /// Resolves when every kind was listed once and is indexed.
    ///
    /// # Errors
    /// A watch has ended, with its runtime.
    pub async fn synced(&self) -> Result<(), watch::error::RecvError> {
        for listed in &self.listed {
            listed.clone().wait_for(|listed| *listed).await?;
        }
        Ok(())
    }

    /// The agents around a node on the ring: those that run now, and the `recorded` ones.
    pub fn neighbours<'a>(
        &self,
        node: &str,
        recorded: impl IntoIterator<Item = (&'a str, SocketAddr)>,
    ) -> Neighbours {
        let ring = self.ring.read();
        ring.around(node, recorded)
    }
}

/// The pods of masters and pools, and guards.
struct Components {
    pods: Store<Pod>,
    on: Index<Pod, String>,
    of: Index<Pod, ClusterName>,
    masters_of: Index<Pod, ClusterName>,
}

impl Components {
    /// Starts their watch, which also notes evictions.
    fn start(watches: &Watches, evictions: &Evictions) -> Self {
        let (pods, writer) = reflector::store();
        let on = Index::new(pods.clone(), index::node);
        let of = Index::new(pods.clone(), index::clustered);
        let masters_of = Index::new(pods.clone(), index::mastered);
        let wanted = format!(
            "{} in ({},{},{})",
            names::LABEL_COMPONENT,
            names::COMPONENT_MASTER,
            names::COMPONENT_POOL,
            names::COMPONENT_GUARD
        );
        let evictions = evictions.clone();
        watches.follow(
            writer,
            None,
            watcher::Config::default().labels(&wanted),
            move |pod| {
                prune::pod(pod);
                // Here: the pod may be deleted before the next reconcile.
                evictions.note(pod, Instant::now());
            },
            trigger::of_component,
            {
                let (on, of, masters_of) = (on.clone(), of.clone(), masters_of.clone());
                move |event| {
                    on.note(event);
                    of.note(event);
                    masters_of.note(event);
                }
            },
        );
        Self {
            pods,
            on,
            of,
            masters_of,
        }
    }
}

/// Starts the watch of the agents' pods in the operator's namespace. Returns their index by node, and their ring.
fn start_agents(
    watches: &Watches,
    namespace: &str,
) -> (Index<Pod, String>, Arc<RwLock<ProbeRing>>) {
    let (agents, writer) = reflector::store();
    let on = Index::new(agents.clone(), index::node);
    let ring = Arc::default();
    let wanted = format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_AGENT);
    watches.follow(
        writer,
        Some(namespace),
        watcher::Config::default().labels(&wanted),
        prune::pod,
        trigger::of_agent,
        {
            let (on, ring) = (on.clone(), Arc::clone(&ring));
            move |event| {
                on.note(event);
                note_ring(&ring, &agents, &on, event);
            }
        },
    );
    (on, ring)
}

/// Starts the watch of the pods that request injection. Returns them, and their indices by node and by requested cluster.
fn start_labelled(watches: &Watches) -> (Store<Pod>, Index<Pod, String>, Index<Pod, ClusterName>) {
    let (pods, writer) = reflector::store();
    let on = Index::new(pods.clone(), index::node);
    let of = Index::new(pods.clone(), requested_cluster);
    watches.follow(
        writer,
        None,
        watcher::Config::default().labels(names::LABEL_INJECT),
        prune::pod,
        trigger::of_labelled,
        {
            let (on, of) = (on.clone(), of.clone());
            move |event| {
                on.note(event);
                of.note(event);
            }
        },
    );
    (pods, on, of)
}

/// Keeps the ring in step with the agents' pods.
fn note_ring(
    ring: &RwLock<ProbeRing>,
    agents: &Store<Pod>,
    agents_on: &Index<Pod, String>,
    event: &watcher::Event<Pod>,
) {
    let mut ring = ring.write();
    match event {
        watcher::Event::Apply(pod) | watcher::Event::Delete(pod) => {
            if let Some(node) = index::node(pod) {
                let there = agents_on.of(&node);
                ring.place(&node, there.iter().find_map(|pod| probed_at(pod)));
            }
        }
        watcher::Event::InitDone => {
            *ring = ProbeRing::default();
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
    client: Client,
    triggers: broadcast::Sender<Trigger>,
    metrics: Metrics,
    listed: Mutex<Vec<watch::Receiver<bool>>>,
}

impl Watches {
    fn listed(&self) -> Vec<watch::Receiver<bool>> {
        self.listed.lock().clone()
    }

    /// Watches the objects of a kind in all namespaces.
    fn start<K>(
        &self,
        config: watcher::Config,
        prune: impl Fn(&mut K) + Send + 'static,
        of: fn(Option<&K>, &K) -> Vec<Trigger>,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store::<K>();
        self.follow(writer, None, config, prune, of, |_| ());
        store
    }

    /// Watches the objects of a kind in one namespace, or in all. `of` gets each object with the one that it replaces in the store; after a deletion that is none. `note` gets
    /// each event after the store and before the triggers are sent.
    fn follow<K>(
        &self,
        mut writer: reflector::store::Writer<K>,
        namespace: Option<&str>,
        config: watcher::Config,
        prune: impl Fn(&mut K) + Send + 'static,
        of: fn(Option<&K>, &K) -> Vec<Trigger>,
        note: impl Fn(&watcher::Event<K>) + Send + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (triggers, metrics) = (self.triggers.clone(), self.metrics.clone());
        let (listed, listener) = watch::channel(false);
        self.listed.lock().push(listener);
        let kind = K::kind(&());
        let api = untyped::api::<K>(self.client.clone(), &(), namespace);
        let mut events = untyped::watch::<K>(api, config);
        tokio::spawn(async move {
            let store = writer.as_reader();
            while let Some(event) = events.next().await {
                let event = match event {
                    Ok(event) => event.modify(&prune),
                    Err(error) => {
                        metrics.count_watch_error(&kind);
                        tracing::warn!(%kind, %error, "watch failed; retrying");
                        continue;
                    }
                };
                let changes = match &event {
                    watcher::Event::Apply(object) => {
                        let old = store.get(&ObjectRef::from_obj(object));
                        of(old.as_deref(), object)
                    }
                    watcher::Event::Delete(object) => of(None, object),
                    // Deletions while the watch was broken send no event.
                    watcher::Event::InitDone => vec![Trigger::Everything],
                    watcher::Event::Init | watcher::Event::InitApply(_) => Vec::new(),
                };
                writer.apply_watcher_event(&event);
                note(&event);
                if matches!(event, watcher::Event::InitDone) {
                    // After the indices: an assignment that is only not indexed yet must not be removed.
                    listed.send_replace(true);
                }
                for trigger in changes {
                    // No receiver while this replica is not the leader.
                    triggers.send(trigger).ok();
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
