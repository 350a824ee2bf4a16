//! MooncakeNode: where operator and agent meet. The spec is what the operator wants of a node, the
//! status what its agent has done; only `AgentAlive` in the status is the operator's, and the doubt in
//! what an agent said that is not alive.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::check::{CheckCounts, CheckFinding};
use crate::cluster::{NumaPolicy, PageSize, TransportPolicy};
use crate::fix::FixReport;
use crate::inventory::{Hugepages, NoGid, PortState};
use crate::policy::PolicyInForce;

/// One node's share in the pools. Named after the node and owned by it, by UID.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "mooncake.io",
    version = "v1alpha1",
    kind = "MooncakeNode",
    status = "MooncakeNodeStatus",
    derive = "PartialEq",
    shortname = "mn",
    category = "mooncake",
    doc = "One node's share in the pools: what the operator wants of it and what its agent has done.",
    printcolumn(
        name = "Agent",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='AgentAlive')].status",
        description = "The node's agent is there"
    ),
    printcolumn(
        name = "Serving",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='PoolsServing')].status",
        description = "Every listed pool pod is served"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='PoolsServing')].reason",
        description = "Why it is or is not Serving"
    ),
    printcolumn(
        name = "Capacity",
        type_ = "string",
        json_path = ".status.capacity",
        description = "Memory that is mounted and serves"
    ),
    printcolumn(
        name = "Healthy",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='NodeHealthy')].status",
        description = "No check of the node fails"
    ),
    printcolumn(
        name = "Finding",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='NodeHealthy')].reason",
        description = "The worst that the checks have found"
    ),
    printcolumn(
        name = "NVLink",
        type_ = "string",
        json_path = ".spec.domains[0].reason",
        priority = 1,
        description = "Why the node is or is not a member of a ComputeDomain, where it takes part in one"
    ),
    printcolumn(
        name = "Policy",
        type_ = "string",
        json_path = ".spec.policy.name",
        priority = 1,
        description = "The MooncakeNodePolicy that holds on the node"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since creation"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='PoolsServing')].message",
        priority = 1,
        description = "The reason in words"
    ),
    printcolumn(
        name = "Finding in words",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='NodeHealthy')].message",
        priority = 1,
        description = "The worst that the checks have found, in words"
    )
)]
// Not strict: while a release is rolled out, agents of the old one read what a new operator writes.
#[serde(rename_all = "camelCase")]
pub struct MooncakeNodeSpec {
    /// UID of the Node that is meant. A status that names another is void.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub node_uid: String,

    /// Boot id of the node as its kubelet reports it. A status that names another is void.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub boot_id: String,

    /// The pool pods that the agent serves; it serves no other.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["podUid".into()]))]
    pub pools: Vec<PoolAssignment>,

    /// For each MooncakeCluster with a ComputeDomain in which the node takes part: may its pods here
    /// use NVLink between nodes, and if not, why. What is not listed may not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["namespace".into(), "cluster".into()]))]
    pub domains: Vec<DomainMembership>,

    /// The injected pods of this node, at most 64: the agent looks into their containers, and into those
    /// of no other pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["podUid".into()]))]
    pub injected: Vec<InjectedPod>,

    /// The MooncakeNodePolicy that holds on this node; absent where none selects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyInForce>,

    /// What hugepages may be taken from; only where the policy has the agent set some aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Room>,

    /// An upgrade of the GPU driver is announced or under way, by the label that NVIDIA's operator keeps on the
    /// Node: nothing is asked of GPUs or made on them, which would keep the driver from being unloaded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gpu_driver_upgrade: bool,

    /// The agents to which this node's agent proves the way, again and again: the next ones on a ring
    /// of all nodes, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub probes: Vec<Probe>,

    /// The agents that prove their way to this one; it admits no other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub probers: Vec<Prober>,
}

