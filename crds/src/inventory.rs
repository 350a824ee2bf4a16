//! MooncakeInventory: a node's hardware, as its agent reads it from the kernel. It is written when the hardware
//! changes. Counters and timings are metrics.

#[cfg(feature = "kube")]
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ByteSize;
use crate::catalog::catalog;
use crate::word::{Word, readable_entries};

/// Hardware of one node. It has the name of the Node, and the Node owns it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kube",
    derive(CustomResource),
    kube(
        group = "mooncake.io",
        version = "v1alpha1",
        kind = "MooncakeInventory",
        plural = "mooncakeinventories",
        status = "MooncakeInventoryStatus",
        derive = "PartialEq",
        shortname = "mi",
        category = "mooncake",
        doc = "Hardware of one node, as its agent reads it: HCAs, GPUs, memory, kernel.",
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
            description = "Active ports with a GID that peers can reach"
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
            description = "Memory of the node"
        ),
        printcolumn(
            name = "Hugepages",
            type_ = "string",
            json_path = ".status.counts.hugepages",
            description = "Memory reserved for hugepages"
        ),
        printcolumn(
            name = "Unread",
            type_ = "integer",
            json_path = ".status.counts.faults",
            description = "Files that the agent could not read or parse"
        ),
        printcolumn(
            name = "Age",
            type_ = "date",
            json_path = ".metadata.creationTimestamp",
            description = "Time since creation"
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
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MooncakeInventorySpec {
    /// UID of the Node. A status with another UID is invalid.
    #[schemars(length(min = 1, max = 64))]
    pub node_uid: String,
}

/// Hardware of the node as its agent read it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MooncakeInventoryStatus {
    /// UID of the Node on which the status was read.
    #[schemars(length(max = 64))]
    pub node_uid: String,
    /// Totals. They also count entries beyond the maximum length of a list.
    pub counts: Counts,
    /// The kernel and its settings.
    pub kernel: Kernel,
    /// RDMA devices, at most 256.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 256))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub hcas: Vec<Hca>,
    /// Driver of the GPUs. Absent if none is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_driver: Option<GpuDriver>,
    /// GPUs, at most 64.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pci"]))]
    pub gpus: Vec<Gpu>,
    /// NUMA nodes with memory, at most 128.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 128))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub numa_nodes: Vec<NumaNode>,
    /// Files that could not be read or parsed, at most 32. Fields that depend on them are absent.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub faults: Vec<Fault>,
}

/// Totals of the node's hardware.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Number of RDMA devices.
    pub hcas: u32,
    /// Number of active ports with a GID that peers can reach.
    pub usable_ports: u32,
    /// Number of GPUs.
    pub gpus: u32,
    /// Number of IMEX channels, through which GPUs of several nodes share memory.
    pub imex_channels: u32,
    /// Memory of the node (`MemTotal`), in bytes. Updated when it changes by more than 1/16.
    pub memory: ByteSize,
    /// Memory reserved for hugepages of all sizes, in bytes.
    pub hugepages: ByteSize,
    /// Number of files that could not be read or parsed.
    pub faults: u32,
}

/// The kernel and its settings.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    /// Kernel release, as in `uname -r`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub release: Option<String>,
    /// Distribution, from /etc/os-release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub distribution: Option<String>,
    /// Version of the cgroup hierarchy, 1 or 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_version: Option<u8>,
    /// Loaded modules that are relevant to Mooncake, at most 32.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub modules: Vec<Module>,
    /// vm.max_map_count: limit of memory mappings per process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_map_count: Option<u64>,
    /// net.ipv4.ip_local_port_range of the node's network namespace: first and last port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 2))]
    pub local_ports: Option<Vec<u16>>,
    /// net.ipv4.tcp_tw_reuse of the node's network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_wait_reuse: Option<u8>,
    /// Locked-memory limit of the node's processes, read from its first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<Limit>,
}

/// A soft and a hard limit, each a number of bytes or `unlimited`.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// Soft limit.
    #[schemars(length(max = 20))]
    pub soft: String,
    /// Hard limit, to which a process may raise the soft limit.
    #[schemars(length(max = 20))]
    pub hard: String,
}

/// A loaded kernel module.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Module {
    /// Name of the module.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// Version of the module. Absent if the module declares none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
}

/// One RDMA device.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hca {
    /// Name of the device, e.g. `mlx5_0`.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// PCI address. Absent if the device is not a PCI device, such as Soft-RoCE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub pci: Option<String>,
    /// PCI vendor and device ID, e.g. `15b3:1021`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub model: Option<String>,
    /// Driver of the PCI device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub driver: Option<String>,
    /// Physical or virtual function. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Word<Function>>,
    /// Number of enabled virtual functions of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_functions: Option<u32>,
    /// NUMA node of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI Express link of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<PciLink>,
    /// Firmware version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub firmware: Option<String>,
    /// Board ID, e.g. `MT_0000000838`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub board: Option<String>,
    /// Node GUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24))]
    pub node_guid: Option<String>,
    /// Device file that programs open, e.g. `uverbs0`. Absent if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub device_file: Option<String>,
    /// Limits that the device reports. Absent if it could not be queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<HcaLimits>,
    /// Ports of the device, at most 8.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["number"]))]
    pub ports: Vec<Port>,
    /// Distance to each GPU of the node, at most 64.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 64))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["gpu"]))]
    pub distances: Vec<GpuDistance>,
}

