//! What the index has counted since its start.

/// Counters that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Lookups of replicas, and those that found readable ones.
    pub gets: u64,
    pub hits: u64,
    pub hit_bytes: u64,
    /// Evictions that began, and those that evicted an object.
    pub evictions: u64,
    pub successful_evictions: u64,
    pub evicted_objects: u64,
    pub evicted_bytes: u64,
    /// Puts that found no space at all, and puts that got fewer replicas than requested.
    pub failed_allocations: u64,
    pub partial_allocations: u64,
    /// Puts that were refused because the index would take too much memory.
    pub unindexed_puts: u64,
    /// Ranges of unfinished puts that were taken away from their writer.
    pub discarded_puts: u64,
    /// Ranges that were used again after their time of rest.
    pub released_ranges: u64,
    pub expired_clients: u64,
    /// Replicas that moved because their owner ended, copies that failed, and objects that an owner took along.
    pub moved_replicas: u64,
    pub moved_bytes: u64,
    pub failed_moves: u64,
    pub unmoved_objects: u64,
    /// Keys that were removed or replaced while an owner was away, beyond the limit of tombstones.
    pub missing_tombstones: u64,
    /// Records of ledgers that came back, which were discarded because their keys may have been removed meanwhile.
    pub discarded_records: u64,
}

/// What the index contains now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    pub keys: u64,
    /// Bytes of memory that the keys take in the index.
    pub index_bytes: u64,
    /// Bytes of mounted segments.
    pub capacity: u64,
    /// Allocated bytes, those that rest included.
    pub used: u64,
    /// Bytes that rest before they are used again.
    pub resting: u64,
    /// Clients whose segments are confirmed.
    pub clients: u64,
}
