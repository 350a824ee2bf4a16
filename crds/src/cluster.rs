//! MooncakeCluster: a tenant's wish for a pool of memory, a master and the pods that may use them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::check::CheckId;

/// A pool of memory that stock Mooncake pods put to and get from. An empty spec gives one pool of
/// 1Gi on every schedulable node, over TCP.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "mooncake.io",
    version = "v1alpha1",
    kind = "MooncakeCluster",
    namespaced,
    status = "MooncakeClusterStatus",
    derive = "PartialEq",
    shortname = "mc",
    category = "mooncake",
    doc = "A pool of memory that stock Mooncake pods put to and get from, its master, and who may use it.",
    validation = Rule::new("size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name becomes part of Service names: use at most 40 lower-case letters, digits and '-', starting with a letter"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Stock pods can put and get now"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Why it is or is not Ready"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes", description = "Storing nodes: serving/wanted"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".status.capacity", description = "Memory that is mounted and serves"),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.used", description = "Share of the capacity that holds objects, rounded to 5 %"),
    printcolumn(name = "Transport", type_ = "string", json_path = ".status.transport", description = "What stock pods use"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Since creation"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.master.version", priority = 1, description = "Generation of the wire schema"),
    printcolumn(name = "NVLink", type_ = "string", json_path = ".status.mnnvl.nodes", priority = 1, description = "Nodes that may use NVLink between nodes: members/taking part"),
    printcolumn(name = "Master", type_ = "string", json_path = ".status.masterEndpoint", priority = 1, description = "Address of the master")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.usage) || !self.usage.exists(usage, usage == 'Pd') || (self.transports.rdma != 'Forbid' && self.transports.tcp != 'Require')").message("usage Pd needs RDMA, by which the KV cache goes from GPU to GPU: let transports.rdma be Prefer or Require, and tcp not Require").field_path(".usage")
)]
pub struct MooncakeClusterSpec {
    /// The pools of memory. Each becomes a DaemonSet of pool pods, which own the memory. Adding or
    /// removing a pool starts or drains only its own pods.
    #[serde(default = "default_pools")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pools: Vec<Pool>,

    /// Which transports may, must or must not carry the bytes. A change reconnects peers; no pod restarts.
    #[serde(default)]
    pub transports: Transports,

    /// What the cluster's pods do with it. `Pd` requires RDMA, as if `transports.rdma` said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub usage: Vec<Usage>,

    /// How peers find each other's segments.
    #[serde(default)]
    pub metadata: Metadata,

    /// The stock Mooncake master that indexes the pool. A change restarts the master, which forgets every key.
    #[serde(default)]
    pub master: Master,

    /// What happens to pods with the label `mooncake.io/inject`. A change affects pods created later.
    #[serde(default)]
    pub injection: Injection,

    /// What must hold on a pod's node before the pod starts, beyond what is held of every node.
    #[serde(default)]
    pub preflight: Preflight,

    /// Who may connect to the pool besides injected pods of this namespace. A change restarts nothing.
    #[serde(default)]
    pub access: Access,

    /// Multi-node NVLink: the ComputeDomain whose members may use it. Absent: nobody uses NVLink
    /// between nodes. The pool does not wait for it. A change restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<Mnnvl>,
}

fn default_pools() -> Vec<Pool> {
    vec![Pool::default()]
}

/// One pool: the same amount of memory on every node that it selects.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("quantity(string(self.size)).compareTo(quantity('16Mi')) >= 0 && quantity(string(self.size)).compareTo(quantity('16Ti')) <= 0").message("size must be from 16Mi to 16Ti: it is the pool's memory on each node").field_path(".size"),
    validation = Rule::new("!(self.pageSize in ['2Mi', '1Gi']) || quantity(string(self.size)).asInteger() % quantity(self.pageSize).asInteger() == 0").message("size must be a whole number of pages: raise it to a multiple of pageSize").field_path(".size"),
    validation = Rule::new("quantity(string(self.size)).isInteger() && quantity(string(self.size)).asInteger() % 4096 == 0").message("size must be a multiple of 4096 bytes, the smallest page").field_path(".size")
)]
pub struct Pool {
    /// Name of the pool, part of its DaemonSet's name.
    #[schemars(
        length(min = 1, max = 20),
        regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,

    /// Memory on each node, in bytes (`1Gi`). It is requested from the scheduler and charged to the
    /// pool pod. A change drains and replaces the pool's pods one after the other.
    #[serde(default = "default_size")]
    pub size: ByteSize,

    /// Page size of the memory. `2Mi` and `1Gi` need that many free hugepages on the node. Above
    /// 16Gi a pool of `4Ki` pages costs 2 MiB of page tables per GiB in the agent.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("pageSize is immutable: add another pool with the new page size and remove this one"))]
    pub page_size: PageSize,

    /// How the memory lies over the node's NUMA nodes.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("numaPolicy is immutable: add another pool with the new policy and remove this one"))]
    pub numa_policy: NumaPolicy,

