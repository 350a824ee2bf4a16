//! Builds the node's inventory for the API, and a line for each port, from the facts. Pure.

use std::collections::BTreeMap;

use crds::ByteSize;
use crds::inventory::{
    Counts, FabricState, Fault, Gid, Gpu, GpuDistance, GpuFabric, GpuPath, Hca, HcaLimits,
    Hugepages, Interface, Kernel, MooncakeInventoryStatus, NumaNode, PathState, PciLink, Port,
    PortState, RegistrationMethod,
};
use crds::node::HcaLine;
use crds::text::clip_chars;

use crate::gpu::Reached;
use crate::pci::PciDevice;
use crate::{Facts, Snapshot, gid, gpu, hca, interface, memory};

/// Most entries of each list; the schema has the same limits.
const HCAS: usize = 256;
const GPUS: usize = 64;
const NUMA_NODES: usize = 128;
const FAULTS: usize = 32;
const GIDS: usize = 32;
const KEYS: usize = 16;
const FEW: usize = 8;
const PATHS: usize = 32;

/// Most port lines in a MooncakeNode.
const LINES: usize = 16;

/// Makes the inventory of the node with this UID.
///
/// It changes only when hardware or configuration changes: counters are left out, and memory is compared with
/// the inventory that is `published`, see [`steady_memory`].
pub fn inventory(
    snapshot: &Snapshot,
    node_uid: &str,
    published: Option<&MooncakeInventoryStatus>,
) -> MooncakeInventoryStatus {
    let facts = &snapshot.facts;
    let published = published.filter(|status| status.node_uid == node_uid);
    MooncakeInventoryStatus {
        node_uid: node_uid.to_owned(),
        counts: counts(facts, published),
        kernel: kernel(facts),
        hcas: facts
            .hcas
            .iter()
            .take(HCAS)
            .map(|hca| device(hca, snapshot))
            .collect(),
        gpu_driver: facts.gpu_driver.clone().map(|mut driver| {
            driver.version = clip_chars(&driver.version, 64);
            driver
        }),
        gpus: facts
            .gpus
            .iter()
            .take(GPUS)
            .map(|gpu| graphics(gpu, snapshot))
            .collect(),
        numa_nodes: facts
            .numa_nodes
            .iter()
            .take(NUMA_NODES)
            .map(|node| numa_node(node, facts, published))
            .collect(),
        faults: faults(facts),
    }
}

/// A line for each port, at most 16, usable ports first, without what probes have proved; and the number of ports without
/// a line.
pub fn lines(facts: &Facts) -> (Vec<HcaLine>, Option<u32>) {
    let mut ports: Vec<(&hca::Hca, &hca::Port)> = facts
        .hcas
        .iter()
        .flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)))
        .collect();
    ports.sort_by_key(|(_, port)| (!port.is_usable(), port.state != Some(PortState::Active)));
    let omitted = count(ports.len().saturating_sub(LINES));
    let lines = ports.into_iter().take(LINES).map(|(hca, port)| HcaLine {
        name: clip_chars(&hca.name, 64),
        port: port.number,
        state: port.state.map(Into::into),
        rate_mbps: port.rate,
        gid: port.chosen.ok(),
        gid_address: port.address().map(|gid| gid.to_string()),
        lid: port.lid,
        path_mtu: port.path_mtu(),
        no_gid: port.chosen.err().map(Into::into),
        proved: false,
        not_proved: None,
        excluded: false,
    });
    (lines.collect(), (omitted > 0).then_some(omitted))
}

fn counts(facts: &Facts, published: Option<&MooncakeInventoryStatus>) -> Counts {
    let ports = facts.hcas.iter().flat_map(|hca| &hca.ports);
    let of_nodes = facts.numa_nodes.iter().filter_map(|node| node.memory);
    let memory = facts
        .memory
        .unwrap_or_else(|| of_nodes.fold(0, u64::saturating_add));
    let of = |pages: &memory::Hugepages| pages.total.unwrap_or(0).saturating_mul(pages.page_size);
    Counts {
        hcas: count(facts.hcas.len()),
        usable_ports: count(ports.filter(|port| port.is_usable()).count()),
        gpus: count(facts.gpus.len()),
        imex_channels: count(facts.imex.channels.len()),
        memory: steady_memory(published.map(|status| status.counts.memory), memory),
        hugepages: ByteSize(facts.hugepages.iter().map(of).fold(0, u64::saturating_add)),
        faults: count(facts.faults.len()),
    }
}

