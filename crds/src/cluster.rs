//! MooncakeCluster: a tenant's memory pools, their master and the pods that may use them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
#[cfg(feature = "kube")]
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::catalog::catalog;
use crate::check::CheckId;
pub use crate::master::{
    DEFAULT_LEASE_SECONDS, LEAST_LEASE_SECONDS, LONGEST_LEASE_SECONDS, Master, MasterCommit,
    MasterType, MooncakeVersion, Tenant,
};
use crate::pod_template::PoolPodTemplate;
use crate::update::{RolloutStatus, Update};
use crate::word::Word;

/// A memory pool for stock Mooncake pods, with its master and access rules. An empty spec creates one pool of 1Gi on
/// every schedulable node, over RDMA if every node has proved it, and over TCP otherwise.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(CustomResource), kube(
    group = "mooncake.io",
    version = "v1alpha1",
    kind = "MooncakeCluster",
    namespaced,
    status = "MooncakeClusterStatus",
    derive = "PartialEq",
    shortname = "mc",
    category = "mooncake",
    doc = "A memory pool for stock Mooncake pods, with its master and access rules.",
    validation = Rule::new("size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name becomes part of Service names: use at most 40 lower-case letters, digits and '-', starting with a letter"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Stock pods can put and get now"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Reason of the condition Ready"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes", description = "Nodes of the pools: serving/desired"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".status.capacity", description = "Mounted memory that is served"),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.used", description = "Share of the capacity that holds objects, rounded to 5 %"),
    printcolumn(name = "Transport", type_ = "string", json_path = ".status.transport", description = "Transport of stock pods"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.master.version", priority = 1, description = "Mooncake release of the wire schema"),
    printcolumn(name = "NVLink", type_ = "string", json_path = ".status.mnnvl.nodes", priority = 1, description = "Nodes that may use NVLink between nodes: members/participants"),
    printcolumn(name = "Master", type_ = "string", json_path = ".status.masterEndpoint", priority = 1, description = "Address of the master"),
    printcolumn(name = "MasterType", type_ = "string", json_path = ".status.masterType", priority = 1, description = "Program of the master")
))]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "!has(self.usage) || !self.usage.exists(usage, usage == 'Pd') || (self.transports.rdma != 'Forbid' && self.transports.tcp != 'Require')", "message": "usage Pd requires RDMA to transfer the KV cache between GPUs: set transports.rdma to Prefer or Require, and transports.tcp to Prefer or Forbid", "fieldPath": ".usage" },
        { "rule": "!has(self.update) || self.update.onCordon != 'Drain' || (has(self.master.type) && self.master.type == 'BuiltIn')", "message": "update.onCordon Drain requires master.type BuiltIn, because a Stock master cannot move keys: remove update.onCordon", "fieldPath": ".update" },
        { "rule": "self.metadata.type == 'P2P' || (self.transports.rdma != 'Require' && self.transports.tcp != 'Forbid' && (!has(self.usage) || !self.usage.exists(usage, usage == 'Pd')))", "message": "no pool is served over RDMA with metadata.type HTTP or Etcd, and RDMA is required by transports.rdma Require, transports.tcp Forbid or usage Pd: do not require RDMA, or use metadata.type P2P", "fieldPath": ".transports" }
    ]))]
pub struct MooncakeClusterSpec {
    /// Memory pools. Each is a DaemonSet of pool pods, which own the memory. Adding or removing a pool starts or drains
    /// only its own pods. Default: one pool named `default`.
    #[serde(default = "default_pools")]
    #[schemars(length(min = 1, max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pools: Vec<Pool>,

    /// Transports that are required, preferred or forbidden. A change reconnects peers and restarts no pod.
    #[serde(default)]
    pub transports: Transports,

    /// Use cases of the cluster's pods. `Pd` has the effect of `transports.rdma: Require`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub usage: Vec<Usage>,

    /// How peers discover each other's segments.
    #[serde(default)]
    pub metadata: Metadata,

    /// The master that indexes the pool. A change restarts the master; a `Stock` one then loses every key.
    #[serde(default)]
    pub master: Master,

    /// How pods with the label `mooncake.io/inject` are injected. A change affects pods that are created later.
    #[serde(default)]
    pub injection: Injection,

    /// Checks of a node that must pass before an injected pod starts there. Default: none.
    #[serde(default)]
    pub preflight: Preflight,

    /// Peers that may connect to the pool besides injected pods of this namespace. A change restarts no pod.
    #[serde(default)]
    pub access: Access,

