//! `sizing` with the hugepages of a recorded node.

use std::num::NonZeroU32;

use crds::sizing::{Launch, LaunchStatus, size};
use mooncake_cli::Report;
use mooncake_cli::node::current;
use mooncake_cli::sizing::{Hugepages, sizing, total, used_by_pools};

use crate::fixtures::{HEALTHY, INVENTORY, node, snapshot};
use crate::{check, plain};

const PAGE: u64 = 2 << 20;

fn launch(arena: &str) -> Launch {
    Launch {
        tp_size: NonZeroU32::new(4).unwrap(),
        hicache: size("16gb").unwrap(),
        segment: size("4gb").unwrap(),
        arena: size(arena).unwrap(),
    }
}

#[test]
fn hugepages_of_the_node_decide_and_the_share_of_its_pools_is_reported() {
    let inventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    let total = total(&current(&inventory).unwrap(), PAGE);
    assert_eq!(total, Some(96 << 30), "both NUMA nodes");
    let healthy = snapshot(HEALTHY);
    let hugepages = Hugepages {
        node: Some("n1".to_owned()),
        total,
        used_by_pools: used_by_pools(node(&healthy, "n1"), PAGE),
    };
    let found = sizing(&launch("8gb"), PAGE, hugepages).unwrap();
    assert_eq!(
        found.budget.status,
        LaunchStatus::BaselineFitsArenaMayFallback
    );
    let beside = found.beside_pools.as_ref().unwrap();
    assert_eq!(beside.budget.status, LaunchStatus::InsufficientForBaseline);
    let report = Report::Sizing(found);
    assert_eq!(report.exit_code(), 1);
    check("node.sizing.txt", &plain(&report));
    check("node.sizing.json", &report.json().unwrap());
}

#[test]
fn without_a_total_only_the_demand_is_computed() {
    let found = sizing(&launch("0"), PAGE, Hugepages::default()).unwrap();
    let report = Report::Sizing(found);
    assert_eq!(report.exit_code(), 0);
    check("planned.sizing.txt", &plain(&report));
}

#[test]
fn other_page_sizes_count_zero_and_unread_memory_is_unknown() {
    let inventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    let mut status = current(&inventory).unwrap();
    assert_eq!(total(&status, 64 << 10), Some(0));
    status.numa_nodes.clear();
    assert_eq!(total(&status, PAGE), None);
}