fn kernel(facts: &Facts) -> Kernel {
    let kernel = &facts.kernel;
    Kernel {
        release: kernel.release.as_ref().map(|text| clip_chars(text, 128)),
        distribution: kernel
            .distribution
            .as_ref()
            .map(|text| clip_chars(text, 128)),
        cgroup_version: kernel.cgroup_version,
        modules: kernel
            .modules
            .iter()
            .cloned()
            .map(|mut module| {
                module.version = module.version.map(|version| clip_chars(&version, 64));
                module
            })
            .collect(),
        max_map_count: kernel.max_map_count,
        local_ports: kernel.local_ports.map(|(first, last)| vec![first, last]),
        time_wait_reuse: kernel.time_wait_reuse,
        memlock: kernel.memlock.clone(),
    }
}

fn device(hca: &hca::Hca, snapshot: &Snapshot) -> Hca {
    let pci = hca.pci.as_ref();
    let distances = snapshot
        .facts
        .gpus
        .iter()
        .take(GPUS)
        .map(|gpu| GpuDistance {
            gpu: gpu.pci.address.clone(),
            distance: Facts::distance(hca, gpu).into(),
        });
    Hca {
        name: clip_chars(&hca.name, 64),
        pci: pci.map(|pci| pci.address.clone()),
        model: pci.and_then(|pci| pci.model.clone()),
        driver: pci.and_then(driver),
        function: hca.function.map(Into::into),
        virtual_functions: hca.virtual_functions,
        numa_node: pci.and_then(|pci| pci.numa_node),
        link: pci.and_then(|pci| pci.link.clone()).map(|link| PciLink {
            speed: clip_chars(&link.speed, 32),
            max_speed: clip_chars(&link.max_speed, 32),
            ..link
        }),
        firmware: hca.firmware.as_ref().map(|text| clip_chars(text, 64)),
        board: hca.board.as_ref().map(|text| clip_chars(text, 64)),
        node_guid: hca.node_guid.as_ref().map(|text| clip_chars(text, 24)),
        device_file: hca
            .device_file
            .as_ref()
            .map(|file| clip_chars(&file.name, 64)),
        limits: snapshot
            .hca_reports
            .get(&hca.name)
            .and_then(|report| report.limits)
            .map(limits),
        ports: hca.ports.iter().take(FEW).map(port).collect(),
        distances: distances.collect(),
    }
}

fn limits(limits: rdma_probe::Limits) -> HcaLimits {
    HcaLimits {
        max_mr_size: ByteSize(limits.max_mr_size),
        max_mr: limits.max_mr,
        max_qp: limits.max_qp,
        max_cqe: limits.max_cqe,
    }
}

fn driver(pci: &PciDevice) -> Option<String> {
    pci.driver.as_ref().map(|text| clip_chars(text, 64))
}

fn port(port: &hca::Port) -> Port {
    Port {
        number: port.number,
        state: port.state.map(Into::into),
        physical_state: port
            .physical_state
            .as_ref()
            .map(|text| clip_chars(text, 32)),
        link_layer: port.link_layer.map(Into::into),
        rate_mbps: port.rate,
        path_mtu: port.path_mtu(),
        interfaces: port.interfaces.iter().take(FEW).map(network).collect(),
        gids: port.gids.iter().take(GIDS).map(entry).collect(),
        chosen_gid: port.chosen.ok(),
        no_gid: port.chosen.err().map(Into::into),
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
        name: clip_chars(&interface.name, 16),
        mtu: interface.mtu,
        state: interface.state.as_ref().map(|text| clip_chars(text, 32)),
        master: interface.master.as_ref().map(|text| clip_chars(text, 16)),
        default_route: interface.default_route,
    }
}

