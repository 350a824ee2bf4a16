//! A launch against the hugepages of a recorded node, in the seeds' words (S20 to S22).

use std::num::NonZeroU32;

use mooncake_operator::cli::Answer;
use mooncake_operator::cli::node::current;
use mooncake_operator::cli::sizing::{Supply, set_aside, sizing, taken};
use mooncake_operator::sizing::{Fit, Launch, size};

use crate::fixtures::{HEALTHY, INVENTORY, picture};
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
fn s20_s21_s22_a_nodes_hugepages_decide_and_what_its_pools_take_is_said() {
    let inventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    let available = set_aside(&current(&inventory).unwrap(), PAGE);
    assert_eq!(available, Some(96 << 30), "both NUMA nodes");
    let healthy = picture(HEALTHY);
    let supply = Supply {
        node: Some("n1".to_owned()),
        available,
        taken: taken(healthy.node("n1").unwrap(), PAGE),
    };
    let found = sizing(&launch("8gb"), PAGE, supply).unwrap();
    assert_eq!(found.budget.status, Fit::BaselineFitsArenaMayFallback);
    let beside = found.beside_pools.unwrap();
    assert_eq!(beside.budget.status, Fit::InsufficientForBaseline);
    let answer = Answer::Sizing(found);
    assert_eq!(answer.exit_code(), 1);
    check("node.sizing.txt", &plain(&answer));
    check("node.sizing.json", &answer.json().unwrap());
}

#[test]
fn without_a_supply_it_only_plans() {
    let found = sizing(&launch("0"), PAGE, Supply::default()).unwrap();
    let answer = Answer::Sizing(found);
    assert_eq!(answer.exit_code(), 0);
    check("planned.sizing.txt", &plain(&answer));
}

#[test]
fn pages_of_another_size_are_none_and_memory_that_was_not_read_is_unknown() {
    let inventory = serde_yaml_ng::from_str(INVENTORY).unwrap();
    let mut status = current(&inventory).unwrap();
    assert_eq!(set_aside(&status, 64 << 10), Some(0));
    status.numa_nodes.clear();
    assert_eq!(set_aside(&status, PAGE), None);
}
