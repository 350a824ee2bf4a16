//! `HugepagesPerNuma`: a pool that is spread takes the same from every NUMA node, so that the node with
//! the fewest pages decides.

use crds::cluster::{NumaPolicy, PageSize};
use crds::{CheckId, Reason};

use super::hugepages::{SIZES, name, wanted};
use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::HugepagesPerNuma,
    reasons: &[Reason::HugepagesUneven],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    if world.facts.numa_nodes.len() < 2 {
        return Vec::new();
    }
    SIZES
        .iter()
        .flat_map(|size| of_size(world, *size))
        .collect()
}

fn of_size(world: &World<'_>, size: PageSize) -> Vec<Said> {
    let nodes = &world.facts.numa_nodes;
    let pools = world.pools.iter();
    let spread = pools.filter(|pool| {
        pool.page_size == size && pool.numa_policy == NumaPolicy::Spread && pool.size.0 > 0
    });
    let spread: Vec<u64> = spread
        .map(|pool| pool.size.0.div_ceil(size.bytes()))
        .collect();
    let total = |pages: &[crate::host::memory::Hugepages]| {
        let mut known = pages.iter();
        known
            .find(|pages| pages.page_size == size.bytes())
            .and_then(|pages| pages.total)
    };
    // Too few in all is said once, of the node.
    let short = total(&world.facts.hugepages).is_none_or(|have| have < wanted(world, size));
    if spread.is_empty() || short {
        return Vec::new();
    }
    let count = nodes.len() as u64;
    let say = |(index, node): (usize, &crate::host::memory::NumaNode)| {
        let share = |pages: &u64| pages / count + u64::from((index as u64) < pages % count);
        let need: u64 = spread.iter().map(share).fold(0, u64::saturating_add);
        let have = total(&node.hugepages).unwrap_or(0);
        let subject = format!("{} on NUMA node {}", name(size), node.id);
        if have >= need {
            return Said::pass(subject);
        }
        let words = format!("{have} pages are set aside, its share of the pools is {need}");
        Said::warn(subject, Reason::HugepagesUneven, words)
    };
    nodes.iter().enumerate().map(say).collect()
}
