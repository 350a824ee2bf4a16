//! `PodHugepages`: an engine that asks for hugepages by its own variables does not start without them, or
//! goes on without them and says so in its log alone.

use crds::stock::{Demand, Misfit};
use crds::{ByteSize, CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, hugepages, pod};
use crate::host::container::Container;
use crate::host::container::hugetlb::Hugetlb;

pub(super) const CHECK: Check = Check {
    id: CheckId::PodHugepages,
    reasons: &[Reason::PodHugepagesShort, Reason::HugepagesNotTaken],
    // Between the loading of its code and its memory an engine holds none.
    patience: Patience::LONG,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let say = |(of, container): (_, &Container)| {
        container.wheel.as_ref()?;
        let demand = container.demand.as_ref()?;
        let hugetlb = container.hugetlb.as_ref()?;
        let asked = demand.asked()?;
        let subject = pod::subject(of, container);
        let short = || short(world, demand, hugetlb);
        let short = || short().map(|words| (Reason::PodHugepagesShort, words));
        let untaken = || untaken(demand, hugetlb, &asked);
        let untaken = || untaken().map(|words| (Reason::HugepagesNotTaken, words));
        Some(match short().or_else(untaken) {
            None => Said::pass(subject),
            Some((reason, words)) => Said::warn(subject, reason, words),
        })
    };
    pod::containers(world).filter_map(say).collect()
}

/// The narrower of what the container may take and what the node has beside its pools.
fn short(world: &World<'_>, demand: &Demand, hugetlb: &Hugetlb) -> Option<String> {
    let resource = demand.page().resource();
    let own = hugetlb.limit.map(|limit| {
        let whose = match limit {
            0 => format!("it has no limit {resource}, without which the kernel gives it none"),
            limit => format!("its limit {resource} is {}", ByteSize(limit)),
        };
        (limit, whose)
    });
    let node = of_node(world, demand).map(|have| {
        let whose = format!("the node has {} beside its pools", ByteSize(have));
        (have, whose)
    });
    let (have, whose) = own.into_iter().chain(node).min_by_key(|(have, _)| *have)?;
    let misfit = demand.misfit(have)?;
    let Misfit { asked, status, .. } = &misfit;
    Some(format!(
        "{status}: its engine asks for {asked}, and {whose}: {}",
        misfit.lacks()
    ))
}

/// Those that others hold count: what is free moves.
fn of_node(world: &World<'_>, demand: &Demand) -> Option<u64> {
    let page = demand.page();
    let mut known = world.facts.hugepages.iter();
    let total = match known.find(|pages| pages.page_size == page.bytes()) {
        Some(pages) => pages.total?,
        // The kernel has no such size.
        None => 0,
    };
    let left = total.saturating_sub(hugepages::wanted(world, page));
    Some(left.saturating_mul(page.bytes()))
}

fn untaken(demand: &Demand, hugetlb: &Hugetlb, asked: &str) -> Option<String> {
    if hugetlb.holds || !hugetlb.loaded {
        return None;
    }
    Some(match demand.pages {
        None => format!(
            "its engine asks for {asked} and holds none: without MC_STORE_USE_HUGEPAGE a store makes no \
             arena"
        ),
        Some(_) => format!(
            "its engine asks for {asked} and holds none, though they are there: it asks once in its life, \
             and did so before they were"
        ),
    })
}
