//! What of the facts stands in the API: the node's inventory, and a line for each port. Pure.

use std::collections::BTreeMap;

use crds::ByteSize;
use crds::inventory::{
    Counts, FabricState, Fault, Gid, Gpu, GpuDistance, GpuFabric, GpuPath, Hca, HcaLimits,
    Hugepages, Interface, Kernel, MooncakeInventoryStatus, NumaNode, PathState, PathWay, PciLink,
    Port, PortState,
};
use crds::node::HcaLine;

use crate::host::gpu::Reached;
use crate::host::interface::path_mtu;
use crate::host::pci::PciDevice;
use crate::host::{Facts, gid, gpu, hca, interface, memory};

/// Most entries of each list; the schema has the same.
const HCAS: usize = 256;
const GPUS: usize = 64;
const NUMA_NODES: usize = 128;
const FAULTS: usize = 32;
const GIDS: usize = 32;
const KEYS: usize = 16;
const FEW: usize = 8;
const PATHS: usize = 32;

/// Most lines in a MooncakeNode.
const LINES: usize = 16;

/// The inventory of the node with this UID. What moves while nothing is plugged, configured or lost
/// is not in it.
pub fn inventory(facts: &Facts, node_uid: &str) -> MooncakeInventoryStatus {
    MooncakeInventoryStatus {
        node_uid: node_uid.to_owned(),
        counts: counts(facts),
        kernel: kernel(facts),
        hcas: facts
            .hcas
            .iter()
            .take(HCAS)
            .map(|hca| device(hca, &facts.gpus))
            .collect(),
        gpu_driver: facts.gpu_driver.clone().map(|mut driver| {
            driver.version = short(&driver.version, 64);
            driver
        }),
        gpus: facts.gpus.iter().take(GPUS).map(graphics).collect(),
        numa_nodes: facts
            .numa_nodes
            .iter()
            .take(NUMA_NODES)
            .map(numa_node)
            .collect(),
        faults: faults(facts),
    }
}

/// A line for each port, at most 16, and how many have none. Those that can be used come first.
pub fn lines(facts: &Facts) -> (Vec<HcaLine>, Option<u32>) {
    let mut ports: Vec<(&hca::Hca, &hca::Port)> = facts
        .hcas
        .iter()
        .flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)))
        .collect();
    ports.sort_by_key(|(_, port)| (!port.is_usable(), port.state != Some(PortState::Active)));
    let omitted = count(ports.len().saturating_sub(LINES));
    let lines = ports.into_iter().take(LINES).map(|(hca, port)| HcaLine {
        name: short(&hca.name, 64),
        port: port.number,
        state: port.state,
        rate_mbps: port.rate,
        gid: port.chosen.ok(),
        no_gid: port.chosen.err(),
    });
    (lines.collect(), (omitted > 0).then_some(omitted))
}

fn counts(facts: &Facts) -> Counts {
    let ports = facts.hcas.iter().flat_map(|hca| &hca.ports);
    let memory = facts.numa_nodes.iter().filter_map(|node| node.memory);
    let of = |pages: &memory::Hugepages| pages.total.unwrap_or(0).saturating_mul(pages.page_size);
    Counts {
        hcas: count(facts.hcas.len()),
        usable_ports: count(ports.filter(|port| port.is_usable()).count()),
        gpus: count(facts.gpus.len()),
        imex_channels: count(facts.imex.channels.len()),
        memory: ByteSize(memory.fold(0, u64::saturating_add)),
        hugepages: ByteSize(facts.hugepages.iter().map(of).fold(0, u64::saturating_add)),
        faults: count(facts.faults.len()),
    }
}

fn kernel(facts: &Facts) -> Kernel {
    let kernel = &facts.kernel;
    Kernel {
        release: kernel.release.as_ref().map(|text| short(text, 128)),
        distribution: kernel.distribution.as_ref().map(|text| short(text, 128)),
        cgroup_version: kernel.cgroup_version,
        modules: kernel
            .modules
            .iter()
            .cloned()
            .map(|mut module| {
                module.version = module.version.map(|version| short(&version, 64));
                module
            })
            .collect(),
        max_map_count: kernel.max_map_count,
        local_ports: kernel.local_ports.map(|(first, last)| vec![first, last]),
        time_wait_reuse: kernel.time_wait_reuse,
        memlock: kernel.memlock.clone(),
    }
}

fn device(hca: &hca::Hca, gpus: &[gpu::Gpu]) -> Hca {
    let pci = hca.pci.as_ref();
    let distances = gpus.iter().take(GPUS).map(|gpu| GpuDistance {
        gpu: gpu.pci.address.clone(),
        distance: Facts::distance(hca, gpu),
    });
    Hca {
        name: short(&hca.name, 64),
        pci: pci.map(|pci| pci.address.clone()),
        model: pci.and_then(|pci| pci.model.clone()),
        driver: pci.and_then(driver),
        function: hca.function,
        virtual_functions: hca.virtual_functions,
        numa_node: pci.and_then(|pci| pci.numa_node),
        link: pci.and_then(|pci| pci.link.clone()).map(|link| PciLink {
            speed: short(&link.speed, 32),
            most_speed: short(&link.most_speed, 32),
            ..link
        }),
        firmware: hca.firmware.as_ref().map(|text| short(text, 64)),
        board: hca.board.as_ref().map(|text| short(text, 64)),
        node_guid: hca.node_guid.as_ref().map(|text| short(text, 24)),
        device_file: hca.device_file.as_ref().map(|file| short(&file.name, 64)),
        limits: hca
            .verbs
            .as_ref()
            .and_then(|answer| answer.limits)
            .map(limits),
        ports: hca.ports.iter().take(FEW).map(port).collect(),
        distances: distances.collect(),
    }
}

