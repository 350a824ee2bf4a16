//! MooncakeNode: the interface between operator and agent. The operator writes the spec, the node's agent writes
//! the status. In the status the operator owns the condition `AgentAlive`, and sets the agent's conditions to
//! Unknown while the agent is not alive.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
#[cfg(feature = "kube")]
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::catalog::catalog;
use crate::check::{self, CheckCounts, CheckFinding};
use crate::cluster::{MetadataType, NumaPolicy, PageSize, Transport, TransportPolicy};
use crate::fix::FixReport;
use crate::inventory::{Hugepages, NoGid, PortState};
use crate::policy::PolicyInForce;
use crate::reason::Reason;
use crate::word::{Word, open_words, readable_entries};

/// Desired and observed state of one node's pool memory. It has the name of the Node, and the Node owns it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kube",
    derive(CustomResource),
    kube(
        group = "mooncake.io",
        version = "v1alpha1",
        kind = "MooncakeNode",
        status = "MooncakeNodeStatus",
        derive = "PartialEq",
        shortname = "mn",
        category = "mooncake",
        doc = "Desired and observed state of one node: its pool pods, checks, fixes and paths to other nodes.",
        printcolumn(
            name = "Agent",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='AgentAlive')].status",
            description = "The node's agent runs"
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
            description = "Reason of the condition PoolsServing"
        ),
        printcolumn(
            name = "Capacity",
            type_ = "string",
            json_path = ".status.capacity",
            description = "Mounted memory that is served"
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
            description = "Reason of the worst finding"
        ),
        printcolumn(
            name = "NVLink",
            type_ = "string",
            json_path = ".spec.domains[0].reason",
            priority = 1,
            description = "Why the node is or is not a member of a ComputeDomain. Empty if no ComputeDomain includes it"
        ),
        printcolumn(
            name = "Policy",
            type_ = "string",
            json_path = ".spec.policy.name",
            priority = 1,
            description = "The MooncakeNodePolicy that applies to the node"
        ),
        printcolumn(
            name = "Age",
            type_ = "date",
            json_path = ".metadata.creationTimestamp",
            description = "Time since creation"
        ),
        printcolumn(
            name = "Message",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='PoolsServing')].message",
            priority = 1,
            description = "Message of the condition PoolsServing"
        ),
        printcolumn(
            name = "Finding in words",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='NodeHealthy')].message",
            priority = 1,
            description = "Message of the worst finding"
        )
    )
)]
// Not strict: while a release is rolled out, agents of the old one read what a new operator writes.
#[serde(rename_all = "camelCase")]
pub struct MooncakeNodeSpec {
    /// UID of the Node. A status with another UID is invalid.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub node_uid: String,

    /// Boot ID of the node, as its kubelet reports it. A status with another boot ID is invalid.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub boot_id: String,

    /// Pool pods that the agent serves, at most 64. It serves no others.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = POOLS_LIMIT))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podUid"]))]
    pub pools: Vec<PoolAssignment>,

    /// ComputeDomains that include the node, one per MooncakeCluster, and whether the cluster's pods on the node may use
    /// NVLink between nodes. Pods of clusters that are not listed may not.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace", "cluster"]))]
    pub domains: Vec<DomainMembership>,

    /// Injected pods of this node, at most 64. The agent inspects the containers of these pods only.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podUid"]))]
    pub injected: Vec<InjectedPod>,

    /// The MooncakeNodePolicy that applies to this node. Absent if no policy selects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyInForce>,

    /// Resources from which hugepages may be reserved. Set only if the policy manages hugepages.
    #[serde(default, rename = "room", skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Headroom>,

    /// True while the label of NVIDIA's GPU operator on the Node announces an upgrade of the GPU driver. The agent then
    /// does not query or use GPUs, so that the driver can be unloaded. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gpu_driver_upgrade: bool,

    /// Agents that this node's agent probes repeatedly: the next ones on a ring of all nodes, nearest first.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 4))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    pub probes: Vec<Probe>,

    /// Agents that probe this node. The agent admits no others.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 4))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    pub probers: Vec<Prober>,
}

/// Free memory and hugepages of a node, from its Node and pods. The operator passes them because agents may read
/// neither Nodes nor pods.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Headroom {
    /// Allocatable memory of the Node minus the requests of all its pods, rounded down. Set only while the agent needs
    /// it for a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Hugepages that the kubelet allocates to pods. It counts them only when it starts.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 2))]
    pub hugepages: Vec<Hugepages>,
}

