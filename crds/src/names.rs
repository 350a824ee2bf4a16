//! Labels, annotations, ports and derived object names: one spelling for all parts.

/// API group of every kind of this project.
pub const GROUP: &str = "mooncake.io";

/// Set by the user on a pod: the MooncakeCluster that the pod uses.
pub const LABEL_INJECT: &str = "mooncake.io/inject";
/// Set on every object that belongs to a MooncakeCluster.
pub const LABEL_CLUSTER: &str = "mooncake.io/cluster";
/// Set on what belongs to one entry of `spec.pools`.
pub const LABEL_POOL: &str = "mooncake.io/pool";
/// `master`, `pool`, `agent` or `operator`.
pub const LABEL_COMPONENT: &str = "mooncake.io/component";
/// Set by the webhook alone: this pod was injected and may reach the named cluster's listeners.
pub const LABEL_ACCESS: &str = "mooncake.io/access";
/// As [`LABEL_ACCESS`], for a pod in the node's network namespace.
pub const LABEL_HOST_ACCESS: &str = "mooncake.io/host-access";
/// Names the namespace of the cluster when it is not the pod's own.
pub const ANNOTATION_CLUSTER_NAMESPACE: &str = "mooncake.io/cluster-namespace";
/// Set by the webhook: why a labelled pod was left as it was.
pub const ANNOTATION_SKIPPED: &str = "mooncake.io/injection-skipped";
/// Set by the webhook on what it changed; its presence makes a second call a no-op.
pub const ANNOTATION_INJECTED: &str = "mooncake.io/injected";

/// Set by the webhook on a pod that waits for the checks of its node, and by the operator: what they find, as
/// `Reason: words`.
pub const ANNOTATION_PREFLIGHT: &str = "mooncake.io/preflight";

/// Set by the user on a pod that is to be given no claim of an RDMA device: `false`.
pub const ANNOTATION_CLAIM_DEVICES: &str = "mooncake.io/claim-devices";
/// Set by the webhook: why a pod of a cluster that requires RDMA was given no claim of a device.
pub const ANNOTATION_CLAIM_SKIPPED: &str = "mooncake.io/claim-skipped";

/// Set by the operator on a ComputeDomain that it made: UID of the MooncakeCluster that wanted it.
pub const ANNOTATION_CLUSTER_UID: &str = "mooncake.io/cluster-uid";

/// Set by the operator on a Node that it has cordoned: why. Without it the operator uncordons nothing.
pub const ANNOTATION_CORDONED: &str = "mooncake.io/cordoned";
/// Set by the operator on a Node that it has cordoned: what another tool is to do there, and why.
pub const ANNOTATION_REPAIR: &str = "mooncake.io/repair-requested";

pub const COMPONENT_MASTER: &str = "master";
pub const COMPONENT_POOL: &str = "pool";
pub const COMPONENT_AGENT: &str = "agent";
pub const COMPONENT_OPERATOR: &str = "operator";

/// DeviceClass of the RDMA devices that agents offer.
pub const DEVICE_CLASS: &str = "hca.mooncake.io";

/// Port of the master's RPC service, TCP.
pub const MASTER_RPC_PORT: u16 = 50051;
/// Port of the master's admin and metrics HTTP service, TCP.
pub const MASTER_ADMIN_PORT: u16 = 9003;
/// Port of a pool pod on which peers ask for descriptors, TCP.
pub const POOL_HANDSHAKE_PORT: u16 = 12001;
/// Port of a pool pod on which bytes move, TCP.
pub const POOL_DATA_PORT: u16 = 12002;
/// Name of the agent's port on which other agents, proving their way to it, ask for its descriptor.
pub const AGENT_PROBE_PORT: &str = "probe";
/// Wire address of the memory that proofs write and read back: one slot after the other.
pub const PROBE_BASE: u64 = 1 << 59;
/// Bytes of a slot.
pub const PROBE_SLOT: u64 = 16 << 10;
/// Seconds after the last ping at which a master forgets a storing node.
pub const MASTER_CLIENT_TTL_SECONDS: u32 = 120;

/// Deployment, Service and container of the master.
pub fn master(cluster: &str) -> String {
    format!("{cluster}-master")
}

/// Headless Service over all pool pods of a cluster.
pub fn pool_service(cluster: &str) -> String {
    format!("{cluster}-pool")
}

/// DaemonSet of one pool.
pub fn pool_set(cluster: &str, pool: &str) -> String {
    format!("{cluster}-pool-{pool}")
}

/// Headless Service over the injected pods of a cluster.
pub fn clients_service(cluster: &str) -> String {
    format!("{cluster}-clients")
}

/// Headless Service over the injected pods that are in a node's network namespace.
pub fn host_clients_service(cluster: &str) -> String {
    format!("{cluster}-host-clients")
}

/// ComputeDomain that the operator makes, and the ResourceClaimTemplate that comes with it.
pub fn compute_domain(cluster: &str) -> String {
    format!("{cluster}-mnnvl")
}

/// ResourceClaimTemplate by which injected pods of a cluster that requires RDMA get a device.
pub fn claim_template(cluster: &str) -> String {
    format!("{cluster}-hca")
}

/// Address at which pods of the cluster find the master: host and port.
pub fn master_endpoint(cluster: &str, namespace: &str) -> String {
    format!("{}.{namespace}.svc:{MASTER_RPC_PORT}", master(cluster))
}

/// Name under which a master knows one extent. It holds no `/`, which stock peers treat specially.
pub fn segment(cluster: &str, pool: &str, node: &str, extent: usize) -> String {
    format!("{cluster}.{pool}.{node}.{extent}")
}