fn entry(gid: &gid::Gid) -> Gid {
    Gid {
        index: gid.index,
        gid: gid.address.to_string(),
        protocol: gid.protocol.map(Into::into),
        scope: gid.scope().into(),
        interface: gid.interface.as_ref().map(|text| clip_chars(text, 16)),
    }
}

fn graphics(gpu: &gpu::Gpu, snapshot: &Snapshot) -> Gpu {
    let probed = snapshot.gpu_facts(gpu);
    let cuda = probed.and_then(|probed| probed.cuda);
    let paths = snapshot.gpu_paths.get(&gpu.pci.address);
    Gpu {
        pci: gpu.pci.address.clone(),
        model: gpu.pci.model.clone(),
        name: gpu.name.as_ref().map(|text| clip_chars(text, 96)),
        uuid: snapshot.gpu_uuid(gpu).map(|text| clip_chars(text, 64)),
        driver: driver(&gpu.pci),
        numa_node: gpu.pci.numa_node,
        max_link: gpu.pci.link.as_ref().map(|link| {
            let link = format!("{} x{}", link.max_speed, link.max_width);
            clip_chars(&link, 48)
        }),
        fabric: probed.and_then(|probed| probed.fabric.as_ref()).map(fabric),
        dma_buf: cuda.map(|cuda| cuda.dma_buf),
        gpu_direct_rdma: cuda.map(|cuda| cuda.gpu_direct),
        rdma: paths.into_iter().flatten().take(PATHS).map(path).collect(),
    }
}

/// The latency of the proof is a metric, not part of the inventory.
fn path(path: &gpu::Path) -> GpuPath {
    let (state, proof, why) = match &path.reached {
        Reached::Proved { proof } => (PathState::Proved, Some(proof), None),
        Reached::Failed { proof } => {
            let why = proof.failed.as_ref().map(ToString::to_string);
            (PathState::Failed, Some(proof), why)
        }
        Reached::Unproved { why } => (PathState::Unproved, None, Some(why.clone())),
    };
    let method = proof
        .and_then(|proof| proof.method)
        .map(|method| match method {
            gpu_probe::Method::DmaBuf => RegistrationMethod::DmaBuf,
            gpu_probe::Method::PeerMemory => RegistrationMethod::PeerMemory,
        });
    GpuPath {
        device: clip_chars(&path.device, 64),
        state: state.into(),
        method: method.map(Into::into),
        why: why.map(|why| clip_chars(&why, 192)),
    }
}

fn fabric(fabric: &gpu_probe::Fabric) -> GpuFabric {
    let state = match (fabric.state, fabric.status) {
        (1, _) => FabricState::NotStarted,
        (2, _) => FabricState::InProgress,
        (3, 0) => FabricState::Completed,
        (3, _) => FabricState::Failed,
        _ => FabricState::Other,
    };
    let joined = matches!(state, FabricState::Completed);
    GpuFabric {
        state: state.into(),
        cluster: fabric.cluster.as_ref().map(|text| clip_chars(text, 36)),
        clique: joined.then_some(fabric.clique),
    }
}

fn numa_node(
    node: &memory::NumaNode,
    facts: &Facts,
    published: Option<&MooncakeInventoryStatus>,
) -> NumaNode {
    let known = published.and_then(|status| {
        let mut nodes = status.numa_nodes.iter();
        nodes.find(|known| known.id == node.id)?.memory
    });
    // A machine with one NUMA node has all its memory there; with a memory balloon, the file of the NUMA node
    // shows less for a while.
    let all = facts.memory.filter(|_| facts.numa_nodes.len() == 1);
    let memory = all.or(node.memory);
    let hugepages = node.hugepages.iter().take(FEW).filter_map(|pages| {
        Some(Hugepages {
            page_size: ByteSize(pages.page_size),
            pages: pages.total?,
        })
    });
    NumaNode {
        id: node.id,
        memory: memory.map(|bytes| steady_memory(known, whole_gibibytes(bytes))),
        distances: node.distances.iter().take(NUMA_NODES).copied().collect(),
        hugepages: hugepages.collect(),
    }
}