/// What the node has beyond what its pods ask for, and what its kubelet knows of hugepages. Agents read
/// neither pods nor Nodes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// The Node's allocatable memory beyond the requests of all its pods, rounded down; told only while
    /// the agent has something to decide by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Hugepages that the kubelet gives to pods: it counts them when it starts, and not again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub hugepages: Vec<Hugepages>,
}

/// So many agents each agent proves its way to, and is proved by; `probes` and `probers` have as many
/// entries at most.
pub const PROBES_LIMIT: usize = 4;

/// An agent to prove the way to.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Name of its node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Address and port on which it is asked for its descriptor.
    #[schemars(length(min = 3, max = 64))]
    pub address: String,
    /// The part of its memory for proofs that this node writes and reads back: nobody else does.
    #[schemars(range(max = 3))]
    pub slot: u8,
}

/// An agent that proves its way here.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prober {
    /// Name of its node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Address that it connects from.
    #[schemars(length(min = 2, max = 45))]
    pub address: String,
}

/// Most entries of `spec.domains`: a node can be a member of one, the others are told why not.
pub const DOMAINS_LIMIT: usize = 16;

/// The node's place in one cluster's ComputeDomain.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainMembership {
    /// Namespace of the MooncakeCluster and of the ComputeDomain.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the MooncakeCluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster: String,
    /// Name of the ComputeDomain.
    #[schemars(length(min = 1, max = 253))]
    pub domain: String,
    /// UID of the ComputeDomain; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub domain_uid: Option<String>,
    /// NVLink clique of the node, where its IMEX daemon has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub clique: Option<String>,
    /// True where pods that hold a channel here may use NVLink to the other members.
    pub member: bool,
    /// Why it is or is not a member.
    pub reason: crate::reason::Reason,
    /// The reason in words: who, which stage, what to do.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Most entries of `spec.injected`; pods beyond them are not looked into.
pub const INJECTED_LIMIT: usize = 64;

/// One pod that was injected, and what its containers are to fit.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InjectedPod {
    /// UID of the pod.
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// Namespace of the pod.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub pod_name: String,
    /// Namespace of the MooncakeCluster that it uses.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_namespace: String,
    /// Name of the MooncakeCluster that it uses.
    #[schemars(length(min = 1, max = 63))]
    pub cluster: String,
    /// Generation of the wire schema that the cluster's master speaks.
    #[schemars(length(min = 1, max = 32))]
    pub version: String,
    /// Whether the cluster lets its bytes go by RDMA.
    #[serde(default)]
    pub rdma: TransportPolicy,
    /// It is in the node's own network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

/// One pool pod and how it is to be served.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolAssignment {
    /// UID of the pool pod.
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// Name of the pool pod.
    #[schemars(length(min = 1, max = 253))]
    pub pod_name: String,
    /// Namespace of the pool pod, its cluster and its master.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the MooncakeCluster.
    #[schemars(length(min = 1, max = 63))]
    pub cluster: String,
    /// UID of the MooncakeCluster.
    #[schemars(length(min = 1, max = 64))]
    pub cluster_uid: String,
    /// Entry of `spec.pools` that the pod was made for.
    #[schemars(length(min = 1, max = 20))]
    pub pool: String,
    /// Memory of the pod.
    pub size: ByteSize,
    /// Page size of the memory.
    pub page_size: PageSize,
    /// How the memory lies over NUMA nodes.
    pub numa_policy: NumaPolicy,
    /// Seconds for which segments stay readable once the pod was told to end.
    #[schemars(range(min = 0, max = 3600))]
    pub drain_seconds: u32,
    /// The master in which the memory is mounted; absent while there is none that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<MasterInstance>,
    /// Admit the cluster's labelled pods that use the host's network.
    #[serde(default)]
    pub allow_host_network: bool,
    /// Addresses of peers outside Kubernetes that are admitted.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 2, max = 45)))]
    pub addresses: Vec<String>,
}

