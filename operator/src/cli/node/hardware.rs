//! The hardware of a node as tables: ports, GPUs, memory, and what could not be read.

use crds::inventory::{Gpu, GpuPath, Hca, MooncakeInventoryStatus, NumaNode, PathState, Port};

use super::table;
use crate::cli::page::{Cell, Page, Tone};

pub(super) fn show(page: &mut Page, inventory: &MooncakeInventoryStatus) {
    show_hcas(page, &inventory.hcas);
    show_gpus(page, inventory);
    show_memory(page, &inventory.numa_nodes);
    show_faults(page, inventory);
}

fn show_hcas(page: &mut Page, hcas: &[Hca]) {
    let mut rows = Vec::new();
    for hca in hcas {
        for port in &hca.ports {
            rows.push(port_row(hca, port));
        }
        if hca.ports.is_empty() {
            rows.push(vec![hca.name.clone().into()]);
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
        "NUMA",
        "FIRMWARE",
        "NEAREST GPUS",
    ];
    table(page, &head, &rows);
}

fn port_row(hca: &Hca, port: &Port) -> Vec<Cell> {
    let text = |value: Option<String>| Cell::from(value.unwrap_or_default());
    let state = port.state.map(|state| format!("{state:?}"));
    let active = state.as_deref() == Some("Active");
    let gid = match (port.chosen_gid, port.no_gid) {
        (Some(index), _) => {
            let gid = port.gids.iter().find(|gid| gid.index == index);
            let gid = gid.map_or_else(String::new, |gid| format!(" {}", gid.gid));
            Cell::from(format!("{index}{gid}"))
        }
        (None, Some(why)) => Cell::new(format!("none: {why:?}"), Tone::Doubt),
        (None, None) => Cell::new("none", Tone::Doubt),
    };
    let interfaces: Vec<&str> = port
        .interfaces
        .iter()
        .map(|interface| interface.name.as_str())
        .collect();
    let nearest = hca.distances.iter().map(|gpu| gpu.distance).min();
    let gpus = hca
        .distances
        .iter()
        .filter(|gpu| Some(gpu.distance) == nearest);
    let gpus: Vec<&str> = gpus.map(|gpu| gpu.gpu.as_str()).collect();
    vec![
        hca.name.clone().into(),
        port.number.to_string().into(),
        Cell::new(
            state.unwrap_or_default(),
            if active { Tone::Good } else { Tone::Doubt },
        ),
        text(port.link_layer.map(|layer| format!("{layer:?}"))),
        text(port.rate_mbps.map(|rate| format!("{} Gb/s", rate / 1000))),
        text(port.path_mtu.map(|mtu| mtu.to_string())),
        interfaces.join(",").into(),
        gid,
        text(hca.numa_node.map(|numa| numa.to_string())),
        text(hca.firmware.clone()),
        nearest
            .map_or_else(String::new, |nearest| {
                format!("{nearest} {}", gpus.join(" "))
            })
            .into(),
    ]
}

fn show_gpus(page: &mut Page, inventory: &MooncakeInventoryStatus) {
    let text = |value: &Option<String>| Cell::from(value.clone().unwrap_or_default());
    let rows: Vec<Vec<Cell>> = inventory
        .gpus
        .iter()
        .map(|gpu| {
            vec![
                gpu.pci.clone().into(),
                text(&gpu.name),
                text(&gpu.model),
                text(&gpu.numa_node.map(|numa| numa.to_string())),
                text(&gpu.driver),
                fabric(gpu),
                ways(gpu).into(),
                proved(gpu),
                text(&gpu.uuid),
            ]
        })
        .collect();
    table(
        page,
        &[
            "GPU", "NAME", "MODEL", "NUMA", "DRIVER", "FABRIC", "RDMA BY", "PROVED", "UUID",
        ],
        &rows,
    );
    let not = inventory.gpus.iter().flat_map(unproved).collect::<Vec<_>>();
    table(page, &["GPU", "RDMA DEVICES", "STATE", "WHY"], &not);
}

/// By how many of the RDMA devices its memory was reached.
fn proved(gpu: &Gpu) -> Cell {
    let of = |state| gpu.rdma.iter().filter(|path| path.state == state).count();
    let text = format!("{} of {}", of(PathState::Proved), gpu.rdma.len());
    let tone = match (of(PathState::Failed), of(PathState::Unproved)) {
        (0, 0) => Tone::Good,
        (0, _) => Tone::Doubt,
        _ => Tone::Bad,
    };
    if gpu.rdma.is_empty() {
        return Cell::from(String::new());
    }
    Cell::new(text, tone)
}

/// The devices by which it was not, those of one cause in one line.
fn unproved(gpu: &Gpu) -> Vec<Vec<Cell>> {
    let mut causes: Vec<(&GpuPath, Vec<&str>)> = Vec::new();
    for path in &gpu.rdma {
        let same =
            |(other, _): &&mut (&GpuPath, _)| (other.state, &other.why) == (path.state, &path.why);
        if path.state == PathState::Proved {
            continue;
        }
        match causes.iter_mut().find(same) {
            Some((_, devices)) => devices.push(&path.device),
            None => causes.push((path, vec![&path.device])),
        }
    }
    let rows = causes.into_iter().map(|(path, devices)| {
        let tone = match path.state {
            PathState::Failed => Tone::Bad,
            _ => Tone::Doubt,
        };
        vec![
            gpu.pci.clone().into(),
            devices.join(",").into(),
            Cell::new(format!("{:?}", path.state), tone),
            path.why.clone().unwrap_or_default().into(),
        ]
    });
    rows.collect()
}

/// Its clique, or how far it has come.
fn fabric(gpu: &Gpu) -> Cell {
    let Some(fabric) = &gpu.fabric else {
        return Cell::from(String::new());
    };
    match fabric.clique {
        Some(clique) => Cell::new(format!("clique {clique}"), Tone::Good),
        None => Cell::new(format!("{:?}", fabric.state), Tone::Doubt),
    }
}

/// By which ways RDMA devices can reach its memory, as CUDA says.
fn ways(gpu: &Gpu) -> String {
    let ways = [
        (gpu.dma_buf, "dma-buf"),
        (gpu.gpu_direct_rdma, "peer memory"),
    ];
    if ways.iter().all(|(can, _)| *can == Some(false)) {
        return "none".to_owned();
    }
    let can = ways.iter().filter(|(can, _)| *can == Some(true));
    can.map(|(_, way)| *way).collect::<Vec<_>>().join(", ")
}

fn show_memory(page: &mut Page, nodes: &[NumaNode]) {
    let rows: Vec<Vec<Cell>> = nodes
        .iter()
        .map(|node| {
            let pages: Vec<String> = node
                .hugepages
                .iter()
                .map(|huge| format!("{} of {}", huge.pages, huge.page_size))
                .collect();
            let memory = node.memory.map(|memory| memory.to_string());
            vec![
                node.id.to_string().into(),
                memory.unwrap_or_default().into(),
                pages.join(", ").into(),
            ]
        })
        .collect();
    table(page, &["NUMA", "MEMORY", "HUGEPAGES"], &rows);
}

fn show_faults(page: &mut Page, inventory: &MooncakeInventoryStatus) {
    let rows: Vec<Vec<Cell>> = inventory
        .faults
        .iter()
        .map(|fault| {
            vec![
                fault.path.clone().into(),
                Cell::new(fault.problem.clone(), Tone::Doubt),
            ]
        })
        .collect();
    table(page, &["NOT READ", "WHY"], &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_do_not_reach_a_gpu_are_told_by_cause_and_counted() {
        let gpu: Gpu = serde_yaml_ng::from_str(
            "{pci: g, rdma: [{device: a, state: Proved}, {device: b, state: Failed, why: x}, \
             {device: c, state: Unproved, why: x}, {device: d, state: Failed, why: x}]}",
        )
        .unwrap();
        assert_eq!(proved(&gpu), Cell::new("1 of 4", Tone::Bad));
        let row = |devices: &str, state: &str, tone| {
            vec![
                "g".to_owned().into(),
                devices.to_owned().into(),
                Cell::new(state, tone),
                "x".to_owned().into(),
            ]
        };
        let rows = [
            row("b,d", "Failed", Tone::Bad),
            row("c", "Unproved", Tone::Doubt),
        ];
        assert_eq!(unproved(&gpu), rows);
    }
}
