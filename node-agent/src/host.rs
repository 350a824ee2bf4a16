//! What a node is: facts read from sysfs, procfs and /dev below one root, live or recorded.
//!
//! ```text
//! root folder ─┐
//!              ├─ Tree ── readers ── Facts ── inventory, checks, metrics
//! recording  ──┘
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crds::inventory::{Distance, GpuDriver};
use serde::{Deserialize, Serialize};

pub(crate) mod cgroup;
pub mod container;
pub mod fault;
mod folder;
pub mod gid;
pub mod gpu;
pub mod hca;
pub(crate) mod inside;
pub mod interface;
pub mod kernel;
pub mod log;
pub mod memory;
pub mod pci;
pub mod recording;
pub mod round;
pub mod runtime;
pub mod scrub;
pub mod tree;

use container::Container;
use fault::{Fault, Problem};
use gpu::{Gpu, Imex};
use hca::{DeviceFile, Hca};
use interface::Sockets;
use kernel::Kernel;
use log::Log;
use memory::{Hugepages, NumaNode};
use recording::Recording;
use runtime::Runtime;
use tree::Tree;

/// Everything that is known of a node. What is absent could not be read, or is not there: `faults`
/// tells the first, by path and cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub kernel: Kernel,
    pub hcas: Vec<Hca>,
    /// By which programs make connections through the RDMA connection manager.
    pub rdma_cm: Option<DeviceFile>,
    pub gpu_driver: Option<GpuDriver>,
    pub gpus: Vec<Gpu>,
    pub imex: Imex,
    pub numa_nodes: Vec<NumaNode>,
    pub hugepages: Vec<Hugepages>,
    pub sockets: Option<Sockets>,
    /// None where it does not answer, or was not asked yet.
    pub runtime: Option<Runtime>,
    /// None where the kernel's log cannot be read.
    pub log: Option<Log>,
    pub faults: Vec<Fault>,
}

/// Modules through which a driver of RDMA devices reaches the memory of GPUs, by NVIDIA's and by Mellanox's name.
const PEER_MEMORY: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

impl Facts {
    /// Whether a module is loaded through which RDMA devices reach the memory of GPUs.
    pub fn peer_memory(&self) -> bool {
        let mut modules = self.kernel.modules.iter();
        modules.any(|module| PEER_MEMORY.contains(&module.name.as_str()))
    }

    /// Whether each GPU exports its memory as dma-buf, and whether it is made for RDMA devices at all: as CUDA says
    /// of it, and where that was not asked, as its driver's kind can.
    pub fn gpu_direct(&self) -> impl Iterator<Item = (bool, bool)> {
        let open = self.gpu_driver.as_ref().is_some_and(|driver| driver.open);
        self.gpus.iter().map(move |gpu| match gpu.can() {
            Some(can) => (can.dma_buf, can.gpu_direct),
            None => (open, true),
        })
    }

    /// How far a GPU is from a device.
    pub fn distance(hca: &Hca, gpu: &Gpu) -> Distance {
        hca.pci
            .as_ref()
            .map_or(Distance::Unknown, |device| pci::distance(device, &gpu.pci))
    }
}

/// A node to be read.
#[derive(Debug)]
pub struct Host(Tree);

impl Host {
    /// The node with this root folder.
    ///
    /// # Errors
    /// If there is no such folder.
    pub fn at(root: &Path) -> io::Result<Self> {
        Tree::folder(root).map(Self)
    }

    /// A node that was recorded.
    pub fn recorded(recording: Recording) -> Self {
        Self(Tree::recording(recording))
    }

    /// The same node without what its network namespace tells, as that cannot be entered.
    #[must_use]
    pub fn without_network(self, why: Problem) -> Self {
        Self(self.0.hiding(&interface::OF_READER, why))
    }

    /// Names of the RDMA devices.
    pub fn hcas(&self) -> Vec<String> {
        hca::names(&self.0)
    }

    /// One RDMA device, and what could not be read of it. A sick device may not answer for long.
    pub fn hca(self, name: &str) -> (Hca, Vec<Fault>) {
        (hca::read(&self.0, name), self.0.faults())
    }

    /// All facts, the RDMA devices one after the other.
    pub fn facts(&self) -> Facts {
        let hcas = self.hcas();
        let hcas = hcas.iter().map(|name| hca::read(&self.0, name)).collect();
        self.facts_with(hcas, Vec::new())
    }

    /// All facts, where the RDMA devices were read already.
    pub fn facts_with(&self, hcas: Vec<Hca>, mut faults: Vec<Fault>) -> Facts {
        let tree = &self.0;
        let mut facts = Facts {
            kernel: kernel::read(tree),
            hcas,
            rdma_cm: hca::at_hand(tree, "rdma_cm"),
            gpu_driver: gpu::driver(tree),
            gpus: gpu::read(tree),
            imex: gpu::imex(tree),
            numa_nodes: memory::numa_nodes(tree),
            hugepages: memory::all_hugepages(tree),
            sockets: interface::sockets(tree),
            runtime: runtime::read(tree),
            log: log::read(tree),
            faults: Vec::new(),
        };
        faults.extend(tree.faults());
        faults.sort_unstable();
        faults.dedup();
        facts.faults = faults;
        facts
    }

    /// The containers of these pods, by their UIDs.
    pub fn containers(&self, pods: &BTreeSet<String>) -> Vec<Container> {
        let found = container::processes(&self.0, pods);
        let of = found
            .iter()
            .flat_map(|(uid, processes)| container::read(&self.0, uid, processes));
        of.collect()
    }

    /// All facts, and every file that they were read from.
    pub fn record(self) -> (Facts, Recording) {
        let host = Self(self.0.keeping());
        let facts = host.facts();
        (facts, host.0.kept().unwrap_or_default())
    }
}