/// Limits of an RDMA device, as it reports them.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HcaLimits {
    /// Largest memory region in bytes (max_mr_size).
    pub max_mr_size: ByteSize,
    /// Maximum number of memory regions (max_mr).
    pub max_mr: u32,
    /// Maximum number of queue pairs (max_qp).
    pub max_qp: u32,
    /// Maximum number of entries of a completion queue (max_cqe).
    pub max_cqe: u32,
}

catalog! {
    /// Kind of a PCI function.
    Function: ();

    /// Physical function: the whole device.
    Physical;
    /// Virtual function (SR-IOV): a part of a device.
    Virtual;
}

/// Current and maximum speed of a PCI Express link.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PciLink {
    /// Current speed of a lane, e.g. `32.0 GT/s`.
    #[schemars(length(max = 32))]
    pub speed: String,
    /// Current number of lanes.
    pub width: u32,
    /// Maximum speed of a lane that the device supports.
    #[serde(rename = "mostSpeed")]
    #[schemars(length(max = 32))]
    pub max_speed: String,
    /// Maximum number of lanes that the device supports.
    #[serde(rename = "mostWidth")]
    pub max_width: u32,
}

/// One port of an RDMA device.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Number of the port, from 1.
    pub number: u8,
    /// Logical state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<PortState>>,
    /// Physical state as the kernel reports it, e.g. `LinkUp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub physical_state: Option<String>,
    /// Link layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<Word<LinkLayer>>,
    /// Rate in megabits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mbps: Option<u64>,
    /// Largest payload in bytes of an RDMA packet within the interface's MTU. Absent on InfiniBand, for which the
    /// kernel has no MTU file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    /// Network interfaces of the port, at most 8.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 8))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub interfaces: Vec<Interface>,
    /// Non-empty GIDs of the port, at most 32.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["index"]))]
    pub gids: Vec<Gid>,
    /// Index of the GID that peers use. Absent if they can reach none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_gid: Option<u16>,
    /// Why no GID is selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gid: Option<Word<NoGid>>,
    /// Non-empty partition keys, at most 16.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(max = 8)))]
    pub partition_keys: Vec<String>,
}

catalog! {
    /// Logical state of a port.
    PortState: ();

    /// No link.
    Down;
    /// The link is up. The subnet manager has not configured it yet.
    Initializing;
    /// The link is configured, but not yet usable.
    Armed;
    /// The port is usable.
    Active;
    /// The port is active, with a temporary loss of its link.
    ActiveDefer;
    /// An unknown state.
    Other;
}

catalog! {
    /// Link layer of a port.
    LinkLayer: ();

    /// InfiniBand.
    InfiniBand;
    /// Ethernet: RoCE or iWARP.
    Ethernet;
    /// Neither, such as AWS EFA.
    Other;
}

/// A network interface of an RDMA port.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Name of the interface, e.g. `eth0`.
    #[schemars(length(min = 1, max = 16))]
    pub name: String,
    /// MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// State as the kernel reports it, e.g. `up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// Bond or bridge of the interface. Absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub master: Option<String>,
    /// True if the node's default route uses the interface or its master. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
}

/// One entry of a port's GID table.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gid {
    /// Index of the entry.
    pub index: u16,
    /// The GID as an IPv6 address.
    #[schemars(length(max = 40))]
    pub gid: String,
    /// Protocol of packets with this GID. Absent if the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Word<GidProtocol>>,
    /// Peers that can reach the GID.
    pub scope: Word<GidScope>,
    /// Network interface with the address of the GID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub interface: Option<String>,
}

catalog! {
    /// Protocol of packets with a GID.
    GidProtocol: ();

    /// InfiniBand.
    InfiniBand;
    /// RoCE version 1, which is not routable.
    RoCEv1;
    /// RoCE version 2.
    RoCEv2;
}

catalog! {
    /// Peers that can reach a GID.
    GidScope: ();

    /// None: a loopback or multicast address.
    Unusable;
    /// Peers on the same link.
    LinkLocal;
    /// Peers with a route to its IPv4 address.
    IPv4;
    /// Peers with a route to its IPv6 address.
    IPv6;
}

catalog! {
    /// Why no GID of a port is selected.
    NoGid: ();

    /// The table is empty: the port has no interface, or the interface has no address.
    Empty;
    /// All GIDs are link-local.
    OnlyLinkLocal;
    /// All reachable GIDs use RoCE version 1.
    OnlyRoCEv1;
    /// The link layer is neither InfiniBand nor Ethernet.
    OtherLinkLayer;
    /// The table could not be read.
    Unread;
}

