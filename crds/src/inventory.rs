//! MooncakeInventory: what hardware a node has, as its agent reads it from the kernel. Written when
//! the hardware changes; counters and timings are metrics.

use std::fmt;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;

/// One node's hardware. Named after the node and owned by it, by UID.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "mooncake.io",
    version = "v1alpha1",
    kind = "MooncakeInventory",
    plural = "mooncakeinventories",
    status = "MooncakeInventoryStatus",
    derive = "PartialEq",
    shortname = "mi",
    category = "mooncake",
    doc = "One node's hardware as its agent reads it: HCAs, GPUs, memory, kernel.",
    printcolumn(
        name = "HCAs",
        type_ = "integer",
        json_path = ".status.counts.hcas",
        description = "RDMA devices"
    ),
    printcolumn(
        name = "Usable",
        type_ = "integer",
        json_path = ".status.counts.usablePorts",
        description = "Ports that are active and have a GID that peers can reach"
    ),
    printcolumn(
        name = "GPUs",
        type_ = "integer",
        json_path = ".status.counts.gpus",
        description = "GPUs"
    ),
    printcolumn(
        name = "IMEX",
        type_ = "integer",
        json_path = ".status.counts.imexChannels",
        description = "IMEX channels"
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.counts.memory",
        description = "Memory of all NUMA nodes"
    ),
    printcolumn(
        name = "Hugepages",
        type_ = "string",
        json_path = ".status.counts.hugepages",
        description = "Memory set aside for hugepages"
    ),
    printcolumn(
        name = "Unread",
        type_ = "integer",
        json_path = ".status.counts.faults",
        description = "Files that the agent could not read or understand"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since creation"
    ),
    printcolumn(
        name = "Kernel",
        type_ = "string",
        json_path = ".status.kernel.release",
        priority = 1,
        description = "Release of the kernel"
    ),
    printcolumn(
        name = "Driver",
        type_ = "string",
        json_path = ".status.gpuDriver.version",
        priority = 1,
        description = "Version of the GPU driver"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MooncakeInventorySpec {
    /// UID of the Node that the inventory is of. A status that names another is void.
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: String,
}

/// What the node has.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeInventoryStatus {
    /// UID of the Node that this was read on.
    #[schemars(length(max = 64))]
    pub node_uid: String,
    /// How many there are of each; where a list is cut, these still count all.
    pub counts: Counts,
    /// The kernel and what it was told.
    pub kernel: Kernel,
    /// RDMA devices, at most 256.
    #[serde(default)]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub hcas: Vec<Hca>,
    /// Driver of the GPUs; absent where none is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_driver: Option<GpuDriver>,
    /// GPUs, at most 64.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pci".into()]))]
    pub gpus: Vec<Gpu>,
    /// NUMA nodes that have memory, at most 128.
    #[serde(default)]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub numa_nodes: Vec<NumaNode>,
    /// What could not be read, at most 32; what hangs on it is absent above.
    #[serde(default)]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".into()]))]
    pub faults: Vec<Fault>,
}

/// How many there are of each.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// RDMA devices.
    pub hcas: u32,
    /// Ports that are active and have a GID that peers can reach.
    pub usable_ports: u32,
    /// GPUs.
    pub gpus: u32,
    /// IMEX channels: what GPUs of several nodes share memory through.
    pub imex_channels: u32,
    /// Memory of all NUMA nodes.
    pub memory: ByteSize,
    /// Memory set aside for hugepages of all sizes.
    pub hugepages: ByteSize,
    /// Files that could not be read or understood.
    pub faults: u32,
}

/// The kernel and what it was told.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    /// Its release, as `uname -r` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub release: Option<String>,
    /// The distribution, as /etc/os-release says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub distribution: Option<String>,
    /// 1 or 2: which cgroups the node has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_version: Option<u8>,
    /// Modules that matter here and are there.
    #[serde(default)]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub modules: Vec<Module>,
    /// vm.max_map_count: mappings that one process may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_map_count: Option<u64>,
    /// net.ipv4.ip_local_port_range of the node's network namespace: first and last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 2))]
    pub local_ports: Option<Vec<u16>>,
    /// net.ipv4.tcp_tw_reuse of the node's network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_wait_reuse: Option<u8>,
    /// Memory that a process of the node may lock: what its first process was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<Limit>,
}

/// A soft and a hard limit, each a number of bytes or `unlimited`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// What holds.
    #[schemars(length(max = 20))]
    pub soft: String,
    /// To what a process may raise it by itself.
    #[schemars(length(max = 20))]
    pub hard: String,
}