/// The published amount of memory, or `read` where the two differ by more than 1/16 of the published one.
///
/// A memory balloon changes the amount a little all the time, which is no change of hardware.
fn steady_memory(published: Option<ByteSize>, read: u64) -> ByteSize {
    published
        .filter(|known| known.0.abs_diff(read) <= known.0 / 16)
        .unwrap_or(ByteSize(read))
}

/// Rounds to the nearest GiB; amounts below 1 GiB stay as they are.
fn whole_gibibytes(bytes: u64) -> u64 {
    const GIB: u64 = 1 << 30;
    match bytes {
        0..GIB => bytes,
        _ => bytes.saturating_add(GIB / 2) / GIB * GIB,
    }
}

/// The first fault of each path.
fn faults(facts: &Facts) -> Vec<Fault> {
    let mut by_path = BTreeMap::new();
    for fault in &facts.faults {
        let path = clip_chars(&fault.path, 256);
        by_path
            .entry(path)
            .or_insert_with(|| clip_chars(&fault.problem.to_string(), 96));
    }
    let faults = by_path.into_iter().take(FAULTS);
    faults
        .map(|(path, problem)| Fault { path, problem })
        .collect()
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;

    const GIB: u64 = 1 << 30;

    /// A machine with these amounts of memory, in MiB: all of it, and that of each NUMA node.
    fn machine(total: u64, nodes: &[u64]) -> Snapshot {
        let last = nodes.len() - 1;
        let mut text = format!(
            "[proc]\nmeminfo = MemTotal: {} kB\n[sys/devices/system/node]\nhas_memory = 0-{last}\n",
            total << 10
        );
        for (id, memory) in nodes.iter().enumerate() {
            let memory = memory << 10;
            text += &format!(
                "[sys/devices/system/node/node{id}]\nmeminfo = Node {id} MemTotal: {memory} kB\n\
                 | Node {id} MemFree: 1024 kB\n"
            );
        }
        Host::parse(&text).unwrap().snapshot()
    }

    #[test]
    fn a_memory_balloon_does_not_change_the_inventory() {
        // Two looks within half an hour: the balloon gave memory back to the only NUMA node.
        let first = inventory(&machine(24_105, &[15_420]), "uid", None);
        assert_eq!(first.counts.memory, ByteSize(24_105 << 20));
        assert_eq!(first.numa_nodes[0].memory, Some(ByteSize(24 * GIB)));
        let later = machine(24_105, &[19_900]);
        assert_eq!(inventory(&later, "uid", Some(&first)), first);

        let two = |one, other| machine(48_000, &[one, other]);
        let first = inventory(&two(24_000, 23_000), "uid", None);
        let later = inventory(&two(24_900, 22_100), "uid", Some(&first));
        assert_eq!(later, first);
    }

    #[test]
    fn memory_that_was_added_or_removed_is_published() {
        let first = inventory(&machine(48_000, &[24_000, 24_000]), "uid", None);
        let more = inventory(&machine(72_000, &[24_000, 48_000]), "uid", Some(&first));
        assert_eq!(more.counts.memory, ByteSize(72_000 << 20));
        assert_eq!(more.numa_nodes[0], first.numa_nodes[0]);
        assert_eq!(more.numa_nodes[1].memory, Some(ByteSize(47 * GIB)));
        let less = inventory(&machine(48_000, &[24_000, 24_000]), "uid", Some(&more));
        assert_eq!(less, first);
    }

    #[test]
    fn a_published_amount_changes_only_by_more_than_a_sixteenth() {
        let known = Some(ByteSize(160));
        for (read, expected) in [(160, 160), (170, 160), (150, 160), (171, 171), (149, 149)] {
            assert_eq!(steady_memory(known, read), ByteSize(expected));
        }
        assert_eq!(steady_memory(None, 7), ByteSize(7));
        assert_eq!(steady_memory(Some(ByteSize(0)), 7), ByteSize(7));
        let rounded = [0, 5, GIB - 1, GIB, GIB * 3 / 2, u64::MAX].map(whole_gibibytes);
        assert_eq!(rounded, [0, 5, GIB - 1, GIB, GIB * 2, u64::MAX / GIB * GIB]);
    }
}
