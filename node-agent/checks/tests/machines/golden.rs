//! Inventory and facts of each recorded machine, compared with a golden file. `UPDATE=1` rewrites the golden files.

use std::fs;

use crds::MooncakeInventoryStatus;
use crds::inventory::{Distance, NoGid};
use crds::node::HcaLine;
use host::inventory::{inventory, lines};
use host::{Facts, Snapshot};
use serde::Serialize;

use super::recorded::{folder, machine, machines};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Golden {
    lines: Vec<HcaLine>,
    omitted: Option<u32>,
    inventory: MooncakeInventoryStatus,
    facts: Rest,
}

/// Facts for metrics and checks, which the inventory does not have.
#[derive(Serialize)]
struct Rest {
    rdma_cm: bool,
    time_wait: Option<u64>,
    imex_major: Option<u32>,
    free_hugepages: u64,
    counters: Vec<String>,
}

fn golden(snapshot: &Snapshot) -> Golden {
    let facts = &snapshot.facts;
    let (lines, omitted) = lines(facts);
    let ports = facts.hcas.iter().flat_map(|hca| {
        hca.ports.iter().flat_map(|port| {
            let risen = port.counters.iter().filter(|(_, count)| **count > 0);
            risen.map(|(name, count)| format!("{}/{} {name} {count}", hca.name, port.number))
        })
    });
    Golden {
        lines,
        omitted,
        inventory: inventory(snapshot, "node-uid", None),
        facts: Rest {
            rdma_cm: facts.rdma_cm.is_some(),
            time_wait: facts.sockets.as_ref().map(|sockets| sockets.time_wait),
            imex_major: facts.imex.major,
            free_hugepages: facts
                .hugepages
                .iter()
                .map(|pages| pages.page_size * pages.free.unwrap_or(0))
                .sum(),
            counters: ports.collect(),
        },
    }
}

#[test]
fn the_inventory_of_every_machine_is_that_of_its_golden_file() {
    for machine in machines() {
        let expected = serde_yaml_ng::to_string(&golden(&machine.snapshot())).unwrap();
        let path = folder().join(format!("{}.yaml", machine.name));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} differs; run with UPDATE=1 and read the diff",
            machine.name
        );
    }
}

#[test]
fn ports_gids_and_distances_of_the_recorded_machines_are_as_their_sources_show() {
    let chosen = |name: &str| -> Vec<(String, Result<u16, NoGid>)> {
        let facts = machine(name).facts();
        let ports = facts.hcas.iter().flat_map(|hca| {
            let chosen = hca.ports.iter().map(|port| port.chosen);
            chosen.map(|chosen| (hca.name.clone(), chosen))
        });
        ports.collect()
    };
    let of = |name: &str, hca: &str| {
        let ports = chosen(name);
        ports.into_iter().find(|(known, _)| known == hca).unwrap().1
    };
    assert_eq!(chosen("dgx-h100").len(), 10);
    assert_eq!(of("dgx-h100", "mlx5_0"), Ok(0));
    assert_eq!(of("dgx-h100", "mlx5_1"), Ok(3));
    assert_eq!(of("dgx-h100", "mlx5_2"), Err(NoGid::OnlyLinkLocal));
    assert!(chosen("gb200").is_empty());
    let efa = |(_, chosen): (String, _)| chosen == Err(NoGid::OtherLinkLayer);
    assert!(chosen("aws-p5").into_iter().all(efa));
    assert_eq!(of("alibaba-erdma", "erdma_0"), Ok(1));
    assert_eq!(of("roce-bond", "mlx5_bond_0"), Ok(3));
    assert_eq!(of("roce-bond", "mlx5_bond_1"), Ok(5), "not the VXLAN's");
    assert_eq!(of("roce-bond", "mlx5_bond_2"), Err(NoGid::OnlyLinkLocal));
    assert_eq!(of("sriov-vm", "mlx5_ib0"), Ok(0));
    assert!(chosen("vm-without-devices").is_empty());
    // As `ibv_devinfo` showed: both are RoCE version 2, the second has an IPv4 address.
    assert_eq!(of("vm-soft-roce", "rxe0"), Ok(1));

    let facts = machine("dgx-h100").facts();
    let nearest = |hca: &str| -> Vec<(String, Distance)> {
        let hca = facts.hcas.iter().find(|known| known.name == hca).unwrap();
        let all = facts
            .gpus
            .iter()
            .map(|gpu| (gpu.pci.address.clone(), Facts::distance(hca, gpu)));
        all.filter(|(_, distance)| *distance < Distance::NumaNode)
            .collect()
    };
    assert_eq!(
        nearest("mlx5_0"),
        [("0000:1c:00.0".to_owned(), Distance::Switch)]
    );
    assert_eq!(
        nearest("mlx5_11"),
        [("0000:de:00.0".to_owned(), Distance::Switch)]
    );
    assert!(nearest("mlx5_1").is_empty());
    assert_eq!(machine("gb200").facts().imex.channels, [0]);
}

#[test]
fn counters_do_not_change_the_inventory() {
    let machine = machine("dgx-h100");
    let before = inventory(&machine.snapshot(), "uid", None);
    let busy = machine.recording.map_texts(|path, text| {
        let counted = [
            "free_hugepages",
            "resv_hugepages",
            "link_downed",
            "symbol_error",
        ];
        if counted.iter().any(|name| path.ends_with(name)) {
            "7".to_owned()
        } else {
            text.replace("tw 120", "tw 9999")
                .replace("MemFree:        7", "MemFree:        3")
        }
    });
    let snapshot = super::recorded::snapshot(&busy);
    assert_ne!(snapshot, machine.snapshot());
    assert_eq!(inventory(&snapshot, "uid", None), before);
}

#[test]
fn a_node_with_many_ports_has_16_lines_with_usable_ports_first() {
    let mut facts = machine("dgx-h100").facts();
    let unusable = facts
        .hcas
        .iter()
        .find(|hca| hca.name == "mlx5_2")
        .unwrap()
        .clone();
    let usable = facts.hcas[0].clone();
    facts.hcas = vec![unusable; 40];
    facts.hcas.extend(vec![usable; 3]);
    let (lines, omitted) = lines(&facts);
    assert_eq!((lines.len(), omitted), (16, Some(27)));
    assert!(lines[..3].iter().all(|line| line.gid == Some(0)));
    assert!(serde_json::to_vec(&lines).unwrap().len() <= 2 << 10);
}