/// Distance between a GPU and an RDMA device.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuDistance {
    /// PCI address of the GPU.
    #[schemars(length(max = 16))]
    pub gpu: String,
    /// Distance to the GPU.
    pub distance: Word<Distance>,
}

catalog! {
    /// Distance between two PCI devices, nearest first. In parentheses: the name in `nvidia-smi topo -m`.
    Distance: ();

    /// Same PCI switch (`PIX`).
    Switch;
    /// Same root port, across several PCI switches (`PXB`).
    Switches;
    /// Same root complex (`PHB`).
    HostBridge;
    /// Same NUMA node (`NODE`).
    NumaNode;
    /// Across the link between NUMA nodes (`SYS`).
    System;
    /// The kernel does not report it.
    Unknown;
}

impl Distance {
    /// The name in `nvidia-smi topo -m`.
    pub fn in_topology(self) -> &'static str {
        match self {
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::NumaNode => "NODE",
            Self::System => "SYS",
            Self::Unknown => "?",
        }
    }
}

/// Driver of the GPUs.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuDriver {
    /// Version of the driver.
    #[schemars(length(max = 64))]
    pub version: String,
    /// True for the open kernel modules, which can export memory as dma-buf.
    pub open: bool,
}

/// One GPU.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI address of the GPU.
    #[schemars(length(min = 1, max = 16))]
    pub pci: String,
    /// PCI vendor and device ID, e.g. `10de:2330`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub model: Option<String>,
    /// Name of the GPU, as the driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 96))]
    pub name: Option<String>,
    /// UUID of the GPU, as the driver reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uuid: Option<String>,
    /// Driver of the PCI device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub driver: Option<String>,
    /// NUMA node of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Maximum PCI Express link. The current link changes with the GPU's load.
    #[serde(default, rename = "mostLink", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 48))]
    pub max_link: Option<String>,
    /// Multi-node NVLink fabric, as NVML reports it. Absent if the GPU does not support one or was not queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<GpuFabric>,
    /// True if CUDA reports that GPU memory can be exported as dma-buf. Absent if CUDA was not queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dma_buf: Option<bool>,
    /// True if CUDA reports that RDMA devices can access GPU memory through a module of the GPU driver. Absent if CUDA
    /// was not queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_direct_rdma: Option<bool>,
    /// Probe results of transfers between GPU memory and the nearest RDMA devices, at most 32.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "readable_entries"
    )]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["device"]))]
    pub rdma: Vec<GpuPath>,
}

/// The path between a GPU's memory and an RDMA device.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuPath {
    /// Name of the RDMA device.
    #[schemars(length(min = 1, max = 64))]
    pub device: String,
    /// Result of the last probe.
    pub state: Word<PathState>,
    /// Method by which the memory was registered in the last probe.
    #[serde(default, rename = "way", skip_serializing_if = "Option::is_none")]
    pub method: Option<Word<RegistrationMethod>>,
    /// Why the probe failed or did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 192))]
    pub why: Option<String>,
}

catalog! {
    /// Result of a probe of GPU memory access.
    PathState: ();

    /// Data was written and read back unchanged.
    Proved;
    /// The registration or the transfer failed.
    Failed;
    /// The probe has not run yet.
    Unproved;
}

catalog! {
    /// Method by which GPU memory is registered with an RDMA device.
    RegistrationMethod: ();

    /// As dma-buf.
    DmaBuf;
    /// Through a module of the GPU driver (nvidia_peermem).
    PeerMemory;
}

/// The multi-node NVLink fabric of a GPU.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuFabric {
    /// Registration state of the GPU.
    pub state: Word<FabricState>,
    /// UUID of the fabric cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub cluster: Option<String>,
    /// Clique of the GPU. GPUs of one clique can access each other's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<u32>,
}

catalog! {
    /// State of a GPU's registration in its fabric.
    FabricState: ();

    /// The registration has not started.
    NotStarted;
    /// The registration is in progress.
    InProgress;
    /// The GPU has joined the fabric.
    Completed;
    /// The registration has ended with an error.
    Failed;
    /// An unknown state.
    Other;
}

/// One NUMA node.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaNode {
    /// Number of the NUMA node.
    pub id: u32,
    /// Memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Distances to all NUMA nodes, by node number, as the firmware reports them. The distance to itself is 10.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub distances: Vec<u32>,
    /// Hugepages reserved on the NUMA node.
    #[serde(default, deserialize_with = "readable_entries")]
    #[schemars(length(max = 8))]
    pub hugepages: Vec<Hugepages>,
}

/// Hugepages of one size.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    /// Page size in bytes.
    pub page_size: ByteSize,
    /// Number of pages.
    pub pages: u64,
}

/// A file that could not be read or parsed.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Path of the file, relative to the node's root.
    #[schemars(length(min = 1, max = 256))]
    pub path: String,
    /// Error of the kernel, or what is wrong with the content.
    #[schemars(length(max = 96))]
    pub problem: String,
}
