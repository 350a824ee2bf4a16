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

/// Bytes of the smallest ledger of keys, and of the one that is part of [`ENGINE_PROCESS`].
const LEAST_LEDGER: u64 = 1 << 20;
const COVERED_LEDGER: u64 = 32 << 20;
/// Bytes of the largest ledger of keys. A larger one is refused.
pub const MOST_LEDGER: u64 = 512 << 20;
/// Divisors of the pool's size that give the size of its ledger, up to [`COVERED_LEDGER`] and beyond it.
const LEDGER_SHARE: u64 = 64;
const LARGE_LEDGER_SHARE: u64 = 2048;

/// Granularity of the results: the API server writes quantities in whole KiB at the smallest.
const GRANULARITY: u64 = 1 << 10;

/// Returns the limit for the engine process of a pool of this size, in bytes.
#[must_use]
pub fn engine_limit(size: u64, page_size: PageSize) -> u64 {
    // The pages of a ledger belong to the process that writes them. Its own list of the records is as large at most.
    let ledger = ledger(size).saturating_sub(COVERED_LEDGER);
    ENGINE_PROCESS + share(size, page_size, TABLES_SHARE) + 2 * ledger
}

/// Returns the bytes of the ledger of keys of a pool: 1/64 of the pool up to 32 MiB, or 1/2048 if that is more.
#[must_use]
pub fn ledger(size: u64) -> u64 {
    let small = (size / LEDGER_SHARE).clamp(LEAST_LEDGER, COVERED_LEDGER);
    let large = size / LARGE_LEDGER_SHARE;
    small
        .max(large)
        .next_multiple_of(LEAST_LEDGER)
        .min(MOST_LEDGER)
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

    #[test]
    fn a_ledger_grows_with_its_pool_and_is_part_of_the_pod() {
        let (mib, gib) = (1_u64 << 20, 1_u64 << 30);
        let sizes = [gib / 1024, gib, 2 * gib, 64 * gib, 512 * gib, 16_384 * gib];
        let ledgers = sizes.map(|size| ledger(size) / mib);
        assert_eq!(ledgers, [1, 16, 32, 32, 256, 512]);
        assert_eq!(ledger(u64::MAX), MOST_LEDGER);
        // A record of 192 bytes for each MiB.
        assert!(ledger(512 * gib) / 192 > 512 * 1024);
        let huge = |size| pod_limit(size, PageSize::Huge2Mi) / mib;
        assert_eq!(huge(64 * gib), 32 + 96);
        assert_eq!(huge(512 * gib), 32 + 96 + 2 * 224);
        let engine = engine_limit(512 * gib, PageSize::Base) / mib;
        assert_eq!(engine, 96 + 1024 + 2 * 224);
    }
}
