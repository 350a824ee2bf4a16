//! `PodHugepages`: engines that request hugepages by variables or flags get them. Without them an engine does not start,
//! or continues without and only logs it.

use crds::stock::{Demand, Shortage};
use crds::{ByteSize, CheckId, Reason};

use super::hugepages;
use crate::debounce::Delays;
use crate::{Check, CheckInput, Observation, pod};
use host::container::Container;
use host::container::hugetlb::Hugetlb;
use host::memory::Hugepages;

// An engine that is starting holds none yet.
pub(crate) const CHECK: Check = Check::new(
    CheckId::PodHugepages,
    &[Reason::PodHugepagesInsufficient, Reason::HugepagesUnused],
    run,
)
.with_delays(Delays::LONG);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observe = |(of, container): (_, &Container)| {
        container.wheel.as_ref()?;
        let demand = container.demand.as_ref()?;
        let hugetlb = container.hugetlb.as_ref()?;
        let requested = demand.requested()?;
        let subject = pod::subject(of, container);
        let (reason, message) = match insufficient(input, demand, hugetlb) {
            Some(message) => (Reason::PodHugepagesInsufficient, Some(message)),
            None => (Reason::HugepagesUnused, unused(demand, hugetlb, &requested)),
        };
        Some(match message {
            None => Observation::pass(subject),
            Some(message) => Observation::warn(subject, reason, message),
        })
    };
    pod::containers(input).filter_map(observe).collect()
}

/// Compares the request with the container's limit and with what the node's pools leave, whichever is less.
fn insufficient(input: &CheckInput<'_>, demand: &Demand, hugetlb: &Hugetlb) -> Option<String> {
    let resource = demand.page().resource();
    let own = hugetlb.limit.map(|limit| {
        let message = match limit {
            0 => format!("it has no limit {resource}, so the kernel gives it none"),
            limit => format!("its limit {resource} is {}", ByteSize(limit)),
        };
        (limit, message)
    });
    let node = of_node(input, demand)
        .map(|have| (have, format!("the node's pools leave {}", ByteSize(have))));
    let (have, available) = own.into_iter().chain(node).min_by_key(|(have, _)| *have)?;
    let shortage = demand.shortage(have)?;
    let Shortage {
        requested, status, ..
    } = &shortage;
    Some(format!(
        "{status}: its engine requests {requested}, and {available}: {}",
        shortage.lacks()
    ))
}

/// Bytes of hugepages that the node's pools leave. Pages in use count: the number of free ones changes all the time.
fn of_node(input: &CheckInput<'_>, demand: &Demand) -> Option<u64> {
    let page = demand.page();
    let total = match Hugepages::of_size(&input.snapshot.facts.hugepages, page.bytes()) {
        Some(pages) => pages.total?,
        // The kernel does not support the size.
        None => 0,
    };
    let left = total.saturating_sub(hugepages::needed(input, page));
    Some(left.saturating_mul(page.bytes()))
}

fn unused(demand: &Demand, hugetlb: &Hugetlb, requested: &str) -> Option<String> {
    if hugetlb.holds || !hugetlb.loaded {
        return None;
    }
    Some(match demand.pages {
        None => format!(
            "its engine requests {requested} and holds none: without MC_STORE_USE_HUGEPAGE a store makes no arena"
        ),
        Some(_) => format!(
            "its engine requests {requested} and holds none, though they are available: it requests them once, when it \
             starts, and they were not available then"
        ),
    })
}
