//! `Hugepages`: a pool of hugepages starts only where as many are set aside. Pages in use count: they
//! may be the pool's own.

use crds::cluster::PageSize;
use crds::{ByteSize, CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};

/// Page sizes that have to be set aside.
pub(super) const SIZES: [PageSize; 2] = [PageSize::Huge2Mi, PageSize::Huge1Gi];

pub(super) const CHECK: Check = Check {
    id: CheckId::Hugepages,
    reasons: &[Reason::HugepagesShort],
    patience: Patience::SHORT,
    look,
};

/// How many pages of a size the node's pools take.
pub(super) fn wanted(world: &World<'_>, size: PageSize) -> u64 {
    let pools = world.pools.iter().filter(|pool| pool.page_size == size);
    let pages = pools.map(|pool| pool.size.0.div_ceil(size.bytes()));
    pages.fold(0, u64::saturating_add)
}

/// What pages of a size are called.
pub(super) fn name(size: PageSize) -> String {
    format!("hugepages of {}", ByteSize(size.bytes()))
}

fn look(world: &World<'_>) -> Vec<Said> {
    let asked = SIZES.iter().filter(|size| wanted(world, **size) > 0);
    let say = |size: &PageSize| {
        let need = wanted(world, *size);
        let mut known = world.facts.hugepages.iter();
        let pages = known.find(|pages| pages.page_size == size.bytes());
        let have = match pages.map(|pages| pages.total) {
            Some(Some(total)) => total,
            // The reader's fault says which file.
            Some(None) => {
                let words = format!("the pools take {need} pages, how many there are is not known");
                return Said::unknown(name(*size), Reason::HugepagesShort, words);
            }
            // The kernel has no such size.
            None => 0,
        };
        match need.saturating_sub(have) {
            0 => Said::pass(name(*size)),
            short => {
                let words =
                    format!("{have} pages are set aside, the pools take {need}: {short} too few");
                Said::fail(name(*size), Reason::HugepagesShort, words)
            }
        }
    };
    asked.map(say).collect()
}