/// Number of agents that each agent probes and is probed by: the maximum length of `probes` and `probers`.
pub const PROBES_LIMIT: usize = 4;

/// An agent to probe.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Name of the agent's node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// IP address and port from which its descriptor is requested.
    #[schemars(length(min = 3, max = 64))]
    pub address: String,
    /// Slot of its probe memory that this node alone writes and reads back, from 0 to 3.
    #[schemars(range(max = 3))]
    pub slot: u8,
}

/// An agent that probes this node.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prober {
    /// Name of the agent's node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// IP address from which it connects.
    #[schemars(length(min = 2, max = 45))]
    pub address: String,
}

/// Maximum length of `spec.pools`. Further pool pods of the node are not served.
pub const POOLS_LIMIT: usize = 64;

/// Maximum length of `spec.domains`. A node is a member of at most one entry.
pub const DOMAINS_LIMIT: usize = 16;

/// Membership of the node in the ComputeDomain of a MooncakeCluster.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// UID of the ComputeDomain. Absent if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub domain_uid: Option<String>,
    /// NVLink clique of the node. Absent until its IMEX daemon has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub clique: Option<String>,
    /// True if pods with a channel on this node may use NVLink to the other members.
    pub member: bool,
    /// Why the node is or is not a member.
    pub reason: Word<Reason>,
    /// Explanation of the reason: object, stage and remedy.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Maximum length of `spec.injected`. Further pods are not inspected.
pub const INJECTED_LIMIT: usize = 64;

/// An injected pod and the settings that its containers are checked against.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = open_words)]
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
    /// Namespace of the MooncakeCluster that the pod uses.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_namespace: String,
    /// Name of the MooncakeCluster that the pod uses.
    #[schemars(length(min = 1, max = 63))]
    pub cluster: String,
    /// Mooncake release whose wire schema the cluster's master uses.
    #[schemars(length(min = 1, max = 32))]
    pub version: String,
    /// RDMA policy of the cluster, or Forbid for a pod that was injected with TCP.
    #[serde(default)]
    pub rdma: TransportPolicy,
    /// True if the pod uses the host network. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

/// A pool pod and how the agent serves it.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = open_words)]
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
    /// Name of the entry of the cluster's `spec.pools` to which the pod belongs.
    #[schemars(length(min = 1, max = 20))]
    pub pool: String,
    /// Memory of the pod in bytes.
    pub size: ByteSize,
    /// Page size of the memory.
    pub page_size: PageSize,
    /// Distribution of the memory over NUMA nodes.
    pub numa_policy: NumaPolicy,
    /// Seconds for which segments stay readable after the pod began to terminate, from 0 to 3600.
    #[schemars(range(min = 0, max = 3600))]
    pub drain_seconds: u32,
    /// The master in which the memory is mounted. Absent while no master serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<MasterInstance>,
    /// The metadata service in which the pod's segment descriptor is published. Absent with metadata type P2P.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataService>,
    /// Transport of the cluster. With Rdma the agent serves stock peers over RDMA and, from the same memory, over TCP. Absent:
    /// Tcp. Agents before release 0.2.0 serve over TCP whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Word<Transport>>,
    /// Admit the cluster's labelled pods that use the host network. Default: false. Agents of release 0.1.0 read it; later
    /// ones admit the endpoints of the Service of such pods, which exists while the cluster allows them.
    #[serde(default)]
    pub allow_host_network: bool,
    /// IP addresses of admitted peers outside Kubernetes.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 2, max = 45)))]
    pub addresses: Vec<String>,
}

/// A metadata service.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = open_words)]
pub struct MetadataService {
    /// Its protocol.
    #[serde(rename = "type")]
    pub kind: MetadataType,
    /// Its URL; of an etcd `etcd://host:port`, with a comma between endpoints.
    #[schemars(length(min = 8, max = 2400))]
    pub endpoint: String,
    /// The `MC_METADATA_CLUSTER_ID` of its engines, with which keys begin. Absent with type HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 320))]
    pub cluster_id: Option<String>,
    /// The Secret that the pool pod mounts for an etcd with TLS; the engine process gets it from the pool pod. Absent:
    /// without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,
}

/// An instance of a master, from the start of its pod until it loses its index.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MasterInstance {
    /// IP address and RPC port of the master's Service.
    #[schemars(length(min = 3, max = 64))]
    pub address: String,
    /// ID of the instance: the UID of the master pod. If the node's segments were removed from that master because
    /// the node was lost, `/` and the number of removals follow. Memory is mounted in one instance at a time, and
    /// gets new addresses in another instance.
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// Mooncake release whose wire schema the master uses.
    #[schemars(length(min = 1, max = 32))]
    pub version: String,
}

