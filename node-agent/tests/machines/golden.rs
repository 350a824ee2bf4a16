//! What each recorded machine is told to be. `UPDATE=1` rewrites the pinned files.

use std::fs;

use crds::MooncakeInventoryStatus;
use crds::inventory::{Distance, NoGid};
use crds::node::HcaLine;
use mooncake_node_agent::agent::inventory::{inventory, lines};
use mooncake_node_agent::host::Facts;
use serde::Serialize;

use super::recorded::{folder, machine, machines};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    lines: Vec<HcaLine>,
    omitted: Option<u32>,
    inventory: MooncakeInventoryStatus,
    facts: Rest,
}

/// What stands in no object: metrics and checks are made of it.
#[derive(Serialize)]
struct Rest {
    rdma_cm: bool,
    time_wait: Option<u64>,
    imex_major: Option<u32>,
    free_hugepages: u64,
    counters: Vec<String>,
}

fn told(facts: &Facts) -> Told {
    let (lines, omitted) = lines(facts);
    let ports = facts.hcas.iter().flat_map(|hca| {
        hca.ports.iter().flat_map(|port| {
            let risen = port.counters.iter().filter(|(_, count)| **count > 0);
            risen.map(|(name, count)| format!("{}/{} {name} {count}", hca.name, port.number))
        })
    });
    Told {
        lines,
        omitted,
        inventory: inventory(facts, "node-uid"),
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
fn every_machine_is_told_as_pinned() {
    for machine in machines() {
        let wanted = serde_yaml_ng::to_string(&told(&machine.facts())).unwrap();
        let path = folder().join(format!("{}.yaml", machine.name));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &wanted).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "{} is told otherwise; run with UPDATE=1 and read the diff",
            machine.name
        );
    }
}

/// What matters most about each, in words rather than in a pinned file.
#[test]
fn the_machines_differ_as_they_must() {
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
    // As `ibv_devinfo` said there: both of version 2, the second with an IPv4 address.
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
fn an_inventory_does_not_move_with_what_is_counted() {
    let machine = machine("dgx-h100");
    let before = inventory(&machine.facts(), "uid");
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
    let facts = super::recorded::facts(&busy);
    assert_ne!(facts, machine.facts());
    assert_eq!(inventory(&facts, "uid"), before);
}

#[test]
fn a_node_of_many_ports_has_16_lines_and_those_that_can_be_used_come_first() {
    let mut facts = machine("dgx-h100").facts();
    let sick = facts
        .hcas
        .iter()
        .find(|hca| hca.name == "mlx5_2")
        .unwrap()
        .clone();
    let sound = facts.hcas[0].clone();
    facts.hcas = vec![sick; 40];
    facts.hcas.extend(vec![sound; 3]);
    let (lines, omitted) = lines(&facts);
    assert_eq!((lines.len(), omitted), (16, Some(27)));
    assert!(lines[..3].iter().all(|line| line.gid == Some(0)));
    assert!(serde_json::to_vec(&lines).unwrap().len() <= 2 << 10);
}