    /// Secrets with the credentials of private registries, for pool pods, master and the gate of injected pods. They are
    /// in this namespace; for injected pods of other namespaces, Secrets of the same names are in those. A change
    /// restarts no pod and affects pods that are created later: delete pods that wait in ImagePullBackOff. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<PullSecret>,

    /// ComputeDomain whose members may use multi-node NVLink. If absent, NVLink is not used between nodes. The
    /// pool does not wait for the ComputeDomain. A change restarts no pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<Mnnvl>,

    /// How pool pods are replaced when their spec changes, and drained when their node is cordoned. A change restarts no
    /// pod. Default: one pod at a time, and a cordon has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,

    /// Percentage of the nodes of the pools that must serve for the cluster to be Ready, rounded up to a whole node. The
    /// condition Degraded names the others. Default: 90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub min_ready_percent: Option<u8>,

    /// If true, the operator creates, changes and deletes no object of the cluster: no Service, policy, master, pool or
    /// pool pod. It still writes the status. What runs keeps serving: the MooncakeNodes, which the agents follow, and
    /// the conditions of injected pods are still written. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

impl MooncakeClusterSpec {
    /// Returns the percentage of nodes that must serve.
    pub fn min_ready_percent(&self) -> u8 {
        self.min_ready_percent.unwrap_or(90)
    }
}

fn default_pools() -> Vec<Pool> {
    vec![Pool::default()]
}

/// A pool: an equal amount of memory on every selected node.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "quantity(string(self.size)).compareTo(quantity('16Mi')) >= 0 && quantity(string(self.size)).compareTo(quantity('16Ti')) <= 0", "message": "size must be from 16Mi to 16Ti. It is the memory of the pool on each node", "fieldPath": ".size" },
        { "rule": "!(self.pageSize in ['2Mi', '1Gi']) || quantity(string(self.size)).asInteger() % quantity(self.pageSize).asInteger() == 0", "message": "size must be a whole number of pages: raise it to a multiple of pageSize", "fieldPath": ".size" },
        { "rule": "quantity(string(self.size)).isInteger() && quantity(string(self.size)).asInteger() % 4096 == 0", "message": "size must be a multiple of 4096 bytes, the smallest page", "fieldPath": ".size" }
    ]))]
pub struct Pool {
    /// Name of the pool. It is part of the DaemonSet's name.
    #[schemars(
        length(min = 1, max = 20),
        regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,

    /// Memory on each node, in bytes, e.g. `64Gi`. The pool pod requests it from the scheduler and is charged for it.
    /// A change drains and replaces the pool's pods, `update.maxUnavailable` at a time. Default: 1Gi.
    #[serde(default = "default_size")]
    #[schemars(extend("nullable" = false))]
    pub size: ByteSize,

    /// Processors that each pool pod requests from the scheduler, e.g. `1` or `500m`: its share of the node's processors when
    /// these are busy. There is no limit. Where it is set, a change replaces the pool's pods. Default: 250m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "processors")]
    pub cpu: Option<Quantity>,

    /// Page size of the memory. `2Mi` and `1Gi` require enough free hugepages of that size on the node. With `4Ki`
    /// the pool pod requests 6 MiB per GiB more for page tables. Immutable. Default: 4Ki.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "pageSize is immutable: add another pool with the new page size and remove this one" }
    ]))]
    pub page_size: PageSize,

    /// Distribution of the memory over the node's NUMA nodes. Immutable. Default: Spread.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "numaPolicy is immutable: add another pool with the new policy and remove this one" }
    ]))]
    pub numa_policy: NumaPolicy,

    /// Labels of the nodes that the pool uses. If empty, the pool uses every schedulable node. A change starts or drains
    /// the pods of added or removed nodes.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 16))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that the pool's pods tolerate. A change replaces the pool's pods. Default: none, so
    /// control-plane nodes are not used.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// PriorityClass of the pool's pods. A change replaces the pool's pods. Default: the chart's
    /// lowest class, which never preempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,

    /// Maximum time in seconds for which segments stay readable after their pool pod began to terminate. With the built-in
    /// master its keys move to other pool pods meanwhile, and the pod ends when they have moved. It is part of the pod's
    /// grace period. A change replaces the pool's pods. Default: 600 with the built-in master, 5 with a stock
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub drain_seconds: Option<u32>,

    /// Labels, annotations and affinity that are added to the pool's pods. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PoolPodTemplate>,
}

/// The schema of a number of processors.
fn processors(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": "^([0-9]{1,6}m|[0-9]{1,3}(\\.[0-9]{1,3})?)$",
        "maxLength": 8,
        "x-kubernetes-validations": [{
            "rule": "quantity(string(self)).compareTo(quantity('1m')) >= 0 && quantity(string(self)).compareTo(quantity('64')) <= 0",
            "message": "cpu must be from 1m to 64",
        }],
    })
}

