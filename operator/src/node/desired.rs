//! The MooncakeNode of a node. Pure.

use crds::cluster::{MetadataType, MooncakeCluster, MooncakeVersion, Transport};
use crds::node::{DomainMembership, MasterInstance, MetadataService, POOLS_LIMIT, PoolAssignment};
use crds::{ByteSize, MooncakeNode, MooncakeNodeSpec, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::ResourceExt;
use proto::metadata::etcd_url;

use crate::cluster::desired::pool;
use crate::cluster::{instance, transport};
use crate::node::observe::{Observed, PoolPod};
use crate::pod::is_over;

/// The desired object; `None` if nothing of ours is on the node. `removed`: UIDs of pool pods whose
/// segments are about to be unmounted from their master.
pub fn desired(observed: &Observed, removed: &[String]) -> Option<MooncakeNode> {
    if observed.mooncake_node.is_none() && observed.agents.is_empty() && observed.pools.is_empty() {
        return None;
    }
    let mut node = MooncakeNode::new(
        &observed.name,
        MooncakeNodeSpec {
            node_uid: observed.uid.clone(),
            boot_id: observed.boot_id.clone(),
            pools: assignments(observed, removed),
            domains: domains(observed),
            injected: observed.injected.clone(),
            policy: observed.policy.clone(),
            headroom: observed.room.clone(),
            gpu_driver_upgrade: observed.gpu_driver_upgrade,
            probes: observed.neighbours.probes(),
            probers: observed.neighbours.probers(),
        },
    );
    node.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: observed.name.clone(),
        uid: observed.uid.clone(),
        controller: None,
        block_owner_deletion: None,
    }]);
    Some(node)
}

/// The assignments of the node, sorted by UID. The API server refuses an object with more than [`POOLS_LIMIT`], and with it
/// every other change of the node: beyond them, those which are served stay, and the oldest pods follow.
fn assignments(observed: &Observed, removed: &[String]) -> Vec<PoolAssignment> {
    let current: Vec<_> = observed
        .mooncake_node
        .iter()
        .flat_map(|mooncake_node| &mooncake_node.spec.pools)
        .collect();
    let mut pools: Vec<_> = observed
        .pools
        .iter()
        // Its processes have ended for good, however long its object exists.
        .filter(|pool| !is_over(&pool.pod))
        .filter_map(|pool| {
            let uid = pool.pod.uid()?;
            let before = current.iter().find(|entry| entry.pod_uid == uid).copied();
            let entry = assignment(pool, before, removed.contains(&uid))?;
            let created = pool.pod.creation_timestamp().map(|time| time.0);
            Some(((before.is_none(), created, uid), entry))
        })
        .collect();
    pools.sort_by(|(one, _), (other, _)| one.cmp(other));
    pools.truncate(POOLS_LIMIT);
    let mut pools: Vec<_> = pools.into_iter().map(|(_, entry)| entry).collect();
    pools.sort_by(|a, b| a.pod_uid.cmp(&b.pod_uid));
    pools
}

/// The node's ComputeDomain memberships; the current ones while they are unknown.
fn domains(observed: &Observed) -> Vec<DomainMembership> {
    observed.domains.clone().unwrap_or_else(|| {
        let mooncake_node = observed.mooncake_node.as_ref();
        mooncake_node
            .map(|mooncake_node| mooncake_node.spec.domains.clone())
            .unwrap_or_default()
    })
}

