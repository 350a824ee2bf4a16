//! Times and ratios of the index, with the defaults of the stock master.

use std::time::Duration;

/// Where new objects are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// In a random segment.
    #[default]
    Random,
    /// In a segment with the writer's host ID, if there is one.
    LocalFirst,
    /// In that of some random segments of which the largest part is free.
    FreeRatioFirst,
}

/// When the end of a put is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Commit {
    /// When the owners of its replicas have the record of its key: no answered put is lost while one of them lives.
    #[default]
    Sync,
    /// Before, unless a record of an owner has waited for 10 ms: a put that was answered just before the end of the master, or of
    /// the engine process that has its bytes, may be lost.
    Async,
}

/// Settings of the index. The defaults are those of the stock master 0.3.13.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Time in which an object that was looked up is neither evicted nor removed.
    pub lease_ttl: Duration,
    /// Time of a soft pin whose request names none.
    pub soft_pin_ttl: Duration,
    /// Limit of the time that a request may name.
    pub max_soft_pin_ttl: Duration,
    /// Whether soft-pinned objects are evicted when no others are left.
    pub evict_soft_pinned: bool,
    /// Fraction of the objects that one eviction removes at least.
    pub eviction_ratio: f64,
    /// Fraction of used space above which objects are evicted.
    pub high_watermark: f64,
    /// Time without a request after which a client's segments are unmounted.
    pub client_ttl: Duration,
    /// Time after which another writer may start a put of the same key.
    pub put_discard: Duration,
    /// Time after which the space of a discarded put is used again.
    pub put_release: Duration,
    pub placement: Placement,
    pub commit: Commit,
    /// Bytes of memory that objects may take in the index, whatever the size of their values. Puts that exceed it are refused,
    /// and from the watermark on objects are evicted.
    pub index_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(10),
            soft_pin_ttl: Duration::from_secs(1800),
            max_soft_pin_ttl: Duration::from_secs(24 * 3600),
            evict_soft_pinned: true,
            eviction_ratio: 0.05,
            high_watermark: 0.90,
            client_ttl: Duration::from_secs(10),
            put_discard: Duration::from_secs(30),
            put_release: Duration::from_secs(600),
            placement: Placement::Random,
            commit: Commit::Sync,
            index_bytes: u64::MAX,
        }
    }
}