fn default_size() -> ByteSize {
    ByteSize(1 << 30)
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            size: default_size(),
            cpu: None,
            page_size: PageSize::default(),
            numa_policy: NumaPolicy::default(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            priority_class_name: None,
            drain_seconds: None,
            pod_template: None,
        }
    }
}

/// Page sizes of x86-64 and of 4 KiB-page arm64 kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PageSize {
    /// The kernel's base page size.
    #[default]
    #[serde(rename = "4Ki")]
    Base,
    /// 2 MiB hugepages, pod resource `hugepages-2Mi`.
    #[serde(rename = "2Mi")]
    Huge2Mi,
    /// 1 GiB hugepages, pod resource `hugepages-1Gi`.
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

    /// Returns the name of the pod resource for pages of this size.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Base => "memory",
            Self::Huge2Mi => "hugepages-2Mi",
            Self::Huge1Gi => "hugepages-1Gi",
        }
    }
}

/// Distribution of a pool's extents over NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NumaPolicy {
    /// Equal parts on every NUMA node with memory. Each extent is on one NUMA node.
    #[default]
    Spread,
    /// The kernel places the memory.
    Any,
}

/// Whether a transport is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TransportPolicy {
    /// No other transport is used.
    Require,
    /// The transport is used if it is proven to work.
    #[default]
    Prefer,
    /// The transport is never used.
    Forbid,
}

/// One policy per transport.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "!(self.tcp == 'Forbid' && self.rdma == 'Forbid')", "message": "tcp and rdma are both Forbid: set one of them to Prefer or Require" },
        { "rule": "!(self.tcp == 'Require' && self.rdma == 'Require')", "message": "a stock peer uses exactly one transport: require only one of tcp and rdma" }
    ]))]
pub struct Transports {
    /// TCP between pod addresses. `Forbid` has the effect of `rdma: Require`. Default: Prefer.
    #[serde(default)]
    pub tcp: TransportPolicy,
    /// RDMA through the nodes' HCAs. With `Require`, a node serves its pool only while one of its RDMA ports is proved; the
    /// conditions show the cause where none is. Exclude nodes without RDMA devices by the nodeSelector of the pools. With
    /// `Prefer`, the cluster uses RDMA if every node of its pools has proved it, and TCP otherwise; the condition
    /// TransportsReady shows the cause. It changes to TCP only while no injected pod with RDMA runs; pods with TCP are served in
    /// either case. Pods that are injected with RDMA each claim an RDMA device through the ResourceClaimTemplate `NAME-hca`,
    /// and start only on nodes with RDMA devices; others have the annotation `mooncake.io/transport: tcp`. Default: Prefer.
    #[serde(default)]
    pub rdma: TransportPolicy,
}

/// Use case of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Usage {
    /// Prefill and decode in separate pods, which transfer the KV cache between GPUs. Requires GPUDirect RDMA.
    Pd,
    /// A second-level cache of the engines. RDMA and TCP are both suitable, so it changes nothing.
    HiCache,
}

impl MooncakeClusterSpec {
    /// Returns the effective policies: a use case, or TCP that is forbidden, changes `Prefer` to `Require` for RDMA.
    pub fn transports_in_force(&self) -> Transports {
        let mut policies = self.transports.clone();
        let required = self.usage.contains(&Usage::Pd) || policies.tcp == TransportPolicy::Forbid;
        if required && policies.rdma == TransportPolicy::Prefer {
            policies.rdma = TransportPolicy::Require;
        }
        policies
    }
}

/// How peers discover each other's segments.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "!has(self.endpoint) || self.type == 'HTTP'", "message": "metadata.endpoint requires metadata.type HTTP" },
        { "rule": "has(self.endpoints) == (self.type == 'Etcd')", "message": "metadata.type Etcd requires metadata.endpoints, and no other type has them" },
        { "rule": "!has(self.secretName) || self.type == 'Etcd'", "message": "metadata.secretName requires metadata.type Etcd: no other type has TLS" },
        { "rule": "(has(self.secretName) ? self.secretName : '') == (has(oldSelf.secretName) ? oldSelf.secretName : '')", "message": "metadata.secretName is immutable because it decides which pods can use the etcd: change what the Secret contains, or create another MooncakeCluster" },
        { "rule": "(has(self.endpoints) ? self.endpoints : []) == (has(oldSelf.endpoints) ? oldSelf.endpoints : [])", "message": "metadata.endpoints is immutable because engines read it only when they start: create another MooncakeCluster" },
        { "rule": "(has(self.endpoint) ? self.endpoint : '') == (has(oldSelf.endpoint) ? oldSelf.endpoint : '')", "message": "metadata.endpoint is immutable because engines read it only when they start: create another MooncakeCluster" }
    ]))]