/// One module of the kernel.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Module {
    /// Its name.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// Its version, where it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
}

/// One RDMA device.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hca {
    /// Its name, e.g. `mlx5_0`.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// PCI address; absent for a device that is none, such as Soft-RoCE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub pci: Option<String>,
    /// PCI vendor and device, e.g. `15b3:1021`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub model: Option<String>,
    /// Driver of the PCI device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub driver: Option<String>,
    /// Whether it is a whole device or a virtual function; absent where that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Virtual functions that it has been cut into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_functions: Option<u32>,
    /// NUMA node that it is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI Express link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<PciLink>,
    /// Firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub firmware: Option<String>,
    /// Kind of board, e.g. `MT_0000000838`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub board: Option<String>,
    /// Node GUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24))]
    pub node_guid: Option<String>,
    /// The device file that programs open, e.g. `uverbs0`; absent where there is none to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub device_file: Option<String>,
    /// The most that it takes, as it says itself; absent where it could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<HcaLimits>,
    /// Its ports.
    #[serde(default)]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["number".into()]))]
    pub ports: Vec<Port>,
    /// How far each GPU of the node is.
    #[serde(default)]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["gpu".into()]))]
    pub distances: Vec<GpuDistance>,
}

/// The most that an RDMA device takes, in its own numbers.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HcaLimits {
    /// Memory that is registered in one piece (max_mr_size).
    pub max_mr_size: ByteSize,
    /// Registrations (max_mr).
    pub max_mr: u32,
    /// Queue pairs (max_qp).
    pub max_qp: u32,
    /// Entries of one completion queue (max_cqe).
    pub max_cqe: u32,
}

/// A whole device or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Function {
    /// The whole device.
    Physical,
    /// A part of a device (SR-IOV).
    Virtual,
}

/// A PCI Express link as it is and as it could be.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PciLink {
    /// Speed of a lane, e.g. `32.0 GT/s`.
    #[schemars(length(max = 32))]
    pub speed: String,
    /// Lanes.
    pub width: u32,
    /// Speed that the device could have.
    #[schemars(length(max = 32))]
    pub most_speed: String,
    /// Lanes that the device could have.
    pub most_width: u32,
}

/// One port of an RDMA device.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Logical state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PortState>,
    /// Physical state in the kernel's word, e.g. `LinkUp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub physical_state: Option<String>,
    /// Link layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// Rate in megabits a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<u64>,
    /// Largest payload of an RDMA packet that the interface's MTU leaves room for; absent on
    /// InfiniBand, whose MTU the kernel tells in no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// Network interfaces of the port.
    #[serde(default)]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub interfaces: Vec<Interface>,
    /// Its GIDs but the empty ones, at most 32.
    #[serde(default)]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["index".into()]))]
    pub gids: Vec<Gid>,
    /// Index of the GID that peers are to use; absent where none can be reached by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_gid: Option<u16>,
    /// Why no GID was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gid: Option<NoGid>,
    /// Partition keys, empty ones left out, at most 16.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(max = 8)))]
    pub partition_keys: Vec<String>,
}

/// Logical state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PortState {
    /// No link.
    Down,
    /// A link; the subnet manager has not configured it yet.
    Initializing,
    /// Configured, not yet to be used.
    Armed,
    /// To be used.
    Active,
    /// Active, its link lost for a moment.
    ActiveDefer,
    /// A state that is in no list of ours.
    Other,
}

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// Neither, such as AWS EFA.
    Other,
}

/// A network interface that an RDMA port stands on.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Its name, e.g. `eth0`.
    #[schemars(length(min = 1, max = 16))]
    pub name: String,
    /// MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// State in the kernel's word, e.g. `up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// The bond or bridge that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub master: Option<String>,
    /// The node's default route leaves through it or through its master.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
}

/// One entry of a port's GID table.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gid {
    /// Its index.
    pub index: u16,
    /// The GID as an IPv6 address.
    #[schemars(length(max = 40))]
    pub gid: String,
    /// Protocol of packets that carry it; absent where the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<GidProtocol>,
    /// Who can reach it.
    pub scope: GidScope,
    /// The network interface whose address it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub interface: Option<String>,
}

/// Protocol of packets that carry a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GidProtocol {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1, which no router passes on.
    RoCEv1,
    /// RoCE version 2.
    RoCEv2,
}

