//! `Hugepages`: as many hugepages are reserved as the node's pools need. Pages in use count: they may be the pools'.

use crds::cluster::PageSize;
use crds::{ByteSize, CheckId, Reason};

use crate::{Check, CheckInput, Observation};
use host::memory::Hugepages;

/// Page sizes of hugepages.
pub(crate) const SIZES: [PageSize; 2] = [PageSize::Huge2Mi, PageSize::Huge1Gi];

pub(crate) const CHECK: Check =
    Check::new(CheckId::Hugepages, &[Reason::HugepagesInsufficient], run);

/// Number of pages of a size that the node's pools need.
pub(crate) fn needed(input: &CheckInput<'_>, size: PageSize) -> u64 {
    let pools = input
        .spec
        .pools
        .iter()
        .filter(|pool| pool.page_size == size);
    let pages = pools.map(|pool| pool.size.0.div_ceil(size.bytes()));
    pages.fold(0, u64::saturating_add)
}

/// Subject of a finding about pages of a size.
pub(crate) fn name(size: PageSize) -> String {
    format!("hugepages of {}", ByteSize(size.bytes()))
}

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let sizes = SIZES.iter().filter(|size| needed(input, **size) > 0);
    let observe = |size: &PageSize| {
        let need = needed(input, *size);
        let pages = Hugepages::of_size(&input.snapshot.facts.hugepages, size.bytes());
        let have = match pages.map(|pages| pages.total) {
            Some(Some(total)) => total,
            // `HostReadable` names the file that cannot be read.
            Some(None) => {
                let message =
                    format!("the pools need {need} pages; the number of reserved pages is unknown");
                return Observation::unknown(name(*size), Reason::HugepagesInsufficient, message);
            }
            // The kernel does not support the size.
            None => 0,
        };
        match need.saturating_sub(have) {
            0 => Observation::pass(name(*size)),
            short => {
                let message =
                    format!("{have} pages are reserved; the pools need {need}: {short} too few");
                Observation::fail(name(*size), Reason::HugepagesInsufficient, message)
            }
        }
    };
    sizes.map(observe).collect()
}
