//! The hardware of a node as tables: ports, GPUs, memory, and what could not be read.

use crds::inventory::{Gpu, Hca, MooncakeInventoryStatus, NumaNode, Port};

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
                text(&gpu.uuid),
            ]
        })
        .collect();
    table(
        page,
        &[
            "GPU", "NAME", "MODEL", "NUMA", "DRIVER", "FABRIC", "RDMA BY", "UUID",
        ],
        &rows,
    );
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
