//! What is there of a cluster: plain data, taken from the caches in one go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crds::{MooncakeNode, names};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::cache::{Caches, Claimable, ClusterName, of_cluster, wanted_cluster};
use crate::cluster::desired::ForeignPeer;
use crate::cluster::eviction::Eviction;

/// One cluster as the caches show it.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub existing: Existing,
    /// Pods labelled as the master's, whatever their state.
    pub master_pods: Vec<Arc<Pod>>,
    /// Pods that our DaemonSets made, whatever their state.
    pub pool_pods: Vec<Arc<Pod>>,
    /// Pods that carry a pool's labels but that no DaemonSet of ours owns.
    pub strangers: Vec<String>,
    /// Pods of our DaemonSets that were evicted, and for which no other is Ready yet.
    pub evictions: Vec<Eviction>,
    /// Pods that ask for this cluster, of every namespace.
    pub labelled: Vec<Arc<Pod>>,
    /// MooncakeNodes of the nodes of those pods, by name.
    pub reports: BTreeMap<String, MooncakeNode>,
    pub claimable: Claimable,
}

/// Objects that carry the cluster's label.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    pub accounts: Vec<Arc<ServiceAccount>>,
    pub services: Vec<Arc<Service>>,
    pub policies: Vec<Arc<NetworkPolicy>>,
    pub slices: Vec<Arc<EndpointSlice>>,
    pub deployments: Vec<Arc<Deployment>>,
    pub daemon_sets: Vec<Arc<DaemonSet>>,
    /// `None`: the API server has no such objects, or that is not known yet.
    pub claim_templates: Option<Vec<Arc<ResourceClaimTemplate>>>,
}

/// Takes the snapshot.
pub fn observe(caches: &Caches, cluster: &ClusterName) -> Observed {
    let daemon_sets = of_cluster(&caches.daemon_sets, cluster);
    let (mut master_pods, mut pool_pods) = (Vec::new(), Vec::new());
    for pod in of_cluster(&caches.pods, cluster) {
        match pod.labels().get(names::LABEL_COMPONENT).map(String::as_str) {
            Some(names::COMPONENT_MASTER) => master_pods.push(pod),
            Some(names::COMPONENT_POOL) => pool_pods.push(pod),
            _ => {}
        }
    }
    by_name(&mut master_pods);
    by_name(&mut pool_pods);
    // A pod whose DaemonSet went with its pool is leaving, and no stranger.
    let strangers = pool_pods
        .extract_if(.., |pod| !daemon_sets.iter().any(|set| owns(set, pod)))
        .filter(|pod| pod.meta().deletion_timestamp.is_none())
        .map(|pod| pod.name_any())
        .collect();
    let mut labelled = caches
        .labelled
        .state_filter(|pod| wanted_cluster(pod).as_ref() == Some(cluster));
    by_name(&mut labelled);
    let sets: Vec<String> = daemon_sets.iter().filter_map(|set| set.uid()).collect();
    let nodes = pool_pods.iter().chain(&labelled);
    let nodes: BTreeSet<String> = nodes.filter_map(|pod| node_of(pod)).collect();
    let reports = nodes.into_iter().filter_map(|node| {
        let named = ObjectRef::<DeserializeGuard<MooncakeNode>>::new(&node);
        let report = caches.reports.get(&named)?;
        Some((node, report.0.as_ref().ok()?.clone()))
    });
    let reports = reports.collect();
    Observed {
        existing: Existing {
            accounts: of_cluster(&caches.accounts, cluster),
            services: of_cluster(&caches.services, cluster),
            policies: of_cluster(&caches.policies, cluster),
            slices: of_cluster(&caches.slices, cluster),
            deployments: of_cluster(&caches.deployments, cluster),
            daemon_sets,
            claim_templates: caches.devices.claim_templates(cluster),
        },
        master_pods,
        pool_pods,
        strangers,
        evictions: caches.evictions.of(&sets, Instant::now()),
        labelled,
        reports,
        claimable: caches.devices.claimable(),
    }
}

impl Observed {
    /// The one master pod that serves.
    pub fn ready_master(&self) -> Option<&Pod> {
        ready_master(&self.master_pods)
    }

    /// Injected pods of other namespaces that have an address of their own.
    pub fn foreign_peers(&self, namespace: &str, cluster: &str) -> Vec<ForeignPeer> {
        let peer = |pod: &Pod| {
            let own = pod.namespace()?;
            let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
            let admitted = own != namespace
                && pod.labels().get(names::LABEL_ACCESS).map(String::as_str) == Some(cluster)
                && spec.host_network != Some(true)
                && !is_over(pod);
            if !admitted {
                return None;
            }
            Some(ForeignPeer {
                namespace: own,
                name: pod.name_any(),
                uid: pod.uid()?,
                address: status.pod_ip.as_ref()?.parse::<IpAddr>().ok()?,
                node: spec.node_name.clone()?,
            })
        };
        self.labelled.iter().filter_map(|pod| peer(pod)).collect()
    }
}

/// The master pod that serves; where an old one lingers, the newest.
pub fn ready_master(pods: &[Arc<Pod>]) -> Option<&Pod> {
    pods.iter()
        .filter(|pod| is_ready(pod) && pod.meta().deletion_timestamp.is_none())
        .filter(|pod| owner(pod.meta()).is_some_and(|owner| owner.kind == "ReplicaSet"))
        .max_by_key(|pod| pod.creation_timestamp().map(|time| time.0))
        .map(AsRef::as_ref)
}

/// True where `set` is the controlling owner of `pod`, by UID.
fn owns(set: &DaemonSet, pod: &Pod) -> bool {
    owner(pod.meta()).is_some_and(|owner| Some(&owner.uid) == set.meta().uid.as_ref())
}

/// The controlling owner.
pub fn owner(
    meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// The pod's condition `Ready`.
pub fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// True where the pod's containers will not run again.
pub fn is_over(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
}

/// The node of a pool pod: where it is bound or, before that, where its DaemonSet wants it.
pub fn node_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    spec.node_name.clone().or_else(|| {
        let terms = &spec
            .affinity
            .as_ref()?
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()?
            .node_selector_terms;
        terms
            .iter()
            .flat_map(|term| term.match_fields.iter().flatten())
            .find(|field| field.key == "metadata.name")?
            .values
            .as_ref()?
            .first()
            .cloned()
    })
}

fn by_name<K: Resource>(objects: &mut [Arc<K>]) {
    objects.sort_by(|a, b| {
        (&a.meta().namespace, &a.meta().name).cmp(&(&b.meta().namespace, &b.meta().name))
    });
}
