//! The memory of a pool pod beside its pool: for the pool process, and for the engine process in the pod's cgroup. The
//! operator sets the pod's limit by it, the agent the limit of the engine process.

use crate::cluster::PageSize;

/// Memory of the pool process itself and of the kernel's structures for it.
const POOL_PROCESS: u64 = 32 << 20;
/// Memory of the engine process: its code, and what connections and transfers need.
const ENGINE_PROCESS: u64 = 96 << 20;
/// Divisor of the pool's size that gives the size of the page tables of one process and of the kernel's index of the
/// pages, where pages have 4 KiB.
const POOL_SHARE: u64 = 256;
/// Divisor for the page tables of another process.
const TABLES_SHARE: u64 = 512;

/// Granularity of the results: the API server writes quantities in whole KiB at the smallest.
const GRANULARITY: u64 = 1 << 10;

/// Returns the limit for the engine process of a pool of this size, in bytes.
#[must_use]
pub fn engine_limit(size: u64, page_size: PageSize) -> u64 {
    ENGINE_PROCESS + share(size, page_size, TABLES_SHARE)
}

/// Returns the memory of the whole pod without huge pages, in bytes.
#[must_use]
pub fn pod_limit(size: u64, page_size: PageSize) -> u64 {
    let pool = match page_size {
        PageSize::Base => size,
        PageSize::Huge2Mi | PageSize::Huge1Gi => 0,
    };
    pool + POOL_PROCESS + share(size, page_size, POOL_SHARE) + engine_limit(size, page_size)
}

fn share(size: u64, page_size: PageSize, divisor: u64) -> u64 {
    match page_size {
        PageSize::Base => (size / divisor).next_multiple_of(GRANULARITY),
        PageSize::Huge2Mi | PageSize::Huge1Gi => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tables_count_where_pages_are_small() {
        let gib = 1 << 30;
        assert_eq!(engine_limit(gib, PageSize::Base), (96 + 2) << 20);
        assert_eq!(
            pod_limit(gib, PageSize::Base),
            (1024 + 32 + 4 + 96 + 2) << 20
        );
        assert_eq!(engine_limit(gib, PageSize::Huge2Mi), 96 << 20);
        assert_eq!(pod_limit(gib, PageSize::Huge1Gi), (32 + 96) << 20);
    }
}
