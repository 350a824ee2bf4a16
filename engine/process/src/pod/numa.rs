//! Divides a pool's memory into extents over the NUMA nodes.

use std::path::Path;

use crds::cluster::NumaPolicy;
use sys::mem::PageSize;

use pool::handover::MAX_EXTENT_BYTES;

/// An extent to allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) length: u64,
    /// Preferred NUMA node of its pages.
    pub(crate) node: Option<u32>,
}

/// Divides `bytes` (a whole number of pages) into extents. The page counts of two NUMA nodes differ by
/// at most one.
pub(crate) fn plan(bytes: u64, page: PageSize, policy: NumaPolicy, nodes: &[u32]) -> Vec<Extent> {
    let places: Vec<Option<u32>> = match policy {
        NumaPolicy::Spread if nodes.len() > 1 => nodes.iter().copied().map(Some).collect(),
        NumaPolicy::Spread | NumaPolicy::Any => vec![None],
    };
    let pages = bytes / page.bytes();
    let most = MAX_EXTENT_BYTES / page.bytes();
    let mut extents = Vec::new();
    for (share, node) in shares(pages, places.len() as u64).zip(places) {
        let pieces = share.div_ceil(most);
        let cut = shares(share, pieces).filter(|pages| *pages > 0);
        extents.extend(cut.map(|pages| Extent {
            length: pages * page.bytes(),
            node,
        }));
    }
    extents
}

/// Divides `whole` into `count` parts that differ by at most one.
fn shares(whole: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |index| whole / count + u64::from(index < whole % count))
}

/// Lists the NUMA nodes with memory from sysfs; empty where the kernel has no NUMA.
pub(crate) fn nodes_with_memory(sysfs: &Path) -> Vec<u32> {
    std::fs::read_to_string(sysfs.join("devices/system/node/has_memory"))
        .map(|text| sys::numa::parse_id_list(&text))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_numa_node_gets_its_share_in_extents_of_at_most_16_gib() {
        let extents = plan(70 << 30, PageSize::Huge2Mi, NumaPolicy::Spread, &[0, 2]);
        assert_eq!(extents.iter().map(|e| e.length).sum::<u64>(), 70 << 30);
        for node in [0, 2] {
            let here = extents.iter().filter(|e| e.node == Some(node));
            assert_eq!(here.map(|e| e.length).sum::<u64>(), 35 << 30);
        }
        for extent in &extents {
            assert!(extent.length <= MAX_EXTENT_BYTES && extent.length % (2 << 20) == 0);
        }
    }

    #[test]
    fn one_numa_node_or_policy_any_sets_no_preferred_node() {
        let whole = [Extent {
            length: 1 << 30,
            node: None,
        }];
        assert_eq!(
            plan(1 << 30, PageSize::Base, NumaPolicy::Spread, &[0]),
            whole
        );
        assert_eq!(
            plan(1 << 30, PageSize::Base, NumaPolicy::Spread, &[]),
            whole
        );
        assert_eq!(
            plan(1 << 30, PageSize::Base, NumaPolicy::Any, &[0, 1]),
            whole
        );
    }

    #[test]
    fn a_pool_with_fewer_pages_than_numa_nodes_leaves_nodes_without_an_extent() {
        let extents = plan(1 << 30, PageSize::Huge1Gi, NumaPolicy::Spread, &[0, 1]);
        assert_eq!(extents.len(), 1);
    }
}
