//! What the index has counted since its start.

use std::time::Duration;

use super::Moment;

/// Why objects are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cause {
    /// The used space exceeds the watermark.
    #[default]
    Watermark,
    /// The keys take too much memory of the master.
    IndexMemory,
    /// A put found no space.
    FailedPut,
    /// Owners end, and their objects find no space elsewhere.
    Drain,
    /// A put exceeded the quota of its tenant.
    Quota,
}

impl Cause {
    pub const NAMES: [&str; 5] = ["watermark", "index_memory", "failed_put", "drain", "quota"];
}

/// Why a put finds no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// No segment is mounted.
    NoSegment,
    /// All segments are closed: their ledgers are being loaded, their owners do not keep pace, or they unmount.
    Closed,
    /// Every open segment is smaller than the value.
    TooLarge,
    /// An open segment has the bytes, but not in one range.
    Fragmented,
    Full,
}

impl Shortage {
    pub const NAMES: [&str; 5] = ["no_segment", "closed", "too_large", "fragmented", "full"];
}

/// How long evicted objects were not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Idle {
    /// Objects up to each bound and above the one before it; then those above all.
    pub objects: [u64; Self::BOUNDS.len() + 1],
    pub time: Duration,
}

impl Idle {
    /// Seconds.
    pub const BOUNDS: [u64; 7] = [1, 10, 60, 600, 3600, 21_600, 86_400];

    /// Counts an object whose last lease ended at this time. One that came from a ledger and was not used since has none: when it
    /// was used before is not known, and it is left out.
    pub(super) fn add(&mut self, lease: Moment, now: Moment) {
        if lease == Moment::default() {
            return;
        }
        let idle = Duration::from_micros(now.0.saturating_sub(lease.0));
        let at = Self::BOUNDS.partition_point(|&bound| Duration::from_secs(bound) < idle);
        self.objects[at] += 1;
        self.time = self.time.saturating_add(idle);
    }
}

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
    /// Evicted objects by [`Cause`].
    pub evicted_for: [u64; Cause::NAMES.len()],
    pub evicted_idle: Idle,
    /// Puts that found no space at all, and puts that got fewer replicas than requested.
    pub failed_allocations: u64,
    /// The former by [`Shortage`].
    pub shortages: [u64; Shortage::NAMES.len()],
    pub partial_allocations: u64,
    /// Puts that were refused because the index would take too much memory.
    pub unindexed_puts: u64,
    /// Puts that were answered before their owners had their records, and such records that their owners had not acknowledged
    /// when their segments were unmounted.
    pub early_puts: u64,
    pub lost_records: u64,
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