pub struct Metadata {
    /// `P2P`: peers request segment descriptors from each other on the handshake port, without a metadata service. `HTTP`:
    /// pools publish them in an HTTP metadata service, and peers read them there. `Etcd`: the same in an etcd. With `HTTP` and
    /// `Etcd` no pool is served over RDMA. Immutable. Default: P2P.
    #[serde(default, rename = "type")]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "metadata.type is immutable because peers cache its results: create another MooncakeCluster" }
    ]))]
    pub kind: MetadataType,

    /// URL of an HTTP metadata service that exists already, such as `http://metadata.team.svc:8080/metadata`: without TLS,
    /// query and credentials, which stock engines do not support. Pods of this cluster and whoever else reaches the service
    /// can replace its values. Immutable. Default: the server in the cluster's master pod, which loses its values when the
    /// master restarts; pools publish theirs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 8, max = 512),
        regex(pattern = r"^http://[^/?#@\s]+(/[^?#\s]*)?$")
    )]
    pub endpoint: Option<String>,

    /// Hosts and client ports of an etcd of version 3.4 or later, such as `etcd.infra.svc:2379`; all members, or a Service in
    /// front of them. Without `secretName`, without TLS and authentication: whoever else reaches it can replace its values.
    /// Immutable. Keys begin with `mooncake/<namespace>/<name>/`; engines outside the cluster set
    /// `MC_METADATA_CLUSTER_ID` to `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 9),
        inner(
            length(min = 3, max = 260),
            regex(pattern = r"^[^/?#@,;\s]+:[0-9]{1,5}$")
        )
    )]
    pub endpoints: Option<Vec<String>>,

    /// Name of a Secret in the namespace of the MooncakeCluster, with which pool pods use the etcd by TLS. It has the key
    /// `ca.crt` (the certificates that sign those of the etcd, as PEM), for an etcd that requires client certificates `tls.crt`
    /// and `tls.key`, and for one with users `username` and `password`. Stock engines support neither, so the pods of
    /// stock engines are not injected. Immutable; a change of what the Secret contains takes effect in running pool pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
    )]
    pub secret_name: Option<String>,
}

/// Source of segment descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum MetadataType {
    /// Peers request them from each other.
    #[default]
    P2P,
    /// An HTTP metadata service has them.
    #[serde(rename = "HTTP")]
    Http,
    /// An etcd has them.
    Etcd,
}

/// How labelled pods are injected and when they start.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Injection {
    /// Maximum time in seconds for which a pod's start is delayed until its master and pool respond from inside the pod.
    /// Default: 120.
    #[serde(default = "default_gate_deadline")]
    #[schemars(range(min = 1, max = 3600))]
    pub deadline_seconds: u32,

    /// Action when the deadline passes. Default: Start.
    #[serde(default)]
    pub on_deadline: OnDeadline,

    /// Memory that a stock client allocates for its own transfers, in bytes (`MOONCAKE_LOCAL_BUFFER_SIZE`), from 1Mi
    /// to 1Ti. Default: 64Mi.
    #[serde(default = "default_local_buffer")]
    #[schemars(extend("nullable" = false, "x-kubernetes-validations" = [
        { "rule": "quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0", "message": "localBufferSize must be from 1Mi to 1Ti" }
    ]))]
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

/// What the gate does at its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnDeadline {
    /// The pod starts. Its condition shows what is missing.
    #[default]
    Start,
    /// The pod's start fails. The kubelet retries it.
    Fail,
}

/// Checks that a node must pass before an injected pod of this cluster starts there. The checks and fixes of nodes
/// are configured in MooncakeNodePolicy.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// Checks of the node that must pass without a warning before the gate of a pod opens. `deadlineSeconds` and
    /// `onDeadline` of `injection` apply. Checks of containers (`Pod...`) inspect running containers and cannot be
    /// listed. A change affects waiting pods and pods that are created later. Default: none.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "set", "x-kubernetes-validations" = [
        { "rule": "self.all(check, !check.startsWith('Pod'))", "message": "preflight.checks must be checks of nodes: remove the checks whose names begin with Pod, which inspect running containers" }
    ]))]
    pub checks: Vec<CheckId>,
}