/// One life of a master.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MasterInstance {
    /// IP address and RPC port of the master's Service.
    #[schemars(length(min = 3, max = 64))]
    pub address: String,
    /// UID of the master pod and, where this node was lost and its segments were taken out of that
    /// master, `/` and how often. Memory is mounted in one instance, never in two; another one means
    /// new addresses.
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// Generation of the wire schema.
    #[schemars(length(min = 1, max = 32))]
    pub version: String,
}

/// What the agent of the node has done and found.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeNodeStatus {
    /// UID of the Node that the agent runs on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_uid: String,
    /// Boot id of the kernel that the agent runs on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Release of the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_version: String,
    /// Memory that is mounted and serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    /// One line for each port of the node's RDMA devices, at most 16; those that are active and can be
    /// reached come first. MooncakeInventory has all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub hcas: Vec<HcaLine>,
    /// Ports that have no line above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hcas_omitted: Option<u32>,
    /// How many RDMA devices there are to be lent, and which of them are sick; absent before the first look,
    /// and where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceHealth>,
    /// How many checks of the node ended how; absent before the first look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<CheckCounts>,
    /// What the checks have found, worst first, at most 24; what passes is not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    pub findings: Vec<CheckFinding>,
    /// What the agent has set right, would set right or cannot, as the policy asks; what is in order has
    /// no entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub fixes: Vec<FixReport>,
    /// One entry for each listed pool pod, and for a refused one.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["podUid".into()]))]
    pub pools: Vec<PoolReport>,
    /// AgentAlive, the operator's, and PoolsServing and NodeHealthy, the agent's. Those of the agent are
    /// Unknown from when AgentAlive is not True until the agent has spoken again.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One port of an RDMA device, in short.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HcaLine {
    /// Name of the device.
    #[schemars(length(max = 64))]
    pub name: String,
    /// Number of the port.
    pub port: u8,
    /// Logical state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PortState>,
    /// Rate in megabits a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<u64>,
    /// Index of the GID that peers are to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u16>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gid: Option<NoGid>,
}

/// Most entries of `status.devices.named`.
pub const SICK_LIMIT: usize = 16;

/// The node's RDMA devices, well and sick.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceHealth {
    /// Devices that programs can open, and those that are sick.
    pub known: u32,
    /// Of these the sick ones: by a check they cannot be used, and no claim gets them anew.
    pub sick: u32,
    /// What a container that claims none of them may lock in memory, unless it is given more; absent where
    /// that has no limit or is not known, and where Mooncake's RDMA can use none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<ByteSize>,
    /// The sick ones, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub named: Vec<SickDevice>,
}

/// An RDMA device that cannot be used.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SickDevice {
    /// Name of the device.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// What the check found.
    pub reason: crate::reason::Reason,
}

/// What became of one pool pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReport {
    /// UID of the pool pod.
    pub pod_uid: String,
    /// Namespace of the pool pod.
    #[serde(default)]
    pub namespace: String,
    /// Name of the pool pod.
    #[serde(default)]
    pub pod_name: String,
    /// Where it is on its way.
    pub state: PoolState,
    /// Why it is there.
    pub reason: crate::reason::Reason,
    /// The reason in words: who, where, which stage, what to do.
    pub message: String,
    /// Server name under which peers reach it: address and handshake port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// The master instance in which it is mounted, as the spec names it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub master_pod_uid: String,
    /// How often its segments were mounted under new addresses.
    #[serde(default)]
    pub data_epoch: u32,
    /// Names of its segments in the master.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Bytes that are mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted: Option<ByteSize>,
    /// Page size that the kernel really gave, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size_obtained: Option<ByteSize>,
}

/// Where a pool pod is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PoolState {
    /// Known, not yet granted its memory.
    Waiting,
    /// Its memory is made and touched.
    Preparing,
    /// Its memory is being mounted in the master.
    Mounting,
    /// Mounted and served.
    Serving,
    /// Leaving the master.
    Draining,
    /// Gone; its memory is given back.
    Released,
    /// Not served; the reason says why.
    Refused,
}