    /// Labels of the nodes that store. Empty: every schedulable node. A change starts or drains the
    /// pods of the nodes that it adds or removes.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that the pool's pods tolerate. By default none: control-plane nodes do not store.
    /// A change replaces the pool's pods one after the other.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// PriorityClass of the pool's pods. By default the chart's lowest class, which never preempts.
    /// A change replaces the pool's pods one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,

    /// Longest time in seconds for which the master keeps a segment readable after its pool pod
    /// was told to end. It is part of the pod's grace period. A change replaces the pool's pods one after the other.
    #[serde(default = "default_drain_seconds")]
    #[schemars(range(min = 0, max = 3600))]
    pub drain_seconds: u32,
}

fn default_size() -> ByteSize {
    ByteSize(1 << 30)
}

fn default_drain_seconds() -> u32 {
    5
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            size: default_size(),
            page_size: PageSize::default(),
            numa_policy: NumaPolicy::default(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            priority_class_name: None,
            drain_seconds: default_drain_seconds(),
        }
    }
}

/// Page sizes of x86-64 and of 4 KiB-page arm64 kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PageSize {
    /// The kernel's base page.
    #[default]
    #[serde(rename = "4Ki")]
    Base,
    /// Hugepages of 2 MiB, the pod resource `hugepages-2Mi`.
    #[serde(rename = "2Mi")]
    Huge2Mi,
    /// Hugepages of 1 GiB, the pod resource `hugepages-1Gi`.
    #[serde(rename = "1Gi")]
    Huge1Gi,
}

impl PageSize {
    pub fn bytes(self) -> u64 {
        match self {
            Self::Base => 4 << 10,
            Self::Huge2Mi => 2 << 20,
            Self::Huge1Gi => 1 << 30,
        }
    }

    /// Every size.
    pub const ALL: [Self; 3] = [Self::Base, Self::Huge2Mi, Self::Huge1Gi];

    /// The pod resource that accounts for it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Base => "memory",
            Self::Huge2Mi => "hugepages-2Mi",
            Self::Huge1Gi => "hugepages-1Gi",
        }
    }
}

/// How a pool's extents lie over NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NumaPolicy {
    /// Equal parts on every NUMA node that has memory; each extent lies on one.
    #[default]
    Spread,
    /// Wherever the kernel puts it.
    Any,
}

/// May, must or must not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TransportPolicy {
    /// Nothing else may carry the bytes.
    Require,
    /// Used where it is proven.
    #[default]
    Prefer,
    /// Never used.
    Forbid,
}

/// Policies, one a transport.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!(self.tcp == 'Forbid' && self.rdma == 'Forbid')").message("every transport is forbidden: allow tcp or rdma"),
    validation = Rule::new("!(self.tcp == 'Require' && self.rdma == 'Require')").message("a stock peer uses exactly one transport: require only one of tcp and rdma")
)]
pub struct Transports {
    /// TCP on the pool pods' own addresses.
    #[serde(default)]
    pub tcp: TransportPolicy,
    /// RDMA on the nodes' HCAs. Used only when every storing node has proved it; until then
    /// `Require` keeps the cluster from being Ready, with the cause in its conditions. Pods that are
    /// injected while it says `Require` claim an RDMA device each, by the ResourceClaimTemplate `NAME-hca`,
    /// which needs Kubernetes 1.34; they start only on nodes that have one.
    #[serde(default)]
    pub rdma: TransportPolicy,
}

/// What a cluster is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Usage {
    /// Prefill and decode in pods of their own, whose KV cache goes from GPU to GPU: it needs GPUDirect RDMA.
    Pd,
    /// A cache behind the engines' own, which TCP serves as well.
    HiCache,
}

impl MooncakeClusterSpec {
    /// The policies that hold: what the cluster is used for may tighten those that it names.
    pub fn transports_in_force(&self) -> Transports {
        let mut policies = self.transports.clone();
        if self.usage.contains(&Usage::Pd) && policies.rdma == TransportPolicy::Prefer {
            policies.rdma = TransportPolicy::Require;
        }
        policies
    }
}

/// How peers find each other's segments.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// `P2P`: peers ask each other on the handshake port; nothing else has to run.
    #[serde(default, rename = "type")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("metadata.type is immutable: peers cache what it gave them; make another MooncakeCluster"))]
    pub kind: MetadataType,
}

/// Where segment descriptors stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MetadataType {
    /// Nowhere: peers ask each other.
    #[default]
    P2P,
}

/// The stock master.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Master {
    /// Mooncake generation: it chooses the wire schema that every part of this cluster speaks.
    #[serde(default)]
    pub version: MooncakeVersion,

    /// Where the master's image comes from, when not from the operator's setting for that version.
    /// It must hold `mooncake_master` of that version on its PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// Requests and limits of the master's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

/// Generations whose wire schemas are built in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MooncakeVersion {
    /// 0.3.13 and its post releases.
    #[default]
    #[serde(rename = "0.3.13")]
    V0_3_13,
}

impl MooncakeVersion {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_13 => "0.3.13",
        }
    }
}

