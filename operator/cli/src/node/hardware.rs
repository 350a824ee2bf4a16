//! Tables of a node's hardware: ports, GPUs, memory, and files that could not be read.

use crds::inventory::{Distance, Gpu, GpuPath, Hca, MooncakeInventoryStatus, PathState, Port};

use crds::node::HcaLine;

use crate::renderer::{Cell, Renderer, Style, cells};

/// `lines`: the ports in the status of the MooncakeNode.
pub(super) fn show(out: &mut Renderer, inventory: &MooncakeInventoryStatus, lines: &[HcaLine]) {
    show_hcas(out, &inventory.hcas, lines);
    show_gpus(out, &inventory.gpus);
    let memory = inventory.numa_nodes.iter().map(|node| {
        let pages = node.hugepages.iter();
        let pages = pages.map(|huge| format!("{} of {}", huge.pages, huge.page_size));
        let pages = pages.collect::<Vec<_>>().join(", ");
        cells![node.id, Cell::optional(node.memory), pages]
    });
    out.table(&["NUMA", "MEMORY", "HUGEPAGES"], memory);
    let faults = inventory.faults.iter();
    let faults = faults.map(|fault| cells![&fault.path, Cell::new(&fault.problem, Style::Warning)]);
    out.table(&["UNREADABLE FILE", "ERROR"], faults);
}

fn show_hcas(out: &mut Renderer, hcas: &[Hca], lines: &[HcaLine]) {
    let mut rows = Vec::new();
    for hca in hcas {
        rows.extend(hca.ports.iter().map(|port| {
            let is = |line: &&HcaLine| (&line.name, line.port) == (&hca.name, port.number);
            port_row(hca, port, lines.iter().find(is))
        }));
        if hca.ports.is_empty() {
            rows.push(cells![&hca.name]);
        }
    }
    let head = [
        "HCA",
        "PORT",
        "STATE",
        "LINK",
        "RATE",
        "MTU",
        "INTERFACES",
        "GID",
        "PROVED",
        "NUMA",
        "FIRMWARE",
        "NEAREST GPUS",
    ];
    out.table(&head, rows);
}

fn port_row(hca: &Hca, port: &Port, line: Option<&HcaLine>) -> Vec<Cell> {
    let state = port
        .state
        .map(|state| state.to_string())
        .unwrap_or_default();
    let style = match state.as_str() {
        "Active" => Style::Good,
        _ => Style::Warning,
    };
    let gid = match (port.chosen_gid, port.no_gid) {
        (Some(index), _) => {
            let gid = port.gids.iter().find(|gid| gid.index == index);
            let gid = gid.map(|gid| format!(" {}", gid.gid));
            Cell::from(format!("{index}{}", gid.unwrap_or_default()))
        }
        (None, Some(cause)) => Cell::new(format!("none: {cause}"), Style::Warning),
        (None, None) => Cell::new("none", Style::Warning),
    };
    let interfaces = port.interfaces.iter();
    let interfaces: Vec<&str> = interfaces
        .map(|interface| interface.name.as_str())
        .collect();
    let nearest = hca.distances.iter().map(|gpu| gpu.distance).min();
    let gpus = nearest.map(|nearest| {
        let gpus = hca.distances.iter().filter(|gpu| gpu.distance == nearest);
        let gpus: Vec<&str> = gpus.map(|gpu| gpu.gpu.as_str()).collect();
        let nearest = nearest.known().map_or("?", Distance::in_topology);
        format!("{nearest} {}", gpus.join(" "))
    });
    cells![
        &hca.name,
        port.number,
        Cell::new(state, style),
        Cell::optional(port.link_layer.map(|layer| layer.to_string())),
        Cell::optional(port.rate_mbps.map(|rate| format!("{} Gb/s", rate / 1000))),
        Cell::optional(port.path_mtu),
        interfaces.join(","),
        gid,
        line.map_or_else(|| Cell::from(""), port_proof),
        Cell::optional(hca.numa_node),
        Cell::optional(hca.firmware.as_ref()),
        Cell::optional(gpus),
    ]
}

