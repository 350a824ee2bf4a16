//! Observed state of one node, read from the caches at once.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crds::cluster::MooncakeCluster;
use crds::node::{DomainMembership, Headroom, InjectedPod};
use crds::policy::PolicyInForce;
use crds::{MooncakeNode, names};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::apply::owner;
use crate::cache::probe_ring::Neighbours;
use crate::cache::{Caches, ClusterName};
use crate::compute_domain::view;
use crate::node::injected_pods;
use crate::pod::{address, is_component, master_instance, serving_master};
use crate::policy;

/// Observed state of one node.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub name: String,
    pub uid: String,
    pub boot_id: String,
    /// `None`: the node has no condition `Ready` yet.
    pub ready: Option<Ready>,
    pub mooncake_node: Option<MooncakeNode>,
    /// Agent pods on the node.
    pub agents: Vec<Arc<Pod>>,
    /// Pods with the label of a pool pod that are bound to the node.
    pub pools: Vec<PoolPod>,
    /// The node's ComputeDomain memberships; `None`: not known yet.
    pub domains: Option<Vec<DomainMembership>>,
    /// The injected pods that are bound to the node.
    pub injected: Vec<InjectedPod>,
    /// The policy that applies to the node.
    pub policy: Option<PolicyInForce>,
    /// Memory for hugepages; filled in from the API server, as the caches do not hold all pods.
    pub room: Option<Headroom>,
    /// The label of NVIDIA's GPU operator announces a GPU driver upgrade.
    pub gpu_driver_upgrade: bool,
    /// The agents that probe this node's agent, and those that it probes.
    pub neighbours: Neighbours,
}

/// The Node's condition `Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub holds: bool,
    /// The kubelet does not report.
    pub silent: bool,
    pub message: String,
}

/// A pod with the label of a pool pod, and the objects that prove it.
#[derive(Clone, Debug)]
pub struct PoolPod {
    pub pod: Arc<Pod>,
    /// The cluster that its label names, if it exists.
    pub cluster: Option<MooncakeCluster>,
    /// That cluster is deleted, or about to be. False for one that cannot be decoded.
    pub cluster_deleted: bool,
    /// The DaemonSet that owns it by UID, if it belongs to that cluster.
    pub made_by: Option<Arc<DaemonSet>>,
    /// Address of the master's Service.
    pub master_address: Option<String>,
    /// Instance of the master that serves: UID of its pod or, with several masters, of the MooncakeCluster.
    pub master_uid: Option<String>,
    /// Address of that pod.
    pub master_ip: Option<IpAddr>,
    /// Instances that may serve: UIDs of all master pods that are not being deleted and, with several masters, of the
    /// MooncakeCluster.
    pub masters: Vec<String>,
}

/// Reads the state; `None` if the Node has no UID or its MooncakeNode cannot be decoded.
pub fn observe(caches: &Caches, node: &Node) -> Option<Observed> {
    let name = node.name_any();
    let status = node.status.as_ref();
    let mooncake_node = caches
        .mooncake_nodes
        .get(&ObjectRef::<DeserializeGuard<MooncakeNode>>::new(&name));
    let mooncake_node = match mooncake_node.as_deref() {
        None => None,
        Some(DeserializeGuard(Ok(mooncake_node))) => Some(mooncake_node.clone()),
        Some(DeserializeGuard(Err(invalid))) => {
            tracing::warn!(node = %name, error = %invalid.error, "cannot decode the MooncakeNode; the node is not reconciled");
            return None;
        }
    };
    let mut pools: Vec<PoolPod> = caches
        .pods_on
        .of(&name)
        .into_iter()
        .filter(|pod| is_component(pod, names::COMPONENT_POOL))
        .map(|pod| pool_pod(caches, pod))
        .collect();
    pools.sort_by_key(|pool| pool.pod.uid());
    let neighbours = neighbours(caches, &name, mooncake_node.as_ref());
    let policy = policy::of_node(caches, node, mooncake_node.as_ref());
    Some(Observed {
        uid: node.uid()?,
        boot_id: status
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.boot_id.clone())
            .unwrap_or_default(),
        ready: status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .find(|condition| condition.type_ == "Ready")
            .map(|condition| Ready {
                holds: condition.status == "True",
                silent: condition.status == "Unknown",
                message: condition.message.clone().unwrap_or_default(),
            }),
        mooncake_node,
        agents: caches.agents_on.of(&name),
        pools,
        domains: view::of_node(caches, node),
        injected: injected_pods::of_node(caches, &name),
        policy,
        room: None,
        gpu_driver_upgrade: is_upgrading(node),
        neighbours,
        name,
    })
}

/// The label that NVIDIA's GPU operator sets while it upgrades the GPU driver, and its values otherwise.
const DRIVER_UPGRADE: &str = "nvidia.com/gpu-driver-upgrade-state";
const NO_UPGRADE: [&str; 2] = ["", "upgrade-done"];

fn is_upgrading(node: &Node) -> bool {
    let state = node.labels().get(DRIVER_UPGRADE);
    state.is_some_and(|state| !NO_UPGRADE.contains(&state.as_str()))
}

