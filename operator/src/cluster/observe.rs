//! Observed state of one cluster, read from the caches at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crds::cluster::MasterType;
use crds::{MooncakeNode, Vocabulary, Word, names};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::apply::owner;
use crate::cache::evictions::Eviction;
use crate::cache::{Caches, Claimable, ClusterName, of_cluster};
use crate::cluster::desired::ForeignPeer;
use crate::pod::{is_over, leader, node_of, serving_master};

/// Observed state of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub existing: Existing,
    /// Pods with the label of the master, in any state.
    pub master_pods: Vec<Arc<Pod>>,
    /// Pods that the operator's DaemonSets own, in any state.
    pub pool_pods: Vec<Arc<Pod>>,
    /// Pool pods whose DaemonSet was deleted with their pool: they end, or are about to.
    pub former_pool_pods: Vec<Arc<Pod>>,
    /// Pods with the label of guards.
    pub guards: Vec<Arc<Pod>>,
    /// Pods with a pool's labels that no DaemonSet of the operator owns.
    pub foreign_pods: Vec<String>,
    /// Evicted pool pods without a Ready replacement.
    pub evictions: Vec<Eviction>,
    /// Pods that request this cluster, of every namespace.
    pub labelled: Vec<Arc<Pod>>,
    /// MooncakeNodes of the nodes of those pods, by name.
    pub mooncake_nodes: BTreeMap<String, Arc<DeserializeGuard<MooncakeNode>>>,
    pub claimable: Claimable,
}

/// Objects that carry the cluster's label.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    pub accounts: Vec<Arc<ServiceAccount>>,
    pub roles: Vec<Arc<Role>>,
    pub bindings: Vec<Arc<RoleBinding>>,
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
    pub services: Vec<Arc<Service>>,
    pub policies: Vec<Arc<NetworkPolicy>>,
    pub slices: Vec<Arc<EndpointSlice>>,
    pub deployments: Vec<Arc<Deployment>>,
    pub daemon_sets: Vec<Arc<DaemonSet>>,
    /// `None`: the API server has no such objects, or that is not known yet.
    pub claim_templates: Option<Vec<Arc<ResourceClaimTemplate>>>,
}

/// Reads the state of the cluster with this UID.
pub fn observe(caches: &Caches, cluster: &ClusterName, cluster_uid: Option<&str>) -> Observed {
    let daemon_sets = of_cluster(&caches.daemon_sets, cluster);
    let (mut master_pods, mut pool_pods) = (Vec::new(), Vec::new());
    let mut guards = Vec::new();
    for pod in caches.pods_of.of(cluster) {
        match pod.labels().get(names::LABEL_COMPONENT).map(String::as_str) {
            Some(names::COMPONENT_MASTER) => master_pods.push(pod),
            Some(names::COMPONENT_POOL) => pool_pods.push(pod),
            Some(names::COMPONENT_GUARD) => guards.push(pod),
            _ => {}
        }
    }
    by_name(&mut master_pods);
    by_name(&mut pool_pods);
    // Nobody but the operator assigns a pod, and it does until the pod has ended.
    let is_assigned = |pod: &Pod| {
        let node = node_of(pod).unwrap_or_default();
        let named = ObjectRef::<DeserializeGuard<MooncakeNode>>::new(&node);
        let node = caches.mooncake_nodes.get(&named);
        let node = node.as_ref().and_then(|node| node.0.as_ref().ok());
        let mut pools = node.into_iter().flat_map(|node| &node.spec.pools);
        pools.any(|pool| {
            Some(&*pool.cluster_uid) == cluster_uid && Some(&pool.pod_uid) == pod.uid().as_ref()
        })
    };
    let (former_pool_pods, foreign_pods) = take_others(&mut pool_pods, &daemon_sets, is_assigned);
    let mut labelled = caches.labelled_of.of(cluster);
    by_name(&mut labelled);
    let sets: Vec<String> = daemon_sets.iter().filter_map(|set| set.uid()).collect();
    let nodes = pool_pods.iter().chain(&labelled);
    let nodes: BTreeSet<String> = nodes.filter_map(|pod| node_of(pod)).collect();
    let mooncake_nodes = nodes.into_iter().filter_map(|node| {
        let named = ObjectRef::<DeserializeGuard<MooncakeNode>>::new(&node);
        Some((node, caches.mooncake_nodes.get(&named)?))
    });
    let mooncake_nodes = mooncake_nodes.collect();
    Observed {
        existing: Existing {
            accounts: of_cluster(&caches.accounts, cluster),
            roles: of_cluster(&caches.roles, cluster),
            bindings: of_cluster(&caches.bindings, cluster),
            budgets: of_cluster(&caches.budgets, cluster),
            services: of_cluster(&caches.services, cluster),
            policies: of_cluster(&caches.policies, cluster),
            slices: of_cluster(&caches.slices, cluster),
            deployments: of_cluster(&caches.deployments, cluster),
            daemon_sets,
            claim_templates: caches.devices.claim_templates(cluster),
        },
        master_pods,
        pool_pods,
        former_pool_pods,
        guards,
        foreign_pods,
        evictions: caches.evictions.of(&sets, Instant::now()),
        labelled,
        mooncake_nodes,
        claimable: caches.devices.claimable(),
    }
}

