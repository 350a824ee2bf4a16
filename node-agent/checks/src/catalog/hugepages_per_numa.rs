//! `HugepagesPerNuma`: each NUMA node has the pages for its share of the pools. A spread pool takes the same amount from
//! every NUMA node, so the node with the fewest pages limits it.

use crds::cluster::{NumaPolicy, PageSize};
use crds::{CheckId, Reason};

use super::hugepages::{SIZES, name, needed};

use crate::{Check, CheckInput, Observation};
use host::memory::{Hugepages, NumaNode};

pub(crate) const CHECK: Check =
    Check::new(CheckId::HugepagesPerNuma, &[Reason::HugepagesUneven], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    if input.snapshot.facts.numa_nodes.len() < 2 {
        return Vec::new();
    }
    SIZES
        .iter()
        .flat_map(|size| of_size(input, *size))
        .collect()
}

fn of_size(input: &CheckInput<'_>, size: PageSize) -> Vec<Observation> {
    let nodes = &input.snapshot.facts.numa_nodes;
    let pools = input.spec.pools.iter();
    let spread = pools.filter(|pool| {
        pool.page_size == size && pool.numa_policy == NumaPolicy::Spread && pool.size.0 > 0
    });
    let spread: Vec<u64> = spread
        .map(|pool| pool.size.0.div_ceil(size.bytes()))
        .collect();
    let total = |pages: &[Hugepages]| Hugepages::of_size(pages, size.bytes())?.total;
    // `Hugepages` reports too few pages in total.
    let short =
        total(&input.snapshot.facts.hugepages).is_none_or(|have| have < needed(input, size));
    if spread.is_empty() || short {
        return Vec::new();
    }
    let count = nodes.len() as u64;
    let observe = |(index, node): (usize, &NumaNode)| {
        let share = |pages: &u64| pages / count + u64::from((index as u64) < pages % count);
        let need: u64 = spread.iter().map(share).fold(0, u64::saturating_add);
        let have = total(&node.hugepages).unwrap_or(0);
        let subject = format!("{} on NUMA node {}", name(size), node.id);
        if have >= need {
            return Observation::pass(subject);
        }
        let message = format!("{have} pages are reserved; the share of the pools is {need}");
        Observation::warn(subject, Reason::HugepagesUneven, message)
    };
    nodes.iter().enumerate().map(observe).collect()
}