/// State of the node as its agent observed it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeNodeStatus {
    /// UID of the Node on which the agent runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_uid: String,
    /// Boot ID of the kernel on which the agent runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Release of the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_version: String,
    /// Mounted memory that is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    /// Ports of the node's RDMA devices, at most 16. Active ports that peers can reach come first. MooncakeInventory
    /// lists all ports.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 16))]
    pub hcas: Vec<HcaLine>,
    /// Number of ports that `hcas` omits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hcas_omitted: Option<u32>,
    /// Number of allocatable RDMA devices, and those that are unhealthy. Absent before the first round of checks and
    /// on nodes without RDMA devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceHealth>,
    /// Number of checks by result. Absent until the agent has read the node's hardware and run them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<CheckCounts>,
    /// Findings of the checks that did not pass, the worst of each check first, at most 24.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 24))]
    pub findings: Vec<CheckFinding>,
    /// Findings of checks that release 0.1.0 does not have, at most 4 and at least the worst of each check. They are not part
    /// of `checks`. Absent before the first round of checks, and if the agent has no such check.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "check::later::serialize",
        deserialize_with = "check::later::deserialize"
    )]
    #[schemars(length(max = 4))]
    pub later_findings: Option<Vec<CheckFinding>>,
    /// Fixes of the policy that are applied, proposed or rejected. A fix that the node does not need has no entry.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub fixes: Vec<FixReport>,
    /// State of each pool pod in the spec, and of pool pods that were rejected.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podUid"]))]
    pub pools: Vec<PoolReport>,
    /// Conditions: AgentAlive, which the operator sets, and PoolsServing and NodeHealthy, which the agent sets. If
    /// AgentAlive is not True, the agent's conditions are Unknown until the agent reports again.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl MooncakeNodeStatus {
    /// Returns the findings of all checks.
    pub fn all_findings(&self) -> impl Iterator<Item = &CheckFinding> {
        self.findings
            .iter()
            .chain(self.later_findings.iter().flatten())
    }
}

/// Summary of one port of an RDMA device.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HcaLine {
    /// Name of the device.
    #[schemars(length(max = 64))]
    pub name: String,
    /// Number of the port.
    pub port: u8,
    /// Logical state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<PortState>>,
    /// Rate in megabits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<u64>,
    /// Index of the GID that peers use. Absent if no GID can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u16>,
    /// That GID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub gid_address: Option<String>,
    /// LID of an InfiniBand port; 0 before its subnet manager has assigned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lid: Option<u16>,
    /// Active MTU in bytes. That of InfiniBand is known after a probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// Why no GID is selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gid: Option<Word<NoGid>>,
    /// True if RDMA is proved: over this port and with this GID the device has connected to itself, written memory and
    /// read it back, and no check of device or port has failed since. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proved: bool,
    /// Why RDMA is not proved: the Reason of the finding of the device or port. Absent if it is proved or was not
    /// probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_proved: Option<Word<Reason>>,
    /// True if `rdmaDevices` of the node's policy does not select the device: no pool pod is served over it. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub excluded: bool,
}

/// Maximum number of ports of one pool pod: each registers all of its memory.
pub const SERVING_PORTS_LIMIT: usize = 16;

/// Returns the ports of a node over which a pool pod that starts now is served: those of one rate, one of each device, sorted.
/// Peers spread their transfers evenly, so a slower one would hold up the others. Of several rates, the one with the most
/// bandwidth in sum: a fast card beside many rails is that of the front end.
pub fn serving_ports(lines: &[HcaLine]) -> Vec<&HcaLine> {
    let mut rates: BTreeMap<u64, Vec<&HcaLine>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.serves()) {
        let rate = line.rate_mbps.unwrap_or_default();
        rates.entry(rate).or_default().push(line);
    }
    for ports in rates.values_mut() {
        ports.sort_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
        ports.dedup_by(|a, b| a.name == b.name);
        ports.truncate(SERVING_PORTS_LIMIT);
    }
    let sum = |rate: u64, ports: &[&HcaLine]| rate.saturating_mul(ports.len() as u64);
    // Of equal sums the highest rate: each port takes keys and queue pairs.
    let best = rates
        .into_iter()
        .max_by_key(|(rate, ports)| (sum(*rate, ports), *rate));
    best.map(|(_, ports)| ports).unwrap_or_default()
}