impl Observed {
    /// All pool pods that may hold keys, those of removed pools included.
    pub fn all_pool_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pool_pods.iter().chain(&self.former_pool_pods)
    }

    /// The MooncakeNode of a node of those pods, if it can be decoded.
    pub fn mooncake_node(&self, node: &str) -> Option<&MooncakeNode> {
        self.mooncake_nodes.get(node)?.0.as_ref().ok()
    }

    /// The name of the elected master of several.
    pub fn leader(&self, cluster: &str) -> Option<String> {
        let name = names::leader_slice(cluster);
        let mut slices = self.existing.slices.iter();
        leader(slices.find(|slice| slice.name_any() == name)?)
    }

    /// The master pod that serves.
    pub fn serving_master(&self, cluster: &str) -> Option<&Pod> {
        serving_master(&self.master_pods, self.leader(cluster).as_deref())
    }

    /// The program of the newest master pod.
    pub fn master_type(&self) -> Option<Word<MasterType>> {
        let pod = self
            .master_pods
            .iter()
            .max_by_key(|pod| pod.creation_timestamp().map(|time| time.0))?;
        match pod.labels().get(names::LABEL_MASTER_TYPE) {
            None => Some(MasterType::Stock.into()),
            Some(word) => MasterType::read(word).map(Word::Known),
        }
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

/// True where `set` is the controlling owner of `pod`, by UID.
fn owns(set: &DaemonSet, pod: &Pod) -> bool {
    owner(pod.meta()).is_some_and(|owner| Some(&owner.uid) == set.meta().uid.as_ref())
}

/// Takes out the pods that none of these DaemonSets owns: those of a removed pool, which are assigned, and the names of those that
/// were never pool pods of the cluster.
fn take_others(
    pods: &mut Vec<Arc<Pod>>,
    sets: &[Arc<DaemonSet>],
    is_assigned: impl Fn(&Pod) -> bool,
) -> (Vec<Arc<Pod>>, Vec<String>) {
    let is_other = |pod: &mut Arc<Pod>| !sets.iter().any(|set| owns(set, pod));
    let others = pods.extract_if(.., is_other);
    let (former, others): (Vec<_>, Vec<_>) = others.partition(|pod| is_assigned(pod));
    // One that is being deleted is not foreign: it may be of a deleted cluster with this name.
    let foreign = others
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none());
    (former, foreign.map(|pod| pod.name_any()).collect())
}

fn by_name<K: Resource>(objects: &mut [Arc<K>]) {
    objects.sort_by(|a, b| {
        (&a.meta().namespace, &a.meta().name).cmp(&(&b.meta().namespace, &b.meta().name))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, set: &str, deleted: &str) -> Arc<Pod> {
        let text = format!(
            "{{metadata: {{name: {name}, uid: {name}, {deleted} ownerReferences: \
             [{{apiVersion: apps/v1, kind: DaemonSet, name: {set}, uid: {set}, controller: true}}]}}}}"
        );
        Arc::new(serde_yaml_ng::from_str(&text).unwrap())
    }

    #[test]
    fn pool_pods_of_a_removed_pool_are_known_until_they_end() {
        const DELETED: &str = "deletionTimestamp: '2026-01-01T00:00:00Z',";
        let set = "{metadata: {name: kv-pool-default, uid: kv-pool-default}}";
        let sets = [Arc::new(serde_yaml_ng::from_str(set).unwrap())];
        let mut pods = vec![
            pod("kept", "kv-pool-default", ""),
            pod("drains", "kv-pool-old", DELETED),
            pod("collected-later", "kv-pool-old", ""),
            pod("of-a-deleted-cluster", "kv-pool-old", DELETED),
            pod("forged", "kv-pool-old", ""),
        ];
        let assigned = ["kept", "drains", "collected-later"];
        let is_assigned = |pod: &Pod| assigned.contains(&&*pod.name_any());
        let (former, foreign) = take_others(&mut pods, &sets, is_assigned);
        let names = |pods: &[Arc<Pod>]| {
            let names = pods.iter().map(|pod| pod.name_any());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&pods), ["kept"]);
        assert_eq!(names(&former), ["drains", "collected-later"]);
        assert_eq!(foreign, ["forged"]);
    }
}