/// Who can reach a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GidScope {
    /// Nobody: a loopback or multicast address.
    Unusable,
    /// Who is on the same link.
    LinkLocal,
    /// Whoever has a route to the IPv4 address in it.
    IPv4,
    /// Whoever has a route to the IPv6 address.
    IPv6,
}

/// Why no GID of a port is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NoGid {
    /// The table is empty: no interface, or one without an address.
    Empty,
    /// All are link-local.
    OnlyLinkLocal,
    /// All that could be reached speak RoCE version 1.
    OnlyRoCEv1,
    /// The link layer is neither InfiniBand nor Ethernet.
    OtherLinkLayer,
    /// The table could not be read.
    Unread,
}

/// How far a GPU is from an RDMA device.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuDistance {
    /// PCI address of the GPU.
    #[schemars(length(max = 16))]
    pub gpu: String,
    /// How far it is.
    pub distance: Distance,
}

/// How far two PCI devices are from each other; nearer ones first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Distance {
    /// Below one PCI switch (`PIX`).
    Switch,
    /// Below several PCI switches of one root port (`PXB`).
    Switches,
    /// At one root complex (`PHB`).
    HostBridge,
    /// At one NUMA node (`NODE`).
    NumaNode,
    /// Across the link between NUMA nodes (`SYS`).
    System,
    /// The kernel does not tell.
    Unknown,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::NumaNode => "NODE",
            Self::System => "SYS",
            Self::Unknown => "?",
        })
    }
}

/// Driver of the GPUs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuDriver {
    /// Version.
    #[schemars(length(max = 64))]
    pub version: String,
    /// The open kernel modules, which can export memory as dma-buf.
    pub open: bool,
}

/// One GPU.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI address.
    #[schemars(length(min = 1, max = 16))]
    pub pci: String,
    /// PCI vendor and device, e.g. `10de:2330`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub model: Option<String>,
    /// Name that the driver gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 96))]
    pub name: Option<String>,
    /// UUID that the driver gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uuid: Option<String>,
    /// Driver of the PCI device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub driver: Option<String>,
    /// NUMA node that it is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI Express link as it could be; as it is changes with the GPU's load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 48))]
    pub most_link: Option<String>,
    /// The NVLink fabric of several nodes, as NVML tells it; absent where the GPU is made for none, or was
    /// not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<GpuFabric>,
    /// Its memory can be exported as dma-buf, as CUDA says; absent where CUDA was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dma_buf: Option<bool>,
    /// RDMA devices can reach its memory through a module of its driver's, as CUDA says; absent where CUDA
    /// was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_direct_rdma: Option<bool>,
    /// Whether RDMA devices really reach its memory: the devices nearest to it, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub rdma: Vec<GpuPath>,
}

/// A GPU's memory and an RDMA device.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuPath {
    /// Name of the RDMA device.
    #[schemars(length(min = 1, max = 64))]
    pub device: String,
    /// What came of it when it was tried last.
    pub state: PathState,
    /// By which way it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<PathWay>,
    /// Why it failed, or was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 192))]
    pub why: Option<String>,
}

/// Whether a device reaches a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PathState {
    /// Bytes came there and back the same.
    Proved,
    /// They did not.
    Failed,
    /// It could not be tried yet.
    Unproved,
}

/// By which way a device reaches a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PathWay {
    /// As dma-buf.
    DmaBuf,
    /// Through a module of the GPU driver's (nvidia_peermem).
    PeerMemory,
}

/// The NVLink fabric of several nodes, as one GPU sees it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuFabric {
    /// How far the GPU has come.
    pub state: FabricState,
    /// UUID of what it is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub cluster: Option<String>,
    /// The part of it whose GPUs reach each other's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<u32>,
}

/// How far a GPU has come in joining its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FabricState {
    /// It has not begun.
    NotStarted,
    /// It is joining.
    InProgress,
    /// It has joined.
    Completed,
    /// It has come to an end, with an error.
    Failed,
    /// A state that is in no list of ours.
    Other,
}

/// One NUMA node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Distances to all NUMA nodes in the order of their numbers, as the firmware tells; 10 is near.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub distances: Vec<u32>,
    /// Hugepages set aside on it.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub hugepages: Vec<Hugepages>,
}

/// Hugepages of one size.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    /// Size of a page.
    pub page_size: ByteSize,
    /// How many.
    pub pages: u64,
}

/// Something that could not be read.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Where, below the node's root.
    #[schemars(length(min = 1, max = 256))]
    pub path: String,
    /// Why: the kernel's word, or ours in words.
    #[schemars(length(max = 96))]
    pub problem: String,
}