impl HcaLine {
    /// True if pool pods may be served over the port. Verbs have an octet for the index of a GID.
    pub fn serves(&self) -> bool {
        self.proved && !self.excluded && self.gid.is_some_and(|gid| u8::try_from(gid).is_ok())
    }

    /// True if the agent has not probed the port yet, as after a reboot or a start of the agent.
    pub fn awaits_proof(&self) -> bool {
        self.state == Some(Word::Known(PortState::Active))
            && self.gid.is_some()
            && !self.proved
            && self.not_proved.is_none()
            && !self.excluded
    }

    /// Device and port, and why no pool pod is served over it.
    pub fn unproved(&self) -> String {
        let why = match (&self.not_proved, &self.no_gid) {
            _ if self.excluded => "excluded by rdmaDevices of the MooncakeNodePolicy".to_owned(),
            (Some(reason), _) => reason.to_string(),
            (None, Some(no_gid)) => format!("no GID: {no_gid}"),
            (None, None) => "not probed yet".to_owned(),
        };
        format!("{} port {}: {why}", self.name, self.port)
    }
}

/// Maximum number of listed unhealthy devices.
pub const UNHEALTHY_DEVICES_LIMIT: usize = 16;

/// Health of the node's RDMA devices.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceHealth {
    /// Number of devices that programs can open or that are unhealthy.
    pub known: u32,
    /// Number of unhealthy devices: a check failed, and they are not allocated to new claims.
    #[serde(rename = "sick")]
    pub unhealthy: u32,
    /// Default locked-memory limit of containers without a device claim, in bytes. Absent if there is no limit, if it
    /// is unknown, and if Mooncake can use none of the devices for RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<ByteSize>,
    /// The unhealthy devices, at most 16.
    #[serde(
        default,
        rename = "named",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub unhealthy_devices: Vec<UnhealthyDevice>,
}

/// An unhealthy RDMA device.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyDevice {
    /// Name of the device.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// Reason of the failed check.
    pub reason: Word<Reason>,
}

/// State of one pool pod on the node.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Phase of the pool pod.
    pub state: Word<PoolState>,
    /// Cause of the phase.
    pub reason: Word<Reason>,
    /// Explanation of the reason: object, stage and remedy.
    pub message: String,
    /// Address and handshake port at which peers reach the pool. Also its server name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// ID of the master instance in which it is mounted, from the spec.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub master_pod_uid: String,
    /// Number of times its segments were mounted at new addresses.
    #[serde(default)]
    pub data_epoch: u32,
    /// Names of its segments in the master.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<String>,
    /// Mounted memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted: Option<ByteSize>,
    /// Page size that the kernel allocated, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size_obtained: Option<ByteSize>,
    /// Why the metadata service of the cluster cannot be used from the pod's network: endpoint, address, error and remedy.
    /// Absent while it can, and with metadata type P2P.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub metadata_failure: Option<String>,
    /// Transport over which stock peers are served. Absent: Tcp, or no engine process serves the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Word<Transport>>,
}

impl PoolReport {
    /// The report about a pool pod that no engine process serves.
    pub fn waiting(assignment: &PoolAssignment, reason: Reason, message: String) -> Self {
        Self {
            pod_uid: assignment.pod_uid.clone(),
            namespace: assignment.namespace.clone(),
            pod_name: assignment.pod_name.clone(),
            state: PoolState::Waiting.into(),
            reason: reason.into(),
            message,
            endpoint: String::new(),
            master_pod_uid: String::new(),
            data_epoch: 0,
            segments: Vec::new(),
            mounted: None,
            page_size_obtained: None,
            metadata_failure: None,
            transport: None,
        }
    }

    /// Returns the Reason for conditions and metrics. A failed metadata service is the cause where the report names no
    /// other; the field `reason` has the words of release 0.1.0 only, which has no metadata services.
    pub fn cause(&self) -> Word<Reason> {
        let other = self.reason != Reason::AsExpected && self.reason != Reason::Mounting;
        if other || self.metadata_failure.is_none() {
            return self.reason;
        }
        Reason::MetadataUnreachable.into()
    }
}

catalog! {
    /// Phase of a pool pod.
    PoolState: ();

    /// The agent has not granted the memory yet.
    Waiting;
    /// The memory is being allocated and touched.
    Preparing;
    /// The memory is being mounted in the master.
    Mounting;
    /// The memory is mounted and served.
    Serving;
    /// The segments are being removed from the master.
    Draining;
    /// The pool pod has ended and its memory is released.
    Released;
    /// The pool pod is not served. The reason explains why.
    Refused;
}