/// Whether the port has proved RDMA, or the Reason why not; of an excluded device, whose proof pools do not use, that it is.
fn port_proof(line: &HcaLine) -> Cell {
    match (line.proved, &line.not_proved) {
        _ if line.excluded => Cell::from("excluded"),
        (true, _) => Cell::new("yes", Style::Good),
        (false, Some(reason)) => Cell::new(reason.to_string(), Style::Bad),
        (false, None) => Cell::new("no", Style::Warning),
    }
}

fn show_gpus(out: &mut Renderer, gpus: &[Gpu]) {
    let rows = gpus.iter().map(|gpu| {
        cells![
            &gpu.pci,
            Cell::optional(gpu.name.as_ref()),
            Cell::optional(gpu.model.as_ref()),
            Cell::optional(gpu.numa_node),
            Cell::optional(gpu.driver.as_ref()),
            fabric(gpu),
            rdma_support(gpu),
            proved(gpu),
            Cell::optional(gpu.uuid.as_ref()),
        ]
    });
    let head = [
        "GPU",
        "NAME",
        "MODEL",
        "NUMA",
        "DRIVER",
        "FABRIC",
        "GPUDIRECT",
        "PROVED",
        "UUID",
    ];
    out.table(&head, rows);
    let head = ["GPU", "RDMA DEVICES", "STATE", "CAUSE"];
    out.table(&head, gpus.iter().flat_map(unproved));
}

/// How many of the RDMA devices have transferred to or from the GPU's memory.
fn proved(gpu: &Gpu) -> Cell {
    if gpu.rdma.is_empty() {
        return Cell::from("");
    }
    let count = |state| gpu.rdma.iter().filter(|path| path.state == state).count();
    let style = match (count(PathState::Failed), count(PathState::Unproved)) {
        (0, 0) => Style::Good,
        (0, _) => Style::Warning,
        _ => Style::Bad,
    };
    let proved = count(PathState::Proved);
    Cell::new(format!("{proved} of {}", gpu.rdma.len()), style)
}

/// One row for each state and cause, with its RDMA devices.
fn unproved(gpu: &Gpu) -> Vec<Vec<Cell>> {
    let mut causes: Vec<(&GpuPath, Vec<&str>)> = Vec::new();
    for path in gpu
        .rdma
        .iter()
        .filter(|path| path.state != PathState::Proved)
    {
        let mut known = causes.iter_mut();
        match known.find(|(one, _)| (one.state, &one.why) == (path.state, &path.why)) {
            Some((_, devices)) => devices.push(&path.device),
            None => causes.push((path, vec![&path.device])),
        }
    }
    let rows = causes.into_iter().map(|(path, devices)| {
        let style = match path.state.known() {
            Some(PathState::Failed) => Style::Bad,
            _ => Style::Warning,
        };
        let state = Cell::new(path.state.to_string(), style);
        cells![
            &gpu.pci,
            devices.join(","),
            state,
            Cell::optional(path.why.as_ref())
        ]
    });
    rows.collect()
}

/// Its clique, or the state of its registration.
fn fabric(gpu: &Gpu) -> Cell {
    let Some(fabric) = &gpu.fabric else {
        return Cell::from("");
    };
    match fabric.clique {
        Some(clique) => Cell::new(format!("clique {clique}"), Style::Good),
        None => Cell::new(fabric.state.to_string(), Style::Warning),
    }
}

/// How RDMA devices can access its memory, as CUDA reports it.
fn rdma_support(gpu: &Gpu) -> &'static str {
    match (gpu.dma_buf, gpu.gpu_direct_rdma) {
        (Some(true), Some(true)) => "dma-buf, peer memory",
        (Some(true), _) => "dma-buf",
        (_, Some(true)) => "peer memory",
        (Some(false), Some(false)) => "none",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_a_proved_path_are_grouped_by_cause() {
        let gpu: Gpu = serde_yaml_ng::from_str(
            "{pci: g, rdma: [{device: a, state: Proved}, {device: b, state: Failed, why: x}, \
             {device: c, state: Unproved, why: x}, {device: d, state: Failed, why: x}]}",
        )
        .unwrap();
        assert_eq!(proved(&gpu), Cell::new("1 of 4", Style::Bad));
        let row =
            |devices: &str, state: &str, style| cells!["g", devices, Cell::new(state, style), "x"];
        let rows = [
            row("b,d", "Failed", Style::Bad),
            row("c", "Unproved", Style::Warning),
        ];
        assert_eq!(unproved(&gpu), rows);
    }
}