fn limits(limits: verbs::Limits) -> HcaLimits {
    HcaLimits {
        max_mr_size: ByteSize(limits.max_mr_size),
        max_mr: limits.max_mr,
        max_qp: limits.max_qp,
        max_cqe: limits.max_cqe,
    }
}

fn driver(pci: &PciDevice) -> Option<String> {
    pci.driver.as_ref().map(|text| short(text, 64))
}

fn port(port: &hca::Port) -> Port {
    let own = port
        .interfaces
        .iter()
        .filter(|interface| !interface.stacked);
    Port {
        number: port.number,
        state: port.state,
        physical_state: port.physical_state.as_ref().map(|text| short(text, 32)),
        link_layer: port.link_layer,
        rate_mbps: port.rate,
        path_mtu: own
            .filter_map(|interface| path_mtu(interface.mtu?))
            .min()
            .filter(|_| port.link_layer == Some(crds::inventory::LinkLayer::Ethernet)),
        interfaces: port.interfaces.iter().take(FEW).map(network).collect(),
        gids: port.gids.iter().take(GIDS).map(entry).collect(),
        chosen_gid: port.chosen.ok(),
        no_gid: port.chosen.err(),
        partition_keys: port
            .partition_keys
            .iter()
            .take(KEYS)
            .map(|key| format!("{key:#06x}"))
            .collect(),
    }
}

fn network(interface: &interface::Interface) -> Interface {
    Interface {
        name: short(&interface.name, 16),
        mtu: interface.mtu,
        state: interface.state.as_ref().map(|text| short(text, 32)),
        master: interface.master.as_ref().map(|text| short(text, 16)),
        default_route: interface.default_route,
    }
}

fn entry(gid: &gid::Gid) -> Gid {
    Gid {
        index: gid.index,
        gid: gid.address.to_string(),
        protocol: gid.protocol,
        scope: gid.scope(),
        interface: gid.interface.as_ref().map(|text| short(text, 16)),
    }
}

fn graphics(gpu: &gpu::Gpu) -> Gpu {
    Gpu {
        pci: gpu.pci.address.clone(),
        model: gpu.pci.model.clone(),
        name: gpu.name.as_ref().map(|text| short(text, 96)),
        uuid: gpu.known_uuid().map(|text| short(text, 64)),
        driver: driver(&gpu.pci),
        numa_node: gpu.pci.numa_node,
        most_link: gpu.pci.link.as_ref().map(|link| {
            let link = format!("{} x{}", link.most_speed, link.most_width);
            short(&link, 48)
        }),
        fabric: gpu.fabric().map(fabric),
        dma_buf: gpu.can().map(|can| can.dma_buf),
        gpu_direct_rdma: gpu.can().map(|can| can.gpu_direct),
        rdma: gpu.paths.iter().take(PATHS).map(path).collect(),
    }
}

/// How long it took is a metric.
fn path(path: &gpu::Path) -> GpuPath {
    let (state, proof, why) = match &path.reached {
        Reached::Proved { proof } => (PathState::Proved, Some(proof), None),
        Reached::Failed { proof } => {
            let failed = proof.failed.as_ref();
            let why = failed.map(|failed| format!("{}: {}", failed.stage.words(), failed.words));
            (PathState::Failed, Some(proof), why)
        }
        Reached::Unproved { why } => (PathState::Unproved, None, Some(why.clone())),
    };
    let way = proof.and_then(|proof| proof.way).map(|way| match way {
        nvidia::Way::DmaBuf => PathWay::DmaBuf,
        nvidia::Way::PeerMemory => PathWay::PeerMemory,
    });
    GpuPath {
        device: short(&path.device, 64),
        state,
        way,
        why: why.map(|why| short(&why, 192)),
    }
}

fn fabric(fabric: &nvidia::Fabric) -> GpuFabric {
    let state = match (fabric.state, fabric.status) {
        (1, _) => FabricState::NotStarted,
        (2, _) => FabricState::InProgress,
        (3, 0) => FabricState::Completed,
        (3, _) => FabricState::Failed,
        _ => FabricState::Other,
    };
    let joined = matches!(state, FabricState::Completed);
    GpuFabric {
        state,
        cluster: fabric.cluster.as_ref().map(|text| short(text, 36)),
        clique: joined.then_some(fabric.clique),
    }
}

fn numa_node(node: &memory::NumaNode) -> NumaNode {
    let hugepages = node.hugepages.iter().take(FEW).filter_map(|pages| {
        Some(Hugepages {
            page_size: ByteSize(pages.page_size),
            pages: pages.total?,
        })
    });
    NumaNode {
        id: node.id,
        memory: node.memory.map(ByteSize),
        distances: node.distances.iter().take(NUMA_NODES).copied().collect(),
        hugepages: hugepages.collect(),
    }
}

/// The first of each path.
fn faults(facts: &Facts) -> Vec<Fault> {
    let mut by_path = BTreeMap::new();
    for fault in &facts.faults {
        let path = short(&fault.path, 256);
        by_path
            .entry(path)
            .or_insert_with(|| short(&fault.problem.to_string(), 96));
    }
    let faults = by_path.into_iter().take(FAULTS);
    faults
        .map(|(path, problem)| Fault { path, problem })
        .collect()
}

/// At most so many characters, which is what the schema counts.
fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
