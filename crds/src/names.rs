//! Names that all components share: labels, annotations, ports and names of derived objects.

/// API group of every kind of this project.
pub const GROUP: &str = "mooncake.io";

/// Set by the user on a pod: the MooncakeCluster that the pod uses.
pub const LABEL_INJECT: &str = "mooncake.io/inject";
/// Set on every object that belongs to a MooncakeCluster.
pub const LABEL_CLUSTER: &str = "mooncake.io/cluster";
/// Set on every object that belongs to one entry of `spec.pools`.
pub const LABEL_POOL: &str = "mooncake.io/pool";
/// `master`, `pool`, `guard`, `agent` or `operator`.
pub const LABEL_COMPONENT: &str = "mooncake.io/component";
/// Program of a master pod, as in `spec.master.type`. Absent on the pods of stock masters.
pub const LABEL_MASTER_TYPE: &str = "mooncake.io/master-type";
/// In the selector of the Service of several masters, with the value [`ENDPOINTS_LEADER`]. No pod has it: the Service leads to the
/// address in the EndpointSlice that the leading master writes.
pub const LABEL_ENDPOINTS: &str = "mooncake.io/endpoints";
/// The only value of that label.
pub const ENDPOINTS_LEADER: &str = "leader";
/// Set by the elector of a master on the Lease: the epoch of the ledgers in its term.
pub const ANNOTATION_EPOCH: &str = "mooncake.io/epoch";
/// Set there too: address and port of the elector that holds the Lease.
pub const ANNOTATION_ELECTOR: &str = "mooncake.io/elector";
/// Set there by another elector: its name, address and port. The holder requests a promise of it when it cannot write the Lease.
pub const ANNOTATION_WITNESS: &str = "mooncake.io/witness";
/// Set by the webhook only: the pod was injected and may connect to the listeners of the named cluster.
pub const LABEL_ACCESS: &str = "mooncake.io/access";
/// Like [`LABEL_ACCESS`], for a hostNetwork pod.
pub const LABEL_HOST_ACCESS: &str = "mooncake.io/host-access";
/// Set by the user on a pod: the namespace of the MooncakeCluster, if it is not the pod's own.
pub const ANNOTATION_CLUSTER_NAMESPACE: &str = "mooncake.io/cluster-namespace";
/// Set by the webhook: why a labelled pod was not injected.
pub const ANNOTATION_SKIPPED: &str = "mooncake.io/injection-skipped";
/// Set by the webhook on injected pods. A second call of the webhook does not change a pod with this annotation.
pub const ANNOTATION_INJECTED: &str = "mooncake.io/injected";

/// Set by the webhook on a pod that waits for the checks of its node, and updated by the operator: their result, as
/// `Reason: message`.
pub const ANNOTATION_PREFLIGHT: &str = "mooncake.io/preflight";

/// Set by the user on a pod: names of the containers that injection configures, separated by commas. Default: all.
pub const ANNOTATION_CONTAINERS: &str = "mooncake.io/containers";
/// Set by the user on a pod: `false` prevents the injection of a claim for an RDMA device.
pub const ANNOTATION_CLAIM_DEVICES: &str = "mooncake.io/claim-devices";
/// Set by the user on a pod: `tcp` gives its store TCP in a cluster on RDMA.
pub const ANNOTATION_TRANSPORT: &str = "mooncake.io/transport";
/// Set by the webhook: why a pod of a cluster that requires RDMA was injected without a device claim.
pub const ANNOTATION_CLAIM_SKIPPED: &str = "mooncake.io/claim-skipped";

/// Set by a user on a MooncakeCluster, its namespace or a CRD: `true` confirms that its deletion may lose objects.
pub const ANNOTATION_CONFIRM_DELETION: &str = "mooncake.io/confirm-deletion";

/// Set by the operator on a ComputeDomain that it created: UID of the MooncakeCluster.
pub const ANNOTATION_CLUSTER_UID: &str = "mooncake.io/cluster-uid";

/// Set by the operator on a Node that it has cordoned: the cause. The operator uncordons only Nodes with this annotation.
pub const ANNOTATION_CORDONED: &str = "mooncake.io/cordoned";
/// Set by the operator on a Node that it has cordoned: the repair that another tool should do, and the cause.
pub const ANNOTATION_REPAIR: &str = "mooncake.io/repair-requested";

/// Set by an administrator on a Node, with the value [`DRAIN_POOLS`]: no pool pod stays there. The DaemonSets of pools select
/// other nodes.
pub const LABEL_DRAIN: &str = "mooncake.io/drain";
/// The only value of that label with an effect.
pub const DRAIN_POOLS: &str = "true";

/// Set by the chart on Services of the release, and by Kubernetes on their EndpointSlices: the purpose of the Service.
pub const LABEL_ENDPOINT: &str = "mooncake.io/endpoint";
/// Purpose of the headless Service of the operator and the agents.
pub const ENDPOINT_PEERS: &str = "peers";

pub const COMPONENT_MASTER: &str = "master";
pub const COMPONENT_POOL: &str = "pool";
/// The pod that holds drains of a node with pool pods.
pub const COMPONENT_GUARD: &str = "guard";
pub const COMPONENT_AGENT: &str = "agent";
pub const COMPONENT_OPERATOR: &str = "operator";