/// The ComputeDomain of the cluster's pods. Set exactly one field.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
        { "rule": "has(self.reference) != has(self.create)", "message": "set exactly one of reference (an existing ComputeDomain) and create (the operator creates one)" }
    ]))]
pub struct Mnnvl {
    /// An existing ComputeDomain in this namespace. The operator does not create or delete it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<DomainReference>,

    /// Lets the operator create the ComputeDomain `NAME-mnnvl` with a ResourceClaimTemplate of the same name. The operator
    /// deletes it when this field is removed and no claim uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<DomainCreation>,
}

/// Reference to a ComputeDomain.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainReference {
    /// Name of the ComputeDomain.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
}

/// Settings of a ComputeDomain that the operator creates.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainCreation {
    /// IMEX channels that a claim allocates. Immutable. Default: Single.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "self == oldSelf", "message": "channels is immutable, as a ComputeDomain is: remove spec.mnnvl, wait until the ComputeDomain is deleted, then add spec.mnnvl again" }
    ]))]
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
    /// Returns the value of a ComputeDomain's `allocationMode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "Single",
            Self::All => "All",
        }
    }
}

/// Peers that may connect to the pool.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// Other namespaces whose pods may use this cluster, with the label `mooncake.io/inject` and the annotation
    /// `mooncake.io/cluster-namespace`. Default: none.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    #[schemars(extend("x-kubernetes-list-type" = "set", "x-kubernetes-validations" = [
        { "rule": "self.all(name, name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))", "message": "access.allowedNamespaces must be names of namespaces: list each one, because there is no wildcard" }
    ]))]
    pub allowed_namespaces: Vec<String>,

    /// Admits labelled pods that use the host network. Every process in the network namespace of such a pod's node is
    /// then admitted too. Default: false.
    #[serde(default)]
    pub allow_host_network: bool,

    /// IPv4 or IPv6 addresses of peers outside Kubernetes that may connect. Loopback addresses are invalid. Default: none.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(min = 2, max = 45)))]
    #[schemars(extend("x-kubernetes-list-type" = "set", "x-kubernetes-validations" = [
        { "rule": "self.all(a, isIP(a))", "message": "access.addresses must be IPv4 or IPv6 addresses, without port or prefix" },
        { "rule": "self.all(a, !isIP(a) || ip(a).isGlobalUnicast())", "message": "access.addresses must not be loopback, unspecified, link-local or multicast: other machines do not connect from such addresses" }
    ]))]
    pub addresses: Vec<String>,
}

/// A Secret with the credentials of a registry.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullSecret {
    /// Name of the Secret, of type `kubernetes.io/dockerconfigjson`.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
}

/// State of the cluster as the operator observed it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeClusterStatus {
    /// Generation of the spec to which this status belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: Ready, MasterReady, PoolsReady, TransportsReady, PodsInjected and, with `spec.metadata.type` HTTP or Etcd, MetadataReady, with `spec.mnnvl` MnnvlReady, with the built-in master, from the first drain on, Drained, and from a change from RDMA to TCP until RDMA is used again, RdmaUsable.
    /// Reconciling, Stalled, Degraded and Paused are present only while they are True.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Nodes of the pools: serving/desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Mounted memory that is served, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ByteSize>,
    /// Share of the capacity that holds objects, rounded to 5 %. 0 % means that there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// Transport of injected pods, except those that are injected with TCP. Absent until it is decided, and where the spec requires RDMA, until pools are served over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Word<Transport>>,
    /// Host and port of the master.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_endpoint: Option<String>,
    /// Program of the newest master pod. Absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_type: Option<Word<MasterType>>,
    /// The ComputeDomain and its members. Absent without `spec.mnnvl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mnnvl: Option<MnnvlStatus>,
    /// The rollout in progress. Absent if no pool pod is outdated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
}

/// State of the cluster's ComputeDomain.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MnnvlStatus {
    /// Name of the ComputeDomain.
    pub domain: String,
    /// UID of the ComputeDomain that was observed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_uid: Option<String>,
    /// Name for `resourceClaimTemplateName` in pods. Absent until the template exists and belongs to the ComputeDomain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_template: Option<String>,
    /// NVLink clique of the members. Nodes of other cliques cannot be reached over NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<String>,
    /// Nodes that the ComputeDomain includes: members/all.
    pub nodes: String,
    /// UIDs of deleted ComputeDomains whose claims are still allocated to pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_uids: Vec<String>,
}

catalog! {
    /// A transport of stock peers.
    Transport: ();

    /// TCP.
    Tcp;
    /// RDMA.
    Rdma;
}
