//! Everything that is known of a node at one time. Pure values: hardware facts, and beside them the reports of probes
//! and what other sources observed.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::inventory::{Distance, GpuDriver};
use crds::{FixReport, Reason};
use serde::{Deserialize, Serialize};

use super::container::Container;
use super::fault::Fault;
use super::gpu::{Gpu, Imex, Path};
use super::hca::{DeviceFile, Hca};
use super::interface::Sockets;
use super::kernel::Kernel;
use super::log::Log;
use super::memory::{Hugepages, NumaNode};
use super::pci;
use super::runtime::Runtime;

/// Folders of a recording with the reports of the RDMA probe, of the GPU probe (NVML and CUDA) and of the GPUDirect
/// probe, by device.
const HCA_REPORTS: &str = "run/mooncake/verbs";
pub const GPU_REPORTS: &str = "run/mooncake/gpu";
const GPU_PATHS: &str = "run/mooncake/gpu-rdma";

/// Path in a recording of the report about an RDMA device.
pub fn hca_report_file(name: &str) -> String {
    format!("{HCA_REPORTS}/{name}")
}

/// Path in a recording of the report about the GPU at a PCI address.
pub fn gpu_report_file(address: &str) -> String {
    format!("{GPU_REPORTS}/{address}")
}

/// Path in a recording of the results of the GPUDirect probe of a GPU.
pub fn gpu_paths_file(address: &str) -> String {
    format!("{GPU_PATHS}/{address}")
}

/// A node at one time. An absent value was not observed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// How many times the hardware has been read.
    pub reading: u64,
    pub facts: Facts,
    /// Last report of the RDMA probe, by device name.
    pub hca_reports: BTreeMap<String, rdma_probe::Report>,
    /// Last report of the GPU probe, by PCI address.
    pub gpu_reports: BTreeMap<String, gpu_probe::Report>,
    /// Results of the GPUDirect probe by the PCI address of the GPU, the nearest RDMA device first.
    pub gpu_paths: BTreeMap<String, Vec<Path>>,
    pub runtime: Option<Runtime>,
    /// Containers of the injected pods.
    pub containers: Option<Vec<Container>>,
    /// Results of the peer probes.
    pub peer_paths: Vec<PeerPath>,
    pub master_names: Vec<MasterName>,
    /// Least difference from the API server's clock, in seconds; negative where the node's clock is behind.
    pub clock_ahead: Option<i64>,
    pub fixes: Vec<FixReport>,
    /// Pods that hold claims of unhealthy devices.
    pub affected_pods: Vec<AffectedPod>,
    /// Engine processes that run, by the UID of their pool pod.
    pub engines: BTreeMap<String, Engine>,
}

/// Hardware and kernel of a node. An absent fact is not on the node or could not be read; `faults` lists what could not
/// be read, by path and cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub kernel: Kernel,
    pub hcas: Vec<Hca>,
    /// Device file of the RDMA connection manager.
    pub rdma_cm: Option<DeviceFile>,
    pub gpu_driver: Option<GpuDriver>,
    pub gpus: Vec<Gpu>,
    pub imex: Imex,
    /// `MemTotal` of /proc/meminfo in bytes, which the kubelet reports as the Node's capacity.
    pub memory: Option<u64>,
    pub numa_nodes: Vec<NumaNode>,
    pub hugepages: Vec<Hugepages>,
    pub sockets: Option<Sockets>,
    /// None where the kernel log cannot be read.
    pub log: Option<Log>,
    pub faults: Vec<Fault>,
}

/// A pod that holds a claim of an unhealthy RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AffectedPod {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    /// Name of the ResourceClaim, in the pod's namespace.
    pub claim: String,
    /// Name of the RDMA device.
    pub device: String,
    pub reason: Reason,
}

impl AffectedPod {
    /// Subject of findings about this pod.
    pub fn subject(&self) -> String {
        format!("pod {}/{}", self.namespace, self.pod)
    }
}

/// The engine process of a pool pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    pub namespace: String,
    pub pod: String,
    /// Why it gets too little processor time; `None` where it gets enough.
    pub shortage: Option<Shortage>,
}

/// What keeps a process from its processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// The CPU limit of its pod.
    CpuLimit,
    /// Other processes of the node.
    OtherProcesses,
}

/// A name by which pods of the node find their master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterName {
    pub name: String,
    /// Why the name does not resolve: resolver and cause.
    pub error: Option<String>,
}

/// State of the path to the agent of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerPath {
    pub node: String,
    /// Why the last probe failed: address, stage and cause.
    pub error: Option<String>,
    /// The limit that even the fastest of the latest probes exceeded.
    pub slow: Option<Duration>,
}

/// Modules that give RDMA drivers access to GPU memory: NVIDIA's and Mellanox's name.
const PEER_MEMORY: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

impl Facts {
    /// True where a module is loaded that gives RDMA devices access to GPU memory.
    pub fn peer_memory(&self) -> bool {
        let mut names = PEER_MEMORY.iter();
        names.any(|name| self.kernel.has_module(name))
    }

    /// Distance of a GPU from an RDMA device.
    pub fn distance(hca: &Hca, gpu: &Gpu) -> Distance {
        hca.pci
            .as_ref()
            .map_or(Distance::Unknown, |device| pci::distance(device, &gpu.pci))
    }
}

impl Snapshot {
    /// What NVML and CUDA report about a GPU.
    pub fn gpu_facts(&self, gpu: &Gpu) -> Option<&gpu_probe::Facts> {
        self.gpu_reports.get(&gpu.pci.address)?.facts.as_ref()
    }

    /// From NVML where it was queried: procfs has question marks until the GPU is first used.
    pub fn gpu_uuid<'a>(&'a self, gpu: &'a Gpu) -> Option<&'a str> {
        let uuid = self.gpu_facts(gpu).map(|facts| facts.uuid.as_str());
        uuid.or(gpu.uuid.as_deref())
    }

    /// Whether each GPU exports its memory as dma-buf, and whether it supports GPUDirect RDMA: the attributes of CUDA,
    /// or, where CUDA was not queried, what the driver's kind supports.
    pub fn gpu_direct(&self) -> impl Iterator<Item = (bool, bool)> {
        let driver = self.facts.gpu_driver.as_ref();
        let open = driver.is_some_and(|driver| driver.open);
        let gpus = self.facts.gpus.iter();
        gpus.map(
            move |gpu| match self.gpu_facts(gpu).and_then(|facts| facts.cuda) {
                Some(cuda) => (cuda.dma_buf, cuda.gpu_direct),
                None => (open, true),
            },
        )
    }
}