/// DeviceClass of the RDMA devices that agents publish.
pub const DEVICE_CLASS: &str = "hca.mooncake.io";

/// TCP port of the master's RPC service.
pub const MASTER_RPC_PORT: u16 = 50051;
/// TCP port of the master's HTTP service for administration and metrics.
pub const MASTER_ADMIN_PORT: u16 = 9003;
/// Keys of the Secret that `spec.metadata.secretName` names, which pool pods mount. Others are not read.
pub const ETCD_SECRET_KEYS: [&str; 5] = ["ca.crt", "tls.crt", "tls.key", "username", "password"];
/// TCP port of the HTTP metadata server in the master's pod.
pub const MASTER_METADATA_PORT: u16 = 8080;
/// TCP port of a built-in master for health and metrics, without admission.
pub const MASTER_OPEN_PORT: u16 = 9004;
/// TCP port of the elector beside one of several masters, for the electors of the others.
pub const MASTER_ELECTOR_PORT: u16 = 9005;
/// TCP port of a pool pod for requests of segment descriptors.
pub const POOL_HANDSHAKE_PORT: u16 = 12001;
/// TCP port of a pool pod for data transfers.
pub const POOL_DATA_PORT: u16 = 12002;
/// TCP port of a pool pod that is open while the pool is ready, for the kubelet.
pub const POOL_READY_PORT: u16 = 12003;
/// Name of the agent's port from which probing agents request its descriptor.
pub const AGENT_PROBE_PORT: &str = "probe";
/// Wire address of the memory that peer probes write and read back: consecutive slots.
pub const PROBE_BASE: u64 = 1 << 59;
/// Size of a slot in bytes.
pub const PROBE_SLOT: u64 = 16 << 10;
/// The tenant of clients of a built-in master that name none.
pub const DEFAULT_TENANT: &str = "default";
/// Seconds after a node's last ping when the master removes its segments.
pub const MASTER_CLIENT_TTL_SECONDS: u32 = 120;

/// Returns the name of the master's Deployment, Service and container.
pub fn master(cluster: &str) -> String {
    format!("{cluster}-master")
}

/// Returns the name of the EndpointSlice by which the Service of several masters leads to the one that serves.
pub fn leader_slice(cluster: &str) -> String {
    format!("{cluster}-master-leader")
}

/// Returns the name of the Role and RoleBinding for the election of one of several masters.
pub fn election_role(cluster: &str) -> String {
    format!("{cluster}-master-election")
}

/// Returns the name of the Role and RoleBinding by which a built-in master reads the quotas of its tenants.
pub fn tenants_role(cluster: &str) -> String {
    format!("{cluster}-master-tenants")
}

/// Returns the name of the ServiceAccount of a built-in master, and of the RoleBinding that gives it its rights.
pub fn master_account(cluster: &str) -> String {
    master(cluster)
}

/// Returns the name of the headless Service of a cluster's pool pods.
pub fn pool_service(cluster: &str) -> String {
    format!("{cluster}-pool")
}

/// Returns the name of a pool's DaemonSet.
pub fn pool_set(cluster: &str, pool: &str) -> String {
    format!("{cluster}-pool-{pool}")
}

/// Returns the name of the PodDisruptionBudget of a cluster's guards.
pub fn guard_budget(cluster: &str) -> String {
    format!("{cluster}-guard")
}

/// Returns the name of the headless Service of a cluster's injected pods.
pub fn clients_service(cluster: &str) -> String {
    format!("{cluster}-clients")
}

/// Returns the name of the headless Service of a cluster's injected hostNetwork pods.
pub fn host_clients_service(cluster: &str) -> String {
    format!("{cluster}-host-clients")
}

/// Returns the name of the ComputeDomain that the operator creates, and of its ResourceClaimTemplate.
pub fn compute_domain(cluster: &str) -> String {
    format!("{cluster}-mnnvl")
}

/// Returns the name of the ResourceClaimTemplate for RDMA devices of injected pods.
pub fn claim_template(cluster: &str) -> String {
    format!("{cluster}-hca")
}

/// Returns host and port of the cluster's master.
pub fn master_endpoint(cluster: &str, namespace: &str) -> String {
    format!("{}.{namespace}.svc:{MASTER_RPC_PORT}", master(cluster))
}

/// Returns the URL of the HTTP metadata server in the cluster's master pod.
pub fn metadata_endpoint(cluster: &str, namespace: &str) -> String {
    format!(
        "http://{}.{namespace}.svc:{MASTER_METADATA_PORT}/metadata",
        master(cluster)
    )
}

/// Returns the `MC_METADATA_CLUSTER_ID` of a cluster's engines in an etcd, which several clusters may share.
pub fn metadata_cluster(cluster: &str, namespace: &str) -> String {
    format!("{namespace}/{cluster}")
}

/// Returns the segment name of an extent. It contains no `/`, which has a special meaning for stock peers.
pub fn segment(cluster: &str, pool: &str, node: &str, extent: usize) -> String {
    format!("{cluster}.{pool}.{node}.{extent}")
}