/// Assignment of one pool pod. It stays until the pod ends, even if cluster and DaemonSet are deleted
/// first: the agent ends the pod by it. The pods of a deleted cluster drain nothing: no other pod takes their objects, and
/// their master ends too.
fn assignment(
    pool: &PoolPod,
    before: Option<&PoolAssignment>,
    removed: bool,
) -> Option<PoolAssignment> {
    let fresh = fresh(pool);
    let mut entry = match (fresh, before) {
        (Some(fresh), _) => fresh,
        (None, Some(before)) => before.clone(),
        (None, None) => {
            tracing::warn!(pod = %pool.pod.name_any(), namespace = pool.pod.namespace(),
                "pod has the labels of a pool pod but no DaemonSet of the operator owns it; it is not served");
            return None;
        }
    };
    // One of the same name may have been created since.
    let is_successor = |cluster: &MooncakeCluster| {
        let uid = cluster.uid();
        uid.as_deref() != Some(&*entry.cluster_uid)
    };
    let is_former = pool.cluster_deleted || pool.cluster.as_ref().is_some_and(is_successor);
    if is_former {
        entry.drain_seconds = 0;
    }
    let version = pool
        .cluster
        .as_ref()
        .map_or_else(MooncakeVersion::default, |cluster| {
            cluster.spec.master.version
        });
    let current = before.and_then(|before| before.master.as_ref());
    let of = |uid: &str| current.filter(|current| instance::pod_uid(&current.pod_uid) == uid);
    entry.master = match (&pool.master_address, &pool.master_uid) {
        // A successor's master would lose the keys that it puts there with the pod.
        (Some(address), Some(uid)) if !is_former || of(uid).is_some() => {
            let removals = of(uid).map_or(0, |current| instance::removals(&current.pod_uid));
            Some(MasterInstance {
                address: address.clone(),
                pod_uid: instance::name(uid, removals + u32::from(removed)),
                version: version.as_str().to_owned(),
            })
        }
        // A master that is briefly not ready is still the same instance.
        _ => pool.masters.iter().find_map(|uid| of(uid)).cloned(),
    };
    Some(entry)
}

/// The assignment without its master; `None` if no DaemonSet of the operator owns the pod.
fn fresh(pool: &PoolPod) -> Option<PoolAssignment> {
    let (cluster, pod) = (pool.cluster.as_ref()?, &pool.pod);
    pool.made_by.as_ref()?;
    let made = pool::made(pod)?;
    let mut addresses = cluster.spec.access.addresses.clone();
    addresses.sort_unstable();
    Some(PoolAssignment {
        pod_uid: pod.uid()?,
        pod_name: pod.name_any(),
        namespace: pod.namespace()?,
        cluster: cluster.name_any(),
        cluster_uid: cluster.uid()?,
        pool: pod.labels().get(names::LABEL_POOL)?.clone(),
        size: ByteSize(made.bytes),
        page_size: made.page_size,
        numa_policy: made.numa_policy,
        drain_seconds: made.drain_seconds,
        master: None,
        metadata: metadata(cluster),
        transport: Some(Transport::Rdma.into())
            .filter(|_| transport::of_stock_pods(cluster) == Transport::Rdma),
        allow_host_network: cluster.spec.access.allow_host_network,
        addresses,
    })
}

/// The metadata service of a cluster; `None` with P2P.
fn metadata(cluster: &MooncakeCluster) -> Option<MetadataService> {
    let spec = &cluster.spec.metadata;
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let own = || names::metadata_endpoint(&name, &namespace);
    match spec.kind {
        MetadataType::P2P => None,
        MetadataType::Http => Some(MetadataService {
            kind: spec.kind,
            endpoint: spec.endpoint.clone().unwrap_or_else(own),
            cluster_id: None,
            secret_name: None,
        }),
        MetadataType::Etcd => Some(MetadataService {
            kind: spec.kind,
            endpoint: etcd_url(spec.endpoints.as_deref().unwrap_or_default()),
            cluster_id: Some(names::metadata_cluster(&name, &namespace)),
            secret_name: spec.secret_name.clone(),
        }),
    }
}

/// True if only observedGeneration differs, which needs no write.
pub fn same_conditions(old: &[Condition], new: &[Condition]) -> bool {
    let key = |conditions: &[Condition]| -> Vec<(String, String, String)> {
        let key = |c: &Condition| (c.status.clone(), c.reason.clone(), c.message.clone());
        conditions.iter().map(key).collect()
    };
    key(old) == key(new)
}

#[cfg(test)]
mod tests;