impl Observed {
    /// The MooncakeNode, if it belongs to an earlier Node of this name.
    pub fn of_an_earlier_node(&self) -> Option<&MooncakeNode> {
        let mooncake_node = self.mooncake_node.as_ref()?;
        let owners = mooncake_node.meta().owner_references.iter().flatten();
        let mine = owners.clone().any(|owner| owner.uid == self.uid);
        let another = owners.clone().any(|owner| owner.kind == "Node");
        let leaving = mooncake_node.meta().deletion_timestamp.is_some();
        (another && !mine && !leaving).then_some(mooncake_node)
    }
}

/// A node's neighbours on the ring. An agent whose pod is being replaced keeps its place: otherwise each
/// restart would change its neighbours twice.
fn neighbours(caches: &Caches, name: &str, mooncake_node: Option<&MooncakeNode>) -> Neighbours {
    let current = mooncake_node
        .into_iter()
        .flat_map(|mooncake_node| &mooncake_node.spec.probes)
        .filter(|probe| caches.nodes.get(&ObjectRef::new(&probe.node)).is_some())
        .filter_map(|probe| Some((probe.node.as_str(), probe.address.parse().ok()?)));
    caches.neighbours(name, current)
}

fn pool_pod(caches: &Caches, pod: Arc<Pod>) -> PoolPod {
    let named = ClusterName {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod
            .labels()
            .get(names::LABEL_CLUSTER)
            .cloned()
            .unwrap_or_default(),
    };
    let reference =
        ObjectRef::<DeserializeGuard<MooncakeCluster>>::new(&named.name).within(&named.namespace);
    let found = caches.clusters.get(&reference);
    let cluster = found
        .as_ref()
        .and_then(|cluster| cluster.0.as_ref().ok().cloned());
    let cluster_deleted = match &cluster {
        Some(cluster) => cluster.meta().deletion_timestamp.is_some(),
        None => found.is_none(),
    };
    let made_by = made_by(caches, &pod, cluster.as_ref());
    let service = names::master(&named.name);
    let service = caches
        .services
        .get(&ObjectRef::<Service>::new(&service).within(&named.namespace));
    let masters = caches.masters_of.of(&named);
    let serving = serving_master(&masters, caches.leader(&named).as_deref());
    let several = cluster
        .as_ref()
        .filter(|cluster| cluster.spec.master.replicas() > 1);
    let instance = match &cluster {
        Some(cluster) => master_instance(cluster, serving),
        None => serving.and_then(|pod| pod.uid()),
    };
    let instances = masters
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none())
        .filter_map(|pod| pod.uid())
        .chain(several.and_then(|cluster| cluster.uid()))
        .collect();
    PoolPod {
        pod,
        cluster,
        cluster_deleted,
        made_by,
        master_address: service.and_then(|service| {
            let ip = service.spec.as_ref()?.cluster_ip.clone()?;
            let ip: IpAddr = ip.parse().ok()?;
            Some(SocketAddr::new(ip, names::MASTER_RPC_PORT).to_string())
        }),
        master_uid: instance,
        master_ip: serving.and_then(address),
        masters: instances,
    }
}

/// The operator's DaemonSet for the pod's cluster and pool, if it owns the pod by UID.
/// A label alone proves nothing.
fn made_by(
    caches: &Caches,
    pod: &Pod,
    cluster: Option<&MooncakeCluster>,
) -> Option<Arc<DaemonSet>> {
    let owning = owner(pod.meta())?;
    let set = ObjectRef::<DaemonSet>::new(&owning.name).within(&pod.namespace()?);
    let set = caches.daemon_sets.get(&set)?;
    let pool = pod.labels().get(names::LABEL_POOL)?;
    let cluster = cluster?;
    let ours = owning.kind == "DaemonSet"
        && set.uid().as_ref() == Some(&owning.uid)
        && set.name_any() == names::pool_set(&cluster.name_any(), pool)
        && owner(set.meta()).map(|owner| owner.uid.clone()) == cluster.uid();
    ours.then_some(set)
}

/// Names of the nodes that hold pool pods of the cluster or pods that request it, and of the nodes of its
/// ComputeDomain.
pub fn of_cluster(caches: &Caches, cluster: &ClusterName) -> BTreeSet<String> {
    let pools = caches.pods_of.of(cluster);
    let labelled = caches.labelled_of.of(cluster);
    let pods = pools.iter().chain(&labelled);
    pods.filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .chain(view::nodes_of_cluster(caches, cluster))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_driver_upgrade_is_read_from_the_gpu_operators_label() {
        let upgrading = |labels: &str| {
            let text = format!("{{metadata: {{name: n1, labels: {labels}}}}}");
            is_upgrading(&serde_yaml_ng::from_str(&text).unwrap())
        };
        for state in ["upgrade-required", "drain-required", "upgrade-failed"] {
            assert!(
                upgrading(&format!("{{{DRIVER_UPGRADE}: {state}}}")),
                "{state}"
            );
        }
        assert!(!upgrading("{}"));
        assert!(!upgrading(&format!("{{{DRIVER_UPGRADE}: ''}}")));
        assert!(!upgrading(&format!("{{{DRIVER_UPGRADE}: upgrade-done}}")));
    }
}
