//! Reads the facts of a node from sysfs, procfs and /dev below one root: a live node's, or a recording.
//!
//! ```text
//! root folder ─┐
//!              ├─ Tree ── readers ── Snapshot ── inventory, checks, metrics
//! recording  ──┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

pub mod atomic_file;
pub mod cgroup;
pub mod container;
pub mod fault;
mod folder;
pub mod gid;
pub mod gpu;
pub mod hca;
pub mod interface;
pub mod inventory;
pub mod kernel;
pub mod live;
pub mod log;
pub mod memory;
mod path;
pub mod pci;
pub mod recording;
pub mod root_path;
pub mod runtime;
pub mod scrub;
pub mod snapshot;
pub mod tree;

use container::Container;
use fault::{Fault, Problem};
use hca::Hca;
use live::KernelLog;
use recording::{Recording, Unreadable};
pub use snapshot::{Facts, Snapshot};
use tree::Tree;

/// The machine: a node's root folder or a recording.
#[derive(Debug)]
pub struct Host(Tree);

impl Host {
    /// The node with this root folder.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn at(root: &Path) -> io::Result<Self> {
        Tree::folder(root).map(Self)
    }

    /// The recorded node of this text.
    ///
    /// # Errors
    /// The text is not a recording.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        Ok(Self::recorded(Recording::parse(text)?))
    }

    /// A recorded node.
    pub fn recorded(recording: Recording) -> Self {
        Self(Tree::recording(recording))
    }

    /// Returns the node without the files of its network namespace, which cannot be entered.
    #[must_use]
    pub fn without_network(self, why: Problem) -> Self {
        Self(self.0.hiding(&interface::NETWORK_FILES, why))
    }

    /// Names of the RDMA devices.
    pub fn hcas(&self) -> Vec<String> {
        hca::names(&self.0)
    }

    /// One RDMA device, and what could not be read of it. Blocks while the device's driver does not answer.
    pub fn hca(self, name: &str) -> (Hca, Vec<Fault>) {
        (hca::read(&self.0, name), self.0.faults())
    }

    /// A snapshot of the machine; RDMA devices are read one after the other.
    pub fn snapshot(&self) -> Snapshot {
        let hcas = self.hcas();
        let hcas = hcas.iter().map(|name| hca::read(&self.0, name)).collect();
        self.snapshot_with(hcas, Vec::new(), KernelLog::Read)
    }

    /// A snapshot of the machine, with RDMA devices that were read already. Only recordings contain reports of probes
    /// and of the container runtime.
    pub fn snapshot_with(
        &self,
        hcas: Vec<Hca>,
        mut faults: Vec<Fault>,
        log: KernelLog,
    ) -> Snapshot {
        let tree = &self.0;
        let gpus = gpu::read(tree);
        let addresses = || gpus.iter().map(|gpu| &gpu.pci.address);
        let names = hcas.iter().map(|hca| &hca.name);
        let mut snapshot = Snapshot {
            hca_reports: reports(tree, names, snapshot::hca_report_file),
            gpu_reports: reports(tree, addresses(), snapshot::gpu_report_file),
            gpu_paths: reports(tree, addresses(), snapshot::gpu_paths_file),
            runtime: tree.json(runtime::FILE),
            facts: Facts {
                kernel: kernel::read(tree),
                rdma_cm: hca::device_node(tree, "rdma_cm"),
                gpu_driver: gpu::driver(tree),
                imex: gpu::imex(tree),
                memory: memory::total(tree),
                numa_nodes: memory::numa_nodes(tree),
                hugepages: memory::all_hugepages(tree),
                sockets: interface::sockets(tree),
                log: match log {
                    KernelLog::Read => log::read(tree),
                    KernelLog::Skip => None,
                },
                ..Facts::default()
            },
            ..Snapshot::default()
        };
        faults.extend(tree.faults());
        faults.sort_unstable();
        faults.dedup();
        (snapshot.facts.hcas, snapshot.facts.gpus) = (hcas, gpus);
        snapshot.facts.faults = faults;
        snapshot
    }

    /// The containers of these pods, by their UIDs.
    pub fn containers(&self, pods: &BTreeSet<String>) -> Vec<Container> {
        let found = container::processes(&self.0, pods);
        let containers = found
            .iter()
            .flat_map(|(uid, processes)| container::read(&self.0, uid, processes));
        containers.collect()
    }

    /// A snapshot of the machine, and the files that it was read from.
    pub fn record(self) -> (Snapshot, Recording) {
        let host = Self(self.0.keeping());
        let snapshot = host.snapshot();
        (snapshot, host.0.kept().unwrap_or_default())
    }
}

/// The reports in a recording about these devices.
fn reports<'a, T: DeserializeOwned>(
    tree: &Tree,
    devices: impl Iterator<Item = &'a String>,
    file: fn(&str) -> String,
) -> BTreeMap<String, T> {
    let known = devices.filter_map(|device| Some((device.clone(), tree.json(&file(device))?)));
    known.collect()
}