/// How labelled pods are prepared and held.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Injection {
    /// Seconds for which a pod's start is held until its master and pool answer from inside the pod.
    #[serde(default = "default_gate_deadline")]
    #[schemars(range(min = 1, max = 3600))]
    pub deadline_seconds: u32,

    /// What happens when the deadline passes.
    #[serde(default)]
    pub on_deadline: OnDeadline,

    /// Memory that a stock client takes for its own transfers, in bytes (`MOONCAKE_LOCAL_BUFFER_SIZE`).
    #[serde(default = "default_local_buffer")]
    #[x_kube(validation = Rule::new("quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0").message("localBufferSize must be from 1Mi to 1Ti"))]
    pub local_buffer_size: ByteSize,
}

fn default_gate_deadline() -> u32 {
    120
}

fn default_local_buffer() -> ByteSize {
    ByteSize(64 << 20)
}

impl Default for Injection {
    fn default() -> Self {
        Self {
            deadline_seconds: default_gate_deadline(),
            on_deadline: OnDeadline::default(),
            local_buffer_size: default_local_buffer(),
        }
    }
}

/// What the gate does when it has waited long enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnDeadline {
    /// Let the pod start; its condition says what was missing.
    #[default]
    Start,
    /// Fail the pod's start; the kubelet tries again.
    Fail,
}

/// What is asked of a node before an injected pod starts there. It tightens for this cluster's pods alone:
/// what is judged, told and set right on nodes is a MooncakeNodePolicy's.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preflight {
    /// Checks of the node that must find nothing, not even a warning, before the gate of a pod opens;
    /// `deadlineSeconds` and `onDeadline` of `injection` hold. Checks of containers (`Pod...`) look at what runs
    /// already and cannot be asked for. A change affects pods that wait, and pods created later.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self.all(check, !check.startsWith('Pod'))").message("preflight.checks must be checks of nodes: those whose names begin with Pod look at containers that run already")
    )]
    pub checks: Vec<CheckId>,
}

/// Which ComputeDomain the cluster's pods share.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("has(self.reference) != has(self.create)").message("set exactly one: reference names a ComputeDomain that exists, create lets the operator make one")
)]
pub struct Mnnvl {
    /// A ComputeDomain of this namespace that somebody else makes and deletes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<DomainReference>,

    /// The operator makes the ComputeDomain `NAME-mnnvl`, whose ResourceClaimTemplate has the same
    /// name, and deletes it when it is no longer wanted and no claim uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<DomainCreation>,
}

/// Names a ComputeDomain.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DomainReference {
    /// Name of the ComputeDomain.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
}

/// How a ComputeDomain is made.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DomainCreation {
    /// Which IMEX channels a pod gets with one claim.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("channels is immutable, as a ComputeDomain is: remove spec.mnnvl, wait until the domain is gone, add it anew"))]
    pub channels: Channels,
}

/// IMEX channels of one claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Channels {
    /// Channel 0.
    #[default]
    Single,
    /// Every channel.
    All,
}

impl Channels {
    /// The word in a ComputeDomain's `allocationMode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "Single",
            Self::All => "All",
        }
    }
}

/// Who may connect.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Access {
    /// Other namespaces whose pods may name this cluster in `mooncake.io/inject` with the
    /// annotation `mooncake.io/cluster-namespace`.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allowed_namespaces: Vec<String>,

    /// Admit labelled pods that use the host's network. Every process in the network namespace of
    /// such a pod's node is then admitted too.
    #[serde(default)]
    pub allow_host_network: bool,

    /// Addresses of peers outside Kubernetes that may connect, IPv4 or IPv6, not loopback.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 2, max = 45)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self.all(a, isIP(a))").message("access.addresses must be IPv4 or IPv6 addresses, without port or prefix"),
        validation = Rule::new("self.all(a, !isIP(a) || ip(a).isGlobalUnicast())").message("access.addresses must not be loopback, unspecified, link-local or multicast: no other machine connects from there")
    )]
    pub addresses: Vec<String>,
}

/// What the operator has observed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeClusterStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, MasterReady, PoolsReady, TransportsReady, PodsInjected.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Storing nodes, serving/wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Memory that is mounted and serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    /// Share of the capacity that holds objects, rounded to 5 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// What stock pods use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Host and port of the master.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_endpoint: Option<String>,
    /// The ComputeDomain and who is in it; absent without `spec.mnnvl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<MnnvlStatus>,
}

/// What is known of the cluster's ComputeDomain.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MnnvlStatus {
    /// Name of the ComputeDomain.
    pub domain: String,
    /// UID of the ComputeDomain that was there last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_uid: Option<String>,
    /// Name that pods give as `resourceClaimTemplateName`; absent until that template is there and
    /// belongs to the domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_template: Option<String>,
    /// NVLink clique of the members: one of another clique is not in reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<String>,
    /// Nodes that take part: members/all.
    pub nodes: String,
    /// UIDs of deleted ComputeDomains whose claims pods still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_uids: Vec<String>,
}

/// A transport of stock peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Transport {
    Tcp,
    Rdma,
}
